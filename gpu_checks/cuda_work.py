"""The work on one GPU: context, memory, a kernel whose result is compared, managed memory; then all of it given back.

Little of everything, so that a server that computes on the same GPU does not notice: a context, 2 MiB of memory and
2 MiB of managed memory, one after the other.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gpu_checks import nvml
from gpu_checks.cuda_api import Api, CudaError, Identity
from gpu_checks.device_nodes import Reason
from gpu_checks.registry import Report
from gpu_checks.triage import HUNG

COUNT = 1 << 18
"""Elements of the kernel: 1 MiB in and 1 MiB out. Enough blocks for every multiprocessor of a large GPU."""

SIZE = COUNT * 4
FACTOR, SEED, MASK = 0x9E3779B1, 0x2545F491, 0xFFFFFFFF
"""An odd factor gives every position another value, so that data at a wrong place shows."""

FILLER = 0xA5
"""What stands in the output before: neither zeros, nor what an earlier run has left there."""

# CUresult, from cuda.h.
OUT_OF_MEMORY, DEVICE_UNAVAILABLE, JIT_COMPILER_NOT_FOUND = 2, 46, 221

ENTRY = b"gpuhost_mix"
PTX = b"""
// PTX 4.0 for sm_50 (Maxwell): the driver compiles it for every GPU since. output[i] = input[i] ^ (i * FACTOR + seed)
.version 4.0
.target sm_50
.address_size 64

