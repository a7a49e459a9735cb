"""The lines below a step that has ended. Of a gate that failed a few: what missed its limit, and the next step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuhost import gate_text
from gpuhost_cli import report_read as read
from gpuhost_cli.records import find_documents
from gpuhost_cli.report_gate import ComparedRow, compared, faults
from gpuhost_cli.report_rows import VerdictRow
from gpuhost_cli.show import INDENT, lines_of

ROWS = 5
"""Rows on the terminal: enough to see whether it is one part or all of them."""
WIDTH = 200
"""Characters of a line of the table; a driver's message can be any length. The next step is never cut."""


def step_lines(result: Mapping[str, Any], status: str, *, diff: bool) -> list[str]:
    """Lines to print below a step that has ended: ok, changed or failed; empty for most."""
    if status in ("ok", "changed"):
        return lines_of(result, diff)
    return failed_gate_lines(result) if status == "failed" else []


def failed_gate_lines(result: Mapping[str, Any]) -> list[str]:
    """Lines to print below a gate that failed: what missed its limit, and the next step. Empty for other failures."""
    verdict = next((item for item in find_documents(result) if item.get("schema") == "gpuhost.verdict"), None)
    failed = [row for row in read.verdicts(verdict or {}) if row.required and row.status != "pass"]
    if not failed:
        return []
    first = failed[0]
    rows = _rows(verdict or {}, first)
    lines = [*_table_lines(rows[:ROWS]), *_more(rows[ROWS:])]
    if not any(_is_of(row, first) for row in rows):  # nothing of it was compared: there was no measurement
        lines.insert(0, f"{first.check} on {first.target}: {first.cause}: {first.observed}")
    next_step = first.next_step or read.next_step_of(first.cause)
    return [INDENT + line for line in [*map(_cut, lines), *([f"next: {next_step}"] if next_step else [])]]


def _rows(verdict: Mapping[str, Any], first: VerdictRow) -> list[ComparedRow]:
    """What failed of the checks that have a say; those of the check that the next step is about come first."""
    found = [row for row in faults(compared(verdict)) if row.required]
    return sorted(found, key=lambda row: not _is_of(row, first))


def _is_of(row: ComparedRow, verdict: VerdictRow) -> bool:
    return (row.check, row.target) == (verdict.check, verdict.target)


def _cut(line: str) -> str:
    """A line of bounded length that keeps the spaces between its columns."""
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def _table_lines(rows: Sequence[ComparedRow]) -> list[str]:
    """Rows with a value as a table; of the others what was seen."""
    valued = [row for row in rows if row.value is not None and row.limit]
    several = len({row.target for row in rows}) > 1
    return [*gate_text.table(valued), *(_said(row, several) for row in rows if row not in valued)]


def _said(row: ComparedRow, several: bool) -> str:
    about = f"{row.target} {row.name}" if several else row.name
    return ": ".join(part for part in (about, row.cause, row.observed) if part)


def _more(rows: Sequence[ComparedRow]) -> list[str]:
    checks = [row.check for row in rows]
    counts = ", ".join(f"{checks.count(check)} more of {check}" for check in dict.fromkeys(checks))
    return [f"… and {counts}, see the report"] if rows else []
