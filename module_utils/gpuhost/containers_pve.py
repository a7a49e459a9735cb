"""Proxmox's containers: /etc/pve/lxc/VMID.conf of this node, started and stopped by pct.

Formats, exit statuses and rules are those of pve-container 6 (PVE::CLI::pct, PVE::API2::LXC::Status), pve-manager
(startall) and pve-ha-manager (PVE::HA::Config), read in their sources.
"""

from __future__ import annotations

import re

from . import lxc_config, units
from .documents import Blocker
from .errors import blocker, stop
from .host_io import Host

FOLDER = "/etc/pve/lxc"
"""pmxcfs's link to the folder of this very node."""
VM_FOLDER = "/etc/pve/qemu-server"
HA_RESOURCES = "/etc/pve/ha/resources.cfg"
START_S = 300
UNLOCK_S = 120.0
QUORUM_S = 180.0

_HA_SECTION = re.compile(r"(ct|vm):\s*(\d+)\s*")
# pct's own limit for the lock on the config (10 s), and what a task takes to begin and to be written down.
_TASK_S = 60


def is_here(host: Host) -> bool:
    """Whether this is a host of Proxmox VE."""
    return host.exists("/usr/bin/pmxcfs")


def config_path(vmid: str) -> str:
    """Where a container's config lies."""
    return f"{FOLDER}/{vmid}.conf"


def vmids(host: Host) -> set[str]:
    """The containers of this node. Copies and notes beside their configs are none."""
    return {str(vmid) for vmid in map(lxc_config.vmid_of, host.names(FOLDER)) if vmid is not None}


def configs(host: Host) -> dict[str, bytes]:
    """VMID to config bytes of every container of this node."""
    found = {vmid: host.read_bytes(config_path(vmid)) for vmid in vmids(host)}
    return {vmid: data for vmid, data in found.items() if data is not None}


def running(host: Host) -> set[str]:
    """The VMIDs that run. Raises Stop where nobody can say it: never "nothing runs"."""
    if not host.exists(units.MEMBERS):
        raise stop("lxc.no_quorum", "/etc/pve", units.pve_ready(host) or "is not mounted", "mounted and quorate")
    if not vmids(host):
        return set()
    result = host.run(["pct", "list"])
    if result.rc != 0:
        raise stop("host.module_failed", "pct list", result.last_line)
    rows = [line.split() for line in result.stdout.splitlines()[1:]]
    return {row[0] for row in rows if row[1:2] == ["running"]}


def runs(host: Host, vmid: str) -> bool:
    """Whether one container runs."""
    result = host.run(["pct", "status", vmid])
    if result.rc != 0 or not result.stdout.startswith("status: "):
        raise stop("host.module_failed", f"pct status {vmid}", result.last_line)
    return result.stdout.strip() == "status: running"


def start(host: Host, vmid: str) -> None:
    """Start a container; a task that has locked it gets some time to end. Raises Stop."""
    _prove_quorum(host)
    _wait_until_unlocked(host, vmid)
    result = host.run(["pct", "start", vmid], timeout_s=START_S)
    if result.rc != 0 and not runs(host, vmid):
        step = f"Look at: pct start {vmid} --debug; journalctl -b -u pve-container@{vmid}.service"
        raise stop("workload.not_back", f"container {vmid}", f"did not start: {result.last_line}", "running", step)


def ask_to_stop(host: Host, vmid: str, timeout_s: int) -> str:
    """Ask a container to shut down and wait; what was said about it. Without --forceStop pct kills nothing."""
    lock = lock_of(host, vmid)
    if lock:
        raise stop("lxc.locked", config_path(vmid), f"lock: {lock}", "no lock")
    return host.run(["pct", "shutdown", vmid, "--timeout", str(timeout_s)], timeout_s=timeout_s + _TASK_S).last_line


def lock_of(host: Host, vmid: str) -> str | None:
    """The ``lock:`` of a container's config, which pct refuses to act against."""
    return lxc_config.parse(host.read_bytes(config_path(vmid)) or b"", "pve").facts.lock


def _wait_until_unlocked(host: Host, vmid: str) -> None:
    """A nightly backup has a container that is stopped, too. ``mounted`` (pct mount) does not keep it from starting."""
    end = host.clock() + UNLOCK_S
    while (lock := lock_of(host, vmid)) not in (None, "mounted"):
        if host.clock() >= end:
            raise stop("lxc.locked", config_path(vmid), f"lock: {lock} for {UNLOCK_S:.0f} s and more", "no lock")
        host.sleep(2)


def _prove_quorum(host: Host) -> None:
    reason = units.pve_ready(host)
    if reason:
        raise stop("lxc.no_quorum", "/etc/pve", reason, "mounted and quorate")


def in_the_way(host: Host) -> list[Blocker]:
    """Why this node's guests could not be stopped or brought back."""
    if not is_here(host):
        return []
    reason = units.pve_ready(host)
    if reason:
        return [blocker("lxc.no_quorum", "/etc/pve", reason, "mounted and quorate")]
    found = []
    for kind, vmid in _ha_managed(host.read(HA_RESOURCES) or ""):
        if host.exists(f"{FOLDER if kind == 'ct' else VM_FOLDER}/{vmid}.conf"):
            step = f"Take it out of HA for the roll: ha-manager set {kind}:{vmid} --state ignored"
            observed = "is under Proxmox's HA manager, which would start it elsewhere or again"
            found.append(blocker("workload.blocks", f"{kind}:{vmid}", observed, "not managed, or ignored", step))
    for vmid in sorted(running(host), key=int):
        lock = lock_of(host, vmid)
        if lock:
            found.append(blocker("lxc.locked", config_path(vmid), f"runs, with lock: {lock}", "no lock"))
    return found


def _ha_managed(text: str) -> list[tuple[str, str]]:
    """(ct or vm, VMID) of every resource of resources.cfg that the HA manager acts on; ``ignored`` ones it leaves."""
    found: dict[tuple[str, str], str] = {}
    section = None
    for line in text.splitlines():
        header = _HA_SECTION.fullmatch(line)
        if header:
            section = (header[1], header[2])
            found[section] = "started"
        elif not line[:1].isspace():
            section = None
        elif section is not None and line.split()[:1] == ["state"]:
            found[section] = line.split()[-1]
    return [section for section, state in found.items() if state != "ignored"]
