"""Links of the GPUs: below what both ends can do is a fault under load, and nothing else is."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from fake_gpu_host import FIRST, SECOND, Host, cause, compile_both
from fake_sysfs import Bus

from gpu_checks.cuda_api import CudaError
from gpu_checks.health import link as health_link
from gpu_checks.health import pci
from gpu_checks.health.pci import Link, Speed

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures/h200-vm/pci_devices.txt"
PORT = "0000:00:02.0"
IDLE = {"current_link_speed": "2.5 GT/s PCIe"}
GEN4 = "16.0 GT/s PCIe"
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) for the stub libraries")


class TestBus:
    def test_speeds_and_widths_and_nonsense(self):
        assert [pci.parse_speed(text) for text in ("2.5 GT/s PCIe", "32 GT/s", "Unknown", "", None)] == [
            *(2.5, 32.0, None, None, None)
        ]
        assert [pci.parse_lanes(text) for text in ("16", "1", "0", "63", "255", None)] == [16, 1, *[None] * 4]

    def test_a_gpu_below_its_port(self, tmp_path):
        bus = Bus(tmp_path)
        bus.add("0000:00:01.0", FIRST)
        bus.write("0000:00:01.0", max_link_speed=GEN4, max_link_width="8", current_link_speed=GEN4)
        bus.write(FIRST, current_link_speed=GEN4, current_link_width="8")
        assert pci.gpus(str(tmp_path)) == [pci.Gpu(FIRST, "nvidia")]
        assert pci.links(str(tmp_path), FIRST) == [Link(FIRST, "0000:00:01.0", Speed(16.0, 8), whole=True)]

    def test_a_switch_has_two_links(self, tmp_path):
        bus = Bus(tmp_path)
        bus.add("0000:00:01.0", "0000:03:00.0", "0000:04:02.0", FIRST)
        links = [(link.device, link.port) for link in pci.links(str(tmp_path), FIRST)]
        assert links == [(FIRST, "0000:04:02.0"), ("0000:03:00.0", "0000:00:01.0")]

    def test_a_port_that_an_emulator_made_up_is_none(self, tmp_path):
        """As QEMU's pcie-root-port shows itself in some versions: generation 1 x1, with a real GPU below it."""
        bus = Bus(tmp_path)
        bus.add("0000:00:01.0", FIRST)
        bus.write("0000:00:01.0", max_link_speed="2.5 GT/s PCIe", max_link_width="1")
        assert pci.links(str(tmp_path), FIRST) == [Link(FIRST, None, Speed(32.0, 16), whole=False)]

    def test_other_functions_of_nvidia_are_no_gpus(self, tmp_path):
        bus = Bus(tmp_path)
        bus.add("0000:00:01.0", FIRST)
        bus.add("0000:00:02.0", SECOND)
        bus.write(SECOND, **{"class": "0x068000"})  # an NVSwitch
        assert [gpu.address for gpu in pci.gpus(str(tmp_path))] == [FIRST]
        assert pci.gpus(str(tmp_path / "none")) is None


FULL = Speed(32.0, 16)


def seen(best, can=FULL, whole=True, looks=5, why=""):
    link = Link(FIRST, PORT if whole else None, can, whole)
    return health_link.Seen(FIRST, [link], "sysfs", rest=[Speed(2.5, 16)], best=[best], looks=looks, why=why)


@pytest.mark.parametrize(
    ("case", "causes", "unknown"),
    [
        (seen(Speed(32.0, 16)), [], ""),
        (seen(Speed(32.0, 16), looks=0), [], ""),
        (seen(Speed(32.0, 8)), ["health.link_width"], ""),
        (seen(Speed(8.0, 16)), ["health.link_speed"], ""),
        (seen(Speed(8.0, 4)), ["health.link_width"], ""),
        (seen(Speed(16.0, 16), can=Speed(16.0, 16)), [], ""),
        (seen(Speed(8.0, 16), whole=False), [], "not known here"),
        (seen(Speed(8.0, 16), looks=0), [], "no load: not asked for"),
        (seen(Speed(8.0, 16), looks=3, why="cuMemcpyAsync gave 700"), [], "no load: cuMemcpyAsync gave 700"),
        (seen(Speed(32.0, 8), looks=0), [], "at rest"),
        (seen(Speed(None, 16)), [], health_link.NOTHING),
        (seen(Speed(32.0, 16), can=Speed()), [], health_link.NOTHING),
        (health_link.Seen(FIRST, [], "sysfs"), [], health_link.NOTHING),
    ],
)
def test_the_judgement(case, causes, unknown):
    faults, said = health_link.judge(case)
    assert [fault.cause for fault in faults] == causes
    assert unknown in said
    assert bool(unknown) == bool(said)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    return compile_both(tmp_path_factory.mktemp("lib"))


@pytest.fixture
def host(tmp_path, libraries, monkeypatch):
    return Host(tmp_path, libraries, monkeypatch)


def during_load(host, monkeypatch, address, **files):
    """A link that changes as soon as data runs over it."""
    start = health_link._round

    def round_and_change(api, loads, source):
        host.bus.write(address, **files)
        start(api, loads, source)

    monkeypatch.setattr(health_link, "_round", round_and_change)


