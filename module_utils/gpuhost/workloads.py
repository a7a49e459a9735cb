"""What runs on the host: found, stopped and remembered, held off, and brought back. Plain LXC and Proxmox containers.

Virtual machines and everything else that holds a GPU are recognised, and block a drain (foreign_workloads): a host
whose workload can't be brought back must not be rebooted.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from . import containers, containers_lxc, containers_pve, units
from .containers import Container
from .documents import Blocker
from .errors import Stop, stop
from .foreign_workloads import gpu_processes, in_the_way
from .host_io import Host
from .rollfile import Roll, Workload, load, save

__all__ = ["gpu_processes", "in_the_way"]

STOP_FOR_REBOOT_S = 60
READY_S = 120
HOLD_FILE = "/var/lib/gpuhost/hold"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
HELD_UNITS = ("lxc.service", "lxc@.service", "apt-daily.service", "apt-daily-upgrade.service")
"""Containers, and apt's daily runs: they start at boot and hold dpkg's lock, or change packages under a trial."""
PVE_GUESTS = "pve-guests.service"
_FOLDER, _NAME = "/etc/systemd/system", "50-gpuhost-hold.conf"
HOLD_DROP_INS = tuple(f"{_FOLDER}/{unit}.d/{_NAME}" for unit in HELD_UNITS)
PVE_HOLD_DROP_IN = f"{_FOLDER}/{PVE_GUESTS}.d/{_NAME}"
HOLD_DROP_IN = b"""# Managed by gpuhost: between drain and hand back nothing of this starts by itself.
[Unit]
ConditionPathExists=!/var/lib/gpuhost/hold
"""
# One of the two has to be met: gate and hand back start single containers while the hold is there.
HOLD_DROP_IN_INSTANCES = f"""# Managed by gpuhost: between drain and hand back nothing of this starts by itself.
[Unit]
ConditionPathExists=|!/var/lib/gpuhost/hold
ConditionPathExists=|{containers_lxc.START_FOLDER}/%i
""".encode()
_ACTIVATE = "50-gpuhost-activate.conf"
# Proxmox's unit refuses a manual start, and tidies up before its own.
_WITHOUT_A_START = {
    "lxc.service": "[Service]\nExecStart=\nExecStart=/bin/true\n",
    PVE_GUESTS: "[Unit]\nRefuseManualStart=no\n[Service]\nExecStartPre=\nExecStart=\nExecStart=/bin/true\n",
}
GPU_NODE = re.compile(r"/dev/nvidia\d+")


def survey(host: Host) -> list[dict[str, Any]]:
    """Every container of this node in start order: name, engine, running, autostart, order, whether it gets a GPU."""
    running = containers.running(host)
    return [
        {
            "name": item.name,
            "engine": item.engine,
            "config_path": item.config_path,
            "running": item.name in running,
            "autostart": item.autostart,
            "order": item.order,
            "gpu": item.has_gpu,
            "gpu_nodes": [path for path in item.gpu_paths if GPU_NODE.fullmatch(path)],
        }
        for item in containers.containers(host)
    ]


def gpu_nodes(host: Host) -> tuple[str, ...]:
    """The GPU nodes that exist on the host."""
    return tuple(path for path in (f"/dev/{name}" for name in host.names("/dev")) if GPU_NODE.fullmatch(path))


def take_inventory(host: Host) -> tuple[Workload, ...]:
    """The workloads as they are now, in start order."""
    return tuple(
        Workload(
            item["engine"], item["name"], item["running"], item["autostart"], item["order"], _state(item["running"])
        )
        for item in survey(host)
    )


def remembered(host: Host, roll: Roll) -> tuple[Workload, ...]:
    """What drain has to stop and hand back has to start.

    Taken anew as long as the hold is not written: days may lie between a drain that failed and the next one. What an
    earlier drain has stopped and nobody has started again still counts as running.
    """
    if host.exists(HOLD_FILE) and roll.workloads:
        return roll.workloads
    ours = {item.name: item.kind for item in roll.workloads if item.was_running and item.state == "stopped"}
    return tuple(
        replace(item, was_running=True, kind=ours[item.name]) if item.name in ours and not item.was_running else item
        for item in take_inventory(host)
    )


def _state(running: bool) -> str:
    return "running" if running else "stopped"


def hold(host: Host) -> None:
    """Keep the container services from starting anything at boot, until ``release``.

    The file says in which boot this was: after the next one nobody may be there any more who would release it.
    """
    for unit, path in zip(HELD_UNITS, HOLD_DROP_INS, strict=True):
        host.write_atomic(path, HOLD_DROP_IN_INSTANCES if unit == "lxc@.service" else HOLD_DROP_IN)
    if containers_pve.is_here(host):
        host.write_atomic(PVE_HOLD_DROP_IN, HOLD_DROP_IN)
    text = f"A gpuhost roll is open: see /var/lib/gpuhost/roll.json\nboot {host.read_line(BOOT_ID)}\n"
    host.write_atomic(HOLD_FILE, text.encode())
    _reload(host)


def is_held(host: Host) -> bool:
    """Whether there is anything of a hold."""
    return any(map(host.exists, (HOLD_FILE, *HOLD_DROP_INS, PVE_HOLD_DROP_IN)))


def held_in_this_boot(host: Host) -> bool:
    """Whether the hold was written since the host has booted: whoever did that still has the roll in hand."""
    return f"boot {host.read_line(BOOT_ID)}" in (host.read(HOLD_FILE) or "").splitlines()


def release(host: Host) -> bool:
    """Lift the hold; whether there was one."""
    held = host.remove(HOLD_FILE)
    of_pve = [PVE_HOLD_DROP_IN] if host.exists(PVE_HOLD_DROP_IN) else []
    for path in (*HOLD_DROP_INS, *of_pve):
        held = host.remove(path) or held
        host.remove_empty_folder(path.rpartition("/")[0])
    if held:
        _reload(host)
        for unit in ("lxc.service", *([PVE_GUESTS] if containers_pve.is_here(host) else [])):
            _activate(host, unit)
    return held


def activate_drop_in(unit: str) -> str:
    """Where the drop-in lies that lets a unit become active without starting anything."""
    return f"/run/systemd/system/{unit}.d/{_ACTIVATE}"


def _activate(host: Host, unit: str) -> None:
    """Let systemd know that a unit's containers are up, so that a shutdown stops them (its ExecStop).

    The hold's condition kept it from starting at boot. A plain start now would start every container with autostart,
    also those that were stopped before the roll.
    """
    enabled = host.run(["systemctl", "is-enabled", unit]).rc == 0
    if not enabled or host.run(["systemctl", "is-active", unit]).rc == 0:
        return
    drop_in = activate_drop_in(unit)
    about = "# Managed by gpuhost, there for a moment only: active without starting any container.\n"
    host.write_atomic(drop_in, (about + _WITHOUT_A_START[unit]).encode())
    try:
        _reload(host)
        host.run(["systemctl", "start", unit], timeout_s=300)
    finally:
        host.remove(drop_in)
        host.remove_empty_folder(drop_in.rpartition("/")[0])
        _reload(host)


def _reload(host: Host) -> None:
    result = host.run(["systemctl", "daemon-reload"], timeout_s=120)
    if result.rc != 0:
        raise stop("host.module_failed", "systemctl daemon-reload", result.last_line)


def wait_until_ready(host: Host, names: list[str]) -> list[str]:
    """Wait until the init of each is up; lines about those that are not after READY_S. A model may take longer."""
    there = _by_name(host)
    late = containers.wait_until_ready(host, [there[name] for name in names if name in there], READY_S)
    return [f"container {item.name} has not started everything after {READY_S} s" for item in late]


def start_container(host: Host, name: str) -> bool:
    """Start a container as it ran before, if it does not run; whether it had to. Raises Stop(workload.not_back)."""
    roll = load(host)
    known = {item.name: item for item in roll.workloads} if roll is not None and roll.is_open else {}
    kind = known[name].kind if name in known else None
    return containers.start(host, _container(_by_name(host), name, kind))


def _by_name(host: Host) -> dict[str, Container]:
    return {item.name: item for item in containers.containers(host)}


def _container(there: dict[str, Container], name: str, kind: str | None) -> Container:
    """A container as drain has found it: what its unit ran then is its unit's again, although it is stopped now."""
    found = there.get(name)
    if found is None:
        of_pve = kind == containers.PVE
        path = containers_pve.config_path(name) if of_pve else containers_lxc.config_path(name)
        return Container(name, kind or containers.LXC, path, "pve" if of_pve else "lxc", b"")
    plain = (containers.LXC, containers.LXC_UNIT)
    return replace(found, engine=kind) if kind in plain and found.engine in plain else found


