"""device_access on real device nodes that mknod made, and on fakes for what only a GPU can answer."""

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_checks import device_access
from gpu_checks.device_access import Roots, check
from gpu_checks.nvidia_ioctl import Query
from gpu_checks.registry import Options

ROOT = Path(__file__).resolve().parents[3]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root")

# 1:3 is /dev/null: it opens everywhere, and answers no ioctl (ENOTTY).
NULL_MAJOR = 1
LOADED = "Character devices:\n  1 nvidia\n  1 nvidiactl\n  1 nvidia-uvm\n  1 nvidia-caps\n\nBlock devices:\n"
# Majors 120 to 127 are for local use; one that nobody registered gives ENXIO.
FREE_MAJOR = 125


class Collected:
    def __init__(self):
        self.by_name, self.order, self.steps = {}, [], []

    def add(self, measurement):
        json.dumps(measurement.detail)  # it must be able to travel
        self.by_name[measurement.name] = measurement
        self.order.append(measurement.name)

    def doing(self, what):
        self.steps.append(what)


class Box:
    """A /dev and a /proc of our own."""

    def __init__(self, folder):
        self.dev, self.proc = folder / "dev", folder / "proc"
        self.dev.mkdir()
        (self.dev / "nvidia-caps").mkdir()
        self.proc.mkdir()
        self.devices(LOADED)

    def devices(self, text):
        (self.proc / "devices").write_text(text)

    def node(self, name, major=NULL_MAJOR, minor=3, mode=0o666):
        os.mknod(self.dev / name, stat.S_IFCHR | mode, os.makedev(major, minor))
        os.chmod(self.dev / name, mode)

    def all_nodes(self, gpus=2):
        for name in ["nvidiactl", *(f"nvidia{number}" for number in range(gpus)), "nvidia-uvm"]:
            self.node(name)

    def run(self, expect_gpus=None):
        collected = Collected()
        check(Options(expect_gpus=expect_gpus), collected, Roots(str(self.dev), str(self.proc)))
        assert collected.order[-1] == "device_access"
        return collected


@pytest.fixture
def box(tmp_path):
    return Box(tmp_path)


@pytest.fixture
def answering(monkeypatch):
    """A driver that answers as a good one does."""
    good = {
        "control": Query("check_version", True, "580.159.04", driver_version="580.159.04"),
        "gpu": Query("wait_open_complete", True, "rc 0"),
        "uvm": Query("uvm_initialize", True, "rmStatus 0x0"),
    }
    monkeypatch.setattr(device_access, "QUERIES", {kind: (lambda _file, kind=kind: good[kind]) for kind in good})
    return good


def cause(collected, name=""):
    return collected.by_name["device_access" + (name and f".{name}")].cause


def test_no_driver_is_the_first_reason(box):
    box.devices("Character devices:\n  1 mem\n")
    seen = box.run(expect_gpus=8)
    assert {cause(seen, name) for name in ("nvidiactl", "nvidia0", "nvidia-uvm", "")} == {"driver.not_loaded"}
    assert cause(seen, "gpu_count") == "device.gpu_count"
    assert seen.by_name["device_access"].detail["first_blocking"] == f"{box.dev}/nvidiactl"
    assert seen.by_name["device_access"].value == 0


@needs_root
def test_all_good(box, answering):
    box.all_nodes(gpus=2)
    seen = box.run(expect_gpus=2)
    assert seen.order == [
        "device_access.nvidiactl", "device_access.nvidia0", "device_access.nvidia1", "device_access.nvidia-uvm",
        "device_access.gpu_count", "device_access",
    ]  # fmt: skip
    assert {each.status for each in seen.by_name.values()} == {"measured"}
    assert seen.by_name["device_access"].value == 2
    assert seen.steps[1] == f"open and query {box.dev}/nvidia0"
    detail = seen.by_name["device_access.nvidia0"].detail
    assert (detail["open"], detail["major"], detail["minor"], detail["driver_majors"]) == ("ok", 1, 3, [1])
    assert seen.by_name["device_access.nvidia0"].value > 0


@needs_root
@pytest.mark.parametrize("expected", [1, 3])
def test_another_number_of_gpus(box, answering, expected):
    box.all_nodes(gpus=2)
    seen = box.run(expected)
    assert (cause(seen), seen.by_name["device_access"].value) == ("device.gpu_count", 2)
    assert f"2 GPU device nodes, expected {expected}" in seen.by_name["device_access"].detail["message"]


@needs_root
def test_a_node_that_blocks_comes_before_the_count(box, answering):
    box.all_nodes(gpus=2)
    os.unlink(box.dev / "nvidia-uvm")
    assert cause(box.run(expect_gpus=8)) == "device.node_missing"


@needs_root
def test_uvm_alone_not_loaded(box, answering):
    box.all_nodes()
    box.devices(LOADED.replace("  1 nvidia-uvm\n", ""))
    seen = box.run()
    assert (cause(seen, "nvidiactl"), cause(seen, "nvidia-uvm"), cause(seen)) == (
        None, "driver.not_loaded", "driver.not_loaded",
    )  # fmt: skip


@needs_root
def test_moved_major_is_seen_and_the_strangers_device_is_not_opened(box, answering):
    box.all_nodes()
    box.devices(LOADED.replace("  1 nvidia-uvm", "509 nvidia-uvm"))
    seen = box.run()
    assert cause(seen) == "device.node_wrong_major"
    detail = seen.by_name["device_access.nvidia-uvm"].detail
    assert (detail["major"], detail["driver_majors"], detail["open"]) == (1, [509], "not_tried")


