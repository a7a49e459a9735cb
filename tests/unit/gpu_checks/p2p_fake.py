"""GPUs in Python: memory in bytearrays, streams with a clock of their own, and faults for chosen pairs.

Everything that is queued is done at once; only time is kept as a GPU would: a copy takes its stream's clock forward by
its size over its pair's speed, an event is a clock's reading, a stream that waits for an event takes the later clock.
"""

from __future__ import annotations

import contextlib
import os
import time
from array import array
from ctypes import c_void_p
from dataclasses import dataclass, field

from gpu_checks import processes
from gpu_checks.cuda_api import CudaError, Identity
from gpu_checks.kernels import Wrong
from gpu_checks.measurement import from_dict, to_dict
from gpu_checks.nvml import Session
from gpu_checks.p2p import check as p2p
from gpu_checks.p2p import plan as p2p_plan
from gpu_checks.p2p import steps as p2p_work
from gpu_checks.p2p.copies import Mover
from gpu_checks.p2p.plan import SMALL
from gpu_checks.p2p.steps import Tools
from gpu_checks.registry import Options

SPACE = 1 << 40
"""Addresses of one GPU: the ordinal is the address divided by this."""

MIB = 1 << 20

OPTIONS = Options()


@dataclass
class Faults:
    """What goes wrong, by pair (source, target). ``slow``: GB/s of a pair; ``crowd``: what is left of a speed when
    several flows arrive at one GPU; ``late_flip``: wrong only in what is timed; ``broken``: after an error nothing of
    the contexts works any more."""

    hang: set = field(default_factory=set)
    zeros: set = field(default_factory=set)
    flipped: set = field(default_factory=set)
    late_flip: set = field(default_factory=set)
    error: set = field(default_factory=set)
    dies: set = field(default_factory=set)
    no_access: set = field(default_factory=set)
    slow: dict = field(default_factory=dict)
    crowd: float = 1.0
    free: int = 8 * MIB
    in_use: str | None = None
    full: bool = False
    broken: bool = False
    most_peers: int = 8


