"""A machine that loses its power while a container's config is being rewritten: the old file or the new one, whole."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.full.scenarios import SYSTEMD_BOOT
from tests.lab.lab import CONTAINER, INVENTORY, gpuhost, guest, lab

pytestmark = [pytest.mark.lab]
FOLDER = f"/var/lib/lxc/{CONTAINER}"
CONFIG = f"{FOLDER}/config"
LOOP = """
import sys
sys.path.insert(0, "/var/lib/gpuhost/gpuhost.pyz")
from gpuhost import config_file
from gpuhost.host_io import Host
host, path = Host(), sys.argv[1]
old = host.read_bytes(path)
new = old.replace(b"c 195:* rwm", b"c 195:* rw ")
assert new != old
with open("/run/rewrites", "w") as count:
    while True:
        for text in (new, old):
            config_file.update(host, path, lambda _: text)
            count.write(".")
            count.flush()
"""


@pytest.mark.parametrize("after_s", [2.0, 3.7, 5.3])
def test_a_power_cut_while_a_loop_rewrites(
    runs: Path, machine: str, both_kernels: Callable[[str], str], after_s: float
) -> None:
    lab("up", "--name", machine, "--from", both_kernels(SYSTEMD_BOOT))
    on_host = ("-i", str(INVENTORY), "--limit", machine)
    assert gpuhost(runs, "reconcile", *on_host).exit_status == 0  # brings the host its own copy of the code
    old = guest(machine, "cat", CONFIG)
    new = old.replace("c 195:* rwm", "c 195:* rw ")
    before = set(guest(machine, "ls", "-A", FOLDER).split())
    guest(machine, "sync")
    guest(machine, "systemd-run", "--quiet", "--collect", "/usr/bin/python3", "-c", LOOP, CONFIG)
    end = time.monotonic() + 120
    while not guest(machine, "find", "/run", "-maxdepth", "1", "-name", "rewrites", "-size", "+0"):
        assert time.monotonic() < end, "the loop did not start"
    time.sleep(after_s)
    done = len(guest(machine, "cat", "/run/rewrites"))
    lab("kill", "--name", machine)
    assert done > 5, "too few rewrites for a cut to fall into one"

    lab("start", "--name", machine)

    assert guest(machine, "cat", CONFIG) in (old, new)
    assert gpuhost(runs, "reconcile", *on_host).exit_status == 0
    assert set(guest(machine, "ls", "-A", FOLDER).split()) == before
