"""MaxReadReq on registers that are really written and really lost: after tune, a boot, a rebind, and both events.

The registers are read by setpci, not by our own code. What the lab can't show: a recovery by the kernel's AER code (its
ports have none); the event is the kernel's own, sent by a module that makes the same call (pcie_recovery.c).
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from tests.lab.lab import BIN, INVENTORY, ROOT, Run, create, finished, guest, lab

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("machines")]
HOST = "pcie"
MACHINES = (HOST,)
GPUS, PORTS = ("0001:01:00.0", "0001:02:00.0"), ("0001:00:01.0", "0001:00:02.0")
BEFORE, AFTER = "2110", "5110"
"""Device Control with 512 and with 4096 bytes: extended tags and relaxed ordering stay."""
DRIVER = "/sys/bus/pci/drivers/nvidia"
UNIT = "gpu-pcie-tuning"
RULES = f"/etc/udev/rules.d/90-{UNIT}.rules"
READ_ONLY = "/etc/modprobe.d/lab-read-only.conf"
WRITE = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
REVERT = """
import sys
sys.path.insert(0, "/var/lib/gpuhost/gpuhost.pyz")
from gpuhost import pcie, tuning
from gpuhost.host_io import Host
for item in tuning.revert(Host(), False):
    print(item.write.object, item.status, item.reason)
