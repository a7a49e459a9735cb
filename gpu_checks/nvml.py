"""libnvidia-ml: a GPU's clocks, temperature and power for the record, its peak, and who else uses it.

It needs less than CUDA does, so it often still answers once CUDA has failed. Nothing here raises for what NVML says.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from ctypes import c_int, c_void_p
from dataclasses import dataclass

from gpu_checks import nvml_activity
from gpu_checks.nvml_activity import Activity, Process
from gpu_checks.nvml_api import FUNCTION_NOT_FOUND, LIBRARY, SUCCESS, Library

CLOCK_SM, CLOCK_MEMORY = 1, 2
"""nvmlClockType_t."""

TEMPERATURE_GPU = 0
PSTATE_UNKNOWN = 32

THROTTLE_BITS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""nvmlClocksEventReason*."""

TRANSFERS_PER_CLOCK = 2
"""NVML counts the memory's clock so that two transfers go with each, for HBM, GDDR6 and GDDR7 alike."""


@dataclass(frozen=True)
class GpuState:
    """What a GPU does at this moment. None: NVML does not say it, or there is no NVML.

    ``power_w`` is an average over 1 s on Ampere and newer. ``utilisation`` in percent of NVML's last sample period
    (up to 1 s): copies without a kernel do not count in it.
    """

    pci_bus_id: str
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    pstate: str | None = None
    throttle_reasons: list[str] | None = None
    utilisation: int | None = None
    memory_utilisation: int | None = None
    memory_used_bytes: int | None = None


def reason_names(bits: int) -> list[str]:
    """The reasons in a mask, those that this version does not know by their number.

    >>> reason_names(0x41)
    ['gpu_idle', 'hw_thermal_slowdown']
    """
    known = [name for bit, name in THROTTLE_BITS.items() if bits & bit]
    rest = bits & ~sum(THROTTLE_BITS)
    return [*known, *([f"{rest:#x}"] if rest else [])]


def peak(memory_clock_mhz: int, bus_width_bits: int) -> float:
    """The memory's peak in GB/s (decimal).

    >>> peak(3201, 6144)
    4916.736
    """
    return memory_clock_mhz * bus_width_bits * TRANSFERS_PER_CLOCK / 8 / 1000


class Session:
    """NVML, started; or why it is not: ``number`` is what its init gave, None where there is no library."""

    def __init__(self, library: Library | None, number: int | None) -> None:
        """Keep what ``session`` has started."""
        self._loaded = library
        self.library = library if number == SUCCESS else None
        self.number = None if number == FUNCTION_NOT_FOUND else number
        self._handles: dict[str, c_void_p | None] = {}

    def error_text(self, number: int) -> str:
        """NVML's own words for one of its numbers; it has them before it is started, too."""
        return self._loaded.error_text(number) if self._loaded is not None else ""

    def handle(self, pci_bus_id: str) -> c_void_p | None:
        """NVML's handle of the GPU at this address; None where NVML does not have it."""
        if pci_bus_id not in self._handles:
            self._handles[pci_bus_id] = self.library.handle(pci_bus_id) if self.library else None
        return self._handles[pci_bus_id]

    def state(self, pci_bus_id: str) -> GpuState:
        """What the GPU at this address does now."""
        nvml, device = self.library, self.handle(pci_bus_id)
        if nvml is None or device is None:
            return GpuState(pci_bus_id)
        power = nvml.number("nvmlDeviceGetPowerUsage", device)
        pstate = nvml.number("nvmlDeviceGetPerformanceState", device)
        rates, memory = nvml.utilization(device), nvml.memory(device)
        return GpuState(
            pci_bus_id,
            sm_clock_mhz=nvml.number("nvmlDeviceGetClockInfo", device, c_int(CLOCK_SM)),
            memory_clock_mhz=nvml.number("nvmlDeviceGetClockInfo", device, c_int(CLOCK_MEMORY)),
            temperature_c=nvml.number("nvmlDeviceGetTemperature", device, c_int(TEMPERATURE_GPU)),
            power_w=None if power is None else power / 1000,  # milliwatts
            pstate=None if pstate is None or pstate == PSTATE_UNKNOWN else f"P{pstate}",
            throttle_reasons=self.throttle_reasons(pci_bus_id),
            utilisation=None if rates is None else int(rates.gpu),
            memory_utilisation=None if rates is None else int(rates.memory),
            memory_used_bytes=None if memory is None else int(memory.used),
        )

    def throttle_reasons(self, pci_bus_id: str) -> list[str] | None:
        """What holds the clocks of a GPU down at this moment; None where NVML does not say."""
        nvml, device = self.library, self.handle(pci_bus_id)
        if nvml is None or device is None:
            return None
        bits = nvml.clock_reasons(device)
        return None if bits is None else reason_names(bits)

    def peak_gb_s(self, pci_bus_id: str) -> float | None:
        """The memory's peak in GB/s from its highest clock and its bus width; None where NVML lacks one of them.

        None with MIG too: an instance has a part of the memory's channels, and NVML speaks of the whole GPU.
        """
        nvml, device = self.library, self.handle(pci_bus_id)
        if nvml is None or device is None or nvml.mig_on(device):
            return None
        clock = nvml.number("nvmlDeviceGetMaxClockInfo", device, c_int(CLOCK_MEMORY))
        width = nvml.number("nvmlDeviceGetMemoryBusWidth", device)
        return peak(clock, width) if clock and width else None

    def activity(self, pci_bus_ids: Sequence[str]) -> list[Activity]:
        """What these GPUs do, seen for 0.11 s in which this process may have nothing queued on them.

        Longer, up to 3 s, only where a GPU seems busy: what is seen may be the end of something that is gone.
        """
        found = {pci_bus_id: self.handle(pci_bus_id) for pci_bus_id in pci_bus_ids}
        devices = {pci_bus_id: device for pci_bus_id, device in found.items() if device is not None}
        return nvml_activity.sure(self.library, devices) if self.library is not None and devices else []

    def others_active(self, pci_bus_ids: Sequence[str]) -> str | None:
        """Who else uses one of these GPUs now, in words; None where nobody was seen to. As ``activity`` otherwise."""
        found = [each.sentence() for each in self.activity(pci_bus_ids)]
        return "; ".join(each for each in found if each is not None) or None

    def others(self, pci_bus_id: str) -> tuple[Process, ...]:
        """Who else has a context on a GPU, idle ones too, as far as it can be seen."""
        device = self.handle(pci_bus_id)
        if self.library is None or device is None:
            return ()
        return nvml_activity.others(self.library, device, nvml_activity.family(os.getpid()))


@contextlib.contextmanager
def session(library: str = LIBRARY) -> Iterator[Session]:
    """NVML, started for the time of the ``with``; a session without NVML answers None to everything."""
    try:
        found = Library(library)
    except OSError:
        yield Session(None, None)
        return
    number = found.ask("nvmlInit_v2")
    try:
        yield Session(found, number)
    finally:
        if number == SUCCESS:
            found.ask("nvmlShutdown")


def init(library: str = LIBRARY) -> int | None:
    """What nvmlInit says: 0 where nvidia-smi works, 18 where its version and the module's differ."""
    with session(library) as made:
        return made.number


def free_bytes(pci_bus_id: str, library: str = LIBRARY) -> int | None:
    """Free memory of the GPU at this address; None where NVML does not say."""
    with session(library) as made:
        nvml, device = made.library, made.handle(pci_bus_id)
        memory = nvml.memory(device) if nvml is not None and device is not None else None
        return None if memory is None else int(memory.free)
