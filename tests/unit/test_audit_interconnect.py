"""The interconnect domain. The tables are in the form of the captured ones (escape sequences and all)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_host import FakeHost
from fake_pcie import case_devices, gpu, lay
from fake_snapshot import snapshot

from gpuhost import audit_interconnect
from gpuhost.audit_interconnect import Facts, parse_matrix

CASES = Path(__file__).parents[1] / "cases"
FOUR = tuple(f"0000:{number}1:00.0" for number in range(4))
PAIRS = [("GPU0", "GPU1"), ("GPU0", "GPU2"), ("GPU0", "GPU3"), ("GPU1", "GPU2"), ("GPU1", "GPU3"), ("GPU2", "GPU3")]
GOOD = Facts(
    gpus=FOUR, ways=dict.fromkeys(PAIRS, "NV18"), peers=dict.fromkeys(PAIRS, "OK"),
    gpu_nodes=dict(zip(FOUR, (0, 0, 1, 1), strict=True)), distances={0: (10, 32), 1: (32, 10)},
)  # fmt: skip
WITH_NICS = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tPIX\tPXB\t0-31\t0\t\tN/A
GPU1\tPIX\t X \tSYS\t0-31\t0\t\tN/A
NIC0\tPXB\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)

NIC Legend:

  NIC0: mlx5_0
"""


def of(facts: Facts) -> dict[str, tuple[str, str]]:
    return {item.id.partition(".")[2]: (item.severity, item.observed) for item in audit_interconnect.findings(facts)}


def test_the_captured_tables() -> None:
    runs = snapshot("vm-intel-2gpu").runs
    assert parse_matrix(runs["nvidia-smi", "topo", "-m"][1]) == {("GPU0", "GPU1"): "NV18"}
    assert parse_matrix(runs["nvidia-smi", "topo", "-p2p", "r"][1]) == {("GPU0", "GPU1"): "OK"}


def test_network_cards_are_in_the_table_and_in_no_pair() -> None:
    found = parse_matrix(WITH_NICS)
    assert found == {("GPU0", "GPU1"): "PIX", ("GPU0", "NIC0"): "PXB", ("GPU1", "NIC0"): "SYS"}
    two = replace(GOOD, gpus=FOUR[:2], ways=found)
    assert of(two)["nvlink"] == ("info", "no NVLink: 1 pair below one PCIe switch (PIX)")


@pytest.mark.parametrize("text", ["", "No devices were found\n", "GPU0\tX\n"])
def test_no_table_gives_no_pair(text: str) -> None:
    assert parse_matrix(text) == {}


def test_linked_everywhere() -> None:
    found = of(GOOD)
    assert found["nvlink"] == ("good", "NVLink between all 4 GPUs (NV18)")
    assert found["p2p"] == ("good", "allowed between all 4 GPUs")
    assert found["numa"][1] == "2 GPUs at node 0, 2 GPUs at node 1; the farthest node at distance 32 (own: 10)"


def test_a_bridge_between_two_and_fewer_links_are_told() -> None:
    ways = {pair: "NV12" if pair == PAIRS[0] else "SYS" for pair in PAIRS}
    text = "NVLink between 1 of 6 pairs; 5 pairs across sockets or NUMA nodes (SYS)"
    assert of(replace(GOOD, ways=ways))["nvlink"] == ("info", text)
    ways = {pair: "NV17" if pair == PAIRS[0] else "NV18" for pair in PAIRS}
    assert of(replace(GOOD, ways=ways))["nvlink"] == ("info", "NVLink between all 4 GPUs (NV17, NV18)")


def test_switches_without_links_are_a_fault() -> None:
    found = of(replace(GOOD, ways=dict.fromkeys(PAIRS, "SYS"), switches=("0000:81:00.0",)))
    assert found["fabric_down"][0] == "p0_runtime"
    assert "fabric_down" not in of(replace(GOOD, switches=("0000:81:00.0",)))


def test_peer_access_that_is_refused_is_told_with_its_reason() -> None:
    peers = {pair: "CNS" if pair == PAIRS[5] else "OK" for pair in PAIRS}
    assert of(replace(GOOD, peers=peers))["p2p"] == ("info", "1 of 6 pairs: the chipset does not support it (CNS)")
    assert of(replace(GOOD, peers=dict.fromkeys(PAIRS, "U")))["p2p"][0] == "unknown"


def test_without_an_answer() -> None:
    found = of(replace(GOOD, ways={}, peers={}, unknown="nvidia-smi: killed after 30 s"))
    assert found["nvlink"] == ("unknown", "unknown: nvidia-smi: killed after 30 s")
    assert found["p2p"][0] == "unknown"


def test_no_numa_node() -> None:
    alone = dict.fromkeys(FOUR, -1)
    assert of(replace(GOOD, gpu_nodes=alone))["numa"][0] == "unknown"
    assert of(replace(GOOD, gpu_nodes=alone, guest=True))["numa"][0] == "info"


@pytest.mark.parametrize("gpus", [(), FOUR[:1]])
def test_no_pair(gpus: tuple[str, ...]) -> None:
    found = of(replace(GOOD, gpus=gpus, lookalikes=(("0000:52:00.0", "ASPEED BMC graphics"),)))
    assert found["nvlink"][1].startswith("not applicable: ")
    assert set(found) == {"nvlink", "lookalike"}


def test_the_bus_of_the_case(tmp_path: Path) -> None:
    """Case pcie-02: the BMC is named for what it is, a GPU of a virtual machine is not the host's own."""
    host = FakeHost(tmp_path)
    lay(host.root, case_devices((CASES / "pcie-02-which-devices.in.txt").read_text()))
    facts = audit_interconnect.read(host)
    assert facts.lookalikes == (("0000:52:00.0", "ASPEED BMC graphics"),)
    assert facts.switches == ("0000:81:00.0",)
    assert facts.gpus == ("0000:01:00.0", "0000:43:00.0", "0000:44:00.0", "0001:c1:00.0")
    assert [call[:2] for call in host.calls] == [["nvidia-smi", "topo"]] * 2


def test_one_gpu_asks_no_program(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    lay(host.root, [gpu("/sys/devices/pci0000:00/0000:00:01.1/0000:01:00.0")])
    audit_interconnect.read(host)
    assert host.calls == []