"""


def tune(runs: Path, *arguments: str) -> Run:
    """The role by itself, on this machine."""
    before = set(runs.glob("*")) if runs.exists() else set()
    runs.mkdir(parents=True, exist_ok=True)
    play = {
        "hosts": "gpu_hosts",
        "gather_facts": False,
        "vars": {"gpuhost_run_id": "pcie"},
        "tasks": [{"name": "Tune", "ansible.builtin.import_role": {"name": "pcie_tuning"}}],
    }
    path, log, begun = runs.parent / "pcie.yml", runs.parent / f"pcie-{time.monotonic_ns()}.log", time.monotonic()
    path.write_text(yaml.safe_dump([play]))
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "GPUHOST_RUNS_DIR": str(runs),
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    argv = [str(BIN / "ansible-playbook"), str(path), "-i", str(INVENTORY), "--limit", HOST, *arguments]
    with log.open("wb") as out:
        status = subprocess.run(
            argv,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=600,
            check=False,
        ).returncode
    return finished(runs, before, status, log, time.monotonic() - begun)


def said(run: Run, code: str) -> list[str]:
    return [item["observed"] for item in run.document(HOST, "tune-pcie")["findings"] if item["id"] == code]


def statuses(run: Run) -> set[str]:
    return {task["status"] for task in run.record["tasks"]}


def control(address: str) -> str:
    return guest(HOST, "setpci", "-s", address, "CAP_EXP+8.w").strip()


def controls(addresses: tuple[str, ...] = (*GPUS, *PORTS)) -> set[str]:
    return {control(address) for address in addresses}


def lose(address: str) -> None:
    """What a reset does to the register."""
    guest(HOST, "setpci", "-s", address, "CAP_EXP+8.w=2000:7000")
    assert control(address) == BEFORE


def wait_for(address: str, expected: str, limit_s: float = 90) -> None:
    """A unit that a rule has queued needs its time."""
    end = time.monotonic() + limit_s
    while (seen := control(address)) != expected:
        assert time.monotonic() < end, f"{address}: {seen}, expected {expected}\n{journal(f'{UNIT}@{address}')}"
        time.sleep(1)


def journal(unit: str) -> str:
    return guest(HOST, "journalctl", "-b", "-u", f"{unit}.service", "--no-pager", "-o", "cat")


def rebind(address: str) -> None:
    for action in ("unbind", "bind"):
        guest(HOST, "python3", "-c", WRITE, f"{DRIVER}/{action}", address)


def events_are_over() -> None:
    """All events are handled, and what their rules have queued is done."""
    guest(HOST, "udevadm", "settle")
    time.sleep(5)


def boot() -> None:
    guest(HOST, "sync")
    lab("kill", "--name", HOST)
    lab("start", "--name", HOST)
    guest(HOST, "systemctl", "start", "multi-user.target", timeout_s=300)  # waits for what the boot still starts


def etc() -> str:
    """/etc byte for byte, and where its links lead."""
    files = guest(HOST, "find", "/etc", "-type", "f", "-exec", "sha256sum", "{}", "+")
    links = guest(HOST, "find", "/etc", "-type", "l", "-printf", "%p -> %l\\n")
    return "\n".join(sorted([*files.splitlines(), *links.splitlines()]))


class TestPcie:
    """In order: every test goes on where the one before it ended."""

    before = ""

    def test_the_driver_sets_512_whenever_it_binds(self) -> None:
        create(HOST)
        assert controls() == {BEFORE}
        guest(HOST, "setpci", "-s", GPUS[0], "CAP_EXP+8.w=5000:7000")
        assert control(GPUS[0]) == AFTER
        rebind(GPUS[0])
        events_are_over()
        assert control(GPUS[0]) == BEFORE
        TestPcie.before = etc()

    def test_check_mode_changes_nothing(self, runs: Path) -> None:
        run = tune(runs, "--check", "--diff")
        assert run.exit_status == 0, run.output[-4000:]
        assert statuses(run) == {"changed"}
        assert controls() == {BEFORE}
        assert etc() == self.before

    def test_tune_sets_endpoints_and_root_ports(self, runs: Path) -> None:
        run = tune(runs)
        assert run.exit_status == 0, run.output[-4000:]
        assert controls() == {AFTER}
        assert said(run, "pcie.max_read_request") == [f"4096 bytes: {', '.join((*GPUS, *PORTS))}"]
        assert guest(HOST, "systemctl", "is-enabled", f"{UNIT}.service").strip() == "enabled"

    def test_a_second_run_changes_nothing(self, runs: Path) -> None:
        before = etc()
        run = tune(runs)
        assert run.exit_status == 0, run.output[-4000:]
        assert statuses(run) == {"ok"}
        assert (controls(), etc()) == ({AFTER}, before)

    def test_it_is_there_again_after_the_driver_was_bound_anew(self) -> None:
        rebind(GPUS[0])
        wait_for(GPUS[0], AFTER)
        assert f"{GPUS[0]}: 512 -> 4096" in journal(f"{UNIT}@{GPUS[0]}")
        # as often as somebody likes: no start limit
        for _ in range(6):
            rebind(GPUS[1])
        wait_for(GPUS[1], AFTER)

    def test_it_is_there_again_after_the_whole_driver_was_loaded_anew(self) -> None:
        """Not in the container's way: only the PCI driver is taken from every GPU, then given back."""
        for address in GPUS:
            guest(HOST, "python3", "-c", WRITE, f"{DRIVER}/unbind", address)
        for address in (*GPUS, *PORTS):
            lose(address)
        for address in GPUS:
            guest(HOST, "python3", "-c", WRITE, f"{DRIVER}/bind", address)
        for address in (*GPUS, *PORTS):
            wait_for(address, AFTER)

    def test_it_is_there_again_after_a_bind_event(self) -> None:
        lose(GPUS[1])
        lose(PORTS[1])
        guest(HOST, "udevadm", "trigger", "--action=bind", f"/sys/bus/pci/devices/{GPUS[1]}")
        wait_for(GPUS[1], AFTER)
        wait_for(PORTS[1], AFTER)

    def test_it_is_there_again_after_a_recovery_and_no_other_change(self) -> None:
        lose(GPUS[0])
        guest(HOST, "udevadm", "trigger", "--action=change", f"/sys/bus/pci/devices/{GPUS[0]}")
        events_are_over()
        assert control(GPUS[0]) == BEFORE, "a change event without ERROR_EVENT has set it"
        recover(GPUS[0])
        wait_for(GPUS[0], AFTER)
        lose(PORTS[0])
        recover(GPUS[0])
        wait_for(PORTS[0], AFTER)

    def test_it_is_there_again_after_a_boot(self) -> None:
        boot()
        assert guest(HOST, "systemctl", "is-active", f"{UNIT}.service").strip() == "active"
        for address in (*GPUS, *PORTS):
            wait_for(address, AFTER)
        assert guest(HOST, "systemctl", "list-units", "--failed", "--plain", "--no-legend", f"{UNIT}*") == ""

    def test_the_boot_unit_alone_does_it(self) -> None:
        """Without the rules: a driver that binds in the initramfs sends its event to nobody."""
        guest(HOST, "mv", RULES, "/var/tmp/rules")
        boot()
        assert controls() == {AFTER}
        assert "512 -> 4096" in journal(UNIT)
        guest(HOST, "mv", "/var/tmp/rules", RULES)

    def test_a_read_only_device_is_reported_and_keeps_none_back(self, runs: Path) -> None:
        """A root port, where the lab's module can show such a one, else a GPU."""
        has_ports = "readonly_ports:" in guest(HOST, "/sbin/modinfo", "-p", "gpuhost_lab")
        option, address = ("readonly_ports", PORTS[1]) if has_ports else ("readonly_gpus", GPUS[1])
        guest(HOST, "python3", "-c", WRITE, READ_ONLY, f"options gpuhost_lab {option}=2\n")
        boot()
        run = tune(runs)
        guest(HOST, "rm", READ_ONLY)
        assert run.exit_status == 0, run.output[-4000:]
        assert statuses(run) == {"ok"}
        assert said(run, "pcie.not_writable") == [f"{address}: reads 512 after 4096 was written"]
        assert control(address) == BEFORE
        rest = tuple(item for item in (*GPUS, *PORTS) if item != address)
        for item in rest:
            wait_for(item, AFTER)
        assert f"{address}: pcie.not_writable: reads 512 after 4096 was written" in journal(UNIT)
        assert guest(HOST, "systemctl", "is-active", f"{UNIT}.service").strip() == "active"

    def test_revert_gives_back_etc_and_registers(self) -> None:
        text = guest(HOST, "python3", "-c", REVERT)
        assert not re.search("refused", text), text
        assert controls() == {BEFORE}
        assert etc() == self.before
        rebind(GPUS[0])
        events_are_over()
        assert control(GPUS[0]) == BEFORE


def recover(address: str) -> None:
    """Send a recovery's event from within the kernel, by a module that is built in the machine."""
    folder = "/var/tmp/recovery"
    if "pcie_recovery.ko" not in guest(HOST, "find", "/var/tmp", "-name", "pcie_recovery.ko"):
        source = (Path(__file__).parent / "pcie_recovery.c").read_text()
        guest(HOST, "mkdir", "-p", folder)
        guest(HOST, "python3", "-c", WRITE, f"{folder}/pcie_recovery.c", source)
        guest(HOST, "python3", "-c", WRITE, f"{folder}/Makefile", "obj-m := pcie_recovery.o\n")
        release = guest(HOST, "uname", "-r").strip()
        guest(HOST, "make", "-C", f"/lib/modules/{release}/build", f"M={folder}", "modules", timeout_s=300)
    guest(HOST, "/sbin/insmod", f"{folder}/pcie_recovery.ko", f"address={address}")
    guest(HOST, "/sbin/rmmod", "pcie_recovery")
