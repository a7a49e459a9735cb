"""Kinds of tuning that live in a GPU until the next reboot, set and read back by nvidia-smi.

The object is a GPU's PCI address and, for people, what is set. Whether a value was taken is seen by reading it back:
nvidia-smi answers some refusals with "Treating as warning and moving on" and exit status 0 (nvidia-smi's own texts).
"""

from __future__ import annotations

import json
from collections.abc import Callable

from . import gpu_query, mig
from .errors import stop
from .foreign_workloads import GPU_SERVICES, gpu_processes
from .host_io import Host
from .tuning import KINDS, Kind, Write

PERSISTENCE = "gpu_persistence"
"""``on`` or ``off``."""
POWER = "gpu_power_limit"
"""Watts."""
LOCKED = "gpu_locked_clocks"
"""``MIN,MAX`` in MHz of the graphics clock, or ``none``."""
APPLICATION = "gpu_application_clocks"
"""``MEMORY,GRAPHICS`` in MHz."""
MIG = "gpu_mig_layout"
"""Profile names with commas, sorted; empty for no instance."""

LOCKED_RECORD = "/run/gpuhost/gpu_locked_clocks.json"
"""No driver says which range a clock is locked to. What was set is on record here; /run is gone with a boot, too."""
_DRIVER = "/sys/module/nvidia"
_SET_S = 60.0
_MIG_S = 120.0


def _set(host: Host, address: str, *words: str, limit_s: float = _SET_S) -> None:
    argv = ["nvidia-smi", *words] if words[0] == "mig" else ["nvidia-smi", "-i", address, *words]
    result = host.run(argv, timeout_s=limit_s)
    said = [line.strip() for line in (result.stdout + "\n" + result.stderr).splitlines() if line.strip()]
    said = [line for line in said if not line.startswith("All done")]
    refused = [line for line in said if "not supported" in line.lower() or "treating as warning" in line.lower()]
    if result.rc != 0 or refused:
        text = (refused or said or [result.last_line])[0]
        raise stop("host.module_failed", address, f"nvidia-smi {' '.join(words)}: {text}")


def _read_persistence(host: Host, address: str) -> str | None:
    (mode,) = gpu_query.ask_one(host, address, "persistence_mode")
    return {"Enabled": "on", "Disabled": "off"}.get(mode or "")


def _write_persistence(host: Host, address: str, value: str | None) -> None:
    _set(host, address, "-pm", "1" if value == "on" else "0")


def _read_power(host: Host, address: str) -> str | None:
    return gpu_query.ask_one(host, address, "power.limit")[0]


def _write_power(host: Host, address: str, value: str | None) -> None:
    _set(host, address, "-pl", value or "")


def _same_number(seen: str | None, wanted: str | None) -> bool:
    return seen is not None and wanted is not None and abs(float(seen) - float(wanted)) < 0.5


def _read_application(host: Host, address: str) -> str | None:
    found = gpu_query.ask_one(host, address, "clocks.applications.memory", "clocks.applications.graphics")
    return ",".join(item for item in found if item) if all(found) else None


def _write_application(host: Host, address: str, value: str | None) -> None:
    _set(host, address, *(["-ac", value] if value else ["-rac"]))


def locked_clocks(host: Host) -> dict[str, str]:
    """Address to ``MIN,MAX`` of every GPU whose clocks gpuhost has locked since this driver was loaded."""
    try:
        record = json.loads(host.read(LOCKED_RECORD) or "null")
    except ValueError:
        return {}
    # A driver that was loaded anew has forgotten them: its folder in /sys is another one.
    if not isinstance(record, dict) or record.get("driver") != host.inode(_DRIVER):
        return {}
    found = record.get("gpus")
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _read_locked(host: Host, address: str) -> str | None:
    return locked_clocks(host).get(address, "none")


def _write_locked(host: Host, address: str, value: str | None) -> None:
    record = locked_clocks(host)
    if value in (None, "none"):
        _set(host, address, "-rgc")
        record.pop(address, None)
    else:
        _set(host, address, "-lgc", value)
        record[address] = value
    text = json.dumps({"driver": host.inode(_DRIVER), "gpus": record}, indent=2)
    host.write_atomic(LOCKED_RECORD, (text + "\n").encode(), 0o600)


def users(host: Host) -> list[str]:
    """The processes that use a GPU of this host, whichever: CUDA opens all that it may see."""
    return [f"{pid} ({name})" for pid, name, _ in gpu_processes(host) if name not in GPU_SERVICES]


def _instances(host: Host, address: str) -> list[mig.Instance]:
    result = host.run(["nvidia-smi", "mig", "-i", address, "-lgi"])
    return list(mig.parse_instances(result.stdout))


def _read_mig(host: Host, address: str) -> str | None:
    return mig.layout([item.name for item in _instances(host, address)])


def _write_mig(host: Host, address: str, value: str | None) -> None:
    """Make what is missing and remove what is more. Never under a user, and never the mode itself."""
    mode = gpu_query.ask_one(host, address, "mig.mode.current")[0]
    if mode != "Enabled":
        raise stop("host.module_failed", address, f"MIG mode is {mode or 'not known'}: it is never switched here")
    busy = users(host)
    if busy:
        raise stop("host.module_failed", address, f"GPUs are in use: {', '.join(busy[:3])}")
    have = _instances(host, address)
    missing, more = mig.missing_and_more([item.name for item in have], mig.names_of(value or ""))
    for item in have:
        if item.name in more:
            more.remove(item.name)
            _set(host, address, "mig", "-i", address, "-dci", "-gi", str(item.id), limit_s=_MIG_S)
            _set(host, address, "mig", "-i", address, "-dgi", "-gi", str(item.id), limit_s=_MIG_S)
    if missing:
        _set(host, address, "mig", "-i", address, "-cgi", ",".join(missing), "-C", limit_s=_MIG_S)


def _same_layout(seen: str | None, wanted: str | None) -> bool:
    return mig.layout(mig.names_of(seen or "")) == mig.layout(mig.names_of(wanted or ""))


_NAMES = {
    PERSISTENCE: "persistence mode",
    POWER: "power limit",
    LOCKED: "locked clocks",
    APPLICATION: "application clocks",
    MIG: "MIG layout",
}


def write_of(kind: str, address: str, value: str, why: str) -> Write:
    """A write to a GPU."""
    return Write(kind, f"{address} {_NAMES[kind]}", value, f"{_NAMES[kind]} {why}")


def _kind(
    read: Callable[[Host, str], str | None],
    write: Callable[[Host, str, str | None], None],
    same: Callable[[str | None, str | None], bool] = lambda seen, wanted: seen == wanted,
) -> Kind:
    """A kind whose functions take the address alone."""
    return Kind(
        lambda host, about: read(host, about.split()[0]),
        lambda host, about, value: write(host, about.split()[0], value),
        same,
    )


KINDS[PERSISTENCE] = _kind(_read_persistence, _write_persistence)
KINDS[POWER] = _kind(_read_power, _write_power, _same_number)
KINDS[LOCKED] = _kind(_read_locked, _write_locked, lambda seen, wanted: (seen or "none") == (wanted or "none"))
KINDS[APPLICATION] = _kind(_read_application, _write_application)
KINDS[MIG] = _kind(_read_mig, _write_mig, _same_layout)
