"""``gpuhost-gpu-state.service``: at every boot, before any container starts, what GPUs have forgotten is set again.

It is there only where something is declared, or where no nvidia-persistenced sets persistence mode. It runs the host's
own copy of this package, as the other units of gpuhost do.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from . import unit_state
from .documents import Finding
from .errors import stop
from .gpu_state import Declared
from .host_io import Host
from .persistenced import CONTAINER_UNITS
from .return_service import PROGRAM
from .return_service import UNIT as RETURN_UNIT
from .tuning import FILE, Write

UNIT = "gpuhost-gpu-state.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
SETTINGS = "/var/lib/gpuhost/gpu_declared.json"
"""What the unit sets: its text never changes with it."""
COMMAND = "gpu-state"
CODE = "gpu.boot_unit"
# Before gpuhost-devices.service: a MIG instance brings device nodes of its own. Before gpuhost-return.service: that has
# the host's lock for as long as it takes to start and measure everything, and this unit would fail waiting for it.
TEXT = f"""# Managed by gpuhost: the role gpu_runtime.
[Unit]
Description=gpuhost: persistence mode, power limits, clocks and MIG layout before containers start
After=systemd-modules-load.service systemd-udev-settle.service nvidia-persistenced.service
Before=gpuhost-devices.service {RETURN_UNIT} {" ".join(CONTAINER_UNITS)}
ConditionPathExists={PROGRAM}
ConditionPathExists={SETTINGS}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/python3 {PROGRAM} {COMMAND}
TimeoutStartSec=300

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Facts:
    """What of it is on the host."""

    unit: str | None = None
    settings: str | None = None
    enabled: bool = False
    program: bool = False


def read(host: Host) -> Facts:
    """From files; systemd's link says whether it is enabled."""
    enabled = UNIT in host.names("/etc/systemd/system/multi-user.target.wants")
    return Facts(host.read(UNIT_FILE), host.read(SETTINGS), enabled, host.exists(PROGRAM))


def settings_text(declared: Declared, persistence: bool) -> str:
    """The file of what is set at boot; the same text for the same wishes."""
    content = {"schema": "gpuhost/gpu-declared", "persistence": persistence, **asdict(declared)}
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def settings(host: Host) -> tuple[Declared, bool]:
    """What is to be set at boot. Raises Stop where the file can't be read."""
    try:
        found: dict[str, Any] = json.loads(host.read(SETTINGS) or "")
        return declared_of(found), bool(found["persistence"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise stop("input.invalid", SETTINGS, str(error), "", "Run gpuhost tune: it writes it") from error


def declared_of(found: dict[str, Any]) -> Declared:
    """From plain data, as the module's parameters and the file have it. Raises ValueError, TypeError, KeyError."""
    return Declared(
        float(found["power_limit_w"] or 0),
        tuple(int(item) for item in found["lock_clocks_mhz"] or ()),
        tuple(int(item) for item in found["application_clocks_mhz"] or ()),
        {str(key): tuple(map(str, names)) for key, names in (found["mig_layout"] or {}).items()},
    )


def wanted(facts: Facts, declared: Declared, persistence: bool, due: bool) -> tuple[list[Finding], list[Write]]:
    """``due``: whether the host needs the unit."""
    why = "A GPU forgets limits, clocks and MIG instances at every boot; containers must not start before they are set."
    text = settings_text(declared, persistence)
    if not due:
        gone = [
            Write(unit_state.ENABLED, UNIT, "disabled", "nothing is declared"),
            Write(unit_state.UNIT_FILE, UNIT_FILE, None, "nothing is declared"),
            Write(FILE, SETTINGS, None, "nothing is declared"),
        ]
        return [], gone if facts.unit is not None or facts.settings is not None else []
    writes = [
        Write(FILE, SETTINGS, text, "what is set at boot"),
        Write(unit_state.UNIT_FILE, UNIT_FILE, TEXT, "at boot, before containers start"),
        Write(unit_state.ENABLED, UNIT, "enabled", "at every boot"),
    ]
    expected = "enabled, with what is declared"
    good = facts.unit == TEXT and facts.settings == text and facts.enabled and facts.program
    observed = "as expected" if good else f"{UNIT} is not there, or not as declared"
    fix = "" if good else "gpuhost tune"
    severity = "good" if good else "p0_runtime"
    return [Finding(CODE, "gpu_state", severity, observed, expected, why, fix, UNIT_FILE)], writes  # type: ignore[arg-type]


def program_line(host: Host, wanted: Sequence[Write], program_base64: str, check: bool) -> str:
    """Bring the program that the unit runs up to date, where the unit is wanted; in words what changed, or nothing."""
    program = base64.b64decode(program_base64)
    is_wanted = any(item.object == UNIT_FILE and item.value is not None for item in wanted)
    if not is_wanted or not program or host.read_bytes(PROGRAM) == program:
        return ""
    if not check:
        host.write_atomic(PROGRAM, program, 0o755)
    return f"{PROGRAM}: brought up to date"
