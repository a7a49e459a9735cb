"""How the check ends where it can't start, can't go on, or is cut off; and what the environment forbids."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest
from p2p_fake import OPTIONS, FakeGpus, Faults, make_small, run, stand, tools

from gpu_checks import processes
from gpu_checks.measurement import Measurement
from gpu_checks.p2p import check as p2p
from gpu_checks.p2p.steps import Tools
from gpu_checks.registry import Check, Options
from gpu_checks.runner import run_check


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    make_small(monkeypatch)


def test_a_gpu_without_room_is_not_broken():
    for faults in (Faults(full=True), Faults(free=1 << 20)):
        seen = run(2, faults)
        assert list(seen) == ["p2p"]
        assert stand(seen, "p2p") == ("not_measured", "cuda.out_of_memory")


def refusing(cause="p2p.one_gpu"):
    def refuse(options, report):
        said = {"message": "1 GPU is visible, the check needs 2"}
        report.add(Measurement("p2p", None, "pairs", "m", "not_measured", cause, 0.0, detail=said))

    return refuse


def test_one_gpu():
    taken = []
    for _ in range(3):  # the machine may be busy with something else
        begin = time.monotonic()
        seen = run(made=Tools(open=refusing()))
        taken.append(time.monotonic() - begin)
    assert min(taken) < 0.2
    assert list(seen) == ["p2p"]
    assert stand(seen, "p2p") == ("not_measured", "p2p.one_gpu")


def test_a_start_that_hangs():
    def hang(options, report):
        report.doing("call cuInit", hung="cuda.driver_hang")
        time.sleep(60)

    seen = run(made=Tools(open=hang, setup_s=0.3))
    assert list(seen) == ["p2p"]
    assert stand(seen, "p2p") == ("error", "cuda.driver_hang")
    assert "call cuInit" in seen["p2p"].detail["message"]


def test_a_defect_of_ours_is_said_as_such(capfd):
    def stumble(options, report):
        raise RuntimeError("no such thing")

    seen = run(made=Tools(open=stumble))
    assert stand(seen, "p2p") == ("error", "check.crashed")
    assert "RuntimeError: no such thing" in capfd.readouterr().err


def test_a_gpu_that_does_not_come_back_after_a_hang(tmp_path):
    """The second worker can't even start: what was measured stays, the rest was not come to, one answer for all."""
    begun = tmp_path / "begun"

    def once(options, report):
        if begun.exists():
            return refusing("cuda.init_failed")(options, report)
        begun.touch()
        return FakeGpus(2, Faults(hang={(1, 0)}))

    seen = run(made=Tools(open=once, step_s=1.0))
    assert stand(seen, "p2p.ce.1-0") == ("error", "p2p.hang")
    assert stand(seen, "p2p.ce.0-1") == ("not_measured", "p2p.not_reached")
    assert "could not start" in seen["p2p.ce.0-1"].detail["message"]
    assert stand(seen, "p2p") == ("error", "p2p.hang")


def test_the_time_for_all_is_kept():
    seen = run(3, budget_s=0.0)
    assert stand(seen, "p2p") == ("not_measured", "p2p.not_reached")
    assert "had passed" in seen["p2p.ce.0-1"].detail["message"]


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("NCCL_P2P_DISABLE", "1", ("not_measured", "p2p.disabled_by_environment")),
        ("NCCL_P2P_DISABLE", "0", ("measured", None)),
        ("NCCL_P2P_LEVEL", "LOC", ("not_measured", "p2p.disabled_by_environment")),
        ("NCCL_P2P_LEVEL", "SYS", ("measured", None)),
    ],
)
def test_what_the_environment_forbids(monkeypatch, variable, value, expected):
    monkeypatch.setenv(variable, value)
    seen = run(options=Options(quick=True))
    assert stand(seen, "p2p.environment") == expected
    assert seen["p2p"].status == "measured"
    assert seen["p2p"].detail["environment"] == {variable: value}


def test_what_nccls_own_file_forbids(monkeypatch, tmp_path):
    """NCCL reads its files where the environment says nothing; /etc/nccl.conf is in no process's environment."""
    (tmp_path / "nccl.conf").write_text("# NCCL_P2P_LEVEL=LOC\nNCCL_P2P_DISABLE=1\nNCCL_DEBUG=INFO\n")
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "nccl.conf"))
    seen = run(options=Options(quick=True))
    assert stand(seen, "p2p.environment") == ("not_measured", "p2p.disabled_by_environment")
    assert seen["p2p"].detail["environment"] == {"NCCL_P2P_DISABLE": "1"}
    monkeypatch.setenv("NCCL_P2P_DISABLE", "0")
    assert stand(run(options=Options(quick=True)), "p2p.environment") == ("measured", None)


def test_a_check_that_is_cut_off_keeps_what_was_measured_and_leaves_no_worker():
    """The runner's own limit strikes while a worker hangs, inside the check's child."""
    made = tools(2, Faults(hang={(1, 0)}), step_s=60.0)
    made = Tools(**{**vars(made), "pairs": lambda count, quick: [(0, 1), (1, 0)]})
    check = Check("p2p", "summary", "pairs", lambda options, report: p2p.check(options, report, made))
    seen = {each.name: each for each in run_check(check, replace(OPTIONS, timeout_s=2.0))}
    assert stand(seen, "p2p.access.0-1") == ("measured", None)
    assert stand(seen, "p2p") == ("error", "p2p.hang")
    assert "GPU 1 -> 0" in seen["p2p"].detail["message"]
    assert processes.children(os.getpid()) == set()


@pytest.mark.parametrize(("limit", "budget"), [(120.0, 100.0), (600.0, 580.0), (30.0, 15.0)])
def test_the_time_for_all_follows_the_checks_own_limit(limit, budget):
    """Below it by one step that hangs, so that what was measured is summed up before the check is killed."""
    assert Tools().budget(Options(timeout_s=limit)) == budget
