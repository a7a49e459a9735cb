"""What keeps MaxReadReq: a unit for every boot, and udev rules for what resets a GPU without a boot.

The driver sets MaxReadReq when it binds, and a GPU that was reset after an AER error has the values of that time again.
The kernel tells of both: ``bind`` with DRIVER (drivers/base/dd.c), and ``change`` with ERROR_EVENT=SUCCESSFUL_RECOVERY
for each function below the port that was recovered (drivers/pci/pci-driver.c, pci_uevent_ers; pcie/err.c). A recovery
sends no ``bind``.

A rule's RUN has to end at once: it queues an instance of a unit. SYSTEMD_WANTS would not do: before systemd 252 (Ubuntu
22.04 has 249) it starts a unit at a device's first event only (src/core/device.c, device_add_udev_wants).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

from . import unit_state
from .errors import DEFECTS, Stop, stop
from .host_io import Host
from .pcie_tree import DRIVER, Wishes
from .return_service import PROGRAM
from .tuning import FILE, Write

SETTINGS = "/var/lib/gpuhost/pcie.json"
"""What the host is to keep: the units' texts never change with it."""

_SYSTEMD = "/etc/systemd/system"
NAME = "gpu-pcie-tuning"
UNIT_NAME = f"{NAME}.service"
UNIT_FILE = f"{_SYSTEMD}/{UNIT_NAME}"
DEVICE_UNIT_FILE = f"{_SYSTEMD}/{NAME}@.service"
RULES_FILE = f"/etc/udev/rules.d/90-{NAME}.rules"

_HEADER = "# Managed by gpuhost: the role pcie_tuning.\n"
UNIT = f"""{_HEADER}[Unit]
Description=gpuhost: MaxReadReq of GPUs and of the bridges above them
After=nvidia-persistenced.service
ConditionPathExists={PROGRAM}
ConditionPathExists={SETTINGS}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/python3 {PROGRAM} pcie
TimeoutStartSec=60

[Install]
WantedBy=multi-user.target
"""
# No start limit: a driver may be bound again as often as somebody likes.
DEVICE_UNIT = f"""{_HEADER}[Unit]
Description=gpuhost: MaxReadReq of %i and of the bridges above it
After=nvidia-persistenced.service
ConditionPathExists={PROGRAM}
ConditionPathExists={SETTINGS}
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 {PROGRAM} pcie %i
TimeoutStartSec=60
"""
# restart: a run that has begun before the event may have read the old values.
_RUN = f'RUN+="/usr/bin/systemctl --no-block restart {NAME}@%k.service"'
RULES = f"""{_HEADER}# The driver has bound a GPU, and has set it up anew.
ACTION=="bind", SUBSYSTEM=="pci", DRIVER=="{DRIVER}", {_RUN}
# A GPU is back from a PCIe error (AER), with the values from before.
ACTION=="change", SUBSYSTEM=="pci", DRIVER=="{DRIVER}", ENV{{ERROR_EVENT}}=="SUCCESSFUL_RECOVERY", {_RUN}
"""
_WHY = "MaxReadReq stays after a boot, a rebind and a recovery"


def settings_text(wishes: Wishes) -> str:
    """The file of what is to be kept."""
    wanted = {
        "schema": "gpuhost/pcie",
        "max_read_request_bytes": wishes.max_read_request_bytes,
        "bridges": wishes.bridges,
        "devices": list(wishes.devices),
    }
    return json.dumps(wanted, indent=2) + "\n"


def settings(host: Host) -> Wishes | None:
    """What is to be kept; None where nothing is. Raises Stop where the file can't be read."""
    text = host.read(SETTINGS)
    if text is None:
        return None
    try:
        found = json.loads(text)
        return Wishes(
            int(found["max_read_request_bytes"]), bool(found["bridges"]), tuple(map(str, found["devices"]))
        ).checked()
    except (Stop, *DEFECTS) as error:
        raise stop("input.invalid", SETTINGS, str(error), "", "Run the role pcie_tuning again: it writes it") from error


def writes(wishes: Wishes) -> tuple[Write, ...]:
    """The files that keep what is wished for; where nothing is to be kept, they go, the other way round.

    The rules come last, since they start the rest. udev reads its rules again by itself when a file of them is new.
    """
    keep = wishes.max_read_request_bytes > 0
    found = (
        Write(FILE, SETTINGS, settings_text(wishes) if keep else None, "what the units set"),
        Write(unit_state.UNIT_FILE, UNIT_FILE, UNIT if keep else None, f"{_WHY}: at boot"),
        Write(unit_state.UNIT_FILE, DEVICE_UNIT_FILE, DEVICE_UNIT if keep else None, f"{_WHY}: for one GPU"),
        Write(unit_state.ENABLED, UNIT_NAME, "enabled" if keep else "disabled", "at every boot"),
        Write(FILE, RULES_FILE, RULES if keep else None, _WHY),
    )
    return found if keep else found[::-1]


def program_line(host: Host, wanted: Sequence[Write], program_base64: str, check: bool) -> str:
    """Bring the program that the units run up to date, where they are wanted; in words what changed, or nothing."""
    program = base64.b64decode(program_base64)
    is_wanted = any(item.object == UNIT_FILE and item.value is not None for item in wanted)
    if not is_wanted or not program or host.read_bytes(PROGRAM) == program:
        return ""
    if not check:
        host.write_atomic(PROGRAM, program, 0o755)
    return f"{PROGRAM}: brought up to date"
