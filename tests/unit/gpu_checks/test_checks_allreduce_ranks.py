"""The check allreduce with real processes, and a library that hangs, dies, fails and lies: each with its own cause."""

import os
import time
from pathlib import Path

import pytest
from collective_fake import Board, FakeBackend, Fault
from measuring import Kept

from gpu_checks.allreduce import check as allreduce
from gpu_checks.allreduce import nccl
from gpu_checks.allreduce.arithmetic import Plan, plan
from gpu_checks.allreduce.check import Wishes
from gpu_checks.allreduce.ranks import Team
from gpu_checks.registry import Check, Options
from gpu_checks.runner import run_check

PAIRS = (("eager", 8), ("graph", 64))
QUICK_LIMITS = {"join_limit_s": 1.0, "step_limit_s": 1.0}


# In the pass over a size: the single operation and its repetition, one loose sample, three unmeasured held ones.
BEFORE = 2 + 20 + 3 * 20
WHOLE = BEFORE + 20 * 20


@pytest.fixture(autouse=True)
def same_plan(monkeypatch):
    """As many operations each time, however busy this machine is."""
    monkeypatch.setattr(allreduce, "plan", lambda _estimate_us: Plan(20, 20))


def measure(fault=None, pairs=PAIRS, sleep_s=0.0, timeout=60.0, **changes):
    """The measurements by name, and whether a process was left; the check runs as the runner runs it."""
    board = Board(2)
    wanted = Wishes(
        lambda number: FakeBackend(number, board, fault, sleep_s), pairs, **{**QUICK_LIMITS, **changes}
    )  # fmt: skip
    check = Check("allreduce", "s", "us", lambda options, report: allreduce.run(options, report, wanted))
    begin = time.monotonic()
    found = run_check(check, Options(timeout_s=timeout))
    # A step's limit has the operations' own time in it, which on a busy machine is the scheduler's.
    assert time.monotonic() - begin < 50
    assert children() == []
    return {each.name: each for each in found}


def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_all_sizes_and_modes_are_measured():
    seen = measure(pairs=(("eager", 8), ("eager", 4096), ("graph", 8)))
    assert list(seen) == ["allreduce.eager.8", "allreduce.eager.4096", "allreduce.graph.8", "allreduce"]
    assert {each.status for each in seen.values()} == {"measured"} or seen["allreduce"].value is None
    one = seen["allreduce.graph.8"]
    assert (one.unit, one.samples.n) == ("us", 20)
    assert one.value == one.samples.median > 0
    assert one.detail["ranks"] == 2
    assert one.detail["algbw_gb_s"] == pytest.approx(8 / one.value / 1e3, abs=1e-6)


def test_the_whole_is_the_latency_of_a_token_in_a_graph(monkeypatch):
    monkeypatch.setattr(allreduce, "HEADLINE", "allreduce.graph.64")
    seen = measure()
    whole = seen["allreduce"]
    assert (whole.status, whole.value) == ("measured", seen["allreduce.graph.64"].value)
    assert whole.detail["gpus"] == {"before": [{"ordinal": 0, "pstate": "P0"}, {"ordinal": 1, "pstate": "P0"}]} | {
        "after": whole.detail["gpus"]["before"]
    }
    assert whole.detail["transports"] == {"P2P/CUMEM": 2}
    assert (whole.detail["library"], whole.detail["layout"]) == ("fake", "process")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("kind", "operation", "cause", "words"),
    [
        (
            "hang",
            0,
            "allreduce.hang",
            ["rank 0 on GPU 0 and rank 1 on GPU 1 did not get through in", "join the other ranks"],
        ),
        (
            "hang",
            3,
            "allreduce.hang",
            ["rank {0} on GPU {0}", "did not get through in", "all-reduces of 8 bytes, eager"],
        ),
        ("hang", -2, "allreduce.hang", ["rank {0} on GPU {0} did not get through", "leave the other ranks"]),
        ("kill", 0, "allreduce.rank_died", ["rank {0} on GPU {0} died (killed by SIGKILL)", "Xid 79 has come"]),
        ("kill", 3, "allreduce.rank_died", ["rank {0} on GPU {0} died (killed by SIGKILL)", "Xid 79 has come"]),
        ("exit", 3, "allreduce.rank_died", ["rank {0} on GPU {0} died (exit status 3)", "8 bytes"]),
        ("raise", 3, "allreduce.rank_died", ["rank {0} on GPU {0} died (exit status 1)", "a defect of ours"]),
        ("fail", 3, "nccl.failed", ["rank {0} on GPU {0}: unhandled system error: no luck", "8 bytes"]),
    ],
)
def test_what_breaks_is_named(kind, operation, cause, words, rank):
    seen = measure(Fault(rank, kind, operation))
    whole = seen["allreduce"]
    print(whole.detail["message"])
    assert (whole.status, whole.cause, whole.value) == ("error", cause, None)
    for each in words:
        assert each.format(rank) in whole.detail["message"]
    assert len(whole.detail["broken"]["ranks"]) == 2


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("kind", "got"), [("wrong", ""), ("nan", "nan (0x7fc00000)")])
@pytest.mark.parametrize("operation", [1, WHOLE])
def test_wrong_data_is_seen_before_and_in_the_timed_pass(kind, got, operation, rank):
    """The first operation is the single one; the other is the last of the timed pass."""
    seen = measure(Fault(rank, kind, operation), join_limit_s=5.0, step_limit_s=5.0)
    one, whole = seen["allreduce.eager.8"], seen["allreduce"]
    print(one.detail["message"])
    assert (one.status, one.cause, one.value) == ("error", "allreduce.wrong_data", None)
    assert f"rank {rank}: 1 of 2 elements are wrong, the first: element 1 is {got}" in one.detail["message"]
    # The other sizes are measured all the same; the whole is what the worst of them is.
    assert seen["allreduce.graph.64"].status == "measured"
    assert (whole.status, whole.cause) == ("error", "allreduce.wrong_data")


