"""The check ``p2p``: move data between every pair of GPUs, compare it, and take the time. Pairs that hang cost no more
than themselves: see ``p2p_worker``.

The questions for each pair, in this order: does a small copy end, is its data right, how fast are large ones. The
answers are measurements; whether they are good enough is decided elsewhere.
"""

from __future__ import annotations

import functools
import os
import time
from typing import Any

from gpu_checks.allreduce import nccl
from gpu_checks.host_view import read
from gpu_checks.measurement import ERROR, Measurement, from_dict
from gpu_checks.p2p.links import NVLINK
from gpu_checks.p2p.overall import METHOD, missing, overall
from gpu_checks.p2p.plan import NAME, Step
from gpu_checks.p2p.process import DIED, ENDED, HUNG, STOPPED, Ending, follow
from gpu_checks.p2p.results import accesses, environment, of_step
from gpu_checks.p2p.state import FAILED, HANG, Known, Opened
from gpu_checks.p2p.steps import Tools, work
from gpu_checks.p2p.suspects import in_words, suspects
from gpu_checks.registry import Options, Report
from gpu_checks.visible import VARIABLE

TOOLS = Tools()

MOST_LOST = 2
"""Workers that may be lost. Two hung pairs tell enough, and each costs its whole limit."""

ENVIRONMENT = (VARIABLE, "CUDA_DEVICE_ORDER", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE")
"""What of the environment decides which GPUs there are, and whether the workload's collectives use the links."""


class Course:
    """The check as it goes on: what workers say is taken in, and reported at once."""

    def __init__(self, options: Options, report: Report, tools: Tools) -> None:
        """Begin; the budget of time counts from here."""
        self.options, self.report, self.tools = options, report, tools
        self.budget_s = tools.budget(options)
        self.begin = time.monotonic()
        self.known = Known()
        self.measurements: list[Measurement] = []
        self.step: Step | None = None
        self.hung_cause: str | None = None
        self.doing = ""
        self.refused = self.lost = False
        self.failed: dict[str, Any] | None = None
        self.after: list[dict[str, Any]] = []
        self.losses: list[dict[str, Any]] = []
        self.workers = 0
        self.why = ""

    def add(self, *measurements: Measurement) -> None:
        """Report, and remember for the matrices."""
        for measurement in measurements:
            self.measurements.append(measurement)
            self.report.add(measurement)

    def seconds(self) -> float:
        """Since the check began."""
        return time.monotonic() - self.begin

    def hear(self, message: dict[str, Any]) -> float | None:
        """One thing that a worker said; how long the next may take."""
        if "measurement" in message:
            self._refusal(from_dict(message["measurement"]))
        elif "doing" in message:
            self.doing, self.hung_cause = message["doing"], message.get("hung")
            self.report.doing(message["doing"], message.get("hung"), message.get("died"))
        else:
            self._told(message["told"])
        if self.seconds() > self.budget_s and self.known.opened is not None:
            self.why = f"all the time that there was, {self.budget_s:g} s, had passed"
            return None
        return self.tools.setup_s if self.step is None else self.tools.step_s

    def _refusal(self, measurement: Measurement) -> None:
        """CUDA could not be started: the answer of the whole check, unless an earlier worker came further."""
        if self.known.opened is None:
            self.report.add(measurement)
        else:
            self.why = f"another worker could not start: {measurement.detail.get('message')}"

    def _told(self, told: dict[str, Any]) -> None:
        self.refused = self.refused or "refused" in told
        if "lost" in told:
            self.lost = True
            self.known.leave(_step(told["lost"]))
        self.failed = told.get("failed", self.failed)
        self.after = told.get("after", self.after)
        if "opened" in told and self.known.opened is None:
            self.known.opened = Opened.from_plain(told["opened"])
            self.add(environment(_environment()), *accesses(self.known.opened))
        if "begin" in told:
            self.step = _step(told["begin"])
        if "done" in told and self.known.opened is not None:
            step, result = _step(told["done"]), told["result"]
            self.step = None
            self.known.note(step, result)
            self.add(*of_step(self.known, self.known.opened, step, result, told["seconds"]))

    def lose(self, ending: Ending) -> None:
        """A worker that hung, or died of itself: what it was doing is the error of that pair."""
        hung = ending.kind == HUNG
        limit = self.tools.setup_s if self.step is None else self.tools.step_s
        how = f"no end within {limit:g} s, killed" if hung else f"the process that did it ended: {ending.how}"
        loss = {
            "kind": ending.kind,
            "doing": self.doing,
            "how": how,
            "state": ending.state,
            "survivors": ending.survivors,
        }
        self.losses.append(loss)
        step, opened = self.step, self.known.opened
        self.step = None
        if step is None or opened is None:
            return
        found = suspects([opened.addresses[gpu] for gpu in sorted({gpu for pair in step.pairs for gpu in pair})])
        by_nvlink = all(opened.links[pair].kind == NVLINK for pair in step.pairs)
        message = f"{step}: {how}; {in_words(found, by_nvlink)}" if hung else f"{step}: {how}"
        self.known.lose(step, HANG if hung else FAILED, message)
        result = {**self.known.results[step.key], "suspects": found, "state": ending.state}
        result["survivors"] = ending.survivors
        self.add(*of_step(self.known, opened, step, result, ending.seconds))

    def next_worker(self) -> bool:
        """Run a worker to its end. True where another one should go on."""
        self.workers += 1
        self.step, self.lost, self.failed = None, False, None
        function = functools.partial(work, self.options, self.tools, self.known)
        ending = follow(function, self.hear, self.tools.setup_s)
        if ending.kind in (HUNG, DIED):
            at_a_step = self.step is not None
            self.lose(ending)
            if not at_a_step:
                self.why = f"a worker ended while it was about to: {self.doing or 'start'} ({self.losses[-1]['how']})"
                return False
        elif self.lost:
            self.losses.append({"kind": FAILED, "doing": self.doing, "how": "CUDA's contexts did not survive an error"})
        if ending.kind == STOPPED or self.refused or self.failed is not None:
            return False
        if ending.kind == ENDED and not self.lost:
            return False
        if len(self.losses) >= MOST_LOST:
            self.why = f"{len(self.losses)} workers were lost"
            return False
        return bool(self.known.left(self.options.quick))

    def finish(self) -> None:
        """What is missing, and the sum."""
        opened = self.known.opened
        if self.refused and opened is None:
            return  # why was reported where CUDA was started
        if opened is None:
            self._without_gpus()
            return
        if self.failed is not None:
            self.why = self.why or str(self.failed["message"])
        reported = {each.name for each in self.measurements}
        self.add(*missing(self.known, opened, self.options.quick, reported, self.why))
        more = {
            "gpus": {"before": opened.before, "after": self.after},
            "environment": _environment(),
            "workers": self.workers,
            "lost": self.losses,
            "suspects": suspects(opened.addresses) if self.known.bad else None,
        }
        self.add(overall(self.known, opened, self.measurements, self.seconds(), self.why, more))

    def _without_gpus(self) -> None:
        """No worker came as far as the buffers."""
        status, cause, message = ERROR, self.hung_cause or "check.timeout", self.why
        if self.failed is not None:
            status, cause, message = (self.failed[key] for key in ("status", "cause", "message"))
        elif not self.losses or self.losses[-1]["kind"] != HUNG:
            cause = "check.crashed"
        detail = {"message": message or "no worker said anything", "lost": self.losses}
        seconds = round(self.seconds(), 6)
        self.add(Measurement(NAME, None, "pairs", METHOD, status, cause, seconds, detail=detail))


def _step(plain: dict[str, Any]) -> Step:
    """A step back from the pipe, where tuples have become lists."""
    return Step(**{**plain, "pairs": tuple((i, j) for i, j in plain["pairs"])})


def _environment() -> dict[str, str]:
    """What is set of it, NCCL's own files included, which count where the environment says nothing."""
    texts = [read(path) or "" for path in nccl.configuration_files(os.environ)]
    known = {**nccl.configured(texts), **os.environ}
    return {name: known[name] for name in ENVIRONMENT if name in known}


def check(options: Options, report: Report, tools: Tools = TOOLS) -> None:
    """Measure every pair, then patterns; then sum up."""
    course = Course(options, report, tools)
    while course.next_worker():
        pass
    course.finish()
