"""The domain *interconnect*: how GPUs reach each other, and what only looks as if it had to do with it.

``nvidia-smi topo -m`` and ``topo -p2p r``, once each for all GPUs; NUMA from /sys. "OK" in the matrix says that the
driver allows peer access, not that data arrives: that is measured by the gate (case cuda-02).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from . import pcie_tree
from .audit_firmware import NODES, is_guest
from .documents import Finding, Severity
from .host_io import Host

DOMAIN = "interconnect"
TOPOLOGY, PEERS = ["nvidia-smi", "topo", "-m"], ["nvidia-smi", "topo", "-p2p", "r"]
LIMIT_S = 30.0

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_DEVICE = re.compile(r"(?:GPU|NIC)\d+")
_GPU = re.compile(r"GPU\d+")
_NVLINK = re.compile(r"NV\d+")
STATUS = {
    "OK": "allowed", "CNS": "the chipset does not support it", "GNS": "these GPUs do not support it",
    "TNS": "the topology does not support it", "NS": "not supported", "DR": "disabled by a registry key",
    "U": "unknown",
}  # fmt: skip
"""What the words of ``topo -p2p`` mean: its own legend."""
WAYS = {
    "PIX": "below one PCIe switch", "PXB": "over several PCIe switches", "PHB": "over a PCIe host bridge",
    "NODE": "over host bridges of one NUMA node", "SYS": "across sockets or NUMA nodes",
}  # fmt: skip

Matrix = Mapping[tuple[str, str], str]


@dataclass(frozen=True)
class Facts:
    """``ways`` and ``peers``: (GPU0, GPU1) to the word of nvidia-smi's table; each pair once."""

    gpus: tuple[str, ...] = ()
    """PCI addresses of the GPUs that this host itself uses, in the bus's order."""
    ways: Matrix = field(default_factory=dict)
    peers: Matrix = field(default_factory=dict)
    gpu_nodes: Mapping[str, int] = field(default_factory=dict)
    """Address to NUMA node; -1 where the kernel does not say."""
    distances: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    lookalikes: tuple[tuple[str, str], ...] = ()
    """(address, what it is) of what is often taken for a part of the interconnect."""
    switches: tuple[str, ...] = ()
    """NVSwitches on the bus."""
    guest: bool = False
    unknown: str = ""


def parse_matrix(text: str) -> dict[tuple[str, str], str]:
    """A table of nvidia-smi topo, GPUs and NICs; each pair once, in the table's order. Other columns are left out."""
    lines = [_ANSI.sub("", line) for line in text.splitlines()]
    header: list[str] = []
    found: dict[tuple[str, str], str] = {}
    for line in lines:
        cells = [cell.strip() for cell in line.split("\t")]
        if not header and any(_DEVICE.fullmatch(cell) for cell in cells[1:]):
            header = cells
        elif header and _DEVICE.fullmatch(cells[0]):
            for name, word in zip(header[1:], cells[1:], strict=False):
                if _DEVICE.fullmatch(name) and word not in ("X", "") and (name, cells[0]) not in found:
                    found[cells[0], name] = word
    return found


def read(host: Host) -> Facts:
    """The bus, and two programs where at least two GPUs have the driver."""
    functions = [item for name in host.names(pcie_tree.DEVICES) if (item := pcie_tree.read_function(host, name))]
    gpus = [item for item in functions if item.is_gpu and not item.is_virtual and item.driver != "vfio-pci"]
    ways, peers, unknown = {}, {}, ""
    if sum(item.driver == pcie_tree.DRIVER for item in gpus) > 1:
        said = {name: host.run(argv, timeout_s=LIMIT_S) for name, argv in (("m", TOPOLOGY), ("p", PEERS))}
        ways, peers = (parse_matrix(said[name].stdout) if said[name].rc == 0 else {} for name in ("m", "p"))
        unknown = "" if ways else said["m"].last_line
    nodes = [name for name in host.names(NODES) if re.fullmatch(r"node\d+", name)]
    return Facts(
        gpus=tuple(item.address for item in gpus),
        ways=ways,
        peers=peers,
        gpu_nodes={
            item.address: _number(host.read_line(f"{pcie_tree.DEVICES}/{item.address}/numa_node")) for item in gpus
        },
        distances={int(name[4:]): _distances(host.read_line(f"{NODES}/{name}/distance")) for name in nodes},
        lookalikes=tuple((item.address, item.kind) for item in functions if item.kind.endswith("BMC graphics")),
        switches=tuple(item.address for item in functions if item.kind == "NVSwitch"),
        guest=is_guest(host),
        unknown=unknown,
    )


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"-?\d+", text) else -1


def _distances(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split() if word.isdecimal())


def _pairs(matrix: Matrix) -> dict[tuple[str, str], str]:
    return {pair: word for pair, word in matrix.items() if all(_GPU.fullmatch(name) for name in pair)}


