"""In a quick run torch is imported while other checks run; nobody may notice but by the clock."""

import os
import time
from dataclasses import replace

import pytest

from gpu_checks import processes, runner, torch_gpu
from gpu_checks.measurement import Measurement
from gpu_checks.registry import Check, Options
from gpu_checks.runner import run_checks

IMPORT_S, WORK_S = 0.6, 0.6
ONE = Measurement("first", 1, "us", "m", "measured", None, 0.0)
BROKEN = replace(ONE, value=None, status="error", cause="cuda.driver_hang")


@pytest.fixture
def slow_torch(tmp_path, monkeypatch):
    """A package that takes its time, in torch's place; it notes the process that imports it."""
    name = f"slow_torch_{tmp_path.name}".replace("-", "_")
    code = f"import os, time\nopen({str(tmp_path / 'imported')!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
    file = tmp_path / f"{name}.py"
    file.write_text(code + f"time.sleep({IMPORT_S})\n__version__ = '1'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(torch_gpu, "NAME", name)
    return file


def works(*said):
    def run(_options, report):
        time.sleep(WORK_S)
        for measurement in said:
            report.add(measurement)

    return Check("first", "s", "us", run)


def needs_torch(_options, report):
    loaded = torch_gpu.load(report)
    detail = {"seconds": loaded.seconds, "pid": os.getpid()}
    report.add(Measurement("second", 1, "gpus", "m", "measured", None, 0.0, detail=detail))


SECOND = Check("second", "s", "gpus", needs_torch, uses_torch=True)


def run(*checks, quick=True, timeout=20.0):
    begin = time.monotonic()
    made = run_checks(list(checks), Options(quick=quick, timeout_s=timeout))
    assert processes.children(os.getpid()) == set()
    return made, time.monotonic() - begin


def importers(file):
    note = file.parent / "imported"
    # The file is there before its line is.
    whole_lines = (note.read_text() if note.exists() else "").split("\n")[:-1]
    return [int(line) for line in whole_lines]


def test_the_import_is_done_while_the_first_check_works(slow_torch):
    (first, second), seconds = run(works(ONE), SECOND)
    assert first == ONE
    assert importers(slow_torch) == [second.detail["pid"]]
    # The import's own time, although it was over when the check began.
    assert second.detail["seconds"] >= IMPORT_S
    _, one_after_the_other = run(works(ONE), SECOND, quick=False)
    assert seconds < one_after_the_other - IMPORT_S / 2


def test_its_limit_begins_at_its_turn(slow_torch):
    made, _ = run(works(ONE), SECOND, timeout=max(IMPORT_S, WORK_S) + 0.4)
    assert [each.status for each in made] == ["measured", "measured"]


def test_two_that_import_do_not_end_each_other(slow_torch):
    third = replace(SECOND, name="third")
    (first, *others), _ = run(works(ONE), SECOND, third)
    assert first == ONE
    assert [each.status for each in others] == ["measured", "measured"]
    assert sorted(importers(slow_torch)) == sorted(each.detail["pid"] for each in others)
    assert others[0].detail["pid"] != others[1].detail["pid"]


def test_what_is_broken_is_said_without_waiting_for_the_import(slow_torch):
    slow_torch.write_text(slow_torch.read_text() + "time.sleep(30)\n")
    told = Check("second", "s", "gpus", lambda _options, report: report.add(BROKEN), uses_torch=True)
    made, seconds = run(works(BROKEN), told)
    assert made == [BROKEN, BROKEN]
    assert seconds < WORK_S + 5


def test_what_is_not_measured_is_no_fault(slow_torch):
    one_gpu = replace(ONE, value=None, status="not_measured", cause="p2p.one_gpu")
    (_, second), _ = run(works(one_gpu), SECOND)
    assert importers(slow_torch) == [second.detail["pid"]]


@pytest.mark.parametrize(
    ("code", "message"),
    [("import os\nos.kill(os.getpid(), 11)\n", "killed by SIGSEGV"), ("1/0\n", "ZeroDivisionError")],
)
@pytest.mark.parametrize("seconds", [0.0, WORK_S + 0.5], ids=["before its turn", "at its turn"])
def test_an_import_that_fails_is_reported_as_without_it(slow_torch, code, message, seconds):
    def load(_options, report):
        try:
            torch_gpu.load(report)
        except torch_gpu.NoTorch as error:
            report.add(replace(BROKEN, cause=error.why.cause, detail={"message": error.why.message}))

    # pytest's handler of faults would print here
    slow_torch.write_text(f"import faulthandler, time\nfaulthandler.disable()\ntime.sleep({seconds})\n" + code)
    (first, last), _ = run(works(ONE), replace(SECOND, run=load))
    assert (first, last.cause) == (ONE, "torch.broken")
    assert message in last.detail["message"]


def test_no_torch_is_said_by_the_check(monkeypatch):
    monkeypatch.setattr(torch_gpu, "NAME", "no_such_torch")

    def load(_options, report):
        with pytest.raises(torch_gpu.NoTorch) as caught:
            torch_gpu.load(report)
        report.add(replace(BROKEN, cause=caught.value.why.cause))

    (_, last), _ = run(works(ONE), replace(SECOND, run=load))
    assert last.cause == "torch.missing"


def test_an_import_that_hangs_is_killed_at_the_checks_limit(slow_torch):
    slow_torch.write_text("import time\ntime.sleep(60)\n")
    (_, last), _ = run(works(ONE), SECOND, timeout=1.0)
    assert last.cause == "check.timeout"
    assert "import torch" in last.detail["message"]


def test_nothing_is_left_where_the_run_is_interrupted(slow_torch, monkeypatch):
    def interrupted(*_):
        end = time.monotonic() + 30
        while not importers(slow_torch):
            assert time.monotonic() < end, "nothing was imported"
            time.sleep(0.01)
        raise SystemExit(130)  # what the command makes of a signal

    monkeypatch.setattr(runner, "run_check", interrupted)
    with pytest.raises(SystemExit):
        run_checks([works(ONE), SECOND], Options(quick=True))
    assert processes.children(os.getpid()) == set()
    (pid,) = importers(slow_torch)
    assert not processes.exists(pid)
