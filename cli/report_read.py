"""Reads report rows out of recorded documents. What is absent or of another form is left out, never guessed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpuhost.causes import CAUSES
from gpuhost.documents import DOWNTIME, STAGES
from gpuhost.gate_text import quantity
from gpuhost_cli.report_rows import (
    DoneStep,
    FailureRow,
    FindingRow,
    MeasurementRow,
    PlannedStep,
    RuleChange,
    StageTime,
    VerdictRow,
    Workload,
)

STAGE_ORDER = (*STAGES, "rollback")
DOWNTIME_STAGES = frozenset({*DOWNTIME, "rollback"})
Doc = Mapping[str, Any]


def text(value: Any) -> str:
    """A value as one line for people; an empty string for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(text(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={text(item)}" for key, item in value.items())
    return " ".join(str(value).split())


def number(value: Any) -> float | None:
    """A number, or None."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def sub(document: Any, *keys: str) -> dict[str, Any]:
    """The object under these keys, an empty one where there is none."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return dict(document) if isinstance(document, Mapping) else {}


def rows(document: Any, key: str) -> list[dict[str, Any]]:
    """The objects of a list, an empty list where there is none."""
    items = document.get(key) if isinstance(document, Mapping) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, (list, tuple)) else []


def texts(document: Any, key: str) -> tuple[str, ...]:
    """The texts of a list."""
    items = document.get(key) if isinstance(document, Mapping) else None
    return tuple(text(item) for item in items) if isinstance(items, (list, tuple)) else ()


def sentence_of(cause: str) -> str:
    """The registered sentence of a cause, or an empty string."""
    return CAUSES[cause].sentence if cause in CAUSES else ""


def next_step_of(cause: str) -> str:
    """The registered next step of a cause, or an empty string."""
    return CAUSES[cause].next_step if cause in CAUSES else ""


def planned_steps(plan: Doc) -> tuple[PlannedStep, ...]:
    """``plan.steps``."""
    return tuple(
        PlannedStep(
            text(row.get("stage")), text(row.get("text")), bool(row.get("downtime")), number(row.get("seconds"))
        )
        for row in rows(plan, "steps")
    )


def blockers(plan: Doc) -> tuple[FindingRow, ...]:
    """``plan.blockers``."""
    return tuple(_finding(row, text(row.get("object")), "blocked") for row in rows(plan, "blockers"))


def proofs(preflight: Doc) -> tuple[FindingRow, ...]:
    """``preflight.proofs``: only ``ok`` being true is proof, and only ``blocks`` being false makes it a warning."""
    return tuple(_finding(row, text(row.get("name")), _proof_status(row)) for row in rows(preflight, "proofs"))


def _proof_status(row: Doc) -> str:
    if row.get("ok") is True:
        return "proven"
    return "warning" if row.get("blocks") is False else "not proven"


def findings(document: Doc) -> tuple[FindingRow, ...]:
    """``reconcile.findings`` and the like."""
    return tuple(
        FindingRow(
            text(row.get("id")),
            text(row.get("severity")),
            "",
            text(row.get("observed")),
            text(row.get("expected")),
            text(row.get("fix")),
        )
        for row in rows(document, "findings")
    )


def _finding(row: Doc, name: str, status: str) -> FindingRow:
    cause = text(row.get("cause"))
    return FindingRow(
        name, status, cause, text(row.get("observed")), text(row.get("expected")),
        text(row.get("next_step")) or next_step_of(cause),
    )  # fmt: skip


def rule_changes(reconcile: Doc) -> tuple[RuleChange, ...]:
    """``reconcile.changes``. The lines keep their spaces: they are shown as they stand in the file."""
    return tuple(
        RuleChange(
            container=text(row.get("container")),
            path=text(row.get("path")),
            line=text(row.get("line")),
            before=str(row.get("before") or "").rstrip("\n"),
            after=str(row.get("after") or "").rstrip("\n"),
            driver=text(row.get("driver")),
            old_major=text(row.get("old_major")),
            new_major=text(row.get("new_major")),
            attribution=text(row.get("attribution")),
            leaks_to=text(row.get("leaks_to")),
            held=text(row.get("held")),
        )
        for row in rows(reconcile, "changes")
    )


def verdicts(verdict: Doc) -> tuple[VerdictRow, ...]:
    """``verdict.verdicts``, required ones and failures first. A status that is not known counts as an error."""
    found = [
        VerdictRow(
            check=text(row.get("check")),
            target=text(row.get("target")),
            status=row["status"] if row.get("status") in ("pass", "fail", "not_measured") else "error",
            required=row.get("required") is True,
            cause=text(row.get("cause")),
            observed=text(row.get("observed")),
            expected=text(row.get("expected")),
            next_step=text(row.get("next_step")),
            seconds=number(row.get("seconds")),
        )
        for row in rows(verdict, "verdicts")
    ]
    return tuple(sorted(found, key=lambda row: (not row.required, row.status == "pass")))


def measurements(document: Doc) -> tuple[MeasurementRow, ...]:
    """``measurements.targets``."""
    targets = sub(document, "targets")
    return tuple(
        _measurement(text(name), row) for name, target in targets.items() for row in rows(target, "measurements")
    )


def _measurement(target: str, row: Doc) -> MeasurementRow:
    samples, said = sub(row, "samples"), sub(row, "detail")
    status = text(row.get("status")) or "not_measured"
    ends, count = [number(samples.get(key)) for key in ("p20", "p80")], number(samples.get("n"))
    spread = "" if None in ends else " to ".join(quantity(end, "").strip() for end in ends)
    spread = ", ".join(part for part in (spread, "" if count is None else f"n = {count:g}") if part)
    return MeasurementRow(
        target=target,
        name=text(row.get("name")),
        value=number(row.get("value")) if status == "measured" else None,
        unit=text(row.get("unit")),
        spread=spread,
        method=text(row.get("method")),
        clock=text(row.get("clock")),
        status=status,
        cause=text(row.get("cause")),
        detail=text(said.get("sentence") or said.get("message") or row.get("detail")),
        share=number(said.get("share")) if status == "measured" else None,
    )


def failures(entries: Iterable[Doc]) -> tuple[FailureRow, ...]:
    """The failures of a host out of ``run.json``, in the order in which they came.

    A later failure of the same cause that observed nothing of its own (a rescue that ends in ``fail``) is folded into
    the first one, which then counts as handled only if both are.
    """
    found: list[FailureRow] = []
    for entry in entries:
        row = _failure(entry)
        first = next((item for item in found if item.cause == row.cause), None)
        if first is None or row.observed:
            found.append(row)
            continue
        line = f"{row.stage}: {row.message}" if row.stage else row.message
        joined = replace(first, then=(*first.then, line), rescued=first.rescued and row.rescued)
        found[found.index(first)] = joined
    return tuple(found)


def _failure(row: Doc) -> FailureRow:
    cause = text(row.get("cause"))
    return FailureRow(
        stage=text(row.get("stage")),
        task=text(row.get("task")),
        cause=cause,
        object=text(row.get("object")),
        sentence=sentence_of(cause),
        message=text(row.get("message")).removeprefix(f"{cause}: "),
        observed=text(row.get("observed")),
        expected=text(row.get("expected")),
        next_step=text(row.get("next_step")) or next_step_of(cause),
        rescued=row.get("rescued") is True,
        then=(),
    )


def workloads(roll: Doc) -> tuple[Workload, ...]:
    """``roll.workloads``."""
    return tuple(
        Workload(
            text(row.get("name")),
            text(row.get("kind")),
            row.get("was_running") is True,
            text(row.get("autostart")),
            text(row.get("state")),
        )
        for row in rows(roll, "workloads")
    )


def done_steps(roll: Doc, tasks: Iterable[Doc], run_id: str) -> tuple[DoneStep, ...]:
    """What was done: the roll file's steps; without any, the run's own steps that changed something or failed."""
    recorded = rows(roll, "steps")
    if recorded:
        return tuple(_roll_step(row, run_id) for row in recorded)
    return tuple(
        DoneStep(
            stage=text(row.get("stage")),
            step=text(row.get("task")),
            started_at="",
            seconds=number(row.get("seconds")),
            changed=row.get("status") == "changed",
            status=text(row.get("status")),
            lines=(text(row.get("message")),) if row.get("message") else (),
            earlier_run="",
        )
        for row in tasks
        if row.get("status") in ("changed", "failed", "unreachable")
    )


def _roll_step(row: Doc, run_id: str) -> DoneStep:
    step_run = text(row.get("run_id"))
    changed, lines = row.get("changed") is True, texts(row, "lines")
    status = "changed" if changed else "ok"
    if any(line.startswith("stopped:") for line in lines):
        status = "stopped"
    return DoneStep(
        stage=text(row.get("stage")),
        step=text(row.get("step")),
        started_at=text(row.get("started_at")),
        seconds=number(row.get("seconds")),
        changed=changed,
        status=status if row.get("finished_at") else "not finished",
        lines=lines,
        earlier_run=step_run if step_run not in ("", run_id) else "",
    )


def stage_times(roll: Doc, tasks: Iterable[Doc]) -> tuple[StageTime, ...]:
    """Seconds per stage: as the controller saw them, and from the roll file for stages that it did not see."""
    seen, on_host = _sum_by_stage(tasks), _sum_by_stage(rows(roll, "steps"))
    seconds = {stage: seen.get(stage, on_host.get(stage, 0.0)) for stage in STAGE_ORDER}
    longest = max(seconds.values(), default=0.0)
    return tuple(
        StageTime(stage, round(taken, 1), stage in DOWNTIME_STAGES, taken / longest)
        for stage, taken in seconds.items()
        if taken > 0
    )


def _sum_by_stage(entries: Iterable[Doc]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for row in entries:
        stage = text(row.get("stage"))
        sums[stage] = sums.get(stage, 0.0) + (number(row.get("seconds")) or 0.0)
    return sums
