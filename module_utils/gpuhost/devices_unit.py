"""``gpuhost-devices.service``: at every boot, before any container starts, nodes and, where asked for, device rules.

An unplanned reboot into another kernel heals itself by it, without a controller. It runs the host's own copy of this
package, as the return service does.
"""

from __future__ import annotations

import base64
from typing import Literal

from .host_io import Host
from .return_service import PROGRAM

AtBoot = Literal["reconcile", "nodes", "nothing"]

UNIT = "gpuhost-devices.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
LINK = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
_COMMANDS = {"reconcile": "devices --reconcile", "nodes": "devices"}


def unit_text(at_boot: Literal["reconcile", "nodes"]) -> str:
    """The unit.

    lxc-net.service: lxc.service and every lxc@NAME.service come after it. pve-cluster.service mounts /etc/pve. Whatever
    becomes of this service, the containers start: they are ordered after it, and do not need it.
    """
    return f"""# Managed by gpuhost: lxc_devices_at_boot says what it does.
[Unit]
Description=gpuhost: NVIDIA device nodes and container rules before containers start
After=systemd-modules-load.service systemd-udev-settle.service pve-cluster.service
Before=lxc-net.service lxc.service pve-guests.service docker.service containerd.service
ConditionPathExists={PROGRAM}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/python3 {PROGRAM} {_COMMANDS[at_boot]}
TimeoutStartSec=180

[Install]
WantedBy=multi-user.target
"""


def installed(host: Host) -> AtBoot:
    """What the host does at boot."""
    text = host.read(UNIT_FILE)
    if text is None or not host.exists(LINK):
        return "nothing"
    return "reconcile" if _COMMANDS["reconcile"] in text else "nodes"


def difference(host: Host, at_boot: AtBoot, program_base64: str) -> str:
    """In words what ``apply`` would change; empty where nothing differs."""
    if at_boot == "nothing":
        return f"{UNIT} removed" if host.exists(UNIT_FILE) else ""
    if host.read(UNIT_FILE) != unit_text(at_boot) or not host.exists(LINK):
        return f"{UNIT} installed: {at_boot} at every boot before containers start"
    program = base64.b64decode(program_base64)
    return f"{PROGRAM} brought up to date" if program and host.read_bytes(PROGRAM) != program else ""


def apply(host: Host, at_boot: AtBoot, program_base64: str) -> None:
    """Install or remove the unit, and keep its program up to date. The next boot is the first to run it."""
    if at_boot == "nothing":
        host.remove(LINK)
        host.remove(UNIT_FILE)
        return
    program = base64.b64decode(program_base64)
    if program and host.read_bytes(PROGRAM) != program:
        host.write_atomic(PROGRAM, program, 0o755)
    if host.read(UNIT_FILE) != unit_text(at_boot):
        host.write_atomic(UNIT_FILE, unit_text(at_boot).encode())
    host.link(LINK, f"../{UNIT}")
