"""What lies between two GPUs, and what that can carry: tables and arithmetic. Pure.

All speeds are in decimal GB/s, of data, in one direction.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

NVLINK, SAME_SWITCH, SWITCHES, HOST_BRIDGE = "nvlink", "same_switch", "switches", "host_bridge"
SAME_NODE, ACROSS_SOCKETS, STAGED, LOCAL, UNKNOWN = "same_node", "across_sockets", "staged", "local", "unknown"

ANCESTORS = {
    0: (SAME_SWITCH, "INT"),  # two GPUs of one board
    10: (SAME_SWITCH, "PIX"),
    20: (SWITCHES, "PXB"),
    30: (HOST_BRIDGE, "PHB"),
    40: (SAME_NODE, "NODE"),
    50: (ACROSS_SOCKETS, "SYS"),
}
"""nvmlGpuTopologyLevel_t: our class, and the word of ``nvidia-smi topo -m``."""

P2P_WORDS = {
    0: "OK",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled by a registry key of the driver",
    5: "not supported",
    6: "unknown",
}
"""nvmlGpuP2PStatus_t: why the driver lets two GPUs reach each other, or does not."""

NVLINK_RAW = (
    (26.562, 25.0),  # Hopper: 18 links, "900 GB/s" for both directions together
    (53.125, 50.0),  # Blackwell: 18 links, 1800 GB/s
    (25.781, 25.0),  # Volta, Turing
    (25.0, 25.0),  # Ampere GA100: 12 links, 600 GB/s
    (50.0, 50.0),
    (14.0625, 14.0625),  # Ampere GA102: 4 links, 112.5 GB/s
)
"""What NVML says of a link (its signalling), and the nominal speed in NVIDIA's data sheets, GB/s a direction.

The link's *version* is no use: NVML gives an enum for it in which an A100 is 5, and says 7 (5.0) of an H100.
"""

NVLINK_NEAR = 0.005
"""Share by which NVML's number may differ from the table's: it is rounded to MB/s."""

PCIE_LANE = {
    1: 2.5 * 8 / 10 / 8,
    2: 5.0 * 8 / 10 / 8,
    3: 8.0 * 128 / 130 / 8,
    4: 16.0 * 128 / 130 / 8,
    5: 32.0 * 128 / 130 / 8,
}
"""GB/s of a lane by generation: transfers a second, less the line code (PCIe base specification). Generation 6 packs
its data in another way, and nobody has measured it here: not in the table."""

PCIE_PAYLOAD, PCIE_OVERHEAD = 256, 24
"""Bytes of data in a packet, which is what GPUs and most hosts allow, and of what goes with them: 4 framing, 16 header
with a 64-bit address, 4 CRC. 91 %; flow control takes a little more."""


@dataclass(frozen=True)
class Port:
    """A GPU's own PCIe port: the most that GPU and slot can do together (an idle GPU's link runs slower)."""

    generation: int | None = None
    width: int | None = None


@dataclass(frozen=True)
class Link:
    """The way between two GPUs. ``word``: as nvidia-smi calls it. ``shared``: flows to other GPUs share a GPU's port.

    ``nvlinks`` and ``nvlink_raw_gb_s``: how many links, and NVML's number for one of them. ``driver``: what the driver
    says of P2P between the two, in words, for reading and for writing.
    """

    kind: str
    word: str = "?"
    nvlinks: int = 0
    nvlink_raw_gb_s: float | None = None
    shared: bool = True
    generation: int | None = None
    width: int | None = None
    driver: dict[str, str] | None = None

    @property
    def expected_gb_s(self) -> float | None:
        """What the link carries nominally in one direction; None where that is not known.

        Of PCIe it is the limit of the slower of the two GPUs' own ports: what lies between can carry less, and across
        sockets mostly does. A staged copy goes through the host, twice: there is no figure for that.
        """
        if self.kind == NVLINK:
            each = nvlink_gb_s(self.nvlink_raw_gb_s)
            return None if each is None else round(each * self.nvlinks, 3)
        if self.kind in (SAME_SWITCH, SWITCHES, HOST_BRIDGE, SAME_NODE, ACROSS_SOCKETS):
            return pcie_gb_s(self.generation, self.width)
        return None

    def plain(self) -> dict[str, Any]:
        """For the record."""
        return asdict(self)


def nvlink_gb_s(raw_gb_s: float | None) -> float | None:
    """The nominal speed of one NVLink whose signalling NVML gives; None for one that is not in the table.

    >>> nvlink_gb_s(26.562)
    25.0
    """
    if raw_gb_s is None:
        return None
    near = (nominal for raw, nominal in NVLINK_RAW if abs(raw_gb_s - raw) <= NVLINK_NEAR * raw)
    return next(near, None)


def pcie_gb_s(generation: int | None, width: int | None) -> float | None:
    """What a PCIe link carries in data; None where generation or width are not known.

    >>> pcie_gb_s(5, 16)
    57.614
    """
    lane = PCIE_LANE.get(generation or 0)
    if lane is None or not width:
        return None
    return round(lane * width * PCIE_PAYLOAD / (PCIE_PAYLOAD + PCIE_OVERHEAD), 3)


def slower(first: Port, second: Port) -> tuple[int | None, int | None]:
    """Generation and width of the slower of two ports; None where one of them is not known."""
    ports = [(port.generation, port.width) for port in (first, second)]
    speeds = [pcie_gb_s(*port) for port in ports]
    if speeds[0] is None or speeds[1] is None:
        return None, None
    return ports[0] if speeds[0] <= speeds[1] else ports[1]


def link(
    ancestor: int | None,
    direct: int,
    switched: int,
    raw_gb_s: float | None,
    ports: tuple[Port, Port],
    access: bool,
    driver: dict[str, str] | None = None,
) -> Link:
    """The link of a pair.

    ``ancestor``: NVML's level of what both hang below. ``direct``: NVLinks that end at the other GPU; ``switched``:
    those of the GPU with fewer that end at a switch. ``access``: CUDA lets one reach the other.
    """
    kind, word = ANCESTORS.get(-1 if ancestor is None else ancestor, (UNKNOWN, "?"))
    generation, width = slower(*ports)
    if not access:
        # NVLinks that CUDA does not use carry nothing.
        return Link(STAGED, word, shared=True, generation=generation, width=width, driver=driver)
    if direct or switched:
        count = direct or switched
        return Link(NVLINK, f"NV{count}", count, raw_gb_s, shared=not direct, driver=driver)
    return Link(kind, word, generation=generation, width=width, driver=driver)
