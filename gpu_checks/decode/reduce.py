"""The all-reduce of a decode step: two in each layer, of the hidden state, through the code of the check allreduce."""

from __future__ import annotations

import dataclasses
import os
import time
from dataclasses import dataclass

from gpu_checks.allreduce import check as allreduce
from gpu_checks.allreduce.arithmetic import EAGER, GRAPH
from gpu_checks.allreduce.nccl_backend import NAME, UNIT
from gpu_checks.allreduce.ranks import Broken, Team
from gpu_checks.decode.models import Model
from gpu_checks.measurement import MEASURED, Measurement
from gpu_checks.parts import Parts, Why
from gpu_checks.registry import Options, Report

PER_LAYER = 2
"""Behind attention and behind the MLP."""

ELEMENT = 2

WHAT = "part.all_reduce"


@dataclass(frozen=True)
class Reduced:
    """What came out. ``measurement``: of one all-reduce, or why there is none."""

    measurement: Measurement | None
    why: Why | None
    ranks: int
    size: int
    begin: float


class _Quiet:
    """A report that passes on what is being done, and keeps what is measured."""

    def __init__(self, report: Report) -> None:
        self.report, self.kept = report, list[Measurement]()

    def add(self, measurement: Measurement) -> None:
        """Keep it."""
        self.kept.append(measurement)

    def doing(self, what: str, hung: str | None = None, died: str | None = None) -> None:
        """Pass it on."""
        self.report.doing(what, hung, died)


def measure(options: Options, report: Report, model: Model) -> Reduced:
    """One all-reduce over all GPUs. Has to run before this process starts CUDA: ranks are forked from it."""
    begin, size = time.monotonic(), options.batch * model.hidden * ELEMENT
    if options.tp == 1:
        return Reduced(None, Why("decode.one_rank", "tensor parallelism over 1 GPU reduces nothing"), 1, size, begin)
    quiet = _Quiet(report)
    wanted = dataclasses.replace(allreduce.wishes(options, os.environ), pairs=((GRAPH, size), (EAGER, size)))
    parts = Parts(quiet, NAME, UNIT, allreduce.METHOD)
    ranks, why = 0, None
    try:
        with Team(quiet) as team:
            leader = allreduce.Leader(options, wanted, quiet, team, parts)
            leader.run()
            ranks = leader.world
    except Broken as error:
        why = Why(error.cause, error.message)
    # In a graph, as engines have it; one by one where the library can't be recorded.
    found = next((each for each in parts.made if each.status == MEASURED), None)
    if found is not None:
        return Reduced(found, None, ranks, size, begin)
    said = next((each for each in quiet.kept if each.cause), None)
    if why is None and said is not None and said.cause is not None:
        # One GPU alone can't reduce: not a fault, and said by a name of this check.
        cause = "decode.one_gpu" if said.cause == "allreduce.one_gpu" else said.cause
        why = Why(cause, str(said.detail.get("message") or said.sentence))
    return Reduced(None, why or Why("decode.one_gpu", "no all-reduce was measured"), ranks, size, begin)
