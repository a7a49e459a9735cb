"""The clock says where a step stands, also when nothing else happens, and never outlives its process."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gpuhost_cli.progress import Expectations, ProgressClock, duration, elapsed_text


class Time:
    """A clock that a test moves by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def clock_at(stream: io.StringIO, hand: Time, **kwargs: Any) -> ProgressClock:
    return ProgressClock(stream, clock=hand, **kwargs)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (7.9, "0:07"), (80, "1:20"), (750, "12:30"), (3735, "1:02:15"), (-1, "0:00")],
)
def test_durations_read_like_a_clock(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_elapsed_names_the_estimate_or_that_there_is_none() -> None:
    assert elapsed_text(80, 145) == "1:20 of about 2:25"
    assert elapsed_text(80, None) == "1:20, no estimate yet"
    assert elapsed_text(400, 145) == "6:40 of about 2:25, longer than expected"
    assert elapsed_text(3, 0.2) == "0:03 of about 0:01"


def test_a_step_is_printed_at_begin_while_it_runs_and_at_its_end() -> None:
    stream, hand = io.StringIO(), Time()
    clock = clock_at(stream, hand)
    hand.now += 55
    clock.begin("lab1", "prepare", "Install kernel and headers", expected=145)
    for _ in range(20):
        hand.now += 1
        clock.tick()
    hand.now += 60
    assert clock.end("lab1", "changed") == 80
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[ 0:55] lab1 prepare: Install kernel and headers … about 2:25"
    assert lines[1] == "[ 1:05] lab1 prepare: Install kernel and headers … 0:10 of about 2:25"
    assert lines[-1] == "[ 2:15] lab1 prepare: Install kernel and headers … changed in 1:20"
    assert len(lines) == 4


def test_no_gap_is_longer_than_the_interval_whatever_the_phase() -> None:
    for phase in (0.0, 0.3, 0.7):
        stream, hand = io.StringIO(), Time()
        clock = clock_at(stream, hand)
        clock.begin("lab1", "gate", "Measure")
        last, count, worst, start = hand.now, 1, 0.0, hand.now
        hand.now += phase
        while hand.now - start < 60:
            hand.now += 1
            clock.tick()
            if len(stream.getvalue().splitlines()) > count:
                count, worst, last = count + 1, max(worst, hand.now - last), hand.now
        assert count >= 6
        assert worst <= 10.0


def test_several_hosts_at_once_and_messages_in_between() -> None:
    stream, hand = io.StringIO(), Time()
    clock = clock_at(stream, hand)
    clock.begin("lab1", "gate", "Measure")
    clock.begin("lab2", "drain", "Stop workloads")
    clock.say("one more thing")
    hand.now += 10
    clock.tick()
    clock.end("lab2", "failed", "it did not stop")
    clock.end("lab1")
    assert stream.getvalue().splitlines()[2:] == [
        "[ 0:00] one more thing",
        "[ 0:10] lab1 gate: Measure … 0:10, no estimate yet",
        "[ 0:10] lab2 drain: Stop workloads … 0:10, no estimate yet",
        "[ 0:10] lab2 drain: Stop workloads … failed in 0:10: it did not stop",
        "[ 0:10] lab1 gate: Measure … ok in 0:10",
    ]


def test_the_live_line_is_rewritten_and_cut_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream, hand = io.StringIO(), Time()
    clock = clock_at(stream, hand, live=True)
    clock.begin("lab1", "prepare", "Install kernel and headers", expected=100)
    clock.begin("lab2", "prepare", "Install kernel and headers", expected=100)
    hand.now += 1
    clock.tick()
    clock.end("lab1", "changed")
    clock.stop()
    text = stream.getvalue()
    lasting = [part.split("\x1b[2K")[-1] for part in text.split("\n")]
    assert lasting[0] == "[ 0:01] lab1 prepare: Install kernel and headers … changed in 0:01"
    assert all(len(part) <= 60 for line in text.split("\n")[1:] for part in line.split("\r\x1b[2K"))
    assert text.endswith("\r\x1b[2K"), "the live line is gone in the end"


def test_ending_what_does_not_run_is_no_error() -> None:
    stream, hand = io.StringIO(), Time()
    clock = clock_at(stream, hand)
    assert clock.end("lab1") is None
    clock.stop()
    clock.stop()
    assert stream.getvalue() == ""


class Broken(io.StringIO):
    """A stream whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(text)


def test_a_stream_that_fails_ends_the_printing_not_the_caller() -> None:
    clock = ProgressClock(Broken())
    clock.begin("lab1", "gate", "Measure")
    assert clock.end("lab1") is not None
    clock.stop()


def test_a_stream_without_unicode_gets_ascii() -> None:
    raw = io.BytesIO()
    clock = ProgressClock(io.TextIOWrapper(raw, encoding="ascii"))
    clock.begin("lab1", "gate", "Measure")
    assert b"lab1 gate: Measure ? no estimate yet\n" in raw.getvalue()


def test_the_thread_prints_by_itself_and_ends_with_the_block() -> None:
    stream = io.StringIO()
    before = threading.active_count()
    clock = ProgressClock(stream, interval_s=0.05)

    def work() -> None:
        with clock:
            clock.begin("lab1", "gate", "Measure")
            time.sleep(0.3)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert len(stream.getvalue().splitlines()) >= 3
    assert threading.active_count() == before
    size = len(stream.getvalue())
    time.sleep(0.1)
    assert len(stream.getvalue()) == size


def test_a_clock_that_nobody_holds_ends_its_thread() -> None:
    before = threading.active_count()
    ProgressClock(io.StringIO(), interval_s=0.02).start()
    limit = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < limit:
        time.sleep(0.02)
    assert threading.active_count() == before


PROGRAM = """
import sys
from gpuhost_cli.progress import ProgressClock
clock = ProgressClock(sys.stderr, interval_s=0.05).start()
clock.begin("lab1", "gate", "Measure")
raise SystemExit(7)
"""


def test_no_process_is_kept_alive() -> None:
    began = time.monotonic()
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 7
    assert "lab1 gate: Measure" in result.stderr
    assert "Traceback" not in result.stderr
    assert time.monotonic() - began < 20


def test_a_forked_child_prints_nothing_and_can_end() -> None:
    stream = io.StringIO()
    with ProgressClock(stream, interval_s=0.01) as clock:
        clock.begin("lab1", "gate", "Measure")
        for _ in range(20):
            child = os.fork()
            if child == 0:
                clock.begin("lab2", "gate", "Measure")
                clock.stop()
                os._exit(3)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert "lab2" not in stream.getvalue()


def write_run(folder: Path, run_id: str, tasks: list[dict[str, object]]) -> None:
    (folder / run_id).mkdir()
    (folder / run_id / "run.json").write_text(json.dumps({"tasks": tasks}))


def entry(host: str, seconds: object, status: str = "ok", task: str = "Install") -> dict[str, object]:
    return {"host": host, "stage": "prepare", "task": task, "seconds": seconds, "status": status}


def test_expectations_come_from_the_newest_run_that_had_the_step(tmp_path: Path) -> None:
    write_run(tmp_path, "20261101T000000Z-0001", [entry("lab1", 100), entry("lab1", 9, task="Rare")])
    write_run(tmp_path, "20261102T000000Z-0002", [entry("lab1", 50), entry("lab2", 70)])
    write_run(tmp_path, "20261103T000000Z-0003", [entry("lab1", 1, "failed"), entry("lab1", 0, "skipped")])
    write_run(tmp_path, "20261104T000000Z-0004", [entry("lab1", 5)])
    found = Expectations.from_runs(tmp_path, {"Other": 3.0, "Install": 4.0}, exclude="20261104T000000Z-0004")
    assert found.seconds("prepare", "Install", "lab1") == 50
    assert found.seconds("prepare", "Install", "lab9") == 70, "another host: the slowest"
    assert found.seconds("prepare", "Rare") == 9
    assert found.seconds("gate", "Install") == 4.0, "another stage is another step: the default"
    assert found.seconds("gate", "Other") == 3.0
    assert found.seconds("gate", "Never seen") is None


def test_unreadable_records_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "20261101T000000Z-0001").mkdir()
    (tmp_path / "20261101T000000Z-0001" / "run.json").write_text("{")
    write_run(tmp_path, "20261102T000000Z-0002", [entry("lab1", True), entry("lab1", "long")])
    (tmp_path / "notes.txt").write_text("a file among the folders")
    assert Expectations.from_runs(tmp_path).seconds("prepare", "Install") is None
    assert Expectations.from_runs(tmp_path / "absent").seconds("prepare", "Install") is None


def test_a_step_that_changed_something_says_more_than_a_newer_one_that_did_not() -> None:
    def record(status: str, seconds: float, check_mode: bool = False) -> dict[str, object]:
        task = {"host": "gpu1", "stage": "prepare", "task": "Install", "seconds": seconds, "status": status}
        return {"check_mode": check_mode, "tasks": [task]}

    found = Expectations()
    found.learn(record("changed", 1.0, check_mode=True))
    assert found.seconds("prepare", "Install") is None
    found.learn(record("ok", 2.0))
    assert found.seconds("prepare", "Install") == 2.0
    found.learn(record("changed", 300.0))
    assert found.seconds("prepare", "Install") == 300.0
