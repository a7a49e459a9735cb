"""MaxReadReq of GPUs and their root ports: which devices, which bits, what keeps it, what is said.

Trees are synthetic (fake_pcie), but for the two GPUs of a real virtual machine, whose registers were captured.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost
from fake_pcie import CONTROL, ENDPOINT, ROOT_PORT, UPSTREAM, Device, case_devices, config, gpu, lay, root_port
from fake_roll import step
from hypothesis import given
from hypothesis import strategies as st

from gpuhost import __main__ as program
from gpuhost import pcie, pcie_config, pcie_register, pcie_tree, pcie_unit, tuning
from gpuhost.documents import Finding
from gpuhost.errors import Stop
from gpuhost.pcie_config import Registers, parse
from gpuhost.pcie_tree import Facts, Function, Link, Wishes
from gpuhost.return_service import PROGRAM

CASES = Path(__file__).resolve().parent.parent / "cases"
MASKED = [line.split()[:3] for line in (CASES / "pcie-01-masked-write.in.txt").read_text().splitlines()[1:]]
DEVICES = case_devices((CASES / "pcie-02-which-devices.in.txt").read_text())
GPUS = ("0000:01:00.0", "0000:43:00.0", "0000:44:00.0", "0001:c1:00.0")
ROOT_PORTS = ("0000:00:01.1", "0000:40:01.1", "0001:c0:01.0")
SWITCH_PORTS = ("0000:41:00.0", "0000:42:00.0", "0000:42:04.0")
TWO = "/sys/devices/pci0001:00/0001:00:01.0"
ENABLED = "/etc/systemd/system/multi-user.target.wants/gpu-pcie-tuning.service"


class PcieHost(FakeHost):
    """A fake host with a PCI bus, systemctl, and functions of which some bits cannot be written."""

    def __init__(self, root: Path, devices: list[Device]) -> None:
        super().__init__(root)
        self.fixed: dict[str, int] = {}
        self.offsets: list[tuple[str, int, int]] = []
        self.programs["systemctl",] = systemctl
        lay(root, devices)
        self.put("/var/lib/gpuhost/lock")
        self.put("/sys/kernel/security/lockdown", "[none] integrity confidentiality\n")

    def write_at(self, path: str, offset: int, data: bytes) -> None:
        self.offsets.append((path, offset, len(data)))
        fixed = self.fixed.get(path.split("/")[-2], 0)
        old = int.from_bytes(self.read_at(path, offset, 2), "little")
        new = int.from_bytes(data, "little")
        super().write_at(path, offset, (old & fixed | new & ~fixed).to_bytes(2, "little"))

    def control(self, address: str) -> int:
        return pcie_tree.read_registers(self, address).control

    def silence(self, address: str) -> None:
        self.path(f"/sys/bus/pci/devices/{address}/config").write_bytes(b"\xff" * 4096)


def systemctl(host: FakeHost, argv: list[str]) -> tuple[int, str, str]:
    if argv[1] == "enable":
        host.link(ENABLED, pcie_unit.UNIT_FILE)
    elif argv[1] == "disable":
        host.remove(ENABLED)
    there = host.path(ENABLED).is_symlink()
    return (0 if there else 1, "enabled\n" if there else "disabled\n", "") if argv[1] == "is-enabled" else (0, "", "")


@pytest.fixture
def host(tmp_path: Path) -> PcieHost:
    """The bus of case pcie-02."""
    return PcieHost(tmp_path, DEVICES)


@pytest.fixture
def small(tmp_path: Path) -> PcieHost:
    """One GPU below its root port."""
    return PcieHost(tmp_path, [root_port(TWO), gpu(f"{TWO}/0001:01:00.0")])


def tune(host: PcieHost, check: bool = False, **given: Any) -> dict[str, Any]:
    return step(host, "gpuhost_pcie", check=check, **given)


def findings(host: PcieHost, wishes: Wishes | None = None) -> tuple[Finding, ...]:
    return pcie.wanted(pcie.read(host), wishes or Wishes()).findings


def said(found: tuple[Finding, ...], code: str) -> list[tuple[str, str]]:
    return [(item.severity, item.observed) for item in found if item.id == code]


def after(answer: dict[str, Any], code: str) -> list[tuple[str, str]]:
    (document,) = answer["gpuhost_documents"]
    return [(item["severity"], item["observed"]) for item in document["findings"] if item["id"] == code]


def untouched(host: PcieHost, before: dict[str, Any], *changed: str) -> bool:
    now = host.snapshot()
    paths = {str(host.path(f"/sys/bus/pci/devices/{address}/config").resolve()) for address in changed}
    ours = {str(Path(path).relative_to(host.root.resolve())) for path in paths}
    return {key: value for key, value in now.items() if key.startswith("sys/") and key not in ours} == {
        key: value for key, value in before.items() if key.startswith("sys/") and key not in ours
    }


# --- the register: case pcie-01


@pytest.mark.parametrize(("before", "wanted", "result"), MASKED)
def test_only_the_three_bits_change(tmp_path: Path, before: str, wanted: str, result: str) -> None:
    """Through the files, on a bridge: bit 15 is kept as read there."""
    host = PcieHost(tmp_path, [root_port(TWO, control=int(before, 16)), gpu(f"{TWO}/0001:01:00.0")])
    write = tuning.Write(pcie_register.KIND, "0001:00:01.0", wanted)
    (written,) = tuning.apply(host, [write], check=False)
    if before == "0xffff":
        assert result == "no"
        assert (written.status, written.before, host.offsets) == ("refused", None, [])
        assert "0xffff" in written.reason
    else:
        assert host.control("0001:00:01.0") == int(result, 16)
        assert written.status == ("same" if before == result else "written")
        assert len(host.offsets) == (before != result)


@pytest.mark.parametrize("kind", [0, 1, 9])
def test_bit_15_is_never_written_to_an_endpoint(kind: int) -> None:
    """There it would reset the function, and reads 0: whatever it reads."""
    assert Registers("readable", kind, 0x80, 0xA936).with_request(4096) == 0x5936


@pytest.mark.parametrize("kind", [4, 5, 6, 7, 8])
def test_bit_15_is_kept_on_a_bridge(kind: int) -> None:
    assert Registers("readable", kind, 0x80, 0xA936).with_request(4096) == 0xD936


@given(st.integers(0, 0xFFFE), st.sampled_from(pcie_config.SIZES), st.integers(0, 15))
def test_no_other_bit_changes_and_the_size_reads_back(control: int, size: int, kind: int) -> None:
    before = Registers("readable", kind, 0x80, control)
    now = replace(before, control=before.with_request(size))
    assert now.request_bytes == size
    assert now.payload_bytes == before.payload_bytes
    assert (now.control ^ control) & ~(pcie_config.REQUEST_BITS | pcie_config.BIT_15) == 0


@pytest.mark.parametrize(("code", "size"), [(0, 128), (2, 512), (5, 4096), (6, None), (7, None)])
def test_the_sizes_codes(code: int, size: int | None) -> None:
    assert pcie_config.size_of(code) == size
    assert Registers("readable", 0, 0, code << 12).request_bytes == size


def test_one_write_of_16_bits_at_the_capability(small: PcieHost) -> None:
    """The other half of the 32 bits is Device Status, in which a 1 clears what was reported."""
    before = small.read_at(pcie_tree.config_path("0001:01:00.0"), 0, 4096)
    tune(small)
    assert {item for item in small.offsets if "0001:01:00.0" in item[0]} == {
        (pcie_tree.config_path("0001:01:00.0"), 0x80, 2)
    }
    now = small.read_at(pcie_tree.config_path("0001:01:00.0"), 0, 4096)
    assert [index for index in range(4096) if before[index] != now[index]] == [0x81]


# --- configuration space


def reader(data: bytes) -> pcie_config.Reader:
    return lambda offset, length: data[offset : offset + length]


@pytest.mark.parametrize("cap_at", [0x40, 0x60 + 8, 0x78, 0xC4])
def test_the_capability_is_found_by_its_id(cap_at: int) -> None:
    device = gpu(f"{TWO}/0001:01:00.0", cap_at=cap_at, acs=0x1D)
    found = parse(reader(config(device)))
    assert found == Registers("readable", ENDPOINT, cap_at + 8, CONTROL, True, 0x1D)


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (lambda data: b"\xff" * 256, "no_answer"),
        (lambda data: b"", "no_answer"),
        (lambda data: data[:64], "needs_root"),
        (lambda data: data[:0x80] + b"\xff\xff" + data[0x82:], "no_answer"),
        (lambda data: data[:6] + b"\0\0" + data[8:], "no_express"),
        (lambda data: data[:0x61] + b"\0" + data[0x62:], "no_express"),
        (lambda data: data[:0x61] + b"\x60" + data[0x62:], "no_express"),
        (lambda data: data[:0x61] + b"\x10" + data[0x62:], "no_express"),
    ],
    ids=["all ones", "gone", "64 bytes", "half gone", "no list", "end of list", "a loop", "into the header"],
)
def test_what_is_no_answer(change: Any, state: str) -> None:
    assert parse(reader(change(config(gpu(f"{TWO}/0001:01:00.0"))))).state == state


def test_space_of_256_bytes_has_no_extended_capability() -> None:
    found = parse(reader(config(gpu(f"{TWO}/0001:01:00.0", acs=0))[:256]))
    assert (found.state, found.has_aer, found.acs) == ("readable", False, None)


@given(st.binary(max_size=600))
def test_any_bytes_end(data: bytes) -> None:
    assert parse(reader(data + b"\x10\x20" * 800)).state in ("readable", "no_answer", "no_express", "needs_root")


# --- which devices: case pcie-02


def test_the_gpus_and_their_root_ports_of_the_case(host: PcieHost) -> None:
    chosen = pcie_tree.choose(pcie.read(host).functions, Wishes())
    assert tuple(item.address for item in chosen.gpus) == GPUS
    assert chosen.root_ports == ROOT_PORTS
    assert chosen.between == SWITCH_PORTS
    assert {item.address: reason for item, reason in chosen.left_alone} == {
        "0000:c1:00.0": "bound to vfio-pci, given to a virtual machine",
        "0000:52:00.0": "ASPEED BMC graphics, no GPU",
        "0000:81:00.0": "NVSwitch, no GPU",
    }


def test_nothing_else_is_read_beyond_its_ids_or_written(host: PcieHost) -> None:
    before = host.snapshot()
    facts = pcie.read(host)
    assert set(facts.registers) == {*GPUS, *ROOT_PORTS, *SWITCH_PORTS, "0000:c1:00.0", "0000:c0:01.1"}
    tune(host)
    assert {path.split("/")[-2] for path, _, _ in host.offsets} == {*GPUS, *ROOT_PORTS, *SWITCH_PORTS}
    assert untouched(host, before, *GPUS, *ROOT_PORTS, *SWITCH_PORTS)
    assert {host.control(address) for address in (*GPUS, *ROOT_PORTS, *SWITCH_PORTS)} == {0x5936}


def test_without_bridges_only_gpus_are_written(host: PcieHost) -> None:
    answer = tune(host, bridges=False)
    assert {path.split("/")[-2] for path, _, _ in host.offsets} == set(GPUS)
    assert {severity for severity, _ in after(answer, "pcie.max_read_request")} == {"good"}
    assert f"512 bytes: {', '.join((*ROOT_PORTS, *SWITCH_PORTS))}" in after(answer, "pcie.bridges")[0][1]


def test_named_devices_are_exactly_those_also_of_vfio(host: PcieHost) -> None:
    tune(host, devices=["0000:c1:00.0"])
    assert {path.split("/")[-2] for path, _, _ in host.offsets} == {"0000:c1:00.0", "0000:c0:01.1"}


@pytest.mark.parametrize("address", ["01:00.0", "0000:01:00", "0000:01:00.0 ", "GPU-0", "0000:01:00.8"])
def test_an_address_without_its_domain_is_refused(host: PcieHost, address: str) -> None:
    with pytest.raises(Stop) as caught:
        tune(host, devices=[address])
    assert (caught.value.blocker.cause, caught.value.blocker.observed) == ("input.invalid", address)
    assert host.offsets == []


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("0000:52:00.0", "ASPEED BMC graphics"),
        ("0000:81:00.0", "NVSwitch"),
        ("0000:82:00.0", "network adapter"),
        ("0000:01:00.1", "audio function of an NVIDIA card"),
        ("0000:00:01.1", "bridge"),
    ],
)
def test_what_is_no_gpu_is_refused_by_its_name(host: PcieHost, address: str, kind: str) -> None:
    with pytest.raises(Stop) as caught:
        tune(host, devices=["0000:01:00.0", address])
    assert caught.value.blocker.observed == f"{address} is a {kind}"
    assert host.offsets == []


def test_a_named_device_that_is_gone_keeps_none_of_the_others_back(host: PcieHost) -> None:
    answer = tune(host, devices=["0000:01:00.0", "0000:99:00.0"])
    assert after(answer, "pcie.device_missing") == [("p1_reboot", "0000:99:00.0: no such device")]
    assert host.control("0000:01:00.0") == 0x5936


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/sys/devices/pci0000:00/0000:00:06.0", ("0000:00:06.0",)),
        (
            "/sys/devices/pci0000:64/0000:64:00.5/pci10000:00/10000:00:02.0/10000:01:00.0",
            ("10000:00:02.0", "10000:01:00.0"),
        ),
        ("/sys/devices/LNXSYSTM:00/PNP0A08:00/pci0001:c0/0001:c0:01.0", ("0001:c0:01.0",)),
        ("/sys/devices/virtual/net/lo", ()),
        ("", ()),
    ],
)
def test_addresses_of_a_path(path: str, expected: tuple[str, ...]) -> None:
    assert pcie_tree.addresses(path) == expected


@pytest.mark.parametrize(
    ("driver", "virtual", "reason"),
    [("", False, "no driver bound"), ("nouveau", False, "bound to nouveau"), ("nvidia", True, "virtual function")],
)
def test_a_gpu_that_is_not_the_drivers(tmp_path: Path, driver: str, virtual: bool, reason: str) -> None:
    host = PcieHost(tmp_path, [root_port(TWO), gpu(f"{TWO}/0001:01:00.0", driver=driver)])
    if virtual:
        host.put(f"{TWO}/0001:01:00.0/physfn", "")
    answer = tune(host)
    assert host.offsets == []
    assert reason in after(answer, "pcie.left_alone")[0][1]
    # What keeps the value is wanted where a driver may come yet.
    assert host.exists(pcie_unit.RULES_FILE) is (driver == "")


# --- tune, again, and back


def test_before_and_after_in_bytes_with_full_addresses(host: PcieHost) -> None:
    answer = tune(host)
    assert answer["changed"]
    for address in (*GPUS, *ROOT_PORTS):
        assert f"{address}: 512 -> 4096" in answer["lines"]
    assert after(answer, "pcie.max_read_request") == [("good", f"4096 bytes: {', '.join((*GPUS, *ROOT_PORTS))}")]


def test_before_tune_each_device_is_a_finding(host: PcieHost) -> None:
    found = [item for item in findings(host) if item.id == "pcie.max_read_request"]
    assert [item.observed for item in found] == [f"512 bytes: {address}" for address in (*GPUS, *ROOT_PORTS)]
    assert {(item.severity, item.expected) for item in found} == {("p0_runtime", "4096 bytes")}


def test_a_second_run_changes_nothing(host: PcieHost) -> None:
    tune(host)
    before, host.offsets = host.snapshot(), []
    answer = tune(host)
    assert (answer["changed"], answer["lines"], answer["diff"], host.offsets) == (False, [], [], [])
    assert host.snapshot() == before


def test_check_mode_says_the_same_and_writes_nothing(host: PcieHost) -> None:
    before = host.snapshot()
    shown = tune(host, check=True, program="cHJvZ3JhbQ==")
    assert (host.snapshot(), host.offsets) == (before, [])
    done = tune(host, program="cHJvZ3JhbQ==")
    assert (shown["lines"], shown["diff"]) == (done["lines"], done["diff"])
    assert done["lines"][0] == f"{PROGRAM}: brought up to date"
    assert host.read(PROGRAM) == "program"
    assert not tune(host, program="cHJvZ3JhbQ==")["changed"]


def test_revert_gives_back_every_byte(host: PcieHost) -> None:
    host.put("/etc/systemd/system/multi-user.target.wants/ssh.service", "")
    host.put("/etc/udev/rules.d/10-own.rules", "")
    host.put("/etc/systemd/system/own.service", "")
    before = host.snapshot()
    tune(host)
    tune(host, max_read_request_bytes=1024)
    assert {item.status for item in tuning.revert(host, check=False)} == {"written"}
    assert host.snapshot() == before


def test_zero_leaves_it_as_it_is_and_takes_away_what_kept_it(host: PcieHost) -> None:
    tune(host)
    host.offsets = []
    answer = tune(host, max_read_request_bytes=0)
    assert answer["changed"]
    assert host.offsets == []
    assert not [path for path in (pcie_unit.UNIT_FILE, pcie_unit.RULES_FILE, pcie_unit.SETTINGS) if host.exists(path)]
    assert not host.path(ENABLED).is_symlink()
    assert {severity for severity, _ in after(answer, "pcie.max_read_request")} == {"info"}
    assert not tune(host, max_read_request_bytes=0)["changed"]


@pytest.mark.parametrize("size", [64, 8192, 1000, -1])
def test_no_other_size_is_taken(host: PcieHost, size: int) -> None:
    with pytest.raises(Stop) as caught:
        tune(host, max_read_request_bytes=size)
    assert caught.value.blocker.cause == "input.invalid"


def test_a_host_without_a_gpu_gets_nothing(tmp_path: Path) -> None:
    host = PcieHost(tmp_path, [root_port(TWO)])
    answer = tune(host)
    assert (answer["changed"], host.exists("/etc")) == (False, False)
    assert after(answer, "pcie.max_read_request")[0] == (
        "info",
        "not applicable: no NVIDIA GPU that the nvidia driver has",
    )


# --- what does not work


def test_a_read_only_bridge_is_reported_and_the_gpu_is_set(small: PcieHost) -> None:
    small.fixed["0001:00:01.0"] = pcie_config.REQUEST_BITS
    answer = tune(small)
    assert "0001:01:00.0: 512 -> 4096" in answer["lines"]
    (refused,) = after(answer, "pcie.not_writable")
    assert refused[1] == "0001:00:01.0: reads 512 after 4096 was written"
    assert [observed for _, observed in after(answer, "pcie.max_read_request")] == ["4096 bytes: 0001:01:00.0"]
    assert small.control("0001:00:01.0") == CONTROL
    again = tune(small)
    assert not again["changed"]
    assert after(again, "pcie.not_writable") == [refused]


def test_a_device_that_does_not_answer_is_never_written(small: PcieHost) -> None:
    small.silence("0001:01:00.0")
    answer = tune(small)
    assert {path.split("/")[-2] for path, _, _ in small.offsets} == {"0001:00:01.0"}
    ((severity, observed),) = after(answer, "pcie.no_answer")
    assert severity == "p1_reboot"
    assert observed.endswith("no power: 0001:01:00.0")


def test_a_device_that_goes_between_look_and_write_is_not_written(small: PcieHost) -> None:
    (write,) = [item for item in pcie.wanted(pcie.read(small), Wishes()).writes if item.object == "0001:01:00.0"]
    small.silence("0001:01:00.0")
    (written,) = tuning.apply(small, [write], check=False)
    assert (written.status, small.offsets) == ("refused", [])


def test_revert_of_a_device_that_is_gone_keeps_none_of_the_others_back(small: PcieHost) -> None:
    tune(small)
    small.silence("0001:01:00.0")
    refused = [item.write.object for item in tuning.revert(small, check=False) if item.status == "refused"]
    assert refused == ["0001:01:00.0"]
    assert small.control("0001:00:01.0") == CONTROL
    assert [write.object for write in tuning.load(small).writes()] == ["0001:01:00.0"]


@pytest.mark.parametrize("mode", ["integrity", "confidentiality"])
def test_lockdown_is_said_and_nothing_is_tried(small: PcieHost, mode: str) -> None:
    small.put("/sys/kernel/security/lockdown", "none integrity confidentiality\n".replace(mode, f"[{mode}]"))
    before = small.snapshot()
    answer = tune(small)
    assert (answer["changed"], small.offsets) == (False, [])
    assert small.snapshot() == before
    assert after(answer, "pcie.locked_down") == [("p1_reboot", f"the kernel is locked down ({mode})")]
    assert {severity for severity, _ in after(answer, "pcie.max_read_request")} == {"info"}
    (written,) = tuning.apply(small, [tuning.Write(pcie_register.KIND, "0001:01:00.0", "4096")], check=False)
    assert (written.status, written.reason) == ("refused", f"the kernel is locked down ({mode})")


def test_lockdown_is_no_reason_to_reboot_where_nothing_differs(small: PcieHost) -> None:
    tune(small)
    small.put("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
    assert said(findings(small), "pcie.locked_down")[0][0] == "info"


def test_a_kernel_that_holds_it_down_to_the_payload_is_left_alone(small: PcieHost) -> None:
    small.put("/proc/cmdline", "root=/dev/sda1 pci=noaer,pcie_bus_perf quiet\n")
    answer = tune(small)
    assert (answer["changed"], small.offsets) == (False, [])
    assert after(answer, "pcie.bus_perf") == [("p1_reboot", "the kernel runs with pci=pcie_bus_perf")]


@pytest.mark.parametrize("line", ["", "pci=pcie_bus_safe", "xpci=pcie_bus_perf", "pcie_bus_perf"])
def test_other_command_lines(line: str) -> None:
    assert not pcie_tree.is_bus_perf(line)


def test_an_ordinary_user_is_told_that_it_needs_root(small: PcieHost) -> None:
    """The kernel shows it the first 64 bytes; links and ids it does see."""
    for address in ("0001:00:01.0", "0001:01:00.0"):
        path = small.path(f"/sys/bus/pci/devices/{address}/config")
        path.write_bytes(path.read_bytes()[:64])
    found = findings(small)
    assert said(found, "pcie.max_read_request") == [("unknown", "unknown: needs root: 0001:01:00.0, 0001:00:01.0")]
    assert said(found, "pcie.relaxed_ordering") == [("unknown", "unknown: needs root: 0001:01:00.0")]
    assert said(found, "pcie.link_width") == [("good", "x16: 0001:01:00.0")]
    assert not [item for item in pcie.wanted(pcie.read(small), Wishes()).writes if item.kind == pcie_register.KIND]


# --- what keeps it


def test_the_host_itself_sets_what_the_module_wrote(host: PcieHost) -> None:
    tune(host, bridges=False)
    lay(host.root, [])
    for device in DEVICES:
        host.path(f"{device.path}/config").write_bytes(config(device))
    host.offsets, record = [], host.read(tuning.RECORD)
    text = pcie.keep(host)
    assert text.splitlines() == [f"{address}: 512 -> 4096" for address in GPUS]
    assert host.read(tuning.RECORD) == record
    assert {path.split("/")[-2] for path, _, _ in host.offsets} == set(GPUS)
    assert pcie.keep(host).splitlines() == [f"{address}: 4096" for address in GPUS]


def test_a_rule_sets_one_gpu_and_what_lies_above_it(host: PcieHost) -> None:
    host.put(pcie_unit.SETTINGS, pcie_unit.settings_text(Wishes()))
    assert pcie.keep(host, "0000:44:00.0").splitlines() == [
        f"{address}: 512 -> 4096" for address in ("0000:40:01.1", "0000:41:00.0", "0000:42:04.0", "0000:44:00.0")
    ]


@pytest.mark.parametrize("address", ["0000:c1:00.0", "0000:52:00.0", "0000:99:00.0", "../../x"])
def test_an_event_of_another_device_does_nothing(host: PcieHost, address: str) -> None:
    host.put(pcie_unit.SETTINGS, pcie_unit.settings_text(Wishes()))
    assert pcie.keep(host, address) == "nothing to do"
    assert host.offsets == []


def test_a_device_that_does_not_take_it_fails_no_unit(small: PcieHost) -> None:
    small.put(pcie_unit.SETTINGS, pcie_unit.settings_text(Wishes()))
    small.fixed["0001:00:01.0"] = pcie_config.REQUEST_BITS
    assert pcie.keep(small).splitlines() == [
        "0001:00:01.0: pcie.not_writable: reads 512 after 4096 was written",
        "0001:01:00.0: 512 -> 4096",
    ]


def test_nothing_is_kept_where_nothing_is_asked_for(small: PcieHost) -> None:
    assert pcie.keep(small) == "nothing to do: no /var/lib/gpuhost/pcie.json"
    small.put(pcie_unit.SETTINGS, pcie_unit.settings_text(Wishes()))
    small.put("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
    assert pcie.keep(small) == "nothing to do"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"max_read_request_bytes": 5, "bridges": true, "devices": []}'])
def test_settings_that_cannot_be_read_are_a_stop(small: PcieHost, text: str) -> None:
    small.put(pcie_unit.SETTINGS, text)
    with pytest.raises(Stop) as caught:
        pcie.keep(small)
    assert caught.value.blocker.object == pcie_unit.SETTINGS
    assert small.offsets == []


@given(st.sampled_from(pcie_config.SIZES), st.booleans(), st.lists(st.sampled_from([*GPUS]), max_size=2))
def test_settings_round_trip(
    tmp_path_factory: pytest.TempPathFactory, size: int, bridges: bool, names: list[str]
) -> None:
    host = FakeHost(tmp_path_factory.mktemp("root"))
    wish = Wishes(size, bridges, tuple(names))
    host.put(pcie_unit.SETTINGS, pcie_unit.settings_text(wish))
    assert pcie_unit.settings(host) == wish


def test_the_program_knows_the_command(small: PcieHost, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(program, "Host", lambda: small)
    small.put(pcie_unit.SETTINGS, pcie_unit.settings_text(Wishes()))
    assert program.main(["pcie", "0001:01:00.0"]) == 0
    assert "0001:01:00.0: 512 -> 4096" in capsys.readouterr().out
    assert program.main(["pcie"]) == 0
    assert program.main(["pcie", "0001:01:00.0", "more"]) == 2
    small.put(pcie_unit.SETTINGS, "")
    assert program.main(["pcie"]) == 1
    for text in (pcie_unit.UNIT, pcie_unit.DEVICE_UNIT):
        assert f"ExecStart=/usr/bin/python3 {PROGRAM} pcie" in text


def test_rules_and_units() -> None:
    """Names of the events: see pcie_unit. A rule's RUN only queues a unit, and names its device."""
    rules = [line for line in pcie_unit.RULES.splitlines() if not line.startswith("#")]
    run = 'RUN+="/usr/bin/systemctl --no-block restart gpu-pcie-tuning@%k.service"'
    assert rules == [
        f'ACTION=="bind", SUBSYSTEM=="pci", DRIVER=="nvidia", {run}',
        f'ACTION=="change", SUBSYSTEM=="pci", DRIVER=="nvidia", ENV{{ERROR_EVENT}}=="SUCCESSFUL_RECOVERY", {run}',
    ]
    assert "After=nvidia-persistenced.service\n" in pcie_unit.UNIT
    assert "pcie %i\n" in pcie_unit.DEVICE_UNIT
    assert "StartLimitIntervalSec=0\n" in pcie_unit.DEVICE_UNIT


