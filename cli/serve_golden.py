"""Golden answers: greedy answers of a server that was known to be good, against those of today. Pure functions.

Exact equality is nothing that a server promises. Another kernel, driver, batch size or number of GPUs adds the same
numbers in another order, and where two candidates are nearly equal greedy decoding takes the other one; from there on
the text is another, and as good. So answers are asked for one at a time, and what is compared is how far they agree
and, with logprobs, how sure the model was where they part.

Where the limits come from. Logits lie between 16 and 32 in these models, where BF16 knows steps of 2^-3 = 0.125.

* A parting is a *near tie* if the first choice led the second by at most 0.5 nats: both may move by two steps.
* The mean change of the logprobs of the tokens in common may be 0.125, one such step. The mean, since most tokens of
  a sure model have logprobs near 0 that nothing moves; the few unsure ones show the damage.
* Without logprobs: half of the answers must agree for 25 % of their length. For 64 tokens that is 16, and answers that
  part so early have more than 1 - 0.5^(1/16) = 4 % of all tokens decided otherwise, more than near ties explain.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from gpuhost_cli.serve_documents import GoldenAnswer, GoldenResult, GoldenRow, GoldenSet
from gpuhost_cli.serve_garbled import garbled
from gpuhost_cli.serve_stream import Stream


@dataclass(frozen=True)
class Limits:
    """What two sound runs may differ by; the reasons are above."""

    near_tie_nats: float = 0.5
    logprob_difference: float = 0.125
    common_share: float = 0.25


def common_prefix(one: Sequence[str], other: Sequence[str]) -> int:
    """How many items agree from the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def answer_of(prompt: str, stream: Stream, again: Stream | None) -> GoldenAnswer:
    """A golden answer; ``again`` is the same question asked a second time."""
    answer = GoldenAnswer(prompt, stream.text, stream.finish)
    if stream.tokens:
        answer = GoldenAnswer(prompt, stream.text, stream.finish, stream.tokens, stream.logprobs, stream.margins)
    if again is None or again.text == stream.text:
        return answer
    units, others = (stream.tokens, again.tokens) if stream.tokens and again.tokens else (stream.text, again.text)
    repeats = round(common_prefix(units, others) / max(len(units), len(others)), 4)
    return GoldenAnswer(
        prompt, answer.text, answer.finish, answer.tokens, answer.logprobs, answer.margins, repeats=repeats
    )


def recorded(path: str, answers: Sequence[GoldenAnswer]) -> GoldenResult:
    """What is said about a new golden set."""
    rows = tuple(_recorded_row(answer) for answer in answers)
    bad = [row for row in rows if row.verdict == "garbled"]
    same = sum(answer.repeats == 1 for answer in answers)
    sentence = f"{len(answers)} golden answers, {same} of them the same when asked again"
    if not all(answer.logprobs for answer in answers):
        sentence += "; no logprobs, so a later comparison can only count what agrees"
    if bad:
        sentence = f"{len(bad)} of {len(answers)} answers are garbled, nothing was recorded: {bad[0].sentence}"
    return GoldenResult("record", path, "serve.garbled" if bad else None, sentence, rows=rows)


def _recorded_row(answer: GoldenAnswer) -> GoldenRow:
    length = len(answer.tokens) or len(answer.text)
    why = garbled(answer.text, loops=True)
    return GoldenRow(
        answer.prompt,
        "garbled" if why else "equal",
        round(answer.repeats * length),
        length,
        "tokens" if answer.tokens else "characters",
        None,
        None,
        why or ("the same when asked again" if answer.repeats == 1 else "not the same when asked again"),
    )


