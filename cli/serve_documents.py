"""The documents of ``gpuhost serve-check``. Times in ms unless the name says otherwise; tokens are the server's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpuhost.documents import Head

State = Literal["running", "complete", "stopped", "interrupted"]
TokensBy = Literal["usage", "chunks"]


@dataclass(frozen=True)
class Percentiles:
    """Linear interpolation between neighbours, as numpy has it. ``n``: how many values there were."""

    n: int
    p50: float
    p90: float
    p99: float
    largest: float


@dataclass(frozen=True)
class Answer:
    """One measured answer.

    ``started_s``: since its level began. ``seconds``: from the request to the last output. ``tpot_ms`` is None where
    the answer has no second token. ``chunks``: events with output. ``arrivals``: reads from the socket that have some.
    """

    prompt: int
    started_s: float
    seconds: float
    ttft_ms: float
    tpot_ms: float | None
    output_tokens: int
    tokens_by: TokensBy
    chunks: int
    arrivals: int
    prompt_tokens: int | None
    cached_tokens: int | None
    finish: str


@dataclass(frozen=True)
class ClientLoad:
    """Whether the client itself was in the way: its share of one CPU core, and how late its event loop woke up."""

    cpu_percent: float
    lag_p99_ms: float


@dataclass(frozen=True)
class Level:
    """All answers at one concurrency.

    ``output_tok_s``: all output tokens over the time from the first request to the last output. ``stream_tok_s``:
    what one stream sees, 1 / median TPOT. ``itl_ms`` is None where arrivals carry several tokens, be it that the server
    packs them or that they were read together; ``gap_ms`` is then all that can be said: the pauses between arrivals.
    ``complete`` is False where it was broken off.
    """

    concurrency: int
    complete: bool
    asked: int
    wall_s: float
    output_tokens: int
    tokens_per_chunk: float | None
    chunks_per_arrival: float | None
    tokens_by: TokensBy | None
    output_tok_s: float | None
    stream_tok_s: float | None
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    itl_ms: Percentiles | None
    gap_ms: Percentiles | None
    prompt_tokens_median: float | None
    errors: dict[str, int]
    client: ClientLoad
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Dialect:
    """What this server takes and gives beyond the common ground, found out with the first answer.

    ``done``: its streams end with ``[DONE]``. ``logprobs`` is found out by the golden answers.
    """

    usage: bool = True
    continuous_usage: bool = True
    ignore_eos: bool = True
    done: bool = True
    refused: str = ""


@dataclass(frozen=True)
class Waited:
    """What was seen while waiting, in order, and for how long."""

    state: str
    seconds: float


@dataclass(frozen=True)
class Parameters:
    """What was asked for: two runs that differ in any of it (but the seed) can't be compared."""

    api: Literal["chat", "completions"]
    max_tokens: int
    prompt_words: int
    prompts: str
    seed: int
    temperature: float
    requests: int
    stall_s: float


@dataclass(frozen=True)
class GoldenAnswer:
    """A greedy answer, asked for alone. ``margins``: by how many nats the first choice led the second, per token."""

    prompt: str
    text: str
    finish: str
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    margins: tuple[float, ...] = ()
    repeats: float = 1.0
    """Asked a second time: the share of the answer up to the first difference. 1 is the same answer."""


@dataclass(frozen=True)
class GoldenSet:
    """The file of golden answers."""

    head: Head
    model: str
    api: str
    max_tokens: int
    answers: tuple[GoldenAnswer, ...]


GoldenVerdict = Literal["equal", "near tie", "differs", "garbled"]


@dataclass(frozen=True)
class GoldenRow:
    """One golden answer held against today's. ``common`` of ``length`` ``unit`` agree from the beginning."""

    prompt: str
    verdict: GoldenVerdict
    common: int
    length: int
    unit: Literal["tokens", "characters"]
    margin: float | None
    logprob_difference: float | None
    sentence: str


@dataclass(frozen=True)
class GoldenResult:
    """``mode``: ``record`` or ``compare``. ``cause`` is None where the answers are as they were."""

    mode: Literal["record", "compare"]
    path: str
    cause: str | None
    sentence: str
    logprob_difference: float | None = None
    common_share: float | None = None
    rows: tuple[GoldenRow, ...] = ()


ChangeVerdict = Literal["no measurable difference", "better", "worse", "within tolerance", "too few", "not measured"]


@dataclass(frozen=True)
class Change:
    """One figure before and after. Percents are of the value before; positive means larger, not better."""

    concurrency: int
    name: str
    unit: str
    before: float | None
    after: float | None
    change_percent: float | None
    low_percent: float | None
    high_percent: float | None
    verdict: ChangeVerdict
    n_before: int
    n_after: int


@dataclass(frozen=True)
class Comparison:
    """This run against an earlier one. ``worse`` is what exit status 1 is for."""

    before: str
    before_taken_at: str
    tolerance_percent: float
    ttft_tolerance_percent: float
    resamples: int
    worse: bool
    sentence: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServeCheck:
    """``gpuhost.serve_check``. ``state`` other than ``complete`` says that what follows was not measured."""

    head: Head
    label: str
    url: str
    model: str
    state: State
    cause: str | None
    sentence: str
    parameters: Parameters
    dialect: Dialect
    waited: tuple[Waited, ...]
    levels: tuple[Level, ...]
    golden: GoldenResult | None = None
    comparison: Comparison | None = None
    log_source: str = ""
    log_lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    definitions: dict[str, str] = field(default_factory=dict)
