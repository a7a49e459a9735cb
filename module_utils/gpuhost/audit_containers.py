"""The domain *containers*: do those that get GPUs come back after a boot, with rules and nodes of this kernel.

Only looked at: ``devices`` is what puts it right. Memlock limits are said by ``gpu_runtime`` (memlock.py), which also
sets them. No program runs but systemctl where plain LXC has units of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from . import containers, containers_lxc, device_rules, devices, devices_unit, host_nodes, lxc_reconcile, majors_record
from .containers import Container
from .documents import Finding, Severity
from .errors import Stop
from .host_io import Host
from .proc_devices import ProcDevicesError, nvidia_node

DOMAIN = "containers"
DOCKER = "/var/lib/docker/containers"
_RESTARTS = ("always", "unless-stopped", "on-failure")
_FIX_START = {
    containers.PVE: "pct set {name} --onboot 1",
    containers.LXC: "lxc.start.auto = 1 in {path}",
    containers.LXC_UNIT: "systemctl enable lxc@{name}.service, or lxc.start.auto = 1 in {path}",
    "docker": "docker update --restart unless-stopped {name}",
}


@dataclass(frozen=True)
class Seen:
    """One container. ``gpus``: the NVIDIA nodes that it gets, or what Docker calls its request."""

    name: str
    engine: str
    path: str
    running: bool
    autostart: bool
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What was read. ``unknown`` says why nothing is."""

    containers: tuple[Seen, ...] = ()
    rules: tuple[Finding, ...] = ()
    """What a reconciliation would say now."""
    rules_unknown: str = ""
    changes: int = 0
    nodes_missing: tuple[str, ...] = ()
    driver: bool = False
    at_boot: devices_unit.AtBoot = "nothing"
    unknown: str = ""


def read(host: Host) -> Facts:
    """Configs and device numbers. Needs root: neither LXC's nor Docker's folders are anybody else's to read."""
    if not host.is_root():
        return Facts(unknown="needs root")
    try:
        ours = containers.containers(host)
    except Stop as error:
        return Facts(unknown=error.blocker.sentence)
    running = {name for folder, name in containers_lxc.sockets(host) if folder == containers_lxc.FOLDER}
    rules, changes, reason = _rules(host, ours)
    return Facts(
        containers=(*(_seen(host, item, running) for item in ours if not item.is_template), *docker(host)),
        rules=tuple(rules),
        rules_unknown=reason,
        changes=changes,
        nodes_missing=_missing(host, ours),
        driver=host.exists("/sys/module/nvidia"),
        at_boot=devices_unit.installed(host),
    )


def _seen(host: Host, item: Container, running: set[str]) -> Seen:
    by_unit = item.engine == containers.LXC_UNIT and _starts_at_boot(host, item.name)
    return Seen(
        item.name, item.engine, item.config_path, item.name in running, item.autostart or by_unit, tuple(item.gpu_paths)
    )


def _starts_at_boot(host: Host, name: str) -> bool:
    folder = "/etc/systemd/system"
    wants = [item for item in host.names(folder) if item.endswith((".wants", ".requires"))]
    return any(f"lxc@{name}.service" in host.names(f"{folder}/{item}") for item in wants)


def _rules(host: Host, ours: list[Container]) -> tuple[list[Finding], int, str]:
    """Findings on each config as it is, how many changes a reconciliation would make, and why nothing is known."""
    found: list[Finding] = []
    changes = 0
    try:
        current, recorded, hierarchy = devices.current(host), majors_record.read(host), device_rules.hierarchy(host)
        for item in ours:
            plan = lxc_reconcile.reconcile(
                item.config,
                current,
                recorded,
                style=item.style,
                presumed="report",
                hierarchy=hierarchy,
                includes=lxc_reconcile.read_includes(item.config, host.read_bytes, host.names, style=item.style),
            )
            changes += len(plan.changes) + len(plan.held) + sum(len(include.changes) for include in plan.included)
            found += [replace(seen, source=f"container {item.name}, {seen.source}") for seen in plan.findings]
    except Stop as error:
        return [], 0, error.blocker.sentence
    except ProcDevicesError as error:
        return [], 0, str(error)
    return found, changes, ""


def _missing(host: Host, ours: list[Container]) -> tuple[str, ...]:
    nodes = [found for item in ours for path in item.gpu_paths if (found := nvidia_node(path)) is not None]
    mounted = [node.path for node in nodes if not node.is_dir]
    return tuple(node.path for node in host_nodes.missing(host, devices.current(host), mounted))