def test_units_are_enabled_once_they_are_there(small: PcieHost) -> None:
    tune(small)
    order = [item.object for item in pcie_unit.writes(Wishes())]
    assert order.index(pcie_unit.UNIT_FILE) < order.index(pcie_unit.UNIT_NAME) < order.index(pcie_unit.RULES_FILE)
    assert small.ran("systemctl", "enable") == [["systemctl", "enable", "gpu-pcie-tuning.service"]]
    gone = [item.object for item in pcie_unit.writes(Wishes(max_read_request_bytes=0))]
    assert gone == order[::-1]
    assert json.loads(small.read(pcie_unit.SETTINGS) or "")["max_read_request_bytes"] == 4096


# --- what is only looked at


def test_the_captured_virtual_machine() -> None:
    """Two real GPUs right on the root bus of a guest: address, control, link from shared/fixtures/h200-vm."""
    numbers = ("0000:00:06.0", "0000:00:07.0")
    facts = Facts(
        tuple(Function((address,), 0x10DE, 0x2335, 0x030200, "nvidia") for address in numbers),
        {address: Registers("readable", 0, 0x68, 0x5134) for address in numbers},
        {address: Link(32.0, 32.0, 16, 16) for address in numbers},
    )
    result = pcie.wanted(facts, Wishes())
    both = ", ".join(numbers)
    assert said(result.findings, "pcie.max_read_request") == [("good", f"4096 bytes: {both}")]
    assert said(result.findings, "pcie.relaxed_ordering") == [("good", f"on: {both}")]
    assert said(result.findings, "pcie.no_snoop") == [("info", f"off: {both}")]
    assert said(result.findings, "pcie.max_payload") == [("good", f"256 bytes: {both}")]
    assert said(result.findings, "pcie.bridges") == [("info", f"not applicable: no root port is shown above: {both}")]
    assert said(result.findings, "pcie.link_speed") == [("good", f"32.0 GT/s (Gen5): {both}")]
    assert not [item for item in result.findings if item.severity in ("p0_runtime", "p1_reboot")]


