"""nvidia-persistenced: there, enabled, running, before any container starts, and persistence mode really on.

A running daemon says nothing about the mode: Ubuntu's unit is ``static``, ``StopWhenUnneeded``, and starts the daemon
with ``--no-persistence-mode`` (its nvidia-compute-utils packages). Source: nvidia-persistenced(1), driver README
chapter "nvidia-persistenced".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from . import gpu_kinds, unit_state
from .documents import Finding
from .gpu_query import Gpu
from .host_io import Host
from .tuning import Wanted, Write

UNIT = "nvidia-persistenced.service"
DROP_IN = f"/etc/systemd/system/{UNIT}.d/50-gpuhost.conf"
"""A drop-in of the administrator's own (``systemctl edit``: override.conf) comes after it, and wins."""
CONTAINER_UNITS = ("lxc-net.service", "lxc.service", "pve-guests.service", "docker.service", "containerd.service")
"""What starts containers at boot. lxc-net.service: every lxc@NAME.service comes after it."""
PROGRAM = "/usr/bin/nvidia-persistenced"
OFF = "--no-persistence-mode"
DAEMON, MODE = "gpu.persistence_daemon", "gpu.persistence_mode"

_PROPERTIES = ("LoadState", "UnitFileState", "ActiveState", "ExecStart", "Before", "StopWhenUnneeded", "FragmentPath")
_ARGV = re.compile(r"argv\[\]=(.*?) ; ignore_errors=")
_EXEC = re.compile(r"^ExecStart=(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Facts:
    """The daemon and its unit. ``asked`` false: no systemd answered."""

    asked: bool = False
    program: bool = False
    load: str = "not-found"
    enabled: str = ""
    active: str = ""
    command: str = ""
    before: tuple[str, ...] = ()
    stops_unneeded: bool = False
    unit_text: str = ""
    """The unit's own file, without any drop-in."""
    drop_in: str | None = None
    containers: tuple[str, ...] = ()
    """Those of CONTAINER_UNITS that are installed."""


def read(host: Host) -> Facts:
    """One ``systemctl show``, and files."""
    drop_in = host.read(DROP_IN)
    found = tuple(unit for unit in CONTAINER_UNITS if unit_state.installed(host, unit))
    said = unit_state.show(host, UNIT, *_PROPERTIES)
    if said is None:
        return Facts(program=host.exists(PROGRAM), drop_in=drop_in, containers=found)
    fragment = said.get("FragmentPath", "")
    command = _ARGV.search(said.get("ExecStart", ""))
    return Facts(
        asked=True,
        program=host.exists(PROGRAM),
        load=said.get("LoadState", ""),
        enabled=said.get("UnitFileState", ""),
        active=said.get("ActiveState", ""),
        command=command[1] if command else "",
        before=tuple(said.get("Before", "").split()),
        stops_unneeded=said.get("StopWhenUnneeded") == "yes",
        unit_text=(host.read(fragment) or "") if fragment else "",
        drop_in=drop_in,
        containers=found,
    )


def drop_in_text(facts: Facts) -> str | None:
    """The drop-in that puts the unit's own file right; None where that needs none."""
    executed = _EXEC.findall(facts.unit_text)
    command = executed[-1].strip() if executed else ""
    unit, service, install = [], [], []
    ordered = {word for line in re.findall(r"^Before=(.*)$", facts.unit_text, re.MULTILINE) for word in line.split()}
    if set(facts.containers) - ordered:
        unit.append(f"Before={' '.join(CONTAINER_UNITS)}")
    if re.search(r"^StopWhenUnneeded=(yes|true|on|1)\s*$", facts.unit_text, re.MULTILINE):
        unit.append("StopWhenUnneeded=no")
    if OFF in command.split():
        service += ["ExecStart=", f"ExecStart={' '.join(word for word in command.split() if word != OFF)}"]
    if "[Install]" not in facts.unit_text:
        install.append("WantedBy=multi-user.target")
    parts = {"[Unit]": unit, "[Service]": service, "[Install]": install}
    body = [line for head, lines in parts.items() if lines for line in (head, *lines)]
    head = "# Managed by gpuhost (gpu_runtime): persistence mode on, before any container starts."
    return "\n".join([head, *body]) + "\n" if body else None


def late(facts: Facts) -> tuple[str, ...]:
    """The installed units that start containers without waiting for the daemon."""
    return tuple(unit for unit in facts.containers if unit not in facts.before)


def problems(facts: Facts) -> list[str]:
    """What is wrong with the unit as systemd has it now."""
    found = []
    if facts.active != "active":
        found.append(f"is {facts.active or 'not active'}")
    if facts.enabled not in ("enabled", "generated"):
        found.append(f"is {facts.enabled or 'not enabled'}: no boot starts it by itself")
    if OFF in facts.command.split():
        found.append(f"runs with {OFF}")
    if facts.stops_unneeded:
        found.append("stops as soon as no other unit needs it")
    if late(facts):
        found.append(f"is not ordered before {', '.join(late(facts))}")
    return found


def wanted(facts: Facts, gpus: Sequence[Gpu], wished: bool, by_our_unit: bool) -> Wanted:
    """``by_our_unit``: gpuhost-gpu-state.service sets the mode at every boot, as where there is no daemon."""
    if not wished:
        off = [gpu.address for gpu in gpus if gpu.persistence is False]
        text = f"off on {', '.join(off)}" if off else "on"
        return Wanted((_finding(MODE, "info", text, "not declared", ""),))
    found = modes(gpus)
    daemon, writes = _daemon(facts, by_our_unit)
    return Wanted((daemon, *found.findings), (*writes, *found.writes))


def has_daemon(facts: Facts) -> bool:
    """Whether there is a unit that can be relied on, or put right."""
    return facts.load == "loaded"


def _daemon(facts: Facts, by_our_unit: bool) -> tuple[Finding, list[Write]]:
    expected = "enabled, active, before containers"
    if not facts.asked:
        return _finding(DAEMON, "unknown", "unknown: no systemd answered", expected, "systemctl status"), []
    if facts.load == "masked":
        fix = f"It is masked by somebody: systemctl unmask {UNIT}, then tune"
        return _finding(DAEMON, "p0_runtime", "masked", expected, fix), []
    if not has_daemon(facts):
        there = "without a unit" if facts.program else "not installed"
        if by_our_unit:
            return _finding(DAEMON, "good", f"{there}; gpuhost-gpu-state.service sets the mode at boot", expected), []
        fix = "Install the driver's nvidia-persistenced package; tune sets the mode at boot by a unit of its own"
        return _finding(DAEMON, "p0_runtime", there, expected, fix), []
    found = problems(facts)
    text = drop_in_text(facts)
    writes = []
    if facts.drop_in != text and (facts.drop_in is not None or _repairable(facts)):
        writes.append(Write(unit_state.UNIT_FILE, DROP_IN, text, "the mode on, before containers start"))
    if found:
        writes.append(Write(unit_state.ENABLED, UNIT, "enabled", "at every boot"))
        writes.append(Write(unit_state.ACTIVE, UNIT, "active", "now"))
        fix = f"gpuhost tune, or: systemctl edit {UNIT}; systemctl enable --now {UNIT}"
        return _finding(DAEMON, "p0_runtime", "; ".join(found), expected, fix), writes
    return _finding(DAEMON, "good", "enabled, active, before containers", expected), writes


def _repairable(facts: Facts) -> bool:
    """Whether something is wrong that a drop-in puts right; that it does not run is nothing of the kind."""
    return bool(
        late(facts) or facts.stops_unneeded or OFF in facts.command.split() or facts.enabled in ("static", "indirect")
    )


def modes(gpus: Sequence[Gpu]) -> Wanted:
    """Persistence mode on, GPU by GPU."""
    off = [gpu for gpu in gpus if gpu.persistence is False]
    silent = [gpu.address for gpu in gpus if gpu.persistence is None]
    if off:
        fix = f"gpuhost tune, or: nvidia-smi -i {','.join(gpu.address for gpu in off)} -pm 1"
        text = f"off on {', '.join(gpu.address for gpu in off)}"
        writes = tuple(gpu_kinds.write_of(gpu_kinds.PERSISTENCE, gpu.address, "on", "by default") for gpu in off)
        return Wanted((_finding(MODE, "p0_runtime", text, "on", fix),), writes)
    if silent:
        return Wanted((_finding(MODE, "unknown", f"unknown: {', '.join(silent)} does not say", "on", "nvidia-smi"),))
    return Wanted((_finding(MODE, "good", f"on, {len(gpus)} GPUs", "on"),))


def _finding(code: str, severity: str, observed: str, expected: str, fix: str = "") -> Finding:
    why = "Without it the driver gives up a GPU's state when its last user ends: slow starts, limits and clocks lost."
    source = "nvidia-smi" if code == MODE else f"systemctl show {UNIT}"
    return Finding(code, "gpu_state", severity, observed, expected, why, fix, source)  # type: ignore[arg-type]
