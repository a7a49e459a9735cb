"""Two runs against each other, with intervals. Pure functions.

Interval: the answers of each run are drawn anew with replacement (Efron's bootstrap, percentile form, seeded), the
statistic is taken of both, and the middle 95 % of the differences are the interval. Statistics are the median of TTFT
and of TPOT, and the output rate ``concurrency x tokens / seconds in flight``: a level's end, with fewer streams than
that, is not in it.

What the interval does not know: answers in flight together share what happens to the server, and two runs of one
server differ by more than the answers within a run (temperature, other guests, which kernels were chosen). That is what
the tolerance is for: worse means that the interval leaves out 0 *and* the change is beyond the tolerance. TTFT has
one of its own: prompts that come together queue up for prefill, and in which order is chance.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuhost_cli.serve_documents import Answer, Change, ChangeVerdict, Comparison, Level, Parameters, ServeCheck
from gpuhost_cli.serve_stats import quantile

RESAMPLES = 2000
"""The ends of a 95 % interval are then the 50th value from each side, good to a tenth of its width."""
FEWEST = 10
"""Answers a side. With fewer the bootstrap of a median holds the truth less often than it says."""
TOLERANCE_PERCENT, TTFT_TOLERANCE_PERCENT = 5.0, 20.0

Statistic = Callable[[Sequence[Answer], int], float]


def _median_ttft(answers: Sequence[Answer], _: int) -> float:
    return statistics.median(item.ttft_ms for item in answers)


def _median_tpot(answers: Sequence[Answer], _: int) -> float:
    return statistics.median(item.tpot_ms for item in answers if item.tpot_ms is not None)


def _rate(answers: Sequence[Answer], concurrency: int) -> float:
    busy = sum(item.seconds for item in answers)
    return concurrency * sum(item.output_tokens for item in answers) / busy


METRICS: tuple[tuple[str, str, Statistic, bool], ...] = (
    ("ttft_median", "ms", _median_ttft, False),
    ("tpot_median", "ms", _median_tpot, False),
    ("output_rate", "tok/s", _rate, True),
)
"""Name, unit, statistic, whether more is better."""
WORDS = {"ttft_median": "TTFT, median", "tpot_median": "TPOT, median", "output_rate": "output rate"}
"""The names for people."""


@dataclass(frozen=True)
class Tolerance:
    """What may be worse, in percent."""

    percent: float = TOLERANCE_PERCENT
    ttft_percent: float = TTFT_TOLERANCE_PERCENT

    def of(self, name: str) -> float:
        """That of one figure."""
        return self.ttft_percent if name == "ttft_median" else self.percent


def compare(before: ServeCheck, after: ServeCheck, name: str, tolerance: Tolerance) -> Comparison:
    """All levels that both runs have."""
    old = {level.concurrency: level for level in before.levels}
    pairs = [(old[level.concurrency], level) for level in after.levels if level.concurrency in old]
    changes = tuple(_change(metric, earlier, later, tolerance) for earlier, later in pairs for metric in METRICS)
    worse = [item for item in changes if item.verdict == "worse"]
    return Comparison(
        name,
        before.head.taken_at,
        tolerance.percent,
        tolerance.ttft_percent,
        RESAMPLES,
        bool(worse),
        _sentence(changes, worse, tolerance),
        changes,
        tuple(_notes(before, after)),
    )


def _change(metric: tuple[str, str, Statistic, bool], old: Level, new: Level, tolerance: Tolerance) -> Change:
    name, unit, statistic, more_is_better = metric
    sides = [
        [item for item in level.answers if name != "tpot_median" or item.tpot_ms is not None] for level in (old, new)
    ]
    counts = (len(sides[0]), len(sides[1]))
    values = [statistic(side, old.concurrency) if side else None for side in sides]
    before, after = (None if value is None else round(value, 4) for value in values)
    if not before or after is None:
        verdict: ChangeVerdict = "not measured"
        return Change(old.concurrency, name, unit, before, after, None, None, None, verdict, *counts)
    change = 100 * (after / before - 1)
    if min(counts) < FEWEST or not (old.complete and new.complete):
        return Change(old.concurrency, name, unit, before, after, round(change, 3), None, None, "too few", *counts)
    low, high = interval(sides[0], sides[1], statistic, old.concurrency)
    return Change(
        old.concurrency, name, unit, before, after, *(round(value, 3) for value in (change, low, high)),
        verdict_of(change, low, high, tolerance.of(name), more_is_better=more_is_better), *counts,
    )  # fmt: skip


def interval(
    old: Sequence[Answer], new: Sequence[Answer], statistic: Statistic, concurrency: int
) -> tuple[float, float]:
    """The 95 % interval of the change in percent of the old value. The same answers give the same interval."""
    drawn = random.Random(20260101)  # noqa: S311 - seeded, so that two readers get the same interval
    changes = sorted(
        100
        * (
            statistic(drawn.choices(new, k=len(new)), concurrency)
            / statistic(drawn.choices(old, k=len(old)), concurrency)
            - 1
        )
        for _ in range(RESAMPLES)
    )
    return quantile(changes, 0.025), quantile(changes, 0.975)


def verdict_of(
    change: float, low: float, high: float, tolerance_percent: float, *, more_is_better: bool
) -> ChangeVerdict:
    """What a change is called."""
    if low <= 0 <= high:
        return "no measurable difference"
    if abs(change) <= tolerance_percent:
        return "within tolerance"
    return "better" if (change > 0) == more_is_better else "worse"


def _sentence(changes: Sequence[Change], worse: Sequence[Change], tolerance: Tolerance) -> str:
    if worse:
        first = max(worse, key=lambda item: abs(item.change_percent or 0) / (tolerance.of(item.name) or 1e-9))
        return (
            f"{len(worse)} of {len(changes)} figures are worse by more than is tolerated, the worst: "
            f"{WORDS[first.name]}, at concurrency {first.concurrency} {first.change_percent:+.1f} %"
        )
    unknown = sum(item.verdict in ("too few", "not measured") for item in changes)
    if unknown == len(changes):
        return "nothing could be compared: too few answers"
    said = "no figure is worse by more than is tolerated"
    return said + (f"; {unknown} of {len(changes)} could not be compared" if unknown else "")


def _notes(before: ServeCheck, after: ServeCheck) -> list[str]:
    notes = []
    if before.model != after.model:
        notes.append(f"the model was {before.model} then and is {after.model} now")
    if before.dialect.ignore_eos != after.dialect.ignore_eos:
        notes.append("ignore_eos was taken in one run only: answers differ in length")
    if before.parameters.seed != after.parameters.seed:
        notes.append(
            f"other prompts of the same length: seed {before.parameters.seed} then, {after.parameters.seed} now"
        )
    for which, run in (("before", before), ("after", after)):
        if run.state != "complete":
            notes.append(f"the run of {which} is {run.state}: only whole levels are compared")
    return notes


def incomparable(before: dict[str, Any], now: Parameters, levels: Sequence[int]) -> str:
    """Why an earlier document can't be compared with a run of these parameters; empty where it can."""
    then = before.get("parameters") or {}
    for name in ("api", "max_tokens", "prompt_words", "prompts", "temperature"):
        if then.get(name) != getattr(now, name):
            return f"{name} was {then.get(name)} then and is {getattr(now, name)} now"
    known = [level.get("concurrency") for level in before.get("levels") or ()]
    if not set(known) & set(levels):
        return f"it has measured at concurrency {known or 'none'}, this run measures at {list(levels)}"
    return ""


def too_few(before: ServeCheck, answers: Mapping[int, int]) -> str:
    """Why a comparison could say nothing at all; ``answers`` are those of the later run at each concurrency."""
    then = {level.concurrency: len(level.answers) for level in before.levels if level.complete}
    if any(min(then.get(number, 0), count) >= FEWEST for number, count in answers.items()):
        return ""
    return f"no level has {FEWEST} answers in both runs: --requests {FEWEST}"


def with_comparison(found: ServeCheck, comparison: Comparison) -> ServeCheck:
    """A document with its comparison; ``serve.slower`` where a figure is worse and nothing else was found."""
    code, sentence = found.cause, found.sentence
    if comparison.worse and code is None:
        code, sentence = "serve.slower", comparison.sentence
    return replace(found, comparison=comparison, cause=code, sentence=sentence)
