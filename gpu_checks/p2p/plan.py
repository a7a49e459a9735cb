"""What the check ``p2p`` does, in which order, and how much of it: pure.

GPUs are CUDA ordinals. A pair (i, j) is the way of the data: from GPU i's memory into GPU j's.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_checks.gpus import MEMORY_SHARE

NAME = "p2p"

CE, SM_WRITE, SM_READ = "ce", "sm_write", "sm_read"
ENGINES = (CE, SM_WRITE, SM_READ)
"""Who moves the data: a copy engine of GPU i; a kernel on i that writes into j; a kernel on j that reads from i."""

ARRIVE, BOTH, LATENCY, TOGETHER = "arrive", "ce_both", "latency", "together"

ALL_TO_ONE, ONE_TO_ALL, RING, ALL_PAIRS = "all_to_one", "one_to_all", "ring", "all_pairs"
PATTERNS = (ALL_TO_ONE, ONE_TO_ALL, RING, ALL_PAIRS)

MIB = 1 << 20
LARGEST_BUFFER, SMALLEST_BUFFER = 512 * MIB, 16 * MIB
"""Each GPU has two of one size: 512 MiB as nvbandwidth takes, more than 3x any GPU's L2 cache; half, and half again,
where memory is scarce. Below 16 MiB a copy's start would count for more than a percent, so that nothing is measured."""

SMALL = MIB
"""The first copy of each pair: large enough for every packet size, small enough to come through any link at once."""

TURNS, WARM_UP = 16, 4
"""Copies for each figure, and before it: nvbandwidth takes the same (and the median of 3 such rounds of one mean each,
where we take the median over the copies)."""

TOGETHER_TURNS, TOGETHER_WARM_UP = 8, 2
"""In a pattern every stream has these; of eight GPUs 56 streams have to fit into the driver's queues."""

PARTS = (1, 8, 64)
SLOT_UNIT = 64 << 10
TARGET_S, TARGET_GPUS = 0.1, 8
"""A figure's copies shall be through within this: a slow link gets parts of the buffers, one after the other, so that
no part is in a cache when its turn comes again. With more GPUs than eight it is less, as there are more pairs: the 240
of 16 GPUs would take 140 s at 12 GB/s, more than the whole check has."""


@dataclass(frozen=True)
class Step:
    """One thing that a worker does and that can hang. ``pairs``: what it moves; all are out of the game if it hangs."""

    what: str
    pairs: tuple[tuple[int, int], ...]
    engine: str = CE
    pattern: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The measurements that come from it, or, of a first small copy, that fail with it."""
        if self.what == TOGETHER:
            return (f"{NAME}.{TOGETHER}.{self.pattern}.{self.engine}",)
        what = self.engine if self.what == ARRIVE else self.what
        return tuple(f"{NAME}.{what}.{i}-{j}" for i, j in self.pairs)

    @property
    def key(self) -> str:
        """What tells it from every other step."""
        return f"{self.what} {' '.join(self.names)}"

    def __str__(self) -> str:
        """For a person: what is being done."""
        ways = ", ".join(f"GPU {i} -> {j}" for i, j in self.pairs) if len(self.pairs) < 3 else "all GPUs"
        pattern = f"pattern {self.pattern}"
        kinds = {ARRIVE: "a first small copy", BOTH: "both ways at once", LATENCY: "pointer chase", TOGETHER: pattern}
        return f"{kinds.get(self.what, 'copy')} ({self.engine}) {ways}"


def ordered_pairs(count: int) -> list[tuple[int, int]]:
    """Every GPU with every other one, both ways."""
    return [(i, j) for i in range(count) for j in range(count) if i != j]


def ring_pairs(count: int) -> list[tuple[int, int]]:
    """Each GPU to the next.

    >>> ring_pairs(3)
    [(0, 1), (1, 2), (2, 0)]
    """
    return [(i, (i + 1) % count) for i in range(count)]


def reads(what: str, i: int, j: int) -> tuple[int, int]:
    """Who has to be allowed to reach whose memory: of ``sm_read`` the target reaches the source's."""
    return (j, i) if what == SM_READ else (i, j)


