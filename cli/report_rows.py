"""The rows of a report: plain values, ready to be shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """One named value; ``before`` and ``after`` are None where they were not recorded."""

    name: str
    before: str | None
    after: str | None

    @property
    def differs(self) -> bool:
        """Both are known, and they are not the same."""
        return self.before is not None and self.after is not None and self.before != self.after


@dataclass(frozen=True)
class PlannedStep:
    """A step of the plan."""

    stage: str
    text: str
    downtime: bool
    seconds: float | None


@dataclass(frozen=True)
class DoneStep:
    """A step that was done. ``earlier_run`` is the id of the run that did it, where that was not this one."""

    stage: str
    step: str
    started_at: str
    seconds: float | None
    changed: bool
    status: str
    lines: tuple[str, ...]
    earlier_run: str


@dataclass(frozen=True)
class RuleChange:
    """One line of a container's config, before and after."""

    container: str
    path: str
    line: str
    before: str
    after: str
    driver: str
    old_major: str
    new_major: str
    attribution: str
    leaks_to: str
    held: str
    """Why it was found but not applied; empty where it was."""


@dataclass(frozen=True)
class FindingRow:
    """A finding, a blocker or a proof: what was seen, what should be, and the way out."""

    name: str
    status: str
    cause: str
    observed: str
    expected: str
    next_step: str


@dataclass(frozen=True)
class VerdictRow:
    """One check's verdict on one target."""

    check: str
    target: str
    status: str
    required: bool
    cause: str
    observed: str
    expected: str
    next_step: str
    seconds: float | None


@dataclass(frozen=True)
class MeasurementRow:
    """One measurement; ``value`` is None where nothing was measured."""

    target: str
    name: str
    value: float | None
    unit: str
    spread: str
    method: str
    clock: str
    status: str
    cause: str
    detail: str
    share: float | None = None
    """Of the speed that is expected of it, such as the memory's peak; None where nothing is."""


@dataclass(frozen=True)
class FailureRow:
    """What went wrong: the registered sentence, what was said, and the next command."""

    stage: str
    task: str
    cause: str
    object: str
    sentence: str
    message: str
    observed: str
    expected: str
    next_step: str
    rescued: bool
    """Something later in the run has dealt with it."""
    then: tuple[str, ...]
    """What the same cause led to: later failures that say nothing new."""


@dataclass(frozen=True)
class Workload:
    """What ran before the roll, and whether it runs again."""

    name: str
    kind: str
    was_running: bool
    autostart: str
    state: str


@dataclass(frozen=True)
class StageTime:
    """How long a stage took on the host."""

    stage: str
    seconds: float
    downtime: bool
    share: float
    """Of the longest stage, 0 to 1: the length of its bar."""
