"""What a host's GPUs gave when they were known to be good: ``baselines.json``, and what a passed gate does to it.

A baseline does not drift: a gate adds what has none yet (gpu_gate_first_run: record) or replaces what it measured
(gpu_gate_baseline: replace), both only by the operator's word. Later gates are kept beside it, as history.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .documents import SCHEMA_PREFIX, Head, as_dict, make_head
from .errors import stop
from .host_io import Host

FILE = "/var/lib/gpuhost/baselines.json"
KIND = "baselines"
VERSION = 1
HISTORY_RUNS = 50
"""A year of weekly gates. A run of eight GPUs has some 500 values, 15 kB: the file stays below 1 MB; of 16 GPUs it has
1200 values, 37 kB, and the file 2 MB."""


@dataclass(frozen=True)
class Origin:
    """The run that a baseline comes from. ``gpus``: UUIDs by target, in the order in which the workload sees them.

    ``clocks``: what NVML said at the end of each check: target -> check -> one row a GPU (P-state, clocks in MHz).
    """

    taken_at: str
    run_id: str
    kernel: str
    driver: str = ""
    gpus: dict[str, list[str]] = field(default_factory=dict)
    clocks: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The name by which entries refer to it."""
        return f"{self.taken_at} {self.run_id}"


@dataclass(frozen=True)
class Entry:
    """One measurement's baseline. ``origin``: the key of the run it comes from. ``quick``: it was a quick run."""

    value: float
    unit: str
    origin: str
    p20: float | None = None
    p80: float | None = None
    quick: bool = False


@dataclass(frozen=True)
class Past:
    """The values of one passed gate: target -> name -> value."""

    origin: Origin
    values: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Baselines:
    """``baselines.json``."""

    head: Head
    origins: dict[str, Origin] = field(default_factory=dict)
    targets: dict[str, dict[str, Entry]] = field(default_factory=dict)
    history: tuple[Past, ...] = ()

    def entry(self, target: str, name: str) -> Entry | None:
        """The baseline of one measurement; None where there is none."""
        return self.targets.get(target, {}).get(name)

    def origin(self, entry: Entry) -> Origin | None:
        """The run that an entry comes from."""
        return self.origins.get(entry.origin)


@dataclass(frozen=True)
class Update:
    """What a passed gate has for the file: new entries, its values for the history, names that are measured no more."""

    origin: Origin
    entries: dict[str, dict[str, Entry]]
    values: dict[str, dict[str, float]]
    dropped: dict[str, list[str]] = field(default_factory=dict)

    @property
    def changes_baseline(self) -> bool:
        """Whether it is more than history."""
        return any(self.entries.values()) or any(self.dropped.values())


