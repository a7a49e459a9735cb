"""What stops a roll before any container does, on a real machine: a damaged initramfs, a driver that won't compile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.full.scenarios import SYSTEMD_BOOT
from tests.lab.lab import CONTAINER, INVENTORY, OLD, TARGET, container_state, gpuhost, guest, kernel, lab

pytestmark = [pytest.mark.lab]
TOO_OLD = """
import glob
for path in glob.glob("/usr/src/nvidia-*/nvidia.c"):
    text = open(path).read()
    guard = "#include <linux/version.h>\\n#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)\\n"
    open(path, "w").write(guard + "#error this driver knows no 6.12\\n#endif\\n" + text)
"""


def init_of_container(name: str) -> str:
    """The process id of the container's init: another one after a restart."""
    return guest(name, "lxc-info", "-n", CONTAINER, "-p", "-H").strip()


def test_a_damaged_initramfs(runs: Path, machine: str, both_kernels: Callable[[str], str]) -> None:
    lab("up", "--name", machine, "--from", both_kernels(SYSTEMD_BOOT))
    prepare = ("prepare", "-i", str(INVENTORY), "--limit", machine, "--target", TARGET)
    assert gpuhost(runs, *prepare).exit_status == 0
    init = init_of_container(machine)
    release = next(
        line.removeprefix("vmlinuz-")
        for line in guest(machine, "ls", "/boot").split()
        if line.startswith(f"vmlinuz-{TARGET}")
    )
    image = f"/boot/initrd.img-{release}"
    guest(machine, "truncate", "--size=-1M", image)  # as a full disk leaves it
    guest(machine, "kernel-install", "add", release, f"/boot/vmlinuz-{release}", image)

    run = gpuhost(runs, *prepare)

    assert run.exit_status == 5, run.output[-3000:]
    assert set(run.causes(machine)) == {"boot.initramfs_damaged"}
    assert image in run.output
    assert init_of_container(machine) == init
    # the way out that it names
    guest(machine, "update-initramfs", "-u", "-k", release, timeout_s=600)
    assert gpuhost(runs, *prepare).exit_status == 0
    assert gpuhost(runs, "rollback", "-i", str(INVENTORY), "--limit", machine).exit_status == 0
    assert init_of_container(machine) == init


def test_a_driver_that_does_not_compile_on_the_new_kernel(runs: Path, machine: str) -> None:
    lab("up", "--name", machine)
    guest(machine, "python3", "-c", TOO_OLD)
    init = init_of_container(machine)

    run = gpuhost(runs, "upgrade", "-i", str(INVENTORY), "--limit", machine, "--target", TARGET)

    assert run.exit_status == 5, run.output[-3000:]
    assert set(run.causes(machine)) == {"dkms.not_built"}  # the step, and the play that ends with it
    assert "this driver knows no 6.12" in run.output
    assert kernel(machine).startswith(OLD)
    assert container_state(machine) == "RUNNING"
    assert init_of_container(machine) == init
    # the package system is in order, and what boots by itself is the old kernel
    assert guest(machine, "dpkg", "--audit") == ""
    assert "linux-image-6.12" not in guest(machine, "dpkg-query", "-W")
    assert "vmlinuz-6.12" not in guest(machine, "ls", "/boot")
    guest(machine, "apt-get", "-s", "install", "-y", "lxc")
    assert "6.12" not in guest(machine, "ls", "/boot/efi/loader/entries")
