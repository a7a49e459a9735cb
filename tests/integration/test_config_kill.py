"""A container's config is rewritten, and killed at every system call on the way: the old file or the new one, no third.

strace kills for real, at the entry of each call that a first run has shown, once the process that asked for the rewrite
and once the child that writes. Plain LXC's way and Proxmox's way are both driven on an ordinary file system: a real
pmxcfs is not to be had here, so what is proven for it is our own order of calls, not its answers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuhost import config_file
from gpuhost.host_io import Host
from gpuhost.rewrite_io import SUFFIX

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="tracing and private mounts need root"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]

OLD = b"arch: amd64\n" + b"# filler\n" * 900 + b"lxc.cgroup2.devices.allow: c 504:* rwm\n"
NEW = OLD.replace(b"504", b"509")
PATHS = {"plain": "/var/lib/lxc/gpu-ct/config", "pmxcfs": "/etc/pve/nodes/node-a/lxc/101.conf"}
# What Python asks for memory, and when it counts time, is not the same in every run.
UNSTEADY = {"brk", "mmap", "munmap", "mremap", "madvise", "clock_nanosleep", "futex", "restart_syscall", "rt_sigreturn"}
CALL = re.compile(r"^(?:\d+ +)?(\w+)\(", re.MULTILINE)


@dataclass
class Machine:
    """A folder that looks like a host, and a process on it that asks for the rewrite."""

    root: Path
    path: str

    @property
    def file(self) -> Path:
        return self.root / self.path.lstrip("/")

    def reset(self) -> None:
        shutil.rmtree(self.file.parent, ignore_errors=True)
        shutil.rmtree(self.root / "run", ignore_errors=True)
        self.file.parent.mkdir(parents=True)
        self.file.write_bytes(OLD)
        self.file.chmod(0o640)
        os.chown(self.file, 1000, 1000)

    def check(self) -> bytes:
        """What is there: one complete file, its old mode and owner, and nothing beside it."""
        assert [item.name for item in self.file.parent.iterdir()] == [self.file.name]
        data = self.file.read_bytes()
        assert data in (OLD, NEW)
        info = self.file.stat()
        if self.path == PATHS["plain"]:
            assert (info.st_mode & 0o7777, info.st_uid, info.st_gid) == (0o640, 1000, 1000)
        return data


@pytest.fixture(params=list(PATHS))
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    there = Machine(tmp_path, PATHS[request.param])
    if request.param == "pmxcfs":
        for name, text in (("usr/bin/pmxcfs", ""), ("etc/pve/.members", '{"nodename": "node-a", "version": 0}')):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
    return there


@dataclass
class Running:
    """Two processes that have stopped themselves, and a pipe that ends when neither of them lives any more."""

    asker: int
    ended: int
    writer: int = 0


def change(data: bytes) -> bytes:
    return data.replace(b"504", b"509")


def stop_myself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def begin(machine: Machine, stop_writer: bool) -> Running:
    """Fork the asker; it stops itself before the rewrite, or lets its writer do so and tells its number."""
    ended, alive = os.pipe()
    told, tell = os.pipe()
    asker = os.fork()
    if asker:
        os.close(alive)
        os.close(tell)
        running = Running(asker, ended)
        if stop_writer:
            running.writer = int(os.read(told, 20))
        os.close(told)
        wait_for(running.writer or asker, lambda text: "\nState:\tT" in text)
        return running
    try:
        if stop_writer:
            real = os.fork

            def fork() -> int:
                child = real()
                if child == 0:
                    os.write(tell, str(os.getpid()).encode())
                    stop_myself()
                return child

            os.fork = fork
        else:
            stop_myself()
        config_file.update(Host(str(machine.root)), machine.path, change)
    finally:
        os._exit(0)


def wait_for(pid: int, test: Callable[[str], bool]) -> None:
    end = time.monotonic() + 10
    while not test(Path(f"/proc/{pid}/status").read_text()):
        assert time.monotonic() < end
        time.sleep(0.002)


def strace(pid: int, *options: str) -> subprocess.Popen[str]:
    """Attach to a stopped process and let it go on."""
    argv = ["strace", "-q", *options, "-p", str(pid)]
    tracer = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for(pid, lambda text: "\nTracerPid:\t0\n" not in text)
    os.kill(pid, signal.SIGCONT)
    return tracer


def finish(running: Running, tracer: subprocess.Popen[str]) -> str:
    """Wait until asker, writer and tracer have ended; what strace has said."""
    os.read(running.ended, 1)
    os.close(running.ended)
    os.waitpid(running.asker, 0)
    return tracer.communicate(timeout=20)[1]


def calls_of(machine: Machine, of_writer: bool) -> list[tuple[str, int]]:
    """Every system call of the rewrite: its name, and how many of that name there were up to it."""
    machine.reset()
    running = begin(machine, of_writer)
    text = finish(running, strace(running.writer or running.asker))
    assert machine.check() == NEW
    seen: Counter[str] = Counter()
    found = []
    for name in CALL.findall(text):
        seen[name] += 1
        found.append((name, seen[name]))
    return found


@pytest.mark.parametrize("of_writer", [False, True], ids=["asker", "writer"])
def test_killed_at_every_system_call(machine: Machine, of_writer: bool) -> None:
    calls = calls_of(machine, of_writer)
    expected = {"openat", "write", "fsync", "rename"} if of_writer else {"openat", "flock", "pipe2", "clone", "wait4"}
    assert expected <= {name for name, _ in calls}
    results: Counter[bytes] = Counter()
    missed = []
    for name, count in calls:
        machine.reset()
        running = begin(machine, of_writer)
        killed = strace(running.writer or running.asker, "-e", f"inject={name}:signal=KILL:when={count}")
        text = finish(running, killed)
        if "killed by SIGKILL" not in text and name not in UNSTEADY:
            missed.append((name, count))
        results[machine.check()] += 1
        # Nobody's lock is left, and the next run ends it.
        assert config_file.update(Host(str(machine.root)), machine.path, change)[1] == NEW
        assert machine.check() == NEW
    assert missed == []
    assert set(results) == {OLD, NEW}
    assert sum(results.values()) == len(calls)


def test_both_die_at_once_and_the_next_run_cleans_up(machine: Machine) -> None:
    """As when the machine dies: the one case in which a second name is left. It is always the same, and nobody's."""
    machine.reset()
    running = begin(machine, stop_writer=True)
    os.kill(running.asker, signal.SIGKILL)
    finish(running, strace(running.writer, "-e", "inject=rename:signal=KILL:when=1"))
    leftover = machine.file.with_name(machine.file.name + SUFFIX)
    assert sorted(machine.file.parent.iterdir()) == sorted([machine.file, leftover])
    assert machine.file.read_bytes() == OLD
    assert config_file.update(Host(str(machine.root)), machine.path, change) == (OLD, NEW)
    assert machine.check() == NEW


