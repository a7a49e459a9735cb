"""What the gate held against what: the rows of its table, the bad ones first, and where the baselines come from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gpuhost import gate_text
from gpuhost.documents import Comparison
from gpuhost.expectations import check_of
from gpuhost_cli import report_read as read

ORDER = ("fail", "error", "not_measured", "recorded", "pass", "shown")
BAD = frozenset({"fail", "error", "not_measured"})
TONE = {"pass": "good", "recorded": "quiet", "shown": "quiet"}
WORD = {"pass": "passed", "fail": "failed", "not_measured": "not measured", "error": "error"}

_ORIGIN = re.compile(
    r"baseline of (?P<when>\S+) \((?P<run>.*)\): kernel (?P<kernel>\S+), now \S+; driver (?P<driver>\S+), now \S+"
)
"""A note of the judge (``baselines.changes_since``): it carries kernels and drivers, whether they differ or not."""


@dataclass(frozen=True)
class ComparedRow(Comparison):
    """A row of the gate's table. ``required``: its check has a say."""

    required: bool = True

    @property
    def bad(self) -> bool:
        """It kept its check from passing."""
        return self.verdict in BAD

    @property
    def word(self) -> str:
        """The verdict for people."""
        return WORD.get(self.verdict, self.verdict)

    @property
    def tone(self) -> str:
        """How loud it is: what is not required is a warning at most."""
        return TONE.get(self.verdict, "bad" if self.required else "warn")


@dataclass(frozen=True)
class Origin:
    """Where baselines come from, and which of kernel and driver is another one now."""

    taken_at: str
    run_id: str
    kernel: str
    driver: str


@dataclass(frozen=True)
class GateTable:
    """The gate's table: bad rows first, and what it was held against."""

    kernel: str
    driver: str
    rows: tuple[ComparedRow, ...]
    origins: tuple[Origin, ...]
    notes: tuple[str, ...]
    """What else is not as it was when the baseline was taken, such as another GPU."""

    @property
    def bad(self) -> tuple[ComparedRow, ...]:
        """What kept a check from passing, each fault once."""
        return faults(self.rows)

    @property
    def others(self) -> tuple[ComparedRow, ...]:
        """The rows with nothing to complain about."""
        return tuple(row for row in self.rows if not row.bad)

    @property
    def sentence(self) -> str:
        """All rows in a few words: ``2 failed, 1 not measured; 30 compared, at worst 1.2 % worse than …``."""
        words = [*self._counted(required=True), *self._counted(required=False)]
        held = gate_text.counts(self.rows)
        shown = sum(row.verdict == "shown" for row in self.rows)
        parts = [", ".join(words), held, f"{shown} without a limit" if shown else ""]
        return "; ".join(part for part in parts if part)

    def _counted(self, *, required: bool) -> Iterator[str]:
        for verdict in ORDER[:3]:
            count = sum(row.verdict == verdict and row.required is required for row in self.bad)
            if count:
                yield f"{count} {WORD[verdict]}{'' if required else ' (not required)'}"


def table_of(verdict: Mapping[str, Any]) -> GateTable:
    """The table in a ``verdict.json``."""
    notes = read.texts(verdict, "notes")
    found = [_ORIGIN.fullmatch(note) for note in notes]
    return GateTable(
        kernel=read.text(verdict.get("kernel")),
        driver=read.text(verdict.get("driver")),
        rows=compared(verdict),
        origins=tuple(Origin(item["when"], item["run"], item["kernel"], item["driver"]) for item in found if item),
        notes=tuple(note for note, item in zip(notes, found, strict=True) if item is None),
    )


def compared(verdict: Mapping[str, Any]) -> tuple[ComparedRow, ...]:
    """``verdict.comparisons``: what failed first, required checks before others, the largest change first.

    The good ones keep the order in which they were measured. A verdict that is not known counts as an error.
    """
    required = set(read.texts(verdict, "required"))
    rows = [_compared(row, required) for row in read.rows(verdict, "comparisons")]
    return tuple(sorted(rows, key=_severity))


def _severity(row: ComparedRow) -> tuple[bool, bool, int, bool, float, str]:
    """Hangs and wrong data, which have no limit, before what is slow."""
    if not row.bad:
        return True, False, ORDER.index(row.verdict), False, 0.0, ""
    slow = bool(row.limit)
    return False, not row.required, ORDER.index(row.verdict), slow, -abs(row.change_percent or 0.0), row.name


def faults(rows: Sequence[ComparedRow]) -> tuple[ComparedRow, ...]:
    """The bad rows, each fault once: a whole check in error says again what its worst part has said."""
    bad = [row for row in rows if row.bad]
    parts = {(row.target, row.check, row.cause) for row in bad if row.name != row.check}
    return tuple(row for row in bad if row.name != row.check or (row.target, row.check, row.cause) not in parts)


def _compared(row: Mapping[str, Any], required: set[str]) -> ComparedRow:
    name, verdict, cause = read.text(row.get("name")), row.get("verdict"), read.text(row.get("cause"))
    check = read.text(row.get("check")) or check_of(name)
    known = verdict if isinstance(verdict, str) and verdict in ORDER else "error"
    return ComparedRow(
        target=read.text(row.get("target")),
        check=check,
        name=name,
        value=read.number(row.get("value")),
        unit=read.text(row.get("unit")),
        baseline=read.number(row.get("baseline")),
        change_percent=read.number(row.get("change_percent")),
        limit=read.text(row.get("limit")),
        verdict=cast("Any", known),
        cause=cause or None,
        observed=read.text(row.get("observed")).removeprefix(f"{name}: "),
        next_step=read.text(row.get("next_step")) or read.next_step_of(cause),
        required=check in required,
    )
