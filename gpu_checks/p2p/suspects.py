"""Facts for somebody who looks for why data does not get from GPU to GPU. They are read, never changed.

Two are behind most reports: address translation by an IOMMU, and ACS on the bridges above the GPUs, which sends their
packets up to the root complex. In a container, or without root, part of it can't be read: None.
"""

from __future__ import annotations

import os
import re
import struct
from typing import Any

from gpu_checks.host_view import read
from gpu_checks.nvml_api import address_of

EXTENDED, ACS = 0x100, 0x000D
"""Where the extended capabilities begin, and the one for access control (PCI Express base specification)."""

ACS_CONTROL = 6
ACS_BITS = {0: "source_validation", 1: "translation_blocking", 2: "request_redirect", 3: "completion_redirect"}
ACS_BITS.update({4: "upstream_forwarding", 5: "egress_control", 6: "direct_translated"})

CAPABILITIES = 64
"""More than fit into a configuration space: ends a chain that goes in circles."""

BRIDGE = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def acs_control(config: bytes) -> int | None:
    """The ACS control register in a configuration space; None where the bridge has none, or it can't be read."""
    place = EXTENDED
    for _ in range(CAPABILITIES):
        if place < EXTENDED or place + 8 > len(config):
            return None
        (head,) = struct.unpack_from("<I", config, place)
        if head & 0xFFFF == ACS:
            return int(struct.unpack_from("<H", config, place + ACS_CONTROL)[0])
        place = head >> 20
    return None


def acs_words(control: int) -> list[str]:
    """What the register switches on.

    >>> acs_words(0x1d)
    ['source_validation', 'request_redirect', 'completion_redirect', 'upstream_forwarding']
    """
    return [name for bit, name in ACS_BITS.items() if control >> bit & 1]


def bridges_above(address: str, sys: str = "/sys") -> list[str]:
    """The bridges between a GPU and its root complex, from the top."""
    path = os.path.realpath(os.path.join(sys, "bus/pci/devices", address_of(address)))
    return [part for part in path.split(os.sep)[:-1] if BRIDGE.fullmatch(part)]


def _acs(bridge: str, sys: str) -> dict[str, Any]:
    try:
        with open(os.path.join(sys, "bus/pci/devices", bridge, "config"), "rb") as file:
            config = file.read(4096)
    except OSError:
        config = b""
    control = acs_control(config)
    # Without root only the first 64 bytes are given out: not having read it is not the same as not having it.
    words = None if control is None else acs_words(control)
    return {"bridge": bridge, "acs": words, "readable": len(config) > EXTENDED}


def suspects(addresses: list[str], sys: str = "/sys", proc: str = "/proc") -> dict[str, Any]:
    """IOMMU and ACS as they are now, for these GPUs (PCI addresses)."""
    line = read(os.path.join(proc, "cmdline"))
    bridges = sorted({bridge for address in addresses for bridge in bridges_above(address, sys)})
    groups = {}
    for address in addresses:
        plain = address_of(address)
        groups[plain] = read(os.path.join(sys, "bus/pci/devices", plain, "iommu_group/type"))
    return {
        "iommu_type": groups,
        "iommu_arguments": None if line is None else [word for word in line.split() if "iommu" in word],
        "bridges": [_acs(bridge, sys) for bridge in bridges],
    }


def in_words(found: dict[str, Any], by_nvlink: bool) -> str:
    """The suspects in half a sentence, for the message of a hang. NVLink knows nothing of bridges and IOMMUs."""
    if by_nvlink:
        return "NVLink joins these GPUs: first suspects are their links (the check health) and the fabric manager"
    redirecting = [each["bridge"] for each in found["bridges"] if "request_redirect" in (each["acs"] or ())]
    unread = any(not each["readable"] for each in found["bridges"]) or not found["bridges"]
    if redirecting:
        acs = f"ACS redirects requests on {', '.join(redirecting)}"
    else:
        acs = "ACS of the bridges can't be read here" if unread else "ACS redirects nothing"
    kinds = sorted({kind or "unknown" for kind in found["iommu_type"].values()})
    return f"first suspects are ACS and IOMMU: {acs}; IOMMU type {', '.join(kinds)}"
