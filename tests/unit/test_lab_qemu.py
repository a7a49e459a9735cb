"""The lab's machines begin, if need be at the second time, and end as a whole: no start meets the one before."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from gpuhost_lab import lifecycle, qemu
from gpuhost_lab.errors import LabError, NoAnswer
from gpuhost_lab.machine import Machine

HOLD = """
import fcntl, sys, time
file = open(sys.argv[2], "w")
fcntl.flock(file, fcntl.LOCK_EX)
memory = bytearray(int(sys.argv[3]) << 20)
memory[::4096] = b"x" * len(memory[::4096])
print("ready", flush=True)
time.sleep(60)
"""
MEMORY_MIB = 700
"""Giving back so much takes a while, in which a killed process has lost its command line and not yet its files."""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    folder = tmp_path / "m1"
    folder.mkdir()
    return Machine(folder)


def test_a_machine_that_is_off_has_let_go_of_its_disks(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qemu.time, "sleep", lambda _seconds: None)  # whoever polls looks at the worst moment
    disk = machine.folder / "disk"
    argv = [sys.executable, "-c", HOLD, f"gpuhost-lab-{machine.name}", str(disk), str(MEMORY_MIB)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        machine.pid_file.write_text(str(process.pid))
        assert machine.pid() == process.pid
        qemu.cut_power(machine)
        with disk.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where somebody still has it
    assert not machine.pid_file.exists()
    assert qemu.wait_for_exit(machine, 1.0)


def test_a_machine_that_does_not_end_is_told(machine: Machine) -> None:
    argv = [sys.executable, "-c", HOLD, f"gpuhost-lab-{machine.name}", str(machine.folder / "disk"), "1"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        machine.pid_file.write_text(str(process.pid))
        assert not qemu.wait_for_exit(machine, 0.2)
        process.kill()


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_a_new_machine_that_stands_still_is_started_once_more(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, silent: int
) -> None:
    done: list[str] = []

    def boot(_machine: Machine, _limit_s: float = 300.0) -> None:
        done.append("boot")
        if done.count("boot") <= silent:
            raise NoAnswer("m1: no ssh")

    monkeypatch.setattr(lifecycle, "boot", boot)
    monkeypatch.setattr(qemu, "cut_power", lambda _machine: done.append("cut"))
    if silent < 2:
        lifecycle._boot_new(machine)
    else:
        with pytest.raises(LabError, match="no ssh"):
            lifecycle._boot_new(machine)
    assert done == (["boot"] if silent == 0 else ["boot", "cut", "boot"])
