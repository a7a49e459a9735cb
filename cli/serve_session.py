"""One check from waiting to the last level; what it has found so far can be written at any moment."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, replace
from pathlib import Path

from gpuhost.documents import SCHEMA_PREFIX, make_head
from gpuhost_cli import records, serve_compare, serve_golden, serve_load, serve_logs, serve_notes, serve_read
from gpuhost_cli.run import InputError
from gpuhost_cli.serve_client import Ask, Client, Endpoint
from gpuhost_cli.serve_documents import (
    Dialect,
    GoldenAnswer,
    GoldenResult,
    GoldenSet,
    Level,
    Parameters,
    ServeCheck,
    State,
    Waited,
)
from gpuhost_cli.serve_faults import HttpRefused, ServeFault
from gpuhost_cli.serve_golden import Limits
from gpuhost_cli.serve_load import Load, Running
from gpuhost_cli.serve_logs import LogSource
from gpuhost_cli.serve_progress import Ticker, clock
from gpuhost_cli.serve_prompts import GOLDEN, Prompts
from gpuhost_cli.serve_ready import Waiting, chosen_model, first_answer, until_listed
from gpuhost_cli.serve_stream import Stream

GOLDEN_SCHEMA = SCHEMA_PREFIX + "serve_golden"
GOLDEN_TOKENS = 64
"""Of a golden answer: long enough for damage to show, short enough for eight of them at 10 tok/s in a minute."""
A_LEVEL = 100_000
"""Prompt numbers of one level begin at concurrency x this, so that a level's prompts don't depend on which others are
measured; its warm-up takes those of the upper half."""
NO_LOGPROBS = (400, 422, 501)


@dataclass(frozen=True)
class Golden:
    """``known`` is None where the answers are to be recorded."""

    path: Path
    known: GoldenSet | None
    limits: Limits
    accept: bool = False


@dataclass(frozen=True)
class Plan:
    """All that the command line has said."""

    endpoint: Endpoint
    parameters: Parameters
    prompts: Prompts
    concurrency: tuple[int, ...]
    wait_s: float
    max_errors: int
    log: LogSource
    log_lines: int
    label: str
    golden: Golden | None
    output: Path | None


class Session:
    """A check under way."""

    def __init__(self, plan: Plan, ticker: Ticker) -> None:
        self.plan = plan
        self.ticker = ticker
        self.end_state: State = "running"
        self._head = make_head("serve_check", str(plan.endpoint.url.host), records.new_run_id())
        self._model = plan.endpoint.model
        self._dialect = Dialect()
        self._waiting: Waiting | None = None
        self._waited: tuple[Waited, ...] = ()
        self._levels: list[Level] = []
        self._running: Running | None = None
        self._golden: GoldenResult | None = None
        self._fault: ServeFault | None = None
        self._log: tuple[str, ...] = ()
        self._notes: list[str] = []

    async def check(self) -> None:
        """The whole check. A fault of the server ends it and is in the document; SIGTERM is as Ctrl-C."""
        task = asyncio.current_task()
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            async with Client(self.plan.endpoint) as client:
                await self._ready(client)
                await self._golden_answers(client)
                for concurrency in self.plan.concurrency:
                    await self._level(client, concurrency)
            self.end_state = "complete"
        except ServeFault as fault:
            self._fault = fault
            self.end_state = "stopped"
            self.ticker.clear()
            self._log = await asyncio.to_thread(serve_logs.last_lines, self.plan.log, self.plan.log_lines)

    async def _ready(self, client: Client) -> None:
        self._waiting = Waiting(self.plan.wait_s, self.ticker)
        models = await until_listed(client, self._waiting, self.plan.log)
        self._model = chosen_model(self.plan.endpoint.model, models)
        client.use(replace(self.plan.endpoint, model=self._model))
        known = self.plan.golden.known if self.plan.golden else None
        if known and known.model != self._model:
            self._notes.append(f"golden answers are of {known.model}, served is {self._model}")
        self._dialect = await first_answer(client, self.plan.prompts.text(0), self._waiting, self.plan.log, models)
        if models and self._model not in models:
            self._notes.append(f"{self._model} answers, although this server lists only {', '.join(models)}")
        self._waited, self._waiting = self._waiting.waited(), None
        self.ticker.line(f"{self._model} answers after {clock(sum(item.seconds for item in self._waited))}")

    async def _level(self, client: Client, concurrency: int) -> None:
        asked = self.plan.parameters
        load = Load(asked.max_tokens, asked.requests, asked.stall_s, self.plan.max_errors, self._dialect)
        first = concurrency * A_LEVEL
        warm = [self.plan.prompts.text(first + A_LEVEL // 2 + number) for number in range(concurrency)]
        self.ticker.say(f"warm {concurrency}", f"concurrency {concurrency}: warming up")
        await serve_load.warm_up(client, load, warm, self.plan.wait_s)
        self._running = Running(concurrency, load.asked(concurrency))
        try:
            await serve_load.measure(client, load, self._running, self.plan.prompts, first, self.ticker)
        finally:
            self._levels.append(self._running.level())
        self._running = None
        if self.plan.output:
            try:
                records.write_text(self.plan.output, serve_read.as_json(self.document("running")))
            except OSError as error:  # tried again at the end, where it counts
                self.ticker.line(f"{self.plan.output}: {error.strerror}: not written yet")

    async def _golden_answers(self, client: Client) -> None:
        golden = self.plan.golden
        if golden is None:
            return
        prompts = [answer.prompt for answer in golden.known.answers] if golden.known else list(GOLDEN)
        tokens = golden.known.max_tokens if golden.known else GOLDEN_TOKENS
        answers: list[GoldenAnswer] = []
        logprobs = True
        for number, prompt in enumerate(prompts, 1):
            self.ticker.say("golden", f"golden answer {number} of {len(prompts)}")
            ask = Ask(prompt, tokens, self._dialect, past_the_end=False, logprobs=logprobs)
            stream, logprobs = await self._ask(client, ask, number)
            again = None
            if golden.known is None:
                again, _ = await self._ask(client, replace(ask, logprobs=logprobs), number)
            answers.append(serve_golden.answer_of(prompt, stream, again))
        if not all(answer.logprobs for answer in answers):
            self._notes.append("the server gives no logprobs: golden answers are compared by their text alone")
        self._golden = self._judge(golden, answers, tokens)
        if self._golden.cause:
            raise ServeFault(self._golden.cause, self._golden.sentence)

    async def _ask(self, client: Client, ask: Ask, number: int) -> tuple[Stream, bool]:
        """The answer, and whether logprobs were allowed."""
        what = f"golden answer {number}"
        try:
            return await client.answer(ask, self.plan.parameters.stall_s, what), ask.logprobs
        except HttpRefused as error:
            if not (ask.logprobs and error.status in NO_LOGPROBS):
                raise error.as_fault(what) from error
        return (await self._ask(client, replace(ask, logprobs=False), number))[0], False

    def _judge(self, golden: Golden, answers: list[GoldenAnswer], tokens: int) -> GoldenResult:
        if golden.known:
            return serve_golden.compared(str(golden.path), golden.known, answers, golden.limits)
        found = serve_golden.recorded(str(golden.path), answers)
        if found.cause and golden.accept:
            bad = sum(row.verdict == "garbled" for row in found.rows)
            self._notes.append(
                f"{bad} of {len(answers)} golden answers are garbled and were accepted (--golden-accept)"
            )
            found = replace(found, cause=None, sentence=f"{len(answers)} golden answers, garbled ones among them")
        if not found.cause:
            head = make_head("serve_golden", self._head.host, self._head.run_id)
            made = GoldenSet(head, self._model, self.plan.parameters.api, tokens, tuple(answers))
            try:
                records.write_text(golden.path, serve_read.as_json(made))
            except OSError as error:
                raise InputError(f"{golden.path}: {error.strerror}") from error
        return found

    def document(self, state: State) -> ServeCheck:
        """All that is known now."""
        waited = self._waiting.waited() if self._waiting else self._waited
        levels = tuple(self._levels)
        plan, fault = self.plan, self._fault
        sentence = fault.observed if fault else f"{sum(len(level.answers) for level in levels)} answers measured"
        return ServeCheck(
            self._head,
            plan.label,
            str(plan.endpoint.url),
            self._model,
            state,
            fault.code if fault else None,
            sentence,
            plan.parameters,
            self._dialect,
            waited,
            levels,
            self._golden,
            None,
            plan.log.name if self._log else "",
            self._log,
            (*self._notes, *serve_notes.notes(self._dialect, levels, plan.prompts, plan.parameters.max_tokens)),
            dict(serve_notes.DEFINITIONS),
        )

    def with_comparison(self, before: ServeCheck, name: str, tolerance: serve_compare.Tolerance) -> ServeCheck:
        """The document of a complete check, held against an earlier one."""
        found = self.document("complete")
        return serve_compare.with_comparison(found, serve_compare.compare(before, found, name, tolerance))