class FakeApi:
    """The calls of AsyncApi that the check makes."""

    def __init__(self, count, faults):
        self.count, self.faults, self.current = count, faults, None
        self.memory, self.next = {}, [ordinal * SPACE + MIB for ordinal in range(count)]
        self.clock, self.events, self.arriving, self.names = {}, {}, {}, 0
        self.peers, self.dead = set(), False

    def _handle(self):
        self.names += 1
        return c_void_p(self.names)

    def use(self, ordinal):
        self.current = ordinal

    def free_bytes(self):
        if self.dead:
            raise CudaError("cuMemGetInfo_v2", 719, "CUDA_ERROR_LAUNCH_FAILED")
        return self.faults.free

    def allocate(self, size):
        if self.faults.full:
            raise CudaError("cuMemAlloc_v2", 2, "CUDA_ERROR_OUT_OF_MEMORY")
        address = self.next[self.current]
        self.next[self.current] += size
        self.memory[address] = bytearray(size)
        return address

    def _place(self, address):
        base = max(start for start in self.memory if start <= address)
        return self.memory[base], address - base

    def view(self, address, size):
        block, place = self._place(address)
        return memoryview(block)[place : place + size]

    def upload(self, address, data):
        self.view(address, len(data))[:] = data

    def stream(self):
        made = self._handle()
        self.clock[made.value] = 0.0
        return made

    def event(self):
        return self._handle()

    def destroy_event(self, event):
        self.events.pop(event.value, None)

    def record(self, event, stream):
        self.events[event.value] = self.clock[stream.value]

    def wait(self, stream, event):
        self.clock[stream.value] = max(self.clock[stream.value], self.events[event.value])

    def synchronize(self, stream):
        self.arriving = {}
        if self.dead:
            raise CudaError("cuStreamSynchronize", 719, "CUDA_ERROR_LAUNCH_FAILED")

    def elapsed_us(self, first, last):
        return self.events[last.value] - self.events[first.value]

    def fill(self, address, byte, size, stream):
        self.upload(address, bytes([byte]) * size)

    def can_access_peer(self, i, j):
        return (i, j) not in self.faults.no_access

    def enable_peer(self, i, j):
        assert (i, j) not in self.faults.no_access
        if sum(1 for peer in self.peers if peer[0] == i) >= self.faults.most_peers:
            raise CudaError("cuCtxEnablePeerAccess", 711, "CUDA_ERROR_TOO_MANY_PEERS")
        self.use(i)
        self.peers.add((i, j))

    def call(self, name, context):
        if name == "cuCtxGetCurrent":
            context._obj.value = self.current + 1
        else:
            assert name == "cuCtxDisablePeerAccess"
            self.peers.remove((self.current, context.value - 1))

    def copy(self, target, source, size, stream):
        self.transfer(target, source, size, stream)

    def transfer(self, target, source, size, stream):
        pair, faults = (source // SPACE, target // SPACE), self.faults
        if pair in faults.hang:
            time.sleep(60)
        if pair in faults.dies:
            os.kill(os.getpid(), 9)
        if pair in faults.error:
            self.dead = faults.broken
            raise CudaError("cuMemcpyAsync", 719, "CUDA_ERROR_LAUNCH_FAILED")
        arrived = self.view(target, size)
        arrived[:] = bytes(size) if pair in faults.zeros else self.view(source, size)
        if pair in faults.flipped or (pair in faults.late_flip and size != SMALL):
            arrived[40] ^= 1
        self.arriving.setdefault(pair[1], set()).add(stream.value)
        speed = faults.slow.get(pair, 50.0)
        if len(self.arriving[pair[1]]) > 1:
            speed *= faults.crowd
        self.clock[stream.value] += size / speed / 1e3


@dataclass
class FakeKernels:
    api: FakeApi
    ordinal: int
    multiprocessors: int = 16

    def copy(self, target, source, size, stream):
        pair = (source // SPACE, target // SPACE)
        here = self.ordinal
        assert pair[0] == pair[1] or (here, pair[1] if here == pair[0] else pair[0]) in self.api.peers
        self.api.transfer(target, source, size, stream)

    @staticmethod
    def words(size, seed):
        block = array("I", range(seed & 0xFFFFFF | 1, (seed & 0xFFFFFF | 1) + 1021)).tobytes()  # a prime: no power of 2
        return (block * (size // len(block) + 1))[:size]

    def pattern(self, target, size, seed, stream):
        self.api.upload(target, self.words(size, seed))

    def verify(self, source, size, seed, stream):
        got, wanted = self.api.view(source, size), self.words(size, seed)
        if got == wanted:
            return None
        places = [at for at in range(0, size, 4) if got[at : at + 4] != wanted[at : at + 4]]
        zeros = sum(1 for at in places if not any(got[at : at + 4]))
        return Wrong(len(places), zeros, places[0] // 4)

    def chase(self, start, steps, block, stream):
        base, at = start, start
        for _ in range(min(steps, 100)):
            at = int.from_bytes(self.api.view(at, 8), "little")
        assert at == base + 128 * min(steps, 100)
        self.api.clock[stream.value] += steps * 0.8


class FakeTimer:
    def __init__(self, api):
        self.api = api

    @contextlib.contextmanager
    def held(self, *streams):
        yield

    def each(self, stream, work, count, warm_up=3):
        times = []
        for turn in range(count):
            begin = self.api.clock[stream.value]
            work(turn)
            times.append(self.api.clock[stream.value] - begin)
        return times


@dataclass
class FakeReady:
    kernels: FakeKernels
    timer: FakeTimer
    stream: c_void_p


class FakeGpus:
    def __init__(self, count, faults):
        self.api = FakeApi(count, faults)
        self.gpus = [
            Identity(ordinal, "GPU", f"GPU-{ordinal}", f"0000:0{ordinal}:00.0", 1 << 34, True)
            for ordinal in range(count)
        ]
        self.session = Session(None, None)
        self._ready = {}

    def ready(self, ordinal):
        if ordinal not in self._ready:
            self._ready[ordinal] = FakeReady(FakeKernels(self.api, ordinal), FakeTimer(self.api), self.api.stream())
        self.api.use(ordinal)
        return self._ready[ordinal]

    def states(self):
        return [{"ordinal": gpu.ordinal, "sm_clock_mhz": 1980} for gpu in self.gpus]

    def others_active(self):
        return self.api.faults.in_use


def make_small(monkeypatch):
    """Buffers of 2 MiB are enough for GPUs in Python; and nothing of this machine's environment."""
    for name in p2p.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(p2p_plan, "SMALLEST_BUFFER", 2 * MIB)
    monkeypatch.setattr(p2p_work, "SMALLEST_BUFFER", 2 * MIB)


def tools(count, faults=None, **limits):
    """The check's tools for so many fake GPUs."""
    faults = faults or Faults()
    limits = {"step_s": 3.0, "setup_s": 5.0, "budget_s": 60.0, **limits}
    return Tools(open=lambda options, report: FakeGpus(count, faults), mover=Mover, **limits)


class Reported:
    """A report that keeps what is said."""

    def __init__(self):
        self.measurements, self.done = [], []

    def add(self, measurement):
        self.measurements.append(measurement)

    def doing(self, what, hung=None, died=None):
        self.done.append((what, hung))

    @property
    def named(self):
        names = [each.name for each in self.measurements]
        assert len(names) == len(set(names)), names
        return {each.name: each for each in self.measurements}


def run(count=2, faults=None, options=OPTIONS, made=None, **limits):
    """Measurements by name. Every one has to survive its way through the pipe, and no process may be left."""
    report = Reported()
    p2p.check(options, report, made or tools(count, faults, **limits))
    for each in report.measurements:
        assert from_dict(to_dict(each)) == each
    assert processes.children(os.getpid()) == set()
    return report.named


def stand(seen, name):
    return (seen[name].status, seen[name].cause)