def compared(path: str, before: GoldenSet, after: Sequence[GoldenAnswer], limits: Limits) -> GoldenResult:
    """Today's answers against the golden ones, in the same order."""
    rows = [row_of(old, new, limits) for old, new in zip(before.answers, after, strict=True)]
    by_logprobs = all(old.logprobs and new.logprobs for old, new in zip(before.answers, after, strict=True))
    deltas = [delta for old, new in zip(before.answers, after, strict=True) for delta in _deltas(old, new)]
    mean = statistics.fmean(deltas) if by_logprobs and deltas else None
    share = statistics.median(row.common / row.length if row.length else 1.0 for row in rows)
    code, sentence = _judged(rows, mean, share, limits)
    return GoldenResult(
        "compare", path, code, sentence, None if mean is None else round(mean, 4), round(share, 4), tuple(rows)
    )


def row_of(old: GoldenAnswer, new: GoldenAnswer, limits: Limits) -> GoldenRow:
    """One answer against its golden one."""
    by_tokens = bool(old.tokens and new.tokens)
    units, others = (old.tokens, new.tokens) if by_tokens else (tuple(old.text), tuple(new.text))
    common, length = common_prefix(units, others), max(len(units), len(others))
    deltas = _deltas(old, new)
    # An end is a choice too, though some servers do not list its token; one that lists it is no other answer.
    other = common < len(new.tokens) or (new.finish == "stop" and new.text != old.text)
    margin = old.margins[common] if by_tokens and common < len(old.margins) and other else None
    unit = "tokens" if by_tokens else "characters"
    why = garbled(new.text, loops=not garbled(old.text, loops=True))
    verdict, sentence = "equal", "the same"
    if why and not garbled(old.text):
        verdict, sentence = "garbled", why
    elif old.text != new.text or common < length:
        verdict = "near tie" if margin is not None and margin <= limits.near_tie_nats else "differs"
        sentence = f"parts after {common} of {length} {unit}" + _led(margin)
    return GoldenRow(
        old.prompt,
        verdict,  # type: ignore[arg-type]
        common,
        length,
        unit,  # type: ignore[arg-type]
        None if margin is None else round(margin, 4),
        round(statistics.fmean(deltas), 4) if deltas else None,
        sentence,
    )


def _led(margin: float | None) -> str:
    return "" if margin is None else f", lead {margin:.2f} nats"


def _deltas(old: GoldenAnswer, new: GoldenAnswer) -> list[float]:
    """How much each token in common has become more or less likely, in nats."""
    common = common_prefix(old.tokens, new.tokens)
    return [abs(a - b) for a, b in zip(old.logprobs[:common], new.logprobs[:common], strict=False)]


def _judged(rows: Sequence[GoldenRow], mean: float | None, share: float, limits: Limits) -> tuple[str | None, str]:
    bad = [row for row in rows if row.verdict == "garbled"]
    if bad:
        return "serve.garbled", f"{len(bad)} of {len(rows)} golden answers are garbled now: {bad[0].sentence}"
    same = sum(row.verdict == "equal" for row in rows)
    said = f"{same} of {len(rows)} golden answers are the same"
    sure = [row for row in rows if row.margin is not None and row.margin > limits.near_tie_nats]
    if sure:
        worst = max(sure, key=lambda row: row.margin or 0)
        return "serve.golden_differs", (
            f"{said}, {len(sure)} part where the model was sure: {worst.sentence}; up to {limits.near_tie_nats:g} is a "
            "near tie"
        )
    if mean is not None and mean > limits.logprob_difference:
        return "serve.golden_differs", (
            f"{said}, but logprobs of the tokens in common have moved by {mean:.3f} nats on average, "
            f"expected at most {limits.logprob_difference:g}"
        )
    if mean is None and share < limits.common_share:
        return "serve.golden_differs", (
            f"{said}, half of them agree for {share:.0%} of their length at most, expected {limits.common_share:.0%}"
        )
    if mean is not None:
        said += f", logprobs have moved by {mean:.3f} nats on average"
    if same == len(rows):
        return None, said
    if mean is None:
        return None, f"{said}, half of them agree for at least {share:.0%} of their length"
    unknown = sum(row.verdict == "differs" for row in rows)
    if unknown:
        return None, f"{said}; {unknown} part where the lead of the first choice is not known"
    return None, f"{said}; the others part at near ties, as rounding explains"
