"""The PCI bus as sysfs shows it, and which of its functions PCIe tuning is about: GPUs, and what lies above them.

Source of the layout: Documentation/ABI/testing/sysfs-bus-pci. A device's path names every bridge on its way up; the
first one below ``pciDDDD:BB`` is its root port, however many switches lie in between (case pcie-02).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from . import pcie_config
from .errors import stop
from .host_io import Host
from .pcie_config import Registers

DEVICES = "/sys/bus/pci/devices"
LOCKDOWN = "/sys/kernel/security/lockdown"
NVIDIA = 0x10DE
DRIVER = "nvidia"
BMC_VENDORS = {0x1A03: "ASPEED", 0x102B: "Matrox", 0x19E5: "Huawei"}
"""Vendors whose display controllers on servers are those of the board's management controller."""
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]")
"""A full address. Domains of more than four digits are real (Intel VMD begins at 10000)."""
_ROOT_BUS = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_AER_KINDS = ("correctable", "nonfatal", "fatal")
_AER_TOTAL = re.compile(r"^TOTAL_ERR_\w+ (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Wishes:
    """What the inventory says. ``max_read_request_bytes`` 0: MaxReadReq stays as it is, and nothing keeps it."""

    max_read_request_bytes: int = 4096
    bridges: bool = True
    devices: tuple[str, ...] = ()

    def checked(self) -> Wishes:
        """The same. Raises Stop(input.invalid) for a size that is none, or an address without its domain."""
        if self.max_read_request_bytes not in (0, *pcie_config.SIZES):
            observed, sizes = str(self.max_read_request_bytes), ", ".join(map(str, pcie_config.SIZES))
            raise stop("input.invalid", "pcie_tuning_max_read_request_bytes", observed, f"{sizes}, or 0")
        for address in self.devices:
            if not ADDRESS.fullmatch(address):
                raise stop("input.invalid", "pcie_tuning_devices", address, "a full address, such as 0000:01:00.0")
        return self


@dataclass(frozen=True)
class Function:
    """One PCI function. ``path``: every address from the root bus down to its own."""

    path: tuple[str, ...]
    vendor: int
    device: int
    class_code: int
    driver: str = ""
    is_virtual: bool = False

    @property
    def address(self) -> str:
        """Its full address, domain and all."""
        return self.path[-1]

    @property
    def bridges(self) -> tuple[str, ...]:
        """What lies above it, the root port first."""
        return self.path[:-1]

    @property
    def root_port(self) -> str | None:
        """None where none is seen: a virtual machine often shows the device right on its root bus."""
        return self.path[0] if len(self.path) > 1 else None

    @property
    def is_gpu(self) -> bool:
        """An NVIDIA display (VGA) or 3D controller."""
        return self.vendor == NVIDIA and self.class_code >> 8 in (0x0300, 0x0302)

    @property
    def kind(self) -> str:
        """What it is, for people: neither vendor nor class alone says it."""
        base, is_nvidia = self.class_code >> 8, self.vendor == NVIDIA
        if self.is_gpu:
            return "NVIDIA GPU"
        if is_nvidia and base == 0x0680:
            return "NVSwitch"
        if is_nvidia and base == 0x0403:
            return "audio function of an NVIDIA card"
        if base >> 8 == 0x03 and self.vendor in BMC_VENDORS:
            return f"{BMC_VENDORS[self.vendor]} BMC graphics"
        names = {0x02: "network adapter", 0x03: "graphics adapter", 0x06: "bridge"}
        return names.get(base >> 8, f"device of class {self.class_code:06x}")


@dataclass(frozen=True)
class Link:
    """A function's link as the kernel reads it. Speeds in GT/s; 0 where the kernel does not say."""

    speed: float = 0
    max_speed: float = 0
    width: int = 0
    max_width: int = 0


@dataclass(frozen=True)
class Facts:
    """The bus. ``registers`` and ``links`` hold NVIDIA GPUs and what lies above them, by address: nothing else is read.

    ``errors``: AER's totals since boot by address and kind, those that are not 0; of functions that have counters.
    """

    functions: tuple[Function, ...] = ()
    registers: Mapping[str, Registers] = field(default_factory=dict)
    links: Mapping[str, Link] = field(default_factory=dict)
    errors: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    lockdown: str = ""
    bus_perf: bool = False

    @property
    def is_locked_down(self) -> bool:
        """Whether the kernel refuses writes to configuration space: from ``integrity`` on (LOCKDOWN_PCI_ACCESS)."""
        return self.lockdown not in ("", "none")

    @property
    def forbids(self) -> bool:
        """Whether no register may or must be written on this host.

        With ``pci=pcie_bus_perf`` a port may send more in one packet than the device below it accepts; there the kernel
        holds MaxReadReq down to MaxPayload, and whoever raises it breaks reads (drivers/pci/pci.c, pcie_set_readrq).
        """
        return self.is_locked_down or self.bus_perf


@dataclass(frozen=True)
class Selection:
    """What is to be tuned; the GPUs and lookalikes that are left alone, each with why; addresses that nothing has."""

    gpus: tuple[Function, ...] = ()
    left_alone: tuple[tuple[Function, str], ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def root_ports(self) -> tuple[str, ...]:
        """Each once, although several GPUs may share it."""
        return tuple(dict.fromkeys(gpu.root_port for gpu in self.gpus if gpu.root_port is not None))

    @property
    def between(self) -> tuple[str, ...]:
        """Switch ports and bridges between GPU and root port."""
        return tuple(dict.fromkeys(item for gpu in self.gpus for item in gpu.bridges[1:]))


def addresses(path: str) -> tuple[str, ...]:
    """The addresses in a sysfs path below its last root bus (VMD has a bus of its own below a device)."""
    parts = path.split("/")
    begins = max((index for index, part in enumerate(parts) if _ROOT_BUS.fullmatch(part)), default=-1)
    return tuple(part for part in parts[begins + 1 :] if ADDRESS.fullmatch(part))


def choose(functions: tuple[Function, ...], wishes: Wishes) -> Selection:
    """The GPUs to be tuned: those that the nvidia driver has, or exactly those that the inventory names.

    Raises Stop(input.invalid) where it names something else than a GPU.
    """
    known = {item.address: item for item in functions}
    for address in wishes.devices:
        if address in known and not known[address].is_gpu:
            raise stop("input.invalid", "pcie_tuning_devices", f"{address} is a {known[address].kind}", "NVIDIA GPUs")
    gpus, left_alone = [], []
    for item in functions:
        reason = _reason(item, wishes)
        if item.is_gpu and not reason:
            gpus.append(item)
        elif item.is_gpu or item.kind == "NVSwitch" or item.kind.endswith("BMC graphics"):
            left_alone.append((item, reason if item.is_gpu else f"{item.kind}, no GPU"))
    return Selection(tuple(gpus), tuple(left_alone), tuple(item for item in wishes.devices if item not in known))


def _reason(gpu: Function, wishes: Wishes) -> str:
    """Why a GPU is left alone; empty where it is not."""
    if gpu.is_virtual:
        return "a virtual function has no MaxReadReq of its own"
    if wishes.devices:
        return "" if gpu.address in wishes.devices else "not in pcie_tuning_devices"
    if gpu.driver == DRIVER:
        return ""
    if gpu.driver == "vfio-pci":
        return "bound to vfio-pci, given to a virtual machine"
    return f"bound to {gpu.driver}" if gpu.driver else "no driver bound"


def read(host: Host) -> Facts:
    """The bus now."""
    functions = tuple(
        found for name in host.names(DEVICES) if (found := read_function(host, name)) is not None
    )  # fmt: skip
    ours = dict.fromkeys(address for item in functions if item.is_gpu and not item.is_virtual for address in item.path)
    errors = {address: counts for address in ours if (counts := _errors(host, address)) is not None}
    return Facts(
        functions,
        {address: read_registers(host, address) for address in ours},
        {address: _link(host, address) for address in ours},
        errors,
        read_lockdown(host),
        is_bus_perf(host.read_line("/proc/cmdline")),
    )


def is_bus_perf(cmdline: str) -> bool:
    """Whether the kernel's command line has ``pci=...,pcie_bus_perf`` (kernel-parameters.txt)."""
    options = [word.removeprefix("pci=").split(",") for word in cmdline.split() if word.startswith("pci=")]
    return any("pcie_bus_perf" in item for item in options)


def read_function(host: Host, address: str) -> Function | None:
    """One function; None where there is none (any more)."""
    folder = f"{DEVICES}/{address}"
    path = addresses(host.resolved(folder) or "")
    numbers = [host.read_line(f"{folder}/{name}") for name in ("vendor", "device", "class")]
    if not path or not all(numbers):
        return None
    vendor, device, class_code = (int(text, 16) for text in numbers)
    driver = (host.resolved(f"{folder}/driver") or "").rpartition("/")[2]
    return Function(path, vendor, device, class_code, driver, host.exists(f"{folder}/physfn"))


def read_registers(host: Host, address: str) -> Registers:
    """One function's registers, read piece by piece."""
    return pcie_config.parse(lambda offset, length: host.read_at(config_path(address), offset, length))


def config_path(address: str) -> str:
    """The kernel's file of a function's configuration space."""
    return f"{DEVICES}/{address}/config"


def read_lockdown(host: Host) -> str:
    """``none``, ``integrity``, ``confidentiality``; empty where the kernel does not say."""
    chosen = re.search(r"\[(\w+)\]", host.read(LOCKDOWN) or "")
    return chosen.group(1) if chosen else ""


def _link(host: Host, address: str) -> Link:
    def number(name: str) -> float:
        text = host.read_line(f"{DEVICES}/{address}/{name}").partition(" ")[0]
        return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else 0

    widths = [int(number(name)) for name in ("current_link_width", "max_link_width")]
    widths = [0 if width > 32 else width for width in widths]  # 63 and 255: nothing is known
    return Link(number("current_link_speed"), number("max_link_speed"), widths[0], widths[1])


def _errors(host: Host, address: str) -> dict[str, int] | None:
    """None where the kernel does not count them: no AER, or the firmware keeps it to itself."""
    texts = {kind: host.read(f"{DEVICES}/{address}/aer_dev_{kind}") for kind in _AER_KINDS}
    totals = {kind: _AER_TOTAL.search(text) for kind, text in texts.items() if text is not None}
    if not totals:
        return None
    return {kind: int(total.group(1)) for kind, total in totals.items() if total and int(total.group(1))}
