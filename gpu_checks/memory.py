"""The check ``memory``: what each GPU's own memory moves, by its copy engine and by its multiprocessors.

A copy counts what it reads **and** what it writes, as the memory does; ``one_way_gb_s`` beside it is half of that, as
nvbandwidth's device_local_copy prints it. Figures are medians of passes over buffers far larger than the L2.
"""

from __future__ import annotations

import contextlib
import dataclasses
import struct
import time
from dataclasses import dataclass
from typing import Any, Callable

from gpu_checks.cuda_api import CudaError
from gpu_checks.cuda_async import L2_CACHE_BYTES
from gpu_checks.gpus import MEMORY_SHARE, Gpus, Ready, open_gpus
from gpu_checks.kernels import LOCAL_BLOCKS
from gpu_checks.parts import Parts, Why, busy_gpus, gb_s, good_gpus, lowest, share, why_cuda
from gpu_checks.registry import Options, Report
from gpu_checks.timing import L2_MULTIPLE, summary
from gpu_checks.triage import HUNG

NAME, UNIT = "memory", "gb_s"
METHOD = "copies, reads and writes of each GPU's own memory, one GPU after the other; the data compared"

BUFFER_BYTES = 2 << 30
"""Of each of the two buffers. A pass takes a millisecond on an H200, so that its begin and its end, microseconds in
which the memory is not yet or no longer busy, hardly count: at nvbandwidth's 512 MiB they are a hundredth."""

GRANULE = 2 << 20
"""Buffers are multiples of this: a page of the GPU, and of every kernel's element."""

COUNT, WARM_UP = 40, 3
"""Passes: 40 ms of work for each figure on an H200, half a second on a small card."""

PROBES = 5
"""Passes for each number of blocks, to find the one that is used."""

BLOCKS = (1, 2, LOCAL_BLOCKS)
"""Blocks for each multiprocessor that are tried: which of them saturates a memory depends on the GPU."""

SEED, FILLER, WORD = 0x51, 0xA5, 0x5A17C0DE
"""The data's pattern; what stands in a target before; what is written."""

SLICES, SLICE_BYTES = 256, 4096
"""Of what was written so many pieces are brought back and compared, spread from the first to the last byte."""


@dataclass(frozen=True)
class Buffers:
    """Two buffers of ``size`` bytes on one GPU, whose L2 has ``l2_bytes``: the first holds the pattern."""

    source: int
    target: int
    size: int
    l2_bytes: int


@dataclass(frozen=True)
class Kind:
    """A way of moving data. ``passes``: how often each byte of a buffer crosses the memory's pins."""

    name: str
    method: str
    passes: int
    by_kernel: bool
    queue: Callable[[Ready, Buffers, int], None]


def _copy(ready: Ready, buffers: Buffers, _blocks: int) -> None:
    ready.kernels.api.copy(buffers.target, buffers.source, buffers.size, ready.stream)


def _copy_sm(ready: Ready, buffers: Buffers, blocks: int) -> None:
    ready.kernels.copy(buffers.target, buffers.source, buffers.size, ready.stream, blocks)


def _read(ready: Ready, buffers: Buffers, blocks: int) -> None:
    ready.kernels.read(buffers.source, buffers.size, ready.stream, blocks)


def _write(ready: Ready, buffers: Buffers, blocks: int) -> None:
    ready.kernels.write(buffers.target, buffers.size, WORD, ready.stream, blocks)


KINDS = (
    Kind("copy", "cuMemcpyAsync within the GPU, an event after each", 2, False, _copy),
    Kind("copy_sm", "a kernel that copies, an event after each", 2, True, _copy_sm),
    Kind("read", "a kernel that only reads, an event after each", 1, True, _read),
    Kind("write", "a kernel that only writes, an event after each", 1, True, _write),
)


