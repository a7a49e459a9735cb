"""What runs on the host: found, stopped and remembered, held off, and brought back. Plain LXC in this version.

Proxmox's containers, virtual machines and everything else that holds a GPU are recognised, and block a drain: a host
whose workload can't be brought back must not be rebooted.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from . import lxc_config
from .documents import Blocker
from .errors import Stop, blocker, stop
from .host_io import Host
from .rollfile import Roll, Workload

LXC_FOLDER = "/var/lib/lxc"
STOP_FOR_REBOOT_S = 60
HOLD_FILE = "/var/lib/gpuhost/hold"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
HELD_UNITS = ("lxc.service", "lxc@.service", "apt-daily.service", "apt-daily-upgrade.service")
"""Containers, and apt's daily runs: they start at boot and hold dpkg's lock, or change packages under a trial."""
HOLD_DROP_INS = tuple(f"/etc/systemd/system/{unit}.d/50-gpuhost-hold.conf" for unit in HELD_UNITS)
HOLD_DROP_IN = b"""# Managed by gpuhost: between drain and hand back nothing of this starts by itself.
[Unit]
ConditionPathExists=!/var/lib/gpuhost/hold
"""
# Processes that hold a GPU because they serve it, not because they use it.
# Names as /proc/PID/comm has them: cut to 15 characters.
GPU_SERVICES = frozenset({"nvidia-persiste", "nv-hostengine", "nv-fabricmanage", "nvidia-imex", "dcgm-exporter"})
GPU_NODE = re.compile(r"/dev/nvidia\d+")
_LXC_CGROUP = re.compile(r"/lxc\.payload\.([^/\n]+)|/lxc/([^/\n]+)")
# Virtual machines and other containers: their parents' names in /proc/PID/comm.
FOREIGN_GUESTS = re.compile(r"qemu-system.*|kvm|containerd-shim.*|conmon")


def survey(host: Host) -> list[dict[str, Any]]:
    """Every plain LXC container of this node: name, running, autostart, start order, whether it mounts a GPU."""
    running = running_containers(host)
    found = []
    for name, config in container_configs(host).items():
        document = lxc_config.parse(config, "lxc")
        nodes = {mount.node.path for mount in document.mounts if mount.node and mount.section == lxc_config.MAIN}
        found.append(
            {
                "name": name,
                "engine": "lxc",
                "config_path": config_path(name),
                "running": name in running,
                "autostart": bool(document.facts.autostart),
                "order": document.facts.order or 0,
                "gpu": bool(nodes),
                "gpu_nodes": sorted(path for path in nodes if GPU_NODE.fullmatch(path)),
            }
        )
    return found


def gpu_nodes(host: Host) -> tuple[str, ...]:
    """The GPU nodes that exist on the host."""
    return tuple(path for path in (f"/dev/{name}" for name in host.names("/dev")) if GPU_NODE.fullmatch(path))


def config_path(name: str) -> str:
    """Where a plain LXC container's config lies."""
    return f"{LXC_FOLDER}/{name}/config"


def container_configs(host: Host) -> dict[str, bytes]:
    """Name to config bytes of every plain LXC container."""
    configs = {name: host.read_bytes(config_path(name)) for name in host.names(LXC_FOLDER)}
    return {name: data for name, data in configs.items() if data is not None}


def running_containers(host: Host) -> set[str]:
    """Names of the containers that run. Empty where LXC is not installed."""
    result = host.run(["lxc-ls", "-1", "--running"])
    if result.rc == 127:
        return set()
    if result.rc != 0:
        # "Nothing runs" would be the worst answer: the host would be rebooted under its containers.
        raise stop("host.module_failed", "lxc-ls --running", result.last_line)
    return set(result.stdout.split())


def in_the_way(host: Host) -> list[Blocker]:
    """What runs here that this version can't stop and bring back."""
    found = []
    if host.names("/etc/pve/lxc") or host.names("/etc/pve/qemu-server"):
        found.append(blocker("workload.blocks", "/etc/pve", "guests of Proxmox VE", "plain LXC containers only"))
    for entry in host.names("/proc"):
        comm = host.read_line(f"/proc/{entry}/comm") if entry.isdigit() else ""
        in_container = _LXC_CGROUP.search(host.read(f"/proc/{entry}/cgroup") or "") if comm else None
        if FOREIGN_GUESTS.fullmatch(comm) and not in_container:
            found.append(
                blocker("workload.blocks", f"process {entry} ({comm})", "a guest that this version can't stop")
            )
    for pid, name, container in gpu_processes(host):
        if container is None and name not in GPU_SERVICES:
            found.append(
                blocker("workload.blocks", f"process {pid} ({name})", "holds a GPU outside of any container", "none")
            )
    return found


def gpu_processes(host: Host) -> list[tuple[int, str, str | None]]:
    """(pid, command name, container) of every process that has an NVIDIA device node open."""
    found = []
    for pid in host.names("/proc"):
        if not pid.isdigit() or not host.holds_open(int(pid), "/dev/nvidia"):
            continue
        match = _LXC_CGROUP.search(host.read(f"/proc/{pid}/cgroup") or "")
        container = (match.group(1) or match.group(2)) if match else None
        found.append((int(pid), host.read_line(f"/proc/{pid}/comm"), container))
    return found


