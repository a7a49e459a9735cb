"""tools/peers: figures are compared right, and the whole command runs, with programs that fake the peers."""

from __future__ import annotations

import math
import shutil
import sys

import pytest
from fake_peers import Machine, load_peers

from gpu_checks.allreduce import arithmetic as collective_math


@pytest.fixture(scope="module")
def peers():
    yield from load_peers()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


# Comparing. -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figure", "ours", "peer", "ok"),
    [
        ("CE write (GB/s)", 393.3, 396.4, True),  # 0.9922
        ("CE write (GB/s)", 387.0, 396.4, False),  # 0.9763
        ("CE write (GB/s)", 405.0, 396.4, False),  # 1.0217: too good is not measured right
        ("SM write (GB/s)", 359.0, 370.0, True),  # 0.9703
        ("SM write (GB/s)", 358.0, 370.0, False),  # 0.9676
        ("SM write (GB/s)", 500.0, 370.0, True),
        ("latency of one read (us)", 0.95, 0.83, True),  # 1.145, but 0.12 us apart
        ("latency of one read (us)", 1.04, 0.83, False),  # 1.253 and 0.21 us
        ("latency of one read (us)", 10.9, 10.0, True),  # 1.09 and 0.9 us
        ("local copy, one way (GB/s)", 2052.0, 2094.0, False),  # 0.97994
        ("local copy, one way (GB/s)", 2053.0, 2094.0, True),  # 0.98042
        ("allreduce, graph, 12288 B (us)", 6.82, 6.5, True),  # 1.0492
        ("allreduce, graph, 12288 B (us)", 6.83, 6.5, False),  # 1.0508
        ("allreduce, graph, 131072 B (us)", 99.0, 6.5, None),
        ("allreduce, eager, 8 B (us)", 8.7, 8.0, True),  # 1.0875
        ("allreduce, eager, 8 B (us)", 8.9, 8.0, False),  # 1.1125
        ("allreduce, graph, 536870912 B (busbw GB/s)", 97.0, 100.0, False),
        ("allreduce, graph, 536870912 B (busbw GB/s)", 98.0, 100.0, True),
        ("seconds for the same set", 5.0, 10.0, True),
        ("seconds for the same set", 5.1, 10.0, False),
        ("BF16 product m1 n24576 k6144, L2 left clean (GB/s)", 97.5, 100.0, True),
        ("BF16 product m1 n24576 k6144, L2 left clean (GB/s)", 96.0, 100.0, False),
        ("BF16 product m1 n24576 k6144 (GB/s)", 50.0, 100.0, None),
        ("BF16 product m16 n24576 k6144, L2 left clean (GB/s)", 50.0, 100.0, None),
        ("BF16 product m1 n12000 k12000, L2 left clean (GB/s)", 50.0, 100.0, None),  # 288 MB of weights
    ],
)
def test_bounds(peers, figure, ours, peer, ok):
    assert peers.figures.row(figure, {"0": ours}, {"0": peer}, "peer").ok is ok


@pytest.mark.parametrize(
    ("figure", "ours", "ok"),
    [
        ("local copy, share of the NVML peak", 0.88, True),
        ("local copy, share of the NVML peak", 0.879, False),
        ("BF16 product m1 n24576 k6144, share of the NVML peak", 0.82, True),
        ("BF16 product m1 n24576 k6144, share of the NVML peak", 0.81, False),
        ("all checks (s)", 60.0, True),
        ("all checks (s)", 60.1, False),
        ("quick set (s)", 10.1, False),
    ],
)
def test_bounds_of_ours_alone(peers, figure, ours, ok):
    made = peers.figures.rows([{(figure, "0"): ours}], {}, [])
    assert [(row.figure, row.ok) for row in made] == [(figure, ok)]


def test_every_place_has_to_be_near_and_none_may_be_missing(peers):
    def row(ours, peer):
        return peers.figures.row("CE write (GB/s)", ours, peer, "nvbandwidth")

    good = {"0-1": 100.0, "1-0": 100.0}
    assert row(good, good).ok is True
    assert row({"0-1": 101.0, "1-0": 90.0}, good).ok is False
    assert row({"0-1": 100.0}, good).ok is False
    assert row({}, good).ok is False
    assert row(good, {}).ok is False


def test_medians_of_rounds(peers):
    write = ("CE write (GB/s)", "0-1")
    ours = [{write: 390.0}, {write: 100.0}, {write: 394.0}]
    theirs = [{write: 396.0}, {write: 396.4}, {write: 1.0}]
    [row] = peers.figures.rows(ours, {"nvbandwidth": theirs}, ["nvbandwidth"])
    assert (row.ours, row.peer, row.ok) == (390.0, 396.0, True)
    assert math.isclose(row.ratio, 390 / 396)


def test_a_layout_that_is_not_ours_is_shown_and_not_judged(peers):
    time = ("allreduce, graph, 8 B (us)", "all")
    unlike = peers.sets.UNLIKE
    judged = peers.sets.judged_by([unlike])
    [row] = peers.figures.rows([{time: 9.0}], {unlike: [{time: 5.0}]}, judged)
    assert (row.ok, row.wanted) == (None, "-")
    assert peers.sets.judged_by(["nccl-tests, one process"]) == ["nccl-tests, one process"]


