"""What a waterfall and the batch table take from the documents of serve-check. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuhost_cli import report_read as read
from gpuhost_cli.waterfall_numbers import finite, positive, whole

SERVE = "gpuhost.serve_check"


@dataclass(frozen=True)
class Level:
    """One concurrency. ``tpot_ms``: median; ``rate``: tok/s of all streams while that many are in flight, prompts
    included, as serve-check compares it."""

    concurrency: int
    tpot_ms: float | None
    rate: float | None
    complete: bool = True


@dataclass(frozen=True)
class Change:
    """A figure against before, in percent of before; ``low`` to ``high`` is the 95 % interval, None where none is."""

    before: float | None
    percent: float | None
    low: float | None
    high: float | None
    verdict: str


@dataclass(frozen=True)
class Serve:
    """One run of serve-check. ``changes`` by concurrency and figure, against the run of ``before_taken_at``."""

    file: str
    taken_at: str
    host: str
    url: str
    model: str
    label: str
    state: str
    sentence: str
    parameters: Mapping[str, Any]
    prompt_tokens: float | None
    levels: Mapping[int, Level]
    changes: Mapping[tuple[int, str], Change]
    before: str
    before_taken_at: str


def serve_of(document: Mapping[str, Any], file: str) -> Serve:
    """What serve-check saw."""
    comparison = read.sub(document, "comparison")
    levels, prompts = {}, []
    for row in read.rows(document, "levels"):
        concurrency, tpot = whole(row.get("concurrency")), positive(read.sub(row, "tpot_ms").get("p50"))
        answers = read.rows(row, "answers")
        busy = sum(positive(item.get("seconds")) or 0.0 for item in answers)
        tokens = sum(positive(item.get("output_tokens")) or 0.0 for item in answers)
        rate = concurrency * tokens / busy if busy and tokens else None
        levels[concurrency] = Level(concurrency, tpot, rate, row.get("complete") is True)
        prompts.append(positive(row.get("prompt_tokens_median")))
    changes = {
        (whole(row.get("concurrency")), read.text(row.get("name"))): Change(
            positive(row.get("before")), finite(row.get("change_percent")), finite(row.get("low_percent")),
            finite(row.get("high_percent")), read.text(row.get("verdict")),
        )
        for row in read.rows(comparison, "changes")
    }  # fmt: skip
    return Serve(
        file=file,
        taken_at=read.text(document.get("taken_at")),
        host=read.text(document.get("host")),
        url=read.text(document.get("url")),
        model=read.text(document.get("model")),
        label=read.text(document.get("label")),
        state=read.text(document.get("state")),
        sentence=read.text(document.get("sentence")),
        parameters=read.sub(document, "parameters"),
        prompt_tokens=max((each for each in prompts if each is not None), default=None),
        levels=levels,
        changes=changes,
        before=read.text(comparison.get("before")),
        before_taken_at=read.text(comparison.get("before_taken_at")),
    )
