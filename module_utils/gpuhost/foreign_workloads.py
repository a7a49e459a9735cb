"""What runs on a host and can't be stopped and brought back by this version: it blocks a drain."""

from __future__ import annotations

import re

from . import containers, containers_lxc, containers_pve
from .documents import Blocker
from .errors import blocker
from .host_io import Host

# Processes that hold a GPU because they serve it, not because they use it.
# Names as /proc/PID/comm has them: cut to 15 characters.
GPU_SERVICES = frozenset({"nvidia-persiste", "nv-hostengine", "nv-fabricmanage", "nvidia-imex", "dcgm-exporter"})
_LXC_CGROUP = re.compile(r"/lxc\.payload\.([^/\n]+)|/lxc/([^/\n]+)")
# liblxc appends a number where an old cgroup of the name is left.
_CGROUP_RETRY = re.compile(r"-[0-9]+\Z")
# Virtual machines and other containers: their parents' names in /proc/PID/comm.
FOREIGN_GUESTS = re.compile(r"qemu-system.*|kvm|containerd-shim.*|conmon")


def in_the_way(host: Host) -> list[Blocker]:
    """What runs here that this version can't stop and bring back."""
    found = containers_pve.in_the_way(host)
    ours = {item.name for item in containers.containers(host)}
    found += _foreign_containers(host, ours)
    for entry in host.names("/proc"):
        comm = host.read_line(f"/proc/{entry}/comm") if entry.isdigit() else ""
        if FOREIGN_GUESTS.fullmatch(comm) and _container_of(host, entry) is None:
            found.append(
                blocker("workload.blocks", f"process {entry} ({comm})", "a guest that this version can't stop")
            )
    for pid, name, container in gpu_processes(host):
        if container is None and name not in GPU_SERVICES:
            found.append(
                blocker("workload.blocks", f"process {pid} ({name})", "holds a GPU outside of any container", "none")
            )
        elif container is not None and not {container, _CGROUP_RETRY.sub("", container)} & ours:
            observed = f"holds a GPU in {container}, a container of somebody else"
            found.append(blocker("workload.blocks", f"process {pid} ({name})", observed, "none"))
    return found


def _foreign_containers(host: Host, ours: set[str]) -> list[Blocker]:
    """Containers that run beside ours: Incus's and LXD's (their cgroups are named like plain LXC's), users' own."""
    found = []
    for folder, name in containers_lxc.sockets(host):
        if folder == containers_lxc.FOLDER and name in ours:
            continue
        observed = "runs, and its config is gone"
        if folder != containers_lxc.FOLDER:
            observed = f"runs from {folder}: a container of Incus, of LXD, or of another LXC path"
        found.append(blocker("workload.blocks", f"container {name}", observed, "containers of /var/lib/lxc or Proxmox"))
    return found


def gpu_processes(host: Host) -> list[tuple[int, str, str | None]]:
    """(pid, command name, container) of every process that has an NVIDIA device node open."""
    return [
        (int(pid), host.read_line(f"/proc/{pid}/comm"), _container_of(host, pid))
        for pid in host.names("/proc")
        if pid.isdigit() and host.holds_open(int(pid), "/dev/nvidia")
    ]


def _container_of(host: Host, pid: str) -> str | None:
    """The container that a process runs in, by its cgroup; of nested ones the outermost."""
    match = _LXC_CGROUP.search(host.read(f"/proc/{pid}/cgroup") or "")
    return (match.group(1) or match.group(2)) if match else None
