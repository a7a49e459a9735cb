"""The HTTP side: one endpoint, asked by aiohttp.

Why aiohttp: the client must not be what is measured. 64 streams with a chunk every 10 ms each are 6400 chunks/s;
measured on 2 cores, with the server on the same two, where 10 ms between chunks are true:

    client                       CPU a chunk   chunks/s   pauses p50, p99
    openai 3.57                       169 us       3900      0.1, 488 ms
    httpx 0.28, httpx-sse 0.4         125 us       5900      9.9,  32 ms
    aiohttp 3.14                       48 us       6300     10.0,  14 ms

aiohttp is also what the load generators of vLLM and SGLang use. Proxies of the environment are not used: they would be
measured too. TLS is verified with the system's certificates (SSL_CERT_FILE names others). Redirects are not followed,
so that the key stays here.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
from yarl import URL

from gpuhost_cli.explain_text import printable
from gpuhost_cli.records import one_line
from gpuhost_cli.serve_documents import Dialect
from gpuhost_cli.serve_faults import HttpRefused, ServeFault
from gpuhost_cli.serve_stream import Read, Stream, read_stream

CONNECT_S = 10.0
"""For a connection to a host of the same site. A host that is down does not answer at all."""
LISTING_S = 10.0
"""For the list of models, which costs a server nothing."""
EXCERPT_BYTES, EXCERPT = 4096, 300
MOST_BYTES, MOST_TOKEN_BYTES = 1 << 16, 1 << 14
"""Of an answer, and more for each token that was asked for; an event with logprobs and usage has 1 kB. A server that
passes over max_tokens would go on to the end of its context, or for ever."""


@dataclass(frozen=True)
class Endpoint:
    """Whom to ask: the base URL up to /v1, the API, and the key, which no text of ours shows."""

    url: URL
    api: str
    model: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return f"Endpoint({self.url}, {self.api}, {self.model})"


@dataclass(frozen=True)
class Ask:
    """One question."""

    prompt: str
    max_tokens: int
    dialect: Dialect
    past_the_end: bool = True
    """Go on after the model's own end, so that all answers have one length."""
    logprobs: bool = False


@dataclass(frozen=True)
class Raw:
    """An answer before it is read: its bytes with their times, when its question was sent, what it is called."""

    reads: tuple[Read, ...]
    sent: float
    what: str
    done: bool


def read(raw: Raw) -> Stream:
    """The answer. Raises ServeFault. Takes 11 us an event: nothing else has the loop meanwhile."""
    try:
        found = read_stream(raw.reads, raw.sent)
    except ServeFault as fault:
        raise ServeFault(fault.code, f"{raw.what}: {fault.observed}", fault.kind) from fault
    if raw.done and not found.done:
        raise ServeFault("serve.broken_stream", f"{raw.what}: the stream ended without [DONE]", "no_done")
    return found


def base_url(text: str) -> URL:
    """The base URL; /v1 where it names no path. Raises ValueError."""
    url = URL(text.strip())
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"{text!r} is no URL such as http://gpu-a:8000")
    if url.user or url.password:
        raise ValueError("the URL holds a password, which every process list shows: --api-key-file FILE")
    if url.query_string or url.fragment:
        raise ValueError(f"{text!r}: leave out what follows the path")
    path = url.path.rstrip("/")
    for tail in ("/chat/completions", "/completions", "/models"):
        path = path.removesuffix(tail)
    return url.with_path(path or "/v1")


def body_of(endpoint: Endpoint, ask: Ask) -> dict[str, Any]:
    """The request's JSON."""
    body: dict[str, Any] = {
        "model": endpoint.model, "max_tokens": ask.max_tokens, "temperature": 0, "stream": True,
    }  # fmt: skip
    if endpoint.api == "chat":
        body["messages"] = [{"role": "user", "content": ask.prompt}]
    else:
        body["prompt"] = ask.prompt
    if ask.dialect.usage:
        body["stream_options"] = {"include_usage": True}
        if ask.dialect.continuous_usage:
            body["stream_options"]["continuous_usage_stats"] = True
    if ask.dialect.ignore_eos and ask.past_the_end:
        body["ignore_eos"] = True
    if ask.logprobs:
        body |= {"logprobs": True, "top_logprobs": 2} if endpoint.api == "chat" else {"logprobs": 2}
    return body


