"""What a link should carry, by hand; and what NVML's answers make of a pair."""

from __future__ import annotations

import doctest
from ctypes import c_uint

import pytest

from gpu_checks.nvml_api import SUCCESS
from gpu_checks.p2p import chase as p2p_chase
from gpu_checks.p2p import copies as p2p_copy
from gpu_checks.p2p import links as p2p_links
from gpu_checks.p2p import overall as p2p_overall
from gpu_checks.p2p import plan as p2p_plan
from gpu_checks.p2p import results as p2p_results
from gpu_checks.p2p import suspects as p2p_suspects
from gpu_checks.p2p import topology as p2p_topology
from gpu_checks.p2p.links import Link, Port, link, nvlink_gb_s, pcie_gb_s, slower

MODULES = (p2p_chase, p2p_copy, p2p_links, p2p_overall, p2p_plan, p2p_results, p2p_suspects)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_examples_are_true(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("generation", "width", "gb_s"),
    [
        (5, 16, 57.614),  # 32 GT/s * 16 / 8 = 64; * 128/130 = 63.015; * 256/280 = 57.613
        (4, 16, 28.807),
        (3, 16, 14.404),  # 15.754 * 256/280
        (4, 8, 14.404),
        (1, 16, 3.657),  # 4.0 * 256/280
        (6, 16, None),  # not in the table
        (5, 0, None),
        (None, 16, None),
        (5, None, None),
    ],
)
def test_pcie(generation, width, gb_s):
    assert pcie_gb_s(generation, width) == gb_s


@pytest.mark.parametrize(
    ("raw", "nominal"),
    [(26.562, 25.0), (53.125, 50.0), (25.781, 25.0), (25.0, 25.0), (14.062, 14.0625), (31.0, None), (None, None)],
)
def test_nvlink(raw, nominal):
    assert nvlink_gb_s(raw) == nominal


def test_an_h200_pair_has_450_gb_s():
    found = link(50, 0, 18, 26.562, (Port(5, 16), Port(5, 16)), True)
    assert (found.kind, found.word, found.expected_gb_s, found.shared) == ("nvlink", "NV18", 450.0, True)


def test_links_that_join_two_gpus_directly_are_nobody_elses():
    found = link(20, 4, 0, 14.0625, (Port(4, 16), Port(4, 16)), True)
    assert (found.word, found.expected_gb_s, found.shared) == ("NV4", 56.25, False)


def test_nvlink_of_a_speed_that_nobody_knows_has_no_expectation():
    assert link(50, 0, 18, 99.0, (Port(), Port()), True).expected_gb_s is None


@pytest.mark.parametrize(
    ("ancestor", "kind", "word"),
    [
        (10, "same_switch", "PIX"),
        (20, "switches", "PXB"),
        (30, "host_bridge", "PHB"),
        (40, "same_node", "NODE"),
        (50, "across_sockets", "SYS"),
        (None, "unknown", "?"),
        (77, "unknown", "?"),
    ],
)
def test_classes(ancestor, kind, word):
    found = link(ancestor, 0, 0, None, (Port(5, 16), Port(4, 16)), True)
    assert (found.kind, found.word) == (kind, word)
    # The slower of both ports; of what is not known nothing is expected.
    assert found.expected_gb_s == (None if kind == "unknown" else 28.807)


def test_without_access_a_copy_is_staged_whatever_links_there_are():
    found = link(30, 0, 18, 26.562, (Port(5, 16), Port(5, 16)), False)
    assert (found.kind, found.word, found.expected_gb_s) == ("staged", "PHB", None)


def test_the_slower_port():
    assert slower(Port(5, 8), Port(4, 16)) == (5, 8)  # both 28.8: the first
    assert slower(Port(5, 16), Port(5, 4)) == (5, 4)
    assert slower(Port(5, 16), Port()) == (None, None)


class FakeNvml:
    """NVML of GPUs whose NVLinks lead to ``remotes``: an address, or None for a switch."""

    def __init__(self, remotes, common=10, p2p=0, speeds=(26562, None)):
        self.remotes, self.common, self.p2p, self.speeds = remotes, common, p2p, speeds
        self.active = [True] * len(remotes)

    def number(self, name, *arguments):
        if name == "nvmlDeviceGetNvLinkState":
            at = arguments[1].value
            return int(self.active[at]) if at < len(self.remotes) else None
        if name == "nvmlDeviceGetNvLinkRemoteDeviceType":
            return 0 if self.remotes[arguments[1].value] else 2
        answers = {
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetTopologyCommonAncestor": self.common,
            "nvmlDeviceGetP2PStatus": self.p2p,
        }
        return answers.get(name)

    def ask(self, name, device, number, info):
        assert (name, type(number)) == ("nvmlDeviceGetNvLinkRemotePciInfo_v2", c_uint)
        info._obj.bus_id = self.remotes[number.value].encode()
        return SUCCESS

    def fields(self, device, wanted):
        assert [field for field, _ in wanted] == [164, 90]
        return list(self.speeds)


class FakeSession:
    def __init__(self, library):
        self.library = library

    def handle(self, address):
        return None if self.library is None else address


ADDRESSES = ["0000:01:00.0", "0000:02:00.0"]
ALL = [[True, True], [True, True]]


def between(library, access=ALL):
    return p2p_topology.read_links(FakeSession(library), ADDRESSES, access)[0, 1]


def test_links_to_switches_count_where_nvml_says_that_they_lead_there():
    assert between(FakeNvml([None] * 18)).word == "NV18"
    assert between(FakeNvml([None] * 18)).driver == {"read": "OK", "write": "OK", "nvlink": "OK"}
    assert between(FakeNvml([None] * 18, p2p=5)).word == "PIX"


def test_inactive_links_do_not_count():
    library = FakeNvml([None] * 18)
    library.active[3] = False
    assert between(library).word == "NV17"


def test_direct_links_and_the_older_field_for_their_speed():
    found = between(FakeNvml(["00000000:02:00.0"] * 4, speeds=(None, 14062)))
    assert (found.word, found.expected_gb_s) == ("NV4", 56.25)


def test_links_to_another_gpu_are_not_this_pairs():
    assert between(FakeNvml(["00000000:03:00.0"] * 4)).word == "PIX"


def test_without_nvml_nothing_is_known_and_nothing_invented():
    found = p2p_topology.read_links(FakeSession(None), ADDRESSES, ALL)
    assert found[0, 1] == Link("unknown", "?", driver={})
    assert found[0, 0].kind == "local"
    assert found[0, 1].expected_gb_s is None


def test_why_the_driver_refuses():
    refused = [[True, False], [False, True]]
    assert between(FakeNvml([], p2p=4), refused).driver["read"] == "disabled by a registry key of the driver"
    assert between(FakeNvml([], p2p=4), refused).kind == "staged"