@pytest.mark.parametrize(
    ("changes", "port", "width", "speed"),
    [
        ({}, {}, ("good", "x16"), ("good", "32.0 GT/s (Gen5)")),
        ({"width": 8}, {}, ("p1_reboot", "x8 of x16"), ("good", "32.0 GT/s (Gen5)")),
        ({"width": 8}, {"max_width": 8}, ("info", "x8: its slot has no more, the card has x16"), None),
        ({"speed": "2.5 GT/s PCIe"}, {}, None, ("info", "2.5 GT/s (Gen1) of 32.0 GT/s (Gen5)")),
        (
            {"speed": "16.0 GT/s PCIe"},
            {"max_speed": "16.0 GT/s PCIe"},
            None,
            ("info", "16.0 GT/s (Gen4): its slot has no more, the card has 32.0 GT/s (Gen5)"),
        ),
        (
            {"speed": "Unknown", "width": 63},
            {},
            ("unknown", "unknown: the kernel does not say"),
            ("unknown", "unknown: the kernel does not say"),
        ),
    ],
)
def test_links(tmp_path: Path, changes: Any, port: Any, width: Any, speed: Any) -> None:
    host = PcieHost(tmp_path, [root_port(TWO, **port), gpu(f"{TWO}/0001:01:00.0", **changes)])
    found = findings(host)
    for code, expected in (("pcie.link_width", width), ("pcie.link_speed", speed)):
        if expected:
            assert said(found, code) == [(expected[0], f"{expected[1]}: 0001:01:00.0")]


