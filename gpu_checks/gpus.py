"""The GPUs that a check measures on: opened as fast as CUDA allows, or the reason why not, reported for the check."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from ctypes import c_void_p
from dataclasses import dataclass, field
from typing import Any

from gpu_checks import cuda, nvml
from gpu_checks.cuda_api import CudaError, Identity
from gpu_checks.cuda_async import AsyncApi
from gpu_checks.device_access import Roots
from gpu_checks.kernels import Kernels
from gpu_checks.measurement import ERROR, NOT_MEASURED, Measurement
from gpu_checks.registry import Options, Report
from gpu_checks.timing import Timer
from gpu_checks.triage import HUNG

METHOD = "the rungs of CUDA: device nodes, cuInit, number of GPUs"

MEMORY_SHARE = 0.5
"""Of a GPU's free memory a check's buffers take at most this: a server that grows meanwhile must not fail because of
us."""


@dataclass(frozen=True)
class Ready:
    """A GPU with its context: its kernels, a timer, and a stream."""

    ordinal: int
    kernels: Kernels
    timer: Timer
    stream: c_void_p


@dataclass
class Gpus:
    """What ``open_gpus`` found. ``gpus``: in CUDA's order, which the environment can change, by ordinal."""

    api: AsyncApi
    gpus: list[Identity]
    session: nvml.Session
    report: Report
    _stack: contextlib.ExitStack
    _ready: dict[int, Ready] = field(default_factory=dict)

    def ready(self, ordinal: int) -> Ready:
        """Context, kernels, timer and stream of a GPU; made at the first call. CudaError where that fails."""
        if ordinal not in self._ready:
            self.report.doing(f"make a context on GPU {ordinal} ({self.gpus[ordinal].pci_bus_id})", hung=HUNG)
            self.api.retain(ordinal)
            kernels = Kernels(self.api, ordinal)
            self._ready[ordinal] = Ready(ordinal, kernels, Timer(self.api, kernels, ordinal), self.api.stream())
        self.api.use(ordinal)
        return self._ready[ordinal]

    def states(self) -> list[dict[str, Any]]:
        """Clocks, temperature, power, throttle reasons of every GPU now, as plain data for the record."""
        found = []
        for gpu in self.gpus:
            state = self.session.state(gpu.pci_bus_id)
            known = {} if state is None else dataclasses.asdict(state)
            found.append({"ordinal": gpu.ordinal, "uuid": gpu.uuid, "pci_bus_id": gpu.pci_bus_id, **known})
        return found

    def peak_gb_s(self, ordinal: int) -> float | None:
        """What the memory of a GPU can move at its highest clock, in decimal GB/s; None where NVML does not say."""
        return self.session.peak_gb_s(self.gpus[ordinal].pci_bus_id)

    def others_active(self) -> str | None:
        """Who else is using one of these GPUs right now, in words; None where nobody is."""
        return self.session.others_active([gpu.pci_bus_id for gpu in self.gpus])

    def close(self) -> None:
        """Give all contexts back, and with them everything in them. Only worth the time where the process lives on."""
        self._ready.clear()
        self._stack.close()


def open_gpus(
    options: Options, report: Report, name: str, unit: str, at_least: int = 1, roots: Roots = cuda.HERE
) -> Gpus | None:
    """Start CUDA for the check ``name``.

    None where that can't be done, or where there are fewer than ``at_least`` GPUs: the measurement of the whole check
    is reported then, with the same causes as the check ``cuda`` gives, or with ``<name>.one_gpu``.
    """
    begin = time.monotonic()

    def refuse(status: str, cause: str, message: str, **detail: Any) -> None:
        seconds = round(time.monotonic() - begin, 6)
        report.add(Measurement(name, None, unit, METHOD, status, cause, seconds, detail={"message": message, **detail}))

    state, why = cuda.climb(options, report, roots, AsyncApi)
    if why is not None:
        refuse(ERROR, why.cause, why.message, found=cuda.evidence(state))
        return None
    api = state.api
    if not isinstance(api, AsyncApi):
        raise TypeError("CUDA was started by another class")  # a defect of ours
    try:
        gpus = [api.identity(ordinal) for ordinal in range(state.facts.count or 0)]
    except CudaError as error:
        refuse(ERROR, "cuda.init_failed", str(error))
        return None
    if len(gpus) < at_least:
        refuse(NOT_MEASURED, f"{name}.one_gpu", f"{len(gpus)} GPU is visible, the check needs {at_least}")
        return None
    stack = contextlib.ExitStack()
    session = stack.enter_context(nvml.session())
    stack.callback(api.release_all)
    return Gpus(api, gpus, session, report, stack)