class Client:
    """A session with one server. ``async with`` it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self.endpoint.key}"} if self.endpoint.key else {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=300), headers=headers, trace_configs=[_trace()]
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is not open")
        return self._session

    def use(self, endpoint: Endpoint) -> None:
        """Go on with a model that was found out. The key can't change."""
        self.endpoint = endpoint

    async def models(self) -> tuple[str, ...]:
        """The served models. Raises HttpRefused, aiohttp.ClientError, TimeoutError, ServeFault."""
        limit = aiohttp.ClientTimeout(total=LISTING_S, sock_connect=CONNECT_S)
        async with self.session.get(self.endpoint.url / "models", timeout=limit, allow_redirects=False) as response:
            await self._refused(response)
            text = self._without_key(await response.text(errors="replace"))
        try:
            return tuple(str(item["id"]) for item in json.loads(text)["data"])
        except (ValueError, TypeError, KeyError) as error:
            raise ServeFault(
                "serve.not_openai", f"{self.endpoint.url}/models answers {one_line(printable(text), 120)!r}"
            ) from error

    async def answer(self, ask: Ask, stall_s: float, what: str) -> Stream:
        """One streamed answer, read at once. Raises what ``fetch`` and ``read`` raise."""
        return read(await self.fetch(ask, stall_s, what))

    async def fetch(self, ask: Ask, stall_s: float, what: str) -> Raw:
        """One answer as it came. Raises ServeFault, HttpRefused; aiohttp.ClientConnectorError if nobody listens."""
        body = json.dumps(body_of(self.endpoint, ask)).encode()
        path = "chat/completions" if self.endpoint.api == "chat" else "completions"
        reads: list[Read] = []
        sent: list[float] = [time.perf_counter()]
        try:
            async with self.session.post(
                self.endpoint.url / path,
                data=body,
                headers={"Content-Type": "application/json", "Accept": "text/event-stream"},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=stall_s),
                allow_redirects=False,
                trace_request_ctx=sent,
            ) as response:
                await self._refused(response)
                if not response.content_type.startswith("text/event-stream"):
                    text = one_line(printable(self._without_key(await _excerpt(response))), 120)
                    raise ServeFault("serve.not_openai", f"{what}: {response.content_type}, no event stream: {text}")
                if not await _read_all(response, reads, stall_s, MOST_BYTES + ask.max_tokens * MOST_TOKEN_BYTES):
                    observed = f"{what}: {_so_far(reads, sent[-1])}, and no end: {ask.max_tokens} tokens were asked for"
                    raise ServeFault("serve.broken_stream", observed, "endless")
        except aiohttp.ClientConnectorError:
            raise
        except TimeoutError as error:
            observed = f"{what}: {_so_far(reads, sent[-1])}, then nothing for {stall_s:g} s"
            raise ServeFault("serve.stalled", observed) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise await self._broken(error, f"{what}: {_so_far(reads, sent[-1])}") from error
        return Raw(tuple(reads), sent[-1], what, ask.dialect.done)

    async def _refused(self, response: aiohttp.ClientResponse) -> None:
        if response.status != 200:
            text = _error_text(await _excerpt(response))
            if 300 <= response.status < 400:
                text = f"to {response.headers.get('Location', '?')}: name that URL"
            raise HttpRefused(response.status, one_line(printable(self._without_key(text)), EXCERPT))

    def _without_key(self, text: str) -> str:
        """Some servers repeat a key that they do not know."""
        return text.replace(self.endpoint.key, "(the key)") if self.endpoint.key else text

    async def _broken(self, error: Exception, observed: str) -> ServeFault:
        """A connection that broke: whether the server is still there tells the two faults apart."""
        reason = printable(str(error) or type(error).__name__).partition(":")[0]  # what follows names aiohttp's insides
        said = f"{observed}, then the connection broke ({one_line(reason, 100)})"
        for pause in (0.0, 0.3, 0.7):  # a dying process may still accept for a moment
            await asyncio.sleep(pause)
            try:
                await self.models()
            except aiohttp.ClientConnectorError:
                return ServeFault("serve.gone", f"{said}; nobody listens on {self.endpoint.url.authority} any more")
            except (aiohttp.ClientError, ConnectionError, TimeoutError, HttpRefused, ServeFault):
                continue
        return ServeFault("serve.broken_stream", f"{said}; the server still answers", "cut_off")


def _trace() -> aiohttp.TraceConfig:
    """Note when a question goes out. 64 of them take aiohttp 20 ms to make, which is no time of the server."""

    async def sent(_: aiohttp.ClientSession, context: Any, __: Any) -> None:
        if isinstance(context.trace_request_ctx, list):
            context.trace_request_ctx.append(time.perf_counter())

    made = aiohttp.TraceConfig()
    made.on_request_chunk_sent.append(sent)
    return made


async def _read_all(response: aiohttp.ClientResponse, reads: list[Read], stall_s: float, most: int) -> bool:
    """The hot loop: note each read and its time, nothing else. A comment that keeps a connection open is no output.

    False where the answer is longer than ``most`` bytes.
    """
    clock = time.perf_counter
    latest = clock()
    async for data in response.content.iter_any():
        now = clock()
        reads.append((now, data))
        most -= len(data)
        if most < 0:
            return False
        if b"data:" in data:
            latest = now
        elif now - latest > stall_s:
            raise TimeoutError
    return True


def _so_far(reads: list[Read], started: float) -> str:
    if not reads:
        return "no answer yet"
    chunks = sum(data.count(b"data:") for _, data in reads)
    return f"{chunks} chunks in {reads[-1][0] - started:.1f} s"


async def _excerpt(response: aiohttp.ClientResponse) -> str:
    try:
        return (await response.content.read(EXCERPT_BYTES)).decode("utf-8", "replace")
    except (aiohttp.ClientError, TimeoutError):
        return ""


def _error_text(text: str) -> str:
    """The message of OpenAI's error object, or of FastAPI's; else the text as it is."""
    try:
        data = json.loads(text)
    except ValueError:
        return text
    found = data.get("error", data.get("detail", data)) if isinstance(data, Mapping) else data
    if isinstance(found, Mapping):
        found = found.get("message", found)
    return found if isinstance(found, str) else json.dumps(found)