def test_a_leftover_goes_also_where_nothing_has_to_be_changed(machine: Machine) -> None:
    machine.reset()
    machine.file.write_bytes(NEW)
    machine.file.with_name(machine.file.name + SUFFIX).write_bytes(b"half")
    before = machine.file.stat()
    assert config_file.update(Host(str(machine.root)), machine.path, change) == (NEW, NEW)
    assert machine.check() == NEW
    assert machine.file.stat() == before


ON_A_FULL_DISK = """
import json, os, subprocess, sys
from pathlib import Path
from gpuhost import config_file
from gpuhost.errors import Stop
from gpuhost.host_io import Host
root, path, options = sys.argv[1:]
file = Path(root + path)
folder = file.parent
old = b"lxc.cgroup2.devices.allow: c 504:* rwm\\n" * 90
subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], check=True)
file.write_bytes(old)
if "nr_inodes" not in options:
    with open(folder / "fill", "wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(4096))
        except OSError:
            pass
before = file.stat()
try:
    config_file.update(Host(root), path, lambda data: data.replace(b"504", b"509"))
    found = {"cause": None}
except Stop as error:
    found = {"cause": error.blocker.cause, "observed": error.blocker.observed, "object": error.blocker.object}
kept = file.read_bytes() == old and file.stat() == before
names = sorted(set(os.listdir(folder)) - {"fill"})
print(json.dumps({**found, "kept": kept, "names": names}))
"""


@pytest.mark.parametrize("options", ["size=16k", "size=1m,nr_inodes=2"], ids=["no room", "no inode"])
def test_a_full_disk_keeps_the_old_file(machine: Machine, options: str) -> None:
    machine.reset()
    result = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", ON_A_FULL_DISK,
         str(machine.root), machine.path, options],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert json.loads(result.stdout) == {
        "cause": "lxc.config_not_written",
        "observed": "can't be written: No space left on device",
        "object": machine.path,
        "kept": True,
        "names": [machine.file.name],
    }
