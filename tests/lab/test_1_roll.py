"""One host's story in the lab: refusals, a power cut after apt, the roll, the roll again. Real kernels, DKMS, LXC."""

from __future__ import annotations

import json
import re
import time
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
    finished,
    gpuhost,
    guest,
    kernel,
    lab,
    other_way,
    playbook,
    start_gpuhost,
)

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("machines")]
HOST = "roll1"
MACHINES = (HOST,)
UPGRADE = ("upgrade", "-i", str(INVENTORY), "--limit", HOST, "--target")


class TestRoll:
    """In order: every test goes on where the one before it ended."""

    before = ""

    def test_a_machine_is_there(self) -> None:
        create(HOST)
        assert kernel(HOST).startswith(OLD)
        assert container_state(HOST) == "RUNNING"
        TestRoll.before = checksums(HOST)

    def test_wrong_target(self, runs: Path) -> None:
        run = gpuhost(runs, *UPGRADE, "6.99")
        assert run.exit_status == 2
        assert run.causes(HOST) == ["target.unknown"]
        assert re.search(r"--target 6\.99: no kernel matches, expected one of: .*6\.12", run.output)
        assert checksums(HOST) == self.before

    def test_no_consent_to_a_reboot(self, runs: Path) -> None:
        run = gpuhost(runs, *UPGRADE, TARGET, "-e", "host_reboot_allowed=false")
        assert run.exit_status == 2
        assert run.causes(HOST) == ["roll.reboot_not_allowed"]
        assert checksums(HOST) == self.before

    def test_headers_missing(self, runs: Path) -> None:
        """The archive has the image but not its headers: what made DKMS skip the driver without an error."""
        guest(HOST, "python3", "-c", WITHOUT_HEADERS)
        run = gpuhost(runs, *UPGRADE, TARGET, "-e", "host_survey_apt_max_age=-1")
        guest(HOST, "cp", "-a", "/var/tmp/lists/.", "/var/lib/apt/lists/")
        assert run.exit_status == 5
        assert run.causes(HOST) == ["dkms.headers_missing"]
        line = next(line for line in run.output.splitlines() if "dkms.headers_missing: " in line)
        assert re.search(r"linux-headers-6\.12\S+", line)
        assert re.search(r"kernel 6\.12", line)
        assert "apt-cache policy" in line
        assert container_state(HOST) == "RUNNING"
        assert checksums(HOST) == self.before
        assert guest(HOST, "dpkg", "--audit") == ""

    def test_esp_full(self, runs: Path) -> None:
        guest(HOST, "dd", "if=/dev/zero", "of=/boot/efi/full", "bs=1M", "count=225", "status=none")
        run = gpuhost(runs, *UPGRADE, TARGET)
        guest(HOST, "rm", "/boot/efi/full")
        assert run.exit_status == 5
        assert run.causes(HOST) == ["boot.no_space"]
        assert re.search(r"/boot/efi: \d+ MiB free, expected at least \d+ MiB", run.output)
        assert checksums(HOST) == self.before

    def test_check_shows_plan_and_diffs_and_changes_nothing(self, runs: Path) -> None:
        run = gpuhost(runs, *UPGRADE, TARGET, "--check")
        assert run.exit_status == 1, run.output[-3000:]
        assert f"+default {entry_name(run.document(HOST, 'facts')['kernel']['release'])}" in run.output
        assert re.search(r"install linux-image-6\.12\S+ ", run.output)
        assert re.search(r"install linux-headers-6\.12\S+ ", run.output)
        assert re.search(r"\+root=\S+ .*panic=30 iommu=pt", run.output)
        assert "+options nvidia-uvm uvm_disable_hmm=1" in run.output
        assert f"container {CONTAINER} would be stopped" in run.output
        assert "would reboot once into 6.12" in run.output
        assert not run.record["failures"]
        assert checksums(HOST) == self.before
        assert container_state(HOST) == "RUNNING"

    def test_a_power_cut_right_after_apt_boots_the_old_kernel(self, runs: Path) -> None:
        before, log, begun = set(runs.glob("*")), runs.parent / "cut.log", time.monotonic()
        process = start_gpuhost(runs, *UPGRADE, TARGET, log=log)
        while "Install kernel and headers … changed in" not in log.read_text(errors="replace"):
            assert process.poll() is None, log.read_text(errors="replace")[-4000:]
            assert time.monotonic() - begun < 1500, log.read_text(errors="replace")[-4000:]
            time.sleep(0.2)
        lab("kill", "--name", HOST)
        process.kill()
        finished(runs, before, process.wait(), log, time.monotonic() - begun)
        lab("save", "--name", HOST, "--as", "after-apt")
        lab("start", "--name", HOST)
        assert kernel(HOST).startswith(OLD)
        assert re.search(r"^default \S*6\.1\.", guest(HOST, "cat", "/boot/efi/loader/loader.conf"), re.MULTILINE)
        assert "linux-image-6.12" in guest(HOST, "dpkg-query", "-W")
        # what the incident was: nobody starts the container after an unplanned reboot
        guest(HOST, "lxc-start", "-n", CONTAINER)

    def test_the_same_roll_by_plain_ansible_finishes_the_work(self, runs: Path) -> None:
        """Begun by the command, finished by ansible-playbook: the host knows where it stands, not the controller."""
        run = playbook(runs, "upgrade", "--limit", HOST, "-e", f"target={TARGET}")
        assert run.exit_status == 0, run.output[-4000:]
        assert re.search(r"\d:\d\d of about |, no estimate yet", run.output), "no line of the callback's clock"
        assert kernel(HOST).startswith(TARGET)
        assert container_state(HOST) == "RUNNING"
        assert run.document(HOST, "outcome")["state"] == "good"
        verdict = run.document(HOST, "verdict")
        assert verdict["status"] == "pass"
        assert {item["check"]: item["status"] for item in verdict["verdicts"]} == {
            "device_access": "pass",
            "cuda": "pass",
            "health": "pass",
        }
        assert run.folder is not None
        assert (run.folder / "report.html").stat().st_size > 5000
        assert {"panic=30", "iommu=pt"} <= set(guest(HOST, "cat", "/proc/cmdline").split())
        assert guest(HOST, "cat", "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm").strip() == "Y"

    def test_the_majors_moved_and_the_rules_followed_by_name(self, runs: Path) -> None:
        newest = sorted(path.parent for path in runs.glob("*/run.json"))[-1]
        reconcile = json.loads((newest / HOST / "reconcile.json").read_text())
        before, now = reconcile["majors_before"], reconcile["majors_now"]
        assert before["nvidia-uvm"] != now["nvidia-uvm"]
        uvm = next(item for item in reconcile["changes"] if item["driver"] == "nvidia-uvm")
        assert (uvm["old_major"], uvm["new_major"]) == (before["nvidia-uvm"], now["nvidia-uvm"])
        assert uvm["leaks_to"] == "gpuhost-lab-slot"
        config = guest(HOST, "cat", f"/var/lib/lxc/{CONTAINER}/config")
        assert f"c {now['nvidia-uvm']}:* rwm" in config
        assert f"c {before['nvidia-uvm']}:* rwm" not in config

    def test_nothing_of_the_roll_is_left(self) -> None:
        assert "default" not in guest(HOST, "cat", "/boot/efi/loader/loader.conf")  # no pin stays no pin
        assert guest(HOST, "bootctl", "--esp-path=/boot/efi", "list", "--no-pager").count("(default)") == 1
        kept = ["gpu_checks.pyz", "gpuhost.pyz", "lock", "majors.json", "roll.json"]
        assert guest(HOST, "ls", "/var/lib/gpuhost").split() == kept
        names = [word for name in ("hold.conf", "deadman*", "return*") for word in ("-o", "-name", f"*gpuhost-{name}")][
            1:
        ]
        assert guest(HOST, "find", "/etc/systemd/system", *names) == ""
        assert "/etc/gpuhost" not in guest(HOST, "find", "/etc", "-maxdepth", "1").split()
        # the old kernel's packages stay on hold until the new one was good for long enough
        assert any(name.startswith("linux-image-6.1.") for name in guest(HOST, "apt-mark", "showhold").split())
        status = guest(HOST, "python3", "/var/lib/gpuhost/gpuhost.pyz", "status")
        assert f"last roll to {kernel(HOST)}: good" in status

    def test_the_roll_again_changes_and_reboots_nothing(self, runs: Path) -> None:
        before, boot = checksums(HOST), boot_id(HOST)
        run = gpuhost(runs, *UPGRADE, TARGET)
        assert run.exit_status == 0
        assert "nothing to do" in run.output
        assert run.seconds < 60
        assert boot_id(HOST) == boot
        assert checksums(HOST) == before

    def test_gate_and_reconcile_by_themselves(self, runs: Path) -> None:
        reconciled = gpuhost(runs, "reconcile", "-i", str(INVENTORY), "--limit", HOST)
        assert reconciled.exit_status == 0
        assert not [task for task in reconciled.record["tasks"] if task["status"] == "changed"]
        gated = gpuhost(runs, "gate", "-i", str(INVENTORY), "--limit", HOST)
        assert gated.exit_status == 0
        assert gated.document(HOST, "verdict")["status"] == "pass"

    @pytest.mark.parametrize("stage", ["drain", "trial", "promote", "hand_back"])
    def test_a_stage_without_a_roll_says_so(self, runs: Path, stage: str) -> None:
        boot = boot_id(HOST)
        run = gpuhost(runs, stage, "-i", str(INVENTORY), "--limit", HOST)
        assert run.exit_status == 2
        assert run.causes(HOST)[0] == "roll.not_open"
        assert boot_id(HOST) == boot
        assert container_state(HOST) == "RUNNING"

    @pytest.mark.parametrize("way", ["sudo", "jump host"])
    def test_other_ways_to_the_host(self, runs: Path, tmp_path: Path, way: str) -> None:
        """As a user with sudo; through a jump host. Host keys are checked on the whole way."""
        run = gpuhost(runs, "survey", "-i", other_way(tmp_path, HOST, way))
        assert run.exit_status == 0, run.output[-3000:]
        assert run.document(HOST, "facts")["kernel"]["release"].startswith(TARGET)

    def test_no_play_had_a_deprecation_warning(self, runs: Path) -> None:
        logs = list(runs.glob("*/ansible.log"))
        assert logs
        for log in logs:
            assert "DEPRECATION WARNING" not in log.read_text(), log


def entry_name(release: str) -> str:
    """The lab's entry file of a release."""
    return f"gpuhost-lab-{release}.conf"


WITHOUT_HEADERS = """
import pathlib, shutil
shutil.copytree("/var/lib/apt/lists", "/var/tmp/lists", dirs_exist_ok=True)
for path in pathlib.Path("/var/lib/apt/lists").glob("*_Packages"):
    stanzas = path.read_text().split("\\n\\n")
    kept = [text for text in stanzas if not text.lstrip().startswith("Package: linux-headers-6.12")]
    path.write_text("\\n\\n".join(kept))
"""
