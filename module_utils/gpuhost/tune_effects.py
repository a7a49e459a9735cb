"""Whether a knob has an effect: paired samples in, an effect with its interval and a verdict out.

Old value and new are measured in turns, two neighbours a pair, and the order within the pairs alternates: whatever
changes slowly meanwhile (temperature, other work) pushes half of the differences up and half of them down. For each
pair ln(new / old) is taken: it lies symmetrically about 0 where there is no effect, however uneven the samples are.

* effect: the median of the averages of any two differences (Hodges and Lehmann 1963), in percent of the old value.
* interval: those averages that the signed-rank test does not reject (Wilcoxon 1945; its distribution is counted out
  exactly, nothing is assumed of the noise but that it is symmetric).
* several benchmarks: each interval is that much wider (Bonferroni: 5 % divided by their number), so that among all
  benchmarks of a knob a false alarm has a chance of at most 5 %.
* noise floor: half of the neighbours among the samples of one and the same value lie further apart than that. An effect
  below it, or below what anybody would care for, is no measurable effect, even if its interval leaves out 0.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from .documents import Finding, Head

Verdict = Literal["improves", "no measurable effect", "harmful", "mixed", "not measured"]
IMPROVES, NO_EFFECT, HARMFUL, MIXED, NOT_MEASURED = (
    "improves", "no measurable effect", "harmful", "mixed", "not measured",
)  # fmt: skip
ALPHA = 0.05
SMALLEST_PERCENT = 1.0
"""Where nobody has said otherwise: a smaller change is none, however surely it is there."""
PAIRS = 12
"""Enough for an interval over 100 benchmarks of a knob, and for a change of 5 % where two samples differ by 2 %."""
FEWEST_PAIRS = 5


@dataclass(frozen=True)
class Benchmark:
    """What is measured. ``better``: whether ``lower`` or ``higher`` values are."""

    name: str
    unit: str
    better: str


@dataclass(frozen=True)
class Effect:
    """What a knob does to one benchmark. Percents are of the old value; a positive one means a larger value.

    ``before_samples`` and ``before_percent`` are there in a verification alone: samples from before anything was
    applied, and how far the old values lie from them later.
    """

    benchmark: str
    unit: str
    better: str
    old_median: float | None
    new_median: float | None
    effect_percent: float | None
    low_percent: float | None
    high_percent: float | None
    noise_percent: float | None
    verdict: Verdict
    old_samples: tuple[float, ...] = ()
    new_samples: tuple[float, ...] = ()
    before_samples: tuple[float, ...] = ()
    before_percent: float | None = None


@dataclass(frozen=True)
class KnobEffect:
    """One knob: what it did, and what becomes of it. ``decision``: ``kept``, ``left out``, ``as it was``.

    ``in_force``: whether the host has the new value now. ``reason``: why it was not measured, or is decided so.
    """

    knob: str
    concern: str
    old: str
    new: str
    objects: int
    verdict: Verdict
    decision: Literal["kept", "left out", "as it was"]
    in_force: bool
    reason: str
    seconds: float
    benchmarks: tuple[Effect, ...]


@dataclass(frozen=True)
class Effects:
    """``effects.json``. ``mode``: ``measure`` (each knob alone) or ``verify`` (before, apply, after)."""

    head: Head
    mode: Literal["measure", "verify"]
    pairs: int
    family_error_percent: float
    smallest_percent: float
    method: str
    kernel: str
    load: tuple[str, ...]
    timer: bool
    seconds: float
    knobs: tuple[KnobEffect, ...]
    findings: tuple[Finding, ...]


METHOD = (
    "old and new value in turns, order alternating; effect: median of all averages of two paired differences; "
    "interval: exact signed rank, 5 % divided by the number of the knob's benchmarks"
)


def order(pairs: int) -> str:
    """The turns: ``old new``, ``new old``, and so on, as letters A and B."""
    return "".join("AB" if number % 2 == 0 else "BA" for number in range(pairs))


@lru_cache(maxsize=64)
def _rank_sums(count: int) -> tuple[int, ...]:
    """In how many of the 2**count signings the ranks with a plus add up to 0, 1, 2, ..."""
    ways = [1]
    for rank in range(1, count + 1):
        longer = ways + [0] * rank
        for total, number in enumerate(ways):
            longer[total + rank] += number
        ways = longer
    return tuple(ways)


def _left_out(count: int, alpha: float) -> int:
    """How many of the sorted averages the interval leaves out at each end; -1 where there are too few pairs for any."""
    limit, below = alpha / 2 * 2**count, 0
    for total, number in enumerate(_rank_sums(count)):
        below += number
        if below > limit:
            return total - 1
    return -1


def pairs_needed(benchmarks: int) -> int:
    """The fewest pairs with which anything at all can be found among so many benchmarks."""
    return max(FEWEST_PAIRS, math.ceil(1 + math.log2(max(1, benchmarks) / ALPHA)))


def _averages(differences: Sequence[float]) -> list[float]:
    return sorted((one + other) / 2 for place, one in enumerate(differences) for other in differences[place:])


def interval(differences: Sequence[float], alpha: float) -> tuple[float, float, float] | None:
    """(estimate, low, high) of the differences; None where there are too few for this ``alpha``."""
    averages = _averages(differences)
    left_out = _left_out(len(differences), alpha) if differences else -1
    if left_out < 0:
        return None
    return statistics.median(averages), averages[left_out], averages[-1 - left_out]


def _percent(logarithm: float) -> float:
    return round(100 * math.expm1(logarithm), 3)


def noise_percent(samples: Sequence[float]) -> float | None:
    """How far neighbours among samples of one value lie apart: the median, in percent. None for fewer than two."""
    apart = [abs(math.log(after / before)) for before, after in pairwise(samples)]
    return _percent(statistics.median(apart)) if apart else None


def judge(
    benchmark: Benchmark,
    old: Sequence[float],
    new: Sequence[float],
    family: int,
    smallest_percent: float = SMALLEST_PERCENT,
) -> Effect:
    """One benchmark's effect. ``old[i]`` and ``new[i]`` are a pair; ``family``: how many benchmarks the knob has.

    A sample that is not above 0 makes its pair worthless. With too few pairs it was not measured.
    """
    pairs = [(one, other) for one, other in zip(old, new, strict=True) if one > 0 and other > 0]
    firsts, seconds = [one for one, _ in pairs], [other for _, other in pairs]
    found = interval([math.log(other / one) for one, other in pairs], ALPHA / max(1, family))
    noises = [item for item in (noise_percent(firsts), noise_percent(seconds)) if item is not None]
    noise = max(noises) if noises else None
    estimate, low, high = (None, None, None) if found is None else map(_percent, found)
    return Effect(
        benchmark.name, benchmark.unit, benchmark.better,
        statistics.median(firsts) if firsts else None, statistics.median(seconds) if seconds else None,
        estimate, low, high, noise, _verdict(benchmark, estimate, low, high, max(noise or 0, smallest_percent)),
        tuple(firsts), tuple(seconds),
    )  # fmt: skip


def _verdict(
    benchmark: Benchmark, estimate: float | None, low: float | None, high: float | None, floor: float
) -> Verdict:
    if estimate is None or low is None or high is None:
        return "not measured"
    if low <= 0 <= high or abs(estimate) <= floor:
        return "no measurable effect"
    return "improves" if (estimate > 0) == (benchmark.better == "higher") else "harmful"


def knob_verdict(effects: Sequence[Effect]) -> Verdict:
    """A knob's verdict from those of its benchmarks. One that gives here and takes there is for a person."""
    seen = {item.verdict for item in effects}
    if {IMPROVES, HARMFUL} <= seen:
        return "mixed"
    if HARMFUL in seen:
        return "harmful"
    if IMPROVES in seen:
        return "improves"
    return "no measurable effect" if NO_EFFECT in seen else "not measured"


def decision(verdict: Verdict, keep_harmful: bool) -> tuple[Literal["kept", "left out", "as it was"], str]:
    """What becomes of a knob, and why: tune's wish holds unless it was seen to do harm."""
    if verdict == HARMFUL and not keep_harmful:
        return "left out", "it does harm here"
    if verdict == HARMFUL:
        return "kept", "it does harm here, and tune_effects_keep_harmful says to keep it"
    if verdict == MIXED:
        return "kept", "better here and worse there: a person has to weigh that"
    if verdict == NO_EFFECT:
        return "kept", "as tune wishes: neither good nor harm was seen"
    return ("kept", "") if verdict == IMPROVES else ("as it was", "")


def with_before(effect: Effect, before: Sequence[float]) -> Effect:
    """The effect with the samples from before anything was applied. Where they differ from the old values, measured
    again later, something else than the settings has changed."""
    from_then = [item for item in before if item > 0]
    apart = None
    if from_then and effect.old_median:
        apart = _percent(math.log(effect.old_median / statistics.median(from_then)))
    return Effect(**{**vars(effect), "before_samples": tuple(from_then), "before_percent": apart})