def findings(facts: Facts) -> tuple[Finding, ...]:
    """All of them."""
    found = [*_lookalikes(facts)]
    if len(facts.gpus) < 2:
        number = "one GPU" if facts.gpus else "no NVIDIA GPU"
        observed = f"not applicable: {number} that the host itself uses"
        return (_finding("interconnect.nvlink", "info", observed, "", "There is no pair.", pcie_tree.DEVICES), *found)
    return (*_nvlink(facts), _p2p(facts), *_numa(facts), *found)


def _finding(
    code: str, severity: Severity, observed: str, expected: str, why: str, source: str, fix: str = ""
) -> Finding:
    return Finding(code, DOMAIN, severity, observed, expected, why, fix, source)


def _counted(pairs: Mapping[tuple[str, str], str], words: Mapping[str, str]) -> str:
    """``12 pairs across sockets (SYS), 16 pairs ...``, the most frequent first."""
    counts = Counter(pairs.values()).most_common()
    return ", ".join(
        f"{number} pair{'s' if number > 1 else ''} {words.get(word, 'linked by')} ({word})" for word, number in counts
    )


def _nvlink(facts: Facts) -> Iterator[Finding]:
    code, source = "interconnect.nvlink", " ".join(TOPOLOGY)
    why = "NVLink moves several times what PCIe does; without it GPU-to-GPU traffic shares the PCIe links."
    pairs = _pairs(facts.ways)
    if not pairs:
        yield _finding(code, "unknown", f"unknown: {facts.unknown or 'no table'}", "", why, source)
        return
    linked = {pair: word for pair, word in pairs.items() if _NVLINK.fullmatch(word)}
    if not linked:
        observed = f"no NVLink: {_counted(pairs, WAYS)}"
        yield _finding(code, "info", observed, "", why, source)
    elif len(linked) == len(pairs):
        kinds = ", ".join(sorted(set(linked.values())))
        observed = f"NVLink between all {len(facts.gpus)} GPUs ({kinds})"
        # Unequal numbers of links: some are down, or the bridges differ.
        yield _finding(code, "good" if len(set(linked.values())) == 1 else "info", observed, "", why, source)
    else:
        rest = {pair: word for pair, word in pairs.items() if pair not in linked}
        observed = f"NVLink between {len(linked)} of {len(pairs)} pairs; {_counted(rest, WAYS)}"
        yield _finding(code, "info", observed, "", why, source)
    if facts.switches and not linked:
        observed = f"{len(facts.switches)} NVSwitches on the bus, and no GPU has a link"
        fix = "systemctl status nvidia-fabricmanager; nvidia-smi nvlink -s"
        yield _finding("interconnect.fabric_down", "p0_runtime", observed, "links to the switches", why, source, fix)


def _p2p(facts: Facts) -> Finding:
    code, source, expected = "interconnect.p2p", " ".join(PEERS), "allowed between all GPUs"
    why = "Without peer access every transfer between GPUs is copied through host memory. Whether it works is measured."
    pairs = _pairs(facts.peers)
    if not pairs:
        return _finding(code, "unknown", "unknown: nvidia-smi gives no table", expected, why, source)
    bad = {pair: word for pair, word in pairs.items() if word != "OK"}
    if not bad:
        return _finding(code, "good", f"allowed between all {len(facts.gpus)} GPUs", expected, why, source)
    texts = ", ".join(
        f"{number} of {len(pairs)} pairs: {STATUS.get(word, word)} ({word})"
        for word, number in Counter(bad.values()).most_common()
    )
    severity: Severity = "unknown" if set(bad.values()) == {"U"} else "info"
    return _finding(code, severity, texts, expected, why, source)


def _numa(facts: Facts) -> Iterator[Finding]:
    code, why = (
        "interconnect.numa",
        "A process that feeds a GPU from the other socket's memory crosses between sockets.",
    )
    source = f"{pcie_tree.DEVICES}/*/numa_node"
    by_node = Counter(facts.gpu_nodes.values())
    if set(by_node) <= {-1}:
        severity: Severity = "info" if facts.guest or len(facts.distances) <= 1 else "unknown"
        where = "one NUMA node" if len(facts.distances) <= 1 else "unknown: the kernel gives no GPU a node"
        yield _finding(code, severity, where, "", why, source)
        return
    texts = ", ".join(f"{number} GPUs at node {node}" for node, number in sorted(by_node.items()))
    # A node's list has the distances to the nodes that are online, itself among them with 10.
    far = max((max(item) for item in facts.distances.values() if item), default=0)
    distance = f"; the farthest node at distance {far} (own: 10)" if len(facts.distances) > 1 and far else ""
    yield _finding(code, "info", texts + distance, "", why, source)


def _lookalikes(facts: Facts) -> Iterator[Finding]:
    for address, kind in facts.lookalikes:
        yield _finding(
            "interconnect.lookalike", "info", f"{address} is {kind}, no part of any interconnect", "",
            "A board's management controller shows a VGA device on the PCI bus; it is no NVSwitch.", pcie_tree.DEVICES,
        )  # fmt: skip
