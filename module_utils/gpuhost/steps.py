"""One step of a roll on a host: load the roll file, work, log the step in it, answer. The frame of the thin modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .documents import as_dict, utc_now
from .errors import Stop
from .host_io import Host
from .rollfile import Roll, load, load_open, open_roll, save, with_step
from .survey import read_majors


@dataclass(frozen=True)
class Done:
    """What a step did. ``roll`` is the roll to be saved; ``lines`` are for people; empty means nothing differed."""

    roll: Roll
    lines: tuple[str, ...] = ()
    diffs: tuple[dict[str, str], ...] = ()
    documents: tuple[dict[str, Any], ...] = ()
    changed: bool | None = None
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def differs(self) -> bool:
        """Whether the step changed something, or would have."""
        return bool(self.lines or self.diffs) if self.changed is None else self.changed


ARGUMENTS: dict[str, Any] = {
    "host_name": {"type": "str", "required": True},
    "run_id": {"type": "str", "required": True},
    "plan": {"type": "dict"},
}
"""Arguments that every step's module takes. ``plan`` opens the roll where none is open, and serves check mode."""


def current_roll(host: Host, params: dict[str, Any], check: bool, *, may_open: bool = False) -> Roll:
    """The open roll. Where none is open: a new one from the plan, if this step may open it or in check mode."""
    roll = load(host)
    if roll is not None and roll.is_open:
        return roll
    if params.get("plan") and (may_open or check):
        running = host.read_line("/proc/sys/kernel/osrelease")
        return open_roll(params["host_name"], params["run_id"], params["plan"], running, read_majors(host))
    return load_open(host)


def run_step(
    host: Host, params: dict[str, Any], check: bool, stage: str, step: str, roll: Roll, action: Callable[[Roll], Done]
) -> dict[str, Any]:
    """Do one step and log it in the roll file. A step that stops is logged too, with its reason."""
    started_at, clock = utc_now(), host.clock()

    def log(latest: Roll, changed: bool, lines: tuple[str, ...]) -> Roll:
        seconds = host.clock() - clock
        return with_step(latest, stage, step, params["run_id"], started_at, seconds, changed, list(lines))

    try:
        done = action(roll)
    except Stop as error:
        saved = load(host)
        if check or saved is None or not saved.is_open:
            raise
        failed = log(saved, False, (f"stopped: {error.blocker.cause}: {error.blocker.sentence}",))
        save(host, failed)
        raise Stop(error.blocker, (*error.documents, as_dict(failed))) from error
    latest = done.roll
    if not check:
        latest = log(latest, done.differs, done.lines)
        save(host, latest)
    documents = [*done.documents] if check else [*done.documents, as_dict(latest)]
    return {
        "changed": done.differs,
        "lines": list(done.lines),
        "diff": list(done.diffs),
        "gpuhost_documents": documents,
        **done.answer,
    }