def docker(host: Host) -> tuple[Seen, ...]:
    """Docker's containers that get GPUs, from its own files."""
    found = []
    for identity in host.names(DOCKER):
        folder = f"{DOCKER}/{identity}"
        wishes, state = _json(host, f"{folder}/hostconfig.json"), _json(host, f"{folder}/config.v2.json")
        requests = [item for item in wishes.get("DeviceRequests") or () if _is_gpu(item)]
        nodes = [str(item.get("PathOnHost")) for item in wishes.get("Devices") or () if isinstance(item, dict)]
        gpus = [*("--gpus" for _ in requests[:1]), *(path for path in nodes if nvidia_node(path) is not None)]
        if not gpus and wishes.get("Runtime") != "nvidia":
            continue
        policy = (wishes.get("RestartPolicy") or {}).get("Name", "")
        name = str(state.get("Name") or identity[:12]).lstrip("/")
        running = bool((state.get("State") or {}).get("Running"))
        found.append(Seen(name, "docker", f"{folder}/hostconfig.json", running, policy in _RESTARTS, tuple(gpus)))
    return tuple(found)


def _json(host: Host, path: str) -> dict[str, Any]:
    try:
        found = json.loads(host.read(path) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_gpu(request: Any) -> bool:
    text = json.dumps(request)
    return bool(re.search(r'"(?:gpu|nvidia[^"]*)"', text))


def findings(facts: Facts) -> tuple[Finding, ...]:
    """All of them."""
    if facts.unknown:
        return (_finding("containers.gpus", "unknown", f"unknown: {facts.unknown}", "", "", containers_lxc.FOLDER),)
    with_gpu = [item for item in facts.containers if item.gpus or item.engine == "docker"]
    return (
        _gpus(facts, with_gpu),
        *_autostart(with_gpu),
        *_of_rules(facts, with_gpu),
        *_nodes(facts),
        *_unit(facts, with_gpu),
    )


def _finding(
    code: str, severity: Severity, observed: str, expected: str, why: str, source: str, fix: str = ""
) -> Finding:
    return Finding(code, DOMAIN, severity, observed, expected, why, fix, source)


def _gpus(facts: Facts, with_gpu: list[Seen]) -> Finding:
    code, why = "containers.gpus", "These are the ones that the other findings of this domain are about."
    if not with_gpu:
        others = f" ({len(facts.containers)} others)" if facts.containers else ""
        return _finding(
            code, "info", f"not applicable: no container gets a GPU{others}", "", why, containers_lxc.FOLDER
        )
    shown = ", ".join(f"{item.name} ({item.engine}, {'runs' if item.running else 'stopped'})" for item in with_gpu)
    return _finding(code, "info", shown, "", why, containers_lxc.FOLDER)


def _autostart(with_gpu: list[Seen]) -> Iterator[Finding]:
    code, expected = "containers.autostart", "started at boot"
    why = "It runs now, and after the next reboot, planned or not, it is down until somebody starts it."
    alone = [item for item in with_gpu if item.running and not item.autostart]
    for item in alone:
        fix = _FIX_START[item.engine].format(name=item.name, path=item.path)
        yield _finding(code, "p0_runtime", f"{item.name} runs, and no boot starts it", expected, why, item.path, fix)
    right = [item.name for item in with_gpu if item.running and item.autostart]
    if right and not alone:
        yield _finding(code, "good", f"{', '.join(right)}", expected, why, containers_lxc.FOLDER)


def _of_rules(facts: Facts, with_gpu: list[Seen]) -> Iterator[Finding]:
    yield from facts.rules
    code, expected = "containers.device_rules", "every rule names this kernel's majors"
    why = "A rule with an old number keeps CUDA out (999), while nvidia-smi works; and it may open another device."
    ruled = [item.name for item in with_gpu if item.engine != "docker"]
    if facts.rules_unknown:
        yield _finding(code, "unknown", f"unknown: {facts.rules_unknown}", expected, why, "/proc/devices")
    elif ruled and not facts.changes and not any(item.severity in ("p0_runtime", "security") for item in facts.rules):
        yield _finding(code, "good", f"as this kernel's: {', '.join(ruled)}", expected, why, "/proc/devices")


def _nodes(facts: Facts) -> Iterator[Finding]:
    code, expected = "device.node_missing", "every node, with this kernel's number"
    why = "A container that mounts a node that is not there starts without it, or does not start."
    if facts.nodes_missing:
        observed = f"missing, or with an old number: {', '.join(facts.nodes_missing)}"
        yield _finding(code, "p0_runtime", observed, expected, why, "/dev", "Run playbooks/reconcile.yml")
    elif facts.driver:
        yield _finding(code, "good", "none is missing", expected, why, "/dev")


def _unit(facts: Facts, with_gpu: list[Seen]) -> Iterator[Finding]:
    code, why = (
        "containers.boot_unit",
        "Without it an unplanned reboot into another kernel may leave them without CUDA.",
    )
    if not any(item.engine != "docker" for item in with_gpu):
        return
    source = devices_unit.UNIT_FILE
    if facts.at_boot == "nothing":
        observed = f"no {devices_unit.UNIT}: nothing makes nodes and rules fit before containers start"
        fix = "lxc_devices_at_boot: reconcile, then playbooks/reconcile.yml"
        yield _finding(code, "info", observed, "installed", why, source, fix)
    else:
        what = "nodes and rules" if facts.at_boot == "reconcile" else "nodes"
        yield _finding(code, "good", f"{devices_unit.UNIT}: {what} at every boot", "installed", why, source)
