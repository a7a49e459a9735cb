"""Back to the older kernel by choice, after a good roll: through the same proofs; the next upgrade ends it again."""

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
    create,
    gpuhost,
    guest,
    kernel,
    lab,
    playbook,
)

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("machines")]
HOST = "roll5"
ON_HOST = ("-i", str(INVENTORY), "--limit", HOST)
BACK = ("rollback", *ON_HOST, "--to")


def loader_conf() -> str:
    """loader.conf of the machine's ESP."""
    return guest(HOST, "cat", "/boot/efi/loader/loader.conf")


def assert_nothing_of_the_trial_is_left() -> None:
    """No dead-man, no return service, no one-shot, no hold of the containers."""
    names = [word for name in ("hold.conf", "deadman*", "return*") for word in ("-o", "-name", f"*gpuhost-{name}")][1:]
    assert guest(HOST, "find", "/etc/systemd/system", *names) == ""
    assert "/etc/gpuhost" not in guest(HOST, "find", "/etc", "-maxdepth", "1").split()
    assert "LoaderEntryOneShot" not in guest(HOST, "ls", "/sys/firmware/efi/efivars")
    kept = ["gpu_checks.pyz", "gpuhost.pyz", "lock", "majors.json", "roll.json"]
    assert guest(HOST, "ls", "/var/lib/gpuhost").split() == kept


