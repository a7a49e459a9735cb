"""What the peers and our checks say, and a folder of programs that say it: for the tests of tools/peers.

The texts of nvbandwidth and nccl-tests are synthetic: made by the formats of their sources (nvbandwidth 0.8, nccl-tests
2.19), with numbers of no machine.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "tools" / "peers"
MODULES = ("figures", "nvbandwidth", "nccl_tests", "ours", "torch_peer", "bench", "sets", "compare", "build")


def load_peers():
    """The modules of tools/peers, which are scripts that stand beside each other, without a place in sys.path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        kept = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
        for name in MODULES:
            sys.modules.pop(name, None)
        sys.modules.update(kept)


def nvbandwidth_says(**matrices):
    """Its document: values are strings, and what can't be is N/A."""
    cases = [
        {"name": name, "status": "Passed", "bandwidth_description": "memcpy", "sum": 1.5, "bandwidth_matrix": matrix}
        for name, matrix in matrices.items()
    ]
    said = {
        "CUDA Runtime Version": 13000, "Driver Version": "580.1", "GPU Device list": ["0: any (host)"],
        "git_version": "v0.8", "testcases": cases, "version": "v0.8",
    }  # fmt: skip
    return json.dumps({"nvbandwidth": said}, indent=3) + "\n\n"


def nccl_tests_says(times, wrong=0.0):
    """Its file: booleans are strings, and the whole environment is in it."""

    def side(time, size):
        return {"time": time, "alg_bw": size / time / 1e3, "bus_bw": size / time / 1e3, "nwrong": wrong}

    results = [
        {
            "size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1",
            "out_of_place": side(2 * time, size), "in_place": side(time, size), "actual_iterations": 20,
            "experiment_name": "",
        }
        for size, time in times.items()
    ]  # fmt: skip
    said = {
        "version": 3, "args": ["all_reduce_perf"], "env": ["SECRET=1"], "nccl_version": 22809,
        "config": {"parallel_init": "false"}, "results": results, "out_of_bounds": {"count": 0, "okay": "true"},
    }  # fmt: skip
    return json.dumps(said)


def measurement(name, value, unit, status="measured", cause=None, **detail):
    return {"name": name, "value": value, "unit": unit, "status": status, "cause": cause, "detail": detail}


def document(*measurements):
    return json.dumps({"schema": "gpuhost.measurements", "measurements": measurements})


OURS = (
    measurement("memory.copy.gpu0", 4200.0, "gb_s", one_way_gb_s=2100.0, share=0.875),
    measurement("memory.read.gpu0", 4300.0, "gb_s", share=0.9),
    measurement("p2p.ce.0-1", 393.0, "gb_s"),
    measurement("p2p.ce_both.0-1", 388.0, "gb_s"),
    measurement("p2p.sm_read.1-0", 371.0, "gb_s"),
    measurement("p2p.latency.0-1", 0.84, "us"),
    measurement("p2p.ce.1-0", None, "gb_s", "error", "p2p.hang", message="no end"),
    measurement("allreduce.graph.8", 6.1, "us", busbw_gb_s=0.001),
    measurement("allreduce.eager.536870912", 1500.0, "us", busbw_gb_s=357.9),
    measurement("gemm.bf16.gpu1.m1", 4000.0, "gb_s", share=0.83, shape={"m": 1, "n": 24576, "k": 6144}),
    measurement("gemm.bf16.gpu1.square", 780.0, "tflop_s", shape={"m": 8192, "n": 8192, "k": 8192}),
    measurement("gemm.nvfp4.gpu1", None, "tflop_s", "not_measured", "gemm.unsupported", message="unsupported on SM90"),
)


FAKE_OURS = """
import json, os, sys
checks = [each for each in sys.argv[1:] if not each.startswith("-") and not each.isdigit()]
layout = os.environ.get("GPU_CHECKS_LAYOUT")
told = [each for each in {told!r} if each["name"].split(".")[0] in checks]
print(json.dumps({{"schema": "gpuhost.measurements", "measurements": told}}))
open({log!r}, "a").write(" ".join(["ours", *checks, *([layout] if layout else [])]) + "\\n")
"""
FAKE_NVBANDWIDTH = """#!{python}
import sys
open({log!r}, "a").write("nvbandwidth " + " ".join(sys.argv[3:]) + "\\n")
print({local!r} if "device_local_copy" in sys.argv else {p2p!r})
"""
FAKE_ALL_REDUCE = """#!{python}
import json, os, sys
said = {said!r}
open(sys.argv[-1], "w").write(said)
open({log!r}, "a").write(os.path.basename(sys.argv[0]) + " NVLS " + os.environ["NCCL_NVLS_ENABLE"] + "\\n")
"""
FAKE_LAUNCHER = """#!{python}
import os, sys
os.execv(sys.argv[5], sys.argv[5:])
"""
FAKE_SMI = """#!{python}
import sys
print("GPU 0: any (UUID: GPU-0)\\nGPU 1: any (UUID: GPU-1)" if "-L" in sys.argv else "name\\nany")
"""
PAIRS = [["N/A", "396"], ["396", "N/A"]]


class Machine:
    """A folder with programs that answer as the real ones would, and write down that they were called."""

    def __init__(self, folder, monkeypatch, gpus=2):
        self.folder, self.log = folder, folder / "log"
        self.programs, self.output = folder / "peers", folder / "out"
        (self.programs / "mpi/bin").mkdir(parents=True)
        told = [each for each in OURS if each["status"] == "measured"]
        (folder / "gpu_checks.pyz").write_text(FAKE_OURS.format(told=told, log=str(self.log)))
        p2p = nvbandwidth_says(
            device_to_device_memcpy_write_ce=PAIRS,
            device_to_device_bidirectional_memcpy_write_ce=[*PAIRS, *PAIRS, *PAIRS],
            device_to_device_memcpy_read_sm=PAIRS,
            device_to_device_latency_sm=[["N/A", "830"], ["830", "N/A"]],
        )
        self.program(
            "peers/nvbandwidth", FAKE_NVBANDWIDTH, local=nvbandwidth_says(device_local_copy=[["2094"]]), p2p=p2p
        )
        said = nccl_tests_says({8: 6.0, 1 << 29: 1490.0})
        for name in ("all_reduce_perf", "all_reduce_perf_mpi"):
            self.program(f"peers/{name}", FAKE_ALL_REDUCE, said=said)
        self.program("peers/mpi/bin/mpiexec.hydra", FAKE_LAUNCHER)
        self.program("bin/nvidia-smi", FAKE_SMI)
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")
        monkeypatch.delenv("NCCL_NVLS_ENABLE", raising=False)

    def program(self, name, text, **values):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.format(python=sys.executable, log=str(self.log), **values))
        path.chmod(0o755)

    def compare(self, *arguments):
        command = [
            sys.executable, str(FOLDER / "compare.py"), *arguments, "--output", str(self.output),
            "--programs", str(self.programs), "--archive", str(self.folder / "gpu_checks.pyz"),
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    def calls(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    def document(self):
        return json.loads((self.output / "peers.json").read_text())
