"""A trial that does not hold: an early panic, which the host comes back from by itself.

It begins where test_1_roll.py has cut the power after apt, and runs beside it: see conftest.py.
"""

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
    wait_for_snapshot,
)

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("machines")]
PANICS = "panics"
MACHINES = (PANICS,)


def test_an_early_panic_comes_back_to_the_old_kernel(runs: Path) -> None:
    wait_for_snapshot("after-apt")
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
