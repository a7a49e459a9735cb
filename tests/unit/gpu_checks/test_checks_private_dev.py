"""The whole command device_access against a /dev of its own, and the texts that it reads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_checks.device_access import parse_driver_version, parse_excluded_minor

ROOT = Path(__file__).resolve().parents[3]
# Majors 120 to 127 are for local use; one that nobody registered gives ENXIO.
FREE_MAJOR = 125
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root")


def test_driver_version_of_both_module_kinds():
    closed = (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: 12.2.0"
    )
    assert parse_driver_version(closed) == "535.104.05"
    assert parse_driver_version("GCC version: gcc version 15.3.0 (GCC)") is None


def test_excluded_minor():
    assert parse_excluded_minor("Device Minor: \t 3\nGPU Excluded:\t Yes\n") == 3
    assert parse_excluded_minor("Device Minor: \t 3\nGPU Excluded:\t No\n") is None
    assert parse_excluded_minor("") is None


def private_dev(script):
    """Run a shell script in a mount namespace of its own, with an empty /dev, and the check after it."""
    whole = (
        "set -e; mount -t tmpfs tmpfs /dev; mknod -m 666 /dev/null c 1 3; "
        f"{script}; exec {sys.executable} -m gpu_checks device_access --json --expect-gpus 1"
    )
    done = subprocess.run(["unshare", "-m", "sh", "-c", whole], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode and not done.stdout:
        pytest.skip(f"no private /dev here: {done.stderr.strip()}")
    assert done.stderr == ""
    return {each["name"]: each for each in json.loads(done.stdout)["measurements"]}


FAKE_DEVICES = (
    "printf 'Character devices:\\n%s nvidia\\n%s nvidia-uvm\\n' {0} {0} >/dev/d; mount --bind /dev/d /proc/devices"
)
NODES = "mknod -m 666 /dev/nvidiactl c {0} 255; mknod -m 666 /dev/nvidia0 c {0} 0; mknod -m 666 /dev/nvidia-uvm c {0} 0"


@needs_root
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (NODES.format(195), "driver.not_loaded"),
        (FAKE_DEVICES.format(FREE_MAJOR), "device.node_missing"),
        (f"{FAKE_DEVICES.format(FREE_MAJOR)}; {NODES.format(195)}", "device.node_wrong_major"),
        (f"{FAKE_DEVICES.format(FREE_MAJOR)}; {NODES.format(FREE_MAJOR)}", "device.open_failed"),
        (f"{FAKE_DEVICES.format(FREE_MAJOR)}; {NODES.format(FREE_MAJOR)}; mount -o remount,nodev /dev",
         "device.denied_mode"),
    ],
)  # fmt: skip
def test_whole_command_in_a_private_dev(script, expected):
    seen = private_dev(script)
    assert (seen["device_access"]["status"], seen["device_access"]["cause"]) == ("error", expected)
    assert seen["device_access.nvidiactl"]["cause"] == expected
    if "nodev" in script:
        assert "mounted nodev" in seen["device_access"]["detail"]["message"]
