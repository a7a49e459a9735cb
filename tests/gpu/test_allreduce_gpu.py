"""The check ``allreduce`` on real GPUs: the archive as it is shipped. On a machine with one GPU, two ranks share it.

Needs a libnccl.so.2 where a workload has one: beside torch (nvidia-nccl-cu13), on LD_LIBRARY_PATH, or the system's.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_checks.allreduce import nccl
from gpu_checks.allreduce.arithmetic import QUICK, SIZES
from gpu_checks.build_zipapp import build
from gpu_checks.processes import descendants

VERSION_FILE = Path("/proc/driver/nvidia/version")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not VERSION_FILE.exists(), reason=f"no NVIDIA driver: {VERSION_FILE} does not exist"),
    pytest.mark.skipif(not nccl.find(), reason=f"no {nccl.LIBRARY} where a workload's loader would look"),
]
GPUS = len([name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)])
several = pytest.mark.skipif(GPUS < 2, reason=f"needs two GPUs, there is {GPUS}")
RUNS = 5
TOKEN = "allreduce.graph.12288"
# Where one GPU is all there is, its two ranks talk over the loopback: everything runs, and no figure means anything.
EVERYWHERE = {} if GPUS > 1 else {"GPU_CHECKS_SHARE_GPU": "1"}


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("build") / "gpu_checks.pyz"
    build(path)
    return path


def start(archive, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, str(archive), "allreduce", "--json", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip


def end(process):
    """Its measurements by name."""
    out, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (0, "")
    return {each["name"]: each for each in json.loads(out)["measurements"]}


def measure(archive, *arguments, **environment):
    return end(start(archive, *arguments, **environment))


def used():
    """Used memory of every GPU in MiB, and the processes that compute, as NVIDIA's own tool says."""
    rows = []
    for query in ("--query-gpu=memory.used", "--query-compute-apps=pid"):
        command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
        rows.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    return rows


def table(seen):
    """For the eye."""
    for name, each in seen.items():
        detail = each["detail"]
        samples = each["samples"] or {"p20": "-", "p80": "-"}
        print(
            f"{name:<28} {each['status']:<12} {each['value']} {each['unit']} p20 {samples['p20']} p80 {samples['p80']}"
            f" busbw {detail.get('busbw_gb_s', '-')} {each['seconds']:.2f} s {detail.get('message', '')}"
        )
    whole = seen["allreduce"]
    print(json.dumps({name: part for name, part in whole["detail"].items() if name != "gpus"}, indent=1))


@several
@pytest.mark.parametrize("layout", ["process", "single"])
def test_all_sizes_in_both_modes_and_nothing_stays(archive, tmp_path, layout):
    before, shared = used(), sorted(os.listdir("/dev/shm"))
    begin = time.monotonic()
    seen = measure(archive, "--expect-gpus", str(GPUS), GPU_CHECKS_LAYOUT=layout, HOME=str(tmp_path))
    print(f"{layout}: {time.monotonic() - begin:.2f} s")
    table(seen)
    assert {each["status"] for each in seen.values()} == {"measured"}
    assert len([name for name in seen if name.count(".") == 2]) == 2 * len(SIZES) + 3
    assert seen["allreduce"]["value"] == seen[TOKEN]["value"]
    # In a graph an operation is never slower by much than one that is launched alone, and none takes no time.
    assert all(each["value"] > 0.5 for name, each in seen.items() if each["unit"] == "us")
    assert used() == before
    assert sorted(os.listdir("/dev/shm")) == shared
    assert list(tmp_path.iterdir()) == []


@several
def test_healthy_runs_raise_no_alarm(archive):
    values = []
    for _ in range(RUNS):
        begin = time.monotonic()
        seen = measure(archive, "--quick")
        values.append((seen["allreduce"]["value"], time.monotonic() - begin))
        assert {each["status"] for each in seen.values()} == {"measured"}, seen
        assert len(seen) == len(QUICK) + 2
    print([f"{value:.2f} us in {seconds:.2f} s" for value, seconds in values])


@several
def test_without_p2p_it_says_so(archive):
    seen = measure(archive, "--quick", NCCL_P2P_DISABLE="1")
    table(seen)
    detail = seen["allreduce"]["detail"]
    assert "NCCL_P2P_DISABLE" in detail["notes"][0]
    assert not any(name.startswith("P2P") for name in detail["transports"])


def test_two_ranks_share_one_gpu(archive):
    seen = measure(archive, "--quick", GPU_CHECKS_SHARE_GPU="1", CUDA_VISIBLE_DEVICES="0")
    table(seen)
    assert {each["status"] for each in seen.values()} == {"measured"}
    assert "share one GPU" in seen["allreduce"]["detail"]["notes"][0]
    assert any(name.startswith("NET/Socket") for name in seen["allreduce"]["detail"]["transports"])


def test_one_gpu_is_nothing_to_reduce_over(archive):
    whole = measure(archive, CUDA_VISIBLE_DEVICES="0")["allreduce"]
    assert (whole["status"], whole["cause"]) == ("not_measured", "allreduce.one_gpu")


def stop_one(process, number):
    """Send a signal to a rank once it has both libraries: the leader loads none."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for pid in sorted(descendants(process.pid), reverse=True):
            try:
                loaded = Path(f"/proc/{pid}/maps").read_text(errors="replace")
            except OSError:
                continue
            if "libcuda.so" in loaded and "libnccl.so" in loaded:
                os.kill(pid, number)
                return
        time.sleep(0.01)
    raise AssertionError("no rank has started")


@pytest.mark.parametrize(
    ("number", "cause"), [(signal.SIGSTOP, "allreduce.hang"), (signal.SIGKILL, "allreduce.rank_died")]
)
def test_a_rank_that_stops_or_dies_is_named_and_nothing_stays(archive, number, cause):
    before = used()
    process = start(archive, "--timeout", "15", **EVERYWHERE)
    stop_one(process, number)
    whole = end(process)["allreduce"]
    print(whole["detail"]["message"])
    assert (whole["status"], whole["cause"]) == ("error", cause)
    assert "rank" in whole["detail"]["message"]
    deadline = time.monotonic() + 5  # the driver needs a moment to clean up behind a process that was killed
    while used() != before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert used() == before
    assert measure(archive, "--quick", **EVERYWHERE)["allreduce"]["status"] == "measured"


def test_no_libnccl(archive):
    """An interpreter without site-packages. Where the system has a libnccl of its own, that one is taken."""
    command = [sys.executable, "-S", "-E", "-s", str(archive), "allreduce", "--json"]
    environment = {name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", nccl.CHOSEN)}
    if GPUS < 2:
        pytest.skip("one GPU is what is said first there")
    if nccl.candidates({}, [], sys.prefix):
        pytest.skip("there is a libnccl in the loader's own folders")
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    whole = json.loads(done.stdout)["measurements"][-1]
    print(f"{whole['seconds']:.3f} s, cuInit included")
    assert (whole["status"], whole["cause"]) == ("not_measured", "nccl.missing")
