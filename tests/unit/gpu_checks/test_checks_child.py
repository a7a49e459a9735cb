"""A check can hang, crash, shout and leave processes behind; nothing of it may stay, and nothing may be lost."""

import faulthandler
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_checks import child as child_module
from gpu_checks import processes
from gpu_checks.measurement import Measurement
from gpu_checks.registry import Check, Options
from gpu_checks.runner import run_check

ROOT = Path(__file__).resolve().parents[3]
ONE = Measurement("x", 1, "us", "m", "measured", None, 0.0)


def sleep_long():
    while True:
        time.sleep(60)


def detach(say):
    """A process in a session of its own whose parent is gone: what torchrun and daemons are."""
    middle = os.fork()
    if middle == 0:
        os.setsid()
        lowest = os.fork()
        if lowest == 0:
            say(os.getpid())
            sleep_long()
        os._exit(0)
    os.waitpid(middle, 0)


def alive(pid):
    """Whether a process runs; one that only waits for its parent to look does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid, within_seconds=2.0):
    deadline = time.monotonic() + within_seconds
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def run(function, timeout=5.0):
    return run_check(Check("x", "s", "us", function), Options(timeout_s=timeout))


def test_what_was_measured_arrives():
    def good(options, report):
        report.doing("work")
        report.add(ONE)

    assert run(good) == [ONE]


def test_hang_is_killed_at_its_limit_and_keeps_what_was_measured():
    def hang(_options, report):
        report.add(ONE)
        report.doing(f"open /dev/nvidia3 as {os.getpid()}")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sleep_long()

    begin = time.monotonic()
    first, last = run(hang, timeout=0.3)
    assert time.monotonic() - begin < 2
    assert first == ONE
    assert (last.name, last.status, last.cause, last.value) == ("x", "error", "check.timeout", None)
    assert "open /dev/nvidia3" in last.detail["message"]
    assert not processes.exists(int(last.detail["doing"].split()[-1]))


def test_a_child_that_hangs_without_reading_signals_is_named_when_it_cannot_be_killed(monkeypatch):
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(processes, "exists", lambda pid: True)  # as a process inside the kernel looks

    def hang(_options, _report):
        sleep_long()

    (last,) = run(hang, timeout=0.1)
    assert (last.cause, len(last.detail["unkillable_pids"])) == ("check.timeout", 1)


@pytest.mark.parametrize("ends", [True, False])
def test_grandchildren_are_gone_also_detached_ones(ends):
    def family(_options, report):
        if os.fork() == 0:
            report.doing(f"group {os.getpid()}")
            sleep_long()
        pipe, entry = os.pipe()
        detach(lambda pid: os.write(entry, str(pid).encode()))
        detached = os.read(pipe, 20).decode()
        report.add(Measurement("x", int(detached), "us", "m", "measured", None, 0.0))
        report.doing(f"detached {detached}")
        if not ends:
            sleep_long()

    measurements = run(family, timeout=1.0)
    assert gone(int(measurements[0].value), 0.0)
    assert processes.children(os.getpid()) == set()
    assert len(measurements) == (1 if ends else 2)


def test_a_grandchild_that_holds_the_pipes_does_not_delay_the_end():
    def leave(_options, report):
        report.add(ONE)
        if os.fork() == 0:
            sleep_long()
        os._exit(3)

    begin = time.monotonic()
    measurements = run(leave, timeout=20.0)
    assert time.monotonic() - begin < 5
    assert [each.cause for each in measurements] == [None, "check.crashed"]
    assert measurements[1].detail["ending"] == "exit status 3"


def test_the_group_is_gone_where_the_kernel_offers_no_subreaper(monkeypatch):
    monkeypatch.setattr(processes, "prctl", lambda *_: False)

    def leave(_options, report):
        grandchild = os.fork()
        if grandchild == 0:
            sleep_long()
        report.doing(str(grandchild))
        os._exit(0)

    (last,) = run(leave)
    assert gone(int(last.detail["doing"]))


def test_our_own_other_children_are_spared():
    other = subprocess.Popen(["sleep", "60"])
    try:
        run(lambda _options, report: report.add(ONE))
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_exception_is_a_crash_with_its_last_line():
    def fail(_options, report):
        report.doing("divide")
        print("noise on stdout")
        raise ZeroDivisionError("by nothing")

    (last,) = run(fail)
    assert (last.cause, last.status) == ("check.crashed", "error")
    assert last.detail["stderr_last_line"] == "ZeroDivisionError: by nothing"
    assert last.detail["message"] == "ZeroDivisionError: by nothing (while it was about to: divide)"


def test_death_by_signal_is_a_crash_with_the_signals_name():
    def die(_options, _report):
        faulthandler.disable()  # pytest's own would print here
        os.kill(os.getpid(), signal.SIGSEGV)
        sleep_long()

    (last,) = run(die)
    assert (last.cause, last.detail["ending"]) == ("check.crashed", "killed by SIGSEGV")


def test_leaving_without_a_word_is_a_crash():
    (last,) = run(lambda _options, _report: os._exit(0))
    assert (last.cause, last.detail["ending"]) == ("check.crashed", "exit status 0")


def test_ending_without_a_measurement_is_a_crash():
    (last,) = run(lambda _options, _report: None)
    assert last.cause == "check.crashed"
    assert "no measurement" in last.detail["message"]


def test_nonsense_in_the_report_is_a_crash():
    def babble(_options, report):
        os.write(report._file, b"not json\n")
        sleep_long()

    (last,) = run(babble)
    assert last.cause == "check.crashed"
    assert "unreadable report" in last.detail["message"]


def test_endless_reports_are_cut_off(monkeypatch):
    monkeypatch.setattr(child_module, "REPORT_LIMIT_BYTES", 1 << 20)

    def flood(_options, report):
        while True:
            report.doing("x" * 10000)

    (last,) = run(flood)
    assert (last.cause, "bytes reported" in last.detail["message"]) == ("check.crashed", True)


def test_endless_stderr_neither_blocks_nor_grows():
    def shout(_options, report):
        for _ in range(2000):
            os.write(2, b"a line of noise\n" * 64)
        os.write(2, b"the last one\n")
        raise SystemExit(1)

    (last,) = run(shout)
    assert last.detail["stderr_last_line"] == "SystemExit: 1"


def test_no_process_to_be_had(monkeypatch):
    def refuse():
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    (last,) = run(lambda _options, report: report.add(ONE))
    assert (last.cause, "Resource temporarily" in last.detail["message"]) == ("check.crashed", True)


def test_the_child_has_a_session_of_its_own_and_no_input():
    def look(_options, report):
        value = int(os.getsid(0) == os.getpid() and os.read(0, 1) == b"")
        report.add(Measurement("x", value, "us", "m", "measured", None, 0.0))

    assert run(look)[0].value == 1


def test_files_do_not_leak():
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        run(lambda _options, report: report.add(ONE))
    assert len(os.listdir("/proc/self/fd")) == len(before)


SCRIPT = """
import os, sys, time
from gpu_checks import cli, registry
fork = os.fork
def slow_fork():
    pid = fork()
    if pid:
        time.sleep({after_fork_s})
    return pid
