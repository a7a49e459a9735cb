"""A PCI bus for tests: a folder like /sys, with real links and binary configuration space. Synthetic.

Offsets and bits are those of the specification; ids and addresses those of case pcie-02.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

CONTROL = 0x2936
"""Device Control of case pcie-01: MaxReadReq 512, MaxPayload 256, relaxed ordering, extended tags, no-snoop."""
ENDPOINT, ROOT_PORT, UPSTREAM, DOWNSTREAM = 0, 4, 5, 6


@dataclass(frozen=True)
class Device:
    """One function. ``path`` is its sysfs path; ``cap_at`` where its Express capability lies."""

    path: str
    vendor: int
    device: int
    class_code: int
    driver: str = ""
    control: int = CONTROL
    port_type: int = ENDPOINT
    cap_at: int = 0x78
    acs: int | None = None
    width: int = 16
    max_width: int = 16
    speed: str = "32.0 GT/s PCIe"
    max_speed: str = "32.0 GT/s PCIe"

    @property
    def address(self) -> str:
        return self.path.rpartition("/")[2]


def config(device: Device) -> bytes:
    """Its configuration space: a capability of another kind first, Express, then AER and perhaps ACS beyond 256."""
    space = bytearray(4096)

    def put(offset: int, value: int, size: int = 2) -> None:
        space[offset : offset + size] = value.to_bytes(size, "little")

    put(0x00, device.vendor)
    put(0x02, device.device)
    put(0x06, 0x0010)
    put(0x09, device.class_code, 3)
    put(0x34, 0x60, 1)
    put(0x60, device.cap_at << 8 | 0x01)  # power management, then Express
    put(device.cap_at, 0x00 << 8 | 0x10)
    put(device.cap_at + 2, device.port_type << 4 | 2)
    put(device.cap_at + 8, device.control)
    put(device.cap_at + 10, 0x000F)  # Device Status: errors that were seen, cleared by writing 1
    put(0x100, (0x148 if device.acs is not None else 0) << 20 | 2 << 16 | 0x0001, 4)
    if device.acs is not None:
        put(0x148, 1 << 16 | 0x000D, 4)
        put(0x148 + 6, device.acs)
    return bytes(space)


def lay(root: Path, devices: list[Device]) -> None:
    """Lay the bus below a root folder: folders below sys/devices, links to them and to their drivers."""
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    for device in devices:
        folder = root / device.path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        texts = {
            "vendor": f"0x{device.vendor:04x}", "device": f"0x{device.device:04x}",
            "class": f"0x{device.class_code:06x}",
            "current_link_width": str(device.width), "max_link_width": str(device.max_width),
            "current_link_speed": device.speed, "max_link_speed": device.max_speed,
        }  # fmt: skip
        for name, text in texts.items():
            (folder / name).write_text(text + "\n")
        (folder / "config").write_bytes(config(device))
        link = bus / device.address
        if not link.is_symlink():
            link.symlink_to(os.path.relpath(folder, bus))
        if device.driver:
            driver = root / "sys/bus/pci/drivers" / device.driver
            driver.mkdir(parents=True, exist_ok=True)
            (folder / "driver").symlink_to(os.path.relpath(driver, folder))


def root_port(path: str, **changes: object) -> Device:
    """A root port of an AMD server."""
    made = Device(path, 0x1022, 0x14AB, 0x060400, "pcieport", port_type=ROOT_PORT)
    return replace(made, **changes)  # type: ignore[arg-type]


def gpu(path: str, **changes: object) -> Device:
    """A GPU of the nvidia driver."""
    return replace(Device(path, 0x10DE, 0x2BB5, 0x030200, "nvidia"), **changes)  # type: ignore[arg-type]


def case_devices(text: str) -> list[Device]:
    """The devices of case pcie-02, with the bridges that their paths name."""
    found: dict[str, Device] = {}
    for line in text.splitlines():
        path, ids, _, class_text, *_ = line.split()
        vendor, device = (int(part, 16) for part in ids.split(":"))
        parts = path.split("/")
        for end in range(5, len(parts)):
            bridge = "/".join(parts[:end])
            found.setdefault(bridge, root_port(bridge, port_type=ROOT_PORT if end == 5 else UPSTREAM))
        is_gpu = vendor == 0x10DE and int(class_text, 16) >> 16 == 0x03
        driver = "vfio-pci" if "vfio-pci" in line else "nvidia" if is_gpu else ""
        found[path] = Device(path, vendor, device, int(class_text, 16), driver)
    return list(found.values())
