"""A PCI bus as sysfs shows it: devices in their folders, one below the other, and links to them by address."""

from __future__ import annotations

from pathlib import Path

GPU = {"vendor": "0x10de", "class": "0x030200"}
BRIDGE = {"vendor": "0x8086", "class": "0x060400"}
LINK = {"speed": "32.0 GT/s PCIe", "width": "16"}


class Bus:
    """Builds and changes the tree."""

    def __init__(self, sys: Path) -> None:
        self.sys = sys
        (sys / "bus/pci/devices").mkdir(parents=True)

    def add(self, *path: str, gpu: bool = True) -> None:
        """A chain of devices, the port at the root first; the last one is a GPU bound to nvidia."""
        folder = self.sys / "devices/pci0000:00"
        for address in path:
            folder = folder / address
            last = gpu and address == path[-1]
            folder.mkdir(parents=True, exist_ok=True)
            files = {**(GPU if last else BRIDGE)}
            files.update({f"{kind}_link_{name}": text for kind in ("current", "max") for name, text in LINK.items()})
            for name, text in files.items():
                (folder / name).write_text(f"{text}\n")
            link = self.sys / "bus/pci/devices" / address
            if not link.is_symlink():
                link.symlink_to(folder)
            if last:
                self.bind(address, "nvidia")

    def bind(self, address: str, driver: str) -> None:
        """Give a device a driver."""
        target = self.sys / "bus/pci/drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        link = self.sys / "bus/pci/devices" / address / "driver"
        link.unlink(missing_ok=True)
        link.symlink_to(target)

    def write(self, address: str, **files: str) -> None:
        """Change what a device shows."""
        for name, text in files.items():
            (self.sys / "bus/pci/devices" / address / name).write_text(f"{text}\n")
