"""The lab as the tests see it: machines, the ``gpuhost`` command, checksums of what must not change."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
INVENTORY = ROOT / "inventory" / "lab" / "hosts.yml"
CONTAINER = "gpu-ct"
OLD = "6.1."
TARGET = "6.12"
GRUB_DEFAULT_BY_NAME = "/etc/default/grub.d/zz-gpuhost-default.cfg"
BOOT_UNIT = {
    "/etc/systemd/system/gpuhost-devices.service",
    "/etc/systemd/system/multi-user.target.wants/gpuhost-devices.service",
}
"""What lxc_devices_at_boot installs, and what no roll takes away."""


def lab(*arguments: str, timeout_s: float = 900) -> str:
    """Run the lab's command; its output. A failure is a test error with the lab's own message."""
    argv = [sys.executable, "-m", "gpuhost_lab", *arguments]
    result = subprocess.run(
        argv, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert result.returncode == 0, f"{' '.join(argv)}\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}"
    return result.stdout


def create(name: str) -> None:
    """Make a machine by the lab's own playbook, as molecule and the demo do."""
    variables = json.dumps({"lab_machines": [name]})
    argv = [str(BIN / "ansible-playbook"), str(ROOT / "molecule" / "default" / "create.yml"), "-i", "localhost,"]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    subprocess.run(
        [*argv, "-e", variables], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, timeout=1800, check=True
    )


def wait_for_snapshot(name: str) -> None:
    """Until test_1_roll.py, which runs at the same time, has saved it; not once that has ended without."""
    end = time.monotonic() + 2400
    while f"snapshot {name}" not in (known := lab("status")):
        assert "machine roll1:" in known, f"no snapshot {name}, and no test_1_roll.py that makes it"
        assert time.monotonic() < end, f"no snapshot {name} after 40 minutes"
        time.sleep(5)


