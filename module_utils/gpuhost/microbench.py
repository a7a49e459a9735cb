"""Small measurements of a host that react to its tuning: wake-up, system call, memory, page faults, NUMA, loopback.

One file for the standard library alone: it is given to the host's own Python on stdin and imports nothing of this
package. Each measurement runs for a fraction of a second, in a fresh process, with CLOCK_MONOTONIC. What is compared is
a host with itself; the numbers contain Python's own time and are no data sheet.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import re
import signal
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LOWER, HIGHER = "lower", "higher"
MIB = 1 << 20
_STAMP = struct.Struct("q")


class NotHere(Exception):
    """Something that a host need not have."""


@dataclass(frozen=True)
class Benchmark:
    """``run`` takes seconds and gives its samples in ``unit``. ``reacts_to``: knobs that are known to move it."""

    name: str
    unit: str
    better: str
    method: str
    reacts_to: str
    run: Callable[[float], list[float]]


def _cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0))


@contextmanager
def _pinned(cpus: set[int]) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _child(work: Callable[[int, int], None], cpus: set[int]) -> Iterator[tuple[int, int]]:
    """A child on these CPUs with a pipe each way; ``work`` gets its reading and its writing end."""
    down, up = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(down[1])  # so that it ends with its parent
            os.sched_setaffinity(0, cpus)
            work(down[0], up[1])
        finally:
            os._exit(0)
    os.close(down[0])
    os.close(up[1])
    try:
        yield up[0], down[1]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(up[0])
        os.close(down[1])


def _until(seconds: float) -> Iterator[None]:
    """At least one turn, then as many as there is time for."""
    end = time.monotonic() + seconds
    while True:
        yield
        if time.monotonic() >= end:
            return


def _wakeup(seconds: float) -> list[float]:
    def answer(source: int, sink: int) -> None:
        while data := os.read(source, _STAMP.size):
            now = time.monotonic_ns()
            os.write(sink, _STAMP.pack(now - _STAMP.unpack(data)[0]))

    cpus, found = _cpus(), []
    with _pinned({cpus[0]}), _child(answer, {cpus[-1]}) as (source, sink):
        for _ in _until(seconds):
            time.sleep(0.003)  # longer than any idle state's target residency: the other CPU is in its deepest
            os.write(sink, _STAMP.pack(time.monotonic_ns()))
            found.append(_STAMP.unpack(os.read(source, _STAMP.size))[0] / 1000)
    return found


def _syscall(seconds: float) -> list[float]:
    count, call, found = 2000, os.getppid, []
    with _pinned({_cpus()[-1]}):
        for _ in _until(seconds):
            begin = time.monotonic_ns()
            for _ in range(count):
                call()
            found.append((time.monotonic_ns() - begin) / count)
    return found


def _switch(seconds: float) -> list[float]:
    def answer(source: int, sink: int) -> None:
        while data := os.read(source, 1):
            os.write(sink, data)

    turns, found, cpu = range(100), [], {_cpus()[-1]}
    with _pinned(cpu), _child(answer, cpu) as (source, sink):
        for _ in _until(seconds):
            begin = time.monotonic_ns()
            for _ in turns:
                os.write(sink, b".")
                os.read(source, 1)
            found.append((time.monotonic_ns() - begin) / (2000 * len(turns)))
    return found


def _read(path: str) -> str:
    try:
        with open(path) as stream:
            return stream.read()
    except OSError:
        return ""


def copy_bytes(cache_text: str, meminfo: str) -> int:
    """How much to copy: twice the last cache that one CPU sees, 64 to 512 MiB, and never much of what is free."""
    digits = re.match(r"(\d+)K", cache_text)
    wanted = max(64 * MIB, 2048 * int(digits[1])) if digits else 128 * MIB
    free = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    limit = int(free[1]) * 1024 // 16 if free else 64 * MIB
    return max(8 * MIB, min(wanted, 512 * MIB, limit) // MIB * MIB)


def _private(size: int) -> mmap.mmap:
    # Without MAP_PRIVATE it would be shared memory, which huge pages have another setting for.
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _filled() -> mmap.mmap:
    size = copy_bytes(_read("/sys/devices/system/cpu/cpu0/cache/index3/size"), _read("/proc/meminfo"))
    made = _private(size)
    block = b"\x5a" * MIB
    for place in range(0, size, MIB):
        made[place : place + MIB] = block
    return made


def _copies(source: mmap.mmap, target: mmap.mmap, seconds: float) -> list[float]:
    found, size = [], min(len(source), len(target))  # what is free may have changed between the two
    with memoryview(source) as given, memoryview(target) as taken:
        taken[:size] = given[:size]
        for _ in _until(seconds):
            begin = time.monotonic_ns()
            taken[:size] = given[:size]
            found.append(size / (time.monotonic_ns() - begin))
    return found


def _memory_copy(seconds: float) -> list[float]:
    with _pinned({_cpus()[-1]}), _filled() as source, _filled() as target:
        return _copies(source, target, seconds)


def _page_touch(seconds: float) -> list[float]:
    places, found = range(0, 16 * MIB, 4096), []
    for _ in _until(seconds):
        with _private(16 * MIB) as memory:
            begin = time.monotonic_ns()
            for place in places:
                memory[place] = 1
            found.append((time.monotonic_ns() - begin) / len(places))
    return found


def cpu_list(text: str) -> set[int]:
    """The CPUs of a list as /sys has it: ``0-2,8`` is 0, 1, 2 and 8."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            found |= set(range(int(first), int(last or first) + 1))
    return found


