"""Exports of Nsight Systems. No export of a real run is here: the databases are made after the documented schema."""

from __future__ import annotations

import re
import sqlite3

import pytest

from gpuhost_cli import trace_nsys
from gpuhost_cli.trace_marks import NONE_TOLD
from gpuhost_cli.trace_model import GRAPH, LAUNCH, BrokenTrace, TraceError

PID = 4242
GLOBAL_PID = 0x0001 << 48 | PID << 24
WORK = "start, end, deviceId, contextId, streamId, correlationId, globalPid"
STRINGS = {
    1: "nvjet_tst_64x8",
    2: "flash_fwd_splitkv_kernel",
    3: "cudaGraphLaunch_v10000",
    4: "cudaLaunchKernel_v7000",
    5: "decode",
}


def put(base, table, *rows):
    """Rows into a table of the schema."""
    base.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)


def nsight(path, graphs=True, steps=5, extra=True):
    """A database of one step a millisecond: a range, a graph (or single launches), a copy, a fill."""
    with sqlite3.connect(path) as base:
        more = ", graphNodeId, graphId" if extra else ""
        for table, columns in {
            "StringIds": "id INTEGER PRIMARY KEY, value TEXT NOT NULL",
            "CUPTI_ACTIVITY_KIND_KERNEL": f"{WORK}, demangledName, shortName{more}",
            "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, eventClass, globalTid, correlationId, nameId, returnValue",
            "CUPTI_ACTIVITY_KIND_MEMCPY": f"{WORK}, bytes, copyKind, srcKind, dstKind",
            "CUPTI_ACTIVITY_KIND_MEMSET": f"{WORK}, value, bytes",
            "NVTX_EVENTS": "start, end, eventType, text, globalTid, textId",
            "TARGET_INFO_GPU": "id, name, busLocation",
        }.items():
            base.execute(f"CREATE TABLE {table} ({columns})")
        put(base, "StringIds", *STRINGS.items())
        put(base, "TARGET_INFO_GPU", (0, "synthetic GPU", "0000:01:00.0"))
        for step in range(steps):
            _step(base, step * 1_000_000, 10 * step + 1, graphs, extra)
    base.close()
    return path


def _step(base, at, correlation, graphs, extra):
    put(base, "NVTX_EVENTS", (at, at + 900_000, 59, None, GLOBAL_PID | 7, 5))
    for number, (name, begin, length) in enumerate(((1, 100_000, 500_000), (2, 601_000, 199_000))):
        mine = correlation if graphs else correlation + number
        node = ((number + 50, 9) if graphs else (None, None)) if extra else ()
        row = (at + begin, at + begin + length, 0, 1, 7, mine, GLOBAL_PID, name, name, *node)
        put(base, "CUPTI_ACTIVITY_KIND_KERNEL", row)
        if number == 0 or not graphs:
            call = (at + 50_000 + number, at + 58_000, 0, GLOBAL_PID | 7, mine, 3 if graphs else 4, 0)
            put(base, "CUPTI_ACTIVITY_KIND_RUNTIME", call)
    copy = (at + 801_000, at + 803_000, 0, 1, 7, correlation + 5, GLOBAL_PID, 64, 2, 2, 0)
    put(base, "CUPTI_ACTIVITY_KIND_MEMCPY", copy)
    put(base, "CUPTI_ACTIVITY_KIND_MEMSET", (at + 804_000, at + 805_000, 0, 1, 7, correlation + 6, GLOBAL_PID, 0, 4096))


def test_an_nsight_export(tmp_path):
    trace = trace_nsys.read(nsight(tmp_path / "r.sqlite"), re.compile("^decode$"))
    assert trace.format == "Nsight Systems SQLite export"
    assert (len(trace.ops), len(trace.calls), len(trace.marks)) == (20, 5, 5)
    assert [trace.names[trace.ops.name[row]] for row in (0, 1, 10, 15)] == [
        "nvjet_tst_64x8", "flash_fwd_splitkv_kernel", "Memcpy DtoH (Pageable)", "Memset",
    ]  # fmt: skip
    assert (trace.ops.begin[0], trace.ops.end[0], trace.ops.graph[0]) == (100_000, 600_000, 9)
    assert trace.ops.correlation[0] == trace.calls.correlation[0]
    assert (trace.gpus[0].label, trace.gpu_names) == ("GPU 0", {0: "synthetic GPU"})


def test_an_older_nsight_export_lacks_columns(tmp_path):
    trace = trace_nsys.read(nsight(tmp_path / "r.sqlite", extra=False), NONE_TOLD)
    assert (len(trace.ops), set(trace.ops.graph), trace.marks) == (20, {0}, [])
    assert trace.calls.kind[0] != LAUNCH


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET dstKind = NULL",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY RENAME COLUMN dstKind TO of_a_later_version",
    ],
)
def test_memory_of_an_unknown_kind_is_not_called_pageable(tmp_path, change):
    path = nsight(tmp_path / "r.sqlite")
    with sqlite3.connect(path) as base:
        base.execute(change)
    base.close()
    assert "Memcpy DtoH" in trace_nsys.read(path, NONE_TOLD).names


def test_a_graph_as_a_whole(tmp_path):
    path = tmp_path / "r.sqlite"
    with sqlite3.connect(path) as base:
        base.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end, deviceId, graphId, correlationId, globalPid)"
        )
        put(base, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", (5, 9, 0, 3, 1, GLOBAL_PID))
    base.close()
    trace = trace_nsys.read(path, NONE_TOLD)
    assert (list(trace.ops.kind), trace.names) == ([GRAPH], [trace_nsys.GRAPH_NAME])


def test_two_processes_that_both_call_their_gpu_0(tmp_path):
    path = nsight(tmp_path / "r.sqlite", steps=1)
    with sqlite3.connect(path) as base:
        row = (1, 2, 0, 1, 7, 1, GLOBAL_PID + (1 << 24), 1, 1, 0, 0)
        put(base, "CUPTI_ACTIVITY_KIND_KERNEL", row)
    base.close()
    trace = trace_nsys.read(path, NONE_TOLD)
    assert [gpu.label for gpu in trace.gpus] == ["pid 4242 GPU 0", "pid 4243 GPU 0"]
    assert len({trace.ops.correlation[row] for row in (0, 2)}) == 2


def test_another_database_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "x.db") as base:
        base.execute("CREATE TABLE t (a)")
    base.close()
    with pytest.raises(TraceError, match="a SQLite database, but not of Nsight Systems: nsys export"):
        trace_nsys.read(tmp_path / "x.db", NONE_TOLD)


def test_an_unknown_version_is_named(tmp_path):
    with sqlite3.connect(tmp_path / "x.db") as base:
        base.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (begin INT, end INT)")
    base.close()
    with pytest.raises(TraceError, match="table CUPTI_ACTIVITY_KIND_KERNEL has no column start"):
        trace_nsys.read(tmp_path / "x.db", NONE_TOLD)


def test_a_cut_database(tmp_path):
    path = nsight(tmp_path / "r.sqlite", steps=400)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BrokenTrace, match=r"the database is damaged or cut off .*export it again"):
        trace_nsys.read(path, NONE_TOLD)
    assert "the database is damaged or cut off" in trace_nsys.read(path, NONE_TOLD, partial=True).broken


def test_nothing_is_written_beside_a_database(tmp_path):
    path = nsight(tmp_path / "r.sqlite")
    path.chmod(0o400)
    trace_nsys.read(path, NONE_TOLD)
    assert [item.name for item in tmp_path.iterdir()] == ["r.sqlite"]
