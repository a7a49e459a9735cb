"""The gate on a real GPU: ship the archive, run it on the host, judge what comes back."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_checks.build_zipapp import build
from gpuhost import baselines, check_runner, devices, gate, gate_text, host_nodes
from gpuhost.blockers import KNOWN_CHECKS, SEVERAL_GPUS
from gpuhost.expectations import Rules
from gpuhost.host_io import Host

HAS_GPU = Path("/proc/driver/nvidia/version").exists()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_GPU, reason="no NVIDIA driver is loaded here (/proc/driver/nvidia/version)"),
]


GATES = int(os.environ.get("GPUHOST_HEALTHY_GATES", "3"))


def measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checks: tuple[str, ...], rules: Rules | None = None
) -> dict[str, Any]:
    """The whole way of the gate on the host itself, but for Ansible's connection."""
    archive = tmp_path / "gpu_checks.pyz"
    build(archive)
    monkeypatch.setattr(check_runner, "ARCHIVE", str(archive))
    monkeypatch.setattr(check_runner, "LOCK", str(tmp_path / "lock"))
    host = Host()
    data = check_runner.place(host, base64.b64encode(archive.read_bytes()).decode())
    order = check_runner.Order(data, list(checks), sys.executable, 120)
    targets, lines = check_runner.measure_for_gate(host, order, ["host"], (), list(checks), rules or Rules())
    print("\n".join(lines))
    return targets


def test_a_healthy_gpu_passes_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = measured(tmp_path, monkeypatch, ("device_access", "cuda"))
    result = gate.judge("gpu1", "run", "kernel", ["device_access", "cuda"], targets)
    print(json.dumps([vars(item) for item in result.verdicts], indent=1))
    assert result.status == "pass", result.sentence


def test_a_healthy_host_passes_against_the_baseline_that_it_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that this machine can be asked for: recorded once, then held against that. No false alarm."""
    count = check_runner.expected_gpus(Host(), "host", ()) or 0
    alone = () if count > 1 else SEVERAL_GPUS
    torch = () if importlib.util.find_spec("torch") else ("torch", "gemm", "allreduce", "decode")
    checks = tuple(name for name in KNOWN_CHECKS if name not in (*alone, *torch))
    first = measured(tmp_path, monkeypatch, checks)
    rules = Rules(record=True, driver=check_runner.driver_version(Host()))
    result = gate.judge("gpu1", "first", "kernel", checks, first, rules)
    print("\n".join(gate_text.table(result.comparisons)))
    assert result.status == "pass", result.sentence
    known = baselines.merged(None, gate.update_for(result, first, rules), "gpu1")
    assert known is not None
    assert known.targets["host"]
    held = Rules(baselines=known, driver=rules.driver)
    for _ in range(GATES):
        again = gate.judge("gpu1", "later", "kernel", checks, measured(tmp_path, monkeypatch, checks, held), held)
        print("\n".join([*again.notes, *gate_text.table(again.comparisons)]))
        assert again.status == "pass", again.sentence
    # Against a baseline of twice the speed every check that has one is measured twice, and fails for its own cause.
    faster = {
        name: replace(item, value=item.value / 2 if item.unit == "us" else item.value * 2, p20=None, p80=None)
        for name, item in known.targets["host"].items()
        if item.unit != "gpus"
    }
    better = Rules(baselines=replace(known, targets={"host": faster}))
    slow = gate.judge("gpu1", "slow", "kernel", checks, measured(tmp_path, monkeypatch, checks, better), better)
    verdicts = {item.check: item for item in slow.verdicts}
    for check in set(checks) & {"memory", "gemm", "p2p", "allreduce", "decode"}:
        assert verdicts[check].cause in (f"{check}.slow", f"{check}.collapse"), verdicts[check]
        assert "measured twice" in verdicts[check].observed, verdicts[check]


@pytest.mark.parametrize(("check", "cause"), [("device_access", "device.gpu_count"), ("cuda", "cuda.gpu_count")])
def test_one_gpu_less_than_expected_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: str, cause: str
) -> None:
    """The gate that cannot fail is a defect: here it does."""
    archive = tmp_path / "gpu_checks.pyz"
    build(archive)
    monkeypatch.setattr(check_runner, "ARCHIVE", str(archive))
    order = check_runner.Order(archive.read_bytes(), [check], sys.executable, 60)
    expected = check_runner.expected_gpus(Host(), "host", ())
    assert expected
    answer = check_runner.measure(Host(), "host", order, expected + 1)
    result = gate.judge("gpu1", "run", "kernel", [check], {"host": {**answer, "stale": []}})
    assert (result.status, result.cause) == ("fail", cause)


def test_the_driver_on_a_real_host_is_read() -> None:
    """Majors, GPU minors and nodes as the reconciliation sees them: nothing of a healthy host is to be made."""
    host = Host()
    majors = devices.current(host)
    print(majors.entries, host_nodes.gpu_minors(host), host_nodes.missing(host, majors))
    assert majors.major_of("nvidia-uvm")
    assert host_nodes.gpu_minors(host)
    assert [item for item in host_nodes.missing(host, majors) if "modeset" not in item.path] == []