def test_a_fault_in_the_middle_of_the_timed_pass_ends_in_its_result_too():
    """A wrong sum is handed on from operation to operation, to the end of its chain."""
    assert measure(Fault(1, "wrong", BEFORE + 19 * 20 + 7))["allreduce.eager.8"].status == "error"


def test_what_was_measured_before_a_hang_is_kept():
    seen = measure(Fault(0, "hang", WHOLE + 1))
    assert seen["allreduce.eager.8"].status == "measured"
    assert "allreduce.graph.64" not in seen
    assert seen["allreduce"].cause == "allreduce.hang"


def test_a_limit_of_the_check_that_is_shorter_than_ours_gives_the_same_cause():
    seen = measure(Fault(1, "hang", 3), timeout=0.8, step_limit_s=60.0, join_limit_s=60.0)
    assert (seen["allreduce"].status, seen["allreduce"].cause) == ("error", "allreduce.hang")
    assert "rank 1 on GPU 1" in seen["allreduce"].detail["message"] or "8 bytes" in seen["allreduce"].detail["message"]


def test_a_scout_that_is_killed_is_no_riddle():
    seen = measure(Fault(0, "kill", -1))
    assert list(seen) == ["allreduce"]
    assert seen["allreduce"].cause == "allreduce.rank_died"
    assert "count" in seen["allreduce"].detail["message"]


def test_a_size_without_room_and_one_without_time_say_so():
    seen = measure(pairs=(("eager", 8), ("eager", 8192)))
    assert (seen["allreduce.eager.8192"].status, seen["allreduce.eager.8192"].cause) == (
        "not_measured",
        "cuda.out_of_memory",
    )
    assert seen["allreduce"].status == "not_measured"
    slow = measure(budget_s=0.0)
    assert {each.cause for each in slow.values()} == {"allreduce.out_of_time"}
    assert {each.status for each in slow.values()} == {"not_measured"}


def test_somebody_elses_work_is_not_measured(monkeypatch):
    def scout(self, options, channel):
        members = [{"rank": rank, "ordinal": rank, "name": f"GPU {rank}"} for rank in range(2)]
        return {"members": members, "record": {"others_active": "GPU 0: another process computes"}}

    monkeypatch.setattr(FakeBackend, "scout", scout)
    seen = measure(pairs=(("eager", 64 << 20), ("graph", 12288)))
    assert list(seen) == ["allreduce.eager.67108864", "allreduce.busbw.67108864", "allreduce.graph.12288", "allreduce"]
    assert {(each.status, each.cause) for each in seen.values()} == {("not_measured", "gpu.in_use")}


def test_slow_operations_are_repeated_less(monkeypatch):
    """5 ms for each, and what a busy machine adds: at most 40 fit into the budget of 0.2 s."""
    monkeypatch.setattr(allreduce, "plan", plan)
    seen = measure(sleep_s=0.005, pairs=(("eager", 8),))
    one = seen["allreduce.eager.8"]
    assert one.value > 5000
    assert one.detail["operations_per_sample"] <= 3
    assert one.detail["operations_per_sample"] * one.samples.n < 40


def test_no_shared_memory_of_killed_ranks_stays(tmp_path, monkeypatch):
    """NCCL's last rank removes the name of such a file, which one that hangs keeps the others from."""
    ours, others, gone = (tmp_path / f"nccl-{name}" for name in ("ours", "others", "gone"))
    monkeypatch.setattr(nccl, "SHARED_MEMORY", str(tmp_path / "nccl-"))
    others.write_text("of another program")

    def life(channel):
        files = [path.open("w") for path in (ours, gone)]
        gone.unlink()
        channel.answer({"files": len(files)})
        time.sleep(60)

    with Team(Kept()) as team:
        team.start(0, life)
        team.ask({0: {}}, 5.0)
        assert ours.exists()
    assert (ours.exists(), others.exists(), gone.exists()) == (False, True, False)
