"""The check ``health``: each fault with its own cause, on libraries and a sysfs whose answers the test chooses."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys

import pytest
from cuda_stage import HERE, Stage, compile_library, needs_stage
from fake_gpu_host import SECOND, Host, cause, compile_both

from gpu_checks.health import check as health
from gpu_checks.health import xids as health_xids
from gpu_checks.host_view import Record
from gpuhost import xids as audit

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) for the stub libraries")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    return compile_both(tmp_path_factory.mktemp("lib"))


@pytest.fixture
def host(tmp_path, libraries, monkeypatch):
    return Host(tmp_path, libraries, monkeypatch)


def test_a_healthy_host(host):
    found = host.look(expect_gpus=2)
    print({name: (each.value, each.unit, each.status, each.detail.get("message")) for name, each in found.items()})
    assert {name: (each.status, each.value) for name, each in found.items()} == {
        "health.gpu0": ("measured", 0),
        "health.gpu1": ("measured", 0),
        "health.nvlink.gpu0": ("measured", 18),
        "health.nvlink.gpu1": ("measured", 18),
        "health.link.gpu0": ("measured", 16),
        "health.link.gpu1": ("measured", 16),
        "health": ("measured", 2),
    }
    detail = found["health.gpu1"].detail
    assert (detail["pci_bus_id"], detail["uuid"]) == (SECOND, "GPU-00000000-0000-0000-0000-000000000001")
    assert (detail["xids"], detail["recovery"], detail["state"]["pstate"]) == ([], "none", "P0")
    assert found["health"].detail["not_seen"] == []
    link = found["health.link.gpu0"].detail
    assert (link["no_load"], link["looks_under_load"] > 0, link["load_gb_s"] > 0) == ("", True, True)


@pytest.mark.parametrize(
    ("answers", "code", "words"),
    [
        ("field230@1=1", "health.recovery_action", "reset the GPU"),
        ("field230@1=2", "health.recovery_action", "reboot the host"),
        ("field230@1=9", "health.recovery_action", "action 9"),
        ("remap_pending@1=1", "health.row_remap", "waits to be remapped"),
        ("remap_failed@1=1", "health.row_remap", "could not be remapped"),
        ("field31@1=1", "health.row_remap", "page waits to be retired"),
        ("uncorrected@1=3", "health.ecc", "3 uncorrectable"),
        ("reasons@1=32", "health.throttle", "driver: too hot"),
        ("reasons@1=72", "health.throttle", "hardware: too hot"),
        ("reasons@1=136", "health.throttle", "brake signal"),
        ("reasons@1=8", "health.throttle", "by the hardware"),
    ],
)
def test_each_fault_of_a_gpu(host, answers, code, words):
    found = host.look(answers)
    assert cause(found) == cause(found, "health.gpu1") == ("error", code)
    assert cause(found, "health.gpu0") == ("measured", None)
    assert found["health"].value == 1
    assert f"{SECOND}: " in found["health"].detail["message"]
    assert words in found["health"].detail["message"]
    assert found["health.gpu1"].detail["faults"][0]["cause"] == code


@pytest.mark.parametrize(
    "answers", ["corrected=900", "uncorrected_ever=4", "reasons=4", "reasons=2", "field29=5", "ecc=0"]
)
def test_what_is_no_fault(host, answers):
    """Corrected errors, those of an earlier life, a power cap, application clocks, pages retired long ago."""
    assert cause(host.look(answers)) == ("measured", None)


def test_what_the_driver_asks_for_comes_first_and_nothing_is_lost(host):
    found = host.look("field230@0=1 uncorrected@0=1 remap_pending@0=1")
    assert cause(found) == ("error", "health.recovery_action")
    faults = [each["cause"] for each in found["health.gpu0"].detail["faults"]]
    assert faults == ["health.recovery_action", "health.row_remap", "health.ecc"]


def test_what_is_not_told_is_not_zero(host):
    found = host.look("uncorrected=!3 remap_pending=!3 field230=!3 ecc=!3")
    detail = found["health.gpu0"].detail
    assert [detail[name] for name in ("uncorrected", "remap_pending", "recovery_action", "ecc_on")] == [None] * 4
    assert cause(found) == ("measured", None)


XID = "NVRM: Xid (PCI:0000:02:00): {}, pid=4321, name=python3, something"


class TestXids:
    def test_a_fault_of_the_gpu_that_it_names(self, host):
        host.records([Record(0, 0, "boot"), Record(1, 9, XID.format(79)), Record(2, 9, XID.format(79))])
        found = host.look()
        assert cause(found) == cause(found, "health.gpu1") == ("error", "health.xid")
        assert "XID 79 x2: the GPU has fallen off the bus" in found["health"].detail["message"]
        assert cause(found, "health.gpu0") == ("measured", None)

    @pytest.mark.parametrize("number", [13, 31, 43, 45, 92, 999])
    def test_those_of_programs_are_shown_and_are_no_fault(self, host, number):
        host.records([Record(0, 0, "boot"), Record(1, 9, XID.format(number))])
        found = host.look()
        assert cause(found) == ("measured", None)
        assert found["health.gpu1"].detail["xids"] == [{"device": "0000:02:00", "number": number, "count": 1}]

    def test_a_log_that_may_not_be_read_is_not_zero(self, host):
        host.records([])
        found = host.look()
        assert found["health.gpu0"].detail["xids"] is None
        assert found["health"].detail["not_seen"] == ["XIDs: the kernel's log may not be read here"]

    def test_a_log_that_has_lost_its_beginning_says_so(self, host):
        host.records([Record(5000, 8000.4, "later")])
        assert "first 8000 s" in host.look()["health"].detail["not_seen"][0]

    def test_the_table_is_that_of_the_audit(self):
        """The checks ship alone, so there are two; here they are compared."""
        faults = {number: meaning for number, (severity, meaning, _) in audit.KNOWN.items() if severity != "info"}
        assert faults == health_xids.FAULTS
        assert {number: row[1] for number, row in audit.KNOWN.items() if row[0] == "info"} == health_xids.OF_PROGRAMS

    @pytest.mark.parametrize(
        "address",
        [
            *("PCI:0000:41:00", "PCI:0000:41:00.0", "0000:41:00"),
            *("PCI:0000:41:00 GPU-I:05", "PCI:0000:41:00 GPU-I:01 GPU-CI:02"),  # with MIG
        ],
    )
    def test_every_form_of_the_line(self, address):
        (found,) = health_xids.parse([f"NVRM: Xid ({address}): 48, pid=7", "NVRM: loading", "Xid 79"])
        assert (found.device, found.number) == ("0000:41:00", 48)
        assert len(audit.parse(f"NVRM: Xid ({address}): 48, pid=7")) == 1


class TestCount:
    def test_one_that_has_fallen_off_the_bus(self, host):
        for answers in ("handle@1=!15", "pstate@1=!15"):
            found = host.look(answers)
            assert cause(found) == ("error", "health.gpu_missing")
            assert found["health"].value == 1
            assert "fallen off the bus" in found["health"].detail["message"]
            assert SECOND in found["health"].detail["message"]

    def test_one_that_only_the_bus_shows(self, host):
        found = host.look("count=1")
        assert cause(found) == ("error", "health.gpu_missing")
        assert f"GPU {SECOND} is on the bus, bound to the driver nvidia" in found["health"].detail["message"]

    def test_one_without_a_driver_on_the_host(self, host):
        (host.folder / f"sys/bus/pci/devices/{SECOND}/driver").unlink()
        host.information(SECOND, "")
        found = host.look("count=1")
        assert "without a driver" in found["health"].detail["message"]

    @pytest.mark.parametrize("why", ["other container", "virtual machine", "excluded", "no driver, in a container"])
    def test_one_that_is_not_for_us(self, host, why):
        if why == "other container":
            (host.folder / "dev/nvidia1").unlink()
        if why == "virtual machine":
            host.bus.bind(SECOND, "vfio-pci")
        if why == "excluded":
            host.information(SECOND, "Device Minor: \t 1\nGPU Excluded:\t Yes\n")
        if why == "no driver, in a container":
            (host.folder / f"sys/bus/pci/devices/{SECOND}/driver").unlink()
            (host.folder / "proc/2/comm").unlink()
            host.information(SECOND, "")
        found = host.look("count=1")
        assert cause(found) == ("measured", None)
        assert f"GPU {SECOND} is on the bus" in found["health"].detail["not_seen"][0]

    def test_one_that_nvml_counts_and_may_not_open(self, host):
        """A container with some of a host's GPUs: nvmlDeviceGetCount_v2 counts those of others too."""
        (host.folder / "dev/nvidia1").unlink()
        found = host.look("handle@1=!4")
        assert cause(found) == ("measured", None)
        assert found["health"].value == 1
        assert found["health"].detail["not_seen"][0] == "NVML may not open 1 GPUs here: index 1"
        assert cause(host.look("handle@1=!4", expect_gpus=2)) == ("error", "health.gpu_missing")
        assert cause(host.look("handle=!4")) == ("error", "health.gpu_missing")

    def test_one_that_should_be_here_and_may_not_be_opened(self, host):
        assert cause(host.look("handle@1=!4")) == ("error", "health.gpu_missing")

    def test_fewer_than_expected(self, host):
        found = host.look(expect_gpus=3)
        assert cause(found) == ("error", "health.gpu_missing")
        assert "NVML shows 2 GPUs, expected 3" in found["health"].detail["message"]
        assert found["health"].value == 2

    def test_none_at_all(self, host):
        shutil.rmtree(host.folder / "sys")
        found = host.look("count=0")
        assert (found["health"].cause, found["health"].value) == ("health.gpu_missing", 0)


