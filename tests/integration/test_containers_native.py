"""Plain LXC's side of containers.py with the real programs: found, stopped without a kill, started, ready, not ours."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .lxc_machine import LXC_FOLDER, Machine, table

pytestmark = [
    pytest.mark.play,
    pytest.mark.skipif(os.geteuid() != 0, reason="LXC with device rules needs root"),
    pytest.mark.skipif(shutil.which("lxc-start") is None, reason="lxc is not installed"),
]
CALL = """
import json, sys
from gpuhost import containers, foreign_workloads
from gpuhost.errors import Stop
from gpuhost.host_io import Host
host, (what, *names) = Host(), sys.argv[1:]
found = {item.name: item for item in containers.containers(host)}
def act():
    if what == "look":
        ready = [name for name in found if containers.is_ready(host, found[name])]
        blocks = [item.observed for item in foreign_workloads.in_the_way(host)]
        return {"all": list(found), "running": sorted(containers.running(host)), "ready": ready, "blocks": blocks}
    if what == "stop":
        return containers.stop(host, found[names[0]], 2)
    return containers.start(host, found[names[0]])
try:
    print(json.dumps(act()))
except Stop as error:
    print(json.dumps({"cause": error.blocker.cause, "observed": error.blocker.observed}))
"""
DEAF = "import signal\nsignal.signal(signal.SIGPWR, signal.SIG_IGN)\nwhile True: signal.pause()\n"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    there = Machine(tmp_path_factory.mktemp("machine"), table({}))
    there.container("late", b"lxc.start.order = 9\n")
    there.container("early", b"lxc.start.order = 1\n")
    yield there
    for name in ("late", "early"):
        there.run("lxc-stop", "-n", name, "-k")
    there.close()


def call(machine: Machine, *arguments: str) -> Any:
    return machine.python(CALL, *arguments)


def test_a_container_from_stop_to_ready(machine: Machine) -> None:
    both = {"all": ["early", "late"], "running": ["early", "late"], "ready": ["early", "late"], "blocks": []}
    assert call(machine, "look") == both
    call(machine, "stop", "early")
    assert call(machine, "look") == {**both, "running": ["late"], "ready": ["late"]}
    assert call(machine, "start", "early") is True
    assert call(machine, "start", "early") is False
    assert call(machine, "look") == both


def test_what_does_not_stop_is_not_killed(machine: Machine) -> None:
    init = machine.place(f"{LXC_FOLDER}/late/rootfs/init.py")
    text = init.read_text()
    init.write_text(DEAF)
    try:
        machine.restart("late")
        answer = call(machine, "stop", "late")
        assert answer["cause"] == "workload.not_stopped"
        assert "late" in call(machine, "look")["running"]
    finally:
        init.write_text(text)
        machine.run("lxc-stop", "-n", "late", "-k")
        machine.start("late")


def test_what_does_not_start_says_so(machine: Machine) -> None:
    call(machine, "stop", "early")
    config = machine.place(f"{LXC_FOLDER}/early/config")
    text = config.read_bytes()
    config.write_bytes(text + b"lxc.mount.entry = /dev/nvidia-uvm dev/nvidia-uvm none bind,create=file 0 0\n")
    try:
        answer = call(machine, "start", "early")
        assert answer["cause"] == "workload.not_back"
        assert "did not start" in answer["observed"]
    finally:
        config.write_bytes(text)
    assert call(machine, "start", "early") is True


def test_a_container_of_another_path_blocks(machine: Machine) -> None:
    """As Incus and LXD run theirs: with liblxc, beside /var/lib/lxc."""
    other = "/var/lib/other/containers"
    machine.must("mkdir", "-p", f"{other}/c1")
    config = machine.place(f"{LXC_FOLDER}/early/config").read_bytes()
    machine.write(f"{other}/c1/config", config.replace(b"lxc.uts.name = early", b"lxc.uts.name = c1"))
    machine.must("lxc-start", "-P", other, "-n", "c1")
    try:
        (observed,) = call(machine, "look")["blocks"]
        assert observed.startswith(f"runs from {other}: ")
    finally:
        machine.must("lxc-stop", "-P", other, "-n", "c1", "-k")


def test_a_running_container_whose_config_is_gone_blocks(machine: Machine) -> None:
    config: Path = machine.place(f"{LXC_FOLDER}/late/config")
    text = config.read_bytes()
    config.unlink()
    try:
        assert call(machine, "look")["blocks"] == ["runs, and its config is gone"]
    finally:
        config.write_bytes(text)