def _nodes() -> list[set[int]]:
    folder, mine = "/sys/devices/system/node", set(_cpus())
    names = sorted(os.listdir(folder) if os.path.isdir(folder) else [])
    lists = [cpu_list(_read(f"{folder}/{name}/cpulist")) & mine for name in names if re.fullmatch(r"node\d+", name)]
    return [cpus for cpus in lists if cpus]


def _remote_copy(seconds: float) -> list[float]:
    nodes = _nodes()
    if len(nodes) < 2:
        raise NotHere("one NUMA node only")
    with _pinned(nodes[-1]):
        source = _filled()  # memory lies where it is touched first
    with source, _pinned(nodes[0]), _filled() as target:
        return _copies(source, target, seconds)


def _loopback(seconds: float) -> list[float]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()

        def send(_source: int, _sink: int) -> None:
            with socket.create_connection(address, timeout=10) as stream:
                block = bytes(MIB)
                while True:
                    stream.sendall(block)

        server.settimeout(10)
        with _child(send, os.sched_getaffinity(0)), server.accept()[0] as stream:
            stream.settimeout(10)
            buffer = bytearray(MIB)
            _received(stream, buffer, 0.03)  # until the window has grown
            return [_received(stream, buffer, 0.02) for _ in _until(seconds)]


def _received(stream: socket.socket, buffer: bytearray, seconds: float) -> float:
    count, begin = 0, time.monotonic_ns()
    for _ in _until(seconds):
        got = stream.recv_into(buffer)
        if not got:
            raise OSError("the sender has gone")
        count += got
    return count / (time.monotonic_ns() - begin)


ALL = (
    Benchmark("wakeup_us", "us", LOWER, "write to a pipe until a reader on another, idle CPU runs",
              "idle states, governor", _wakeup),
    Benchmark("syscall_ns", "ns", LOWER, "getppid in a loop on one CPU", "governor, energy preference, boost",
              _syscall),
    Benchmark("switch_us", "us", LOWER, "two processes on one CPU hand a byte to and fro; one way",
              "governor, scheduler", _switch),
    Benchmark("memory_copy_gb_s", "gb_s", HIGHER, "copy more than the last cache, one CPU", "huge pages, boost",
              _memory_copy),
    Benchmark("page_touch_ns", "ns", LOWER, "first touch of each 4 KiB of fresh memory", "huge pages", _page_touch),
    Benchmark("remote_copy_gb_s", "gb_s", HIGHER, "as memory_copy, from memory of another NUMA node", "NUMA balancing",
              _remote_copy),
    Benchmark("loopback_gb_s", "gb_s", HIGHER, "one TCP stream to 127.0.0.1", "socket buffers", _loopback),
)  # fmt: skip
"""A later one comes in by a line."""


def measure(item: Benchmark, seconds: float) -> dict[str, object]:
    """One measurement, in the form that all measurements of this project have."""
    begin = time.monotonic()
    value = samples = cause = None
    status, detail = "measured", {}
    try:
        if item.better == LOWER:  # a fresh process begins slower than it goes on; rates warm up by themselves
            item.run(seconds / 3)
        found = item.run(seconds)
        fifths = statistics.quantiles(found, n=5, method="inclusive") if len(found) > 1 else [found[0]] * 4
        value = statistics.median(found)
        samples = {"n": len(found), "median": value, "p20": fifths[0], "p80": fifths[3]}
    except NotHere as error:
        status, cause, detail = "not_measured", "tune.not_measured", {"message": str(error)}
    except (OSError, ValueError, MemoryError) as error:
        status, cause, detail = "error", "tune.not_measured", {"message": f"{type(error).__name__}: {error}"}
    return {
        "name": item.name, "value": value, "unit": item.unit, "method": item.method, "clock": "CLOCK_MONOTONIC",
        "samples": samples, "status": status, "cause": cause, "seconds": round(time.monotonic() - begin, 6),
        "detail": {**detail, "better": item.better, "reacts_to": item.reacts_to},
    }  # fmt: skip


def main(argv: list[str], known: tuple[Benchmark, ...] = ALL) -> int:
    """Measure what is named, or all, and write a JSON list."""
    parser = argparse.ArgumentParser(description="Measure a host by itself, for the comparison with itself")
    parser.add_argument("names", nargs="*", choices=[[], *(item.name for item in known)], metavar="NAME")
    parser.add_argument("--seconds", type=float, default=0.15, help="for each (default: %(default)s)")
    given = parser.parse_args(argv)
    chosen = [item for item in known if not given.names or item.name in given.names]
    print(json.dumps([measure(item, given.seconds) for item in chosen]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
