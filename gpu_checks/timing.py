"""Time on the GPU: events around every iteration, and a stream that is held until everything is queued."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_void_p
from typing import Callable

from gpu_checks.cuda_api import CudaError
from gpu_checks.cuda_async import AsyncApi
from gpu_checks.kernels import HOLD_LIMIT_S, Kernels
from gpu_checks.measurement import Samples

QUEUE_LIMIT = 200
"""Iterations queued behind a held stream. A driver's queue takes about a thousand entries; the call that finds it full
waits for the stream, which waits for us. Each iteration is a few entries: its work and an event."""

L2_MULTIPLE = 3
"""Buffers that are together this much larger than the L2 cache can't be served from it."""


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of ascending samples lies, between two of them in proportion.

    >>> quantile([1.0, 2.0, 3.0, 4.0, 5.0], 0.2)
    1.8
    """
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def summary(values: Sequence[float]) -> Samples:
    """Count, median, p20 and p80. Raises ValueError where there is nothing: no samples are no measurement."""
    if not values:
        raise ValueError("no samples")
    ordered = sorted(values)
    p20, p80 = quantile(ordered, 0.2), quantile(ordered, 0.8)
    return Samples(len(ordered), statistics.median(ordered), p20, p80)


def rotation(size: int, l2_bytes: int) -> int:
    """How many buffers of this size to go through in turn, so that none is still in the L2 cache when it is used again.

    >>> rotation(64 << 20, 50 << 20)
    3
    """
    return max(1, math.ceil((L2_MULTIPLE * l2_bytes + 1) / size))


class HoldEnded(CudaError):
    """A held stream went on by itself, so that what was measured are gaps: nothing of it may become a figure."""

    def __init__(self, seconds: float) -> None:
        """``seconds``: how long the queueing took."""
        super().__init__("hold", 0, "")
        why = "a call waited for the GPU, or this process was stopped"
        self.args = (f"to queue work took {seconds:.3g} s, a stream is held for {HOLD_LIMIT_S:g} s at most: {why}",)


class Timer:
    """Takes the time of work on one GPU. Every kernel that it times has to have run once before: see ``held``."""

    def __init__(self, api: AsyncApi, kernels: Kernels, ordinal: int) -> None:
        """Make the flag that holds streams."""
        self.api, self.kernels, self.ordinal = api, kernels, ordinal
        api.use(ordinal)
        self._flag = api.host_memory(64)

    def close(self) -> None:
        """Give the flag back."""
        self.api.use(self.ordinal)
        self.api.free_host(self._flag)

    @contextmanager
    def held(self, *streams: c_void_p) -> Iterator[None]:
        """Nothing in these streams of this GPU begins before the block ends.

        The host is slower than the GPU at queueing: without this, gaps between launches would be measured. In the
        block nothing may wait for the GPU, nor load code: the first launch of a kernel can, and so can an allocation.
        A kernel that holds gives up after HOLD_LIMIT_S; HoldEnded is raised then.
        """
        begin = time.monotonic()
        self._flag.write32(0)
        self.api.use(self.ordinal)
        for stream in streams:
            self.kernels.hold(self._flag.device_address, stream)
        try:
            yield
        finally:
            self._flag.write32(1)
        seconds = time.monotonic() - begin
        if seconds >= HOLD_LIMIT_S:
            raise HoldEnded(seconds)

    def each(self, stream: c_void_p, work: Callable[[int], None], count: int, warm_up: int = 3) -> list[float]:
        """Microseconds of each of ``count`` calls of ``work(i)``, which queues into the stream.

        ``work`` runs ``warm_up`` times before, unmeasured: first loose, so that all code is there, then held too.
        """
        api = self.api
        api.use(self.ordinal)
        for turn in range(warm_up):
            work(turn)
        api.synchronize(stream)
        times: list[float] = []
        while len(times) < count:
            times += self._batch(stream, work, len(times), min(QUEUE_LIMIT, count - len(times)))
        return times

    def _batch(self, stream: c_void_p, work: Callable[[int], None], first: int, count: int) -> list[float]:
        api = self.api
        events = [api.event() for _ in range(count + 1)]
        try:
            with self.held(stream):
                work(first)  # the clocks rise and the first gap ends before the first event
                for turn, event in enumerate(events[:-1]):
                    api.record(event, stream)
                    work(first + turn)
                api.record(events[-1], stream)
            api.synchronize(stream)
            return [api.elapsed_us(begin, end) for begin, end in zip(events, events[1:])]
        finally:
            for event in events:
                api.destroy_event(event)
