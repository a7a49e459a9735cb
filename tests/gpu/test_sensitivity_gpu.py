"""What the shipped archive must catch on real GPUs, each with a cause of its own; and that it cries wolf at nothing.

Faults are real where that can be done from outside (a neighbour that copies, a GPU that is hidden), and injected by a
library in front of the driver's where not, see faulty.c. What needs two GPUs is skipped on one, with the reason.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faulty import NEEDS_COMPILER, build_faulty, real_libcuda
from test_cuda_gpu import GPUS, VERSION_FILE, assert_given_back, used_mib

from gpu_checks.allreduce import nccl
from gpu_checks.build_zipapp import build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not VERSION_FILE.exists(), reason=f"no NVIDIA driver: {VERSION_FILE} does not exist"),
]
RUNS = int(os.environ.get("GPUHOST_HEALTHY_RUNS", "20"))
QUICK = ("cuda", "p2p", "allreduce", "gemm")
EVERY = ("cuda", "p2p", "allreduce", "memory", "gemm")
NO_FAULT = {"p2p.one_gpu", "allreduce.one_gpu", "gemm.unsupported"}
"""What a healthy machine may not have measured: it has one GPU, or GPUs without FP4."""

two_gpus = pytest.mark.skipif(GPUS < 2, reason=f"needs two GPUs, {GPUS} is here")
SHARED = {} if GPUS > 1 else {"GPU_CHECKS_SHARE_GPU": "1"}
"""On one GPU two ranks of the allreduce share it."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("build") / "gpu_checks.pyz"
    build(path)
    return path


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A folder with a faulty libcuda, for LD_LIBRARY_PATH."""
    folder = tmp_path_factory.mktemp("faulty")
    build_faulty(folder, real_libcuda(), "libcuda.so.1")
    return folder


@pytest.fixture(scope="module")
def faulty_nccl(tmp_path_factory):
    """A faulty libnccl, for the variable by which an engine is told which one to take."""
    found = nccl.find()
    if not found:
        pytest.skip(f"no {nccl.LIBRARY} beside {sys.executable}")
    return build_faulty(tmp_path_factory.mktemp("nccl"), Path(found[0]).resolve(), "libnccl.so.2", "-DFOR_NCCL")


@pytest.fixture(autouse=True)
def nothing_stays():
    """No process and no memory more than before, whatever happened."""
    before = used_mib()
    yield
    assert_given_back(before)


def measure(archive, *arguments, **environment):
    """Measurements by name, and the seconds of the whole command."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(archive), *arguments, "--json", "--expect-gpus", str(GPUS)],
        capture_output=True, text=True, check=True, timeout=300, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.stderr == ""
    return {each["name"]: each for each in json.loads(done.stdout)["measurements"]}, time.monotonic() - begin


def told(seen):
    """Everything that is not measured, for the log of the test."""
    return {name: (each["status"], each["cause"], each["detail"].get("message")) for name, each in seen.items()
            if each["status"] != "measured"}  # fmt: skip


def of(folder, fault):
    """The environment in which the driver's library is the faulty one."""
    before = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": f"{folder}:{before}" if before else str(folder), "GPUHOST_FAULT": fault}


# No false alarm. --------------------------------------------------------------------------------------------------


def test_healthy_runs_give_no_alarm(archive):
    alarms, seconds = [], []
    for _ in range(RUNS):
        seen, took = measure(archive, *QUICK, "--quick")
        seconds.append(took)
        alarms += [item for item in told(seen).items() if item[1][1] not in NO_FAULT]
        assert seen["cuda"]["status"] == seen["gemm"]["status"] == "measured", told(seen)
        if GPUS > 1:
            assert seen["p2p"]["status"] == seen["allreduce"]["status"] == "measured", told(seen)
    print(f"{RUNS} quick sets: median {statistics.median(seconds):.2f} s, slowest {max(seconds):.2f} s")
    assert alarms == []


def test_all_checks_of_a_healthy_machine(archive):
    seen, seconds = measure(archive, *EVERY)
    print(f"{', '.join(EVERY)}: {seconds:.1f} s; not measured: {told(seen)}")
    assert {each["cause"] for each in seen.values() if each["cause"]} <= NO_FAULT


def test_a_workload_whose_launches_wait_for_their_end(archive):
    """With CUDA_LAUNCH_BLOCKING=1 each held stream would hold us for its whole 10 s; for itself the check says no."""
    seen, seconds = measure(archive, "memory", CUDA_LAUNCH_BLOCKING="1")
    print(f"memory with CUDA_LAUNCH_BLOCKING=1: {seconds:.1f} s")
    assert seen["memory"]["status"] == "measured", told(seen)
    assert seconds < 10 + 5 * GPUS


# A driver that does not start. ------------------------------------------------------------------------------------


@NEEDS_COMPILER
def test_each_number_of_cuinit_has_its_own_cause(archive, faulty):
    """On a machine where nothing explains the number; 802 depends on whether there is an NVSwitch."""
    causes = {}
    for number in (999, 802, 803):
        seen, seconds = measure(archive, *EVERY, **of(faulty, f"cuInit={number}"))
        whole = {seen[name]["cause"] for name in EVERY}
        print(number, f"{seconds:.2f} s", told(seen))
        assert len(whole) == 1, whole
        assert {seen[name]["status"] for name in EVERY} == {"error"}
        causes[number] = whole.pop()
    assert causes[999] == "cuda.init_failed"
    assert causes[802] in ("cuda.system_not_ready", "cuda.fabric_manager")
    assert causes[803] == "cuda.version_mismatch"


