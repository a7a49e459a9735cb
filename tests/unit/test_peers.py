"""tools/peers: what nvbandwidth, nccl-tests and our checks say is read right, and the peers are built right."""

from __future__ import annotations

import json
import shutil

import pytest
from fake_peers import OURS, document, load_peers, measurement, nccl_tests_says, nvbandwidth_says

from gpu_checks import memory
from gpu_checks.allreduce import arithmetic as collective_math
from gpu_checks.allreduce import nccl_backend as collective_nccl
from gpu_checks.p2p import plan as p2p_plan
from gpu_checks.p2p import results as p2p_results


@pytest.fixture(scope="module")
def peers():
    yield from load_peers()


# nvbandwidth. -----------------------------------------------------------------------------------------------------


def test_a_read_comes_from_the_column_and_a_write_goes_to_it(peers):
    matrix = [["N/A", "11"], ["22", "N/A"]]
    said = nvbandwidth_says(device_to_device_memcpy_write_ce=matrix, device_to_device_memcpy_read_sm=matrix)
    assert peers.nvbandwidth.readings(peers.nvbandwidth.parse(said)) == {
        ("CE write (GB/s)", "0-1"): 11.0,
        ("CE write (GB/s)", "1-0"): 22.0,
        ("SM read (GB/s)", "1-0"): 11.0,
        ("SM read (GB/s)", "0-1"): 22.0,
    }


def test_both_ways_are_three_matrices_on_end(peers):
    """Row 0, column 1 of the first is the way 1-0, of the second the way 0-1; the third is the sum."""
    first, second, total = [["N/A", "100"], ["90", "N/A"]], [["N/A", "94"], ["104", "N/A"]], [["N/A", "194"]] * 2
    said = nvbandwidth_says(device_to_device_bidirectional_memcpy_write_ce=[*first, *second, *total])
    # 0-1: 90 in the first (row 1, column 0) and 94 in the second; 1-0: 100 and 104.
    name = "CE write, both ways at once (GB/s)"
    assert peers.nvbandwidth.readings(peers.nvbandwidth.parse(said)) == {(name, "0-1"): 92.0, (name, "1-0"): 102.0}


def test_latency_is_in_us_and_belongs_to_who_owns_the_memory(peers):
    said = nvbandwidth_says(device_to_device_latency_sm=[["N/A", "830.5"], ["840", "N/A"]])
    found = peers.nvbandwidth.readings(peers.nvbandwidth.parse(said))
    assert found == {("latency of one read (us)", "1-0"): 0.8305, ("latency of one read (us)", "0-1"): 0.84}


def test_a_local_copy_is_one_way(peers):
    said = nvbandwidth_says(device_local_copy=[["2094.3", "2090"]])
    name = "local copy, one way (GB/s)"
    assert peers.nvbandwidth.readings(peers.nvbandwidth.parse(said)) == {(name, "0"): 2094.3, (name, "1"): 2090.0}
    assert "host" not in json.dumps(peers.nvbandwidth.about(said))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("CUDA error\n", "no JSON"),
        ("", "no JSON"),
        ('{"nvbandwidth": {"error": "cuInit failed", "version": "v0.8"}}', "cuInit failed"),
        # It prints the document once for the error, and once more at its end.
        ('{"nvbandwidth": {"error": "twice"}}\n{"nvbandwidth": {"error": "twice"}}', "twice"),
        ('{"nvbandwidth": {"testcases": [{"name": "t", "status": "Waived"}]}}', "t: Waived"),
        ('{"nvbandwidth": {"testcases": [{"name": "t", "status": "Running", "error": "bad copy"}]}}', "bad copy"),
        (nvbandwidth_says(device_local_copy=[["fast"]]), "'fast'"),
        (nvbandwidth_says(device_local_copy=[[None]]), "None"),
    ],
)
def test_nvbandwidth_that_is_no_result(peers, text, words):
    with pytest.raises(peers.nvbandwidth.NotUsable, match=words):
        peers.nvbandwidth.readings(peers.nvbandwidth.parse(text))


def test_two_matrices_where_three_are_due(peers):
    said = nvbandwidth_says(device_to_device_bidirectional_memcpy_read_ce=[["N/A", "1"], ["2", "N/A"]])
    with pytest.raises(peers.nvbandwidth.NotUsable, match="three times"):
        peers.nvbandwidth.readings(peers.nvbandwidth.parse(said))


# nccl-tests. ------------------------------------------------------------------------------------------------------


def test_the_column_in_place_counts(peers):
    found = peers.nccl_tests.readings(peers.nccl_tests.parse(nccl_tests_says({8: 5.9, 1 << 20: 10.0})), "graph")
    assert found == {
        ("allreduce, graph, 8 B (us)", "all"): 5.9,
        ("allreduce, graph, 1048576 B (us)", "all"): 10.0,
        ("allreduce, graph, 1048576 B (busbw GB/s)", "all"): pytest.approx(104.8576),
    }
    assert "SECRET" not in json.dumps(peers.nccl_tests.about(nccl_tests_says({8: 1.0})))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"version":3,"config":{"ngpus":1}}', "before its results"),  # as it is where it finds too few GPUs
        ('{"version":3,"config":', "before its results"),
        ("", "before its results"),
        (nccl_tests_says({}), "no results"),
        (nccl_tests_says({8: 1.0}, wrong=3.0), "wrong data at \\[8\\] B"),
    ],
)
def test_nccl_tests_that_is_no_result(peers, text, words):
    with pytest.raises(peers.nccl_tests.NotUsable, match=words):
        peers.nccl_tests.parse(text)


