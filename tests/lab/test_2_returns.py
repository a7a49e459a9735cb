"""Trials that do not hold, with nobody there: an early panic, and a controller that dies right after the reboot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lab import (
    CONTAINER,
    INVENTORY,
    OLD,
    TARGET,
    container_state,
    gpuhost,
    guest,
    kernel,
    lab,
    start_gpuhost,
)

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("machines")]
AGAIN, PANICS = "roll2", "roll5"
DEADLINE_S = 100
PANIC_SCRIPT = """#!/bin/sh
# A kernel that dies before it has a root: only the new one, whose initramfs is the only one made with this in it.
[ "$1" = prereqs ] && exit 0
case "$(uname -r)" in 6.12*) echo c >/proc/sysrq-trigger ;; esac
"""


def roll_file(name: str) -> dict[str, Any]:
    """The roll file of a machine that answers."""
    return dict(json.loads(guest(name, "cat", "/var/lib/gpuhost/roll.json")))


def assert_as_before(name: str) -> None:
    """In service on the old kernel, and nothing of the trial left."""
    assert kernel(name).startswith(OLD)
    assert container_state(name) == "RUNNING"
    names = ("-path", "*gpuhost*", "-not", "-path", "*gpuhost-lab*")
    left = guest(name, "find", "/etc", *names).split() + guest(name, "find", "/run", "-maxdepth", "1", *names).split()
    assert left == []
    assert "LoaderEntryOneShot" not in guest(name, "ls", "/sys/firmware/efi/efivars")
    assert guest(name, "apt-mark", "showhold").split() == []


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """A controller that loses its power: the command and every process below it, at once."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents.setdefault(int(rest[1]), []).append(pid)
    doomed, found = [process.pid], []
    while doomed:
        pid = doomed.pop()
        found.append(pid)
        doomed += parents.get(pid, [])
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(30)


def test_a_controller_that_dies_after_the_reboot_leaves_a_host_that_comes_back(runs: Path, tmp_path: Path) -> None:
    log = tmp_path / "killed.log"
    arguments = ("upgrade", "-i", str(INVENTORY), "--limit", AGAIN, "--target", TARGET, "--retry-trial")
    process = start_gpuhost(runs, *arguments, "-e", f"boot_trial_deadline={DEADLINE_S}", log=log)
    end = time.monotonic() + 900
    while "rebooting" not in log.read_text():
        assert time.monotonic() < end, log.read_text()[-3000:]
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.5)
    kill_tree(process)
    status: dict[str, Any] = {"state": "open"}
    end = time.monotonic() + 900
    while status["state"] == "open":
        assert time.monotonic() < end, "the host did not come back by itself"
        time.sleep(5)
        try:
            status = roll_file(AGAIN)
        except (AssertionError, ValueError, subprocess.TimeoutExpired):
            continue
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
    script = "/etc/initramfs-tools/scripts/init-top/gpuhost-lab-panic"
    guest(
        PANICS,
        "python3",
        "-c",
        f"import os; open({script!r}, 'w').write({PANIC_SCRIPT!r}); os.chmod({script!r}, 0o755)",
    )
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
