"""Trials that do not hold, with nobody there: an early panic, and a controller that dies right after the reboot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import defects
from tests.lab.lab import (
    CONTAINER,
    INVENTORY,
    OLD,
    TARGET,
    assert_as_before,
    gpuhost,
    guest,
    lab,
    roll_file,
    upgrade_without_a_controller,
)

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("machines")]
AGAIN, PANICS = "roll2", "roll5"
DEADLINE_S = 100


def test_a_controller_that_dies_after_the_reboot_leaves_a_host_that_comes_back(runs: Path, tmp_path: Path) -> None:
    arguments = ("--target", TARGET, "--retry-trial", "-e", f"boot_trial_deadline={DEADLINE_S}")
    status = upgrade_without_a_controller(runs, AGAIN, *arguments, log=tmp_path / "killed.log")
    assert (status["result"], status["cause"]) == ("good_on_old", "trial.expired")
    assert f"nobody renewed the deadline of {DEADLINE_S} s" in status["sentence"]
    assert_as_before(AGAIN)
    run = gpuhost(runs, "status", "-i", str(INVENTORY), "--limit", AGAIN)
    assert run.exit_status == 0
    assert "good_on_old, trial.expired" in run.output
    assert "dead-man armed" not in run.output


def test_an_early_panic_comes_back_to_the_old_kernel(runs: Path) -> None:
    if f"machine {AGAIN}: on" in lab("status"):
        lab("stop", "--name", AGAIN)
    lab("up", "--name", PANICS, "--from", "after-apt")
    defects.early_panic(PANICS)
    # so that the new kernel's image is made again, with this in it
    guest(PANICS, "find", "/boot", "-maxdepth", "1", "-name", "initrd.img-6.12*", "-delete")
    run = gpuhost(runs, "upgrade", "-i", str(INVENTORY), "--limit", PANICS, "--target", TARGET)
    assert run.exit_status == 3, run.output[-4000:]
    assert "trial.expired" in run.causes(PANICS)
    assert run.document(PANICS, "outcome")["state"] == "good_on_old"
    assert run.document(PANICS, "verdict")["status"] == "pass"
    assert run.document(PANICS, "verdict")["kernel"].startswith(OLD)
    roll = roll_file(PANICS)
    assert (roll["state"], roll["result"], roll["cause"]) == ("closed", "good_on_old", "trial.expired")
    assert roll["trial"]["boots"] == 1
    assert_as_before(PANICS)
    assert "iommu=pt" not in guest(PANICS, "cat", "/etc/kernel/cmdline")  # as it was before the roll
    assert CONTAINER in guest(PANICS, "lxc-ls", "--running")