def test_the_table(peers):
    figures = peers.figures
    made = [
        figures.row("CE write (GB/s)", {"0-1": 390.0, "1-0": 392.0}, {"0-1": 396.0, "1-0": 396.0}, "nvbandwidth"),
        figures.row("all checks (s)", {"all": 61.0}, {}, ""),
    ]
    assert figures.markdown(made).splitlines()[2:] == [
        "| CE write (GB/s) | 391 | 396 (nvbandwidth) | 0.987 (0.985 to 0.990) | 0.98 to 1.02 | yes |",
        "| all checks (s) | 61 | - | - | at most 60 | **no** |",
    ]


# The whole command. -----------------------------------------------------------------------------------------------


def test_rounds_alternate(machine):
    done = machine.compare("memory", "p2p", "--rounds", "2")
    both = ["ours memory", "nvbandwidth device_local_copy", "ours p2p"]
    calls = machine.calls()
    assert calls[:3] == both
    assert calls[3].startswith("nvbandwidth device_to_device_memcpy_write_ce")
    assert calls[4:] == calls[:4]
    said = machine.document()
    assert (said["schema"], said["rounds"], len(said["runs"])) == ("gpuhost.peers", {"memory": 2, "p2p": 2}, 8)
    copy = next(row for row in said["tables"]["memory"] if row["figure"] == "local copy, one way (GB/s)")
    assert (copy["ours"], copy["peer"], copy["ok"]) == (2100.0, 2094.0, True)
    # Our share of the peak is 0.875, and the fake p2p has one way only: both have to show.
    assert done.returncode == 1
    assert "| local copy, share of the NVML peak | 0.875 | - | - | at least 0.88 | **no** |" in done.stdout
    assert done.stdout.endswith((machine.output / "peers.md").read_text() + "\n")


def test_both_layouts_of_a_collective(machine):
    machine.compare("allreduce", "--rounds", "1")
    calls = machine.calls()
    mpi, plain = ["all_reduce_perf_mpi NVLS 0"] * 6, ["all_reduce_perf NVLS 0"] * 6
    assert calls == ["ours allreduce process", *mpi, "ours allreduce single", *plain]
    tables = machine.document()["tables"]
    assert set(tables) == {"allreduce", "allreduce, one process"}
    eight = {row["figure"]: row for row in tables["allreduce"]}["allreduce, graph, 8 B (us)"]
    assert (eight["ours"], eight["peer"], eight["ok"]) == (6.1, 6.0, True)
    assert "SECRET" not in (machine.output / "peers.json").read_text()


def test_without_mpi_the_layouts_differ_and_that_is_said(machine):
    (machine.programs / "all_reduce_perf_mpi").unlink()
    done = machine.compare("allreduce", "--rounds", "1")
    assert "built without MPI" in done.stdout
    assert all(row["ok"] is None for row in machine.document()["tables"]["allreduce"])


def test_a_peer_that_fails_is_told_and_nothing_is_ok(machine):
    machine.program("peers/nvbandwidth", "#!{python}\nraise SystemExit('no device')\n")
    done = machine.compare("memory", "--rounds", "1")
    assert done.returncode == 1
    said = machine.document()
    assert "no device" in said["notes"][0]
    assert {row["figure"]: row["ok"] for row in said["tables"]["memory"]} == {
        "local copy, one way (GB/s)": False,
        "local copy, share of the NVML peak": False,  # 0.875 is too little
    }


def test_the_limit_ends_what_runs_and_keeps_what_was_measured(peers, tmp_path, monkeypatch):
    monkeypatch.setattr(peers.bench, "LEAST_S", 0.1)
    setup = peers.bench.Setup(sys.executable, "", tmp_path, 1, {})
    said = []
    bench = peers.bench.Bench(setup, 2.0, said.append)
    sleep = [sys.executable, "-c", "import subprocess, sys; subprocess.run(['sleep', '60'])"]

    def read(done):
        raise peers.nvbandwidth.NotUsable("nothing")

    bench.keep("memory", {("local copy, one way (GB/s)", "0"): 2100.0})
    assert bench.peer("memory", "nvbandwidth", sleep, read) == {}
    assert bench.runs[-1]["rc"] < 0
    assert bench.runs[-1]["seconds"] < 5
    assert "the limit of 2 s" in bench.notes[0]
    assert bench.left_s() < 0.1
    with pytest.raises(peers.bench.OutOfTime, match="not begun"):
        bench.run(["true"])
    assert bench.of("memory").ours == [{("local copy, one way (GB/s)", "0"): 2100.0}]


def test_a_command_is_not_begun_where_it_took_longer_before(peers, tmp_path, monkeypatch):
    monkeypatch.setattr(peers.bench, "LEAST_S", 0.1)
    bench = peers.bench.Bench(peers.bench.Setup("", "", tmp_path, 1, {}), 1.5, lambda _: None)
    assert bench.run(["sleep", "0.9"]).rc == 0
    with pytest.raises(peers.bench.OutOfTime):
        bench.run(["sleep", "0.9"])


def test_one_gpu_is_enough_for_some(machine):
    machine.program("bin/nvidia-smi", "#!{python}\nprint('GPU 0: any (UUID: GPU-0)')\n")
    done = machine.compare("p2p", "memory", "--rounds", "1")
    assert "p2p: not measured, it needs 2 GPUs and 1 is there" in done.stdout
    assert machine.calls()[0] == "ours memory"


def test_nothing_to_compare_with(machine):
    shutil.rmtree(machine.programs)
    done = machine.compare("memory")
    assert (done.returncode, done.stdout) == (2, "")
    assert "build.py" in done.stderr


def test_the_sizes_are_those_of_the_check(peers):
    assert peers.figures.OUR_SIZES == collective_math.SIZES
