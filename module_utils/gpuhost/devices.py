"""Containers get their devices by driver name: nodes on the host, rules in the configs, and the record of majors."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from . import workloads
from .documents import make_head
from .errors import stop
from .host_io import Host
from .lxc_config import display
from .lxc_reconcile import Reconciliation, reconcile, stale_rules
from .proc_devices import CharacterMajors, nvidia_majors, nvidia_node, parse_character_majors

RECORD = "/var/lib/gpuhost/majors.json"
"""NVIDIA's majors when the container rules were last known to be right: rung 2 of the attribution ladder."""

NODES = ("/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
"""Nodes that the driver makes only at first use, and that a container's bind mount needs before it starts."""


DRIVER_MODULES = {"nvidia": "nvidia", "nvidia-uvm": "nvidia-uvm", "nvidia-modeset": "nvidia-modeset"}


@dataclass(frozen=True)
class Work:
    """What a reconciliation found and did. ``lines`` are for people, ``diffs`` for ``--diff``."""

    document: dict[str, Any]
    lines: tuple[str, ...]
    diffs: tuple[dict[str, str], ...]

    @property
    def changed(self) -> bool:
        """Whether anything differed."""
        return bool(self.lines)


def current(host: Host) -> CharacterMajors:
    """The character majors of the running kernel."""
    return parse_character_majors(host.read("/proc/devices") or "")


def read_record(host: Host) -> dict[str, int]:
    """The recorded majors; empty where none were ever recorded. Raises Stop where the record can't be read."""
    text = host.read(RECORD)
    if text is None:
        return {}
    try:
        return {str(name): int(major) for name, major in json.loads(text)["majors"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise stop("host.module_failed", RECORD, f"not a record of majors: {error}", "", f"Remove {RECORD}") from error


def write_record(host: Host, majors: dict[str, int]) -> None:
    """Record the majors that the container rules agree with now."""
    if majors and read_record(host) != majors:
        host.write_atomic(RECORD, (json.dumps({"majors": majors}, indent=2, sort_keys=True) + "\n").encode())


def reconcile_host(host: Host, name: str, run_id: str, presumed: Literal["report", "apply"], check: bool) -> Work:
    """Bring nodes and every container's rules to the running kernel's majors; in check mode only say so."""
    recorded = read_record(host)
    lines, diffs, changes, findings = [], [], [], []
    lines += [] if check else load_drivers(host, current(host), recorded)
    majors = current(host)
    nodes = missing_nodes(host, majors)
    lines += [f"node {path} made with {major}:{minor}" for path, major, minor in nodes]
    rewrites = {}
    for container, config in workloads.container_configs(host).items():
        found = reconcile(config, majors, recorded, style="lxc", presumed=presumed)
        path = workloads.config_path(container)
        findings += [{"container": container, **asdict(item)} for item in found.findings]
        changes += [_change(container, path, item) for item in (*found.changes, *found.held)]
        if found.changed:
            rewrites[container] = (path, config, found)
            lines += [_line(path, item) for item in found.changes]
            diffs.append(
                {
                    "before_header": path,
                    "after_header": path,
                    "before": display(config),
                    "after": display(found.content),
                }
            )
    if not check:
        for path, major, minor in nodes:
            host.make_node(path, major, minor, _node_mode(path))
        for path, before, found in rewrites.values():
            _write(host, path, before, found)
        # A driver that is not loaded now keeps its old number: its stale rules stay certain.
        write_record(host, {**recorded, **nvidia_majors(majors)})
    document = {
        **asdict(make_head("reconcile", name, run_id)),
        "majors_before": recorded,
        "majors_now": nvidia_majors(majors),
        "changes": changes,
        "findings": findings,
        "nodes_created": [path for path, _, _ in nodes],
    }
    return Work(document, tuple(lines), tuple(diffs))


def load_drivers(host: Host, majors: CharacterMajors, recorded: dict[str, int]) -> list[str]:
    """Load the parts of the driver that were there before and are not now: nvidia-uvm comes only at first use."""
    lines = []
    for name, module in DRIVER_MODULES.items():
        if name in recorded and majors.major_of(name) is None and host.run(["modprobe", module]).rc == 0:
            lines.append(f"module {module} loaded")
    return lines


def gpu_minors(host: Host) -> list[int]:
    """The minors of the GPUs that the driver has taken, from its own /proc files."""
    found = []
    for address in host.names("/proc/driver/nvidia/gpus"):
        text = host.read(f"/proc/driver/nvidia/gpus/{address}/information") or ""
        found += [int(line.split(":")[1]) for line in text.splitlines() if line.startswith("Device Minor:")]
    return sorted(found)


def missing_nodes(host: Host, majors: CharacterMajors) -> list[tuple[str, int, int]]:
    """(path, major, minor) of every node whose driver is loaded and whose node is missing or has an old major."""
    wanted = ["/dev/nvidiactl", *(f"/dev/nvidia{minor}" for minor in gpu_minors(host)), *NODES]
    wanted += [f"/dev/nvidia-caps/{name}" for name in host.names("/dev/nvidia-caps")]
    found = []
    for path in wanted:
        node = nvidia_node(path)
        major = majors.driver_major(node.driver) if node else None
        if node is None or major is None or node.minor is None or not majors.names_of(major):
            continue
        if node.driver == "nvidia-modeset" and not host.exists("/sys/module/nvidia_modeset"):
            continue
        if host.device_numbers(path) != (major, node.minor):
            found.append((path, major, node.minor))
    return found


def _node_mode(path: str) -> int:
    """The modes that the driver gives: the MIG configuration (cap1) is root's, the rest is read by everybody."""
    if path.endswith("/nvidia-cap1"):
        return 0o400
    return 0o444 if "/nvidia-caps/" in path else 0o666


def stale_by_container(host: Host) -> dict[str, list[dict[str, Any]]]:
    """For the judge: per container the rules that name an old number of an NVIDIA driver."""
    majors, recorded = current(host), read_record(host)
    return {
        container: [
            {"container": container, "driver": rule.driver, "allowed": rule.major_allowed, "now": rule.major_now}
            for rule in stale_rules(config, majors, recorded, style="lxc")
        ]
        for container, config in workloads.container_configs(host).items()
    }


def _write(host: Host, path: str, before: bytes, found: Reconciliation) -> None:
    if host.read_bytes(path) != before:
        raise stop("lxc.config_changed", path, "changed while it was being read")
    host.write_atomic(path, found.content, host.mode(path))


def _change(container: str, path: str, item: Any) -> dict[str, Any]:
    return {"container": container, "path": path, **asdict(item)}


def _line(path: str, item: Any) -> str:
    leak = f" ({item.old_major} belongs to {item.leaks_to} now: closed)" if item.leaks_to else ""
    return f"{path}:{item.line} {item.driver} {item.old_major} -> {item.new_major}{leak}"
