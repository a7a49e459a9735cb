"""The arithmetic of the check ``allreduce``: sizes, values whose sums are exact, how often to repeat, bandwidths.

Every operation of a sample works on what the one before left: in place, so that none can begin before its forerunner
has ended. Sums over n ranks then grow by the factor n each time. So that this stays exact in float32, and can be
proved bit by bit after the timed pass too, the values are small whole numbers, and the chain starts from fresh input
again before 24 bits are used up: see ``chain_length``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

EAGER, GRAPH = "eager", "graph"
MODES = (EAGER, GRAPH)

ELEMENT_BYTES = 4
"""float32: what nccl-tests uses where it is not told, and the same bytes as twice as many BF16."""

KIB, MIB = 1 << 10, 1 << 20
TOKEN_BYTES = 12 * KIB
"""The hidden state of one token: 6144 values of BF16. A decode step reduces this twice in every layer."""

LARGE_BYTES = 64 * MIB
"""From here on the bandwidth counts, and not the latency."""

SIZES = (
    8, 64, 512, 4 * KIB, TOKEN_BYTES, 16 * KIB, 64 * KIB, 256 * KIB,
    MIB, 4 * MIB, 16 * MIB, LARGE_BYTES, 256 * MIB, 512 * MIB,
)  # fmt: skip
QUICK = ((GRAPH, TOKEN_BYTES), (EAGER, LARGE_BYTES))
"""One latency and one bandwidth: what a broken link or a broken collective shows in."""

VALUES = 256
"""Each rank gives whole numbers from 1 to this at every place."""

SIGNIFICAND = 1 << 24
"""Whole numbers up to this are exact in float32; more so are their products with powers of two."""

EXPONENT_BITS = 126
"""A float32 below 2 to the power of this is finite, with a bit to spare."""

STEP, RANK_STEP, PASS_STEP, MASK = 0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35, 0xFFFFFFFF
"""Odd factors: neighbours in place, rank and pass get values that have nothing to do with each other."""

OPERATIONS, SAMPLES = 20, 20
"""Operations in a sample (nccl-tests puts 20 in a graph too), and samples, where an operation is short."""

LEAST_SAMPLES = 5
BUDGET_US = 200_000.0
"""For the timed pass of one size. 512 MiB over NVLink take 1.5 ms, over PCIe 4.0 some 45 ms."""


def start(rank: int, turn: int) -> int:
    """Where a rank's values begin in a pass of this number: so that no pass can be right with an older one's data."""
    return (rank * RANK_STEP + turn * PASS_STEP) & MASK


def value(place: int, rank: int, turn: int) -> int:
    """The value that a rank gives at a place (in elements), from 1 to VALUES.

    >>> [value(place, 0, 0) for place in range(4)]
    [1, 159, 61, 219]
    """
    return ((place * STEP + start(rank, turn)) & MASK) // ((MASK + 1) // VALUES) + 1


def total(place: int, world: int, turn: int) -> int:
    """The sum over all ranks at a place."""
    return sum(value(place, rank, turn) for rank in range(world))


def chain_length(world: int) -> int:
    """How many operations in a row stay exact in float32, whatever the order in which a library adds; at most 20.

    A sum is at most VALUES x world, and each further operation multiplies by ``world``. Of such a product only the
    odd part needs bits of the significand; one more factor ``world`` is kept free for the partial sums on the way.

    >>> [chain_length(world) for world in (2, 3, 5, 6, 7, 8)]
    [20, 9, 5, 7, 4, 20]
    """
    odd = world
    while odd % 2 == 0:
        odd //= 2
    length, needed, size = 1, VALUES * world * world, VALUES * world * world
    while length < OPERATIONS and needed * odd <= SIGNIFICAND and size * world < 1 << EXPONENT_BITS:
        length, needed, size = length + 1, needed * odd, size * world
    return length


def is_fresh(operation: int, world: int) -> bool:
    """Whether an operation of a sample, counted from 0, takes the fresh input instead of its forerunner's output."""
    return operation % chain_length(world) == 0


def factor(operations: int, world: int) -> int:
    """What the first sum is multiplied by after a sample of so many operations.

    >>> factor(1, 4), factor(3, 4), factor(10, 3)
    (1, 16, 1)
    """
    return int(world ** ((operations - 1) % chain_length(world)))


@dataclass(frozen=True)
class Plan:
    """How a size is timed: ``samples`` of ``operations`` each, in microseconds per operation."""

    operations: int
    samples: int


def plan(estimate_us: float) -> Plan:
    """How often, so that a timed pass stays within its budget; at least LEAST_SAMPLES samples of one operation.

    >>> plan(6.0), plan(1500.0), plan(1e6)
    (Plan(operations=20, samples=20), Plan(operations=12, samples=10), Plan(operations=1, samples=5))
    """
    fit = int(BUDGET_US / max(estimate_us, 1.0))
    operations = min(OPERATIONS, max(1, fit // (2 * LEAST_SAMPLES + 1)))
    return Plan(operations, min(SAMPLES, max(LEAST_SAMPLES, fit // operations - 1)))


def slowest(by_rank: Sequence[Sequence[float]]) -> list[float]:
    """Sample by sample the slowest rank's time. Raises ValueError where the ranks have not as many of them.

    >>> slowest([[1.0, 5.0], [2.0, 4.0]])
    [2.0, 5.0]
    """
    if not by_rank or len({len(times) for times in by_rank}) != 1:
        raise ValueError("the ranks have different numbers of samples")
    return [max(times) for times in zip(*by_rank)]


def bandwidths(size: int, microseconds: float, world: int) -> tuple[float, float]:
    """algbw and busbw in decimal GB/s, as nccl-tests defines them for an all-reduce (its doc/PERFORMANCE.md).

    algbw is bytes by time. Each rank must send and receive 2(n-1)/n of the bytes, however the library does it: times
    that, it is busbw, which can be held against the speed of a link.

    >>> bandwidths(1_000_000_000, 1e6, 8)
    (1.0, 1.75)
    """
    algorithm = size / microseconds / 1e3
    return algorithm, algorithm * 2 * (world - 1) / world
