"""The check ``allreduce``: sums over all GPUs of the host through NCCL, from 8 B to 512 MiB, eager and in CUDA graphs.

This process only leads: each rank has a process of its own (or all have one, where that layout is asked for), see
``ranks``; what they do is in ``collective_rank``. A figure is microseconds per operation on the device: the slowest
rank's time of each sample, and of these the median.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Callable

from gpu_checks.allreduce import nccl
from gpu_checks.allreduce.arithmetic import (
    EAGER,
    GRAPH,
    LARGE_BYTES,
    MODES,
    QUICK,
    SIZES,
    TOKEN_BYTES,
    bandwidths,
    chain_length,
    plan,
    slowest,
)
from gpu_checks.allreduce.backend import Backend, Member
from gpu_checks.allreduce.channel import Channel, serve
from gpu_checks.allreduce.nccl_backend import NAME, UNIT, NcclBackend
from gpu_checks.allreduce.rank import CLOSE, IDENTIFY, JOIN, SCOUT, STATE, TIME, TRY, Worker
from gpu_checks.allreduce.ranks import HUNG, Broken, Team
from gpu_checks.measurement import MEASURED, Samples
from gpu_checks.parts import Parts, Why
from gpu_checks.registry import Options, Report
from gpu_checks.timing import summary

METHOD = "all-reduce of 12 KiB (a token's hidden state) over all GPUs in a CUDA graph: the slowest rank, the median"
BANDWIDTH_METHOD = "bytes x 2(n-1)/n by the time of an eager all-reduce (busbw of nccl-tests)"

LAYOUT, BACKEND, SHARE = "GPU_CHECKS_LAYOUT", "GPU_CHECKS_BACKEND", "GPU_CHECKS_SHARE_GPU"
"""Variables of this check: ``process`` (one for each GPU, as engines run) or ``single`` (one for all, nccl-tests'
default); and for its own tests ``gloo``, and two ranks on one GPU."""

PROCESS, SINGLE = "process", "single"
HEADLINE = f"{NAME}.{GRAPH}.{TOKEN_BYTES}"

JOIN_LIMIT_S = 45.0
"""For contexts and NCCL's start: some seconds on a host with 8 GPUs; the library itself is read from disk before."""

STEP_LIMIT_S = 20.0
"""For one pass over one size, beside what the pass is expected to take. A healthy one takes well below a second."""

GLOO_LARGEST_BYTES = 1 << 20
"""CPUs of a test's machine need too long for more."""


def budget(timeout_s: float) -> float:
    """Seconds after which no further size is begun: the ranks' start and one more pass have to fit into the limit.

    What is so slow has shown it: all sizes take some 4 s over NVLink.

    >>> budget(120.0), budget(40.0)
    (50.0, 10.0)
    """
    return max(timeout_s - JOIN_LIMIT_S - STEP_LIMIT_S - 5.0, timeout_s / 4)


@dataclass(frozen=True)
class Wishes:
    """How to measure. ``backend`` makes the one of the process with this number."""

    backend: Callable[[int], Backend]
    pairs: tuple[tuple[str, int], ...]
    layout: str = PROCESS
    notes: tuple[str, ...] = ()
    join_limit_s: float = JOIN_LIMIT_S
    step_limit_s: float = STEP_LIMIT_S
    budget_s: float | None = None


def wishes(options: Options, environment: Mapping[str, str]) -> Wishes:
    """What the caller and the environment want. Raises ValueError for a layout or backend that does not exist."""
    pairs = QUICK if options.quick else tuple((mode, size) for mode in MODES for size in SIZES)
    layout, backend = environment.get(LAYOUT, PROCESS), environment.get(BACKEND, "nccl")
    if layout not in (PROCESS, SINGLE) or backend not in ("nccl", "gloo"):
        raise ValueError(f"{LAYOUT}={layout} {BACKEND}={backend}: {PROCESS} or {SINGLE}, nccl or gloo")
    if backend == "gloo":
        from gpu_checks.allreduce.gloo_backend import GlooBackend  # noqa: PLC0415 - for tests only

        small = dict.fromkeys((*pairs, (EAGER, TOKEN_BYTES)))
        return Wishes(lambda _number: GlooBackend(), tuple(pair for pair in small if pair[1] <= GLOO_LARGEST_BYTES))
    if environment.get(SHARE) == "1":
        note = "two ranks share one GPU and talk over the loopback: these are figures of a test, not of the host"
        return Wishes(lambda number: NcclBackend(number, share=True), pairs, notes=(note,))
    notes: tuple[str, ...] = ()
    if environment.get("NCCL_P2P_DISABLE", "0") != "0":
        notes = ("NCCL_P2P_DISABLE is set: GPU to GPU goes through the host's memory",)
    return Wishes(NcclBackend, pairs, layout, notes)