@needs_root
def test_a_fifo_in_a_nodes_place_does_not_block(box, answering):
    box.all_nodes()
    os.unlink(box.dev / "nvidia1")
    os.mkfifo(box.dev / "nvidia1")
    seen = box.run()
    assert (cause(seen), seen.by_name["device_access"].value) == ("device.node_not_char", 1)


@needs_root
def test_an_empty_file_as_lxc_leaves_it(box, answering):
    box.all_nodes()
    os.unlink(box.dev / "nvidiactl")
    (box.dev / "nvidiactl").touch()
    assert cause(box.run()) == "device.node_not_char"


@needs_root
def test_a_major_without_a_device_behind_it(box):
    box.devices(LOADED.replace("  1 nvidia", f"{FREE_MAJOR} nvidia"))
    for name in ("nvidiactl", "nvidia0", "nvidia-uvm"):
        box.node(name, major=FREE_MAJOR)
    seen = box.run()
    assert cause(seen) == "device.open_failed"
    assert seen.by_name["device_access.nvidiactl"].detail["open"] == "ENXIO"


@needs_root
def test_a_driver_that_does_not_answer(box):
    box.all_nodes()
    seen = box.run()
    assert cause(seen) == cause(seen, "nvidiactl") == cause(seen, "nvidia-uvm") == "device.query_failed"
    assert seen.by_name["device_access.nvidiactl"].detail["query"]["errno_name"] == "ENOTTY"
    # An older driver does not know the question for a GPU; its blocking open is the proof.
    assert cause(seen, "nvidia0") is None


def as_nobody(box, code):
    """Run code with `box_check()` as a user without rights."""
    text = (
        "import json, os, sys\n"
        "from gpu_checks import device_access\n"
        "from gpu_checks.registry import Options\n"
        "out = {}\n"
        "class R:\n"
        "    def add(self, m): out[m.name] = [m.status, m.cause]\n"
        "    def doing(self, what): pass\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        f"device_access.check(Options(), R(), device_access.Roots({str(box.dev)!r}, {str(box.proc)!r}))\n"
        f"{code}\nprint(json.dumps(out))\n"
    )
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture
def open_box(tmp_path_factory):
    """A box below a folder that every user may search; pytest's own are private."""
    folder = Path("/tmp") / f"gpu-checks-box-{os.getpid()}"
    folder.mkdir()
    os.chmod(folder, 0o755)
    yield Box(folder)
    shutil.rmtree(folder)


@needs_root
def test_mode_refuses_a_user(open_box):
    open_box.all_nodes()
    os.chmod(open_box.dev / "nvidia-uvm", 0o660)
    open_box.node("nvidia-caps/nvidia-cap1", mode=0o400)
    out = as_nobody(open_box, "")
    assert out["device_access.nvidia-uvm"] == ["error", "device.denied_mode"]
    # MIG's configuration node is root's: known, and no error.
    assert out["device_access.nvidia-caps/nvidia-cap1"] == ["not_measured", "device.denied_mode"]


@needs_root
def test_optional_nodes_are_told_and_do_not_fail_the_whole(box, answering):
    box.all_nodes()
    box.node("nvidia-uvm-tools", major=504)
    box.node("nvidia-caps/nvidia-cap2")
    seen = box.run()
    assert cause(seen) is None
    assert cause(seen, "nvidia-uvm-tools") == "device.node_wrong_major"
    assert cause(seen, "nvidia-caps/nvidia-cap2") is None
    assert seen.by_name["device_access"].detail["optional_errors"] == ["device_access.nvidia-uvm-tools"]


def refuse_open(monkeypatch, name, number):
    real = os.open

    def open_or_not(path, flags, *rest, **more):
        if str(path).endswith(name):
            raise OSError(number, os.strerror(number), path)
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(device_access.os, "open", open_or_not)


@needs_root
def test_device_rule_refuses_a_required_node(box, answering, monkeypatch):
    box.all_nodes()
    refuse_open(monkeypatch, "nvidia-uvm", errno.EPERM)
    seen = box.run()
    assert (cause(seen), seen.by_name["device_access"].value) == ("device.denied_cgroup", 2)
    assert seen.by_name["device_access.nvidia-uvm"].detail["open"] == "EPERM"


@needs_root
def test_device_rule_refuses_a_capability(box, answering, monkeypatch):
    box.all_nodes()
    box.node("nvidia-caps/nvidia-cap1")
    refuse_open(monkeypatch, "nvidia-cap1", errno.EPERM)
    seen = box.run()
    capability = seen.by_name["device_access.nvidia-caps/nvidia-cap1"]
    assert (cause(seen), capability.status, capability.cause) == (None, "error", "device.denied_cgroup")


@needs_root
def test_a_gpu_that_the_driver_holds_back_is_not_blamed_on_the_container(box, answering, monkeypatch):
    box.all_nodes()
    refuse_open(monkeypatch, "nvidia1", errno.EPERM)
    folder = box.proc / "driver/nvidia/gpus/0000:00:07.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("Model: \t NVIDIA H200\nDevice Minor: \t 3\nGPU Excluded:\t Yes\n")
    assert cause(box.run()) == "device.open_failed"


@needs_root
def test_versions_of_query_and_proc_are_compared(box, answering):
    box.all_nodes()
    (box.proc / "driver/nvidia").mkdir(parents=True)
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (nixbld@)\n"
    for version, agree in (("580.159.04", True), ("590.48.01", False)):
        (box.proc / "driver/nvidia/version").write_text(line.format(version))
        driver = box.run().by_name["device_access"].detail["driver"]
        assert (driver["version_query"], driver["version_proc"], driver["versions_agree"]) == (
            "580.159.04", version, agree,
        )  # fmt: skip


def test_without_proc_devices_nothing_is_claimed(box):
    os.unlink(box.proc / "devices")
    with pytest.raises(OSError, match="devices"):
        box.run()
