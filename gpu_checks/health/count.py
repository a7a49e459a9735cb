"""Which GPUs should be here and are not: NVML against the PCI bus, the device nodes, and what the caller expects."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from ctypes import byref, c_int, c_void_p
from dataclasses import dataclass

from gpu_checks.device_access import Roots
from gpu_checks.device_nodes import Reason
from gpu_checks.health import pci
from gpu_checks.host_view import read
from gpu_checks.nvml_api import Library

LOST = {15: "it has fallen off the bus", 16: "it needs a reset"}
"""NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED: given for the handle, or only by what is asked with it."""

NO_PERMISSION = 4
"""NVML_ERROR_NO_PERMISSION: NVML counts GPUs that this place may not open, as a container that has some of a host's."""

DRIVER = "nvidia"
CAUSE = "health.gpu_missing"


@dataclass(frozen=True)
class Here:
    """A GPU as NVML counts it. ``device``: None where NVML refuses it, with its ``number``."""

    index: int
    address: str
    device: c_void_p | None
    number: int = 0


@dataclass(frozen=True)
class OnBus:
    """A GPU on the PCI bus. ``given``: whether its device node is here; None where its number is not known.

    ``expected``: whether this process should be able to use it; what was passed to a virtual machine, to another
    driver or to another container is not.
    """

    address: str
    driver: str | None
    given: bool | None
    excluded: bool
    expected: bool


def here(nvml: Library) -> list[Here]:
    """The GPUs that NVML counts, in its order; CUDA_VISIBLE_DEVICES does not matter to it."""
    found = []
    for index in range(nvml.number(("nvmlDeviceGetCount_v2", "nvmlDeviceGetCount")) or 0):
        device, number = nvml.by_index(index)
        address = nvml.bus_id(device) if device is not None else None
        if device is not None:
            number = nvml.ask("nvmlDeviceGetPerformanceState", device, byref(c_int()))
            device = None if number in LOST else device
        found.append(Here(index, address or f"index {index}", device, number))
    return found


def on_the_bus(roots: Roots) -> list[OnBus] | None:
    """The GPUs on the PCI bus, and whether each is given to us; None where the bus can't be seen."""
    gpus = pci.gpus(roots.sys)
    if gpus is None:
        return None
    # Only who sees the kernel's own threads is on the host itself, and should see every GPU.
    on_host = (read(os.path.join(roots.proc, "2/comm")) or "") == "kthreadd"
    found = []
    for gpu in gpus:
        text = read(os.path.join(roots.proc, "driver/nvidia/gpus", gpu.address, "information")) or ""
        fields = dict(re.findall(r"^([^:\n]+):\s*(\S+)\s*$", text, re.MULTILINE))
        minor, excluded = fields.get("Device Minor", ""), fields.get("GPU Excluded") == "Yes"
        given = os.path.exists(os.path.join(roots.dev, f"nvidia{minor}")) if minor.isdecimal() else None
        ours = gpu.driver in (DRIVER, None) and not excluded
        found.append(OnBus(gpu.address, gpu.driver, given, excluded, ours and (given or (on_host and given is None))))
    return found


def judge(gpus: Sequence[Here], bus: Sequence[OnBus] | None, expected: int | None) -> tuple[list[Reason], list[str]]:
    """What is missing, and what can't be said here."""
    faults: list[Reason] = []
    barred = [gpu.address for gpu in gpus if gpu.number == NO_PERMISSION]
    unseen = [f"NVML may not open {len(barred)} GPUs here: {', '.join(barred)}"] if barred else []
    gpus = [gpu for gpu in gpus if gpu.number != NO_PERMISSION]
    if any(gpu.device is not None and ":" not in gpu.address for gpu in gpus):
        bus = None  # NVML does not say where its GPUs are, so nothing can be compared
    seen = {gpu.address for gpu in gpus}
    lost = [each for each in bus or [] if each.address not in seen]
    dead = [gpu for gpu in gpus if gpu.device is None]
    for gpu in dead:
        which = f" (on the bus: {', '.join(each.address for each in lost if each.expected)})" if lost else ""
        state = LOST.get(gpu.number, "NVML does not open it")
        faults.append(Reason(CAUSE, f"GPU {gpu.address}{which}: {state}; NVML gave {gpu.number}"))
    for each in lost:
        state = f"bound to the driver {each.driver}" if each.driver else "without a driver"
        if not each.expected:
            unseen.append(f"GPU {each.address} is on the bus, {state}, and not given to this place")
        elif not dead:
            faults.append(Reason(CAUSE, f"GPU {each.address} is on the bus, {state}, and NVML does not show it"))
    if bus is None:
        unseen.append("GPUs on the bus: sysfs does not show it here, or NVML gives no addresses")
    working = sum(1 for gpu in gpus if gpu.device is not None)
    if expected is not None and working < expected and not faults:
        where = ", ".join(each.address for each in lost)
        text = f"NVML shows {working} GPUs, expected {expected}"
        faults.append(Reason(CAUSE, f"{text}{f'; on the bus besides: {where}' if where else ''}"))
    if not working and not faults:
        faults.append(Reason(CAUSE, "NVML shows no GPU"))
    return faults, unseen