def drain(host: Host, roll: Roll, timeout_s: int) -> tuple[Roll, list[str]]:
    """Stop what runs, last started first. If one does not stop, what had been stopped starts again."""
    stopped: list[str] = []
    there = _by_name(host)
    running = containers.running(host)
    try:
        for item in reversed(roll.workloads):
            if item.name in running:
                containers.stop(host, _container(there, item.name, item.kind), timeout_s)
                stopped.append(item.name)
    except Stop as error:
        again = replace(roll, workloads=tuple(item for item in roll.workloads if item.name in stopped))
        down = {item.name for item in hand_back(host, again)[0].workloads if item.state == "stopped"}
        if not down:
            raise
        # The next drain, or the way back, still knows that these ran before.
        states = tuple(replace(item, state="stopped") if item.name in down else item for item in roll.workloads)
        save(host, replace(roll, workloads=states))
        observed = f"{error.blocker.observed}; does not run again: {', '.join(sorted(down))}"
        raise Stop(replace(error.blocker, observed=observed), error.documents) from error
    states = tuple(replace(item, state="stopped") for item in roll.workloads)
    return replace(roll, workloads=states), [f"container {name} stopped" for name in stopped]


def stop_for_reboot(host: Host, roll: Roll) -> list[str]:
    """A clean stop of what the gate has started. It is not in service: one that hangs does not hold the host."""
    try:
        return drain(host, roll, STOP_FOR_REBOOT_S)[1]
    except Stop as error:
        return [f"{error.blocker.object}: {error.blocker.observed}; rebooting all the same"]


