"""The firmware domain: pure findings, and what is read of sysfs. Synthetic; the resource files' forms are real ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_host import FakeHost
from fake_pcie import gpu, lay

from gpuhost import audit_firmware
from gpuhost.audit_firmware import Bar, Facts
from gpuhost.documents import Finding

TWO = ("0000:01:00.0", "0000:41:00.0")
ON = Facts(iommus=("ivhd0", "ivhd1"), gpu_groups=tuple((address, "identity") for address in TWO), securityfs=True)
HOPPER = """\
0x0000104002000000 0x0000104002ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000100000000000 0x0000103fffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
"""
ADA = """\
0x00000000b0000000 0x00000000b0ffffff 0x0000000000040200
0x0000002800000000 0x000000280fffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000002c00000000 0x0000002c01ffffff 0x000000000014220c
"""


def of(facts: Facts, code: str) -> list[Finding]:
    return [item for item in audit_firmware.findings(facts) if item.id == f"firmware.{code}"]


def one(facts: Facts, code: str) -> tuple[str, str]:
    (item,) = of(facts, code)
    return item.severity, item.observed


def test_passthrough_is_good() -> None:
    assert one(ON, "iommu") == ("good", "passthrough")


@pytest.mark.parametrize("kind", ["DMA", "DMA-FQ"])
def test_translated_gpus_need_a_boot(kind: str) -> None:
    facts = replace(ON, gpu_groups=((TWO[0], "identity"), (TWO[1], kind)), iommu_words=("amd_iommu=on",))
    (item,) = of(facts, "iommu")
    assert (item.severity, item.observed) == ("p1_reboot", f"translated (amd_iommu=on): {TWO[1]}")
    assert "{iommu: pt}" in item.fix


def test_one_translated_gpu_has_no_peer() -> None:
    assert one(replace(ON, gpu_groups=((TWO[0], "DMA"),)), "iommu")[0] == "info"


def test_no_iommu_and_no_gpu_are_said() -> None:
    assert one(Facts(), "iommu") == ("info", "none in use")
    assert one(Facts(guest=True), "iommu")[1] == "a virtual machine has none of its own"
    assert "no GPU that the host itself uses" in one(Facts(iommus=("dmar0",)), "iommu")[1]


def test_a_type_that_nobody_knows_is_unknown() -> None:
    severity, text = one(replace(ON, gpu_groups=((TWO[0], "unknown"),)), "iommu")
    assert (severity, text) == ("unknown", f"unknown: {TWO[0]}: unknown")


@pytest.mark.parametrize(
    ("bar", "root", "severity", "text"),
    [
        (Bar(TWO[0], 1 << 37, 1 << 37), True, "good", f"128 GiB: {TWO[0]}"),
        (Bar(TWO[0], 1 << 38), True, "good", f"256 GiB: {TWO[0]}"),
        (Bar(TWO[0], 1 << 28, 1 << 35), True, "p1_reboot", f"256 MiB of 32 GiB: {TWO[0]}"),
        (Bar(TWO[0], 1 << 28), True, "info", f"256 MiB; the card shows no other size: {TWO[0]}"),
        (Bar(TWO[0], 1 << 28), False, "unknown",
         f"256 MiB; unknown: needs root to see what the card offers: {TWO[0]}"),
    ],
)  # fmt: skip
def test_bar1(bar: Bar, root: bool, severity: str, text: str) -> None:
    assert one(Facts(bars=(bar,), root=root), "resizable_bar") == (severity, text)


def test_cards_that_differ_are_named() -> None:
    bars = (Bar(TWO[0], 1 << 37, 1 << 37), Bar(TWO[1], 1 << 28, 1 << 37))
    assert {item.severity for item in of(Facts(bars=bars), "resizable_bar")} == {"good", "p1_reboot"}


@pytest.mark.parametrize(
    ("nodes", "sockets", "text"),
    [(1, 1, "1 NUMA node on 1 socket"), (2, 2, "2 NUMA nodes on 2 sockets"),
     (8, 2, "8 NUMA nodes on 2 sockets, 4 each"), (3, 2, "3 NUMA nodes on 2 sockets")],
)  # fmt: skip
def test_numa(nodes: int, sockets: int, text: str) -> None:
    assert one(Facts(nodes=nodes, sockets=sockets), "numa") == ("info", text)


def test_secure_boot_and_lockdown() -> None:
    assert one(Facts(), "secure_boot") == ("info", "not applicable: no UEFI")
    assert one(Facts(uefi=True), "secure_boot")[0] == "unknown"
    text = one(Facts(uefi=True, secure_boot=True, signed_modules_only=True), "secure_boot")[1]
    assert text == "on; the kernel takes signed modules only"
    assert one(Facts(lockdown="integrity"), "lockdown") == ("info", "integrity")
    assert one(Facts(), "lockdown")[1] == "not applicable: this kernel has no lockdown"
    assert one(Facts(securityfs=False), "lockdown") == ("unknown", "unknown: /sys/kernel/security is not mounted")
    assert one(Facts(securityfs=False, root=False), "lockdown") == ("unknown", "unknown: needs root")


def bus(host: FakeHost, resource: str, driver: str = "nvidia") -> str:
    path = "/sys/devices/pci0000:00/0000:00:01.1/0000:01:00.0"
    lay(host.root, [gpu(path, driver=driver)])
    host.put(f"{path}/resource", resource)
    return path


@pytest.mark.parametrize(("text", "size"), [(HOPPER, 1 << 38), (ADA, 1 << 28)])
def test_bar1_is_the_second_one_in_use(text: str, size: int, tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    bus(host, text)
    assert audit_firmware.read(host).bars == (Bar("0000:01:00.0", size),)


def test_what_the_card_offers_is_read_at_its_own_number(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    path = bus(host, ADA)
    host.put(f"{path}/resource1_resize", "000000000000ffc0\n")
    (bar,) = audit_firmware.read(host).bars
    assert bar.largest_bytes == 32 << 30


def test_a_gpu_of_a_virtual_machine_is_not_judged(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    bus(host, ADA, driver="vfio-pci")
    facts = audit_firmware.read(host)
    assert (facts.bars, facts.gpu_groups) == ((), ())


@pytest.mark.parametrize("text", ["", "\n\n", "0x1\n0x2\n", "no numbers\nat all\n"])
def test_a_resource_file_of_another_form_gives_no_bar(text: str, tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    bus(host, text)
    assert audit_firmware.read(host).bars == ()
