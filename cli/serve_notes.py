"""What a reader has to know beside the figures: definitions, and whatever makes a figure less than it seems. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuhost_cli.serve_documents import Dialect, Level
from gpuhost_cli.serve_prompts import Prompts
from gpuhost_cli.serve_stats import ONE_TOKEN_AN_ARRIVAL

DEFINITIONS = {
    "TTFT": "question sent until the first output arrives; queueing and prefill are in it",
    "TPOT": "(last - first output) / (output tokens - those of the first arrival), an answer at a time",
    "ITL": "pause before each arrival of output, where an arrival is one token; all answers together",
    "tok/s": "a stream's: 1 / median TPOT; the system's: output tokens / (first request to last output)",
}
"""Printed below the table and written to the JSON."""
FEW_FOR_P99 = 100
HELD_CHUNKS = 10
"""Chunks an arrival, on average over an answer. Where it is more, a proxy has gathered them or this client was starved:
seen beside a server whose threads spin on all cores, where 128 chunks came in one read."""
TELLS_CACHED = "--enable-prompt-tokens-details"
"""With it vLLM says what was cached. Seen with 0.32 on a CPU: TTFT 55 ms, and 31 ms for the same prompts again."""
BUSY_PERCENT = 80.0
"""Of one core: an event loop that has more to do is late."""
LATE_MS, LATE_SHARE = 5.0, 0.2
"""The loop's lateness that matters: more than this, and more than this share of a token's time."""


def notes(dialect: Dialect, levels: Sequence[Level], prompts: Prompts, max_tokens: int) -> tuple[str, ...]:
    """Whatever was not as the definitions would have it, each with what it does to the figures."""
    return (
        *_dialect(dialect, levels, max_tokens),
        *(line for level in levels for line in _level(level, dialect)),
        *_client(levels),
        *_samples(levels),
        *_prompts(levels, prompts),
    )


def _dialect(dialect: Dialect, levels: Sequence[Level], max_tokens: int) -> Iterator[str]:
    answers = [answer for level in levels for answer in level.answers]
    short = sum(answer.output_tokens < max_tokens for answer in answers)
    if short:
        why = "the server refuses ignore_eos" if not dialect.ignore_eos else "the server passes over ignore_eos"
        yield f"{short} of {len(answers)} answers ended before {max_tokens} tokens ({why}): lengths differ"
    long = sum(answer.output_tokens > max_tokens for answer in answers)
    if long:
        yield f"{long} of {len(answers)} answers have more than {max_tokens} tokens: the server passes over max_tokens"
    if dialect.refused:
        yield f"the server refused an option and was asked without it: {dialect.refused}"
    if not dialect.done:
        yield "this server ends its streams without [DONE]; a finish_reason is taken for the end"
    if any(level.tokens_by == "chunks" for level in levels):
        yield (
            "no usage from this server: each chunk with text was counted as one token, which is too few where chunks "
            "carry several"
        )


def _level(level: Level, dialect: Dialect) -> Iterator[str]:
    where = f"concurrency {level.concurrency}"
    if not level.complete:
        yield f"{where}: broken off after {len(level.answers)} of {level.asked} answers"
    held = sum(HELD_CHUNKS * item.arrivals < item.chunks for item in level.answers)
    if held:
        yield (
            f"{where}: {held} of {len(level.answers)} answers were held up, here or on the way, and came in a few "
            "pieces: their TTFT is too long, their TPOT too short or missing"
        )
    if level.gap_ms and level.itl_ms is None:
        packed = level.tokens_per_chunk is not None and level.tokens_per_chunk > ONE_TOKEN_AN_ARRIVAL
        why = f"a chunk carries {level.tokens_per_chunk:.2f} tokens"
        if not packed:
            why = f"{level.chunks_per_arrival:.2f} chunks came together, held up here or on the way"
        gap = level.gap_ms
        yield (
            f"{where}: {why}, so there is no ITL; pauses between arrivals p50 {gap.p50:.1f}, p90 {gap.p90:.1f}, "
            f"p99 {gap.p99:.1f} ms"
            + ("; the first chunk is taken for one token" if packed and not dialect.continuous_usage else "")
        )


def _client(levels: Sequence[Level]) -> Iterator[str]:
    busy = [level for level in levels if level.client.cpu_percent > BUSY_PERCENT or _late(level)]
    if busy:
        lag, cpu = max(level.client.lag_p99_ms for level in busy), max(level.client.cpu_percent for level in busy)
        where = ", ".join(str(level.concurrency) for level in busy)
        yield (
            f"this client itself was late at concurrency {where}: up to {lag:.0f} ms at p99, with {cpu:.0f} % of a "
            "core. TTFT, and p90 and p99 of the others, are upper bounds: measure from an idle machine"
        )


def _late(level: Level) -> bool:
    """Whether the event loop woke up too late for the figures of this level."""
    tpot = level.tpot_ms.p50 if level.tpot_ms else 0.0
    return level.client.lag_p99_ms > max(LATE_MS, LATE_SHARE * tpot)


def _samples(levels: Sequence[Level]) -> Iterator[str]:
    few = [level for level in levels if level.ttft_ms and level.ttft_ms.n < FEW_FOR_P99]
    if few:
        yield f"p99 of TTFT and TPOT with fewer than {FEW_FOR_P99} answers is hardly more than the slowest one"


def _prompts(levels: Sequence[Level], prompts: Prompts) -> Iterator[str]:
    answers = [answer for level in levels for answer in level.answers]
    cached = sum(answer.cached_tokens or 0 for answer in answers)
    total = sum(answer.prompt_tokens or 0 for answer in answers)
    if total and cached > total / 10:
        yield (
            f"{100 * cached / total:.0f} % of the prompts' tokens came out of the server's prefix cache: TTFT is too "
            "good; another --seed gives new prompts"
        )
    if not prompts.lines and total and all(answer.cached_tokens is None for answer in answers):
        yield (
            f"this server does not say what came out of its prefix cache (vLLM does with {TELLS_CACHED}): if this "
            f"same process has had --seed {prompts.seed} before, TTFT is too good"
        )
    if prompts.lines and len(answers) > len(prompts.lines):
        yield (
            f"{len(prompts.lines)} prompts for {len(answers)} answers: repeated ones may come out of the server's "
            "prefix cache, with a TTFT that is too good"
        )
