"""Without the reconcile stage the incident is real: the gate fails, the host goes back, the next host is untouched."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.lab.lab import (
    CONTAINER,
    INVENTORY,
    OLD,
    TARGET,
    boot_id,
    checksums,
    container_state,
    gpuhost,
    guest,
    kernel,
    lab,
    wait_for_snapshot,
)

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("machines")]
FIRST, SECOND = "roll2", "roll3"
MACHINES = (FIRST, SECOND)


def test_first_fails_its_gate_and_second_is_untouched(runs: Path) -> None:
    wait_for_snapshot("after-apt")
    lab("up", "--name", FIRST, "--from", "after-apt")
    lab("up", "--name", SECOND)
    before, boot_before = checksums(SECOND), boot_id(SECOND)
    config = guest(FIRST, "cat", f"/var/lib/lxc/{CONTAINER}/config")
    hosts = ("--limit", f"{FIRST},{SECOND}")

    run = gpuhost(runs, "upgrade", "-i", str(INVENTORY), *hosts, "--target", TARGET, "--skip-tags", "reconcile")

    assert run.exit_status == 3, run.output[-4000:]
    assert "lxc.stale_major" in run.causes(FIRST)
    facts = run.document(FIRST, "facts")
    old = facts["majors"]["nvidia-uvm"]
    sentence = run.document(FIRST, "roll")["sentence"]
    match = re.search(rf"{CONTAINER} allows major {old} for nvidia-uvm, this kernel uses (\d+)", sentence)
    assert match, sentence
    assert int(match.group(1)) != old
    assert "999" not in sentence
    # back on the old kernel, by itself, its container in service, and the gate passed there
    assert kernel(FIRST).startswith(OLD)
    assert container_state(FIRST) == "RUNNING"
    assert run.document(FIRST, "outcome")["state"] == "good_on_old"
    assert run.document(FIRST, "verdict")["status"] == "pass"
    assert run.document(FIRST, "verdict")["kernel"].startswith(OLD)
    assert guest(FIRST, "cat", f"/var/lib/lxc/{CONTAINER}/config") == config
    assert re.search(r"^default \S*6\.1\.", guest(FIRST, "cat", "/boot/efi/loader/loader.conf"), re.MULTILINE)
    # the second host was planned, and nothing more
    assert run.record["hosts"][SECOND] == "untouched"
    assert boot_id(SECOND) == boot_before
    assert checksums(SECOND) == before
    assert container_state(SECOND) == "RUNNING"


def test_another_trial_needs_to_be_asked_for(runs: Path) -> None:
    """The same command again does not boot the kernel a second time: it says what happened and how to retry."""
    boot_before = boot_id(FIRST)
    run = gpuhost(runs, "upgrade", "-i", str(INVENTORY), "--limit", FIRST, "--target", TARGET)
    assert run.exit_status == 3
    assert run.causes(FIRST) == ["trial.expired"]
    assert "--retry-trial" in run.output
    assert boot_id(FIRST) == boot_before
