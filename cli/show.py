"""What a finished step shows under its line: the plan, what it changed, and diffs where they were asked for."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from gpuhost_cli.report import Report
from gpuhost_cli.report_rows import FailureRow

INDENT = "          "
"""As wide as the clock's stamp, so that the lines stand under the step they belong to."""

LIMIT = 40
"""Lines of one step on the terminal; all of them are in the report."""


def lines_of(result: Mapping[str, Any], diff: bool) -> list[str]:
    """Lines to print below a finished step; empty for most steps."""
    found = [*_plan_lines(result), *_step_lines(result)]
    if len(found) > LIMIT:
        found = [*found[:LIMIT], f"… and {len(found) - LIMIT} more, see the report"]
    if diff:
        found += _diff_lines(result)
    return [INDENT + line for line in found]


def summary(report: Report) -> list[str]:
    """How each host came out, and below it one line with cause, what was seen, and the way out."""
    lines = []
    for host in report.hosts:
        lines.append(host.sentence)
        if host.failures:
            lines.append(INDENT + failure_line(host.failures[-1]))
        elif host.next_step:
            lines.append(f"{INDENT}next: {host.next_step}")
    return lines


def failure_line(failure: FailureRow) -> str:
    """One failure in one line. A module's own message has it all; what another lacks of cause and way out is added."""
    line = failure.message
    if not line.startswith(f"{failure.cause}: "):
        line = f"{failure.cause}: {line}"
    return line if line.endswith(failure.next_step) else f"{line}: {failure.next_step}"


def _step_lines(result: Mapping[str, Any]) -> list[str]:
    lines = result.get("lines")
    return [str(line) for line in lines] if isinstance(lines, list) else []


def _plan_lines(result: Mapping[str, Any]) -> Iterator[str]:
    for document in result.get("gpuhost_documents") or ():
        if document.get("schema") != "gpuhost.plan" or document.get("blockers"):
            continue
        if document.get("nothing_to_do"):
            yield f"nothing to do: {document['running']} runs, and it boots by itself"
        elif document.get("target"):
            resumes = " (continues an open roll)" if document.get("resumes") else ""
            yield f"{document['running']} -> {document['target']['release']}{resumes}: {document['target']['reason']}"
        for step in document.get("steps") or ():
            yield f"  {step['stage']:<9} {'downtime' if step['downtime'] else '':<8} {step['text']}"
        yield from (f"note: {note}" for note in document.get("notes") or ())


def _diff_lines(result: Mapping[str, Any]) -> list[str]:
    diffs = result.get("diff") or []
    found: list[str] = []
    for item in [diffs] if isinstance(diffs, dict) else diffs:
        if not isinstance(item, dict) or "before" not in item:
            continue
        found += difflib.unified_diff(
            str(item["before"]).splitlines(),
            str(item["after"]).splitlines(),
            str(item.get("before_header", "before")),
            str(item.get("after_header", "after")),
            lineterm="",
            n=1,
        )
    return found