@NEEDS_COMPILER
def test_a_library_that_passes_everything_on_changes_nothing(archive, faulty):
    """So that the faults of the other tests are those that were asked for."""
    seen, _ = measure(archive, "cuda", "memory", **of(faulty, ""))
    assert seen["cuda"]["status"] == seen["memory"]["status"] == "measured", told(seen)


# GPUs that are not there, or not to be used. ----------------------------------------------------------------------


def test_a_hidden_gpu(archive):
    shown = ",".join(str(ordinal) for ordinal in range(1, GPUS))
    seen, seconds = measure(archive, *EVERY, CUDA_VISIBLE_DEVICES=shown)
    print(f"{seconds:.2f} s", told(seen))
    assert {name: (seen[name]["status"], seen[name]["cause"]) for name in EVERY} == dict.fromkeys(
        EVERY, ("error", "cuda.device_hidden")
    )


@two_gpus
@pytest.mark.parametrize("variable", [{"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_LEVEL": "LOC"}])
def test_p2p_that_the_environment_disables(archive, variable):
    seen, _ = measure(archive, "p2p", "--quick", **variable)
    assert (seen["p2p.environment"]["status"], seen["p2p.environment"]["cause"]) == (
        "not_measured", "p2p.disabled_by_environment",
    )  # fmt: skip
    assert seen["p2p.ce.0-1"]["status"] == "measured", told(seen)  # CUDA itself does not ask NCCL's variables


@contextlib.contextmanager
def copying(archive):
    """A neighbour that copies within GPU 0 all the time."""
    script = Path(__file__).resolve().parent / "busy_copy.py"
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(archive)},
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "copying\n"
        yield
    finally:
        process.kill()
        process.communicate()


def test_a_competing_copy(archive):
    """What is measured beside it would be a lie. That CUDA works can be said all the same."""
    with copying(archive):
        checks = EVERY if GPUS > 1 else ("cuda", "memory", "gemm")
        seen, _ = measure(archive, *checks)
    print(told(seen))
    assert seen["cuda"]["status"] == "measured"
    assert {name: (seen[name]["status"], seen[name]["cause"]) for name in checks[1:]} == dict.fromkeys(
        checks[1:], ("not_measured", "gpu.in_use")
    )


# What hangs. ------------------------------------------------------------------------------------------------------


@NEEDS_COMPILER
@pytest.mark.parametrize(("check", "call"), [("cuda", "cuInit"), ("memory", "cuMemcpyAsync")])
def test_a_call_that_never_returns(archive, faulty, check, call):
    limit = 8.0
    seen, seconds = measure(archive, check, "--timeout", str(limit), **of(faulty, f"{call}=hang"))
    print(f"{seconds:.1f} s", told(seen))
    assert (seen[check]["status"], seen[check]["cause"]) == ("error", "cuda.driver_hang")
    assert seconds < limit + 5


@NEEDS_COMPILER
@two_gpus
def test_a_copy_between_gpus_that_never_ends(archive, faulty):
    seen, _ = measure(archive, "p2p", "--quick", **of(faulty, "cuMemcpyAsync=hang"))
    print(told(seen))
    assert (seen["p2p"]["status"], seen["p2p"]["cause"]) == ("error", "p2p.hang")


@NEEDS_COMPILER
def test_a_rank_that_never_gets_through(archive, faulty_nccl):
    """The fourth all-reduce: everything has started by then."""
    variables = {nccl.CHOSEN: str(faulty_nccl), "GPUHOST_FAULT": "ncclAllReduce=hang@4", **SHARED}
    seen, seconds = measure(archive, "allreduce", "--quick", **variables)
    print(f"{seconds:.1f} s", told(seen))
    assert (seen["allreduce"]["status"], seen["allreduce"]["cause"]) == ("error", "allreduce.hang")


# What is wrong. ---------------------------------------------------------------------------------------------------


@NEEDS_COMPILER
@pytest.mark.parametrize(
    ("check", "fault", "part", "cause"),
    [
        ("cuda", "cuMemcpyDtoH_v2=wrong", "cuda.gpu0", "cuda.wrong_result"),
        ("memory", "cuMemcpyAsync=wrong", "memory.copy.gpu0", "memory.wrong_data"),
        ("memory", "cuMemcpyDtoH_v2=wrong", "memory.write.gpu0", "memory.wrong_data"),
        pytest.param("p2p", "cuMemcpyAsync=wrong", "p2p.ce.0-1", "p2p.wrong_data", marks=two_gpus),
    ],
)
def test_wrong_data(archive, faulty, check, fault, part, cause):
    seen, _ = measure(archive, check, **of(faulty, fault))
    print(told(seen))
    assert (seen[part]["status"], seen[part]["cause"]) == ("error", cause)
    assert (seen[check]["status"], seen[check]["cause"]) == ("error", cause)


@NEEDS_COMPILER
@pytest.mark.parametrize("fault", ["ncclAllReduce=wrong", "ncclAllReduce=wrong@4"])
def test_a_wrong_sum(archive, faulty_nccl, fault):
    variables = {nccl.CHOSEN: str(faulty_nccl), "GPUHOST_FAULT": fault, **SHARED}
    seen, _ = measure(archive, "allreduce", "--quick", **variables)
    print(told(seen))
    assert (seen["allreduce"]["status"], seen["allreduce"]["cause"]) == ("error", "allreduce.wrong_data")


def test_a_right_sum(archive):
    """The same without a fault, also where two ranks share the only GPU."""
    seen, seconds = measure(archive, "allreduce", "--quick", **SHARED)
    print(f"{seconds:.1f} s")
    assert seen["allreduce"]["status"] == "measured", told(seen)