def layout_of(members: list[Member], layout: str) -> dict[int, list[Member]]:
    """Which process holds which ranks.

    >>> two = [Member(0, 0), Member(1, 1)]
    >>> {number: len(held) for number, held in layout_of(two, "process").items()}, len(layout_of(two, "single")[0])
    ({0: 1, 1: 1}, 2)
    """
    return {0: members} if layout == SINGLE else {member.rank: [member] for member in members}


def rates(samples: Samples, size: int, world: int) -> Samples:
    """busbw in GB/s of samples in microseconds: the slowest fifth of the times is that of the rates."""
    median, p20, p80 = (bandwidths(size, each, world)[1] for each in (samples.median, samples.p80, samples.p20))
    return Samples(samples.n, median, p20, p80)


@dataclass
class Leader:
    """One run of the check. ``known``: what goes into the record of the whole."""

    options: Options
    wishes: Wishes
    report: Report
    team: Team
    parts: Parts
    known: dict[str, Any] = field(default_factory=dict)
    world: int = 0
    largest: int = 0
    graphs: bool = True

    @property
    def budget_s(self) -> float:
        """Seconds for all sizes."""
        return budget(self.options.timeout_s) if self.wishes.budget_s is None else self.wishes.budget_s

    def run(self) -> bool:
        """Measure all sizes; False where the scout has already said why nothing can be measured. Raises Broken."""
        self._start(0)
        found = self.team.ask({0: {"do": SCOUT}})[0]["found"]
        if found is None:
            return False
        members = [Member(**each) for each in found["members"]]
        self.world = len(members)
        self.known.update(found["record"], ranks=self.world, layout=self.wishes.layout, notes=list(self.wishes.notes))
        busy = self.known.get("others_active")
        if busy is not None:
            for mode, size in self.wishes.pairs:
                self._refuse(mode, size, Why("gpu.in_use", busy))
            return True
        before = self._states()
        self._join(layout_of(members, self.wishes.layout))
        deadline = time.monotonic() + self.budget_s
        for mode, size in self.wishes.pairs:
            self._one(mode, size, deadline)
        self.known["gpus"] = {"before": before, "after": self._states()}
        self._all({"do": CLOSE}, self.wishes.step_limit_s)
        return True

    def _start(self, number: int, label: str = "") -> None:
        """Start the process with this number. Its backend is made in it."""
        options, make = self.options, self.wishes.backend

        def life(channel: Channel) -> None:
            serve(channel, Worker(make(number), options, channel).carry)

        self.team.start(number, life, label)

    def _all(self, order: dict[str, Any], limit_s: float) -> dict[int, dict[str, Any]]:
        """The same order to every process."""
        return self.team.ask(dict.fromkeys(self.team.ranks, order), limit_s)

    def _states(self) -> list[dict[str, Any]]:
        states: list[dict[str, Any]] = self.team.ask({0: {"do": STATE}}, self.wishes.step_limit_s)[0]["states"]
        return states

    def _join(self, held: dict[int, list[Member]]) -> None:
        """Start the other processes, and let all ranks find each other."""
        begin = time.monotonic()
        labels = {number: " and ".join(f"rank {each.rank} on {each.name}" for each in held[number]) for number in held}
        self.team.ranks[0].label = labels[0]
        for number in held:
            if number != 0:
                self._start(number, labels[number])
        identifier = self.team.ask({0: {"do": IDENTIFY}}, self.wishes.join_limit_s)[0]["identifier"]
        largest = max(size for _, size in self.wishes.pairs)
        common = {"do": JOIN, "world": self.world, "identifier": identifier, "largest": largest}
        orders = {number: {**common, "members": [asdict(each) for each in held[number]]} for number in held}
        joined = self.team.ask(orders, self.wishes.join_limit_s)
        self.largest = min(each["largest"] for each in joined.values())
        self.graphs = all(each["graphs"] for each in joined.values())
        self.known.update(joined[0]["record"])
        self.known["transports"] = nccl.transports("\n".join(self.team.said(number) for number in held))
        self.known["join_s"] = round(time.monotonic() - begin, 6)

    def _refuse(self, mode: str, size: int, why: Why, begin: float | None = None) -> None:
        begin = time.monotonic() if begin is None else begin
        detail = {"bytes": size, "mode": mode, "layout": self.wishes.layout, "ranks": self.world}
        self.parts.refuse(f"{NAME}.{mode}.{size}", UNIT, _method(mode, self.wishes.layout), why, begin, detail)
        if _has_bandwidth(mode, size):
            self.parts.refuse(f"{NAME}.busbw.{size}", "gb_s", BANDWIDTH_METHOD, why, begin, detail)

    def _unable(self, mode: str, size: int, deadline: float) -> Why | None:
        """Why a size is not tried."""
        if mode == GRAPH and not self.graphs:
            return Why("allreduce.graph_unsupported", "this library of collectives works without CUDA graphs")
        if size > self.largest:
            text = f"there is room for two buffers of {self.largest} bytes only, on the fullest GPU"
            return Why("cuda.out_of_memory", text)
        if time.monotonic() > deadline:
            text = f"the sizes before took longer than the {self.budget_s:g} s that there are for all"
            return Why("allreduce.out_of_time", text)
        return None

    def _one(self, mode: str, size: int, deadline: float) -> None:
        """One size in one mode: the data of a single operation, then the timed pass with its data."""
        begin = time.monotonic()
        why = self._unable(mode, size, deadline)
        if why is not None:
            self._refuse(mode, size, why, begin)
            return
        limit = self.wishes.step_limit_s
        self.report.doing(f"all-reduce {size} bytes over {self.world} ranks, {mode}", hung=HUNG)
        order = {"do": TRY, "mode": mode, "size": size}
        tried = self._all(order, limit)
        found = plan(max(each["estimate_us"] for each in tried.values()))
        expected_s = max(each["estimate_us"] for each in tried.values()) * found.operations * (found.samples + 2) / 1e6
        timed = self._all({**order, "do": TIME, **asdict(found)}, limit + 3 * expected_s)
        wrong = [each["wrong"] for answers in (tried, timed) for each in answers.values() if each["wrong"] is not None]
        if wrong:
            text = f"all-reduce of {size} bytes, {mode}: {wrong[0]['message']}"
            self._refuse(mode, size, Why("allreduce.wrong_data", text), begin)
            return
        samples = summary(slowest([each["times_us"] for each in timed.values()]))
        algorithm, bus = bandwidths(size, samples.median, self.world)
        detail = {
            "bytes": size,
            "mode": mode,
            "layout": self.wishes.layout,
            "ranks": self.world,
            "algbw_gb_s": round(algorithm, 6),
            "busbw_gb_s": round(bus, 6),
            "operations_per_sample": found.operations,
            "fresh_input_every": chain_length(self.world),
            "data": "a single operation and the last timed sample compared bit by bit, on every rank",
        }
        self.parts.add(f"{NAME}.{mode}.{size}", UNIT, _method(mode, self.wishes.layout), samples, begin, detail)
        if _has_bandwidth(mode, size):
            bandwidth = rates(samples, size, self.world)
            self.parts.add(f"{NAME}.busbw.{size}", "gb_s", BANDWIDTH_METHOD, bandwidth, begin, detail)


def _method(mode: str, layout: str) -> str:
    how = {PROCESS: "a process for each rank", SINGLE: "one process for all ranks"}[layout]
    return f"{mode} all-reduces of float32, each on its forerunner's output; the slowest rank counts; {how}"


def _has_bandwidth(mode: str, size: int) -> bool:
    """Whether a size gives a bandwidth of its own name, which can be held against a link."""
    return mode == EAGER and size >= LARGE_BYTES


def run(options: Options, report: Report, wanted: Wishes) -> None:
    """Measure, and say in the whole what broke where something did."""
    parts = Parts(report, NAME, UNIT, METHOD)
    with Team(report) as team:
        leader = Leader(options, wanted, report, team, parts)
        why: Why | None = None
        try:
            if not leader.run():
                return
        except Broken as error:
            why = Why(error.cause, error.message)
            leader.known["broken"] = error.detail
        headline = next((each for each in parts.made if each.name == HEADLINE and each.status == MEASURED), None)
        parts.whole(None if headline is None else headline.value, leader.known, why)


def check(options: Options, report: Report) -> None:
    """Measure as the environment says."""
    run(options, report, wishes(options, os.environ))