class TestNvml:
    def test_no_library(self, host, monkeypatch):
        monkeypatch.setattr(health.nvml, "session", functools.partial(health.nvml.session.func, "libnvidia-no.so"))
        assert cause(host.look()) == ("error", "nvml.missing")

    def test_it_does_not_start(self, host):
        found = host.look("init=18")
        assert cause(found) == ("error", "nvml.failed")
        assert found["health"].detail["message"] == "nvmlInit gave 18 (mismatch)"

    def test_no_driver(self, host):
        (host.folder / "proc/driver/nvidia/version").unlink()
        found = host.look("init=9")
        assert cause(found) == ("error", "driver.not_loaded")
        assert found["health"].seconds < 0.2


class TestNvlink:
    def test_one_is_down_behind_a_switch(self, host):
        found = host.look("nvlink17=0 remote0=2")
        assert cause(found) == cause(found, "health.nvlink.gpu0") == ("error", "health.nvlink_down")
        assert "17 of 18 NVLinks are up, down: 17" in found["health"].detail["message"]
        assert found["health.nvlink.gpu0"].value == 17

    def test_one_gpu_has_fewer_than_its_kin(self, host):
        found = host.look("nvlink3@1=0")
        assert cause(found, "health.nvlink.gpu1") == ("error", "health.nvlink_down")
        assert cause(found, "health.nvlink.gpu0") == ("measured", None)

    def test_errors_are_counted(self, host):
        assert host.look("replay@0=7")["health.nvlink.gpu0"].detail["errors"]["replay"] == 7

    def test_no_links_no_bridge_and_mig_are_no_fault(self, host):
        none = " ".join(f"nvlink{link}=!3" for link in range(18))
        down = " ".join(f"nvlink{link}@1=0" for link in range(18))
        assert "health.nvlink.gpu0" not in host.look(none)
        assert cause(host.look(down)) == ("measured", None)
        assert "health.nvlink.gpu1" not in host.look("mig@1=1 nvlink3@1=0")