def take_inventory(host: Host) -> tuple[Workload, ...]:
    """The workloads as they are now, in start order."""
    items = [
        Workload("lxc", item["name"], item["running"], item["autostart"], item["order"], _state(item["running"]))
        for item in survey(host)
    ]
    return tuple(sorted(items, key=lambda item: (item.order, item.name)))


def remembered(host: Host, roll: Roll) -> tuple[Workload, ...]:
    """What drain has to stop and hand back has to start.

    Taken anew as long as the hold is not written: days may lie between a drain that failed and the next one. What an
    earlier drain has stopped and nobody has started again still counts as running.
    """
    if host.exists(HOLD_FILE) and roll.workloads:
        return roll.workloads
    ours = {item.name for item in roll.workloads if item.was_running and item.state == "stopped"}
    return tuple(replace(item, was_running=item.was_running or item.name in ours) for item in take_inventory(host))


def _state(running: bool) -> str:
    return "running" if running else "stopped"


def hold(host: Host) -> None:
    """Keep the container services from starting anything at boot, until ``release``.

    The file says in which boot this was: after the next one nobody may be there any more who would release it.
    """
    for path in HOLD_DROP_INS:
        host.write_atomic(path, HOLD_DROP_IN)
    text = f"A gpuhost roll is open: see /var/lib/gpuhost/roll.json\nboot {host.read_line(BOOT_ID)}\n"
    host.write_atomic(HOLD_FILE, text.encode())
    _reload(host)


def is_held(host: Host) -> bool:
    """Whether there is anything of a hold."""
    return any(map(host.exists, (HOLD_FILE, *HOLD_DROP_INS)))


def held_in_this_boot(host: Host) -> bool:
    """Whether the hold was written since the host has booted: whoever did that still has the roll in hand."""
    return f"boot {host.read_line(BOOT_ID)}" in (host.read(HOLD_FILE) or "").splitlines()


def release(host: Host) -> bool:
    """Lift the hold; whether there was one."""
    held = host.remove(HOLD_FILE)
    for path in HOLD_DROP_INS:
        held = host.remove(path) or held
        host.remove_empty_folder(path.rpartition("/")[0])
    if held:
        _reload(host)
        # The condition kept the unit from starting at boot. Without it nobody stops the containers at a shutdown.
        if host.run(["systemctl", "is-enabled", "lxc.service"]).rc == 0:
            host.run(["systemctl", "start", "lxc.service"], timeout_s=300)
    return held


def _reload(host: Host) -> None:
    result = host.run(["systemctl", "daemon-reload"], timeout_s=120)
    if result.rc != 0:
        raise stop("host.module_failed", "systemctl daemon-reload", result.last_line)


def stop_container(host: Host, name: str, timeout_s: int) -> None:
    """Ask a container to shut down and wait. It is not killed: raises Stop(workload.not_stopped)."""
    result = host.run(["lxc-stop", "-n", name, "--nokill", "-t", str(timeout_s)], timeout_s=timeout_s + 30)
    if name in running_containers(host):
        raise stop("workload.not_stopped", f"container {name}", f"still runs after {timeout_s} s ({result.last_line})")


def start_container(host: Host, name: str) -> bool:
    """Start a container if it does not run; whether it had to. Raises Stop(workload.not_back)."""
    if name in running_containers(host):
        return False
    result = host.run(["lxc-start", "-n", name], timeout_s=120)
    if result.rc != 0 or name not in running_containers(host):
        raise stop("workload.not_back", f"container {name}", f"did not start: {result.last_line}", "running")
    return True


def drain(host: Host, roll: Roll, timeout_s: int) -> tuple[Roll, list[str]]:
    """Stop what runs, last started first. If one does not stop, what had been stopped starts again."""
    stopped: list[str] = []
    try:
        for item in reversed(roll.workloads):
            if item.name in running_containers(host):
                stop_container(host, item.name, timeout_s)
                stopped.append(item.name)
    except Stop:
        hand_back(host, replace(roll, workloads=tuple(item for item in roll.workloads if item.name in stopped)))
        raise
    states = tuple(replace(item, state="stopped") for item in roll.workloads)
    return replace(roll, workloads=states), [f"container {name} stopped" for name in stopped]


def stop_for_reboot(host: Host, roll: Roll) -> list[str]:
    """A clean stop of what the gate has started. It is not in service: one that hangs does not hold the host."""
    try:
        return drain(host, roll, STOP_FOR_REBOOT_S)[1]
    except Stop as error:
        return [f"{error.blocker.object}: {error.blocker.observed}; rebooting all the same"]


def hand_back(host: Host, roll: Roll) -> tuple[Roll, list[str], list[Blocker]]:
    """Start again, in order, what ran before. One that does not start keeps none of the others down."""
    lines, states, failed = [], [], []
    for item in roll.workloads:
        state = "back" if item.was_running else "stopped"
        try:
            if item.was_running and start_container(host, item.name):
                lines.append(f"container {item.name} started")
        except Stop as error:
            failed.append(error.blocker)
            state = "stopped"
        states.append(replace(item, state=state))
    return replace(roll, workloads=tuple(states)), lines, failed
