"""What ``gpuhost trace`` knows of a trace, whatever wrote it: columns of numbers, because a trace has millions of rows.

All times are whole nanoseconds on the trace's own clock. A torch trace has microseconds with three decimals; as a
float, 1.7e15 of them are only good to a quarter of a microsecond, which is as long as the gap between two kernels.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

KERNEL, MEMCPY, MEMSET, GRAPH = range(4)
"""Kinds of work on a GPU. GRAPH is a whole CUDA graph of which the trace has no kernels."""

LAUNCH, GRAPH_LAUNCH, COPY, SYNC = range(4)
"""Kinds of calls of the CUDA API."""

API_KINDS = (
    (re.compile(r"GraphLaunch", re.IGNORECASE), GRAPH_LAUNCH),
    (re.compile(r"LaunchKernel|LaunchCooperative|ExtModuleLaunch|hccLaunch", re.IGNORECASE), LAUNCH),
    (re.compile(r"^(cuda|cu|hip)Mem(cpy|set)", re.IGNORECASE), COPY),
    (re.compile(r"(Device|Stream|Event|Ctx)Synchronize", re.IGNORECASE), SYNC),
)
"""Names of the CUDA runtime, of its driver, and of HIP; Nsight Systems adds a version, as cudaLaunchKernel_v7000."""

SAMPLING_OPERATORS = re.compile(r"^aten::(multinomial|argmax|topk|sort|_?softmax|_?log_softmax|exponential_|cumsum)$")
"""Operators of torch that choose the next token. Those that launch nothing ran on the CPU."""

CORRELATION_BITS = 40
"""A correlation number counts within one process. The process's own number is put above it."""


class TraceError(Exception):
    """A trace can't be used: what, where, and what to do."""


class BrokenTrace(TraceError):
    """A trace ends early, or is damaged. ``offset`` is in the unpacked file."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class Mark(NamedTuple):
    """A named span: a user's annotation, or an NVTX range. ``gpu`` is None for one on the CPU."""

    begin: int
    end: int
    name: str
    process: int
    gpu: int | None


def _whole_rows(table: Ops | Calls, rows: int) -> None:
    """Take half a row away, with which the columns would not fit together any more."""
    for column in vars(table).values():
        del column[rows:]


@dataclass(frozen=True)
class Gpu:
    """One GPU of a trace. ``process`` tells ranks apart that all call their GPU 0."""

    process: str
    index: int

    @property
    def label(self) -> str:
        """As people write it: ``GPU 0``, or ``TP03 GPU 3``."""
        return f"{self.process} GPU {self.index}".strip()


@dataclass
class Ops:
    """Work on the GPUs, one row each in the order of the file."""

    begin: array[int] = field(default_factory=lambda: array("q"))
    end: array[int] = field(default_factory=lambda: array("q"))
    name: array[int] = field(default_factory=lambda: array("I"))
    gpu: array[int] = field(default_factory=lambda: array("H"))
    kind: array[int] = field(default_factory=lambda: array("B"))
    correlation: array[int] = field(default_factory=lambda: array("q"))
    graph: array[int] = field(default_factory=lambda: array("q"))
    """The graph that it is a part of: its number, 0 for none, -1 for one without a number."""
    size: array[int] = field(default_factory=lambda: array("q"))
    """Bytes of a copy."""

    def add(
        self, begin: int, end: int, name: int, gpu: int, kind: int, correlation: int, graph: int = 0, size: int = 0
    ) -> None:
        """One more row; none where a number is too large."""
        try:
            self.begin.append(begin)
            self.end.append(max(begin, end))
            self.name.append(name)
            self.gpu.append(gpu)
            self.kind.append(kind)
            self.correlation.append(correlation)
            self.graph.append(graph)
            self.size.append(size)
        except OverflowError:
            _whole_rows(self, len(self.size))
            raise

    def __len__(self) -> int:
        return len(self.begin)


@dataclass
class Calls:
    """Calls of the CUDA API, and operators on the CPU."""

    begin: array[int] = field(default_factory=lambda: array("q"))
    end: array[int] = field(default_factory=lambda: array("q"))
    kind: array[int] = field(default_factory=lambda: array("B"))
    correlation: array[int] = field(default_factory=lambda: array("q"))
    thread: array[int] = field(default_factory=lambda: array("I"))

    def add(self, begin: int, end: int, kind: int, correlation: int, thread: int) -> None:
        """One more row; none where a number is too large."""
        try:
            self.begin.append(begin)
            self.end.append(max(begin, end))
            self.kind.append(kind)
            self.correlation.append(correlation)
            self.thread.append(thread)
        except OverflowError:
            _whole_rows(self, len(self.thread))
            raise

    def __len__(self) -> int:
        return len(self.begin)


class Table:
    """Numbers for things that occur again and again, in the order of their first occurrence."""

    def __init__(self) -> None:
        self.rows: list[object] = []
        self._numbers: dict[object, int] = {}

    def number(self, item: object) -> int:
        """The item's number."""
        found = self._numbers.get(item)
        if found is None:
            found = self._numbers[item] = len(self.rows)
            self.rows.append(item)
        return found


@dataclass
class Trace:
    """A trace that was read."""

    source: str
    format: str
    ops: Ops = field(default_factory=Ops)
    calls: Calls = field(default_factory=Calls)
    sampling: Calls = field(default_factory=Calls)
    """Operators on the CPU that choose tokens; their kind is 0, and so is their correlation but for the process."""
    marks: list[Mark] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    gpu_names: dict[int, str] = field(default_factory=dict)
    rank: str = ""
    events: int = 0
    size_bytes: int = 0
    """Unpacked."""
    seconds: float = 0
    broken: str = ""
    """Why it was not read to its end; empty where it was."""
    notes: list[str] = field(default_factory=list)

    def order(self, gpu: int) -> Sequence[int]:
        """The rows of one GPU in the order in which they began."""
        begin, mine = self.ops.begin, self.ops.gpu
        return sorted((row for row in range(len(begin)) if mine[row] == gpu), key=begin.__getitem__)

    def process(self, order: Sequence[int]) -> int:
        """The number of the process that these rows of one GPU are of."""
        correlation = self.ops.correlation
        return next((correlation[row] for row in order if correlation[row] >= 0), 0) >> CORRELATION_BITS


def api_kind(name: str) -> int | None:
    """The kind of a CUDA call by its name; None for one that does not matter here."""
    return next((kind for pattern, kind in API_KINDS if pattern.search(name)), None)
