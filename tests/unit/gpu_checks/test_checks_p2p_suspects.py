"""ACS and IOMMU, read from a sysfs of our own; what can't be read is not the same as what is off."""

from __future__ import annotations

import struct

import pytest

from gpu_checks.p2p.suspects import acs_control, acs_words, bridges_above, in_words, suspects

GPU = "0000:03:00.0"


def config(control=None, size=4096, circle=False):
    """A configuration space: at 0x100 error reporting, behind it ACS, where there is one."""
    data = bytearray(size)
    if size > 0x100:
        struct.pack_into("<I", data, 0x100, 0x0001 | 1 << 16 | (0x100 if circle else 0x148) << 20)
        if control is not None:
            struct.pack_into("<IHH", data, 0x148, 0x000D | 1 << 16, 0x7F, control)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (config(0x1D), 0x1D),
        (config(0), 0),
        (config(), None),
        (config(0x1D, size=64), None),  # what everybody may read
        (b"", None),
        (config(circle=True), None),
    ],
)
def test_control(data, expected):
    assert acs_control(data) == expected


def test_words():
    assert acs_words(0) == []
    assert acs_words(0x04) == ["request_redirect"]


@pytest.fixture
def host(tmp_path):
    """A GPU below a switch's port, the switch's upstream port, and a root port."""
    devices = tmp_path / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    place = tmp_path / "sys/devices/pci0000:00"
    for name in ("0000:00:01.0", "0000:01:00.0", "0000:02:00.0", GPU):
        place = place / name
        place.mkdir(parents=True)
        (place / "config").write_bytes(config(0x1D if name == "0000:02:00.0" else 0))
        (devices / name).symlink_to(place)
    (place / "iommu_group").mkdir()
    (place / "iommu_group/type").write_text("DMA-FQ\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cmdline").write_text("root=/dev/sda1 intel_iommu=on quiet\n")
    return tmp_path


def test_facts(host):
    assert bridges_above("00000000:03:00.0", str(host / "sys")) == ["0000:00:01.0", "0000:01:00.0", "0000:02:00.0"]
    found = suspects([GPU], str(host / "sys"), str(host / "proc"))
    assert found["iommu_type"] == {GPU: "DMA-FQ"}
    assert found["iommu_arguments"] == ["intel_iommu=on"]
    assert [each["acs"] for each in found["bridges"]][:2] == [[], []]
    said = in_words(found, by_nvlink=False)
    assert "ACS redirects requests on 0000:02:00.0" in said
    assert "IOMMU type DMA-FQ" in said


def test_without_rights_nothing_is_said_to_be_off(host):
    for bridge in (host / "sys/bus/pci/devices").iterdir():
        (bridge / "config").write_bytes(config(size=64))
    assert "ACS of the bridges can't be read here" in in_words(
        suspects([GPU], str(host / "sys"), str(host / "proc")), by_nvlink=False
    )


def test_in_a_machine_without_any_of_it(tmp_path):
    found = suspects([GPU], str(tmp_path), str(tmp_path))
    assert found == {"iommu_type": {GPU: None}, "iommu_arguments": None, "bridges": []}
    assert in_words(found, by_nvlink=False).endswith("IOMMU type unknown")
