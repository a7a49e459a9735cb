"""A host loses its power and boots another kernel, with nobody there: its container has its GPUs all the same."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest

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
    wait_for_snapshot,
)

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("machines")]
HOST = "roll4"
MACHINES = (HOST,)
ON_HOST = ("-i", str(INVENTORY), "--limit", HOST)
CONFIG = f"/var/lib/lxc/{CONTAINER}/config"
UNIT = "gpuhost-devices.service"


def uvm_major() -> str:
    """The character major of nvidia-uvm on the running kernel."""
    found = re.search(r"^ *(\d+) nvidia-uvm$", guest(HOST, "cat", "/proc/devices"), re.MULTILINE)
    assert found
    return found.group(1)


def reset() -> None:
    """The machine starts anew at once, nothing is shut down. The firmware's variables live in QEMU, which stays."""
    before, trigger = boot_id(HOST), "open('/proc/sysrq-trigger', 'w').write('b')"
    guest(HOST, "systemd-run", "--quiet", "--on-active=1", "/usr/bin/python3", "-c", trigger)
    end = time.monotonic() + 300
    while True:
        assert time.monotonic() < end, "it does not answer"
        time.sleep(2)
        try:
            if boot_id(HOST) != before:
                return
        except (AssertionError, subprocess.TimeoutExpired):
            continue


def test_the_boot_unit_alone_heals_an_autostarted_container(runs: Path) -> None:
    wait_for_snapshot("after-apt")
    lab("up", "--name", HOST, "--from", "after-apt")
    assert gpuhost(runs, "reconcile", *ON_HOST).exit_status == 0
    assert kernel(HOST).startswith(OLD)
    before = uvm_major()
    guest(HOST, "sed", "-i", "$a lxc.start.auto = 1", CONFIG)
    # the lab's own helpers are what a host without nvidia-persistenced does not have: nodes and nvidia-uvm at boot
    guest(HOST, "systemctl", "disable", "gpuhost-lab-nodes.service", "nvidia-persistenced.service")
    guest(HOST, "sed", "-i", "/nvidia-uvm/d", "/etc/modules-load.d/nvidia.conf")
    config = guest(HOST, "cat", CONFIG)
    entry = next(name for name in guest(HOST, "ls", "/boot/efi/loader/entries").split() if f"-{TARGET}" in name)
    guest(HOST, "bootctl", "--esp-path=/boot/efi", "set-oneshot", entry)
    guest(HOST, "sync")

    reset()

    assert kernel(HOST).startswith(TARGET)
    guest(HOST, "systemctl", "start", "multi-user.target", timeout_s=300)  # waits for what the boot still starts
    now = uvm_major()
    assert now != before, "the majors did not move, so nothing was proven"
    journal = guest(HOST, "journalctl", "-b", "-u", UNIT, "--no-pager", "-o", "cat")
    assert f"nvidia-uvm {before} -> {now}" in journal
    assert "node /dev/nvidia-uvm made" in journal or "module nvidia-uvm loaded" in journal
    assert container_state(HOST) == "RUNNING"
    healed = guest(HOST, "cat", CONFIG)
    assert f"c {now}:* rwm" in healed
    assert f"c {before}:* rwm" not in healed
    assert re.sub(r"c \d+:", "c N:", healed) == re.sub(r"c \d+:", "c N:", config)  # nothing else changed
    record = json.loads(guest(HOST, "cat", "/var/lib/gpuhost/devices_at_boot.json"))
    leaked = [item for item in record["changes"] if item["old_major"] == int(before)]
    assert [item["severity"] for item in leaked] == ["security"]  # the lab gives the old number to somebody else
    # started once, after the unit: no restart was needed
    assert gpuhost(runs, "gate", *ON_HOST).exit_status == 0
    again = gpuhost(runs, "reconcile", *ON_HOST)
    assert again.exit_status == 0
    assert guest(HOST, "cat", CONFIG) == healed
