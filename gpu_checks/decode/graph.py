"""Time of recorded work: the whole step as one CUDA graph, and each part as a graph of all its places, in turn.

A part's graph has the very kernels that the step has of it, one after the other, each with the weights of its own
layer: they come from memory, as in the step. Where all of them together are smaller than 3 x L2, copies at other
addresses are gone through as well.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, Protocol

from gpu_checks.decode.part import Seen, stored_bytes
from gpu_checks.gemm.run import Bench
from gpu_checks.measurement import Samples
from gpu_checks.timing import L2_MULTIPLE, rotation, summary

COUNT, WARM_UP = 15, 2
"""Launches of a graph that are timed, and before."""

LEAST_US = 1000.0
"""A graph takes at least so long: between two launches of one the GPU waits some microseconds, less than 1 % of it."""

MOST_REPEATS = 64

ROTATED_BYTES = 1 << 20
"""What reads less at all places together (norms) is in the L2 in the part's graph; in the step it has to be fetched
again, in less than a microsecond each."""

MOST_COPIED = 4
"""Copies are made of whole tensors. Where so many times more is stored than is read (experts), none are."""


class Clock(Protocol):
    """What records work and takes its time: a GPU's graphs, or in tests the CPU."""

    l2_bytes: int

    def record(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """Run the work once, record it; what launches it again."""

    def times(self, launch: Callable[[], Any], count: int) -> list[float]:
        """Microseconds of each launch on the device, one right after the other."""

    def each(self, work: Callable[[int], Any], count: int) -> list[float]:
        """Microseconds of each of ``count`` pieces of work that are kernels, no graphs."""

    def wait(self) -> None:
        """Return when the device is idle."""


class GraphClock:
    """CUDA graphs through torch, in the stream of a bench. The caller has made that stream torch's current one."""

    def __init__(self, bench: Bench) -> None:
        """Of an opened bench."""
        self.bench, self.torch, self.l2_bytes = bench, bench.torch, bench.l2_bytes

    def record(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """Run the work once, so that all code is loaded and workspaces are there; then record it."""
        work()
        graph = self.torch.cuda.CUDAGraph()
        # thread_local: what a driver's or a library's other thread does meanwhile is no part of the graph.
        with self.torch.cuda.graph(graph, stream=self.bench.stream, capture_error_mode="thread_local"):
            work()
        launch: Callable[[], Any] = graph.replay
        return launch

    def times(self, launch: Callable[[], Any], count: int) -> list[float]:
        """An event between launches. The stream is not held: a launch takes the host less time than the GPU."""
        api, stream = self.bench.gpus.api, self.bench.handle
        api.use(self.bench.identity.ordinal)
        for _ in range(WARM_UP):
            launch()
        api.synchronize(stream)
        events = [api.event() for _ in range(count + 1)]
        try:
            launch()  # the GPU is at work when the first event comes
            for event in events[:-1]:
                api.record(event, stream)
                launch()
            api.record(events[-1], stream)
            api.synchronize(stream)
            return [api.elapsed_us(begin, end) for begin, end in zip(events, events[1:])]
        finally:
            for event in events:
                api.destroy_event(event)

    def each(self, work: Callable[[int], Any], count: int) -> list[float]:
        """Queued while the stream is held, an event between."""
        return self.bench.ready.timer.each(self.bench.handle, work, count)

    def wait(self) -> None:
        """Wait for the stream."""
        self.bench.gpus.api.synchronize(self.bench.handle)


@dataclass(frozen=True)
class Timed:
    """What a part takes. ``samples``: microseconds for all places that were given.

    ``copies``: of its tensors, all gone through; ``repeats``: of that in one graph; ``read_bytes``: in one step.
    """

    samples: Samples
    places: int
    copies: int
    repeats: int
    read_bytes: int
    cold: bool

    @property
    def each_us(self) -> float:
        """Of one place."""
        return self.samples.median / self.places

    def scaled(self, count: float) -> Samples:
        """For so many places."""
        factor, own = count / self.places, self.samples
        return Samples(own.n, own.median * factor, own.p20 * factor, own.p80 * factor)


def copies_of(read_bytes: int, stored: int, l2_bytes: int) -> int:
    """How many copies of a part's tensors are gone through, the tensors themselves included.

    >>> copies_of(25 << 20, 25 << 20, 60 << 20), copies_of(302 << 20, 302 << 20, 60 << 20), copies_of(4096, 4096, 1)
    (8, 1, 1)
    >>> copies_of(2 << 20, 400 << 20, 60 << 20)
    1
    """
    if read_bytes < ROTATED_BYTES or stored > MOST_COPIED * read_bytes:
        return 1
    return rotation(read_bytes, l2_bytes)


def repeats_for(once_us: float) -> int:
    """How often all places are gone through in one graph.

    >>> repeats_for(300.0), repeats_for(2000.0), repeats_for(1.0)
    (4, 1, 64)
    """
    return max(1, min(MOST_REPEATS, math.ceil(LEAST_US / once_us)))


def time_part(clock: Clock, seen: Sequence[Seen], count: int = COUNT) -> Timed:
    """What a part takes at all of its places."""
    read = sum(each.touched for each in seen)
    stored = sum(stored_bytes(each.place.own[name]) for each in seen for name in each.place.part.reads)
    copies = copies_of(read, stored, clock.l2_bytes)
    all_of_them = [*seen]
    for _ in range(copies - 1):
        all_of_them += [Seen(each.place.copied(), each.values) for each in seen]

    def graph(repeats: int) -> Callable[[], Any]:
        def work() -> None:
            for _ in range(repeats):
                for each in all_of_them:
                    each.run()

        return clock.record(work)

    launch, repeats = graph(1), 1
    wanted = repeats_for(summary(clock.times(launch, 3)).median)
    if wanted > 1:
        del launch
        launch, repeats = graph(wanted), wanted
    times = [each / (repeats * copies) for each in clock.times(launch, count)]
    return Timed(summary(times), len(seen), copies, repeats, read, copies * read > L2_MULTIPLE * clock.l2_bytes)


def in_graph(clock: Clock, works: Sequence[Callable[[], Any]]) -> Samples:
    """Microseconds of one of ``works``, which are gone through in a graph again and again."""

    def graph(repeats: int) -> Callable[[], Any]:
        def all_of_them() -> None:
            for _ in range(repeats):
                for work in works:
                    work()

        return clock.record(all_of_them)

    repeats = repeats_for(summary(clock.times(graph(1), 3)).median)
    return summary([each / (repeats * len(works)) for each in clock.times(graph(repeats), COUNT)])


def host_us(launch: Callable[[], Any], count: int, wait: Callable[[], Any]) -> float:
    """Microseconds of the host for each of ``count`` launches; ``wait`` returns when the device is idle."""
    wait()
    begin = time.perf_counter()
    for _ in range(count):
        launch()
    taken = time.perf_counter() - begin
    wait()
    return taken / count * 1e6
