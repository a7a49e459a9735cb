"""What ``gpuhost trace`` says, as frozen values, and the one function that makes JSON of them.

Two kinds of time: *wall* is what a class has of the step, where several kernels that run at once share the time that
they overlap, so that all walls and the idle time together are the step. *GPU time* is the plain sum of durations.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from gpuhost.causes import FINDINGS, GOOD, cause
from gpuhost.documents import utc_now

SCHEMA = "gpuhost.trace"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class ClassRow:
    """One class of kernels, per step. ``hidden_ms`` is GPU time during which something else ran as well."""

    key: str
    title: str
    wall_ms: float
    wall_percent: float
    gpu_ms: float
    hidden_ms: float
    count: float


@dataclass(frozen=True)
class KernelRow:
    """One kernel, per step."""

    name: str
    key: str
    count: float
    mean_us: float
    longest_us: float
    gpu_ms: float
    percent_of_busy: float


@dataclass(frozen=True)
class Gap:
    """The times between two kernels in which the GPU had nothing to do, per step."""

    ms: float
    percent: float
    count: float
    longest_us: float
    after: str
    before: str


@dataclass(frozen=True)
class Idle:
    """The GPU's idle time, per step."""

    percent: float
    short_percent: float
    short_count: float
    short_median_us: float
    long_percent: float
    long_count: float
    long_from_us: float
    places: tuple[Gap, ...]
    """Where most of it lies."""


@dataclass(frozen=True)
class Launches:
    """How the work got to the GPU, per step. A graph is one launch, however many kernels it has."""

    kernels: float
    eager: float
    graphs: float
    from_graph_percent: float
    """Share of the kernels that a graph has launched."""
    launch_percent: float | None
    """Share of the step that the CPU spends in calls that launch; None where the trace has no calls."""
    host_copies: float
    host_copy_kb: float
    host_copy_percent: float
    pageable_copies: float
    synchronisations: float | None
    """Calls that wait for the GPU; None where the trace has no calls."""
    cpu_sampling_percent: float | None
    """Share of the step in operators that choose a token on the CPU; None where the trace has no operators."""


@dataclass(frozen=True)
class StepFigures:
    """The steps of one GPU. The times are those of one step."""

    method: str
    certainty: str
    detail: str
    count: int
    left_out: tuple[str, ...]
    mean_ms: float
    median_ms: float
    shortest_ms: float
    longest_ms: float


@dataclass(frozen=True)
class Finding:
    """One known fault."""

    code: str
    gpu: str
    what: str
    percent: float
    limit: float
    threshold: str
    where: tuple[str, ...]

    @property
    def likely_cause(self) -> str:
        """The registry's sentence."""
        return cause(self.code).sentence

    @property
    def next_step(self) -> str:
        """What to do."""
        return cause(self.code).next_step


@dataclass(frozen=True)
class GpuFigures:
    """One GPU of one file."""

    label: str
    name: str
    file: str
    steps: StepFigures
    busy_percent: float
    overlap_percent: float
    """Share of the step in which more than one kernel ran."""
    classes: tuple[ClassRow, ...]
    idle: Idle
    launches: Launches
    kernels: tuple[KernelRow, ...]
    power_w: float | None = None

    def wall(self, *keys: str) -> float:
        """Wall share of some classes in percent."""
        return sum(row.wall_percent for row in self.classes if row.key in keys)


@dataclass(frozen=True)
class FileFigures:
    """One file that was read."""

    path: str
    format: str
    rank: str
    size_mb: float
    events: int
    gpu_rows: int
    read_s: float
    broken: str


@dataclass(frozen=True)
class Report:
    """Everything."""

    files: tuple[FileFigures, ...]
    gpus: tuple[GpuFigures, ...]
    findings: tuple[Finding, ...]
    thresholds: dict[str, float]
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def exit_status(self) -> int:
        """1 where a known fault was named."""
        return FINDINGS if self.findings else GOOD


def as_json(report: Report) -> str:
    """The document. A figure that is no number is a defect, and refused."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "taken_at": utc_now(),
        "exit_status": report.exit_status,
        **dataclasses.asdict(report),
    }
    document["findings"] = [
        {**dataclasses.asdict(item), "likely_cause": item.likely_cause, "next_step": item.next_step}
        for item in report.findings
    ]
    return json.dumps(document, indent=2, allow_nan=False)
