"""GPUs and their links on the PCI bus, from sysfs. Nothing is written, nothing here raises.

A link has two ends: the device, and the port above it. Between a GPU and the root there may be switches, so several
links; the narrowest decides. A virtual machine shows no port, or one that its emulator made up.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from gpu_checks.host_view import NVIDIA_VENDOR, read

GPU_CLASSES = ("0x030000", "0x030200")
"""VGA controller, 3D controller."""

_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
MOST_HOPS = 16
"""A limit for a walk upwards; real hosts have up to four."""

GENERATIONS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0, 7: 128.0}
"""GT/s a lane by PCI Express generation."""


@dataclass(frozen=True)
class Speed:
    """What a link runs at, or what an end can do: GT/s for each lane, and lanes. None: not told, or nonsense."""

    gt_s: float | None = None
    lanes: int | None = None

    @property
    def text(self) -> str:
        """In words."""
        return f"{f'{self.gt_s:g}' if self.gt_s else '?'} GT/s x{self.lanes or '?'}"


@dataclass(frozen=True)
class Link:
    """The link above a device. ``port``: the other end, None where there is none to be seen."""

    device: str
    port: str | None
    can: Speed
    """What both ends can do; of the device alone where no believable port is there."""
    whole: bool
    """Whether both ends are known."""


@dataclass(frozen=True)
class Gpu:
    """A GPU on the bus and the driver that it is bound to (None: none)."""

    address: str
    driver: str | None


def parse_speed(text: str | None) -> float | None:
    """GT/s.

    >>> parse_speed("32.0 GT/s PCIe"), parse_speed("Unknown")
    (32.0, None)
    """
    match = re.match(r"(\d+(?:\.\d+)?) GT/s", text or "")
    found = float(match.group(1)) if match else None
    return found if found in GENERATIONS.values() else None


def parse_lanes(text: str | None) -> int | None:
    """Lanes; 0, 63 and 255 are what a bus says that has no answer.

    >>> parse_lanes("16"), parse_lanes("255")
    (16, None)
    """
    return int(text) if text in ("1", "2", "4", "8", "12", "16", "32") else None


def folder(sys: str, address: str) -> str:
    """A device's folder."""
    return os.path.join(sys, "bus/pci/devices", address)


def gpus(sys: str) -> list[Gpu] | None:
    """NVIDIA's GPUs on the bus, by address; None where the bus can't be seen."""
    try:
        names = sorted(os.listdir(os.path.join(sys, "bus/pci/devices")))
    except OSError:
        return None
    found = []
    for name in names:
        here = folder(sys, name)
        if read(f"{here}/vendor") == NVIDIA_VENDOR and read(f"{here}/class") in GPU_CLASSES:
            driver = os.path.join(here, "driver")
            found.append(Gpu(name, os.path.basename(os.path.realpath(driver)) if os.path.exists(driver) else None))
    return found


def now(sys: str, address: str) -> Speed:
    """What the link above a device runs at."""
    here = folder(sys, address)
    return Speed(parse_speed(read(f"{here}/current_link_speed")), parse_lanes(read(f"{here}/current_link_width")))


def most(sys: str, address: str) -> Speed:
    """What a device can do."""
    here = folder(sys, address)
    return Speed(parse_speed(read(f"{here}/max_link_speed")), parse_lanes(read(f"{here}/max_link_width")))


def path(sys: str, address: str) -> list[str]:
    """The GPU and the bridges above it, upwards to the root port."""
    found, here = [address], os.path.realpath(folder(sys, address))
    for _ in range(MOST_HOPS):
        here = os.path.dirname(here)
        if not _ADDRESS.fullmatch(os.path.basename(here)):
            break
        found.append(os.path.basename(here))
    return found


def both(device: Speed, port: Speed) -> Speed:
    """What two ends can do together."""
    speeds = [each for each in (device.gt_s, port.gt_s) if each is not None]
    lanes = [each for each in (device.lanes, port.lanes) if each is not None]
    return Speed(min(speeds, default=None), min(lanes, default=None))


def exceeds(current: Speed, can: Speed) -> bool:
    """Whether a link is better than one of its ends, which only a made up port can be."""
    return (current.gt_s or 0) > (can.gt_s or 1e9) or (current.lanes or 0) > (can.lanes or 1000)


def links(sys: str, address: str) -> list[Link]:
    """The links from a GPU to the root. One of a switch's own ports to each other is none, and is left out."""
    hops = path(sys, address)
    found = []
    # GPU - port of a switch | the switch's own port upwards - root port: each second step is inside a switch.
    for place in range(0, len(hops), 2):
        device, above = hops[place], hops[place + 1] if place + 1 < len(hops) else None
        can = most(sys, device)
        end = most(sys, above) if above is not None else Speed()
        whole = end.gt_s is not None and end.lanes is not None and not exceeds(now(sys, device), end)
        found.append(Link(device, above if whole else None, both(can, end) if whole else can, whole))
    return [link for link in found if link.device == address or link.whole]
