"""Move data between GPUs, prove that it arrived, and take the time. Works in a worker that may be killed at any point.

nvbandwidth's copies are the model: a copy engine of the *source* pushes (its tests ``_write_ce``, one way and both
ways); of two ways at once each way's own speed counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from ctypes import byref, c_void_p
from dataclasses import dataclass
from typing import Any

from gpu_checks.cuda_api import CudaError
from gpu_checks.gpus import Gpus, Ready
from gpu_checks.p2p.plan import CE, PARTS, SM_READ, SMALL, TURNS, WARM_UP, copy_bytes, reads, seed, target_s
from gpu_checks.timing import summary

FILLER = 0xA5
"""What stands in the target before a copy: neither zeros, nor what an earlier copy has left there."""

TOO_MANY_PEERS = 711
"""CUDA_ERROR_TOO_MANY_PEERS: without NVSwitch a GPU can reach eight others at a time."""

GUESS_TURNS = 4
"""Copies of a small part that say how fast a link is, roughly: enough to choose how much to move for the figure."""


@dataclass(frozen=True)
class Buffers:
    """A GPU's two buffers of one size: what others get from it, and what it gets from others."""

    source: int
    target: int
    size: int


@dataclass(frozen=True)
class Flow:
    """Data on its way from (GPU, address) to (GPU, address), in one stream of the GPU that moves it.

    ``each`` bytes a copy, ``parts`` places one after the other; then the first again. ``mark``: the pattern's seed.
    """

    source: int
    target: int
    engine: str
    source_address: int
    target_address: int
    each: int
    parts: int
    stream: c_void_p
    mark: int

    @property
    def runs_on(self) -> int:
        """The GPU that moves it."""
        return self.target if self.engine == SM_READ else self.source


class Mover:
    """The buffers of all GPUs, the streams, and the moves between them."""

    def __init__(self, gpus: Gpus, access: list[list[bool]], size: int, ordinals: Sequence[int]) -> None:
        """Make contexts and buffers. CudaError where that fails."""
        self.gpus, self.api, self.access, self.size = gpus, gpus.api, access, size
        self.buffers: dict[int, Buffers] = {}
        self._streams: dict[tuple[int, int], c_void_p] = {}
        self._peers: dict[int, list[int]] = {ordinal: [] for ordinal in ordinals}
        for ordinal in ordinals:
            gpus.ready(ordinal)
            self.buffers[ordinal] = Buffers(self.api.allocate(size), self.api.allocate(size), size)

    def on(self, ordinal: int) -> Ready:
        """A GPU with its kernels; its context becomes the current one."""
        return self.gpus.ready(ordinal)

    def stream(self, ordinal: int, number: int) -> c_void_p:
        """The GPU's stream with this number; made where it is new."""
        if (ordinal, number) not in self._streams:
            ready = self.on(ordinal)
            self._streams[ordinal, number] = ready.stream if number == 0 else self.api.stream()
        return self._streams[ordinal, number]

    def open(self, i: int, j: int) -> None:
        """Let two GPUs reach each other's memory, as far as CUDA allows it."""
        for a, b in ((i, j), (j, i)):
            if a == b or not self.access[a][b] or b in self._peers[a]:
                continue
            try:
                self.api.enable_peer(a, b)
            except CudaError as error:
                if error.number != TOO_MANY_PEERS:
                    raise
                self._close_all(a)
                self.api.enable_peer(a, b)
            self._peers[a].append(b)

    def _close_all(self, ordinal: int) -> None:
        """Take back everything that a GPU may reach."""
        context = c_void_p()
        for peer in self._peers[ordinal]:
            self.on(peer)
            self.api.call("cuCtxGetCurrent", byref(context))
            self.on(ordinal)
            self.api.call("cuCtxDisablePeerAccess", context)
        self._peers[ordinal] = []

    def open_at_once(self, pairs: Sequence[tuple[int, int]]) -> bool:
        """Open all of these together; False where the driver does not allow one GPU so many others."""
        for pair in pairs:
            self.open(*pair)
        ways = [way for i, j in pairs for way in ((i, j), (j, i)) if i != j and self.access[way[0]][way[1]]]
        return all(b in self._peers[a] for a, b in ways)

    def direct(self, flow: Flow) -> bool:
        """Whether the data goes straight from GPU to GPU, and not through the host."""
        a, b = reads(flow.engine, flow.source, flow.target)
        return flow.source == flow.target or self.access[a][b]

    def flow(self, i: int, j: int, engine: str, each: int, parts: int = 1, number: int = 0) -> Flow:
        """A flow over the whole buffers of a pair."""
        on = j if engine == SM_READ else i
        source, target = self.buffers[i].source, self.buffers[j].target
        mark = seed(i, j, engine, each, parts, number)
        return Flow(i, j, engine, source, target, each, parts, self.stream(on, number), mark)

    def prepare(self, flow: Flow) -> None:
        """The pattern into the source, something else into the target."""
        for ordinal in (flow.source, flow.target):
            ready, size = self.on(ordinal), flow.each * flow.parts
            if ordinal == flow.source:
                ready.kernels.pattern(flow.source_address, size, flow.mark, ready.stream)
            if ordinal == flow.target:
                self.api.fill(flow.target_address, FILLER, size, ready.stream)
            self.api.synchronize(ready.stream)

    def move(self, flow: Flow, turn: int) -> None:
        """Queue one copy."""
        ready, offset = self.on(flow.runs_on), turn % flow.parts * flow.each
        target, source = flow.target_address + offset, flow.source_address + offset
        if flow.engine == CE:
            self.api.copy(target, source, flow.each, flow.stream)
        else:
            ready.kernels.copy(target, source, flow.each, flow.stream)

    def prove(self, flow: Flow, turns: int) -> dict[str, int] | None:
        """Compare what arrived in this many copies, on the target's own GPU; None where all is right."""
        ready, size = self.on(flow.target), flow.each * min(turns, flow.parts)
        wrong = ready.kernels.verify(flow.target_address, size, flow.mark, ready.stream)
        return None if wrong is None else dataclasses.asdict(wrong)


