"""The NVLinks of a GPU: how many there are, how many are up, and whether one is down that should be up."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import c_int, c_uint, c_void_p
from dataclasses import dataclass

from gpu_checks.device_nodes import Reason
from gpu_checks.nvml_api import Library

MAX_LINKS = 18
"""NVML_NVLINK_MAX_LINKS of driver 580; a GPU with fewer gives no answer for the rest."""

SWITCH = 2
"""NVML_NVLINK_DEVICE_TYPE_SWITCH; 0 is a GPU, 255 unknown."""

COUNTERS = {0: "replay", 1: "recovery", 2: "crc_flit", 3: "crc_data"}
"""nvmlNvLinkErrorCounter_t."""


@dataclass(frozen=True)
class NvLinks:
    """The links of one GPU by number: up or not; what the other ends are; errors, all links together, by name."""

    kind: str
    up: Mapping[int, bool]
    switched: bool
    errors: Mapping[str, int]

    @property
    def active(self) -> int:
        """How many are up."""
        return sum(self.up.values())

    @property
    def down(self) -> list[int]:
        """The numbers of those that are not."""
        return [number for number, state in self.up.items() if not state]


def ask(nvml: Library, device: c_void_p) -> NvLinks | None:
    """The links of one GPU; None where it has none, or has MIG on: then all are down, and that is right."""
    if nvml.mig_on(device):
        return None
    states = {link: nvml.number("nvmlDeviceGetNvLinkState", device, c_uint(link)) for link in range(MAX_LINKS)}
    up = {link: bool(state) for link, state in states.items() if state is not None}
    if not up:
        return None
    active = [link for link, state in up.items() if state]
    ends = {nvml.number("nvmlDeviceGetNvLinkRemoteDeviceType", device, c_uint(link)) for link in active[:1]}
    errors: dict[str, int] = {}
    for link in active:
        for number, name in COUNTERS.items():
            count = nvml.long_number("nvmlDeviceGetNvLinkErrorCounter", device, c_uint(link), c_int(number))
            if count is not None:
                errors[name] = errors.get(name, 0) + count
    return NvLinks(nvml.text("nvmlDeviceGetName", device) or "", up, SWITCH in ends, errors)


def judge(links: NvLinks, others: list[NvLinks]) -> Reason | None:
    """Whether a link is down that should be up.

    Behind a switch all are wired. Between GPUs that bridges connect, some may well lead nowhere, or all: there a GPU
    that is connected is compared with those of its kind. What all of them lack is shown and not judged; a baseline can.
    """
    numbers = ", ".join(str(number) for number in links.down)
    said = f"{links.active} of {len(links.up)} NVLinks are up, down: {numbers}"
    if links.down and links.switched:
        return Reason("health.nvlink_down", f"{said}; behind a switch all are wired")
    kin = [each for each in others if each.kind == links.kind and (links.active or each.switched)]
    most = max((each.active for each in kin), default=0)
    if links.active < most:
        return Reason("health.nvlink_down", f"{said}; another GPU of this kind has {most}")
    return None
