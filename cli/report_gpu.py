"""What the gate, or a run that only measured, saw of a host's GPUs: table, matrices, clocks, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuhost.expectations import check_of
from gpuhost_cli import report_read as read
from gpuhost_cli.report_gate import BAD, ComparedRow, GateTable, table_of
from gpuhost_cli.report_matrix import Matrix, matrices

Documents = Mapping[str, Mapping[str, Any]]

SLOWED = {
    "hw_slowdown": "slowed down by the hardware",
    "sw_thermal_slowdown": "too hot (driver)",
    "hw_thermal_slowdown": "too hot (hardware)",
    "hw_power_brake_slowdown": "power brake",
}
"""Throttle reasons that are a fault. Of the others ``sw_power_cap`` is what a GPU under load does."""
IDLE = "gpu_idle"
NAMED = 3
"""Measurements with the same reason that are named; the others are counted."""


@dataclass(frozen=True)
class Reading:
    """What NVML said of a GPU at one moment. None: it did not say it."""

    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    temperature_c: float | None
    power_w: float | None
    pstate: str
    throttle_reasons: tuple[str, ...]


@dataclass(frozen=True)
class CheckReading:
    """A GPU before and after one check."""

    check: str
    before: Reading | None
    after: Reading | None


@dataclass(frozen=True)
class Throttle:
    """A reason for which a GPU ran slower than it can, and the checks that saw it."""

    reason: str
    checks: tuple[str, ...]
    harmful: bool

    @property
    def words(self) -> str:
        """For people."""
        return f"{SLOWED.get(self.reason, self.reason.replace('_', ' '))} ({', '.join(self.checks)})"


@dataclass(frozen=True)
class GpuRow:
    """One GPU of one target over all checks that looked at it."""

    target: str
    ordinal: str
    name: str
    uuid: str
    pci_bus_id: str
    before: Reading | None
    """Of the first check."""
    after: Reading | None
    """Of the last check."""
    hottest_c: float | None
    throttles: tuple[Throttle, ...]
    checks: tuple[CheckReading, ...]


@dataclass(frozen=True)
class Unmeasured:
    """Measurements that there are none of, for the same reason."""

    target: str
    check: str
    names: tuple[str, ...]
    status: str
    cause: str
    why: str

    @property
    def named(self) -> str:
        """Their names, the first ones of many."""
        more = len(self.names) - NAMED
        return ", ".join(self.names[:NAMED]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class GpuPart:
    """The section. ``table`` is None where nothing was judged."""

    table: GateTable | None
    measured: str
    """How many values there are, in words."""
    gpus: tuple[GpuRow, ...]
    matrices: tuple[Matrix, ...]
    unmeasured: tuple[Unmeasured, ...]

    @property
    def slowed(self) -> tuple[GpuRow, ...]:
        """GPUs that something held down that should not have."""
        return tuple(gpu for gpu in self.gpus if any(one.harmful for one in gpu.throttles))


def measured_documents(documents: Documents) -> list[Mapping[str, Any]]:
    """``measurements.json``, and those of single checks (``measurements-<check>.json``), in the order of their time."""
    own = [documents[name] for name in sorted(documents) if name.partition("-")[0] == "measurements"]
    return sorted(own, key=lambda document: read.text(document.get("taken_at")))


def gpu_part(documents: Documents) -> GpuPart | None:
    """The section out of a host's documents; None where nothing was measured and nothing compared."""
    measured, verdict = measured_documents(documents), documents.get("verdict")
    items = _by_target(measured)
    table = None if verdict is None else table_of(verdict)
    if not items and not (table and table.rows):
        return None
    rows = table.rows if table else ()
    names = _names(items)
    return GpuPart(
        table=table,
        measured=counted(item for own in items.values() for item in _once(own)),
        gpus=tuple(gpu for target, own in items.items() for gpu in _gpus(target, own, names)),
        matrices=tuple(matrix for target, own in items.items() for matrix in matrices(target, own, rows)),
        unmeasured=_unmeasured(items, rows),
    )


def counted(items: Iterable[Mapping[str, Any]]) -> str:
    """``57 values measured, 2 not measured, 1 error``."""
    states = [read.text(item.get("status")) for item in items]
    good, bad = states.count("measured"), states.count("error")
    missing = len(states) - good - bad
    words = [f"{good} {'value' if good == 1 else 'values'} measured"]
    words += [f"{missing} not measured"] if missing else []
    words += [f"{bad} {'error' if bad == 1 else 'errors'}"] if bad else []
    return ", ".join(words)


