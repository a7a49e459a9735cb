"""The command's refusals that need no host: one clear line, the right exit status, nothing changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.play


def gpuhost(tmp_path: Path, *arguments: str, stdin: int | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "gpuhost"), *arguments, "--runs", str(tmp_path / "runs")],
        cwd=tmp_path,
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def inventory(tmp_path: Path, text: str) -> str:
    path = tmp_path / "hosts.yml"
    path.write_text(text)
    return str(path)


def test_inventory_that_does_not_exist(tmp_path: Path) -> None:
    result = gpuhost(tmp_path, "upgrade", "-i", str(tmp_path / "none.yml"), "--target", "6.12")
    assert result.returncode == 2
    assert result.stderr.startswith("gpuhost: inventory.unreadable: ")
    assert len(result.stderr.splitlines()) == 1


def test_inventory_that_cannot_be_parsed(tmp_path: Path) -> None:
    result = gpuhost(tmp_path, "upgrade", "-i", inventory(tmp_path, "gpu_hosts:\n  hosts: [\n"), "--target", "6.12")
    assert result.returncode == 2
    assert result.stderr.startswith("gpuhost: inventory.unreadable: ")
    assert "ansible-inventory -i" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_input_that_somebody_has_set_not_to_block(tmp_path: Path) -> None:
    """As an ssh that was killed, or Node.js, leaves a terminal or a file that others have, too."""
    source = inventory(
        tmp_path, "gpu_hosts:\n  hosts:\n    gpu1.example.com: {ansible_host: 127.0.0.1, ansible_port: 1}\n"
    )
    with open(os.devnull) as shared:
        os.set_blocking(shared.fileno(), False)
        result = gpuhost(tmp_path, "status", "-i", source, stdin=shared.fileno())
        assert not os.get_blocking(shared.fileno())
    assert "blocking IO" not in result.stdout + result.stderr
    assert "gpu1.example.com" in result.stdout + result.stderr


def test_inventory_without_the_group(tmp_path: Path) -> None:
    source = inventory(tmp_path, "web:\n  hosts:\n    web1.example.com:\n")
    result = gpuhost(tmp_path, "upgrade", "-i", source, "--target", "6.12")
    assert result.returncode == 2
    assert "inventory.no_hosts" in result.stderr
    assert "gpu_hosts" in result.stderr


def test_host_that_cannot_be_reached(tmp_path: Path) -> None:
    """Nobody listens on port 9 of the loopback; an unreachable host is a failure, not a host less."""
    text = """
gpu_hosts:
  hosts:
    gpu1.example.com: {ansible_host: 127.0.0.1, ansible_port: 9}
  vars: {host_reboot_allowed: true, gpu_gate_required: [device_access]}
"""
    result = gpuhost(tmp_path, "upgrade", "-i", inventory(tmp_path, text), "--target", "6.12")
    assert result.returncode == 2
    assert "host.unreachable" in result.stderr
    assert "ansible.builtin.ping" in result.stderr


def test_controller_is_the_target(tmp_path: Path) -> None:
    """By boot id, whatever the connection is called."""
    text = """
gpu_hosts:
  hosts:
    gpu1.example.com: {ansible_connection: local, ansible_python_interpreter: "%s"}
  vars: {host_reboot_allowed: true, gpu_gate_required: [device_access], host_survey_apt_max_age: -1}
"""
    result = gpuhost(tmp_path, "upgrade", "-i", inventory(tmp_path, text % sys.executable), "--target", "6.12")
    assert result.returncode == 2, result.stderr
    assert "roll.controller_on_target" in result.stderr
    assert "from another machine" in result.stderr


@pytest.mark.parametrize("arguments", [["upgrade"], ["upgrade", "-i", "x", "--nonsense"], ["nonsense"], []])
def test_usage(tmp_path: Path, arguments: list[str]) -> None:
    result = subprocess.run([str(BIN / "gpuhost"), *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert "usage: gpuhost" in result.stderr


def test_causes_and_checks_are_listed() -> None:
    result = subprocess.run(
        [str(BIN / "gpuhost"), "causes", "lxc.stale_major"], capture_output=True, text=True, check=True
    )
    assert "playbooks/reconcile.yml" in result.stdout
    result = subprocess.run([str(BIN / "gpuhost"), "checks"], capture_output=True, text=True, check=True)
    assert "device_access" in result.stdout
