"""The part of libcuda that measuring needs: several GPUs, streams, events, graphs, peer access, memory of the host."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from gpu_checks.cuda_api import Api, CudaError
from gpu_checks.libcuda import LIBRARY

# CUdevice_attribute, from cuda.h.
MULTIPROCESSORS, L2_CACHE_BYTES, CAPABILITY_MAJOR, CAPABILITY_MINOR = 16, 38, 75, 76

# Flags and results, from cuda.h.
NON_BLOCKING_STREAM = 1
HOST_PORTABLE, HOST_MAPPED = 1, 2
CAPTURE_THREAD_LOCAL = 1
PEER_ACCESS_ALREADY_ENABLED = 704


@dataclass(frozen=True)
class HostMemory:
    """Page-locked memory of the host, which every GPU reaches: its address here, and as the GPU sees it."""

    address: int
    device_address: int
    size: int

    def write32(self, value: int) -> None:
        """Write its first 32-bit word; a kernel that reads it as volatile sees that at once."""
        ctypes.c_uint32.from_address(self.address).value = value

    def read32(self, place: int = 0) -> int:
        """The 32-bit word at this place (in words)."""
        return ctypes.c_uint32.from_address(self.address + 4 * place).value


class AsyncApi(Api):
    """libcuda with everything that runs beside the caller. One host thread; contexts are the GPUs' primary ones."""

    def __init__(self, library: str = LIBRARY) -> None:
        """Load the library; OSError where that fails."""
        super().__init__(library)
        self._contexts: dict[int, c_void_p] = {}

    def retain(self, ordinal: int) -> None:
        """Make this process's context on a GPU, remember it, and make it the current one."""
        if ordinal not in self._contexts:
            context = c_void_p()
            self.call("cuDevicePrimaryCtxRetain", byref(context), c_int(ordinal))
            self._contexts[ordinal] = context
        self.use(ordinal)

    def use(self, ordinal: int) -> None:
        """Make the context of a retained GPU the current one."""
        self.call("cuCtxSetCurrent", self._contexts[ordinal])

    def release(self, ordinal: int) -> None:
        """Give the context and everything in it back."""
        if self._contexts.pop(ordinal, None) is not None:
            super().release(ordinal)

    def release_all(self) -> None:
        """Give every context back; the first error is raised once all were tried."""
        first: CudaError | None = None
        for ordinal in list(self._contexts):
            try:
                self.release(ordinal)
            except CudaError as error:
                first = first or error
        if first is not None:
            raise first

    def attribute(self, ordinal: int, number: int) -> int:
        """A number that the driver knows of a GPU (CUdevice_attribute)."""
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), c_int(number), c_int(ordinal))
        return value.value

    # Streams and events. ------------------------------------------------------------------------------------------

    def stream(self) -> c_void_p:
        """A stream of the current GPU that does not wait for the default one."""
        made = c_void_p()
        self.call("cuStreamCreate", byref(made), c_uint(NON_BLOCKING_STREAM))
        return made

    def destroy_stream(self, stream: c_void_p) -> None:
        """Forget a stream."""
        self.call("cuStreamDestroy_v2", stream)

    def synchronize(self, stream: c_void_p) -> None:
        """Wait until everything in a stream is done."""
        self.call("cuStreamSynchronize", stream)

    def event(self) -> c_void_p:
        """An event of the current GPU that takes the time."""
        made = c_void_p()
        self.call("cuEventCreate", byref(made), c_uint(0))
        return made

    def destroy_event(self, event: c_void_p) -> None:
        """Forget an event."""
        self.call("cuEventDestroy_v2", event)

    def record(self, event: c_void_p, stream: c_void_p) -> None:
        """Have the stream mark the event once it comes to it."""
        self.call("cuEventRecord", event, stream)

    def wait(self, stream: c_void_p, event: c_void_p) -> None:
        """Have a stream wait for an event, also one of another GPU."""
        self.call("cuStreamWaitEvent", stream, event, c_uint(0))

    def elapsed_us(self, first: c_void_p, last: c_void_p) -> float:
        """Microseconds of the GPU's clock between two events of one GPU (resolution about 0.5 us, says cuda.h)."""
        milliseconds = c_float()
        # CUDA 12.8 and later have a _v2 of the same signature; the first one stays.
        self.call("cuEventElapsedTime", byref(milliseconds), first, last)
        return milliseconds.value * 1000

    # Memory. ------------------------------------------------------------------------------------------------------

    def copy(self, target: int, source: int, size: int, stream: c_void_p) -> None:
        """Queue a copy by the copy engine between any two addresses, of whichever GPU or of the host."""
        self.call("cuMemcpyAsync", c_uint64(target), c_uint64(source), c_size_t(size), stream)

    def fill(self, address: int, byte: int, size: int, stream: c_void_p) -> None:
        """Queue a fill with one byte."""
        self.call("cuMemsetD8Async", c_uint64(address), c_ubyte(byte), c_size_t(size), stream)

    def upload(self, address: int, data: bytes) -> None:
        """Copy to the GPU, and be there on return: the plain call only promises that for the default stream."""
        super().upload(address, data)
        self.synchronize(c_void_p())

    def host_memory(self, size: int) -> HostMemory:
        """Page-locked memory of the host that every GPU can reach."""
        address, device_address = c_void_p(), c_uint64()
        self.call("cuMemHostAlloc", byref(address), c_size_t(size), c_uint(HOST_PORTABLE | HOST_MAPPED))
        self.call("cuMemHostGetDevicePointer_v2", byref(device_address), address, c_uint(0))
        return HostMemory(address.value or 0, device_address.value, size)

    def free_host(self, memory: HostMemory) -> None:
        """Give page-locked memory back."""
        self.call("cuMemFreeHost", c_void_p(memory.address))

    # Kernels. -----------------------------------------------------------------------------------------------------

    def load_all(self, ptx: bytes, entries: tuple[str, ...]) -> tuple[c_void_p, dict[str, c_void_p]]:
        """Have the driver compile a module for the current GPU; the module and its kernels by name."""
        module = c_void_p()
        self.call("cuModuleLoadData", byref(module), ctypes.c_char_p(ptx))
        functions = {}
        for entry in entries:
            function = c_void_p()
            self.call("cuModuleGetFunction", byref(function), module, ctypes.c_char_p(entry.encode()))
            functions[entry] = function
        return module, functions

    def launch_on(self, function: c_void_p, grid: int, block: int, stream: c_void_p, *arguments: Any) -> None:
        """Queue a kernel of ``grid`` blocks with ``block`` threads each; arguments are ctypes values."""
        pointers = (c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        shape = (c_uint(grid), c_uint(1), c_uint(1), c_uint(block), c_uint(1), c_uint(1))
        self.call("cuLaunchKernel", function, *shape, c_uint(0), stream, pointers, c_void_p())

    # Peers. -------------------------------------------------------------------------------------------------------

    def can_access_peer(self, ordinal: int, peer: int) -> bool:
        """Whether the driver says that a GPU can reach another one's memory. That it works is another question."""
        value = c_int()
        self.call("cuDeviceCanAccessPeer", byref(value), c_int(ordinal), c_int(peer))
        return bool(value.value)

    def enable_peer(self, ordinal: int, peer: int) -> None:
        """Let the context of one GPU reach the memory of another's; afterwards the first one is current."""
        self.use(ordinal)
        try:
            self.call("cuCtxEnablePeerAccess", self._contexts[peer], c_uint(0))
        except CudaError as error:
            if error.number != PEER_ACCESS_ALREADY_ENABLED:
                raise

    # Graphs. ------------------------------------------------------------------------------------------------------

    def begin_capture(self, stream: c_void_p) -> None:
        """From now on what is queued into this stream is recorded instead of run."""
        self.call("cuStreamBeginCapture_v2", stream, c_int(CAPTURE_THREAD_LOCAL))

    def end_capture(self, stream: c_void_p) -> c_void_p:
        """The recorded work, ready to be launched."""
        return self.instantiate(self.stop_capture(stream))

    def stop_capture(self, stream: c_void_p) -> c_void_p:
        """The recorded work, still to be instantiated."""
        graph = c_void_p()
        self.call("cuStreamEndCapture", stream, byref(graph))
        return graph

    def instantiate(self, graph: c_void_p) -> c_void_p:
        """Recorded work made ready to be launched. CUDA refuses while any stream of this thread is recording."""
        executable = c_void_p()
        try:
            # WithFlags has one signature since CUDA 11.4; plain cuGraphInstantiate had three.
            self.call("cuGraphInstantiateWithFlags", byref(executable), graph, ctypes.c_ulonglong(0))
        finally:
            self.call("cuGraphDestroy", graph)
        return executable

    def launch_graph(self, executable: c_void_p, stream: c_void_p) -> None:
        """Queue one run of recorded work."""
        self.call("cuGraphLaunch", executable, stream)

    def destroy_graph(self, executable: c_void_p) -> None:
        """Forget recorded work."""
        self.call("cuGraphExecDestroy", executable)
