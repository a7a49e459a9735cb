"""device_access on a real NVIDIA driver: the archive as it is shipped, run as root and as a user."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_checks.build_zipapp import build
from gpu_checks.nvidia_ioctl import ask_version

VERSION_FILE = Path("/proc/driver/nvidia/version")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not VERSION_FILE.exists(), reason=f"no NVIDIA driver: {VERSION_FILE} does not exist"),
]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("build") / "gpu_checks.pyz"
    build(path)
    return path


def measure(archive, *arguments):
    done = subprocess.run(
        [sys.executable, str(archive), "device_access", "--json", *arguments],
        capture_output=True, text=True, check=True, timeout=180,
    )  # fmt: skip
    assert done.stderr == ""
    return {each["name"]: each for each in json.loads(done.stdout)["measurements"]}


def gpu_nodes():
    return [name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)]


def test_every_node_opens_and_answers(archive):
    seen = measure(archive)
    whole = seen["device_access"]
    assert (whole["status"], whole["value"]) == ("measured", len(gpu_nodes()))
    assert seen["device_access.nvidia-uvm"]["detail"]["query"]["answer"] == "rmStatus 0x0"
    driver = whole["detail"]["driver"]
    assert driver["version_query"] in VERSION_FILE.read_text()
    assert driver["versions_agree"] is True
    assert driver["libcuda_found"]


@pytest.mark.parametrize("more", [1, 7])
def test_a_gpu_too_few_fails(archive, more):
    whole = measure(archive, "--expect-gpus", str(len(gpu_nodes()) + more))["device_access"]
    assert (whole["status"], whole["cause"]) == ("error", "device.gpu_count")


def test_the_right_number_passes(archive):
    assert measure(archive, "--expect-gpus", str(len(gpu_nodes())))["device_access"]["status"] == "measured"


def test_only_nvidiactl_answers_for_the_version():
    file = os.open(f"/dev/{gpu_nodes()[0]}", os.O_RDWR | os.O_CLOEXEC)
    try:
        assert ask_version(file).errno_name == errno.errorcode[errno.EINVAL]
    finally:
        os.close(file)
