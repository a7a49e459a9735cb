"""One GPU that takes part in a collective: context, stream, buffers, the kernels for its data, events for the time."""

from __future__ import annotations

import struct
from contextlib import AbstractContextManager
from ctypes import c_float, c_uint, c_uint64, c_void_p
from typing import Any

from gpu_checks.allreduce import kernels
from gpu_checks.allreduce.arithmetic import ELEMENT_BYTES, start, total
from gpu_checks.allreduce.backend import Member, Wrong
from gpu_checks.allreduce.channel import RankError
from gpu_checks.cuda_api import CudaError
from gpu_checks.cuda_async import AsyncApi
from gpu_checks.kernels import LOCAL_BLOCKS, THREADS, Kernels
from gpu_checks.parts import why_cuda
from gpu_checks.timing import Timer

SPARE_BYTES = 256 << 20
"""Left free beside our buffers: NCCL makes some more of its own at the first use of a size."""

SMALL_BYTES = 8
RESULT_BYTES = 16
POISON = 0xFF
"""Four of these are a NaN: no sum, and nothing that a sum could be made of."""


def explain(error: CudaError, where: str = "", otherwise: str = "cuda.kernel_failed") -> RankError:
    """The cause of an error of CUDA."""
    why = why_cuda(error, "cuda.out_of_memory", otherwise, where)
    return RankError(why.cause, why.message)


def room(free: int, largest: int) -> int:
    """The largest size, halved as often as needed, that fits twice into ``free`` bytes with something to spare; or 0.

    >>> room(2 << 30, 512 << 20), room(1 << 30, 512 << 20), room(1 << 20, 512 << 20)
    (536870912, 268435456, 0)
    """
    fits = (free - SPARE_BYTES) // 2
    while largest > fits and largest >= SMALL_BYTES:
        largest //= 2
    return largest if largest >= SMALL_BYTES else 0


class Place:
    """A member's GPU. Everything but ``wrong`` and ``wait`` only queues; ``communicator`` is the library's."""

    def __init__(self, api: AsyncApi, member: Member) -> None:
        """Make the context and what lives in it; RankError where that fails."""
        self.api, self.member = api, member
        try:
            api.retain(member.ordinal)
        except CudaError as error:
            raise explain(error, member.name, "cuda.context_failed") from error
        self._kernels = Kernels(api, member.ordinal)
        self._timer = Timer(api, self._kernels, member.ordinal)
        _, self._functions = api.load_all(kernels.module(), kernels.ENTRIES)
        self.stream = api.stream()
        self.communicator = c_void_p()
        self.input = self.output = 0
        self.small, self._result = api.allocate(SMALL_BYTES), api.allocate(RESULT_BYTES)
        api.fill(self.small, 0, SMALL_BYTES, self.stream)
        self.wait()
        self._events: list[c_void_p] = []

    def use(self) -> None:
        """Make its context the current one."""
        self.api.use(self.member.ordinal)

    def allocate(self, largest: int, shared: int) -> int:
        """Make input and output as large as there is room, at most ``largest``; ``shared``: by so many processes."""
        self.use()
        free = self.api.free_bytes() // shared
        size = room(free, largest)
        if size == 0:
            text = f"{self.member.name}: {free} bytes are free, too little for the buffers"
            raise RankError("cuda.out_of_memory", text)
        self.input, self.output = self.api.allocate(size), self.api.allocate(size)
        return size

    def _launch(self, name: str, *arguments: Any) -> None:
        grid = self._kernels.multiprocessors * LOCAL_BLOCKS
        self.api.launch_on(self._functions[name], grid, THREADS, self.stream, *arguments)

    def fill(self, size: int, turn: int) -> None:
        """This rank's values into the input, NaN into the output."""
        self.use()
        self.api.fill(self.output, POISON, size, self.stream)
        begin = c_uint(start(self.member.rank, turn))
        self._launch("values", c_uint64(self.input), c_uint64(size // ELEMENT_BYTES), begin)

    def wrong(self, size: int, world: int, turn: int, factor: int) -> Wrong | None:
        """Compare the output, on the GPU, with the sum over all ranks times ``factor``."""
        api = self.api
        self.use()
        # In the stream's own order: a copy from the host need not have arrived when its call returns.
        api.fill(self._result, 0xFF, 8, self.stream)
        api.fill(self._result + 8, 0, 8, self.stream)
        numbers = (c_uint64(size // ELEMENT_BYTES), c_uint(start(0, turn)), c_uint(world), c_float(factor))
        self._launch("compare", c_uint64(self.output), *numbers, c_uint64(self._result))
        self.wait()
        first, elements, _ = struct.unpack("<QII", api.download(self._result, RESULT_BYTES))
        if elements == 0:
            return None
        raw = api.download(self.output + first * ELEMENT_BYTES, ELEMENT_BYTES)
        return Wrong(self.member.rank, elements, first, shown(raw), f"{total(first, world, turn) * factor:g}")

    def begin_capture(self) -> None:
        """From now on what is queued here is recorded."""
        self.use()
        self.api.begin_capture(self.stream)

    def stop_capture(self) -> c_void_p:
        """What was recorded."""
        self.use()
        return self.api.stop_capture(self.stream)

    def instantiate(self, graph: c_void_p) -> c_void_p:
        """What was recorded, ready to be launched; once no member of this process records any more."""
        self.use()
        return self.api.instantiate(graph)

    def launch(self, graph: c_void_p) -> None:
        """Queue one run of what was recorded."""
        self.use()
        self.api.launch_graph(graph, self.stream)

    def held(self, marks: int) -> AbstractContextManager[None]:
        """Hold the stream. The events for ``marks`` marks are there before: in there nothing may wait for the GPU."""
        self.use()
        self._events += [self.api.event() for _ in range(marks - len(self._events))]
        return self._timer.held(self.stream)

    def mark(self, number: int) -> None:
        """Queue an event."""
        self.use()
        self.api.record(self._events[number], self.stream)

    def between(self, first: int, last: int) -> float:
        """Microseconds between two events that were passed."""
        return self.api.elapsed_us(self._events[first], self._events[last])

    def wait(self) -> None:
        """Wait until the stream is empty."""
        self.use()
        self.api.synchronize(self.stream)


def shown(raw: bytes) -> str:
    """A float32 for a message, with its bits: of a NaN these say where it comes from.

    >>> shown(bytes.fromhex("ffffffff")), shown(bytes.fromhex("0000803f"))
    ('nan (0xffffffff)', '1 (0x3f800000)')
    """
    return f"{struct.unpack('<f', raw)[0]:g} ({struct.unpack('<I', raw)[0]:#010x})"
