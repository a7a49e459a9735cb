"""What no fake can prove of gpu_runtime: limits that a real LXC gives, and systemd's own view of our unit files.

A real driver of this kernel plays nvidia-uvm's part. Nothing outside of the test's own namespaces and folders is
touched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuhost import gpu_state_unit, persistenced

from .lxc_machine import PYTHON, ROOT, Machine, real_drivers, table

UVM = "/dev/nvidia-uvm"
MOUNT = f"lxc.mount.entry = {UVM} {UVM[1:]} none bind,optional,create=file\n"
LOOK = """
import json, sys
from dataclasses import asdict
from gpuhost import memlock, tuning
from gpuhost.host_io import Host
host = Host()
facts = memlock.read(host)
wanted = memlock.wanted(facts, sys.argv[1])
results = tuning.apply(host, wanted.writes, False)
if sys.argv[2:] == ["revert"]:
    results = tuning.revert(host, False)
print(json.dumps({
    "may_raise": facts.may_raise,
    "containers": {item.name: [item.value, item.running] for item in facts.containers},
    "processes": [[item.name, item.limit, item.container, item.lxc] for item in facts.processes],
    "findings": {item.id: [item.severity, item.observed] for item in wanted.findings},
    "lines": [item.line for item in results if item.status == "written"],
}))
"""
# Opens a node and keeps it, in the background.
HOLD = """
import os, sys, time
handle = os.open(sys.argv[1], os.O_RDWR | os.O_NONBLOCK)
if os.fork() == 0:
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    time.sleep(600)
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="LXC with device rules, and mknod, need root")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    drivers = real_drivers(tmp_path)
    assert drivers, "a driver that opens at minors 0 and 1 is needed for a proof"
    made = Machine(tmp_path, table({"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": drivers[0].major}))
    made.node(UVM, drivers[0].major, 0)
    yield made
    made.close()


def look(machine: Machine, wish: str = "report", *more: str) -> dict[str, Any]:
    found: dict[str, Any] = machine.python(LOOK, wish, *more)
    return found


@pytest.mark.play
@needs_root
def test_the_limit_that_processes_really_have(machine: Machine, tmp_path: Path) -> None:
    """A container has the limit of whoever starts it, where its config says nothing."""
    major = real_drivers(tmp_path)[0].major
    path = machine.container("ct", f"lxc.cgroup2.devices.allow = c {major}:* rwm\n{MOUNT}# the end".encode())
    config = machine.place(path).read_bytes()
    machine.must("lxc-stop", "-n", "ct", "-t", "10")
    machine.must("prlimit", "--memlock=1048576:1048576", "lxc-start", "-n", "ct")
    before = look(machine)
    assert before["containers"] == {"ct": [None, "1048576"]}
    assert before["findings"]["containers.memlock"] == ["p0_runtime", f"{path} says nothing, runs with 1 MiB"]

    # A process inside the container has its limit; one beside it is no container's.
    machine.must("lxc-attach", "-n", "ct", "--", PYTHON, "-I", "-S", "-c", HOLD, UVM)
    machine.must("prlimit", "--memlock=65536:65536", PYTHON, "-I", "-S", "-c", HOLD, UVM)
    held = look(machine)
    name = Path(PYTHON).name[:15]
    inside, beside = sorted(held["processes"], key=lambda item: item[1] == "65536")
    assert (inside[0], inside[2:]) == (name, ["ct", True])
    assert beside == [name, "65536", "", False]
    assert re.search(rf"{name} \(\d+\) runs with 64 KiB", held["findings"]["gpu.service_memlock"][1])

    applied = look(machine, "apply")
    if not before["may_raise"]:
        # Root of this machine may not raise a limit: with the line the container would not start.
        assert (applied["lines"], machine.place(path).read_bytes()) == ([], config)
        return
    assert applied["lines"] == [f"{path}: nothing -> unlimited"]
    machine.restart("ct")
    after = look(machine, "apply")
    assert (after["containers"], after["lines"]) == ({"ct": ["unlimited", "unlimited"]}, [])
    assert after["findings"]["containers.memlock"][0] == "good"
    assert look(machine, "report", "revert")["lines"] == [f"{path}: unlimited -> removed"]
    assert machine.place(path).read_bytes() == config


# --- systemd's own programs, on a tree of ours; no systemd has to run


def systemctl(tree: Path, *words: str) -> str:
    if shutil.which("systemctl") is None:
        pytest.skip("no systemctl")
    return subprocess.run(
        ["systemctl", f"--root={tree}", *words], capture_output=True, text=True, check=False
    ).stdout.strip()


def test_a_static_unit_is_enabled_by_its_drop_in_and_static_again_without_it(tmp_path: Path) -> None:
    own = tmp_path / f"usr/lib/systemd/system/{persistenced.UNIT}"
    own.parent.mkdir(parents=True)
    text = (ROOT / "tests/fixtures/gpu/synthetic/persistenced_ubuntu.service").read_text()
    own.write_text(text)
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    assert systemctl(tmp_path, "is-enabled", persistenced.UNIT) == "static"
    drop_in = tmp_path / persistenced.DROP_IN[1:]
    drop_in.parent.mkdir()
    content = persistenced.drop_in_text(persistenced.Facts(unit_text=text, containers=("lxc.service",)))
    assert content is not None
    drop_in.write_text(content)
    systemctl(tmp_path, "enable", persistenced.UNIT)
    assert systemctl(tmp_path, "is-enabled", persistenced.UNIT) == "enabled"
    assert (tmp_path / f"etc/systemd/system/multi-user.target.wants/{persistenced.UNIT}").is_symlink()
    systemctl(tmp_path, "disable", persistenced.UNIT)
    drop_in.unlink()
    assert systemctl(tmp_path, "is-enabled", persistenced.UNIT) == "static"


def test_our_unit_and_drop_in_pass_systemds_own_check(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    text = (ROOT / "tests/fixtures/gpu/synthetic/persistenced_ubuntu.service").read_text()
    facts = persistenced.Facts(unit_text=text, containers=("lxc.service",))
    (tmp_path / persistenced.UNIT).write_text(text)
    (tmp_path / gpu_state_unit.UNIT).write_text(gpu_state_unit.TEXT)
    (tmp_path / f"{persistenced.UNIT}.d").mkdir()
    (tmp_path / f"{persistenced.UNIT}.d/50-gpuhost.conf").write_text(persistenced.drop_in_text(facts) or "")
    result = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / persistenced.UNIT), str(tmp_path / gpu_state_unit.UNIT)],
        capture_output=True, text=True, check=False, env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )  # fmt: skip
    ours = [line for line in result.stderr.splitlines() if str(tmp_path) in line or "gpuhost" in line]
    # The programs are not on this machine; nothing else may be said, and nothing of a cycle.
    assert [line for line in ours if "not executable" not in line and "syslog.target" not in line] == []
    assert "cycle" not in result.stderr