def _by_target(documents: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for document in documents:
        for name, target in read.sub(document, "targets").items():
            found.setdefault(read.text(name), []).extend(read.rows(target, "measurements"))
    return {target: own for target, own in found.items() if own}


def _once(items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without a whole check in error that says again what one of its parts says."""
    names = {(read.text(item.get("name")), read.text(item.get("cause"))) for item in items}
    parts = {(check_of(name), cause) for name, cause in names if "." in name and cause}
    return [item for item in items if (read.text(item.get("name")), read.text(item.get("cause"))) not in parts]


def _names(items: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    """Product names by UUID, from the checks that ask for them."""
    details = [read.sub(item, "detail") for own in items.values() for item in own]
    return {read.text(one["uuid"]): read.text(one["name"]) for one in details if one.get("uuid") and one.get("name")}


def _gpus(target: str, items: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> list[GpuRow]:
    """One row a GPU, in the order in which the workload counts them."""
    found: dict[str, list[tuple[str, dict[str, Any], dict[str, Any]]]] = {}
    for item in items:
        states, check = read.sub(item, "detail", "gpus"), check_of(read.text(item.get("name")))
        before = {_key(row): row for row in read.rows(states, "before")}
        after = {_key(row): row for row in read.rows(states, "after")}
        for key in dict.fromkeys([*before, *after]):
            found.setdefault(key, []).append((check, before.get(key, {}), after.get(key, {})))
    rows = [_gpu(target, seen, items, names) for seen in found.values()]
    return sorted(rows, key=lambda row: (len(row.ordinal), row.ordinal))


def _key(row: Mapping[str, Any]) -> str:
    """What tells GPUs apart: their PCI address, which parts of a check name too."""
    return read.text(row.get("pci_bus_id") or row.get("uuid") or row.get("ordinal"))


def _gpu(
    target: str,
    seen: Sequence[tuple[str, dict[str, Any], dict[str, Any]]],
    items: Sequence[Mapping[str, Any]],
    names: Mapping[str, str],
) -> GpuRow:
    first, last = seen[0][1] or seen[0][2], seen[-1][2] or seen[-1][1]
    checks = tuple(CheckReading(check, _reading(before), _reading(after)) for check, before, after in seen)
    moments = [(check, row) for check, *rows in seen for row in rows if row]
    # The parts of a check carry the state in which they were measured: between before and after.
    for item in items:
        state = read.sub(item, "detail", "state")
        if state and _key(state) == _key(first):
            moments.append((check_of(read.text(item.get("name"))), state))
    heats = [heat for _, row in moments if (heat := read.number(row.get("temperature_c"))) is not None]
    uuid = read.text(first.get("uuid"))
    return GpuRow(
        target=target,
        ordinal=read.text(first.get("ordinal")),
        name=names.get(uuid, ""),
        uuid=uuid,
        pci_bus_id=read.text(first.get("pci_bus_id")),
        before=_reading(first),
        after=_reading(last),
        hottest_c=max(heats, default=None),
        throttles=_throttles(moments),
        checks=checks,
    )


def _reading(row: Mapping[str, Any]) -> Reading | None:
    found = Reading(
        sm_clock_mhz=read.number(row.get("sm_clock_mhz")),
        memory_clock_mhz=read.number(row.get("memory_clock_mhz")),
        temperature_c=read.number(row.get("temperature_c")),
        power_w=read.number(row.get("power_w")),
        pstate=read.text(row.get("pstate")),
        throttle_reasons=read.texts(row, "throttle_reasons"),
    )
    return None if found == Reading(None, None, None, None, "", ()) else found


def _throttles(moments: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[Throttle, ...]:
    """Reasons other than idling, those that are a fault first."""
    found: dict[str, list[str]] = {}
    for check, row in moments:
        for reason in read.texts(row, "throttle_reasons"):
            if reason != IDLE:
                found.setdefault(reason, []).append(check)
    rows = [Throttle(reason, tuple(dict.fromkeys(checks)), reason in SLOWED) for reason, checks in found.items()]
    return tuple(sorted(rows, key=lambda row: not row.harmful))


def _unmeasured(
    items: Mapping[str, Sequence[Mapping[str, Any]]], rows: Sequence[ComparedRow]
) -> tuple[Unmeasured, ...]:
    """What has no value, grouped by its reason, errors first. What failed the gate stands in its table already."""
    told = {(row.target, row.name) for row in rows if row.verdict in BAD}
    found: dict[tuple[str, ...], list[str]] = {}
    for target, own in items.items():
        for item in _once(own):
            name, status = read.text(item.get("name")), read.text(item.get("status"))
            if status == "measured" or (target, name) in told:
                continue
            cause, detail = read.text(item.get("cause")), read.sub(item, "detail")
            why = read.text(detail.get("message") or detail.get("sentence")) or read.sentence_of(cause)
            kind = "error" if status == "error" else "not_measured"
            found.setdefault((target, check_of(name), kind, cause, why), []).append(name)
    groups = [
        Unmeasured(target, check, tuple(names), status, cause, why)
        for (target, check, status, cause, why), names in found.items()
    ]
    return tuple(sorted(groups, key=lambda group: group.status != "error"))
