"""libnvidia-ml, asked for evidence once CUDA has failed: it needs less than CUDA does, so it often still answers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_ulonglong, c_void_p
from typing import Any

LIBRARY = "libnvidia-ml.so.1"


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


@contextmanager
def _session(library: str) -> Iterator[tuple[Any, int | None]]:
    """The library and what its init said; None where it can't be loaded."""
    try:
        found = ctypes.CDLL(library)
        number = int(found.nvmlInit_v2())
    except (OSError, AttributeError):
        yield None, None
        return
    try:
        yield found, number
    finally:
        if number == 0:
            found.nvmlShutdown()


def init(library: str = LIBRARY) -> int | None:
    """What nvmlInit says: 0 where nvidia-smi works, 18 where its version and the module's differ."""
    with _session(library) as (_, number):
        return number


def free_bytes(pci_bus_id: str, library: str = LIBRARY) -> int | None:
    """Free memory of the GPU at this address; None where NVML does not say."""
    with _session(library) as (found, number):
        if number != 0:
            return None
        device, memory = c_void_p(), _Memory()
        try:
            if found.nvmlDeviceGetHandleByPciBusId_v2(c_char_p(pci_bus_id.encode()), byref(device)) != 0:
                return None
            return int(memory.free) if found.nvmlDeviceGetMemoryInfo(device, byref(memory)) == 0 else None
        except AttributeError:
            return None
