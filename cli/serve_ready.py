"""Wait until a server answers, saying what is seen meanwhile.

After a change of kernel or driver a server compiles its GPU kernels again; 440 s were measured for one that starts in a
minute otherwise. So waiting long is normal, and what is seen tells it from a server that never comes. Ready is a server
that has given an answer, not one that lists its model: the first answer compiles, too.
"""

from __future__ import annotations

import asyncio
import errno
import time
from dataclasses import replace

import aiohttp

from gpuhost_cli.records import one_line
from gpuhost_cli.serve_client import Ask, Client
from gpuhost_cli.serve_documents import Dialect, Waited
from gpuhost_cli.serve_faults import HttpRefused, ServeFault
from gpuhost_cli.serve_logs import LogSource, stopped
from gpuhost_cli.serve_progress import Ticker, clock

POLL_S = 1.0
ALIVE_EVERY_S = 5.0
"""Between looks at the unit or container: each starts a program."""
LOADING = (429, 502, 503, 504)
"""What servers, and proxies before them, answer while a model is loaded."""
PROBE_TOKENS = 4
DIALECTS = (
    Dialect(),
    Dialect(ignore_eos=False),
    Dialect(continuous_usage=False),
    Dialect(continuous_usage=False, ignore_eos=False),
    Dialect(usage=False, continuous_usage=False, ignore_eos=False),
)
"""Tried in this order where a server refuses what it does not know; most take, or pass over, the first."""
NO_OPTION = (400, 422)


class Waiting:
    """The states seen, with their seconds."""

    def __init__(self, limit_s: float, ticker: Ticker) -> None:
        self.begun = time.monotonic()
        self.limit_s = limit_s
        self.ticker = ticker
        self.states: list[tuple[str, float]] = []

    @property
    def left_s(self) -> float:
        return self.limit_s - (time.monotonic() - self.begun)

    def see(self, state: str) -> None:
        """Note and show the state of now."""
        now = time.monotonic()
        if not self.states or self.states[-1][0] != state:
            self.states.append((state, now))
        waited, since = now - self.begun, now - self.states[-1][1]
        self.ticker.say(
            state, f"waiting {clock(waited)} of at most {clock(self.limit_s)}: {state}, for {clock(since)} now"
        )

    def waited(self) -> tuple[Waited, ...]:
        """All states and how long each of them lasted."""
        if not self.states:
            return ()
        ends = [*(begun for _, begun in self.states[1:]), time.monotonic()]
        return tuple(
            Waited(state, round(end - begun, 1)) for (state, begun), end in zip(self.states, ends, strict=True)
        )

    def over(self) -> ServeFault:
        """The limit has passed."""
        seen = ", then ".join(f"{item.state} for {clock(item.seconds)}" for item in self.waited())
        return ServeFault("serve.not_ready", f"not ready after {clock(self.limit_s)}: {seen}")


async def until_listed(client: Client, waiting: Waiting, source: LogSource) -> tuple[str, ...]:
    """The served models; empty where the server has no list. Raises ServeFault."""
    looked = time.monotonic()
    while True:
        state, models = await _look(client)
        if models is not None:
            return models
        waiting.see(state)
        if time.monotonic() - looked >= ALIVE_EVERY_S:
            looked = time.monotonic()
            dead = await asyncio.to_thread(stopped, source)
            if dead:
                raise ServeFault("serve.gone", f"while waiting ({state}): {dead}")
        if waiting.left_s <= 0:
            raise waiting.over()
        await asyncio.sleep(min(POLL_S, max(0.05, waiting.left_s)))


async def _look(client: Client) -> tuple[str, tuple[str, ...] | None]:
    """What is seen now, and the models once they are listed."""
    try:
        models = await client.models()
    except HttpRefused as error:
        if error.status in LOADING:
            return f"HTTP {error.status} ({one_line(error.excerpt, 40) or 'loading'})", None
        # Where the model is named, its own answer says whether it is there.
        if error.status == 404 or (error.status >= 500 and client.endpoint.model):
            return "no list of models", ()
        raise error.as_fault(f"{client.endpoint.url}/models") from error
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
        return _unreachable(error, client), None
    return ("model listed", models) if models else ("answers, no model listed yet", None)