def test_control_bits_payload_acs_and_errors(tmp_path: Path) -> None:
    other = "/sys/devices/pci0001:00/0001:00:02.0"
    host = PcieHost(
        tmp_path,
        [
            root_port(TWO, acs=0x1D, control=0x5910),
            gpu(f"{TWO}/0001:01:00.0", control=0x5910),
            root_port(other, acs=0x00),
            gpu(f"{other}/0001:02:00.0", control=0x5000),
        ],
    )
    host.put(f"{TWO}/aer_dev_correctable", "RxErr 3\nBadTLP 0\nTOTAL_ERR_COR 3\n")
    host.put(f"{TWO}/aer_dev_fatal", "TOTAL_ERR_FATAL 0\n")
    host.put(f"{TWO}/0001:01:00.0/aer_dev_fatal", "Undefined 0\nTOTAL_ERR_FATAL 0\n")
    found = findings(host)
    assert said(found, "pcie.relaxed_ordering") == [("good", "on: 0001:01:00.0"), ("info", "off: 0001:02:00.0")]
    assert said(found, "pcie.no_snoop") == [("good", "on: 0001:01:00.0"), ("info", "off: 0001:02:00.0")]
    assert said(found, "pcie.max_payload") == [
        ("info", "256 bytes: 0001:00:02.0; 128 bytes: 0001:02:00.0"),
        ("good", "128 bytes: 0001:00:01.0, 0001:01:00.0"),
    ]
    assert said(found, "pcie.acs") == [
        ("info", "redirects traffic between GPUs upwards: 0001:00:01.0; redirects nothing: 0001:00:02.0")
    ]
    ((severity, errors),) = said(found, "pcie.aer")
    assert (severity, errors) == (
        "info",
        "3 correctable since boot: 0001:00:01.0; no errors since boot: 0001:01:00.0; "
        "errors are not counted by this kernel: 0001:00:02.0, 0001:02:00.0",
    )


def test_every_finding_says_why_and_what_to_do(host: PcieHost) -> None:
    host.silence("0000:43:00.0")
    host.path("/sys/bus/pci/devices/0000:01:00.0/current_link_width").write_text("4\n")
    for item in findings(host):
        assert item.domain == "pcie"
        assert item.why.endswith(".")
        assert bool(item.fix) is (item.severity in ("p0_runtime", "p1_reboot"))


def test_a_switch_is_never_taken_for_a_root_port() -> None:
    assert {device.port_type for device in DEVICES if device.address in SWITCH_PORTS} == {UPSTREAM}
    assert {device.port_type for device in DEVICES if device.address in ROOT_PORTS} == {ROOT_PORT}
