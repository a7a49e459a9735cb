"""The knobs that can be measured: settings of the running host, each with the value it had and the one tune wishes.

A knob is what one variable of a role decides, on however many objects (a governor on 128 CPUs, MaxReadReq of eight
GPUs and their ports). Files, units, modules, MIG layouts and persistence mode are none: they can't be turned to and
fro under a measurement, or take more with them than themselves.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import cpu_tuning, gpu_kinds, pcie_register, sysctl, tuning
from .host_io import Host
from .sysctl_facts import PROC
from .sysctl_files import dotted, normal
from .tuning import KINDS, LIVE, Record, Write

RUNTIME_KINDS = frozenset({
    LIVE, cpu_tuning.CHOICE, sysctl.RIVAL, pcie_register.KIND, gpu_kinds.POWER, gpu_kinds.LOCKED,
    gpu_kinds.APPLICATION,
})  # fmt: skip
IDLE_STATES, MAX_READ = "idle states", "MaxReadReq"
_OF_GPUS: dict[str, tuple[str, dict[str, Any]]] = {
    gpu_kinds.POWER: ("power limit", {"gpu_runtime_power_limit_w": 0}),
    gpu_kinds.LOCKED: ("locked clocks", {"gpu_runtime_lock_clocks_mhz": []}),
    gpu_kinds.APPLICATION: ("application clocks", {"gpu_runtime_application_clocks_mhz": []}),
}
_LEFT_OUT: dict[str, dict[str, Any]] = {
    "governor": {"cpu_tuning_governor": "keep"},
    "energy preference": {"cpu_tuning_epp": "keep"},
    "boost": {"cpu_tuning_boost": "keep"},
    IDLE_STATES: {"cpu_tuning_max_idle_latency_us": -1},
    "transparent huge pages": {"cpu_tuning_huge_pages": "keep"},
    MAX_READ: {"pcie_tuning_max_read_request_bytes": 0},
    **dict(_OF_GPUS.values()),
}
"""The variables with which tune leaves a knob alone; those of kernel settings are in one dictionary."""


@dataclass(frozen=True)
class Change:
    """One object of a knob: the old value, the new one, and the one that it has now."""

    kind: str
    object: str
    old: str
    new: str
    start: str


@dataclass(frozen=True)
class Knob:
    """What is turned as one. ``key``: a kernel setting's path below /proc/sys, else empty."""

    name: str
    concern: str
    domain: str
    changes: tuple[Change, ...]
    key: str = ""

    @property
    def in_force(self) -> bool:
        """Whether the host has the new value now, on all objects."""
        return all(KINDS[item.kind].same(item.start, item.new) for item in self.changes)

    @property
    def old(self) -> str:
        """For people; several old values are all said."""
        return _words(item.old for item in self.changes)

    @property
    def new(self) -> str:
        """For people."""
        return _words(item.new for item in self.changes)


def _words(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(" ".join(value.split()) for value in values))


def name_of(write: Write) -> tuple[str, str]:
    """(name, key of a kernel setting or empty) of the knob that a write belongs to."""
    if write.object.startswith(PROC):
        key = write.object.removeprefix(PROC).partition("|")[0]
        return dotted(key), key
    if write.kind == pcie_register.KIND:
        return MAX_READ, ""
    if write.kind in _OF_GPUS:
        return _OF_GPUS[write.kind][0], ""
    if write.why.startswith("idle state "):
        return IDLE_STATES, ""
    return ("boost" if write.why.startswith("boost ") else write.why), ""


def of_concern(
    concern: str, domain: str, writes: Sequence[Write], seen: Mapping[tuple[str, str], str | None], record: Record
) -> tuple[Knob, ...]:
    """The knobs among a concern's writes that have two values. ``seen``: what each object reads now.

    Where the new value is in force already, the old one is that from before the first tune; without it there is
    nothing to compare with.
    """
    before = {(item.kind, item.object): item.value for item in record.writes()}
    found: dict[tuple[str, str], list[Change]] = {}
    for write in writes:
        now, place = seen.get((write.kind, write.object)), (write.kind, write.object)
        if write.kind not in RUNTIME_KINDS or write.value is None or now is None:
            continue
        same = KINDS[write.kind].same
        old = before.get(place) if same(now, write.value) else now
        if old is not None and not same(old, write.value):
            found.setdefault(name_of(write), []).append(Change(*place, old, write.value, now))
    return tuple(Knob(name, concern, domain, tuple(changes), key) for (name, key), changes in found.items())


def recorded_settings(record: Record, seen: Callable[[str, str], str | None]) -> list[Write]:
    """Kernel settings that an earlier tune has set, as writes of what they read now: one that is right is no write."""
    found = []
    for item in record.writes():
        now = seen(item.kind, item.object) if item.kind in RUNTIME_KINDS and item.object.startswith(PROC) else None
        if now is not None:
            found.append(Write(item.kind, item.object, now))
    return found


def read(
    host: Host, looks: Sequence[tuple[str, str, Callable[[Host], tuning.Wanted]]], only: Sequence[str]
) -> tuple[Knob, ...]:
    """Every knob of a host. ``looks``: concern, domain and what looks; ``only``: patterns of names, all if empty."""
    record = tuning.load(host)
    knobs: list[Knob] = []
    for concern, domain, look in looks:
        writes = [item for item in look(host).writes if item.kind in RUNTIME_KINDS]
        if concern == sysctl.CONCERN.name:
            due = {item.object for item in writes}
            earlier = recorded_settings(record, lambda kind, about: KINDS[kind].read(host, about))
            writes += [item for item in earlier if item.object not in due]
        seen = {(item.kind, item.object): KINDS[item.kind].read(host, item.object) for item in writes}
        knobs += of_concern(concern, domain, writes, seen, record)
    return tuple(item for item in knobs if not only or any(fnmatch.fnmatch(item.name, name) for name in only))


def variables_without(knobs: Sequence[Knob], keys: Mapping[str, Any]) -> dict[str, Any]:
    """The roles' variables with which tune leaves these knobs alone. ``keys``: sysctl_tuning_keys as it is."""
    found: dict[str, Any] = {}
    settings = [item.key for item in knobs if item.key]
    if settings:
        kept = {name: value for name, value in keys.items() if normal(name) not in settings}
        found["sysctl_tuning_keys"] = {**kept, **{dotted(key): None for key in settings}}
    for item in knobs:
        found.update({} if item.key else _LEFT_OUT.get(item.name, {}))
    return found
