"""A library of collectives in shared memory, which can hang, die, fail and be wrong at a place that a test names."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import struct
import time
from dataclasses import dataclass

from gpu_checks.allreduce.arithmetic import ELEMENT_BYTES, total, value
from gpu_checks.allreduce.backend import Joined, Member, Wrong
from gpu_checks.allreduce.channel import RankError
from gpu_checks.allreduce.place import shown

LARGEST = 4096
NAN = float("nan")


@dataclass(frozen=True)
class Fault:
    """What this rank does instead, in its operation with this number (counted from 1; 0: when it joins)."""

    rank: int
    kind: str
    operation: int = 3


class Board:
    """Memory that all ranks share: a counter and a buffer for each. To be made before the fork."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.memory = mmap.mmap(-1, world * (8 + LARGEST))

    def meet(self, rank: int) -> None:
        """Wait until all have come here as often as this one."""
        mine = struct.unpack_from("<Q", self.memory, 8 * rank)[0] + 1
        struct.pack_into("<Q", self.memory, 8 * rank, mine)
        while min(struct.unpack_from(f"<{self.world}Q", self.memory, 0)) < mine:
            time.sleep(0.0002)

    def place(self, rank: int) -> int:
        return self.world * 8 + rank * LARGEST


class FakeBackend:
    """One rank, in one process. ``sleep_s``: what an operation takes."""

    name, timed_by = "fake", "CLOCK_MONOTONIC"

    def __init__(self, number: int, board: Board, fault: Fault | None = None, sleep_s: float = 0.0) -> None:
        self._rank, self._board, self._fault, self._sleep_s = number, board, fault, sleep_s
        self._operations = 0
        self._graph: list | None = None
        self._input: list[float] = []
        self._output: list[float] = []

    def scout(self, options, channel):
        channel.doing("count")
        self._go_wrong(-1)
        members = [{"rank": rank, "ordinal": rank, "name": f"GPU {rank}"} for rank in range(self._board.world)]
        return {"members": members, "record": {"others_active": None}}

    def identifier(self) -> bytes:
        return b"id"

    def join(self, members, world, identifier, largest, channel) -> Joined:
        assert (members, world, identifier) == ([Member(self._rank, self._rank, f"GPU {self._rank}")], 2, b"id")
        self._go_wrong(0)
        os.write(2, f"x NCCL INFO Channel 00/0 : {self._rank}[0] -> 1[1] via P2P/CUMEM\n".encode())
        self._board.meet(self._rank)
        return Joined(min(largest, LARGEST), {"library": "fake"})

    def _go_wrong(self, operation: int) -> bool:
        """True where the data shall be wrong."""
        fault = self._fault
        if fault is None or (fault.rank, fault.operation) != (self._rank, operation):
            return False
        if fault.kind == "hang":
            time.sleep(600)
        elif fault.kind == "kill":
            os.write(2, b"x NCCL INFO all is well\nXid 79 has come\nx NCCL INFO going on\n")
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind == "exit":
            os._exit(3)
        elif fault.kind == "raise":
            raise ValueError("a defect of ours")
        elif fault.kind == "fail":
            raise ConnectionError("unhandled system error: no luck")
        return fault.kind in ("wrong", "nan")

    def fill(self, size: int, turn: int) -> None:
        count = size // ELEMENT_BYTES
        self._input = [float(value(place, self._rank, turn)) for place in range(count)]
        self._output = [NAN] * count

    def reduce(self, size: int, fresh: bool) -> None:
        if self._graph is not None:
            self._graph.append((size, fresh))
            return
        self._operations += 1
        spoil = self._go_wrong(self._operations)
        time.sleep(self._sleep_s)
        given, board = self._input if fresh else self._output, self._board
        struct.pack_into(f"<{len(given)}f", board.memory, board.place(self._rank), *given)
        board.meet(self._rank)
        rows = [struct.unpack_from(f"<{len(given)}f", board.memory, board.place(rank)) for rank in range(board.world)]
        self._output = [sum(column) for column in zip(*rows, strict=True)]
        board.meet(self._rank)
        if spoil:
            self._output[-1] = NAN if self._fault.kind == "nan" else self._output[-1] + 1

    @contextlib.contextmanager
    def record(self):
        self._graph = handle = []
        yield handle
        self._graph = None

    def replay(self, handle) -> None:
        for size, fresh in handle:
            self.reduce(size, fresh)

    def forget(self, handle) -> None:
        handle.clear()

    def align(self) -> None:
        self._board.meet(self._rank)

    @contextlib.contextmanager
    def held(self, marks: int):
        self._marks = marks
        yield

    def mark(self) -> float:
        self._marks -= 1
        assert self._marks >= 0
        return time.monotonic() * 1e6

    def between(self, first: float, last: float) -> float:
        return last - first

    def wait(self) -> None:
        pass

    def wrong(self, size: int, turn: int, factor: int) -> Wrong | None:
        right = [float(total(place, self._board.world, turn) * factor) for place in range(size // ELEMENT_BYTES)]
        bad = [place for place, (here, there) in enumerate(zip(self._output, right, strict=True)) if here != there]
        if not bad:
            return None
        got = shown(struct.pack("<f", self._output[bad[0]]))
        return Wrong(self._rank, len(bad), bad[0], got, f"{right[bad[0]]:g}")

    def state(self) -> list[dict]:
        return [{"ordinal": rank, "pstate": "P0"} for rank in range(self._board.world)]

    def close(self) -> None:
        self._go_wrong(-2)

    def explain(self, error: Exception) -> RankError | None:
        return RankError("nccl.failed", str(error)) if isinstance(error, ConnectionError) else None
