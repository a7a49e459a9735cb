"""What was planned for a host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuhost_cli import report_read as read
from gpuhost_cli.report_rows import FindingRow, PlannedStep


@dataclass(frozen=True)
class PlanPart:
    """What was planned."""

    wanted: str
    nothing_to_do: bool
    resumes: bool
    target: tuple[tuple[str, str], ...]
    reason: str
    candidates: tuple[str, ...]
    cmdline: tuple[str, ...]
    modprobe_options: tuple[str, ...]
    gate_required: tuple[str, ...]
    steps: tuple[PlannedStep, ...]
    blockers: tuple[FindingRow, ...]
    notes: tuple[str, ...]


def plan_part(plan: Mapping[str, Any]) -> PlanPart:
    """The section out of a ``plan.json``."""
    target = read.sub(plan, "target")
    packages = [
        (read.text(target.get(f"{part}_package")),
         f"{read.text(target.get(f'{part}_version'))} from {read.text(target.get(f'{part}_suite'))}")
        for part in ("image", "headers")
        if target.get(f"{part}_package")
    ]  # fmt: skip
    options = read.sub(plan, "modprobe_options")
    return PlanPart(
        wanted=read.text(plan.get("wanted")),
        nothing_to_do=plan.get("nothing_to_do") is True,
        resumes=plan.get("resumes") is True,
        target=tuple(packages),
        reason=read.text(target.get("reason")),
        candidates=read.texts(plan, "candidates"),
        cmdline=tuple(
            name if value is None else f"{name}={read.text(value)}" for name, value in read.sub(plan, "cmdline").items()
        ),
        modprobe_options=tuple(f"{module}: {read.text(value)}" for module, value in options.items()),
        gate_required=read.texts(plan, "gate_required"),
        steps=read.planned_steps(plan),
        blockers=read.blockers(plan),
        notes=read.texts(plan, "notes"),
    )
