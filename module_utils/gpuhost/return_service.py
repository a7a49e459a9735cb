"""``gpuhost-return.service``: there from drain to the roll's end, it brings a host back into service at its next boot.

It runs the host's own copy of this package, ``/var/lib/gpuhost/gpuhost.pyz``, with the system's Python.
"""

from __future__ import annotations

import base64

from .host_io import Host

PROGRAM = "/var/lib/gpuhost/gpuhost.pyz"
UNIT = "gpuhost-return.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
LINK = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
# KillMode=process: the containers that it starts stay when it ends.
UNIT_TEXT = f"""# Managed by gpuhost: there only while a kernel upgrade is under way.
[Unit]
Description=gpuhost: back into service, where a kernel upgrade was cut off or did not hold
After=network.target lxc-net.service lxc.service systemd-modules-load.service nvidia-persistenced.service
After=gpuhost-devices.service pve-cluster.service pve-guests.service
ConditionPathExists=/var/lib/gpuhost/roll.json

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 {PROGRAM} return
KillMode=process
TimeoutStartSec=3600

[Install]
WantedBy=multi-user.target
"""


def install(host: Host, program_base64: str, archive_path: str, archive_base64: str) -> None:
    """Put program, checks and unit on the host. Whatever boots it next makes systemd read the unit."""
    for path, text in ((PROGRAM, program_base64), (archive_path, archive_base64)):
        data = base64.b64decode(text)
        if data and host.read_bytes(path) != data:
            host.write_atomic(path, data, 0o755)
    if host.read(UNIT_FILE) != UNIT_TEXT:
        host.write_atomic(UNIT_FILE, UNIT_TEXT.encode())
    host.link(LINK, UNIT_FILE)


def is_installed(host: Host) -> bool:
    """Whether the unit is there."""
    return host.exists(UNIT_FILE)


def remove(host: Host) -> list[str]:
    """Take the unit away. The service may be what runs this: it goes on to its end.

    No daemon-reload: a service whose unit file is gone gets systemd's defaults by it, and is killed when it has run for
    90 s (tried: all was done, and the roll still open). Without its link the unit is not started again.
    """
    there = host.remove(LINK)
    there = host.remove(UNIT_FILE) or there
    return ["return service removed"] if there else []