def test_layouts(peers):
    module = peers.nccl_tests
    commands = {
        name: module.layout(name, "/p", 2).command(8, 65536, "graph", "/o.json")
        for name in (module.A_PROCESS_EACH, module.ONE_PROCESS, module.A_THREAD_EACH)
    }
    tail = ["-b", "8", "-e", "65536", "-f", "2", "-n", "20", "-w", "5", "-G", "50", "-J", "/o.json"]
    launcher = ["/p/mpi/bin/mpiexec.hydra", "-launcher", "fork", "-n", "2"]
    assert commands == {
        module.A_PROCESS_EACH: [*launcher, "/p/all_reduce_perf_mpi", "-t", "1", "-g", "1", *tail],
        module.ONE_PROCESS: ["/p/all_reduce_perf", "-t", "1", "-g", "2", *tail],
        module.A_THREAD_EACH: ["/p/all_reduce_perf", "-t", "2", "-g", "1", *tail],
    }
    assert "-G" not in module.layout(module.ONE_PROCESS, "/p", 2).command(8, 65536, "eager", "/o.json")


def test_every_size_of_ours_has_one_of_the_peer(peers):
    theirs = {size for least, most in peers.nccl_tests.SPANS for size in _doubled(least, most)}
    assert set(collective_math.SIZES) <= theirs


def _doubled(least, most):
    while least <= most:
        yield least
        least *= 2


# Ours. ------------------------------------------------------------------------------------------------------------


def test_our_document(peers):
    found = peers.ours.readings(peers.ours.parse(document(*OURS)))
    assert found == {
        ("local copy, one way (GB/s)", "0"): 2100.0,
        ("local copy, share of the NVML peak", "0"): 0.875,
        ("CE write (GB/s)", "0-1"): 393.0,
        ("CE write, both ways at once (GB/s)", "0-1"): 388.0,
        ("SM read (GB/s)", "1-0"): 371.0,
        ("latency of one read (us)", "1-0"): 0.84,
        ("allreduce, graph, 8 B (us)", "all"): 6.1,
        ("allreduce, eager, 536870912 B (us)", "all"): 1500.0,
        ("allreduce, eager, 536870912 B (busbw GB/s)", "all"): 357.9,
        ("BF16 product m1 n24576 k6144 (GB/s)", "1"): 4000.0,
        ("BF16 product m1 n24576 k6144, share of the NVML peak", "1"): 0.83,
    }
    assert peers.ours.products(list(OURS)) == [(1, 1, 24576, 6144)]


def test_what_was_not_measured_is_told_where_somebody_waits_for_it(peers):
    whole = measurement("allreduce", None, "us", "not_measured", "allreduce.one_gpu", message="1 GPU")
    assert peers.ours.troubles([*OURS, whole]) == [
        "p2p.ce.1-0: error p2p.hang: no end",
        "allreduce: not_measured allreduce.one_gpu: 1 GPU",
    ]


@pytest.mark.parametrize("text", ["", "Traceback", "{}", '{"schema": "other", "measurements": []}', "[]"])
def test_no_document_of_ours(peers, text):
    with pytest.raises(peers.ours.NotUsable):
        peers.ours.parse(text)


def test_names_are_those_that_our_checks_give(peers):
    """The names and units here are made by the code that makes them there."""
    assert {kind.name for kind in memory.KINDS} >= {"copy"}
    assert memory.NAME == "memory"
    assert set(peers.ours.P2P_FIGURES) == {*p2p_plan.ENGINES, p2p_plan.BOTH}
    assert p2p_plan.Step(p2p_plan.LATENCY, ((0, 1),)).names == ("p2p.latency.0-1",)
    assert p2p_results.UNITS[p2p_plan.LATENCY] == "us"
    assert (collective_nccl.NAME, collective_nccl.UNIT) == ("allreduce", "us")


# The torch side. --------------------------------------------------------------------------------------------------


def test_what_a_product_moves(peers):
    assert peers.torch_peer.bytes_of(1, 24576, 6144) == 2 * (6144 + 24576 * 6144 + 24576)
    assert peers.torch_peer.shape("1:16:24576:6144") == (1, 16, 24576, 6144)
    with pytest.raises(ValueError):
        peers.torch_peer.shape("1:16")


# Building. --------------------------------------------------------------------------------------------------------


def test_build_says_what_is_missing(peers, tmp_path):
    build = peers.build
    with pytest.raises(build.BuildError, match="libboost-program-options-dev"):
        build.boost(tmp_path)
    with pytest.raises(build.BuildError, match="nvidia-nvml-dev"):
        build.nvml_include(tmp_path, build.Toolkit("nvcc", tmp_path, ()))
    with pytest.raises(build.BuildError, match=r"nccl\.h"):
        build.nccl_home(tmp_path, tmp_path / "home")
    with pytest.raises(build.BuildError, match="TOP="):
        build.toolkit_home("nothing")
    assert build.main(["--output", str(tmp_path), "--nvcc", "no-such-compiler"]) == 2


def test_stand_ins_have_the_drivers_names_and_nothing_else(peers, tmp_path):
    if shutil.which("cc") is None or shutil.which("nm") is None:
        pytest.skip("no C compiler (cc) and nm")
    names = ["cuInit", "cudaMalloc", "nvmlInit_v2", "curl_easy", "_Unwind_Resume"]
    libraries = peers.build.stand_ins(names, tmp_path)
    defined = [peers.build.run(["nm", "-D", "--defined-only", path]).split()[2::3] for path in libraries]
    assert defined == [["cuInit"], ["nvmlInit_v2"]]


def test_the_toolkit_is_where_nvcc_says(peers, tmp_path):
    assert peers.build.toolkit_home(f"#$ _SPACE_= \n#$ TOP={tmp_path}/bin/..\n#$ X=1\n") == tmp_path
