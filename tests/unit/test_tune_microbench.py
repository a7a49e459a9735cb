"""The microbenchmarks: they really run, in a fraction of a second each, and leave nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuhost import microbench
from gpuhost.microbench import MIB, Benchmark, copy_bytes, cpu_list

FREE = "MemTotal: 9 kB\nMemAvailable:   {} kB\n"
LOTS = FREE.format(512 << 20)


@pytest.mark.parametrize("item", microbench.ALL, ids=lambda item: item.name)
def test_each_gives_a_value_that_can_be(item: Benchmark) -> None:
    affinity, begun = os.sched_getaffinity(0), time.monotonic()
    found = microbench.measure(item, 0.02)
    assert time.monotonic() - begun < 30
    assert os.sched_getaffinity(0) == affinity
    if found["status"] == "not_measured":
        assert item.name == "remote_copy_gb_s"
        assert found["detail"]["message"] == "one NUMA node only"  # type: ignore[index]
        return
    assert found["status"] == "measured", found
    low, high = {"us": (0.1, 1e5), "ns": (10, 1e7), "gb_s": (0.001, 1e4)}[item.unit]
    samples = found["samples"]
    assert isinstance(samples, dict)
    assert low < samples["p20"] <= samples["median"] == found["value"] <= samples["p80"] < high
    assert samples["n"] >= 1
    assert item.name.endswith(f"_{item.unit}")
    assert item.better == ("higher" if item.unit == "gb_s" else "lower")


def test_it_runs_from_stdin_with_the_standard_library_alone() -> None:
    source = Path(microbench.__file__).read_text()
    assert "from ." not in source
    argv = [sys.executable, "-I", "-S", "-", "syscall_ns", "--seconds", "0.01"]
    done = subprocess.run(argv, input=source, capture_output=True, text=True, timeout=60, check=True)
    (found,) = json.loads(done.stdout)
    assert list(found) == [
        "name", "value", "unit", "method", "clock", "samples", "status", "cause", "seconds", "detail",
    ]  # fmt: skip


def test_one_that_fails_takes_none_of_the_others_along(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(_: float) -> list[float]:
        raise OSError(24, "Too many open files")

    known = (
        Benchmark("bad_us", "us", "lower", "x", "x", fails),
        Benchmark("good_us", "us", "lower", "x", "x", lambda _: [2.0]),
    )
    assert microbench.main([], known) == 0
    bad, good = json.loads(capsys.readouterr().out)
    assert (bad["status"], bad["value"], bad["detail"]["message"]) == (
        "error",
        None,
        "OSError: [Errno 24] Too many open files",
    )
    assert good["samples"] == {"n": 1, "median": 2.0, "p20": 2.0, "p80": 2.0}


def test_children_end_with_a_measurement_that_is_killed() -> None:
    source = Path(microbench.__file__).read_text()
    argv = [sys.executable, "-I", "-", "wakeup_us", "loopback_gb_s", "--seconds", "600"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        assert process.stdin is not None
        process.stdin.write(source.encode())
        process.stdin.close()
        end = time.monotonic() + 20
        while not (children := children_of(process.pid)) and time.monotonic() < end:
            time.sleep(0.05)
        assert children
        process.kill()
    end = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == str(pid):
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("cache", "memory", "size"),
    [
        ("32768K\n", LOTS, 64), ("262144K\n", LOTS, 512), ("999999K\n", LOTS, 512), ("1024K\n", LOTS, 64),
        ("", LOTS, 128), ("32768K\n", FREE.format(512 << 10), 32), ("32768K\n", FREE.format(1), 8), ("", "", 64),
    ],
)  # fmt: skip
def test_more_than_the_cache_and_little_of_the_memory(cache: str, memory: str, size: int) -> None:
    assert copy_bytes(cache, memory) == size * MIB


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-2,8\n", {0, 1, 2, 8}), ("\n", set()), ("5", {5}), ("0,64-65", {0, 64, 65})]
)
def test_a_list_of_cpus(text: str, cpus: set[int]) -> None:
    assert cpu_list(text) == cpus
