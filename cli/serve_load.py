"""Streams at one concurrency: so many workers, each with one question open at any time, until all are asked."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import aiohttp

from gpuhost_cli.serve_client import Ask, Client, Raw, read
from gpuhost_cli.serve_documents import ClientLoad, Dialect, Level
from gpuhost_cli.serve_faults import HttpRefused, ServeFault
from gpuhost_cli.serve_garbled import garbled
from gpuhost_cli.serve_progress import Ticker, clock
from gpuhost_cli.serve_prompts import Prompts
from gpuhost_cli.serve_stats import level_of, quantile
from gpuhost_cli.serve_stream import Stream

BEAT_S = 0.02
"""Between looks at the event loop's own lateness: often enough for a p99 within a second."""
WARM_TOKENS = 8
"""Enough for prefill and a few decode steps at this concurrency, which is what compiles or captures."""
FEWEST = 12
"""Answers at a low concurrency: a little more than the comparison needs."""
DEADLY = ("serve.gone", "serve.unauthorized", "serve.wrong_model")
"""Faults that end the check however many errors are allowed."""


@dataclass(frozen=True)
class Load:
    """How a level is measured. ``requests``: answers per level at least; 0 means twice its concurrency."""

    max_tokens: int
    requests: int
    stall_s: float
    max_errors: int
    dialect: Dialect

    def asked(self, concurrency: int) -> int:
        """Answers at that concurrency."""
        return answers_of(self.requests, concurrency)


def answers_of(requests: int, concurrency: int) -> int:
    """Whole rounds, so that the last one is as full as the others."""
    least = max(requests or FEWEST, concurrency if requests else 2 * concurrency)
    return -(-least // concurrency) * concurrency


@dataclass
class Running:
    """One level while it is measured; what it has is kept when it is broken off."""

    concurrency: int
    asked: int
    begun: float = 0.0
    streams: list[tuple[int, Stream]] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    lags_s: list[float] = field(default_factory=list)
    cpu_begun: float = 0.0
    complete: bool = False

    def level(self) -> Level:
        """The figures so far."""
        wall = time.perf_counter() - self.begun
        cpu = time.process_time() - self.cpu_begun
        lag = quantile(sorted(self.lags_s), 0.99) if self.lags_s else 0.0
        client = ClientLoad(round(100 * cpu / wall, 1) if wall > 0 else 0.0, round(lag * 1e3, 3))
        return level_of(
            self.concurrency, self.asked, self.streams, self.begun, self.errors, client, complete=self.complete
        )


async def warm_up(client: Client, load: Load, prompts: Sequence[str], limit_s: float) -> None:
    """A short answer on each stream, not measured: the first time at a concurrency compiles. Raises ServeFault."""
    what = f"warming up at concurrency {len(prompts)}"

    async def one(prompt: str) -> None:
        read(await _fetch(client, Ask(prompt, min(WARM_TOKENS, load.max_tokens), load.dialect), limit_s, what))

    async with _group() as group:
        for prompt in prompts:
            group.create_task(one(prompt))


async def measure(client: Client, load: Load, running: Running, prompts: Prompts, first: int, ticker: Ticker) -> None:
    """Fill ``running``. ``first`` is the number of its first prompt. Raises ServeFault."""
    questions = iter([(first + number, prompts.text(first + number)) for number in range(running.asked)])
    with _no_collection():
        running.begun, running.cpu_begun = time.perf_counter(), time.process_time()
        beat = asyncio.create_task(_beat(running, ticker))
        try:
            async with _group() as group:
                judge = Judge(running, load.max_errors, group)
                for _ in range(running.concurrency):
                    group.create_task(_worker(client, load, judge, questions, first))
            running.complete = True
        finally:
            beat.cancel()


class Judge:
    """Reads answers beside the streams, one a turn of the loop.

    All streams of a batch end in one turn. Reading each where it ends would note the last arrival of the 64th after 63
    answers had been read: 90 ms late, measured, where 128 tokens of 10 ms are true.
    """

    def __init__(self, running: Running, max_errors: int, group: asyncio.TaskGroup) -> None:
        self.running = running
        self.max_errors = max_errors
        self.group = group
        self._turn = asyncio.Lock()

    def take(self, number: int, raw: Raw) -> None:
        """Read it as soon as nothing else is to be done."""
        self.group.create_task(self._read(number, raw))

    async def _read(self, number: int, raw: Raw) -> None:
        async with self._turn:
            await asyncio.sleep(0)
            try:
                stream = read(raw)
                why = garbled(stream.text, loops=stream.finish == "stop")
                if why:
                    raise ServeFault("serve.garbled", f"{raw.what}: {why}")
            except ServeFault as fault:
                self.count(fault)
                return
            self.running.streams.append((number, stream))

    def count(self, fault: ServeFault) -> None:
        """Count a fault; raise it where it ends the check."""
        self.running.errors[fault.kind] += 1
        if fault.code in DEADLY or self.running.errors.total() > self.max_errors:
            raise fault


async def _worker(client: Client, load: Load, judge: Judge, questions: Iterator[tuple[int, str]], first: int) -> None:
    running = judge.running
    for number, prompt in questions:
        what = f"answer {number - first + 1} of {running.asked} at concurrency {running.concurrency}"
        ask = Ask(prompt, load.max_tokens, load.dialect)
        try:
            judge.take(number, await _fetch(client, ask, load.stall_s, what))
        except ServeFault as fault:
            judge.count(fault)


async def _fetch(client: Client, ask: Ask, stall_s: float, what: str) -> Raw:
    """An answer of a server that was ready: whatever it does else is a fault."""
    try:
        return await client.fetch(ask, stall_s, what)
    except HttpRefused as error:
        raise error.as_fault(what) from error
    except aiohttp.ClientConnectorError as error:
        raise ServeFault(
            "serve.gone", f"{what}: nobody listens on {client.endpoint.url.authority} any more ({error.strerror})"
        ) from error


@asynccontextmanager
async def _group() -> AsyncIterator[asyncio.TaskGroup]:
    """All at once; the first failure cancels the others. That the server is gone explains all other faults."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except* ServeFault as found:
        faults = [fault for fault in _flat(found) if isinstance(fault, ServeFault)]
        raise next((fault for fault in faults if fault.code == "serve.gone"), faults[0]) from None


def _flat(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for item in group.exceptions:
        if isinstance(item, BaseExceptionGroup):
            yield from _flat(item)
        else:
            yield item


async def _beat(running: Running, ticker: Ticker) -> None:
    """How late the loop wakes up is how late times of arrivals can be; and a word of progress each second."""
    said = 0.0
    while True:
        due = time.perf_counter() + BEAT_S
        await asyncio.sleep(BEAT_S)
        now = time.perf_counter()
        running.lags_s.append(max(0.0, now - due))
        if now - said >= 1:
            said = now
            ticker.say(f"level {running.concurrency}", _progress(running, now - running.begun))


def _progress(running: Running, passed_s: float) -> str:
    done = len(running.streams)
    left = f", about {clock(passed_s * (running.asked - done) / done)} to go" if done else ""
    errors = f", errors {running.errors.total()}" if running.errors else ""
    return f"concurrency {running.concurrency}: {done} of {running.asked} answers in {clock(passed_s)}{left}{errors}"


@contextmanager
def _no_collection() -> Iterator[None]:
    """A garbage collection in the middle would stop the clock of all streams at once."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
