"""Plain LXC: /var/lib/lxc/NAME/config, started and stopped by lxc-start and lxc-stop, or by the unit lxc@NAME.service.

A container that its unit has started is started by it again, so that systemd goes on supervising it. It is never
stopped by it: the unit's ExecStop is a bare lxc-stop, which kills after 60 s (lxc 5.0.2).
"""

from __future__ import annotations

import re

from .errors import stop
from .host_io import Host

FOLDER = "/var/lib/lxc"
START_FOLDER = "/run/gpuhost/start"
"""A file NAME in here lets lxc@NAME.service start although a roll holds lxc@.service: see workloads.HOLD_DROP_INS."""
START_S = 60.0
SOCKETS = "/proc/net/unix"

_UNIT_FOLDERS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
_INSTANCE = re.compile(r"lxc@(\S+)\.service")
_LIST_ACTIVE = [
    *("systemctl", "list-units", "--plain", "--no-legend", "--no-pager", "--full"),
    *("--state=active,activating,reloading", "lxc@*.service"),
]
# What Proxmox writes into the config that it generates at each start: update_lxc_config in pve-container.
_GENERATED = re.compile(rb"^lxc\.cgroup\.dir\.monitor = lxc\.monitor/[0-9]+$", re.MULTILINE)
# liblxc's command socket, one for each container that runs: @LXCPATH/NAME/command, or @lxc/HASH/command for long paths.
_COMMAND_SOCKET = re.compile(r" @(\S.*)/([^/\n]+)/command$", re.MULTILINE)


def config_path(name: str) -> str:
    """Where a container's config lies."""
    return f"{FOLDER}/{name}/config"


def configs(host: Host, vmids: set[str] | None) -> dict[str, bytes]:
    """Name to config bytes of every plain container. ``vmids``: Proxmox's containers, None where there is no Proxmox.

    Their files here are only generated ones; such a file also stays of a container that has left the node.
    """
    found = {name: host.read_bytes(config_path(name)) for name in host.names(FOLDER) if name not in (vmids or ())}
    return {
        name: data
        for name, data in found.items()
        if data is not None and (vmids is None or not name.isdecimal() or not _GENERATED.search(data))
    }


def supervised(host: Host) -> set[str]:
    """The containers that systemd runs, or is to run, as lxc@NAME.service."""
    if not any(host.exists(f"{folder}/lxc@.service") for folder in _UNIT_FOLDERS):
        return set()
    folder = _UNIT_FOLDERS[0]
    enabled = [host.names(f"{folder}/{name}") for name in host.names(folder) if name.endswith((".wants", ".requires"))]
    # Without an answer those that are enabled are known all the same.
    active = [line.split()[:1] for line in host.run(_LIST_ACTIVE).stdout.splitlines()]
    names = (_INSTANCE.fullmatch(name) for group in (*enabled, *active) for name in group)
    return {found[1] for found in names if found}


def running(host: Host) -> set[str]:
    """Names of the containers that run. Empty where LXC is not installed."""
    result = host.run(["lxc-ls", "-1", "--running"])
    if result.rc == 127:
        return set()
    if result.rc != 0:
        # "Nothing runs" would be the worst answer: the host would be rebooted under its containers.
        raise stop("host.module_failed", "lxc-ls --running", result.last_line)
    return set(result.stdout.split())


def sockets(host: Host) -> list[tuple[str, str]]:
    """(LXC path, name) of every container on the host that liblxc runs, whoever has started it."""
    return sorted(set(_COMMAND_SOCKET.findall(host.read(SOCKETS) or "")))


def start(host: Host, name: str, by_unit: bool) -> None:
    """Start a container. Raises Stop(workload.not_back)."""
    if by_unit:
        flag = f"{START_FOLDER}/{name}"
        host.write_atomic(flag, b"")
        try:
            result = host.run(["systemctl", "start", f"lxc@{name}.service"], timeout_s=120)
            _wait_until_running(host, name)  # the unit counts as started as soon as lxc-start is
        finally:
            host.remove(flag)
        step = f"Look at: journalctl -b -u lxc@{name}.service"
    else:
        result = host.run(["lxc-start", "-n", name], timeout_s=120)
        step = ""
    if result.rc != 0 or name not in running(host):
        raise stop("workload.not_back", f"container {name}", f"did not start: {result.last_line}", "running", step)


def _wait_until_running(host: Host, name: str) -> None:
    end = host.clock() + START_S
    while name not in running(host) and host.clock() < end:
        host.sleep(0.5)


def ask_to_stop(host: Host, name: str, by_unit: bool, timeout_s: int) -> str:
    """Ask a container to shut down and wait; what was said about it. It is not killed."""
    result = host.run(["lxc-stop", "-n", name, "--nokill", "-t", str(timeout_s)], timeout_s=timeout_s + 30)
    if by_unit and name not in running(host):
        # Where somebody has given the unit a Restart=, systemd must know that this was meant.
        host.run(["systemctl", "stop", f"lxc@{name}.service"], timeout_s=60)
    return result.last_line


def init_pid(host: Host, name: str) -> int | None:
    """The process number of a running container's init. Proxmox's containers answer, too: they are liblxc's."""
    words = host.run(["lxc-info", "-n", name, "-p", "-H"]).stdout.split()
    return int(words[0]) if words and words[0].isdecimal() and int(words[0]) > 1 else None
