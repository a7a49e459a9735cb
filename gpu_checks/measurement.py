"""Measurements and the document that carries them: frozen dataclasses, checked when made, written by one function."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Union

from gpu_checks import __version__
from gpu_checks.causes import CAUSES

SCHEMA = "gpuhost.measurements"
SCHEMA_VERSION = 1

MEASURED, NOT_MEASURED, ERROR = "measured", "not_measured", "error"
STATUSES = (MEASURED, NOT_MEASURED, ERROR)

CLOCK = "CLOCK_MONOTONIC"
"""The clock behind ``seconds`` and every time in ``detail``: ``time.monotonic``, not moved by NTP steps."""

Number = Union[int, float]


@dataclass(frozen=True)
class Samples:
    """The distribution behind a value, in the measurement's unit."""

    n: int
    median: float
    p20: float
    p80: float


@dataclass(frozen=True)
class Measurement:
    """One thing measured. ``value`` is in ``unit``; ``seconds`` is how long the measuring took.

    A measurement that carries a value and one that explains why there is none are told apart by ``status``:
    ``measured`` has no cause, the other two always have one.
    """

    name: str
    value: Number | None
    unit: str
    method: str
    status: str
    cause: str | None
    seconds: float
    clock: str = CLOCK
    samples: Samples | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a measurement that says two things at once, or a cause that is not registered."""
        if self.status not in STATUSES:
            raise ValueError(f"{self.name}: unknown status {self.status!r}")
        if (self.status == MEASURED) != (self.cause is None):
            raise ValueError(f"{self.name}: status {self.status} with cause {self.cause}")
        if self.cause is not None and self.cause not in CAUSES:
            raise ValueError(f"{self.name}: cause {self.cause} is not registered")
        if self.status == MEASURED and self.value is None:
            raise ValueError(f"{self.name}: measured, but without a value")

    @property
    def sentence(self) -> str:
        """What a person reads about the cause; empty where there is none."""
        return "" if self.cause is None else CAUSES[self.cause]


@dataclass(frozen=True)
class Document:
    """Everything one run measured, and where."""

    run_id: str
    tool_version: str
    python: str
    host: str
    taken_at: str
    measurements: tuple[Measurement, ...]
    schema: str = SCHEMA
    schema_version: int = SCHEMA_VERSION


def to_dict(measurement: Measurement) -> dict[str, Any]:
    """The plain form of a measurement."""
    return dataclasses.asdict(measurement)


def from_dict(plain: Any) -> Measurement:
    """The measurement in plain data. Raises ValueError for anything that is not exactly one."""
    names = {each.name for each in dataclasses.fields(Measurement)}
    if not isinstance(plain, dict) or set(plain) != names:
        raise ValueError("not a measurement")
    samples = plain["samples"]
    try:
        return Measurement(**{**plain, "samples": None if samples is None else Samples(**samples)})
    except TypeError as error:
        raise ValueError(f"not a measurement: {error}") from error


def document(measurements: list[Measurement], run_id: str = "") -> Document:
    """The document of a run that ends now, on this machine."""
    return Document(
        run_id=run_id,
        tool_version=__version__,
        python=".".join(str(part) for part in sys.version_info[:3]),
        host=os.uname().nodename,
        taken_at=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        measurements=tuple(measurements),
    )


def render_json(content: Document) -> str:
    """The one writer of the document. NaN and infinity are refused: they are not JSON."""
    return json.dumps(dataclasses.asdict(content), indent=2, sort_keys=True, allow_nan=False) + "\n"


def render_text(content: Document) -> str:
    """The document for a person: one line for each measurement, its table below it where it has one, and the sum."""
    lines = []
    for each in content.measurements:
        value = "-" if each.value is None else f"{each.value:g} {each.unit}"
        reason = each.detail.get("message") or each.sentence
        cause = "" if each.cause is None else f"  {each.cause}: {reason}"
        lines.append(f"{each.name:<32} {each.status:<12} {value}{cause}")
        lines += [f"    {line}" for line in str(each.detail.get("table") or "").splitlines()]
    return "\n".join([*lines, _sum_up(content.measurements)]) + "\n"


NAMED = 5
"""Errors that the sum names; all of them are in the lines above it."""


def _sum_up(measurements: Sequence[Measurement]) -> str:
    """How many came out how, and what failed: ``total: 2 measured, 1 error (p2p.hang: p2p.ce.0-1)``."""
    states = [each.status for each in measurements]
    parts = [f"{states.count(MEASURED)} measured"]
    if NOT_MEASURED in states:
        parts.append(f"{states.count(NOT_MEASURED)} not measured")
    failed = [f"{each.cause}: {each.name}" for each in measurements if each.status == ERROR]
    if failed:
        named = failed[:NAMED] + ([f"and {len(failed) - NAMED} more"] if len(failed) > NAMED else [])
        parts.append(f"{len(failed)} {'error' if len(failed) == 1 else 'errors'} ({', '.join(named)})")
    return f"total: {', '.join(parts)}"
