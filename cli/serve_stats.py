"""Answers at one concurrency to the figures of that level. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from gpuhost_cli.serve_documents import Answer, ClientLoad, Level, Percentiles
from gpuhost_cli.serve_stream import Stream

ONE_TOKEN_AN_ARRIVAL = 1.05
"""Up to 5 % of the tokens may come together with another one (two events in one read) before pauses are no ITL."""


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """p50, p90, p99 and the largest; None without values."""
    if not values:
        return None
    rising = sorted(values)
    return Percentiles(
        len(rising), *(round(quantile(rising, share), 4) for share in (0.5, 0.9, 0.99)), round(rising[-1], 4)
    )


def quantile(rising: Sequence[float], share: float) -> float:
    """Linear interpolation between the two neighbours, as numpy's default."""
    place = share * (len(rising) - 1)
    low = math.floor(place)
    high = min(low + 1, len(rising) - 1)
    return rising[low] + (rising[high] - rising[low]) * (place - low)


def answer_of(stream: Stream, prompt: int, level_begun: float) -> Answer:
    """The record of one answer."""
    tpot = stream.tpot_s
    return Answer(
        prompt,
        round(stream.started - level_begun, 6),
        round(stream.last - stream.started, 6),
        round(stream.ttft_s * 1e3, 4),
        None if tpot is None else round(tpot * 1e3, 4),
        stream.output_tokens,
        stream.tokens_by,
        stream.chunks,
        len(stream.gaps_s) + 1,
        stream.prompt_tokens,
        stream.cached_tokens,
        stream.finish,
    )


def level_of(
    concurrency: int,
    asked: int,
    streams: Sequence[tuple[int, Stream]],
    begun: float,
    errors: Mapping[str, int],
    client: ClientLoad,
    *,
    complete: bool,
) -> Level:
    """The figures of one level; ``streams`` are (number of the prompt, answer)."""
    answers = tuple(answer_of(stream, prompt, begun) for prompt, stream in streams)
    tokens = sum(item.output_tokens for item in answers)
    chunks, arrivals = sum(item.chunks for item in answers), sum(item.arrivals for item in answers)
    wall = max((stream.last for _, stream in streams), default=begun) - begun
    gaps = percentiles([gap * 1e3 for _, stream in streams for gap in stream.gaps_s])
    tpot = percentiles([item.tpot_ms for item in answers if item.tpot_ms is not None])
    prompts = [item.prompt_tokens for item in answers if item.prompt_tokens is not None]
    return Level(
        concurrency,
        complete,
        asked,
        round(wall, 6),
        tokens,
        round(tokens / chunks, 3) if chunks else None,
        round(chunks / arrivals, 3) if arrivals else None,
        ("chunks" if any(item.tokens_by == "chunks" for item in answers) else "usage") if answers else None,
        round(tokens / wall, 3) if wall > 0 else None,
        round(1e3 / tpot.p50, 3) if tpot and tpot.p50 > 0 else None,
        percentiles([item.ttft_ms for item in answers]),
        tpot,
        gaps if tokens <= ONE_TOKEN_AN_ARRIVAL * arrivals else None,
        gaps,
        statistics.median(prompts) if prompts else None,
        dict(errors),
        client,
        answers,
    )