def timed(mover: Mover, flows: Sequence[Flow], turns: int, warm_up: int) -> list[list[float]]:
    """Move every flow ``turns`` times, all beginning together: for each flow the microseconds at which each turn ended.

    All is queued behind the first stream, which is held; only staged copies are not, for there the driver may wait for
    the copy on the host's side. Every stream runs its warm-up first, and all wait for the last of these.
    """
    api, first = mover.api, flows[0]
    marks = []
    for flow in flows:
        mover.on(flow.runs_on)
        marks.append([api.event() for _ in range(turns + 2)])  # warmed up, begin, and each turn's end
    ready = mover.on(first.runs_on)
    gate = api.event()
    hold = ready.timer.held(first.stream) if all(mover.direct(flow) for flow in flows) else contextlib.nullcontext()
    with hold:
        api.record(gate, first.stream)
        for flow, events in zip(flows, marks):
            mover.on(flow.runs_on)
            api.wait(flow.stream, gate)
            for turn in range(warm_up):
                mover.move(flow, turn)
            api.record(events[0], flow.stream)
        mover.on(first.runs_on)
        for events in marks[1:]:
            api.wait(first.stream, events[0])
        api.record(marks[0][1], first.stream)
        for flow, events in zip(flows[1:], marks[1:]):
            mover.on(flow.runs_on)
            api.wait(flow.stream, marks[0][1])
            api.record(events[1], flow.stream)
        for turn in range(turns):
            for flow, events in zip(flows, marks):
                mover.move(flow, turn)
                api.record(events[2 + turn], flow.stream)
    for flow in flows:
        mover.on(flow.runs_on)
        api.synchronize(flow.stream)
    ends = [[api.elapsed_us(events[1], end) for end in events[2:]] for events in marks]
    for event in [gate, *(event for events in marks for event in events)]:
        api.destroy_event(event)
    return ends


def turns_within(ends: Sequence[float], window_us: float) -> float:
    """How many turns of a flow were through at a time; the one under way counts by the part of it that had passed.

    >>> turns_within([10.0, 20.0, 40.0], 30.0)
    2.5
    """
    done = sum(1 for end in ends if end <= window_us)
    if done == len(ends):
        return float(done)
    begin = ends[done - 1] if done else 0.0
    return done + (window_us - begin) / (ends[done] - begin)


def speeds_together(ends: Sequence[Sequence[float]], each: int) -> list[float]:
    """GB/s of every flow while all of them ran: until the first of them was through.

    >>> speeds_together([[10.0, 20.0], [20.0, 30.0]], 1_000_000)
    [100.0, 50.0]
    """
    window = min(flow[-1] for flow in ends)
    return [turns_within(flow, window) * each / window / 1e3 for flow in ends]


def turn_speeds(ends: Sequence[float], each: int) -> list[float]:
    """GB/s of each turn of one flow."""
    return [each / (end - begin) / 1e3 for begin, end in zip([0.0, *ends], ends)]


def arrive(mover: Mover, i: int, j: int, engine: str) -> dict[str, Any]:
    """The first small copy of a pair: that it ends at all, and what is in the target then."""
    mover.open(i, j)
    flow = mover.flow(i, j, engine, SMALL)
    mover.prepare(flow)
    mover.move(flow, 0)
    mover.on(flow.runs_on)
    mover.api.synchronize(flow.stream)
    return {"wrong": mover.prove(flow, 1), "checked_bytes": SMALL}


def guess(mover: Mover, i: int, j: int, engine: str) -> float:
    """GB/s, roughly: of the smallest part, after one turn that wakes the link up."""
    mover.open(i, j)
    part = mover.size // PARTS[-1]
    flow = mover.flow(i, j, engine, part, parts=GUESS_TURNS)
    return turns_speed(timed(mover, [flow], GUESS_TURNS, 1)[0], part)


def turns_speed(ends: Sequence[float], each: int) -> float:
    """GB/s over all turns of one flow."""
    return each * len(ends) / ends[-1] / 1e3


def measure(mover: Mover, pairs: Sequence[tuple[int, int]], engine: str) -> dict[str, Any]:
    """The speed of one way, or of both ways of a pair at once; what was moved is proven afterwards.

    Returns ``flows``, in the order of ``pairs``: speed, samples, and what was wrong.
    """
    slowest = min(guess(mover, i, j, engine) for i, j in pairs)
    each = copy_bytes(mover.size, slowest, within_s=target_s(len(mover.buffers)))
    parts = min(mover.size // each, TURNS)
    flows = [mover.flow(i, j, engine, each, parts) for i, j in pairs]
    for flow in flows:
        mover.prepare(flow)
    ends = timed(mover, flows, TURNS, WARM_UP)
    together = speeds_together(ends, each)
    found = []
    for flow, row, shared in zip(flows, ends, together):
        samples = summary(turn_speeds(row, each))
        found.append(
            {
                "gb_s": samples.median if len(flows) == 1 else shared,
                "samples": dataclasses.asdict(samples),
                "wrong": mover.prove(flow, TURNS),
            }
        )
    moved = {"copy_bytes": each, "copies": TURNS, "buffers": parts, "checked_bytes": each * parts}
    return {"flows": found, "moved": {**moved, "held": mover.direct(flows[0])}}
