"""Reads a SQLite export of Nsight Systems: ``nsys export --type sqlite report.nsys-rep``.

Written after the documented schema (Nsight Systems, "SQLite Schema Reference"): tables are made only where there is
something to put into them, and columns have come over the years, so each is looked for. Times are nanoseconds.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from gpuhost_cli.trace_marks import is_mark
from gpuhost_cli.trace_model import (
    CORRELATION_BITS,
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    BrokenTrace,
    Gpu,
    Mark,
    Table,
    Trace,
    TraceError,
    api_kind,
)

MAGIC = b"SQLite format 3\x00"
COPY_KINDS = {
    1: "Memcpy HtoD",
    2: "Memcpy DtoH",
    3: "Memcpy HtoA",
    4: "Memcpy AtoH",
    8: "Memcpy DtoD",
    9: "Memcpy HtoH",
    10: "Memcpy PtoP",
}
"""CUpti_ActivityMemcpyKind, in the words of torch's profiler."""
PAGEABLE = 0
"""Of srcKind and dstKind as Nsight Systems exports them (ENUM_CUDA_MEM_KIND: 0 pageable, 1 pinned, 2 device)."""
NOT_KNOWN = {"srcKind": -1, "dstKind": -1}
"""Instead of 0 where a column is not there or empty, and 0 means something."""
RANGES = (59, 60)
"""NVTX event types: a range pushed and popped, and one started and ended."""
GRAPH_NAME = "CUDA graph (its kernels are not in the trace)"


def is_database(path: Path) -> bool:
    """By its first bytes."""
    with path.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def read(path: Path, marks: re.Pattern[str], *, partial: bool = False) -> Trace:
    """The trace. Raises TraceError, and BrokenTrace where the database is damaged."""
    begin = time.monotonic()
    trace = Trace(str(path), "Nsight Systems SQLite export", size_bytes=path.stat().st_size)
    try:
        # immutable: nothing is written beside it, and a file on a read-only disk can be read.
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            reader = _Reader(database, trace, marks)
            try:
                reader.take()
            finally:
                reader.close()
    except sqlite3.DatabaseError as error:
        problem = f"{path}: the database is damaged or cut off ({error}), {trace.events:,} rows were read"
        if not partial:
            raise BrokenTrace(f"{problem}: export it again with nsys export --type sqlite", 0) from error
        trace.broken = problem
    trace.seconds = time.monotonic() - begin
    return trace


