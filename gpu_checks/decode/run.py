"""What all parts of the check ``decode`` share while it runs: the GPU, its clock, the record, the time that is left."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable

from gpu_checks import torch_gpu
from gpu_checks.cuda_api import CudaError
from gpu_checks.decode.graph import Clock
from gpu_checks.decode.models import Model
from gpu_checks.decode.part import Stack
from gpu_checks.decode.stack import Order
from gpu_checks.gemm.run import Bench
from gpu_checks.measurement import Measurement, Samples
from gpu_checks.parts import Parts, Why, share, why_cuda
from gpu_checks.registry import Options
from gpu_checks.triage import HUNG

NAME, UNIT = "decode", "figures"

US, SHOWN = "us", "us_shown"
"""Microseconds, and such that no gate holds against a baseline: of the host, or of a part that hardly reads memory."""

AT_MOST_S = 70.0
"""For one more part, and what else a check may still have to do once its time for parts is over: all of them together
take some 10 s on an H200, the import of torch included."""


def budget(timeout_s: float) -> float:
    """Seconds after which no further part is begun.

    >>> budget(120.0), budget(40.0)
    (50.0, 10.0)
    """
    return max(timeout_s - AT_MOST_S, timeout_s / 4)


MESSAGE_LENGTH = 240
"""Of an error: torch names all of its backends in one line."""

BROKEN = ("CUDA error", "EXECUTION_FAILED", "INTERNAL_ERROR", "illegal", "unspecified launch")
"""How torch says that a kernel failed; where a probe beside the step fails otherwise, it is not made for this GPU."""


def why_of(bench: Bench, error: Exception, what: str, beside: bool = False) -> Why:
    """The cause of an error of torch's or the driver's while ``what`` was done; see ``Run.why``."""
    where = f"{bench.where}, {what}"
    if isinstance(error, CudaError):
        return why_cuda(error, "decode.no_room", "decode.failed", where)
    text = f"{where}: {torch_gpu.first_line(error)[:MESSAGE_LENGTH]}"
    if torch_gpu.is_out_of_memory(bench.torch, error):
        return Why("decode.no_room", text)
    broken = any(word in str(error) for word in BROKEN)
    return Why("decode.unsupported" if beside and not broken else "decode.failed", text)


@dataclass
class Run:
    """One run. ``model``: the rank's shapes. ``tag``: of the names, so that figures of other orders are not compared.

    ``step_us``: the measured step, scaled to all layers, once it is known.
    """

    options: Options
    model: Model
    parts: Parts
    bench: Bench
    clock: Clock
    tag: str
    capability: tuple[int, int] = (0, 0)
    step_us: float | None = None
    known: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def torch(self) -> Any:
        """The module."""
        return self.bench.torch

    def name(self, what: str) -> str:
        """A measurement's name."""
        return f"{NAME}.{what}.{self.tag}"

    def doing(self, what: str) -> None:
        """Say what comes next."""
        self.bench.gpus.report.doing(f"{what} on {self.bench.where}", hung=HUNG)

    def late(self) -> Why | None:
        """Why nothing further is begun."""
        taken, limit = time.monotonic() - self.parts.begin, budget(self.options.timeout_s)
        if taken <= limit:
            return None
        return Why("decode.out_of_time", f"after {taken:.0f} s of the {limit:g} s that there are for all parts")

    def add(
        self, what: str, unit: str, how: str, samples: Samples, begin: float, detail: dict[str, Any]
    ) -> Measurement:
        """Hand over a figure."""
        return self.parts.add(self.name(what), unit, how, samples, begin, detail)

    def rates(self, read_bytes: int, taken_us: float, cold: bool) -> dict[str, Any]:
        """What is read, and how fast, beside the memory's peak. Of what a cache may have had there is no rate."""
        if not cold:
            return {"read_bytes": read_bytes, "from_memory": False if read_bytes else None, "read_gb_s": None,
                    "share": None}  # fmt: skip
        rate = read_bytes / taken_us / 1000
        peak = self.bench.gpus.peak_gb_s(self.bench.identity.ordinal)
        return {"read_bytes": read_bytes, "from_memory": True, "read_gb_s": round(rate, 3), **share(rate, peak)}

    def refuse(self, what: str, how: str, why: Why, begin: float, unit: str = US) -> None:
        """Hand over why there is none."""
        self.missing[what] = f"{why.cause}: {why.message}"
        self.parts.refuse(self.name(what), unit, how, why, begin)

    def why(self, error: Exception, what: str, beside: bool = False) -> Why:
        """The cause of an error of torch's or the driver's. ``beside``: of a probe that the step does without."""
        return why_of(self.bench, error, what, beside)

    def attempt(self, what: str, how: str, work: Callable[[float], Any], beside: bool = True) -> Any:
        """Do ``work(begin)``; where that fails, or there is no time, hand over why and return None."""
        begin = time.monotonic()
        late = self.late()
        if late is not None:
            self.refuse(what, how, late, begin)
            return None
        self.doing(what)
        try:
            return work(begin)
        except (RuntimeError, TypeError, ValueError, AttributeError, CudaError) as error:
            self.refuse(what, how, self.why(error, what, beside), begin)
            return None


@dataclass(frozen=True)
class Built:
    """The step that was built, and what a whole model has of each part."""

    stack: Stack
    order: Order
    counts: dict[str, float]
    logits: Any
    """Of the step that was watched, run eagerly."""
