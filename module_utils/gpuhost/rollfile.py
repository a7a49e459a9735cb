"""The roll file: where a host stands. It lies on the host, and no memory of a controller counts against it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from .documents import SCHEMA_PREFIX, Head, as_dict, make_head, seconds_between, utc_now
from .errors import stop
from .host_io import Host

FOLDER = "/var/lib/gpuhost"
ROLL_FILE = "/var/lib/gpuhost/roll.json"
LOCK_FILE = "/var/lib/gpuhost/lock"
"""Whoever acts on the host holds it: a controller's module, or one of our units."""
LOCK_WAIT_S = 180
"""A host that has just booted answers ssh before its own unit has ended, which holds the lock."""
VERSION = 2


@dataclass(frozen=True)
class Fallback:
    """What boots when nobody says otherwise: the running system as the roll found it.

    ``policy_before`` is loader.conf's ``default`` value as it was found, None where there was none.
    ``files`` maps path to SHA-256 of its kernel, initrd, boot entry and NVIDIA modules.
    """

    entry: str
    release: str
    policy_before: str | None
    files: dict[str, str]


@dataclass(frozen=True)
class Trial:
    """The trial boots of this roll. At most one without ``--retry-trial``.

    ``cause`` and ``sentence`` say why the trial did not hold, as soon as somebody knows: the way back may be walked by
    the host itself, which was not there when the gate failed.
    """

    boots: int = 0
    armed_at: str | None = None
    boot_id_before: str | None = None
    cause: str | None = None
    sentence: str = ""


@dataclass(frozen=True)
class ChangedFile:
    """A file that the roll wrote: its text before (None where there was none) and as written."""

    before: str | None
    after: str | None


@dataclass(frozen=True)
class ReturnOrders:
    """What the host needs to know to gate itself on the way back, when no controller is there to say it."""

    python: str = "/usr/bin/python3"
    user: str = ""
    targets: tuple[str, ...] = ()
    timeout_s: int = 120


@dataclass(frozen=True)
class Workload:
    """A workload as drain found it. ``state``: ``running``, ``stopped`` by us, ``back`` in service."""

    kind: str
    name: str
    was_running: bool
    autostart: bool
    order: int
    state: str


