"""What is done in which order, how large copies are, and what several flows leave each other: by hand."""

from __future__ import annotations

import pytest

from gpu_checks.p2p.chase import CHAIN_BYTES, STEPS, WALKS, chain
from gpu_checks.p2p.copies import speeds_together, turn_speeds, turns_within
from gpu_checks.p2p.patterns import judgeable
from gpu_checks.p2p.plan import (
    ARRIVE,
    LARGEST_BUFFER,
    LATENCY,
    PATTERNS,
    TOGETHER,
    TURNS,
    WARM_UP,
    Step,
    buffer_bytes,
    copy_bytes,
    fair_share,
    ordered_pairs,
    plan,
    ring_pairs,
    runs,
    seed,
    slot_bytes,
    target_s,
)
from gpu_checks.p2p.steps import Tools
from gpu_checks.registry import Options

MIB = 1 << 20


def everyone(count):
    return [[True] * count for _ in range(count)]


def test_small_copies_of_all_pairs_come_before_any_speed():
    steps = plan(ordered_pairs(3), everyone(3), quick=False)
    kinds = [step.what for step in steps]
    assert kinds[:18] == ["arrive"] * 18  # 6 pairs, 3 engines
    assert "arrive" not in kinds[18:]
    assert kinds[-8:] == ["together"] * 8
    assert len({step.key for step in steps}) == len(steps)


def test_both_ways_are_measured_once_and_named_twice():
    steps = [step for step in plan(ordered_pairs(2), everyone(2), quick=False) if step.what == "ce_both"]
    assert [step.names for step in steps] == [("p2p.ce_both.0-1", "p2p.ce_both.1-0")]


def test_quick_is_one_ring_by_copy_engine():
    steps = plan(ring_pairs(4), everyone(4), quick=True)
    assert [(step.what, step.pairs) for step in steps] == [
        *(("arrive", (pair,)) for pair in [(0, 1), (1, 2), (2, 3), (3, 0)]),
        *(("ce", (pair,)) for pair in [(0, 1), (1, 2), (2, 3), (3, 0)]),
    ]


def test_without_access_only_copy_engines_move_anything():
    access = [[True, False], [False, True]]
    steps = plan(ordered_pairs(2), access, quick=False)
    assert {step.engine for step in steps} == {"ce"}
    assert {step.what for step in steps} == {"arrive", "ce", "ce_both", "together"}


def test_access_in_one_direction():
    access = [[True, True], [False, True]]  # 0 reaches 1
    names = {name for step in plan(ordered_pairs(2), access, quick=False) for name in step.names}
    assert {"p2p.sm_write.0-1", "p2p.sm_read.1-0", "p2p.latency.0-1"} <= names
    assert not {"p2p.sm_write.1-0", "p2p.sm_read.0-1", "p2p.latency.1-0"} & names


def test_while_others_work_only_small_copies_are_made():
    assert {step.what for step in plan(ordered_pairs(2), everyone(2), False, speeds=False)} == {"arrive"}


@pytest.mark.parametrize(("pattern", "rounds", "flows"), [("all_to_one", 4, 3), ("one_to_all", 4, 3), ("ring", 1, 4)])
def test_patterns_of_four(pattern, rounds, flows):
    found = runs(pattern, ordered_pairs(4))
    assert [len(run) for run in found] == [flows] * rounds


def test_two_gpus_have_one_pattern():
    assert [pattern for pattern in PATTERNS if runs(pattern, ordered_pairs(2))] == ["all_pairs"]
    assert runs("all_pairs", ordered_pairs(2)) == [[(0, 1), (1, 0)]]


def test_shares():
    pairs = ordered_pairs(4)
    shared = dict.fromkeys(pairs, True)
    to_one = [(1, 0), (2, 0), (3, 0)]
    assert fair_share((2, 0), to_one, shared) == pytest.approx(1 / 3)
    assert fair_share((0, 3), [(0, 1), (0, 2), (0, 3)], shared) == pytest.approx(1 / 3)
    assert fair_share((1, 2), runs("ring", pairs)[0], shared) == 1
    assert fair_share((1, 2), pairs, shared) == pytest.approx(1 / 3)
    # Both ways of one pair do not take anything from each other.
    assert fair_share((0, 1), [(0, 1), (1, 0)], shared) == 1
    # Direct links: each pair has its own.
    assert fair_share((2, 0), to_one, dict.fromkeys(pairs, False)) == 1
    # One flow arrives by a link of its own, and takes nothing from the two others.
    assert fair_share((1, 0), to_one, {**shared, (3, 0): False}) == 0.5


