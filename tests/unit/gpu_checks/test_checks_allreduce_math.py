"""The check allreduce: its sums are exact in float32, its bandwidths are nccl-tests', its plan keeps to its budget."""

import struct

import pytest

from gpu_checks.allreduce import arithmetic as sums

WORLDS = range(2, 17)


def float32(number):
    return struct.unpack("<f", struct.pack("<f", number))[0]


@pytest.mark.parametrize("world", WORLDS)
def test_every_sum_of_a_chain_is_exact_in_float32(world):
    """The largest sum that there can be, added rank by rank and rounded to float32 each time, against whole numbers."""
    exact = sums.VALUES * world - 1  # odd, so that it needs every bit that a sum can need
    got = float32(exact)
    for _ in range(1, sums.chain_length(world)):
        added = got
        for _ in range(world - 1):
            added = float32(added + got)
        exact, got = exact * world, added
        assert got == exact


def test_a_chain_of_three_ranks_would_not_stay_exact_for_ever():
    """Why there is a limit: one or two operations behind it the sum is off."""
    exact = sums.VALUES * 3 - 1
    got, wrong_after = float32(exact), None
    for operations in range(2, 30):
        added = float32(float32(got + got) + got)
        exact, got = exact * 3, added
        if got != exact:
            wrong_after = operations
            break
    assert wrong_after is not None
    assert sums.chain_length(3) < wrong_after <= sums.chain_length(3) + 3


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("operations", [1, 2, 5, 12, 20])
def test_the_factor_is_what_a_sample_really_leaves(world, operations):
    value, whole = 0, sums.total(5, world, 1)
    for operation in range(operations):
        value = whole if sums.is_fresh(operation, world) else value * world
    assert value == whole * sums.factor(operations, world)


def test_most_operations_wait_for_the_one_before():
    """Two GPUs, four, eight: only the first of twenty takes fresh input. With three or six it is a few more."""
    fresh = {world: sum(sums.is_fresh(operation, world) for operation in range(20)) for world in (2, 3, 4, 6, 8)}
    assert fresh == {2: 1, 3: 3, 4: 1, 6: 3, 8: 1}


def test_values_depend_on_place_rank_and_pass():
    first = [sums.value(place, 0, 1) for place in range(4096)]
    assert set(first) == set(range(1, 257))
    for other in ((0, 2), (1, 1), (7, 1)):
        again = [sums.value(place, *other) for place in range(4096)]
        assert sum(here == there for here, there in zip(first, again, strict=True)) < 100  # 1 of 256 by chance
    for shift in (1, 2, 32, 1024, 2048):
        moved = sum(first[place] == first[place + shift] for place in range(2048))
        assert moved < 100
    assert sums.value(0, 0, 0) == 1
    assert sums.value((1 << 32) + 3, 2, 1) == sums.value(3, 2, 1)  # as on the GPU, where places have 32 bits


def test_bandwidths_are_those_of_nccl_tests():
    # Hand-computed: 512 MiB in 1.5 ms are 357.9 GB/s; x 2(n-1)/n: 1 for two ranks, 1.75 for eight.
    algorithm, bus = sums.bandwidths(512 << 20, 1500.0, 2)
    assert (round(algorithm, 3), round(bus, 3)) == (357.914, 357.914)
    assert sums.bandwidths(512 << 20, 1500.0, 8)[1] == pytest.approx(626.349, abs=1e-3)
    # A line of nccl-tests' own: 8 bytes in 5.93 us are 0.00 GB/s.
    assert sums.bandwidths(8, 5.93, 2)[1] == pytest.approx(0.00135, abs=1e-5)


@pytest.mark.parametrize("estimate_us", [0.0, 3.0, 6.0, 100.0, 800.0, 1500.0, 21_000.0, 45_000.0, 5e5])
def test_the_plan_keeps_to_its_budget_and_never_below_five_samples(estimate_us):
    plan = sums.plan(estimate_us)
    assert 1 <= plan.operations <= 20
    assert 5 <= plan.samples <= 20
    if plan.samples > 5 or plan.operations > 1:
        assert estimate_us * plan.operations * (plan.samples + 1) <= sums.BUDGET_US


def test_the_slowest_rank_counts_in_each_sample():
    assert sums.slowest([[1.0, 9.0, 3.0], [2.0, 2.0, 2.0]]) == [2.0, 9.0, 3.0]
    for bad in ([], [[1.0], [1.0, 2.0]]):
        with pytest.raises(ValueError, match="numbers of samples"):
            sums.slowest(bad)


def test_sizes_are_as_announced():
    assert (sums.SIZES[0], sums.SIZES[-1]) == (8, 512 << 20)
    assert sums.TOKEN_BYTES == 6144 * 2 == 12288
    assert sums.TOKEN_BYTES in sums.SIZES
    assert all(size % sums.ELEMENT_BYTES == 0 for size in sums.SIZES)
    assert all(small < large for small, large in zip(sums.SIZES, sums.SIZES[1:], strict=False))
    assert sums.QUICK == (("graph", 12288), ("eager", 64 << 20))
