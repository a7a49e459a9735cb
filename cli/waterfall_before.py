"""What was before, where no document of then is there: a comparison's own figures, and the gate's baselines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuhost_cli.report_gate import table_of
from gpuhost_cli.waterfall_numbers import positive
from gpuhost_cli.waterfall_read import Decode
from gpuhost_cli.waterfall_rows import Measured, PartTime
from gpuhost_cli.waterfall_serve import Level, Serve


@dataclass(frozen=True)
class Baseline:
    """A step as the host's baselines have it. Parts that have none (the small ones) were not measured then."""

    measured: Measured
    taken_at: str
    kernel: str
    driver: str


def baseline_of(decode: Decode, verdict: Mapping[str, Any]) -> Baseline | None:
    """What the gate held this very step against; None where that was nothing."""
    table = table_of(verdict)
    kept = {
        row.name: value
        for row in table.rows
        if row.target == decode.target and (value := positive(row.baseline)) is not None
    }

    def then(part: PartTime) -> PartTime:
        us = kept.get(f"decode.part.{part.name}.{decode.tag}")
        return replace(part, us=us, why="" if us is not None else "no baseline")

    step = kept.get(f"decode.step.{decode.tag}")
    if step is None:
        return None
    own, origin = decode.measured, table.origins[0] if table.origins else None
    measured = Measured(
        tuple(then(part) for part in own.parts), step, "", None if own.reduce is None else then(own.reduce)
    )
    said = (origin.taken_at, origin.kernel, origin.driver) if origin else ("", "", "")
    return Baseline(measured, *said)


def sides(serves: Sequence[Serve]) -> tuple[Serve | None, Serve | None]:
    """Before and after. One run alone is that of now; what it was compared with stands in for a missing one."""
    if not serves:
        return None, None
    after = serves[-1]
    if len(serves) > 1:
        return serves[0], after
    if not any(change.before for change in after.changes.values()):
        return None, after
    names = {concurrency for concurrency, _ in after.changes}
    levels = {
        each: Level(each, *(change.before if change else None for change in (
            after.changes.get((each, "tpot_median")), after.changes.get((each, "output_rate")))))
        for each in names
    }  # fmt: skip
    return replace(after, file=after.before, taken_at=after.before_taken_at, label="", levels=levels, changes={}), after
