"""The few functions of libcuda that the check calls, through ctypes: no compiler, no torch, no toolkit."""

from __future__ import annotations

import ctypes
import os
import re
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from gpu_checks.libcuda import LIBRARY

MANAGED_MEMORY_ATTRIBUTE = 83
"""CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY."""

ATTACH_GLOBAL = 1
"""CU_MEM_ATTACH_GLOBAL: any stream on any device may use it."""

THREADS = 256
"""A block; every GPU takes at least 512."""

SETTINGS = {"CUDA_CACHE_DISABLE": "1", "CUDA_LAUNCH_BLOCKING": "0"}
"""What libcuda is told, whatever the environment says: our kernels would be left behind in the user's ~/.nv otherwise;
and where each launch waits for its end, one behind a held stream waits until that goes on by itself, see ``timing``."""


class CudaError(Exception):
    """A call that did not give CUDA_SUCCESS."""

    def __init__(self, call: str, number: int, name: str) -> None:
        """Keep what failed and CUDA's own number and name for it."""
        super().__init__(f"{call} gave {number} ({name})" if name else f"{call} gave {number}")
        self.call, self.number, self.name = call, number, name


@dataclass(frozen=True)
class Identity:
    """A GPU as CUDA numbers it: its ordinal depends on the environment, its UUID and bus address do not."""

    ordinal: int
    name: str
    uuid: str
    pci_bus_id: str
    total_bytes: int
    managed_memory: bool


def loaded_path(maps: str) -> str | None:
    """The libcuda that the loader really took, from the text of /proc/self/maps.

    >>> loaded_path("7f-80 r--p 0 0:1 2    /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05\\n")
    '/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05'
    """
    match = re.search(r"\s(/\S*/libcuda\.so\.\S+)$", maps, re.MULTILINE)
    return match.group(1) if match else None


class Api:
    """libcuda, loaded. Raises OSError where it can't be."""

    def __init__(self, library: str = LIBRARY) -> None:
        """Load the library as every CUDA program does: by its name, through the loader's own search."""
        os.environ.update(SETTINGS)  # read by cuInit
        self._cuda = ctypes.CDLL(library)

    def _function(self, names: tuple[str, ...]) -> Any:
        """The first of these functions that this release has; newest first."""
        for name in names:
            found = getattr(self._cuda, name, None)
            if found is not None:
                return found
        raise CudaError(names[0], 500, "no such function in this libcuda")

    def call(self, *names_and_arguments: Any) -> None:
        """Call ``name`` (or the newest of several names) with arguments that are ctypes values already."""
        names, arguments = names_and_arguments[0], names_and_arguments[1:]
        every = (names,) if isinstance(names, str) else names
        number = int(self._function(every)(*arguments))
        if number != 0:
            raise CudaError(every[0], number, self.error_name(number))

    def error_name(self, number: int) -> str:
        """CUDA's name for one of its numbers; empty where it has none."""
        text = c_char_p()
        try:
            known = self._function(("cuGetErrorName",))(c_int(number), byref(text)) == 0
        except CudaError:
            return ""
        return text.value.decode("ascii", "replace") if known and text.value else ""

    def init(self) -> None:
        """cuInit: opens the device nodes, starts the driver."""
        self.call("cuInit", c_uint(0))

    def driver_version(self) -> int:
        """The CUDA version that this libcuda offers, 13000 for 13.0."""
        version = c_int()
        self.call("cuDriverGetVersion", byref(version))
        return version.value

    def count(self) -> int:
        """How many GPUs this process can use."""
        number = c_int()
        self.call("cuDeviceGetCount", byref(number))
        return number.value

    def identity(self, ordinal: int) -> Identity:
        """Who the GPU with this ordinal is."""
        device, managed, total = c_int(), c_int(), c_size_t()
        name, bus, uuid = ctypes.create_string_buffer(256), ctypes.create_string_buffer(32), (ctypes.c_uint8 * 16)()
        self.call("cuDeviceGet", byref(device), c_int(ordinal))
        self.call("cuDeviceGetName", name, c_int(len(name)), device)
        self.call("cuDeviceGetPCIBusId", bus, c_int(len(bus)), device)
        self.call(("cuDeviceGetUuid_v2", "cuDeviceGetUuid"), byref(uuid), device)
        self.call("cuDeviceTotalMem_v2", byref(total), device)
        self.call("cuDeviceGetAttribute", byref(managed), c_int(MANAGED_MEMORY_ATTRIBUTE), device)
        text = bytes(uuid).hex()
        parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
        return Identity(
            ordinal,
            name.value.decode("utf-8", "replace"),
            "GPU-" + "-".join(parts),
            bus.value.decode("ascii", "replace"),
            total.value,
            bool(managed.value),
        )

    def retain(self, ordinal: int) -> None:
        """Make this process's context on a GPU, and make it the current one."""
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), c_int(ordinal))
        self.call("cuCtxSetCurrent", context)

    def release(self, ordinal: int) -> None:
        """Give the context and everything in it back."""
        self.call(("cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease"), c_int(ordinal))

    def free_bytes(self) -> int:
        """Free memory of the current GPU, whoever uses the rest."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def allocate(self, size: int) -> int:
        """Memory on the GPU."""
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), c_size_t(size))
        return address.value

    def allocate_managed(self, size: int) -> int:
        """Memory that CPU and GPU both reach at one address."""
        address = c_uint64()
        self.call("cuMemAllocManaged", byref(address), c_size_t(size), c_uint(ATTACH_GLOBAL))
        return address.value

    def free(self, address: int) -> None:
        """Give memory of either kind back."""
        self.call("cuMemFree_v2", c_uint64(address))

    def upload(self, address: int, data: bytes) -> None:
        """Copy to the GPU."""
        self.call("cuMemcpyHtoD_v2", c_uint64(address), data, c_size_t(len(data)))

    def download(self, address: int, size: int) -> bytes:
        """Copy from the GPU."""
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, c_uint64(address), c_size_t(size))
        return data.raw

    def load(self, ptx: bytes, entry: bytes) -> tuple[c_void_p, c_void_p]:
        """Have the driver compile a kernel for the current GPU; the module and the kernel in it."""
        module, function = c_void_p(), c_void_p()
        self.call("cuModuleLoadData", byref(module), c_char_p(ptx))
        self.call("cuModuleGetFunction", byref(function), module, c_char_p(entry))
        return module, function

    def unload(self, module: c_void_p) -> None:
        """Forget a kernel's module."""
        self.call("cuModuleUnload", module)

    def launch(self, function: c_void_p, count: int, *arguments: Any) -> None:
        """Run a kernel with one thread for each element, and wait for its end."""
        pointers = (c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        grid = (c_uint((count + THREADS - 1) // THREADS), c_uint(1), c_uint(1))
        block = (c_uint(THREADS), c_uint(1), c_uint(1))
        self.call("cuLaunchKernel", function, *grid, *block, c_uint(0), c_void_p(), pointers, c_void_p())
        self.call("cuCtxSynchronize")
