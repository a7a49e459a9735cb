"""Ask NVML what lies between two GPUs. Without NVML every answer is that nothing is known."""

from __future__ import annotations

from ctypes import byref, c_int, c_uint, c_void_p
from dataclasses import dataclass, field

from gpu_checks.nvml import Session
from gpu_checks.nvml_api import SUCCESS, Library, PciInfo, address_of
from gpu_checks.p2p import links
from gpu_checks.p2p.links import Link, Port

MOST_LINKS = 36
"""More than a GPU has (18); the question for one that there is not ends the loop."""

ENABLED = 1
"""NVML_FEATURE_ENABLED."""

REMOTE_GPU = 0
"""NVML_NVLINK_DEVICE_TYPE_GPU; 2 is a switch, 255 not known, as in a virtual machine that has the GPUs alone."""

SPEED_COMMON, SPEED_OF_LINK = 90, 164
"""NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON and NVML_FI_DEV_NVLINK_GET_SPEED, both in MB/s; older drivers lack the second,
and the first is not answered for every newer GPU."""

READ, WRITE, BY_NVLINK = 0, 1, 2
"""nvmlGpuP2PCapsIndex_t."""


@dataclass(frozen=True)
class Device:
    """What NVML says of one GPU's ports. ``remotes``: for each active NVLink the address of the GPU at its other end,
    None where that is no GPU."""

    port: Port = field(default_factory=Port)
    remotes: list[str | None] = field(default_factory=list)
    raw_gb_s: float | None = None


def _remote(nvml: Library, device: c_void_p, number: int) -> str | None:
    """The GPU at the other end of an NVLink; None for a switch, or where NVML does not say."""
    if nvml.number("nvmlDeviceGetNvLinkRemoteDeviceType", device, c_uint(number)) not in (REMOTE_GPU, None):
        return None
    info = PciInfo()
    names = "nvmlDeviceGetNvLinkRemotePciInfo_v2"
    if nvml.ask(names, device, c_uint(number), byref(info)) != SUCCESS:
        return None
    return address_of(info.bus_id.decode("ascii", "replace"))


def read_device(nvml: Library | None, device: c_void_p | None) -> Device:
    """The ports of one GPU."""
    if nvml is None or device is None:
        return Device()
    port = Port(
        generation=nvml.number("nvmlDeviceGetMaxPcieLinkGeneration", device),
        width=nvml.number("nvmlDeviceGetMaxPcieLinkWidth", device),
    )
    remotes: list[str | None] = []
    first = None
    for number in range(MOST_LINKS):
        state = nvml.number("nvmlDeviceGetNvLinkState", device, c_uint(number))
        if state is None:
            break
        if state == ENABLED:
            first = number if first is None else first
            remotes.append(_remote(nvml, device, number))
    raw = None
    if first is not None:
        said = nvml.fields(device, [(SPEED_OF_LINK, first), (SPEED_COMMON, 0)])
        raw = next((value / 1000 for value in said if value), None)
    return Device(port, remotes, raw)


def nvlinks(devices: tuple[Device, Device], addresses: tuple[str, str], by_nvlink: int | None) -> tuple[int, int]:
    """How many NVLinks join two GPUs directly, and how many through switches.

    ``by_nvlink``: NVML's status for P2P by NVLink, 0 where it works. Links that end at no GPU count only where NVML
    says that they lead to this one: a GPU can have links to switches that are not set up.
    """
    direct = devices[0].remotes.count(addresses[1])
    if direct:
        return direct, 0
    switched = min(device.remotes.count(None) for device in devices)
    return 0, switched if by_nvlink == 0 else 0


def read_links(session: Session, addresses: list[str], access: list[list[bool]]) -> dict[tuple[int, int], Link]:
    """The link of every ordered pair of these GPUs (PCI addresses, as CUDA or NVML write them)."""
    nvml = session.library
    handles = [session.handle(address) for address in addresses]
    devices = [read_device(nvml, handle) for handle in handles]
    plain = [address_of(address) for address in addresses]
    found = {}
    for i, first in enumerate(handles):
        for j, second in enumerate(handles):
            ancestor, said = None, {}
            if i == j:
                found[i, j] = Link(links.LOCAL, "X")
                continue
            if nvml is not None and first is not None and second is not None:
                ancestor = nvml.number("nvmlDeviceGetTopologyCommonAncestor", first, second)
                for name, index in (("read", READ), ("write", WRITE), ("nvlink", BY_NVLINK)):
                    status = nvml.number("nvmlDeviceGetP2PStatus", first, second, c_int(index))
                    if status is not None:
                        said[name] = status
            pair = (devices[i], devices[j])
            direct, switched = nvlinks(pair, (plain[i], plain[j]), said.get("nvlink"))
            words = {name: links.P2P_WORDS.get(status, str(status)) for name, status in said.items()}
            found[i, j] = links.link(
                ancestor, direct, switched, devices[i].raw_gb_s, (pair[0].port, pair[1].port), access[i][j], words
            )
    return found
