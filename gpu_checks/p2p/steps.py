"""What a worker of the check ``p2p`` does: open the GPUs, then step after step, each said before and after."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

from gpu_checks.cuda_api import CudaError
from gpu_checks.gpus import Gpus, open_gpus
from gpu_checks.measurement import NOT_MEASURED
from gpu_checks.p2p.chase import latency
from gpu_checks.p2p.copies import Mover, arrive, measure
from gpu_checks.p2p.patterns import together
from gpu_checks.p2p.plan import (
    ARRIVE,
    LATENCY,
    NAME,
    SMALLEST_BUFFER,
    TOGETHER,
    Step,
    buffer_bytes,
    ordered_pairs,
    ring_pairs,
)
from gpu_checks.p2p.process import Talk
from gpu_checks.p2p.state import HANG, Known, Opened
from gpu_checks.p2p.topology import read_links
from gpu_checks.parts import why_cuda
from gpu_checks.registry import Options, Report
from gpu_checks.triage import HUNG


def _open(options: Options, report: Report) -> Gpus | None:
    return open_gpus(options, report, NAME, "pairs", at_least=2)


def _pairs(count: int, quick: bool) -> list[tuple[int, int]]:
    return ring_pairs(count) if quick else ordered_pairs(count)


@dataclass(frozen=True)
class Tools:
    """What a test replaces: how GPUs are opened and data is moved, which pairs there are, and the time limits.

    ``step_s``: for one step, the slowest of which takes some hundred milliseconds on a link of 4 GB/s; more than the
    10 s after which a held stream goes on by itself. ``setup_s``: for cuInit and each context, without persistence
    some seconds a GPU. ``budget_s``: for all; None: of the check's own limit as much as leaves room for one more step.
    """

    open: Callable[[Options, Report], Gpus | None] = _open
    mover: Callable[[Gpus, list[list[bool]], int, Sequence[int]], Mover] = Mover
    pairs: Callable[[int, bool], list[tuple[int, int]]] = _pairs
    step_s: float = 15.0
    setup_s: float = 60.0
    budget_s: float | None = None

    def budget(self, options: Options) -> float:
        """Seconds after which no further step is begun.

        >>> Tools().budget(Options(timeout_s=120.0)), Tools().budget(Options(timeout_s=20.0))
        (100.0, 10.0)
        """
        if self.budget_s is not None:
            return self.budget_s
        return max(options.timeout_s - self.step_s - 5.0, options.timeout_s / 2)


def look(gpus: Gpus, pairs: list[tuple[int, int]], before: Opened | None, report: Report) -> Opened:
    """What there is. A worker that replaces another one asks nobody again who uses the GPUs: it was that worker."""
    addresses = [gpu.pci_bus_id for gpu in gpus.gpus]
    if before is not None:
        in_use, states = before.in_use, before.before
    else:
        report.doing("ask NVML who else uses the GPUs", hung=HUNG)
        in_use, states = gpus.others_active(), gpus.states()
    ordinals = sorted({gpu for pair in pairs for gpu in pair})
    free = []
    for ordinal in ordinals:
        gpus.ready(ordinal)
        free.append(gpus.api.free_bytes())
    report.doing("ask what lies between the GPUs", hung=HUNG)
    span = range(len(addresses))
    access = [[i == j or gpus.api.can_access_peer(i, j) for j in span] for i in span]
    links = read_links(gpus.session, addresses, access)
    size = buffer_bytes(min(free))
    if before is not None:
        size = min(size, before.buffer_bytes)
    return Opened(addresses, pairs, access, links, size, in_use, states)


def perform(mover: Mover, step: Step, known: Known) -> dict[str, Any]:
    """One step. CudaError where the driver refuses."""
    if step.what == ARRIVE:
        return arrive(mover, *step.pairs[0], step.engine)
    if step.what == LATENCY:
        return latency(mover, *step.pairs[0])
    if step.what == TOGETHER:
        return together(mover, step, known.alone(step.engine))
    return measure(mover, step.pairs, step.engine)


def usable(mover: Mover) -> bool:
    """Whether the contexts still work after an error: most errors of a kernel or a copy are their end."""
    try:
        for ordinal in mover.buffers:
            mover.api.synchronize(mover.on(ordinal).stream)
            mover.api.free_bytes()
    except CudaError:
        return False
    return True


def _set_up(options: Options, tools: Tools, known: Known, talk: Talk) -> tuple[Gpus, Mover] | None:
    """The GPUs and the buffers; None where there are none, which was said then."""
    gpus = tools.open(options, talk)
    if gpus is None:
        talk.tell(refused=True)
        return None
    try:
        opened = look(gpus, tools.pairs(len(gpus.gpus), options.quick), known.opened, talk)
        if opened.buffer_bytes < SMALLEST_BUFFER:
            message = f"a GPU has no room for two buffers of {SMALLEST_BUFFER >> 20} MiB in half of its free memory"
            talk.tell(failed={"cause": "cuda.out_of_memory", "message": message, "status": NOT_MEASURED})
            return None
        talk.doing("allocate the buffers", hung=HUNG)
        ordinals = sorted({gpu for pair in opened.pairs for gpu in pair})
        mover = tools.mover(gpus, opened.access, opened.buffer_bytes, ordinals)
    except CudaError as error:
        why = why_cuda(error, "cuda.out_of_memory", "cuda.context_failed", "before the first pair")
        talk.tell(failed={"cause": why.cause, "message": why.message, "status": why.status})
        return None
    known.opened = opened
    talk.tell(opened=opened.plain())
    return gpus, mover


def work(options: Options, tools: Tools, known: Known, talk: Talk) -> None:
    """The worker's whole life. ``known`` is what the workers before it have found; it goes on from there."""
    made = _set_up(options, tools, known, talk)
    if made is None:
        return
    gpus, mover = made
    for step in known.left(options.quick):
        if known.hinders(step) is not None:
            continue
        talk.doing(str(step), hung=HANG)
        talk.tell(begin=dataclasses.asdict(step))
        begin = time.monotonic()
        try:
            result = perform(mover, step, known)
        except CudaError as error:
            result = {"error": f"{step}: {error}"}
        seconds = time.monotonic() - begin
        known.note(step, result)
        talk.tell(done=dataclasses.asdict(step), result=result, seconds=seconds)
        if "error" in result and not usable(mover):
            talk.tell(lost=dataclasses.asdict(step))
            return
    talk.tell(after=gpus.states())