def hand_back(host: Host, roll: Roll) -> tuple[Roll, list[str], list[Blocker]]:
    """Start again, in order, what ran before. One that does not start keeps none of the others down.

    Between two starts it waits as the first one's owner has set it (Proxmox's ``up=``, LXC's lxc.start.delay).
    """
    lines, states, failed = [], [], []
    wanted = [item.name for item in roll.workloads if item.was_running]
    if any(item.kind == containers.PVE for item in roll.workloads if item.was_running):
        units.prove_pve(host, containers_pve.QUORUM_S)  # at boot it takes its time; without it their starts fail
    try:
        there = _by_name(host)
    except (Stop, OSError):
        there = {}  # whatever can't be read now: each is known by its name, and its own start says what is wrong
    for item in roll.workloads:
        state = "back" if item.was_running else "stopped"
        container = _container(there, item.name, item.kind)
        try:
            if item.was_running and containers.start(host, container):
                lines.append(f"container {item.name} started")
                host.sleep(container.delay_s if item.name != wanted[-1] else 0)
        except Stop as error:
            failed.append(error.blocker)
            state = "stopped"
        states.append(replace(item, state=state))
    try:
        lines += wait_until_ready(host, [item.name for item in states if item.state == "back"])
    except (Stop, OSError) as error:
        lines.append(f"not known whether they have started everything: {error}")  # they run, and the hold has to go
    return replace(roll, workloads=tuple(states)), lines, failed