def buffer_bytes(free_bytes: int, l2_bytes: int) -> int | None:
    """How large each of the two buffers is: 2 GiB where there is room, and never within reach of the L2.

    >>> buffer_bytes(1 << 40, 60 << 20) == BUFFER_BYTES
    True
    >>> buffer_bytes(1000 << 20, 60 << 20) >> 20
    250
    >>> buffer_bytes(700 << 20, 60 << 20) is None
    True
    """
    least = (L2_MULTIPLE * l2_bytes // GRANULE + 1) * GRANULE
    room = int(free_bytes * MEMORY_SHARE) // 2 // GRANULE * GRANULE
    size = min(max(BUFFER_BYTES, least), room)
    return size if size >= least else None


def slice_places(size: int) -> list[int]:
    """Where the pieces begin that are compared.

    >>> slice_places(1 << 20)[:2], slice_places(1 << 20)[-1] + SLICE_BYTES == 1 << 20
    ([0, 4096], True)
    """
    last = size - SLICE_BYTES
    return sorted({last * each // (SLICES - 1) // SLICE_BYTES * SLICE_BYTES for each in range(SLICES - 1)} | {last})


def wrong_data(ready: Ready, kind: Kind, buffers: Buffers) -> str | None:
    """What is wrong after the passes, in words: the copy (or, after reads, the source) on the GPU, all of it; a sample
    of what was written. None where all is right."""
    api = ready.kernels.api
    if kind.name == "write":
        expected = struct.pack("<I", WORD) * (SLICE_BYTES // 4)
        for place in slice_places(buffers.size):
            if api.download(buffers.target + place, SLICE_BYTES) != expected:
                return f"the {SLICE_BYTES} bytes at {place} are not what was written"
        return None
    address = buffers.source if kind.name == "read" else buffers.target
    wrong = ready.kernels.verify(address, buffers.size, SEED, ready.stream)
    return None if wrong is None else f"of {buffers.size // 4} words {wrong}"


def measure(ready: Ready, kind: Kind, buffers: Buffers) -> tuple[list[float], int | None]:
    """Microseconds of each pass, and the blocks for each multiprocessor that were the fastest (kernels only)."""

    def times(blocks: int, count: int) -> list[float]:
        return ready.timer.each(ready.stream, lambda _: kind.queue(ready, buffers, blocks), count, WARM_UP)

    if not kind.by_kernel:
        return times(0, COUNT), None
    blocks = min(BLOCKS, key=lambda tried: summary(times(tried, PROBES)).median)
    return times(blocks, COUNT), blocks


def _figures(kind: Kind, buffers: Buffers, rates: list[float], peak: float | None) -> dict[str, Any]:
    """What stands beside a figure in the record."""
    value = summary(rates).median
    copies = {"counted": "read and written", "one_way_gb_s": round(value / 2, 3)} if kind.passes > 1 else {}
    return {
        "bytes_moved": kind.passes * buffers.size,
        "buffer_bytes": buffers.size,
        "l2_bytes": buffers.l2_bytes,
        **copies,
        **share(value, peak),
    }


def _on_gpu(gpus: Gpus, ordinal: int, parts: Parts, report: Report) -> None:
    """All kinds on one GPU."""
    where = f"GPU {ordinal} ({gpus.gpus[ordinal].pci_bus_id})"
    begin = time.monotonic()
    addresses: list[int] = []
    try:
        ready = gpus.ready(ordinal)
        l2_bytes, free = gpus.api.attribute(ordinal, L2_CACHE_BYTES), gpus.api.free_bytes()
        size = buffer_bytes(free, l2_bytes)
        if size is None:
            text = f"{where}: {free} bytes are free; two buffers larger than {L2_MULTIPLE} x {l2_bytes} bytes of L2"
            text += " are needed, and half is left to others"
            _refuse_all(parts, ordinal, Why("memory.no_room", text), begin)
            return
        report.doing(f"allocate twice {size} bytes on {where}", hung=HUNG)
        addresses += [gpus.api.allocate(size)]
        addresses += [gpus.api.allocate(size)]
    except CudaError as error:
        why = why_cuda(error, "memory.no_room", "memory.failed", where)
        _give_back(gpus, ordinal, addresses)
        _refuse_all(parts, ordinal, why, begin)
        return
    for kind in KINDS:
        _one(gpus, ready, kind, Buffers(addresses[0], addresses[1], size, l2_bytes), parts, report)
    _give_back(gpus, ordinal, addresses)


def _one(gpus: Gpus, ready: Ready, kind: Kind, buffers: Buffers, parts: Parts, report: Report) -> None:
    """One kind on one GPU: fresh data, the passes, the data compared."""
    name, begin = f"{NAME}.{kind.name}.gpu{ready.ordinal}", time.monotonic()
    gpu, api = gpus.gpus[ready.ordinal], gpus.api
    where = f"GPU {ready.ordinal} ({gpu.pci_bus_id})"
    report.doing(f"{kind.name} on {where}", hung=HUNG)
    try:
        ready.kernels.pattern(buffers.source, buffers.size, SEED, ready.stream)
        api.fill(buffers.target, FILLER, buffers.size, ready.stream)
        times, blocks = measure(ready, kind, buffers)
        wrong = wrong_data(ready, kind, buffers)
    except CudaError as error:
        parts.refuse(name, UNIT, kind.method, why_cuda(error, "memory.no_room", "memory.failed", where), begin)
        return
    rates = gb_s(kind.passes * buffers.size, times)
    detail = _figures(kind, buffers, rates, gpus.peak_gb_s(ready.ordinal))
    if blocks is not None:
        detail["blocks_per_multiprocessor"] = blocks
    detail["state"] = dataclasses.asdict(gpus.session.state(gpu.pci_bus_id))
    if wrong is not None:
        parts.refuse(name, UNIT, kind.method, Why("memory.wrong_data", f"{where}, {kind.name}: {wrong}"), begin, detail)
        return
    parts.add(name, UNIT, kind.method, summary(rates), begin, detail)


def _refuse_all(parts: Parts, ordinal: int, why: Why, begin: float) -> None:
    """No figure of this GPU can be had."""
    for kind in KINDS:
        parts.refuse(f"{NAME}.{kind.name}.gpu{ordinal}", UNIT, kind.method, why, begin)


def _give_back(gpus: Gpus, ordinal: int, addresses: list[int]) -> None:
    # After a failed kernel every call fails, and without a context there is nothing: the process's end gives all back.
    with contextlib.suppress(CudaError, KeyError):
        gpus.api.use(ordinal)
        for address in addresses:
            gpus.api.free(address)


def check(options: Options, report: Report) -> None:
    """Measure every GPU, one after the other."""
    parts = Parts(report, NAME, "gpus", METHOD)
    gpus = open_gpus(options, report, NAME, "gpus")
    if gpus is None:
        return
    before, busy = gpus.states(), busy_gpus(gpus)
    for gpu in gpus.gpus:
        if gpu.ordinal in busy:
            _refuse_all(parts, gpu.ordinal, Why("gpu.in_use", busy[gpu.ordinal]), time.monotonic())
        else:
            _on_gpu(gpus, gpu.ordinal, parts, report)
    detail = {
        "gpus": {"before": before, "after": gpus.states()},
        "slowest_copy_gb_s": lowest(parts.made, f"{NAME}.copy."),
        "copies_count": "bytes read and bytes written",
    }
    parts.whole(good_gpus(parts.made, [gpu.ordinal for gpu in gpus.gpus]), detail)