@dataclass(frozen=True)
class RollStep:
    """One finished step, for the report: what it changed, in lines that a person can read."""

    stage: str
    step: str
    run_id: str
    started_at: str
    finished_at: str
    seconds: float
    changed: bool
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Roll:
    """``roll.json``. ``plan`` is the plan as it was made when the roll began: later stages use exactly that."""

    head: Head
    state: str
    result: str | None
    cause: str | None
    sentence: str
    target: str
    running_before: str
    opened_at: str
    closed_at: str | None
    plan: dict[str, Any]
    majors_before: dict[str, int]
    gpu_nodes_before: tuple[str, ...] = ()
    """The /dev/nvidiaN that were there: a GPU that the upgrade loses is missed, one that never was there is not."""
    fallback: Fallback | None = None
    trial: Trial = field(default_factory=Trial)
    promoted_at: str | None = None
    """Set when the new kernel became what boots by itself: from then on nothing leads back by itself."""
    workloads: tuple[Workload, ...] = ()
    files_changed: dict[str, ChangedFile] = field(default_factory=dict)
    """Settings that the roll changed, by path: a host that goes back gets them back."""
    kept_packages: tuple[str, ...] = ()
    """The old kernel's packages that the roll has put on hold, so that nothing removes the way back."""
    orders: ReturnOrders = field(default_factory=ReturnOrders)
    steps: tuple[RollStep, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether the roll still has to be brought to an end."""
        return self.state == "open"

    def is_promoted(self, running: str) -> bool:
        """Whether the target boots by itself and runs: only the hand back is left."""
        return self.promoted_at is not None and running == self.target

    @property
    def downtime_s(self) -> float | None:
        """Seconds from the first stop of a workload to the last hand-back; None where nothing was stopped."""
        starts = [step.started_at for step in self.steps if step.stage == "drain" and step.changed]
        ends = [step.finished_at for step in self.steps if step.stage in ("hand_back", "rollback")]
        return seconds_between(starts[0], ends[-1]) if starts and ends else None


def open_roll(
    host: str, run_id: str, plan: dict[str, Any], running: str, majors: dict[str, int], gpu_nodes: tuple[str, ...] = ()
) -> Roll:
    """A new roll, from the plan that it follows."""
    head = make_head("roll", host, run_id, VERSION)
    target = plan["target"]["release"]
    return Roll(head, "open", None, None, "", target, running, head.taken_at, None, plan, majors, gpu_nodes)


def with_step(
    roll: Roll, stage: str, step: str, run_id: str, started_at: str, seconds: float, changed: bool, lines: list[str]
) -> Roll:
    """The roll with one more finished step."""
    done = RollStep(stage, step, run_id, started_at, utc_now(), round(seconds, 2), changed, tuple(lines))
    return replace(roll, head=replace(roll.head, taken_at=utc_now()), steps=(*roll.steps, done))


def closed(roll: Roll, result: str, cause: str | None, sentence: str) -> Roll:
    """The roll, ended."""
    return replace(roll, state="closed", result=result, cause=cause, sentence=sentence, closed_at=utc_now())


def render(roll: Roll) -> bytes:
    """The file's bytes."""
    return (json.dumps(as_dict(roll), indent=2, ensure_ascii=False) + "\n").encode()


def parse(data: bytes) -> Roll:
    """Read a roll file's bytes. Raises Stop(roll.file_unreadable): never "no roll" for a file that is there."""
    try:
        raw = json.loads(data)
        version = raw.pop("schema_version")
        if raw["schema"] != SCHEMA_PREFIX + "roll" or raw["state"] not in ("open", "closed"):
            raise stop("roll.file_unreadable", ROLL_FILE, f"{raw['schema']} in state {raw['state']}", "a roll")
        if version not in (1, VERSION):
            raise stop("roll.file_unreadable", ROLL_FILE, f"written in version {version}", f"version {VERSION}")
        if version == 1:  # before the host could go back by itself: a trial knew no cause, and nothing was kept
            raw = {"files_changed": {}, "kept_packages": [], "orders": {"targets": []}, **raw}
        head = Head(raw.pop("schema"), VERSION, raw.pop("host"), raw.pop("run_id"), raw.pop("taken_at"))
        fallback = raw.pop("fallback")
        return Roll(
            head=head,
            fallback=None if fallback is None else Fallback(**fallback),
            trial=Trial(**raw.pop("trial")),
            gpu_nodes_before=tuple(raw.pop("gpu_nodes_before")),
            files_changed={path: ChangedFile(**item) for path, item in raw.pop("files_changed").items()},
            kept_packages=tuple(raw.pop("kept_packages")),
            orders=ReturnOrders(**{**(orders := raw.pop("orders")), "targets": tuple(orders["targets"])}),
            workloads=tuple(Workload(**item) for item in raw.pop("workloads")),
            steps=tuple(RollStep(**{**item, "lines": tuple(item["lines"])}) for item in raw.pop("steps")),
            **raw,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise stop("roll.file_unreadable", ROLL_FILE, f"not a roll file: {error}") from error


def load(host: Host) -> Roll | None:
    """The host's roll, open or closed; None only where there is no file."""
    data = host.read_bytes(ROLL_FILE)
    if data is None and (host.exists(ROLL_FILE) or (host.exists(FOLDER) and not host.is_folder(FOLDER))):
        raise stop("roll.file_unreadable", ROLL_FILE, "not a file", "a roll file")
    return None if data is None else parse(data)


def load_open(host: Host) -> Roll:
    """The host's open roll. Raises Stop(roll.not_open)."""
    roll = load(host)
    if roll is None or not roll.is_open:
        raise stop("roll.not_open", ROLL_FILE, "no open roll" if roll is None else f"closed: {roll.result}")
    return roll


def save(host: Host, roll: Roll) -> None:
    """Write the roll so that it survives a power cut one instruction later."""
    host.write_atomic(ROLL_FILE, render(roll), 0o600)