def from_dict(raw: Any) -> Baselines:
    """Out of plain data. Raises Stop(gate.baseline_unreadable): never "no baseline" for a file that is there."""
    try:
        if raw["schema"] != SCHEMA_PREFIX + KIND:
            raise stop("gate.baseline_unreadable", FILE, f"schema {raw['schema']}", SCHEMA_PREFIX + KIND)
        if raw["schema_version"] != VERSION:
            observed = f"written in version {raw['schema_version']}"
            raise stop("gate.baseline_unreadable", FILE, observed, f"version {VERSION}")
        return Baselines(
            Head(raw["schema"], VERSION, raw["host"], raw["run_id"], raw["taken_at"]),
            {key: Origin(**item) for key, item in raw["origins"].items()},
            {name: {key: _entry(item) for key, item in own.items()} for name, own in raw["targets"].items()},
            tuple(Past(Origin(**item["origin"]), item["values"]) for item in raw["history"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        observed = f"not a file of baselines: {type(error).__name__}: {error}"
        raise stop("gate.baseline_unreadable", FILE, observed, "baselines") from error


def _entry(raw: dict[str, Any]) -> Entry:
    return Entry(**{**raw, "value": float(raw["value"])})


def update_from_dict(raw: dict[str, Any]) -> Update:
    """What the judge has sent to the host."""
    entries = {target: {name: _entry(item) for name, item in own.items()} for target, own in raw["entries"].items()}
    return Update(Origin(**raw["origin"]), entries, raw["values"], raw["dropped"])


def read(host: Host) -> dict[str, Any] | None:
    """The file's content, proven readable; None only where there is no file."""
    data = host.read_bytes(FILE)
    if data is None:
        if host.exists(FILE):
            raise stop("gate.baseline_unreadable", FILE, "not a file", "baselines")
        return None
    try:
        raw = json.loads(data)
    except ValueError as error:
        raise stop("gate.baseline_unreadable", FILE, f"not JSON: {error}", "baselines") from error
    return as_dict(from_dict(raw))


def without_history(raw: dict[str, Any]) -> dict[str, Any]:
    """What the judge needs of the file. The history of 16 GPUs has two megabytes, and nobody compares with it."""
    return {**raw, "history": []}


def write(host: Host, found: Baselines) -> None:
    """Write the file so that a power cut leaves the old or the new one."""
    host.write_atomic(FILE, (json.dumps(as_dict(found), indent=1) + "\n").encode(), 0o600)


def merged(before: Baselines | None, update: Update, host_name: str) -> Baselines | None:
    """The file after a passed gate. None: there is nothing to be kept, because nobody has asked for a baseline yet."""
    if before is None and not update.changes_baseline:
        return None
    head = make_head(KIND, host_name, update.origin.run_id, VERSION)
    known = before or Baselines(head)
    targets = {}
    for name in sorted({*known.targets, *(name for name, own in update.entries.items() if own)}):
        own = {**known.targets.get(name, {}), **update.entries.get(name, {})}
        targets[name] = {key: item for key, item in own.items() if key not in update.dropped.get(name, ())}
    origins = {**known.origins, update.origin.key: update.origin}
    used = {entry.origin for own in targets.values() for entry in own.values()}
    history = (*known.history, Past(replace(update.origin, clocks={}), update.values))[-HISTORY_RUNS:]
    return Baselines(head, {key: item for key, item in origins.items() if key in used}, targets, history)


def entry_from(item: Mapping[str, Any], origin: str, quick: bool) -> Entry:
    """A measurement as a baseline."""
    return Entry(float(item["value"]), item["unit"], origin, _quantile(item, "p20"), _quantile(item, "p80"), quick)


def _quantile(row: Mapping[str, Any], which: str) -> float | None:
    value = (row.get("samples") or {}).get(which)
    return None if value is None else float(value)


def gpu_states(measurements: Iterable[Mapping[str, Any]], when: str = "after") -> dict[str, list[dict[str, Any]]]:
    """Check -> one row a GPU as NVML saw it then; checks that say nothing of their GPUs are left out."""
    found = {}
    for item in measurements:
        gpus = (item.get("detail") or {}).get("gpus")
        rows = gpus.get(when) if isinstance(gpus, Mapping) else None
        if isinstance(rows, list) and "." not in item["name"]:
            found[str(item["name"])] = [row for row in rows if isinstance(row, dict)]
    return found


CLOCK_KEYS = ("ordinal", "pstate", "sm_clock_mhz", "memory_clock_mhz")


def origin_of(when: tuple[str, str], system: tuple[str, str], answers: Mapping[str, Mapping[str, Any]]) -> Origin:
    """The origin of what was measured now. ``when``: time and run id; ``system``: kernel and driver."""
    states = {name: gpu_states(answer["measurements"]) for name, answer in answers.items()}
    uuids = {name: next(([str(row.get("uuid") or "") for row in rows] for rows in own.values()), [])
             for name, own in states.items()}  # fmt: skip
    clocks = {
        name: {check: [{key: row.get(key) for key in CLOCK_KEYS} for row in rows] for check, rows in own.items()}
        for name, own in states.items()
        if own
    }
    return Origin(*when, *system, {name: rows for name, rows in uuids.items() if rows}, clocks)


def changes_since(before: Baselines, now: Origin) -> list[str]:
    """What is another thing than when the baselines were taken: kernel, driver, GPUs. A line each."""
    lines = []
    used = {entry.origin for own in before.targets.values() for entry in own.values()}
    for key in sorted(used & set(before.origins)):
        then = before.origins[key]
        of = f"baseline of {then.taken_at} ({then.run_id})"
        lines.append(
            f"{of}: kernel {then.kernel}, now {now.kernel}; driver {then.driver or 'unknown'}, "
            f"now {now.driver or 'unknown'}"
        )
        for target in sorted(set(then.gpus) & set(now.gpus)):
            lines += _other_gpus(target, then.gpus[target], now.gpus[target])
    return lines


def _other_gpus(target: str, then: list[str], now: list[str]) -> list[str]:
    lines = []
    for ordinal in range(max(len(then), len(now))):
        was, is_now = (rows[ordinal] if ordinal < len(rows) else "none" for rows in (then, now))
        if was and is_now and was != is_now:
            lines.append(f"{target}: GPU {ordinal} is {is_now}, the baseline was taken on {was}")
    return lines


def described(before: Baselines | None, update: Update) -> tuple[list[str], list[dict[str, str]]]:
    """What becomes a baseline: a line each target, and old and new values as a diff."""
    lines, old, new = [], [], []
    for target in sorted({*update.entries, *update.dropped}):
        entries, gone = update.entries.get(target, {}), update.dropped.get(target, [])
        if entries:
            lines.append(f"{target}: {len(entries)} values are the baseline now ({update.origin.key})")
        if gone:
            lines.append(f"{target}: no baseline any more, as it was not measured: {', '.join(gone)}")
        for name in sorted({*entries, *gone}):
            entry = before.entry(target, name) if before else None
            old += [f"{target} {name}: {entry.value:g} {entry.unit}"] if entry else []
            new += [f"{target} {name}: {entries[name].value:g} {entries[name].unit}"] if name in entries else []
    changed = old != new
    texts = {side: "".join(f"{line}\n" for line in rows) for side, rows in (("before", old), ("after", new))}
    return lines, [{**texts, "before_header": FILE, "after_header": FILE}] if changed else []
