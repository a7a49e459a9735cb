"""Every trial of ``scenarios.py``, booted for real by ``make test-full``; one: pytest tests/lab/full -k grub-b."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.full.scenarios import CASES, Scenario
from tests.lab.lab import (
    CONTAINER,
    INVENTORY,
    TARGET,
    assert_as_before,
    assert_nothing_left,
    container_state,
    gpuhost,
    guest,
    kernel,
    lab,
    roll_file,
    upgrade_without_a_controller,
)

pytestmark = [pytest.mark.lab]
SETTINGS = (
    "/etc/default/grub.d/zz-gpuhost.cfg",
    "/etc/modprobe.d/gpuhost.conf",
    # ends the hold on the old kernel's packages in two weeks
    "/etc/systemd/system/gpuhost-unhold.timer",
    "/etc/systemd/system/gpuhost-unhold.service",
    "/etc/systemd/system/timers.target.wants/gpuhost-unhold.timer",
)
"""What a good roll leaves on purpose."""


@pytest.mark.parametrize(("scenario", "loader"), CASES, ids=[f"{loader}-{item.key}" for item, loader in CASES])
def test_trial(
    scenario: Scenario,
    loader: str,
    machine: str,
    both_kernels: Callable[[str], str],
    runs: Path,
    tmp_path: Path,
) -> None:
    lab("up", "--name", machine, "--from", both_kernels(loader))
    if scenario.plant:
        scenario.plant(machine)
        # so that the new kernel's image is made again, with the defect in it
        guest(machine, "find", "/boot", "-maxdepth", "1", "-name", f"initrd.img-{TARGET}*", "-delete")
    arguments = ("--target", TARGET, *scenario.arguments)
    if not scenario.controller:
        roll = upgrade_without_a_controller(runs, machine, *arguments, log=tmp_path / "killed.log")
        assert_came_back(machine, scenario, roll)
        return
    run = gpuhost(runs, "upgrade", "-i", str(INVENTORY), "--limit", machine, *arguments)
    assert run.folder is not None
    report = (run.folder / "report.html").read_text()
    if scenario.cause is None:
        assert run.exit_status == 0, run.output[-4000:]
        assert run.document(machine, "outcome")["state"] == "good"
        assert_promoted(machine)
        return
    assert run.exit_status == 3, run.output[-4000:]
    assert scenario.cause in run.causes(machine)
    assert scenario.cause in report
    assert run.document(machine, "outcome")["state"] == "good_on_old"
    verdict = run.document(machine, "verdict")
    assert verdict["status"] == "pass"
    assert verdict["kernel"] == kernel(machine)
    assert_came_back(machine, scenario, roll_file(machine))


def assert_came_back(machine: str, scenario: Scenario, roll: dict[str, object]) -> None:
    """On the old kernel, in service, with the cause on record."""
    assert (roll["state"], roll["result"], roll["cause"]) == ("closed", "good_on_old", scenario.cause)
    assert scenario.sentence in str(roll["sentence"])
    assert_as_before(machine)


def assert_promoted(machine: str) -> None:
    """On the new kernel, nothing of the trial left, and the next plain reboot is on the new kernel too."""
    assert kernel(machine).startswith(TARGET)
    assert container_state(machine) == "RUNNING"
    assert_nothing_left(machine, *SETTINGS)
    if "grub.cfg" in guest(machine, "find", "/boot", "-name", "grub.cfg"):
        assert "gpuhost" not in guest(machine, "cat", "/boot/grub/grub.cfg")
    assert re.search(r"\biommu=pt\b", guest(machine, "cat", "/proc/cmdline"))
    lab("stop", "--name", machine)
    lab("start", "--name", machine)
    assert kernel(machine).startswith(TARGET)
    assert CONTAINER in guest(machine, "lxc-ls")