def test_quick_puts_no_load_on_links_that_are_right(host):
    assert host.look(quick=True)["health.link.gpu0"].detail["looks_under_load"] == 0


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    made = Stage.make(tmp_path_factory.mktemp("stage"), HERE / "stub_gpus.c")
    compile_library(made.folder / "lib/libnvidia-ml.so.1", HERE / "stub_nvml.c", "libnvidia-ml.so.1")
    return made


@needs_stage
class TestArchive:
    """As it is shipped, in a container that shows no bus and no kernel log."""

    def test_healthy(self, stage):
        found = stage.run("health", "--expect-gpus", "2")
        assert (found["health"]["status"], found["health"]["value"]) == ("measured", 2), found["health"]
        assert found["health.link.gpu1"]["detail"]["source"] == "NVML"
        assert "XIDs: the kernel's log may not be read here" in found["health"]["detail"]["not_seen"]

    def test_a_fault(self, stage):
        found = stage.run("health", STUB_NVML="uncorrected@1=2")
        assert (found["health"]["status"], found["health"]["cause"]) == ("error", "health.ecc")

    def test_a_driver_that_hangs_loses_nothing_of_what_was_found(self, stage):
        found = stage.run("health", timeout=2, STUB_NVML="ecc@1=hang")
        assert (found["health"]["status"], found["health"]["cause"]) == ("error", "cuda.driver_hang")
        assert "GPU 1 (0000:02:00.0)" in found["health"]["detail"]["message"]
        assert found["health.gpu0"]["status"] == "measured"

    def test_no_library(self, stage):
        found = dataclasses.replace(stage, libraries="none").run("health")
        assert (found["health"]["cause"], list(found)) == ("nvml.missing", ["health"])
        assert found["health"]["seconds"] < 0.2


def test_a_machine_without_any_gpu(tmp_path):
    """This one, if it has none: at once, and no traceback."""
    if os.path.exists("/proc/driver/nvidia/version"):
        pytest.skip("there is an NVIDIA driver here")
    done = subprocess.run(
        [sys.executable, "-m", "gpu_checks", "health", "--json"],
        capture_output=True, text=True, check=True, cwd=HERE.parents[2],
    )  # fmt: skip
    (whole,) = json.loads(done.stdout)["measurements"]
    assert (whole["status"], whole["cause"], done.stderr) == ("error", "driver.not_loaded", "")
    assert whole["seconds"] < 0.2
