"""``gpuhost tune``, ``gpuhost audit`` and ``gpuhost tune --revert`` as a user calls them, on a machine of plain files.

/etc, /sys, /proc/sys and /var/lib are the test's own, bind-mounted in a namespace; Ansible and systemctl are real.
A plain file keeps what is written beyond a shorter text: the values here become no longer and no shorter than they can.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.fake_pcie import CONTROL, gpu, lay, root_port

BIN = Path(sys.executable).parent
SYSTEMCTL = "/usr/bin/systemctl"
PORT = "/sys/devices/pci0001:00/0001:00:01.0"
GPU = f"{PORT}/0001:01:00.0"
POLICY = "/sys/devices/system/cpu/cpufreq/policy0"
STATE = "/sys/devices/system/cpu/cpu0/cpuidle/state1"
ZZ = "/etc/sysctl.d/zz-vendor.conf"
SORTS_LAST = "/etc/sysctl.d/~~~.conf"
OURS = ("zzz-gpuhost", "gpu-pcie-tuning", "gpuhost-cpu", "gpuhost-pcie")
LIVE = {
    "/proc/sys/kernel/numa_balancing": "1",
    "/proc/sys/kernel/nmi_watchdog": "1",
    "/proc/sys/kernel/sched_autogroup_enabled": "1",
    "/proc/sys/vm/swappiness": "60",
    "/proc/sys/vm/dirty_ratio": "20",
    "/proc/sys/vm/dirty_background_ratio": "10",
    "/proc/sys/vm/max_map_count": "1000000",
    "/proc/sys/net/core/rmem_max": "10000000",
    "/proc/sys/net/core/wmem_max": "10000000",
    "/proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t10000000",
    "/proc/sys/net/ipv4/tcp_wmem": "4096\t16384\t10000000",
    f"{POLICY}/scaling_governor": "conservative",
    f"{STATE}/disable": "0",
}
"""What tune changes, and what it reads before."""

FILES = {
    **LIVE,
    "/proc/sys/kernel/osrelease": "6.8.12-1-pve",
    "/proc/sys/kernel/random/boot_id": "11111111-0000-4000-8000-000000000000",
    f"{POLICY}/scaling_driver": "acpi-cpufreq",
    f"{POLICY}/scaling_available_governors": "conservative performance",
    f"{POLICY}/affected_cpus": "0",
    "/sys/devices/system/cpu/cpuidle/current_driver": "acpi_idle",
    f"{STATE}/name": "C2",
    f"{STATE}/latency": "100",
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
}
# systemctl without a systemd that runs: it works on the files alone; there is nothing to be reloaded or stopped.
OFFLINE = f"""#!/bin/sh
case "$1" in daemon-reload|stop) exit 0;; esac
SYSTEMD_OFFLINE=1 exec {SYSTEMCTL} "$@"
"""
MOUNTS = """
mount --bind "$FOLDER/sys" /sys
mount --bind "$FOLDER/etc" /etc
mount --bind "$FOLDER/lib" /var/lib
mount --bind "$FOLDER/bin" /usr/local/sbin
mount --bind "$FOLDER/proc/sys" /proc/sys
exec "$@"
"""
pytestmark = [
    pytest.mark.play,
    pytest.mark.skipif(os.geteuid() != 0, reason="bind mounts need root"),
    pytest.mark.skipif(not os.path.exists(SYSTEMCTL), reason="no systemctl here"),
]


@dataclass(frozen=True)
class Done:
    """A finished command."""

    status: int
    out: str
    err: str
    folder: Path

    def document(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.folder / "gpu1" / f"{name}.json").read_text()))

    @property
    def tasks(self) -> dict[str, str]:
        return {item["task"]: item["status"] for item in json.loads((self.folder / "run.json").read_text())["tasks"]}


class Machine:
    """The machine of a test, and a controller that runs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        lay(folder, [root_port(PORT), gpu(GPU)])
        for path, text in FILES.items():
            self.put(path, text + "\n")
        shutil.copytree("/etc", folder / "etc", symlinks=True, ignore_dangling_symlinks=True)
        (folder / "etc/sysctl.conf").unlink(missing_ok=True)
        shutil.rmtree(folder / "etc/sysctl.d", ignore_errors=True)
        (folder / "etc/sysctl.d").mkdir()
        (folder / "lib").mkdir()
        (folder / "bin").mkdir()
        (folder / "bin/systemctl").write_text(OFFLINE)
        (folder / "bin/systemctl").chmod(0o755)
        host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        (folder / "hosts.yml").write_text(yaml.safe_dump({"gpu_hosts": {"hosts": {"gpu1": host}}}))

    def put(self, path: str, text: str) -> None:
        target = self.folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def read(self, path: str) -> str:
        return (self.folder / path.lstrip("/")).read_text().strip()

    def gpuhost(self, *arguments: str) -> Done:
        runs = self.folder / "runs"
        before = set(runs.glob("*"))
        argv = [str(BIN / "gpuhost"), *arguments, "-i", str(self.folder / "hosts.yml"), "--runs", str(runs)]
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-euc", MOUNTS, "sh", *argv],
            env={**os.environ, "FOLDER": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        (new,) = set(runs.glob("*")) - before
        assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
        return Done(done.returncode, done.stdout, done.stderr, new)

    def snapshot(self) -> dict[str, bytes]:
        """/etc, /sys and /proc/sys, byte for byte."""
        found = {}
        for top in ("etc", "sys", "proc"):
            for item in sorted((self.folder / top).rglob("*")):
                name = str(item.relative_to(self.folder))
                found[name] = os.readlink(item).encode() if item.is_symlink() else b""
                if item.is_file() and not item.is_symlink():
                    found[name] = item.read_bytes()
        return found

    @property
    def control(self) -> int:
        return int.from_bytes((self.folder / GPU.lstrip("/") / "config").read_bytes()[0x80:0x82], "little")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def ids(document: dict[str, Any], severity: str) -> set[str]:
    return {item["id"] for item in document["findings"] if item["severity"] == severity}


SETTABLE = ("--tags", "sysctl,cpu,pcie")
"""There is no driver of a GPU here, which gpu_runtime has something to say about."""


def test_tune_holds_repeats_is_audited_and_taken_back(machine: Machine) -> None:
    untouched = machine.snapshot()
    first_audit = machine.gpuhost("audit", "--output", str(machine.folder / "before.json"))
    assert first_audit.status == 1
    audited = first_audit.document("audit")
    assert ids(audited, "p0_runtime") == {
        "sysctl.value", "cpu.governor", "cpu.idle_states", "pcie.max_read_request", "gpu.not_answering",
    }  # fmt: skip
    assert audited["seconds"] < 2

    shown = machine.gpuhost("tune", "--check", *SETTABLE)
    assert shown.status == 1
    assert "gpu1: " in shown.err
    assert " to be written" in shown.err
    assert "+vm.swappiness = 10" in shown.err
    assert machine.snapshot() == untouched

    first = machine.gpuhost("tune")
    assert first.status == 1, first.err  # the GPU has no driver
    assert set(first.tasks.values()) <= {"changed", "ok"}
    assert "[Unit]" not in first.err
    assert len(first.tasks) == 4  # one module call a role
    assert {path: machine.read(path) for path in LIVE if "sysctl" not in path} == {
        **{path: machine.read(path) for path in LIVE},
        "/proc/sys/vm/swappiness": "10",
        "/proc/sys/net/ipv4/tcp_rmem": "4096 131072 16777216",
        f"{POLICY}/scaling_governor": "performance",
        f"{STATE}/disable": "1",
    }
    assert machine.control == CONTROL & ~0x7000 | 0x5000
    assert "no effect on speed is claimed" in first.err
    assert "gpu.not_answering" in first.err.splitlines()[-2]
    assert sorted(path.name for path in (first.folder / "gpu1").iterdir()) == [
        "tune-cpu.json", "tune-gpu_runtime.json", "tune-pcie.json", "tune-sysctl.json",
    ]  # fmt: skip

    tuned = machine.snapshot()
    second = machine.gpuhost("tune", *SETTABLE)
    assert second.status == 0, second.err
    assert set(second.tasks.values()) == {"ok"}
    assert "gpu1: 0 written, " in second.err
    assert machine.snapshot() == tuned

    # What tune has set is what audit expects, and what has changed is what was wished.
    now = machine.gpuhost("audit", "--compare", str(machine.folder / "before.json"))
    assert ids(now.document("audit"), "p0_runtime") == {"gpu.not_answering"}
    assert "Expected: as wished now" in now.out
    assert "Not expected" not in now.out

    # A file that sorts after ours, and one that sorts between.
    machine.put(ZZ, "vm.swappiness = 60\n")
    assert ids(machine.gpuhost("audit").document("audit"), "p0_runtime") == {"gpu.not_answering"}
    machine.put(SORTS_LAST, "# by hand\nvm.swappiness = 60\n")
    hostile = machine.gpuhost("audit")
    assert hostile.status == 1
    (found,) = [item for item in hostile.document("audit")["findings"] if item["id"] == "sysctl.overridden"]
    assert found["observed"].startswith(SORTS_LAST)
    assert "vm.swappiness = 60" in found["observed"]
    assert "sysctl.overridden" in hostile.out
    for path in (ZZ, SORTS_LAST):
        (machine.folder / path[1:]).unlink()

    said = machine.gpuhost("tune", "--revert", "--check")
    assert said.status == 1
    assert machine.snapshot() == tuned
    back = machine.gpuhost("tune", "--revert")
    assert back.status == 0, back.err
    assert f"{POLICY}/scaling_governor: performance -> conservative" in back.err
    assert ", 0 refused" not in back.err
    assert machine.snapshot() == untouched
    assert not [name for name in machine.snapshot() if any(word in name for word in OURS)]
    again = machine.gpuhost("tune", "--revert")
    assert again.status == 0
    assert "nothing to put back" in again.err


def test_audit_without_an_inventory_is_about_this_machine(tmp_path: Path) -> None:
    argv = [str(BIN / "gpuhost"), "audit", "--runs", str(tmp_path / "runs"), "--format", "json"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1), done.stderr
    (host,) = json.loads(done.stdout)["hosts"]
    assert (host["host"], host["kernel"]) == ("localhost", os.uname().release)
    assert host["failure"] == ""
    assert host["seconds"] < 10
    assert [item for item in host["findings"] if item["id"] == "audit.not_read"] == []
