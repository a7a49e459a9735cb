"""``lxc_devices_style: native``: Proxmox containers get their NVIDIA nodes by devN entries, which can't go stale."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from . import config_file
from .containers import PVE, Container
from .host_io import Host
from .lxc_config import display
from .lxc_native import Migration, NodeFacts, migrate
from .proc_devices import CharacterMajors, nvidia_node


@dataclass(frozen=True)
class Native:
    """What became of one container's config. ``notes`` hold what it can't express, which stays as it is."""

    lines: tuple[str, ...]
    notes: tuple[str, ...]
    diffs: tuple[dict[str, str], ...]
    changes: tuple[dict[str, Any], ...]


def migrate_container(host: Host, container: Container, config: bytes, majors: CharacterMajors, check: bool) -> Native:
    """Move one container, whose rules have been reconciled (``config``), to devN entries."""
    if container.engine != PVE:
        return Native((), (), (), ())
    nodes, version = node_facts(host), pve_container_version(host)
    found = _plan(config, majors, nodes, version, container.name)
    before, after = config, found.content
    if found.changed and not check:
        last = found

        def change(data: bytes) -> bytes:
            nonlocal last
            last = _plan(data, majors, nodes, version, container.name)
            return last.content

        before, after = config_file.update(host, container.config_path, change)
        found = last
    path = container.config_path
    diffs = {"before_header": path, "after_header": path, "before": display(before), "after": display(after)}
    return Native(
        tuple(f"{path}: {item.after}" for item in found.changes if item.kind == "dev"),
        tuple([f"{path}: {note}" for note in found.notes] + [item.sentence for item in found.refusals]),
        (diffs,) if before != after else (),
        tuple({"container": container.name, "path": path, **asdict(item)} for item in found.changes),
    )


def node_facts(host: Host) -> dict[str, NodeFacts]:
    """Every NVIDIA node of the host, with its mode and owner."""
    folders = ("/dev", "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels")
    paths = [f"{folder}/{name}" for folder in folders for name in host.names(folder)]
    found = {}
    for path in paths:
        node, owner = nvidia_node(path), host.owner(path)
        if node is not None and not node.is_dir and owner is not None:
            uid, gid = owner
            is_char = host.device_numbers(path) is not None
            found[node.path] = NodeFacts(uid, gid, host.mode(path) or 0, is_char)
    return found


def pve_container_version(host: Host) -> str | None:
    """The version of Proxmox's container package; None where it is not known."""
    found = host.run(["dpkg-query", "-W", "-f", "${Version}", "pve-container"])
    return found.stdout.strip() or None if found.rc == 0 else None


def _plan(
    config: bytes, majors: CharacterMajors, nodes: dict[str, NodeFacts], version: str | None, name: str
) -> Migration:
    return migrate(config, majors, nodes, version, about=f"container {name}")