os.fork = slow_fork
def hang(options, report):
    other = fork()
    if other == 0:
        time.sleep(60)
    print(os.getpid(), other, flush=True)
    open({note!r}, "w").write("%d %d\\n" % (os.getpid(), other))
    time.sleep(60)
registry.REGISTRY["cuda"] = registry.Check("cuda", "hangs", "gpus", hang)
sys.exit(cli.main(["cuda", "--json", "--timeout", "60"]))
"""


def hanging_command(tmp_path, after_fork_s=0):
    note = tmp_path / "pids"
    script = SCRIPT.format(note=str(note), after_fork_s=after_fork_s)
    command = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while not (note.exists() and note.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return command, [int(pid) for pid in note.read_text().split()]


@pytest.mark.parametrize("after_fork_s", [0, 30], ids=["it waits", "it does not know its child yet"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stopping_the_command_stops_its_check(tmp_path, number, after_fork_s):
    command, pids = hanging_command(tmp_path, after_fork_s)
    command.send_signal(number)
    out, err = command.communicate(timeout=10)
    assert (command.returncode, out, err) == (128 + number, b"", b"")
    assert all(gone(pid) for pid in pids)


def test_killing_the_command_outright_kills_the_check(tmp_path):
    command, (pid, other) = hanging_command(tmp_path)
    command.kill()
    command.communicate(timeout=10)
    try:
        assert gone(pid)
    finally:
        os.kill(other, signal.SIGKILL)  # the kernel's promise reaches the child, not what the child started