@needs_cc
class TestCheck:
    def test_an_idle_link_that_wakes_under_load_is_right(self, host, monkeypatch):
        host.bus.write(SECOND, **IDLE)
        during_load(host, monkeypatch, SECOND, current_link_speed="32.0 GT/s PCIe")
        found = host.look()
        assert cause(found) == cause(found, "health.link.gpu1") == ("measured", None)
        (link,) = found["health.link.gpu1"].detail["links"]
        assert (link["rest"], link["best"], link["port"]) == ("2.5 GT/s x16", "32 GT/s x16", PORT)

    def test_one_that_stays_slow(self, host, monkeypatch):
        host.bus.write(SECOND, **IDLE)
        during_load(host, monkeypatch, SECOND, current_link_speed="8.0 GT/s PCIe")
        found = host.look()
        assert cause(found) == cause(found, "health.link.gpu1") == ("error", "health.link_speed")
        message = found["health"].detail["message"]
        assert f"{SECOND} below {PORT} runs at 8 GT/s x16 under load, both ends can do 32 GT/s x16" in message
        assert cause(found, "health.link.gpu0") == ("measured", None)

    def test_one_that_has_lost_lanes(self, host):
        host.bus.write(FIRST, current_link_width="8")
        assert cause(host.look()) == ("error", "health.link_width")

    def test_a_slower_slot_is_what_it_is(self, host):
        host.bus.write("0000:00:01.0", max_link_speed=GEN4)
        host.bus.write(FIRST, current_link_speed=GEN4)
        assert cause(host.look()) == ("measured", None)

    def test_the_link_above_a_switch(self, tmp_path, host):
        shutil.rmtree(host.bus.sys)
        host.bus = Bus(host.folder / "sys")
        host.bus.add("0000:00:01.0", "0000:03:00.0", "0000:04:01.0", FIRST)
        host.bus.add("0000:00:01.0", "0000:03:00.0", "0000:04:02.0", SECOND)
        host.bus.write("0000:03:00.0", current_link_width="4")
        found = host.look()
        assert cause(found, "health.link.gpu0") == cause(found, "health.link.gpu1") == ("error", "health.link_width")
        assert "0000:03:00.0 below 0000:00:01.0 runs at 32 GT/s x4" in found["health"].detail["message"]

    @pytest.mark.parametrize(
        ("fault", "words"),
        [
            ({"STUB_FAULT": "init:999"}, "cuInit gave 999"),
            ({"STUB_GPUS": "1"}, "CUDA does not show this GPU"),
            ({"STUB_FREE_MIB": "0"}, "cuMemAlloc_v2 gave 2"),
        ],
    )
    def test_no_load_and_slow_at_rest_is_not_measured(self, host, monkeypatch, fault, words):
        for name, text in fault.items():
            monkeypatch.setenv(name, text)
        host.bus.write(SECOND, **IDLE)
        found = host.look()
        part = found["health.link.gpu1"]
        assert (part.status, part.cause, part.value) == ("not_measured", "health.link_unknown", None)
        assert words in part.detail["message"]
        assert words in found["health"].detail["not_seen"][0]
        assert cause(found) == cause(found, "health.link.gpu0") == ("measured", None)

    def test_a_copy_that_fails(self, host, monkeypatch):
        def fail(*_):
            raise CudaError("cuStreamSynchronize", 700, "CUDA_ERROR_ILLEGAL_ADDRESS")

        monkeypatch.setattr(health_link, "_round", fail)
        host.bus.write(SECOND, **IDLE)
        found = host.look()
        assert "cuStreamSynchronize gave 700" in found["health.link.gpu1"].detail["message"]

    @pytest.mark.parametrize("width", ["255", "0", "63"])
    def test_a_width_that_is_nonsense(self, host, width):
        host.bus.write(SECOND, current_link_width=width)
        assert cause(host.look(), "health.link.gpu1") == ("not_measured", "health.link_unknown")

    def test_sysfs_is_hidden(self, host):
        shutil.rmtree(host.bus.sys)
        found = host.look()
        assert cause(found, "health.link.gpu0") == ("measured", None)
        assert found["health.link.gpu0"].detail["source"] == "NVML"
        assert "sysfs does not show it here" in found["health"].detail["not_seen"][0]
        found = host.look("generation@0=3")
        assert cause(found, "health.link.gpu0") == ("not_measured", "health.link_unknown")
        assert cause(found) == ("measured", None)

    def test_quick_puts_load_on_only_where_a_link_is_not_at_its_best(self, host, monkeypatch):
        assert host.look(quick=True)["health.link.gpu0"].detail["looks_under_load"] == 0
        host.bus.write(SECOND, **IDLE)
        during_load(host, monkeypatch, SECOND, current_link_speed="8.0 GT/s PCIe")
        assert cause(host.look(quick=True)) == ("error", "health.link_speed")

    def test_a_real_virtual_machine_gives_no_false_alarm(self, host):
        """The two H200 of the fixture stand on the guest's root bus: no port, and the link at its best."""
        shutil.rmtree(host.bus.sys)
        host.bus = Bus(host.folder / "sys")
        rows = re.findall(
            r"^(\S+) 0x10de \S+ 0x030200 .*speed=(.*) width=(\d+) max=(.*) cfg", FIXTURE.read_text(), re.M
        )
        assert len(rows) == 2
        for (address, speed, width, most), ours in zip(rows, (FIRST, SECOND), strict=True):
            assert address.startswith("0000:00:0")
            host.bus.add(ours)
            host.bus.write(ours, current_link_speed=speed, current_link_width=width, max_link_speed=most)
        found = host.look()
        assert cause(found) == cause(found, "health.link.gpu1") == ("measured", None)
        host.bus.write(SECOND, current_link_speed="8.0 GT/s PCIe")
        found = host.look()
        assert cause(found, "health.link.gpu1") == ("not_measured", "health.link_unknown")
        assert cause(found) == ("measured", None)
