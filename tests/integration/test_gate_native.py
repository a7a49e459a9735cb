"""``gpuhost gate`` as a user calls it on a GPU machine of his own: connection local, no roll, no container.

/var/lib and /run are the test's own, bind-mounted in a namespace. Ansible, modules and the shipped archive are real;
the workload's interpreter is a stand-in that gives the measurements a file holds: there is no GPU here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

BIN = Path(sys.executable).parent
MOUNTS = """
mount --bind "$FOLDER/lib" /var/lib
mount --bind "$FOLDER/run" /run
exec "$@"
"""
INTERPRETER = """#!{python}
import json, os, sys
archive, *words = sys.argv[1:]
data = open(archive, "rb").read()
assert data.startswith((b"#!", b"PK")), "no archive was shipped"
checks = words[:words.index("--json")]
once = {answers!r} + ".once"
if "memory" in checks and os.path.exists(once):
    os.rename(once, once + ".told")
    told = json.load(open(once + ".told"))
else:
    told = json.load(open({answers!r}))
found = [item for check in checks for item in told[check]]
print(json.dumps({{"python": "3.11.2", "tool_version": "0.1.0", "measurements": found}}))
"""
BASELINES = "lib/gpuhost/baselines.json"
CHECKS = ("device_access", "cuda", "torch", "p2p", "allreduce", "memory", "gemm")
pytestmark = [pytest.mark.play, pytest.mark.skipif(os.geteuid() != 0, reason="bind mounts need root")]


def measurement(name: str, value: float | None, unit: str, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": name, "value": value, "unit": unit, "method": "x", "clock": "CUDA events", "samples": None,
        "status": "measured", "cause": None, "seconds": 0.1, "detail": {},
    }  # fmt: skip
    return {**values, **changes}


@dataclass(frozen=True)
class Done:
    """A finished command."""

    status: int
    err: str
    folder: Path

    def document(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.folder / "gpu1" / f"{name}.json").read_text()))


class Machine:
    """A machine with one GPU, and a controller that runs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("lib", "run"):
            (folder / name).mkdir()
        self.memory(4000.0)
        (folder / "python").write_text(INTERPRETER.format(python=sys.executable, answers=str(folder / "answers.json")))
        (folder / "python").chmod(0o755)
        host = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "gpu_gate_required": ["cuda", "memory"],
            "gpu_gate_python": str(folder / "python"),
        }
        (folder / "hosts.yml").write_text(yaml.safe_dump({"gpu_hosts": {"hosts": {"gpu1": host}}}))

    def memory(self, gb_s: float, file: str = "answers.json") -> None:
        """From now on the memory is this fast; ``answers.json.once``: the next time only."""
        gpus = {"after": [{"ordinal": 0, "uuid": "GPU-a", "pstate": "P0", "sm_clock_mhz": 1980}]}
        told = {name: [measurement(name, 1, "gpus", detail={"gpus": gpus})] for name in CHECKS}
        told["memory"] = [measurement("memory.copy.gpu0", gb_s, "gb_s"), measurement("memory", gb_s, "gb_s")]
        told["p2p"] = [measurement("p2p", None, "pairs", status="not_measured", cause="p2p.one_gpu")]
        told["gemm"] = [measurement("gemm", None, "tflop_s", status="error", cause="gemm.wrong_result")]
        (self.folder / file).write_text(json.dumps(told))

    def gate(self, *arguments: str) -> Done:
        runs = self.folder / "runs"
        before = set(runs.glob("*"))
        argv = [str(BIN / "gpuhost"), "gate", *arguments, "-i", str(self.folder / "hosts.yml"), "--runs", str(runs)]
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-euc", MOUNTS, "sh", *argv],
            env={**os.environ, "FOLDER": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        (new,) = set(runs.glob("*")) - before
        return Done(done.returncode, done.stdout + done.stderr, new)

    @property
    def baselines(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / BASELINES).read_text()))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_host_from_its_first_gate_to_a_slow_one(machine: Machine) -> None:
    shown = machine.gate("--check")
    assert shown.status == 0, shown.err
    assert f"would run device_access, cuda, health, memory on the host with {machine.folder}/python" not in shown.err
    assert f"would run device_access, cuda, memory on the host with {machine.folder}/python" in shown.err
    assert "would run health on the host" in shown.err
    assert not (shown.folder / "gpu1" / "measurements.json").exists()
    assert not (machine.folder / "lib/gpuhost").exists()

    first = machine.gate()  # nobody has said how fast it has to be
    assert first.status == 3, first.err
    assert "gate.no_expectation" in first.err
    assert "gpu_gate_first_run: record" in first.err
    assert not (machine.folder / BASELINES).exists()

    recorded = machine.gate("-e", "gpu_gate_first_run=record")
    assert recorded.status == 0, recorded.err
    assert "recorded" in recorded.err
    assert recorded.document("verdict")["status"] == "pass"
    entry = machine.baselines["targets"]["host"]["memory.copy.gpu0"]
    assert (entry["value"], entry["unit"]) == (4000.0, "gb_s")
    origin = machine.baselines["origins"][entry["origin"]]
    assert origin["kernel"] == os.uname().release
    assert origin["clocks"]["host"]["cuda"][0]["pstate"] == "P0"

    machine.memory(3900.0)  # 2.5 % less: within 5 %
    good = machine.gate()
    assert good.status == 0, good.err
    assert "at worst 2.5 % worse than the baseline" in good.document("verdict")["sentence"]
    assert machine.baselines["targets"]["host"]["memory"]["value"] == 4000.0  # it does not drift
    assert [past["values"]["host"]["memory"] for past in machine.baselines["history"]] == [4000.0, 3900.0]

    machine.memory(2000.0, "answers.json.once")  # and right at the second look
    again = machine.gate()
    assert again.status == 0, again.err
    assert "memory on host is measured again: memory.copy.gpu0 is 2000 GB/s, not at least 3800 GB/s" in again.err
    assert "host memory: measured twice" in again.err
    found = again.document("measurements")["targets"]["host"]["measurements"]
    (figure,) = [item for item in found if item["name"] == "memory.copy.gpu0"]
    assert (figure["value"], figure["detail"]["measured_twice"]) == (3900.0, [2000.0, 3900.0])

    machine.memory(2000.0)
    slow = machine.gate()
    assert slow.status == 3, slow.err
    assert "memory.slow" in slow.err
    assert (
        "memory is 2000 GB/s at best (measured twice: 2000 GB/s and 2000 GB/s), -50.0 % against the baseline"
        in slow.err
    )
    assert slow.document("verdict")["cause"] == "memory.slow"
    rows = {row["name"]: row for row in slow.document("verdict")["comparisons"]}
    assert (rows["memory"]["value"], rows["memory"]["baseline"], rows["memory"]["verdict"]) == (2000.0, 4000.0, "fail")
    assert machine.baselines["targets"]["host"]["memory"]["value"] == 4000.0
    assert machine.gate("-e", "gpu_gate_first_run=record").status == 3  # recording forgives nothing

    accepted = machine.gate("-e", "gpu_gate_baseline=replace")
    assert accepted.status == 0, accepted.err
    assert machine.baselines["targets"]["host"]["memory"]["value"] == 2000.0
    assert machine.gate().status == 0

    wanted = machine.gate("-e", '{"gpu_gate_expect": {"memory.copy.*": {"min": 3000}}}')
    assert (wanted.status, wanted.document("verdict")["cause"]) == (3, "memory.slow")


def test_everything_is_measured_without_a_verdict(machine: Machine) -> None:
    done = machine.gate("--tags", "measure")
    assert done.status == 0, done.err
    assert "memory.copy.gpu0: 4000 GB/s" in done.err
    assert "p2p: not_measured: p2p.one_gpu" in done.err
    assert "gemm: error: gemm.wrong_result" in done.err  # said, and the others are measured all the same
    names = {path.name for path in (done.folder / "gpu1").iterdir()}
    assert names == {
        f"measurements-{check}.json" for check in ("health", "cuda", "torch", "p2p", "allreduce", "memory", "gemm")
    }
    assert not (machine.folder / BASELINES).exists()
    shown = machine.gate("--tags", "measure", "--check")
    assert shown.status == 0, shown.err
    assert shown.err.count("would run ") == 7


def test_baselines_that_cannot_be_read_stop_the_gate(machine: Machine) -> None:
    (machine.folder / "lib/gpuhost").mkdir()
    (machine.folder / BASELINES).write_text("{")
    done = machine.gate()
    assert done.status == 5, done.err
    assert "gate.baseline_unreadable" in done.err
    assert "baselines.json away" in done.err
