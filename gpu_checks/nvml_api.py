"""The functions of libnvidia-ml that the checks call, through ctypes: each optional, an older driver has fewer.

Structures and numbers: nvml.h of driver 580; their shapes have not changed since 470, for old functions never.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import Structure, Union, byref, c_char_p, c_double, c_int, c_longlong, c_uint, c_ulonglong, c_void_p
from typing import Any

LIBRARY = "libnvidia-ml.so.1"

# nvmlReturn_t
SUCCESS, NOT_SUPPORTED, INSUFFICIENT_SIZE, FUNCTION_NOT_FOUND = 0, 3, 7, 13

NOT_AVAILABLE = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE, for a number of 64 bits."""

PROCESSES_KEPT = 256
"""Room for a GPU's processes; one that has more is busy beyond doubt."""

TEXT_BYTES = 96
"""NVML_DEVICE_UUID_V2_BUFFER_SIZE, the longest text that is asked for here."""


class Memory(Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class Utilization(Structure):
    """nvmlUtilization_t: percent of NVML's last sample period, which is 1/6 s to 1 s long."""

    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class ProcessInfo(Structure):
    """nvmlProcessInfo_t, of the functions _v2 and _v3."""

    _fields_ = (("pid", c_uint), ("used", c_ulonglong), ("gpu_instance", c_uint), ("compute_instance", c_uint))


class ProcessSample(Structure):
    """nvmlProcessUtilizationSample_t; ``time`` in microseconds since 1970."""

    _fields_ = (
        *(("pid", c_uint), ("time", c_ulonglong), ("sm", c_uint), ("memory", c_uint)),
        *(("encoder", c_uint), ("decoder", c_uint)),
    )


class _Value(Union):
    """nvmlValue_t."""

    _fields_ = (
        *(("double", c_double), ("uint", c_uint), ("ulong", ctypes.c_ulong), ("ulonglong", c_ulonglong)),
        *(("longlong", c_longlong), ("int", c_int), ("ushort", ctypes.c_ushort)),
    )


_KINDS = ("double", "uint", "ulong", "ulonglong", "longlong", "int", "ushort")
"""nvmlValueType_t: its number says which of the union's members counts."""


class FieldValue(Structure):
    """nvmlFieldValue_t."""

    _fields_ = (
        *(("field", c_uint), ("scope", c_uint), ("time", c_longlong), ("latency", c_longlong)),
        *(("kind", c_uint), ("result", c_uint), ("value", _Value)),
    )


class PciInfo(Structure):
    """nvmlPciInfo_t of nvmlDeviceGetPciInfo_v3."""

    _fields_ = (
        *(("legacy", ctypes.c_char * 16), ("domain", c_uint), ("bus", c_uint), ("device", c_uint)),
        *(("device_id", c_uint), ("subsystem_id", c_uint), ("bus_id", ctypes.c_char * 32)),
    )


def address_of(pci_bus_id: str) -> str:
    """A bus address as sysfs writes it; NVML gives the domain eight digits, CUDA four, some with capitals.

    >>> address_of("00000000:C1:00.0")
    '0000:c1:00.0'
    """
    domain, _, rest = pci_bus_id.strip().lower().partition(":")
    return f"{domain.lstrip('0'):0>4}:{rest}"


class Library:
    """libnvidia-ml, loaded. Raises OSError where it can't be. Nothing else here raises for what NVML says."""

    def __init__(self, library: str = LIBRARY) -> None:
        """Load it as every other program does."""
        self._nvml = ctypes.CDLL(library)

    def ask(self, names: str | Sequence[str], *arguments: Any) -> int:
        """Call the first of these functions that there is (newest first), with ctypes values; NVML's number."""
        for name in (names,) if isinstance(names, str) else names:
            found = getattr(self._nvml, name, None)
            if found is not None:
                return int(found(*arguments))
        return FUNCTION_NOT_FOUND

    def number(self, names: str | Sequence[str], *arguments: Any) -> int | None:
        """An unsigned int that the function leaves behind its other arguments; None where it gives none."""
        value = c_uint()
        return value.value if self.ask(names, *arguments, byref(value)) == SUCCESS else None

    def long_number(self, names: str | Sequence[str], *arguments: Any) -> int | None:
        """As ``number``, of 64 bits."""
        value = c_ulonglong()
        return value.value if self.ask(names, *arguments, byref(value)) == SUCCESS else None

    def text(self, names: str | Sequence[str], *arguments: Any) -> str | None:
        """A text, by functions that take a buffer and its size last."""
        buffer = ctypes.create_string_buffer(TEXT_BYTES)
        done = self.ask(names, *arguments, buffer, c_uint(TEXT_BYTES)) == SUCCESS
        return buffer.value.decode("utf-8", "replace") if done else None

    def error_text(self, number: int) -> str:
        """NVML's own words for one of its numbers; empty where it has none."""
        function = getattr(self._nvml, "nvmlErrorString", None)
        if function is None:
            return ""
        function.restype = c_char_p
        said = function(c_int(number))
        return said.decode("ascii", "replace") if said else ""

    def handle(self, pci_bus_id: str) -> c_void_p | None:
        """The GPU at an address."""
        device = c_void_p()
        done = self.ask("nvmlDeviceGetHandleByPciBusId_v2", c_char_p(pci_bus_id.encode()), byref(device)) == SUCCESS
        return device if done else None

    def by_index(self, index: int) -> tuple[c_void_p | None, int]:
        """The GPU at an index, and NVML's number: 15 says that the GPU is lost."""
        device = c_void_p()
        number = self.ask("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(device))
        return (device if number == SUCCESS else None), number

    def bus_id(self, device: c_void_p) -> str | None:
        """A GPU's address, as sysfs writes it."""
        info = PciInfo()
        if self.ask("nvmlDeviceGetPciInfo_v3", device, byref(info)) != SUCCESS:
            return None
        return address_of(info.bus_id.decode("ascii", "replace"))

    def memory(self, device: c_void_p) -> Memory | None:
        """Memory in bytes."""
        memory = Memory()
        return memory if self.ask("nvmlDeviceGetMemoryInfo", device, byref(memory)) == SUCCESS else None

    def utilization(self, device: c_void_p) -> Utilization | None:
        """How busy the GPU was in NVML's last sample period; None on MIG and where it isn't told."""
        rates = Utilization()
        return rates if self.ask("nvmlDeviceGetUtilizationRates", device, byref(rates)) == SUCCESS else None

    def mig_on(self, device: c_void_p) -> bool:
        """Whether the GPU is cut into MIG instances."""
        current, pending = c_uint(), c_uint()
        done = self.ask("nvmlDeviceGetMigMode", device, byref(current), byref(pending)) == SUCCESS
        return done and bool(current.value)

    def clock_reasons(self, device: c_void_p) -> int | None:
        """What holds the clocks down at this moment: nvmlClocksEventReason*, of which older drivers say Throttle."""
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        return self.long_number(names, device)

    def processes(self, device: c_void_p) -> list[ProcessInfo] | None:
        """What has a compute context on the GPU, as far as this process's PID namespace goes."""
        rows, count = (ProcessInfo * PROCESSES_KEPT)(), c_uint(PROCESSES_KEPT)
        names = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
        return list(rows[: count.value]) if self.ask(names, device, byref(count), rows) == SUCCESS else None

    def process_samples(self, device: c_void_p, since_us: int) -> list[ProcessSample]:
        """How busy each process kept the GPU, from samples newer than this; empty where there are none."""
        rows, count = (ProcessSample * PROCESSES_KEPT)(), c_uint(PROCESSES_KEPT)
        done = self.ask("nvmlDeviceGetProcessUtilization", device, rows, byref(count), c_ulonglong(since_us))
        return list(rows[: min(count.value, PROCESSES_KEPT)]) if done == SUCCESS else []

    def fields(self, device: c_void_p, wanted: Sequence[tuple[int, int]]) -> list[int | float | None]:
        """Field values by (field, scope), in their order; None for each that this GPU or driver does not have."""
        rows = (FieldValue * len(wanted))()
        for row, (field, scope) in zip(rows, wanted):
            row.field, row.scope = field, scope
            row.result = NOT_SUPPORTED  # stays where a driver passes over what it does not know
        if self.ask("nvmlDeviceGetFieldValues", device, c_int(len(wanted)), rows) != SUCCESS:
            return [None] * len(wanted)
        return [
            getattr(row.value, _KINDS[row.kind]) if row.result == SUCCESS and row.kind < len(_KINDS) else None
            for row in rows
        ]