def _unreachable(error: Exception, client: Client) -> str:
    """The words for a connection that failed. Raises ServeFault where waiting is no use."""
    host = client.endpoint.url.host
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        raise ServeFault("serve.not_ready", f"the name {host} is not known here", "no_such_host") from error
    if isinstance(error, aiohttp.ClientSSLError):
        raise ServeFault("serve.not_ready", f"TLS with {host} failed: {one_line(error, 200)}", "tls") from error
    number = getattr(getattr(error, "os_error", error), "errno", None)
    if number == errno.ECONNREFUSED:
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "no answer"
    return one_line(getattr(getattr(error, "os_error", None), "strerror", None) or error or type(error).__name__, 60)


def chosen_model(wanted: str, models: tuple[str, ...]) -> str:
    """The model to ask. Raises ServeFault, with what is served, where it is not clear.

    One that is named and not listed is asked for all the same: some servers list other things than they serve.
    """
    if wanted:
        return wanted
    if len(models) != 1:
        served = ", ".join(models) or "nothing that is listed"
        raise ServeFault("serve.wrong_model", f"--model has to say which one; served: {served}")
    return models[0]


async def first_answer(
    client: Client, prompt: str, waiting: Waiting, source: LogSource, models: tuple[str, ...] = ()
) -> Dialect:
    """Get an answer, and find out what this server takes. Raises ServeFault. ``models``: what it has listed."""
    refused = ""
    for number, dialect in enumerate(DIALECTS):
        try:
            stream = await _probe(client, Ask(prompt, PROBE_TOKENS, replace(dialect, done=False)), waiting, source)
        except HttpRefused as error:
            if error.status in NO_OPTION and number + 1 < len(DIALECTS):
                refused = refused or one_line(error.excerpt, 160)
                continue
            if error.status == 404 and models and client.endpoint.model not in models:
                observed = f"{client.endpoint.model} is not served here; served: {', '.join(models)}"
                raise ServeFault("serve.wrong_model", observed) from error
            raise error.as_fault("the first question") from error
        return replace(
            dialect, done=stream[0], usage=stream[1], continuous_usage=dialect.continuous_usage and stream[2],
            refused=refused,
        )  # fmt: skip
    raise AssertionError("the last dialect returns or raises")


async def _probe(client: Client, ask: Ask, waiting: Waiting, source: LogSource) -> tuple[bool, bool, bool]:
    """Ask until there is an answer: [DONE] came, usage came, usage came with every chunk."""
    while True:
        asked = asyncio.create_task(_ask(client, ask, waiting.left_s))
        found = await _watched(asked, waiting, source)
        if isinstance(found, tuple):
            return found
        waiting.see(found)
        if waiting.left_s <= 0:
            raise waiting.over()
        await asyncio.sleep(POLL_S)


async def _ask(client: Client, ask: Ask, left_s: float) -> tuple[bool, bool, bool] | str:
    """What the answer has shown, or what was seen instead of one."""
    try:
        stream = await client.answer(ask, max(1.0, left_s), "the first question")
    except HttpRefused as error:
        if error.status in LOADING:
            return f"HTTP {error.status} ({one_line(error.excerpt, 40) or 'loading'})"
        raise
    except aiohttp.ClientConnectorError as error:
        return _unreachable(error, client)
    except ServeFault as fault:
        if fault.code == "serve.stalled":  # that is the limit of the waiting, not one of a stream
            return "no first answer"
        raise
    return stream.done, stream.tokens_by == "usage", stream.continuous


async def _watched(
    asked: asyncio.Task[tuple[bool, bool, bool] | str], waiting: Waiting, source: LogSource
) -> tuple[bool, bool, bool] | str:
    """Wait for the first answer, showing that it is waited for. Raises what the question raises."""
    looked = time.monotonic()
    try:
        while not asked.done():
            waiting.see("model listed, first answer not yet there")
            await asyncio.wait([asked], timeout=POLL_S)
            if time.monotonic() - looked >= ALIVE_EVERY_S and not asked.done():
                looked = time.monotonic()
                dead = await asyncio.to_thread(stopped, source)
                if dead:
                    raise ServeFault("serve.gone", f"before the first answer: {dead}")
        return asked.result()
    finally:
        asked.cancel()
