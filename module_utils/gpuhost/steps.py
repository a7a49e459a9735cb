"""One step of a roll on a host: load the roll file, work, log the step in it, answer. The frame of the thin modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import deadman
from .documents import as_dict, utc_now
from .errors import DEFECTS, Stop, defect
from .host_io import Host
from .majors_record import running as majors_of
from .rollfile import LOCK_FILE, Roll, load, load_open, open_roll, save, with_step
from .workloads import gpu_nodes


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
        nodes = gpu_nodes(host)
        return open_roll(params["host_name"], params["run_id"], params["plan"], running, majors_of(host), nodes)
    return load_open(host)


Action = Callable[[Roll], Done]


def run_step(
    host: Host,
    params: dict[str, Any],
    check: bool,
    stage: str,
    step: str,
    action: Action,
    *,
    may_open: bool = False,
    wait_s: float = 0,
) -> dict[str, Any]:
    """Do one step on the open roll and log it in the roll file. A step that stops is logged too, with its reason.

    Under a lock: a controller that was killed may have left a module running, and both would write the roll file.
    """
    if check:
        done = action(current_roll(host, params, check))
        return _answer(done, [*done.documents])
    with host.lock(LOCK_FILE, wait_s):
        return _run_locked(host, params, stage, step, action, may_open)


def _run_locked(
    host: Host, params: dict[str, Any], stage: str, step: str, action: Action, may_open: bool
) -> dict[str, Any]:
    started_at, clock = utc_now(), host.clock()

    def log(latest: Roll, changed: bool, lines: tuple[str, ...]) -> Roll:
        seconds = host.clock() - clock
        return with_step(latest, stage, step, params["run_id"], started_at, seconds, changed, list(lines))

    try:
        done = action(current_roll(host, params, False, may_open=may_open))
    except (Stop, *DEFECTS) as error:
        found = error if isinstance(error, Stop) else Stop(defect(error))
        saved = load(host)
        if saved is None or not saved.is_open:
            raise found from error
        failed = log(saved, False, (f"stopped: {found.blocker.cause}: {found.blocker.sentence}",))
        save(host, failed)
        raise Stop(found.blocker, (*found.documents, as_dict(failed))) from error
    latest = log(done.roll, done.differs, done.lines)
    save(host, latest)
    if latest.is_open and latest.trial.boots:
        deadman.renew(host)  # a finished stage on the trial kernel: somebody still cares
    return _answer(done, [*done.documents, as_dict(latest)])


def _answer(done: Done, documents: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "changed": done.differs,
        "lines": list(done.lines),
        "diff": list(done.diffs),
        "gpuhost_documents": documents,
        **done.answer,
    }
