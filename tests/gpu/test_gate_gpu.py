"""The gate on a real GPU: ship the archive, run it on the host, judge what comes back."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import pytest

from gpu_checks.build_zipapp import build
from gpuhost import check_runner, devices, gate, host_nodes
from gpuhost.blockers import KNOWN_CHECKS
from gpuhost.host_io import Host

HAS_GPU = Path("/proc/driver/nvidia/version").exists()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_GPU, reason="no NVIDIA driver is loaded here (/proc/driver/nvidia/version)"),
]


def test_a_healthy_gpu_passes_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way of the gate on the host itself, but for Ansible's connection."""
    archive = tmp_path / "gpu_checks.pyz"
    build(archive)
    monkeypatch.setattr(check_runner, "ARCHIVE", str(archive))
    host = Host()
    data = check_runner.place(host, base64.b64encode(archive.read_bytes()).decode())
    order = check_runner.Order(data, list(KNOWN_CHECKS), sys.executable, 60)
    expected = check_runner.expected_gpus(host, "host", ())
    answer = check_runner.measure(host, "host", order, expected)
    result = gate.judge("gpu1", "run", "kernel", ["device_access", "cuda"], {"host": {**answer, "stale": []}})
    print(json.dumps([vars(item) for item in result.verdicts], indent=1))
    assert result.status == "pass", result.sentence
    assert {item.check: item.status for item in result.verdicts if not item.required} == {
        "p2p": "not_measured",
        "allreduce": "not_measured",
    }


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
