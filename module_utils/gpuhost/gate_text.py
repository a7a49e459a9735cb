"""The words of the gate: quantities, changes, and the table of what was held against what. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from .documents import Comparison

UNITS = {"gb_s": "GB/s", "tflop_s": "TFLOP/s", "gpus": "GPUs", "us_shown": "us", "us_difference": "us", "ratio": ""}
COLUMNS = ("measurement", "now", "baseline", "change", "limit", "verdict")
_ORDER = ("error", "fail", "not_measured", "recorded", "pass", "shown")


def quantity(value: float | None, unit: str) -> str:
    """A value for people: ``3921 GB/s``, ``8.34 us``, ``88.1 %``; a dash where there is none."""
    if value is None:
        return "-"
    if unit == "share":
        return f"{100 * value:.4g} %"
    number = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{number} {UNITS.get(unit, unit)}".rstrip()


def change(percent: float | None) -> str:
    """A change against the baseline: ``-5.2 %``; a dash where there is none."""
    return "-" if percent is None else f"{percent:+.1f} %"


def table(rows: Sequence[Comparison]) -> list[str]:
    """What was held against what, the bad ones first; a line each below the names of the columns. Empty for nothing."""
    if not rows:
        return []
    several = len({row.target for row in rows}) > 1
    cells = [COLUMNS] + [
        (
            f"{row.target} {row.name}" if several else row.name,
            quantity(row.value, row.unit),
            quantity(row.baseline, row.unit),
            change(row.change_percent),
            row.limit or "-",
            f"{row.verdict} {row.cause}" if row.cause else row.verdict,
        )
        for row in sorted(rows, key=lambda row: _ORDER.index(row.verdict))
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(COLUMNS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def counts(rows: Sequence[Comparison]) -> str:
    """What passed, in a few words: ``14 compared, at worst -1.2 %``; ``14 recorded``; empty where there was nothing."""
    compared = [row for row in rows if row.verdict == "pass" and row.limit]
    recorded = sum(row.verdict == "recorded" for row in rows)
    parts = []
    if compared:
        parts.append(f"{len(compared)} compared")
        changes = [row.change_percent * _direction(row) for row in compared if row.change_percent is not None]
        if changes:
            worst = min(changes)
            parts.append(f"at worst {abs(worst):.1f} % {'worse' if worst < 0 else 'better'} than the baseline")
    if recorded:
        parts.append(f"{recorded} recorded as the baseline")
    return ", ".join(parts)


def _direction(row: Comparison) -> int:
    return -1 if row.unit in LOWER_IS_BETTER else 1


HIGHER_IS_BETTER = frozenset({"gb_s", "tflop_s", "share", "gpus"})
LOWER_IS_BETTER = frozenset({"us", "ms"})
