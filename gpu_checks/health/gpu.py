"""What NVML says of one GPU's memory, recovery and clocks, and which of it is a fault: facts, then a pure judgement.

Sources: nvml.h; NVIDIA "GPU Memory Error Management" (row remapping; page retirement before Ampere).
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_int, c_uint, c_void_p
from dataclasses import dataclass

from gpu_checks.device_nodes import Reason
from gpu_checks.health.xids import Xid
from gpu_checks.nvml_api import SUCCESS, Library

CORRECTED, UNCORRECTED = 0, 1
"""nvmlMemoryErrorType_t."""

VOLATILE, AGGREGATE = 0, 1
"""nvmlEccCounterType_t: since the driver was loaded; of the GPU's whole life."""

RETIRED_SINGLE, RETIRED_DOUBLE, RETIRED_PENDING, RECOVERY_ACTION = 29, 30, 31, 230
"""NVML_FI_DEV_*."""

ACTIONS = {0: "none", 1: "reset the GPU", 2: "reboot the host", 3: "drain peer-to-peer", 4: "drain and reset the GPU"}
"""nvmlDeviceGpuRecoveryAction_t (driver 565 and newer)."""

SLOWED = {
    "sw_thermal_slowdown": "slowed down by the driver: too hot",
    "hw_thermal_slowdown": "slowed down by the hardware: too hot",
    "hw_power_brake_slowdown": "slowed down by the power supply's brake signal",
    "hw_slowdown": "slowed down by the hardware",
}
"""The throttle reasons that are a fault. A power cap, application clocks and idling are what somebody wants."""


@dataclass(frozen=True)
class Facts:
    """One GPU as NVML sees it. None: this GPU or this driver doesn't tell, which is not zero."""

    ecc_on: bool | None = None
    uncorrected: int | None = None
    corrected: int | None = None
    uncorrected_ever: int | None = None
    corrected_ever: int | None = None
    remapped_corrected: int | None = None
    remapped_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_single: int | None = None
    retired_double: int | None = None
    retired_pending: bool | None = None
    recovery_action: int | None = None


def _ecc(nvml: Library, device: c_void_p) -> bool | None:
    current, pending = c_uint(), c_uint()
    done = nvml.ask("nvmlDeviceGetEccMode", device, byref(current), byref(pending)) == SUCCESS
    return bool(current.value) if done else None


def _errors(nvml: Library, device: c_void_p, kind: int, counter: int) -> int | None:
    return nvml.long_number("nvmlDeviceGetTotalEccErrors", device, c_int(kind), c_int(counter))


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _yes(value: float | None) -> bool | None:
    return None if value is None else bool(value)


def ask(nvml: Library, device: c_void_p) -> Facts:
    """Everything that is asked about the health of one GPU."""
    rows = (c_uint(), c_uint(), c_uint(), c_uint())  # corrected, uncorrected, pending, failed
    remaps = nvml.ask("nvmlDeviceGetRemappedRows", device, *(byref(row) for row in rows)) == SUCCESS
    wanted = [(field, 0) for field in (RETIRED_SINGLE, RETIRED_DOUBLE, RETIRED_PENDING, RECOVERY_ACTION)]
    single, double, pending, action = nvml.fields(device, wanted)
    return Facts(
        ecc_on=_ecc(nvml, device),
        uncorrected=_errors(nvml, device, UNCORRECTED, VOLATILE),
        corrected=_errors(nvml, device, CORRECTED, VOLATILE),
        uncorrected_ever=_errors(nvml, device, UNCORRECTED, AGGREGATE),
        corrected_ever=_errors(nvml, device, CORRECTED, AGGREGATE),
        remapped_corrected=rows[0].value if remaps else None,
        remapped_uncorrected=rows[1].value if remaps else None,
        remap_pending=bool(rows[2].value) if remaps else None,
        remap_failed=bool(rows[3].value) if remaps else None,
        retired_single=_whole(single),
        retired_double=_whole(double),
        retired_pending=_yes(pending),
        recovery_action=_whole(action),
    )


def action_text(number: int) -> str:
    """What the driver asks for, in words."""
    return ACTIONS.get(number, f"action {number}, which this version does not know")


def slowed(reasons: Sequence[str]) -> list[str]:
    """The throttle reasons that are faults, in words; the general one only where no other says which.

    >>> slowed(["hw_slowdown", "hw_thermal_slowdown", "gpu_idle"])
    ['slowed down by the hardware: too hot']
    """
    found = [SLOWED[each] for each in SLOWED if each in reasons]
    exact = [each for each in found if each != SLOWED["hw_slowdown"]]
    return exact or found


def judge(facts: Facts, xids: Sequence[Xid], throttle: Sequence[str]) -> list[Reason]:
    """What is wrong with a GPU; what the driver itself asks for comes first."""
    found = []
    if facts.recovery_action:
        found.append(Reason("health.recovery_action", f"the driver asks: {action_text(facts.recovery_action)}"))
    memory = {
        "a row could not be remapped": facts.remap_failed,
        "a row waits to be remapped": facts.remap_pending,
        "a page waits to be retired": facts.retired_pending,
    }
    texts = [text for text, wrong in memory.items() if wrong]
    if texts:
        found.append(Reason("health.row_remap", ", ".join(texts)))
    if facts.uncorrected:
        text = f"{facts.uncorrected} uncorrectable memory errors since the driver was loaded"
        found.append(Reason("health.ecc", text))
    faults = [each.text for each in xids if each.fault]
    if faults:
        found.append(Reason("health.xid", "; ".join(faults)))
    held = slowed(throttle)
    if held:
        found.append(Reason("health.throttle", ", ".join(held)))
    return found
