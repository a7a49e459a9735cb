"""The measurements of a check that has many parts: each handed over at once, and the whole at the end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_checks.cuda_api import CudaError
from gpu_checks.cuda_work import DEVICE_UNAVAILABLE, JIT_COMPILER_NOT_FOUND, OUT_OF_MEMORY
from gpu_checks.gpus import Gpus
from gpu_checks.measurement import ERROR, MEASURED, NOT_MEASURED, Measurement, Samples
from gpu_checks.registry import Report
from gpu_checks.triage import HUNG

NO_DEFECT = frozenset(
    {
        *("gpu.in_use", "memory.no_room", "gemm.no_room", "gemm.unsupported", "torch.missing"),
        *("allreduce.out_of_time", "allreduce.graph_unsupported", "nccl.missing"),
        *("cuda.out_of_memory", "cuda.device_busy"),
        *("decode.no_room", "decode.unsupported", "decode.one_gpu", "decode.one_rank", "decode.out_of_time"),
        "decode.part_missing",
    }
)
"""Causes that say that something could not be tried, and nothing about the GPU."""


@dataclass(frozen=True)
class Why:
    """A cause, and what was seen."""

    cause: str
    message: str

    @property
    def status(self) -> str:
        """How a measurement with this cause is marked."""
        return NOT_MEASURED if self.cause in NO_DEFECT else ERROR


def why_cuda(error: CudaError, no_room: str, otherwise: str, where: str) -> Why:
    """The cause of a failed call of the driver.

    >>> why_cuda(CudaError("cuMemAlloc_v2", 2, ""), "memory.no_room", "memory.failed", "GPU 0").cause
    'memory.no_room'
    """
    known = {
        OUT_OF_MEMORY: no_room,
        DEVICE_UNAVAILABLE: "cuda.device_busy",
        JIT_COMPILER_NOT_FOUND: "cuda.library_missing",
    }
    return Why(known.get(error.number, otherwise), f"{where}: {error}" if where else str(error))


def gb_s(size: int, times_us: Iterable[float]) -> list[float]:
    """Decimal GB/s of each time in microseconds in which ``size`` bytes were moved.

    >>> gb_s(2_000_000, [1000.0, 500.0])
    [2.0, 4.0]
    """
    return [size / 1000 / each for each in times_us]


def share(value: float, peak: float | None) -> dict[str, Any]:
    """A rate beside the memory's peak, for the record; it says so where there is no peak."""
    if peak is None:
        return {"peak_gb_s": None, "share": None, "share_unknown": "no memory clock or bus width from NVML, or MIG"}
    return {"peak_gb_s": peak, "share": round(value / peak, 4)}


def busy_gpus(gpus: Gpus) -> dict[int, str]:
    """Who else uses a GPU, by its ordinal; empty where nobody does. All are watched at the same time."""
    gpus.report.doing("ask who else uses the GPUs", hung=HUNG)
    seen = {each.pci_bus_id: each.sentence() for each in gpus.session.activity([gpu.pci_bus_id for gpu in gpus.gpus])}
    found = {gpu.ordinal: seen.get(gpu.pci_bus_id) for gpu in gpus.gpus}
    return {ordinal: text for ordinal, text in found.items() if text is not None}


@dataclass
class Parts:
    """What a check has measured so far. ``name``, ``unit`` and ``method`` are those of the check as a whole."""

    report: Report
    name: str
    unit: str
    method: str
    made: list[Measurement] = field(default_factory=list)
    begin: float = field(default_factory=time.monotonic)

    def add(
        self, name: str, unit: str, method: str, samples: Samples, begin: float, detail: dict[str, Any]
    ) -> Measurement:
        """Hand over a figure: the median of its samples."""
        seconds = round(time.monotonic() - begin, 6)
        made = Measurement(name, samples.median, unit, method, MEASURED, None, seconds, samples=samples, detail=detail)
        return self._hand_over(made)

    def refuse(
        self, name: str, unit: str, method: str, why: Why, begin: float, detail: dict[str, Any] | None = None
    ) -> Measurement:
        """Hand over why there is no figure."""
        seconds = round(time.monotonic() - begin, 6)
        said = {**(detail or {}), "message": why.message}
        return self._hand_over(Measurement(name, None, unit, method, why.status, why.cause, seconds, detail=said))

    def _hand_over(self, made: Measurement) -> Measurement:
        self.made.append(made)
        self.report.add(made)
        return made

    def whole(
        self, value: float | None, detail: dict[str, Any], why: Why | None = None, fine: Sequence[str] = ()
    ) -> None:
        """Hand over the check as a whole: ``why``, or the first part that failed, or that was not measured.

        ``fine``: causes that are no reason for the whole to be without a figure, where something was measured at all.
        """
        if why is None:
            fine = fine if any(each.status == MEASURED for each in self.made) else ()
            bad = [each for each in self.made if each.status != MEASURED and each.cause not in fine]
            # A GPU that fails comes before one that could not be tried.
            first = next((each for each in bad if each.status == ERROR), bad[0] if bad else None)
            if first is not None and first.cause is not None:
                why = Why(first.cause, f"{first.name}: {first.detail['message']}")
        seconds = round(time.monotonic() - self.begin, 6)
        status, cause = (MEASURED, None) if why is None else (why.status, why.cause)
        said = detail if why is None else {**detail, "message": why.message}
        self.report.add(Measurement(self.name, value, self.unit, self.method, status, cause, seconds, detail=said))


def lowest(made: Iterable[Measurement], begins: str, ends: str = "") -> float | None:
    """The lowest figure among the parts of such names: the slowest GPU's. None where there is none."""
    named = [each for each in made if each.name.startswith(begins) and each.name.endswith(ends)]
    values = [each.value for each in named if each.value is not None]
    return min(values) if values else None


def good_gpus(made: Iterable[Measurement], ordinals: Iterable[int], fine: Sequence[str] = ()) -> int:
    """How many GPUs have parts that were measured, and no others. ``fine``: causes of parts that do not count."""
    count = 0
    for ordinal in ordinals:
        own = [each for each in made if f"gpu{ordinal}" in each.name.split(".") and each.cause not in fine]
        count += bool(own) and all(each.status == MEASURED for each in own)
    return count
