"""The check allreduce with a real library of collectives and real processes: gloo, on CPUs, as the archive is shipped.

TEST_TORCH_PYTHON names an interpreter with torch where the one of the tests has none (pip install torch==2.13.0).
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from gpu_checks.build_zipapp import build
from gpu_checks.processes import descendants

PYTHON = os.environ.get("TEST_TORCH_PYTHON", sys.executable)
SMALL = [8, 64, 512, 4096, 12288, 16384, 65536, 262144, 1048576]


@pytest.fixture(scope="module", autouse=True)
def torch():
    done = subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        pytest.skip(f"{PYTHON} can't import torch ({last}): set TEST_TORCH_PYTHON to one that can")


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("build") / "gpu_checks.pyz"
    build(path)
    return path


def start(archive, tmp_path, ranks, *arguments):
    return subprocess.Popen(
        [PYTHON, str(archive), "allreduce", "--json", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={
            **os.environ, "GPU_CHECKS_BACKEND": "gloo", "GPU_CHECKS_RANKS": str(ranks), "TMPDIR": str(tmp_path),
        },
    )  # fmt: skip


def end(process):
    """Its measurements by name."""
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    return {each["name"]: each for each in json.loads(out)["measurements"]}


@pytest.mark.parametrize("ranks", [2, 3])
def test_all_sizes_with_their_data(archive, tmp_path, ranks):
    seen = end(start(archive, tmp_path, ranks))
    for size in SMALL:
        one = seen[f"allreduce.eager.{size}"]
        assert one["status"] == "measured", one
        assert one["value"] > 0
        assert one["detail"]["busbw_gb_s"] == pytest.approx(
            size / one["value"] / 1e3 * 2 * (ranks - 1) / ranks, abs=1e-6
        )
        graph = seen[f"allreduce.graph.{size}"]
        assert (graph["status"], graph["cause"]) == ("not_measured", "allreduce.graph_unsupported")
    whole = seen["allreduce"]
    assert (whole["status"], whole["cause"]) == ("not_measured", "allreduce.graph_unsupported")
    assert (whole["detail"]["ranks"], whole["detail"]["library"]) == (ranks, "gloo, through torch")
    assert list(tmp_path.iterdir()) == []


def test_the_quick_set_has_a_size_that_gloo_can_measure(archive, tmp_path):
    seen = end(start(archive, tmp_path, 2, "--quick"))
    assert seen["allreduce.eager.12288"]["status"] == "measured"


def stop_one(process, number):
    """Send a signal to the youngest of the ranks once all have loaded torch: 1 leader, 2 ranks."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = sorted(descendants(process.pid))
        if len(found) == 3:
            with open(f"/proc/{found[-1]}/maps", encoding="ascii", errors="replace") as file:
                if "libtorch_cpu" in file.read():
                    time.sleep(0.3)
                    os.kill(found[-1], number)
                    return
        time.sleep(0.02)
    raise AssertionError("the ranks did not start")


@pytest.mark.parametrize(
    ("number", "cause", "words"),
    [
        (signal.SIGSTOP, "allreduce.hang", "rank"),
        (signal.SIGKILL, "allreduce.rank_died", "rank 1 on the CPU died (killed by SIGKILL)"),
    ],
)
def test_a_rank_that_stops_or_dies(archive, tmp_path, number, cause, words):
    process = start(archive, tmp_path, 2, "--timeout", "12")
    stop_one(process, number)
    whole = end(process)["allreduce"]
    print(whole["detail"]["message"])
    assert (whole["status"], whole["cause"]) == ("error", cause)
    assert words in whole["detail"]["message"]