class TestBackToOld:
    """In order: every test goes on where the one before it ended."""

    older = ""
    newer = ""

    def test_a_good_roll_to_the_new_kernel(self, runs: Path) -> None:
        """From where a power cut after apt has left a machine, which saves installing; by itself from a new one."""
        known = lab("status")
        for name in ("roll1", "roll2", "roll3", "roll4"):
            if f"machine {name}: on" in known:
                lab("stop", "--name", name)
        if f"machine {HOST}:" in known:
            lab("down", "--name", HOST)
        if "snapshot after-apt" in known:
            lab("up", "--name", HOST, "--from", "after-apt")
        else:
            create(HOST)
        TestBackToOld.older = kernel(HOST)
        run = gpuhost(runs, "upgrade", *ON_HOST, "--target", TARGET)
        assert run.exit_status == 0, run.output[-4000:]
        TestBackToOld.newer = kernel(HOST)
        assert self.older.startswith(OLD)
        assert self.newer.startswith(TARGET)
        assert "default" not in loader_conf()

    def test_names_that_lead_nowhere_change_nothing(self, runs: Path) -> None:
        before = checksums(HOST)
        run = gpuhost(runs, *BACK, "5.99")
        assert run.exit_status == 2
        assert run.causes(HOST) == ["target.unknown"]
        assert re.search(rf"--to 5\.99: no kernel matches, expected one of: .*{re.escape(self.older)}", run.output)
        run = gpuhost(runs, *BACK, TARGET)
        assert run.exit_status == 0
        assert "nothing to do" in run.output
        run = gpuhost(runs, "upgrade", *ON_HOST, "--target", "6.1")
        assert run.exit_status == 2
        assert run.causes(HOST) == ["target.not_newer"]
        assert "gpuhost rollback --to" in run.output
        assert checksums(HOST) == before

    def test_check_shows_the_way_back_and_changes_nothing(self, runs: Path) -> None:
        before, boot = checksums(HOST), boot_id(HOST)
        run = gpuhost(runs, *BACK, "6.1", "--check")
        assert run.exit_status == 1, run.output[-3000:]
        assert f"{self.newer} -> {self.older}" in run.output
        assert "install nothing: kernel and headers are there" in run.output
        assert f"would reboot once into {self.older}" in run.output
        assert "by name" in run.output
        assert not run.record["failures"]
        assert (checksums(HOST), boot_id(HOST)) == (before, boot)

    def test_a_driver_that_was_not_built_for_it_stops_before_the_downtime(self, runs: Path) -> None:
        """As after a driver upgrade, for which DKMS builds for the newer kernels only."""
        module = next(line for line in guest(HOST, "dkms", "status").splitlines() if line.startswith("nvidia")).split(
            ","
        )[0]
        guest(HOST, "dkms", "uninstall", module, "-k", self.older)
        boot = boot_id(HOST)
        run = gpuhost(runs, *BACK, "6.1")
        assert run.exit_status == 5, run.output[-3000:]
        assert run.causes(HOST)[0] in ("dkms.not_built", "dkms.module_missing")
        assert "dkms autoinstall -k" in run.output
        assert boot_id(HOST) == boot
        assert container_state(HOST) == "RUNNING"
        assert re.search(r"^default \S*6\.12\.", loader_conf(), re.MULTILINE)  # held, as the fallback
        other = gpuhost(runs, "upgrade", *ON_HOST, "--target", TARGET)
        assert other.causes(HOST) == ["roll.other_target"]
        assert f"gpuhost rollback --to {self.older}" in other.output
        guest(HOST, "dkms", "install", module, "-k", self.older, timeout_s=600)

    def test_the_same_command_again_ends_on_the_older_kernel(self, runs: Path) -> None:
        boot = boot_id(HOST)
        run = gpuhost(runs, *BACK, "6.1")
        assert run.exit_status == 0, run.output[-4000:]
        assert kernel(HOST) == self.older
        assert boot_id(HOST) != boot
        assert container_state(HOST) == "RUNNING"
        assert run.document(HOST, "outcome")["state"] == "good"
        verdict = run.document(HOST, "verdict")
        assert (verdict["status"], verdict["kernel"]) == ("pass", self.older)
        roll = run.document(HOST, "roll")
        assert (roll["state"], roll["result"]) == ("closed", "good")
        assert (roll["running_before"], roll["target"], roll["trial"]["boots"]) == (self.newer, self.older, 1)
        assert roll["promoted_at"]
        # what boots by itself is the older kernel, by name
        assert re.search(rf"^default \S*{re.escape(self.older)}", loader_conf(), re.MULTILINE)
        facts = run.document(HOST, "facts")
        assert facts["kernel"]["release"] == self.newer
        # the container's rules have followed the numbers of the older kernel
        reconcile = run.document(HOST, "reconcile")
        config = guest(HOST, "cat", f"/var/lib/lxc/{CONTAINER}/config")
        assert f"c {reconcile['majors_now']['nvidia-uvm']}:* rwm" in config
        assert f"c {reconcile['majors_before']['nvidia-uvm']}:* rwm" not in config

    def test_the_report_says_that_it_stays_by_name(self, runs: Path) -> None:
        newest = sorted(path.parent for path in runs.glob("*/run.json"))[-1]
        for page in ("report.html", "report.md"):
            text = " ".join((newest / page).read_text().split())
            assert f"{self.older} is the boot default by name" in text, page
            assert "the next gpuhost upgrade ends that" in text, page

    def test_nothing_of_the_trial_is_left_and_both_kernels_are_kept(self) -> None:
        assert_nothing_of_the_trial_is_left()
        held = guest(HOST, "apt-mark", "showhold").split()
        assert {f"linux-image-{self.older}", f"linux-image-{self.newer}"} <= set(held)
        assert {f"linux-image-{self.older}", f"linux-image-{self.newer}"} <= set(
            guest(HOST, "dpkg-query", "-W", "-f", "${Package}\n").split()
        )
        assert guest(HOST, "dpkg", "--audit") == ""
        status = guest(HOST, "python3", "/var/lib/gpuhost/gpuhost.pyz", "status")
        assert f"last roll to {self.older}: good" in status

    def test_once_more_goes_no_further_back(self, runs: Path) -> None:
        before, boot = checksums(HOST), boot_id(HOST)
        run = playbook(runs, "rollback", "--limit", HOST, "-e", "rollback_to=6.1")
        assert run.exit_status == 0, run.output[-3000:]
        assert "nothing to do" in run.output
        assert (checksums(HOST), boot_id(HOST)) == (before, boot)

    def test_the_next_upgrade_ends_the_pin(self, runs: Path) -> None:
        run = gpuhost(runs, "upgrade", *ON_HOST, "--target", TARGET)
        assert run.exit_status == 0, run.output[-4000:]
        assert kernel(HOST) == self.newer
        assert container_state(HOST) == "RUNNING"
        assert "default" not in loader_conf()  # no pin, as before the way back
        assert_nothing_of_the_trial_is_left()