def test_collapse_is_far_below_the_fair_share():
    flows = [
        {"round": 0, "source": 1, "target": 0, "gb_s": 12.0},
        {"round": 0, "source": 2, "target": 0, "gb_s": 120.0},
        {"round": 0, "source": 3, "target": 0, "gb_s": 100.0},
        {"round": 1, "source": 0, "target": 1, "gb_s": 390.0},
    ]
    alone = {(1, 0): 360.0, (2, 0): 360.0, (0, 1): 390.0}
    found = judgeable(flows, alone, {})
    assert found[0]["share"] == pytest.approx(1 / 30)
    assert found[0]["of_expected"] == pytest.approx(0.1)
    assert found[1]["of_expected"] == pytest.approx(1.0)
    assert (found[2]["share"], found[2]["of_expected"]) == (None, None)
    assert (found[3]["expected_share"], found[3]["of_expected"]) == (1, 1)


@pytest.mark.parametrize(
    ("free", "size"),
    [
        (140 << 30, LARGEST_BUFFER),
        (2 << 30, 512 * MIB),  # two of 512 MiB are half of it
        ((2 << 30) - 1, 256 * MIB),
        (64 * MIB, 16 * MIB),
        (64 * MIB - 1, 0),
    ],
)
def test_buffers_leave_half_of_the_free_memory(free, size):
    assert buffer_bytes(free) == size


@pytest.mark.parametrize(
    ("gb_s", "mib"),
    [(390, 512), (86, 512), (85, 64), (11, 64), (10, 8), (0.1, 8)],  # 512 MiB x 16 = 8.6 GB in 0.1 s: 86 GB/s
)
def test_copies_fit_into_their_time(gb_s, mib):
    assert copy_bytes(LARGEST_BUFFER, gb_s) == mib * MIB


@pytest.mark.parametrize("count", [2, 3, 7, 8, 20])
def test_slots_fit_and_can_be_cut_into_whole_elements(count):
    for size in (16 * MIB, LARGEST_BUFFER):
        slot = slot_bytes(size, count)
        assert 0 < slot * count <= size
        assert slot // 64 % 16 == 0


def test_every_copy_has_a_pattern_of_its_own():
    pairs = ordered_pairs(8)
    assert len({seed(i, j, engine) for i, j in pairs for engine in ("ce", "sm_write", "sm_read")}) == 168


def test_turns_within_a_time():
    assert turns_within([10, 20, 40], 40) == 3
    assert turns_within([10, 20, 40], 25) == 2.25
    assert turns_within([40], 10) == 0.25


def test_speeds_while_all_run():
    # 1 MB in 10 us is 100 GB/s. The second flow is alone from 40 us on and then twice as fast: that does not count.
    ends = [[10, 20, 30, 40], [20, 40, 50, 60]]
    assert speeds_together(ends, 1_000_000) == [100, 50]
    assert turn_speeds([10, 30], 1_000_000) == [100, 50]


def test_a_flow_that_has_collapsed_ends_no_turn_within_the_time():
    assert speeds_together([[10, 20], [100, 110]], 1_000_000) == [100, 10]


def test_the_chain_leads_through_every_line_and_back():
    base = 0x7F00_0000_0000
    data = chain(base)
    at, seen = base, set()
    for _ in range(CHAIN_BYTES // 128):
        seen.add(at)
        at = int.from_bytes(data[at - base : at - base + 8], "little")
    assert (at, len(seen)) == (base, 16384)


def test_a_step_says_what_it_is():
    assert str(Step("arrive", ((0, 2),), "sm_write")) == "a first small copy (sm_write) GPU 0 -> 2"
    assert Step("together", ((0, 1), (1, 0)), "ce", "ring").names == ("p2p.together.ring.ce",)


@pytest.mark.parametrize("count", [2, 8, 10, 16])
@pytest.mark.parametrize(("gb_s", "latency_us"), [(390, 0.8), (53, 1.5), (26, 1.8), (12, 2.5), (6, 3.0)])
def test_every_host_is_through_within_the_checks_own_time(count, gb_s, latency_us):
    """Steps by arithmetic: the copies; 6 ms for calls and proofs; a second for each pattern. 25 s remain to start."""

    def seconds(step):
        if step.what == LATENCY:
            return 0.006 + (WALKS + 2) * STEPS * latency_us / 1e6
        if step.what in (ARRIVE, TOGETHER):
            return 0.006 if step.what == ARRIVE else 1.0
        each = copy_bytes(LARGEST_BUFFER, gb_s, within_s=target_s(count))
        return 0.006 + each * (TURNS + WARM_UP) / gb_s / 1e9

    steps = plan(ordered_pairs(count), everyone(count), quick=False)
    assert sum(map(seconds, steps)) < Tools().budget(Options()) - 25