class _Reader:
    """One database."""

    def __init__(self, database: sqlite3.Connection, trace: Trace, marks: re.Pattern[str]) -> None:
        self._database, self.trace, self._marks = database, trace, marks
        self._names, self._gpus, self._threads, self._processes = Table(), Table(), Table(), Table()
        self._strings: dict[int, str] = {}

    def take(self) -> None:
        """All tables that matter."""
        tables = {str(row[0]) for row in self._database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables & {"CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "StringIds"}:
            raise TraceError(
                f"{self.trace.source}: a SQLite database, but not of Nsight Systems: "
                "nsys export --type sqlite REPORT.nsys-rep makes one"
            )
        if "StringIds" in tables:
            self._strings = dict(self._database.execute("SELECT id, value FROM StringIds"))
        self._kernels()
        self._whole_graphs()
        self._copies()
        self._calls()
        self._ranges()
        self._gpu_names()

    def close(self) -> None:
        """What was collected goes into the trace."""
        self.trace.names = [str(name) for name in self._names.rows]
        self.trace.gpus = [gpu for gpu in self._gpus.rows if isinstance(gpu, Gpu)]
        # Of a single process the GPU's own number says enough.
        if len({gpu.process for gpu in self.trace.gpus}) == 1:
            self.trace.gpus = [Gpu("", gpu.index) for gpu in self.trace.gpus]

    def _rows(self, table: str, wanted: tuple[str, ...], needed: int) -> Iterator[tuple[int, ...]]:
        """The wanted columns; 0 (or see ``NOT_KNOWN``) for one that this version does not have.

        The first ``needed`` ones must be there.
        """
        there = {str(row[1]) for row in self._database.execute(f"PRAGMA table_info({table})")}
        if not there:
            return
        missing = [name for name in wanted[:needed] if name not in there]
        if missing:
            raise TraceError(f"{self.trace.source}: table {table} has no column {missing[0]}: a version not known here")
        absent = {name: NOT_KNOWN.get(name, 0) for name in wanted}
        columns = ", ".join(
            f'COALESCE("{name}", {value})' if name in there else str(value) for name, value in absent.items()
        )
        for row in self._database.execute(f"SELECT {columns} FROM {table}"):  # noqa: S608 - names of our own
            self.trace.events += 1
            yield row

    def _place(self, process: int, device: int) -> tuple[int, int]:
        """Number of the GPU and of the process. A global id has the process id in bits 24 to 47."""
        pid = process >> 24 & 0xFFFFFF
        label = f"pid {pid}" if pid else ""
        return self._gpus.number(Gpu(label, device)), self._processes.number(label) << CORRELATION_BITS

    def _kernels(self) -> None:
        wanted = ("start", "end", "deviceId", "demangledName", "shortName", "correlationId", "globalPid")
        for row in self._rows("CUPTI_ACTIVITY_KIND_KERNEL", (*wanted, "graphNodeId", "graphId"), 3):
            begin, end, device, long_name, short_name, correlation, process, node, graph = row
            gpu, above = self._place(process, device)
            name = self._strings.get(long_name) or self._strings.get(short_name) or f"kernel {long_name or short_name}"
            self.trace.ops.add(
                begin, end, self._names.number(name), gpu, KERNEL, above | correlation, graph or (-1 if node else 0)
            )

    def _whole_graphs(self) -> None:
        wanted = ("start", "end", "deviceId", "correlationId", "globalPid", "graphId")
        for begin, end, device, correlation, process, graph in self._rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", wanted, 3):
            gpu, above = self._place(process, device)
            name = self._names.number(GRAPH_NAME)
            self.trace.ops.add(begin, end, name, gpu, GRAPH, above | correlation, graph or -1)

    def _copies(self) -> None:
        wanted = ("start", "end", "deviceId", "bytes", "copyKind", "correlationId", "globalPid", "graphNodeId")
        for row in self._rows("CUPTI_ACTIVITY_KIND_MEMCPY", (*wanted, "srcKind", "dstKind"), 3):
            begin, end, device, size, kind, correlation, process, node, source, target = row
            gpu, above = self._place(process, device)
            pageable = kind in (1, 2) and (source if kind == 1 else target) == PAGEABLE
            name = f"{COPY_KINDS.get(kind, f'Memcpy kind {kind}')}{' (Pageable)' if pageable else ''}"
            graph = -1 if node else 0
            self.trace.ops.add(begin, end, self._names.number(name), gpu, MEMCPY, above | correlation, graph, size)
        fills = ("start", "end", "deviceId", "bytes", "correlationId", "globalPid", "graphNodeId")
        for begin, end, device, size, correlation, process, node in self._rows("CUPTI_ACTIVITY_KIND_MEMSET", fills, 3):
            gpu, above = self._place(process, device)
            name = self._names.number("Memset")
            self.trace.ops.add(begin, end, name, gpu, MEMSET, above | correlation, -1 if node else 0, size)

    def _calls(self) -> None:
        wanted = ("start", "end", "nameId", "correlationId", "globalTid")
        kinds: dict[int, int | None] = {}
        for begin, end, name, correlation, thread in self._rows("CUPTI_ACTIVITY_KIND_RUNTIME", wanted, 3):
            if name not in kinds:
                kinds[name] = api_kind(self._strings.get(name, ""))
            kind = kinds[name]
            if kind is not None:
                above = self._place_of_thread(thread)
                self.trace.calls.add(begin, end, kind, above | correlation, self._threads.number(thread))

    def _place_of_thread(self, thread: int) -> int:
        pid = thread >> 24 & 0xFFFFFF
        return self._processes.number(f"pid {pid}" if pid else "") << CORRELATION_BITS

    def _ranges(self) -> None:
        there = {str(row[1]) for row in self._database.execute("PRAGMA table_info(NVTX_EVENTS)")}
        if not {"start", "end", "eventType"} <= there:
            return
        text = '"text"' if "text" in there else "NULL"
        number = '"textId"' if "textId" in there else "NULL"
        thread = '"globalTid"' if "globalTid" in there else "0"
        query = f'SELECT "start", "end", {text}, {number}, {thread}, "eventType" FROM NVTX_EVENTS'  # noqa: S608 - ours
        for begin, end, told, string, owner, kind in self._database.execute(query):
            self.trace.events += 1
            name = told or self._strings.get(string or -1, "")
            if kind in RANGES and end is not None and is_mark(name, self._marks):
                above = self._place_of_thread(owner or 0) >> CORRELATION_BITS
                self.trace.marks.append(Mark(begin, end, name, above, None))

    def _gpu_names(self) -> None:
        there = {str(row[1]) for row in self._database.execute("PRAGMA table_info(TARGET_INFO_GPU)")}
        if {"id", "name"} <= there:
            names = dict(self._database.execute("SELECT id, name FROM TARGET_INFO_GPU"))
            for number, gpu in enumerate(self._gpus.rows):
                if isinstance(gpu, Gpu) and gpu.index in names:
                    self.trace.gpu_names[number] = str(names[gpu.index])
