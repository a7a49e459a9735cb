"""The rules of one container's config brought to the running kernel's majors, and what was found on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from . import config_file, devices_native, majors_record
from .containers import Container
from .errors import stop
from .host_io import Host
from .lxc_config import display
from .lxc_reconcile import (
    Change,
    Hierarchy,
    IncludedFile,
    Presumed,
    Reconciliation,
    StaleRule,
    read_includes,
    reconcile,
    stale_rules,
)
from .proc_devices import CharacterMajors, nvidia_majors

CGROUP2 = "/sys/fs/cgroup/cgroup.controllers"
"""There where the unified hierarchy holds the devices controller."""


@dataclass(frozen=True)
class Tables:
    """By what rules are judged on a host."""

    majors: CharacterMajors
    recorded: majors_record.Majors
    hierarchy: Hierarchy
    presumed: Presumed = "report"


@dataclass
class Gathered:
    """What comes of the configs of a host, container by container. ``planned``: new bytes by path, in check mode.
    ``shared``: included files that have changed, for whichever container came first.

    ``is_held``: something was found that was not changed, so a rule may still name an older number. ``is_guessed``: of
    that, something is only presumed, so nobody knows what number it was.
    """

    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    diffs: list[dict[str, str]] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    rewritten: list[str] = field(default_factory=list)
    shared: set[str] = field(default_factory=set)
    planned: dict[str, bytes] = field(default_factory=dict)
    is_held: bool = False
    is_guessed: bool = False

    def known(self, recorded: majors_record.Majors, now: dict[str, int]) -> dict[str, int]:
        """What may go on record. Beside a presumed rule a driver without a record stays without: recorded, it would
        count as one whose old number is known and was not found, and that rule could never be attributed again.
        """
        return {name: major for name, major in now.items() if name in recorded} if self.is_guessed else now

    def file(self, container: str, path: str, before: bytes, after: bytes, changes: Iterable[Change]) -> None:
        """One file that differs."""
        for item in changes:
            self.changes.append(change_document(container, path, item))
            self.lines.append(_line(path, item))
        if before != after:
            self.diffs.append(
                {"before_header": path, "after_header": path, "before": display(before), "after": display(after)}
            )


def hierarchy(host: Host) -> Hierarchy:
    """Which of the two control group trees has the devices controller here."""
    return "cgroup2" if host.exists(CGROUP2) else "legacy"


def stale(host: Host, container: Container, tables: Tables) -> tuple[StaleRule, ...]:
    """The rules of a container that name an old number of an NVIDIA driver."""
    return stale_rules(
        container.config,
        tables.majors,
        tables.recorded,
        style=container.style,
        hierarchy=tables.hierarchy,
        includes=_includes(host, container),
    )


def bring(host: Host, container: Container, tables: Tables, native: bool, check: bool, found: Gathered) -> None:
    """Gather what differs in a container's config and in the files that it includes; write it unless in check mode.

    ``native``: move Proxmox's containers to devN entries afterwards.
    """
    plan = _plan(host, container, tables, found.planned)
    differs = plan.changed or any(item.changed for item in plan.included)
    if differs and not check:
        # Before the first rule changes: a kill in between leaves rules of both kinds, and both are on record.
        majors_record.write(host, majors_record.changing(tables.recorded, _touched(tables, plan)))
    for include in plan.included:
        _bring_included(host, container, include, check, found)
    shares = any(include.path in found.shared for include in plan.included)
    before, after = container.config, plan.content
    if before != after:
        if not check:
            before, after, plan = _write(host, container, tables, plan)
        found.file(container.name, container.config_path, before, after, plan.changes)
    elif not check and host.rewrite_leftover(container.config_path, remove=False):
        config_file.update(host, container.config_path, lambda data: data)  # of a machine that died in a rewrite
    found.is_held = found.is_held or bool(plan.held)
    found.is_guessed = found.is_guessed or any(item.held == "presumed" for item in plan.held)
    found.changes += [change_document(container.name, container.config_path, item) for item in plan.held]
    found.notes += [f"{_line(item.file or container.config_path, item)}: not done, {item.held}" for item in plan.held]
    found.findings += [{"container": container.name, **asdict(item)} for item in plan.left]
    differs = _make_native(host, container, after, tables, check, found) or differs if native else differs
    if differs or shares:
        found.rewritten.append(container.name)


def _touched(tables: Tables, plan: Reconciliation) -> dict[str, int]:
    """The drivers that are on record already, and those whose rules change now."""
    changes = (*plan.changes, *(item for include in plan.included for item in include.changes))
    drivers = {*tables.recorded, *(item.driver for item in changes)}
    return {name: major for name, major in nvidia_majors(tables.majors).items() if name in drivers}


def change_document(container: str, path: str, item: Change) -> dict[str, Any]:
    """A change for ``reconcile.json``."""
    return {"container": container, "path": path, "severity": item.severity, **asdict(item)}


def _plan(host: Host, container: Container, tables: Tables, planned: dict[str, bytes]) -> Reconciliation:
    """What one config needs, with the files that it includes."""
    return reconcile(
        container.config,
        tables.majors,
        tables.recorded,
        style=container.style,
        presumed=tables.presumed,
        hierarchy=tables.hierarchy,
        includes=_includes(host, container, planned),
    )


def _includes(host: Host, container: Container, planned: dict[str, bytes] | None = None) -> dict[str, bytes]:
    """Every file that a config includes. In check mode one that another container shares counts as already changed."""
    found = read_includes(container.config, host.read_bytes, host.names, style=container.style)
    return {path: (planned or {}).get(path, data) for path, data in found.items()}


def _write(
    host: Host, container: Container, tables: Tables, planned: Reconciliation
) -> tuple[bytes, bytes, Reconciliation]:
    """Rewrite a config, by a new plan where somebody has changed it meanwhile: before, after, the plan that held."""
    last = planned

    def change(data: bytes) -> bytes:
        nonlocal last
        last = _plan(host, replace(container, config=data), tables, {})
        return last.content

    before, after = config_file.update(host, container.config_path, change)
    return before, after, last


def _bring_included(host: Host, container: Container, include: IncludedFile, check: bool, found: Gathered) -> None:
    if not include.changed:
        return
    before, after = found.planned.get(include.path) or host.read_bytes(include.path) or b"", include.content
    if check:
        found.planned[include.path] = after
    else:
        before, after = config_file.update(host, include.path, _only(include.path, before, after))
    found.shared.add(include.path)
    found.file(container.name, include.path, before, after, include.changes)


def _only(path: str, expected: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """A change for a file that must be as it was read: its plan rests on the config that includes it."""

    def change(data: bytes) -> bytes:
        if data != expected:
            raise stop("lxc.config_changed", path, "changed while it was being read")
        return new

    return change


def _make_native(host: Host, container: Container, config: bytes, tables: Tables, check: bool, found: Gathered) -> bool:
    """A Proxmox container's devices by devN entries, after its rules have been put right; whether it differed."""
    native = devices_native.migrate_container(host, container, config, tables.majors, check)
    found.lines += native.lines
    found.notes += native.notes
    found.diffs += native.diffs
    found.changes += native.changes
    return bool(native.diffs)


def _line(path: str, item: Change) -> str:
    closed = "still open" if item.held else "closed"
    leak = f" ({item.old_major} belongs to {item.leaks_to} now: {closed})" if item.leaks_to else ""
    return f"{path}:{item.line} {item.driver} {item.old_major or 'no rule'} -> {item.new_major or 'no rule'}{leak}"