.visible .entry gpuhost_mix(.param .u64 input, .param .u64 output, .param .u32 count, .param .u32 seed)
{
    .reg .pred %past;
    .reg .b32 %r<8>;
    .reg .b64 %a<6>;

    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r1, %r1, %r2, %r3;
    ld.param.u32 %r4, [count];
    setp.ge.u32 %past, %r1, %r4;
    @%past bra END;
    ld.param.u64 %a1, [input];
    ld.param.u64 %a2, [output];
    ld.param.u32 %r5, [seed];
    cvta.to.global.u64 %a1, %a1;
    cvta.to.global.u64 %a2, %a2;
    mul.wide.u32 %a3, %r1, 4;
    add.u64 %a1, %a1, %a3;
    add.u64 %a2, %a2, %a3;
    ld.global.u32 %r6, [%a1];
    mad.lo.u32 %r7, %r1, 0x9E3779B1, %r5;
    xor.b32 %r6, %r6, %r7;
    st.global.u32 [%a2], %r6;
END:
    ret;
}
"""

RUNGS = {
    "context": "cuda.context_failed",
    "allocation": "cuda.allocation_failed",
    "kernel": "cuda.kernel_failed",
    "uvm": "cuda.uvm_failed",
    "release": "cuda.context_failed",
}
"""The steps in their order, and the cause of an error in each that says nothing more exact."""


@lru_cache(maxsize=1)
def pattern() -> tuple[bytes, bytes]:
    """Input and right output; the same for every GPU."""
    given = hashlib.shake_128(b"gpuhost").digest(SIZE)
    added = array("I", [value & MASK for value in range(SEED, SEED + COUNT * FACTOR, FACTOR)]).tobytes()
    mixed = int.from_bytes(given, "little") ^ int.from_bytes(added, "little")
    return given, mixed.to_bytes(SIZE, "little")


def wrong_elements(got: bytes, expected: bytes) -> str | None:
    """What differs, element by element; None where nothing does.

    >>> wrong_elements(bytes(8), bytes(4) + bytes([1, 0, 0, 0]))
    '1 of 2 elements are wrong, the first is element 1: 0x00000000, expected 0x00000001'
    """
    if got == expected:
        return None
    pairs = list(enumerate(zip(array("I", got), array("I", expected))))
    wrong = [(place, here, there) for place, (here, there) in pairs if here != there]
    place, here, there = wrong[0]
    return (
        f"{len(wrong)} of {len(pairs)} elements are wrong, the first is element {place}: "
        f"{here:#010x}, expected {there:#010x}"
    )


@dataclass
class Work:
    """What was done on a GPU: seconds for each step, and what went wrong at which. ``full``: there was no room."""

    gpu: Identity
    seconds: dict[str, float] = field(default_factory=dict)
    step: str = ""
    why: Reason | None = None
    full: bool = False
    evidence: dict[str, Any] = field(default_factory=dict)


class _Wrong(Exception):
    """A result that is not the right one."""


def work_on(api: Api, gpu: Identity, report: Report) -> Work:
    """Compute on one GPU. Never raises for what the GPU does."""
    work = Work(gpu)
    retained = False
    try:
        with _step(work, report, "context"):
            api.retain(gpu.ordinal)
            retained = True
            work.evidence["free_bytes"] = api.free_bytes()
        _compute(api, work, report)
        if gpu.managed_memory:
            _compute_managed(api, work, report)
        else:
            work.evidence["uvm"] = "the device offers no managed memory"  # a vGPU without it
    except CudaError as error:
        _explain(api, work, error, retained)
    except _Wrong as error:
        work.why = Reason("cuda.wrong_result", f"GPU {gpu.ordinal}, {work.step}: {error}")
    if retained:
        try:
            with _step(work, report, "release"):
                api.release(gpu.ordinal)
        except CudaError as error:
            # After a failed kernel every call fails; that is no news.
            if work.why is None:
                _explain(api, work, error, retained)
    return work


@contextlib.contextmanager
def _step(work: Work, report: Report, name: str, died: str | None = None) -> Iterator[None]:
    """Name what is done, and take its time."""
    report.doing(f"{name} on GPU {work.gpu.ordinal} ({work.gpu.pci_bus_id})", HUNG, died)
    work.step = name
    begin = time.monotonic()
    try:
        yield
    finally:
        work.seconds[name] = round(time.monotonic() - begin, 6)


def _run(api: Api, function: ctypes.c_void_p, address: int) -> None:
    """The kernel, from the first half of some memory into its second half."""
    inward, outward = ctypes.c_uint64(address), ctypes.c_uint64(address + SIZE)
    api.launch(function, COUNT, inward, outward, ctypes.c_uint(COUNT), ctypes.c_uint(SEED))


def _prove(got: bytes) -> None:
    wrong = wrong_elements(got, pattern()[1])
    if wrong is not None:
        raise _Wrong(wrong)


def _compute(api: Api, work: Work, report: Report) -> None:
    """Memory on the GPU, the kernel over it, the result compared."""
    with _step(work, report, "allocation"):
        address = api.allocate(2 * SIZE)
        api.upload(address, pattern()[0] + bytes([FILLER]) * SIZE)
    with _step(work, report, "kernel"):
        module, function = api.load(PTX, ENTRY)
        _run(api, function, address)
        _prove(api.download(address + SIZE, SIZE))
        api.unload(module)
        api.free(address)


def _compute_managed(api: Api, work: Work, report: Report) -> None:
    """Managed memory: written by the CPU, used by the kernel, read and written again by the CPU."""
    # A page that can't be brought over ends the process with SIGBUS or SIGSEGV.
    with _step(work, report, "uvm", died="cuda.uvm_failed"):
        address = api.allocate_managed(2 * SIZE)
        module, function = api.load(PTX, ENTRY)
        ctypes.memmove(address, pattern()[0], SIZE)
        ctypes.memset(address + SIZE, FILLER, SIZE)
        _run(api, function, address)
        _prove(ctypes.string_at(address + SIZE, SIZE))
        ctypes.memset(address, FILLER, 2 * SIZE)
        api.unload(module)
        api.free(address)


def _explain(api: Api, work: Work, error: CudaError, has_context: bool) -> None:
    """The cause of a failed call. CUDA's number only tells apart what is no defect of the GPU."""
    cause, text = RUNGS[work.step], f"GPU {work.gpu.ordinal}, {work.step}: {error}"
    work.evidence["cuda_error"] = {"call": error.call, "number": error.number, "name": error.name}
    if error.number == OUT_OF_MEMORY:
        free = _free_bytes(api, work, has_context)
        work.evidence["free_bytes"] = free
        work.full = True
        cause = "cuda.out_of_memory"
        text += f"; {'an unknown number of' if free is None else free} of {work.gpu.total_bytes} bytes are free"
    elif error.number == DEVICE_UNAVAILABLE and work.step == "context":
        work.full = True
        cause = "cuda.device_busy"
    elif error.number == JIT_COMPILER_NOT_FOUND:
        cause = "cuda.library_missing"
        text += ": libnvidia-ptxjitcompiler.so.1 is missing beside libcuda"
    work.why = Reason(cause, text)


def _free_bytes(api: Api, work: Work, has_context: bool) -> int | None:
    """Free memory of a full GPU: from CUDA, or from NVML where there was no room even for a context."""
    if has_context:
        try:
            return api.free_bytes()
        except CudaError:
            pass
    return nvml.free_bytes(work.gpu.pci_bus_id)
