"""Each stage by its own playbook, one after the other, from where a power cut after apt left the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.full.scenarios import SYSTEMD_BOOT
from tests.lab.lab import (
    CONTAINER,
    INVENTORY,
    OLD,
    TARGET,
    boot_id,
    container_state,
    gpuhost,
    guest,
    kernel,
    lab,
    playbook,
)

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("machines")]
HOST = "roll4"
ON_HOST = ("-i", str(INVENTORY), "--limit", HOST)


class TestStages:
    """In order: every test goes on where the one before it ended."""

    def test_prepare_needs_no_downtime_and_no_consent(self, runs: Path, both_kernels: Callable[[str], str]) -> None:
        lab("up", "--name", HOST, "--from", both_kernels(SYSTEMD_BOOT))
        before = boot_id(HOST)
        run = gpuhost(runs, "prepare", *ON_HOST, "--target", TARGET, "-e", "host_reboot_allowed=false")
        assert run.exit_status == 0, run.output[-3000:]
        proofs = run.document(HOST, "preflight")["proofs"]
        assert len(proofs) > 20
        assert all(proof["ok"] for proof in proofs)
        assert boot_id(HOST) == before
        assert container_state(HOST) == "RUNNING"

    def test_drain_stops_and_holds(self, runs: Path) -> None:
        run = playbook(runs, "drain", "--limit", HOST)
        assert run.exit_status == 0, run.output[-3000:]
        assert container_state(HOST) == "STOPPED"
        workloads = run.document(HOST, "roll")["workloads"]
        assert [(item["name"], item["was_running"], item["state"]) for item in workloads] == [
            (CONTAINER, True, "stopped")
        ]
        assert guest(HOST, "cat", "/var/lib/gpuhost/hold")

    def test_trial_needs_consent(self, runs: Path) -> None:
        before = boot_id(HOST)
        run = gpuhost(runs, "trial", *ON_HOST, "-e", "host_reboot_allowed=false")
        assert run.exit_status == 2
        assert run.causes(HOST) == ["roll.reboot_not_allowed"]
        assert boot_id(HOST) == before

    def test_trial_boots_once(self, runs: Path) -> None:
        before = boot_id(HOST)
        run = gpuhost(runs, "trial", *ON_HOST)
        assert run.exit_status == 0, run.output[-3000:]
        assert kernel(HOST).startswith(TARGET)
        assert boot_id(HOST) != before
        assert container_state(HOST) == "STOPPED"  # held: nothing starts before the gate
        again = gpuhost(runs, "trial", *ON_HOST)
        assert again.exit_status == 0
        assert kernel(HOST).startswith(TARGET)

    def test_hand_back_before_the_promotion_is_refused(self, runs: Path) -> None:
        run = gpuhost(runs, "hand_back", *ON_HOST)
        assert run.exit_status == 2
        assert run.causes(HOST) == ["roll.not_promoted"]

    def test_reconcile_then_gate(self, runs: Path) -> None:
        assert gpuhost(runs, "reconcile", *ON_HOST).exit_status == 0
        run = gpuhost(runs, "gate", *ON_HOST)
        assert run.exit_status == 0, run.output[-3000:]
        assert run.document(HOST, "verdict")["status"] == "pass"

    def test_rollback_by_choice(self, runs: Path) -> None:
        """Instead of promote: back to the old kernel, its container in service, the roll closed."""
        run = gpuhost(runs, "rollback", *ON_HOST)
        assert run.exit_status == 0, run.output[-3000:]
        assert kernel(HOST).startswith(OLD)
        assert container_state(HOST) == "RUNNING"
        roll = run.document(HOST, "roll")
        assert (roll["state"], roll["result"]) == ("closed", "good_on_old")
        assert "hold" not in guest(HOST, "ls", "/var/lib/gpuhost").split()
        gated = gpuhost(runs, "gate", *ON_HOST)
        assert gated.exit_status == 0