def other_way(folder: Path, name: str, way: str) -> str:
    """An inventory that reaches a machine as its user with sudo, directly or by a jump over the machine itself."""
    host = yaml.safe_load(INVENTORY.read_text())["gpu_hosts"]["hosts"][name]
    known = re.search(r"UserKnownHostsFile=(\S+)", host["ansible_ssh_common_args"])
    assert known
    config = folder / "ssh_config"
    config.write_text(f"""
Host jump
  HostName 127.0.0.1
  Port {host["ansible_port"]}
Host behind
  HostName 127.0.0.1
  Port 22
  ProxyJump jump
Host *
  User operator
  IdentityFile {host["ansible_ssh_private_key_file"]}
  IdentitiesOnly yes
  UserKnownHostsFile {known.group(1)}
  StrictHostKeyChecking yes
  HostKeyAlias [127.0.0.1]:{host["ansible_port"]}
""")
    target = {
        "ansible_host": "behind" if way == "jump host" else "jump",
        "ansible_user": "operator",
        "ansible_become": True,
        "ansible_ssh_common_args": f"-F {config}",
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    path = folder / "hosts.yml"
    path.write_text(yaml.safe_dump({"gpu_hosts": {"hosts": {name: target}}}))
    return str(path)


def guest(name: str, *argv: str, timeout_s: float = 120) -> str:
    """Run a program in a machine as root; its output.

    Its input is its own: an ssh that is killed leaves what it shares with others set not to block, and Ansible refuses
    to run with that.
    """
    command = [sys.executable, "-m", "gpuhost_lab", "ssh", "--name", name, "--", *argv]
    result = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert result.returncode == 0, f"{name}: {' '.join(argv)}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def boot_id(name: str) -> str:
    """The machine's boot id."""
    return guest(name, "cat", "/proc/sys/kernel/random/boot_id").strip()


def kernel(name: str) -> str:
    """The machine's running kernel."""
    return guest(name, "uname", "-r").strip()


def container_state(name: str) -> str:
    """``RUNNING`` or ``STOPPED``."""
    return guest(name, "lxc-info", "-n", CONTAINER, "-s", "-H").strip()


def checksums(name: str) -> str:
    """Checksums of /etc, /boot with the ESP, the container's config, and the list of packages.

    The files that any boot or login writes are left out by name, each with its reason.
    """
    guest(name, "mkdir", "-p", "/var/lib/gpuhost")
    places = ("/etc", "/boot", "/boot/efi", f"/var/lib/lxc/{CONTAINER}/config", "/var/lib/gpuhost")
    # random-seed is systemd-boot's, new at every boot
    select = ("-xdev", "-type", "f", "-not", "-name", "random-seed", "-exec", "sha256sum", "{}", "+")
    listing = guest(name, "find", *places, *select, timeout_s=300)
    return "\n".join(sorted(set(listing.splitlines()))) + guest(name, "dpkg-query", "-W")


def roll_file(name: str) -> dict[str, Any]:
    """The roll file of a machine that answers."""
    return dict(json.loads(guest(name, "cat", "/var/lib/gpuhost/roll.json")))


def assert_as_before(name: str) -> None:
    """In service on the old kernel, and nothing of the trial left."""
    assert kernel(name).startswith(OLD)
    assert container_state(name) == "RUNNING"
    assert_nothing_left(name)
    assert guest(name, "apt-mark", "showhold").split() == []


def assert_nothing_left(name: str, *settings: str) -> None:
    """No file of a trial's, no one-shot of any kind. What was set for good, and the default by name, may stay."""
    names = ("-path", "*gpuhost*", "-not", "-path", "*gpuhost-lab*")
    left = (
        guest(name, "find", "/etc", "/boot", *names).split()
        + guest(name, "find", "/run", "-maxdepth", "1", *names).split()
    )
    assert set(left) <= {GRUB_DEFAULT_BY_NAME, *BOOT_UNIT, *settings}
    assert "LoaderEntryOneShot" not in guest(name, "ls", "/sys/firmware/efi/efivars")
    if "grubenv" in guest(name, "find", "/boot", "-name", "grubenv"):
        assert not re.search(r"^next_entry=.", guest(name, "cat", "/boot/grub/grubenv"), re.MULTILINE)


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


@dataclass(frozen=True)
class Run:
    """A finished ``gpuhost`` command."""

    exit_status: int
    output: str
    seconds: float
    folder: Path | None

    def document(self, host: str, kind: str) -> dict[str, Any]:
        """One of the run's JSON documents."""
        assert self.folder is not None, self.output
        return dict(json.loads((self.folder / host / f"{kind}.json").read_text()))

    @property
    def record(self) -> dict[str, Any]:
        """``run.json``."""
        assert self.folder is not None, self.output
        return dict(json.loads((self.folder / "run.json").read_text()))

    def causes(self, host: str) -> list[str]:
        """The causes of a host's failures, in order."""
        return [item["cause"] for item in self.record["failures"] if item["host"] == host]


def start_gpuhost(runs: Path, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
    """Start the command with its output in a file."""
    with log.open("wb") as out:
        return subprocess.Popen(
            [str(BIN / "gpuhost"), *arguments, "--runs", str(runs)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def gpuhost(runs: Path, *arguments: str, timeout_s: float = 1800) -> Run:
    """Run the command to its end and collect its records."""
    before = set(runs.glob("*")) if runs.exists() else set()
    runs.mkdir(parents=True, exist_ok=True)
    log = runs.parent / f"{runs.name}-{time.monotonic_ns()}.log"
    begun = time.monotonic()
    process = start_gpuhost(runs, *arguments, log=log)
    try:
        status = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return finished(runs, before, status, log, time.monotonic() - begun)


def finished(runs: Path, before: set[Path], status: int, log: Path, seconds: float) -> Run:
    """The records of the run that is new in a runs folder."""
    new = sorted(path for path in set(runs.glob("*")) - before if path.is_dir())
    output = log.read_text(errors="replace")
    print(output[-6000:])  # pytest shows it where a test fails
    return Run(status, output, seconds, new[-1] if new else None)


def playbook(runs: Path, name: str, *arguments: str, timeout_s: float = 1800) -> Run:
    """Run a playbook by plain ansible-playbook."""
    before = set(runs.glob("*")) if runs.exists() else set()
    runs.mkdir(parents=True, exist_ok=True)
    log = runs.parent / f"{runs.name}-{time.monotonic_ns()}.log"
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "GPUHOST_RUNS_DIR": str(runs),
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    argv = [str(BIN / "ansible-playbook"), str(ROOT / "playbooks" / f"{name}.yml"), "-i", str(INVENTORY), *arguments]
    begun = time.monotonic()
    with log.open("wb") as out:
        status = subprocess.run(
            argv,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        ).returncode
    return finished(runs, before, status, log, time.monotonic() - begun)


def upgrade_without_a_controller(runs: Path, name: str, *arguments: str, log: Path) -> dict[str, Any]:
    """Upgrade a machine and lose its controller right after the reboot command; the roll file that it ends with."""
    command = ("upgrade", "-i", str(INVENTORY), "--limit", name, *arguments)
    process = start_gpuhost(runs, *command, log=log)
    end = time.monotonic() + 900
    while "rebooting" not in log.read_text():
        assert time.monotonic() < end, log.read_text()[-3000:]
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.5)
    kill_tree(process)
    end = time.monotonic() + 900
    while True:
        assert time.monotonic() < end, f"{name} did not come back by itself"
        time.sleep(5)
        try:
            status = roll_file(name)
        except (AssertionError, ValueError, subprocess.TimeoutExpired):
            continue
        if status["state"] != "open":
            return status
