"""The role on a PCI bus of plain files, bind-mounted over /sys in a mount namespace. Ansible and systemctl are real.

/etc, /sys and /var/lib are the test's own: nothing that happens in there is left behind. The files keep every bit that
is written, as a register does that can be written; one bridge's file is mounted read-only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.fake_pcie import CONTROL, Device, gpu, lay, root_port

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
SYSTEMCTL = "/usr/bin/systemctl"
ONE, OTHER = "/sys/devices/pci0001:00/0001:00:01.0", "/sys/devices/pci0001:00/0001:00:02.0"
BMC = "/sys/devices/pci0000:50/0000:52:00.0"
DEVICES = [
    root_port(ONE),
    gpu(f"{ONE}/0001:01:00.0"),
    root_port(OTHER),
    gpu(f"{OTHER}/0001:02:00.0"),
    Device(BMC, 0x1A03, 0x2000, 0x030000),
]
READ_ONLY = OTHER
# systemctl without a systemd that runs: it works on the files alone, and there is nothing to be reloaded.
OFFLINE = f"""#!/bin/sh
[ "$1" = daemon-reload ] || SYSTEMD_OFFLINE=1 exec {SYSTEMCTL} "$@"
"""
MOUNTS = """
mount --bind "$FOLDER/sys" /sys
mount --bind "$FOLDER/etc" /etc
mount --bind "$FOLDER/lib" /var/lib
mount --bind "$FOLDER/bin" /usr/local/sbin
mount --bind "/sys/${READ_ONLY#/sys/}/config" "/sys/${READ_ONLY#/sys/}/config"
mount -o remount,bind,ro "/sys/${READ_ONLY#/sys/}/config"
exec "$@"
"""
REVERT = """
import json
from gpuhost import pcie, tuning
from gpuhost.host_io import Host
print(json.dumps([[item.write.object, item.status] for item in tuning.revert(Host(), False)]))
"""
pytestmark = [
    pytest.mark.play,
    pytest.mark.skipif(os.geteuid() != 0, reason="bind mounts need root"),
    pytest.mark.skipif(not os.path.exists(SYSTEMCTL), reason="no systemctl here"),
]


class Bus:
    """The machine of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        lay(folder, DEVICES)
        (folder / "lib").mkdir()
        shutil.copytree("/etc", folder / "etc", symlinks=True, ignore_dangling_symlinks=True)
        (folder / "bin").mkdir()
        (folder / "bin/systemctl").write_text(OFFLINE)
        (folder / "bin/systemctl").chmod(0o755)
        play = {
            "hosts": "all",
            "gather_facts": False,
            "vars": {"gpuhost_run_id": "native"},
            "tasks": [{"name": "Tune", "ansible.builtin.import_role": {"name": "pcie_tuning"}}],
        }
        host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        (folder / "play.yml").write_text(yaml.safe_dump([play]))
        (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"gpu1": host}}}))

    def run(self, *argv: str, runs: str = "runs") -> str:
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "GPUHOST_RUNS_DIR": str(self.folder / runs),
            "GPUHOST_RUN_ID": "native",
            "FOLDER": str(self.folder),
            "READ_ONLY": READ_ONLY,
        }
        command = ["unshare", "--mount", "sh", "-euc", MOUNTS, "sh", *argv]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
        return result.stdout

    def play(self, runs: str, *arguments: str) -> dict[str, Any]:
        """Run the role; the task's record and the document that it left."""
        command = [str(BIN / "ansible-playbook"), str(self.folder / "play.yml"), "-i", str(self.folder / "hosts.yml")]
        self.run(*command, *arguments, runs=runs)
        folder = self.folder / runs / "native"
        (task,) = json.loads((folder / "run.json").read_text())["tasks"]
        return {"status": task["status"], **json.loads((folder / "gpu1/tune-pcie.json").read_text())}

    def control(self, path: str) -> int:
        return int.from_bytes((self.folder / path.lstrip("/") / "config").read_bytes()[0x80:0x82], "little")

    def snapshot(self) -> dict[str, bytes]:
        """/etc and /sys, byte for byte."""
        found = {}
        for top in ("etc", "sys"):
            for item in sorted((self.folder / top).rglob("*")):
                name = str(item.relative_to(self.folder))
                found[name] = os.readlink(item).encode() if item.is_symlink() else b""
                if item.is_file() and not item.is_symlink():
                    found[name] = item.read_bytes()
        return found


@pytest.fixture
def bus(tmp_path: Path) -> Bus:
    return Bus(tmp_path)


def said(document: dict[str, Any], code: str) -> list[str]:
    return [item["observed"] for item in document["findings"] if item["id"] == code]


def test_the_role_sets_keeps_repeats_and_takes_back(bus: Bus) -> None:
    before = bus.snapshot()
    shown = bus.play("check", "--check", "--diff")
    assert shown["status"] == "changed"
    assert bus.snapshot() == before

    first = bus.play("first")
    assert first["status"] == "changed"
    assert {bus.control(path) for path in (ONE, f"{ONE}/0001:01:00.0", f"{OTHER}/0001:02:00.0")} == {0x5936}
    assert (bus.control(READ_ONLY), bus.control(BMC)) == (CONTROL, CONTROL)
    assert said(first, "pcie.max_read_request") == ["4096 bytes: 0001:01:00.0, 0001:02:00.0, 0001:00:01.0"]
    assert said(first, "pcie.not_writable") == ["0001:00:02.0: can't be written: Read-only file system"]
    assert "ASPEED BMC graphics, no GPU: 0000:52:00.0" in said(first, "pcie.left_alone")[0]

    tuned = bus.snapshot()
    wants = "etc/systemd/system/multi-user.target.wants/gpu-pcie-tuning.service"
    assert tuned[wants] == b"/etc/systemd/system/gpu-pcie-tuning.service"
    assert bus.play("second")["status"] == "ok"
    assert bus.snapshot() == tuned

    # What the driver does when it binds; then what the rules and the unit run, with the program that was sent along.
    lay(bus.folder, [])
    for device in DEVICES:
        if device.path != READ_ONLY:
            config = bus.folder / device.path.lstrip("/") / "config"
            data = bytearray(config.read_bytes())
            data[0x80:0x82] = CONTROL.to_bytes(2, "little")
            config.write_bytes(data)
    assert bus.run("/usr/bin/python3", "/var/lib/gpuhost/gpuhost.pyz", "pcie", "0001:01:00.0").splitlines() == [
        "0001:00:01.0: 512 -> 4096",
        "0001:01:00.0: 512 -> 4096",
    ]
    assert bus.control(f"{OTHER}/0001:02:00.0") == CONTROL
    text = bus.run("/usr/bin/python3", "/var/lib/gpuhost/gpuhost.pyz", "pcie")
    assert "0001:02:00.0: 512 -> 4096\n" in text
    assert "0001:00:02.0: host.module_failed: can't be written: Read-only file system\n" in text
    assert bus.snapshot() == tuned

    back = json.loads(bus.run(sys.executable, "-c", REVERT))
    assert {status for name, status in back if name != "0001:00:02.0"} == {"written"}
    assert ["0001:00:02.0", "same"] in back
    assert bus.snapshot() == before