def plan(pairs: Sequence[tuple[int, int]], access: list[list[bool]], quick: bool, speeds: bool = True) -> list[Step]:
    """All steps in their order: every pair's first small copies before any speed, patterns last.

    ``access[i][j]``: CUDA lets GPU i reach GPU j's memory. ``speeds``: False where somebody else uses the GPUs.
    """

    def allowed(what: str, i: int, j: int) -> bool:
        a, b = reads(what, i, j)
        return what == CE or access[a][b]

    engines = (CE,) if quick else ENGINES
    steps = [Step(ARRIVE, (pair,), what) for pair in pairs for what in engines if allowed(what, *pair)]
    if not speeds:
        return steps
    for i, j in pairs:
        steps += [Step(what, ((i, j),), what) for what in engines[:1]]
        if not quick and i < j and (j, i) in pairs:
            steps.append(Step(BOTH, ((i, j), (j, i)), CE))
        steps += [Step(what, ((i, j),), what) for what in engines[1:] if allowed(what, i, j)]
        if not quick and allowed(LATENCY, i, j):
            steps.append(Step(LATENCY, ((i, j),), "sm"))
    if quick:
        return steps
    for pattern in PATTERNS:
        moves = tuple(pair for run in runs(pattern, pairs) for pair in run)
        for engine in (CE, SM_WRITE):
            if moves and all(allowed(engine, *pair) for pair in moves):
                steps.append(Step(TOGETHER, moves, engine, pattern))
    return steps


def runs(pattern: str, pairs: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """The rounds of a pattern: what moves at once in each. Empty where it would be no other than another pattern.

    >>> runs("all_to_one", ordered_pairs(3))[0]
    [(1, 0), (2, 0)]
    """
    gpus = sorted({gpu for pair in pairs for gpu in pair})
    if pattern == ALL_PAIRS:
        return [list(pairs)]
    if len(gpus) < 3:
        return []
    if pattern == RING:
        after = dict(zip(gpus, [*gpus[1:], gpus[0]]))
        return [[(i, j) for i, j in pairs if after[i] == j]]
    end = 1 if pattern == ALL_TO_ONE else 0
    return [[pair for pair in pairs if pair[end] == gpu] for gpu in gpus]


def fair_share(pair: tuple[int, int], flows: Sequence[tuple[int, int]], shared: dict[tuple[int, int], bool]) -> float:
    """The part of its speed alone that a flow can have beside the others, by arithmetic on the GPUs' ports.

    Of N flows that leave one GPU, or that arrive at one, each gets an Nth of that port; NVLinks that join two GPUs
    directly are nobody else's. Both directions of a port are independent. Links in between (a switch's way up, two
    sockets) can allow less: this is the most.

    >>> fair_share((1, 0), [(1, 0), (2, 0), (3, 0)], {(1, 0): True, (2, 0): True, (3, 0): True})
    0.3333333333333333
    """
    if not shared.get(pair, True):
        return 1.0
    among = [flow for flow in flows if shared.get(flow, True)]
    out = sum(1 for flow in among if flow[0] == pair[0])
    into = sum(1 for flow in among if flow[1] == pair[1])
    return 1 / max(out, into, 1)


def buffer_bytes(free_bytes: int) -> int:
    """The size of a buffer for this much free memory; 0 where there is not even room for the smallest.

    >>> buffer_bytes(143 << 30) >> 20, buffer_bytes(1 << 30) >> 20, buffer_bytes(60 << 20)
    (512, 256, 0)
    """
    size = LARGEST_BUFFER
    while size >= SMALLEST_BUFFER:
        if 2 * size <= free_bytes * MEMORY_SHARE:
            return size
        size //= 2
    return 0


def target_s(gpus: int) -> float:
    """The time for a figure's copies, so that those of all pairs take about the same on every host.

    >>> target_s(2), target_s(8), round(target_s(16), 4)
    (0.1, 0.1, 0.0233)
    """
    most = TARGET_GPUS * (TARGET_GPUS - 1)
    return TARGET_S * min(1.0, most / max(1, gpus * (gpus - 1)))


def copy_bytes(size: int, gb_s: float, turns: int = TURNS, within_s: float = TARGET_S) -> int:
    """How much one copy moves: the whole buffer, or the part with which all copies are through in time.

    >>> copy_bytes(512 << 20, 390.0) >> 20, copy_bytes(512 << 20, 25.0) >> 20, copy_bytes(512 << 20, 4.0) >> 20
    (512, 64, 8)
    """
    fitting = (size // part for part in PARTS if size // part * turns <= gb_s * 1e9 * within_s)
    return next(fitting, size // PARTS[-1])


def slot_bytes(size: int, count: int) -> int:
    """A pattern's part of a buffer for each of ``count`` GPUs: whole 64 KiB, so that its parts are whole elements."""
    return size // count // SLOT_UNIT * SLOT_UNIT


def seed(*what: object) -> int:
    """Another pattern for every copy, so that what an earlier one has left behind is wrong."""
    return zlib.crc32(" ".join(str(each) for each in what).encode())
