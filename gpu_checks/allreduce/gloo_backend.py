"""The check ``allreduce`` on CPUs, through torch.distributed and gloo: the same code path, for tests without a GPU."""

from __future__ import annotations

import contextlib
import importlib
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from gpu_checks.allreduce.arithmetic import ELEMENT_BYTES, MASK, STEP, VALUES, start, total
from gpu_checks.allreduce.backend import Handle, Joined, Member, Wrong
from gpu_checks.allreduce.channel import Channel, RankError
from gpu_checks.allreduce.place import shown
from gpu_checks.measurement import NOT_MEASURED, Measurement
from gpu_checks.registry import Options

NAME, UNIT = "allreduce", "us"

RANKS = "GPU_CHECKS_RANKS"
"""How many ranks there shall be; 2 where the variable is not set."""

TIMEOUT = timedelta(seconds=60)


class GlooBackend:
    """gloo in one process, with one member."""

    name = "gloo"
    timed_by = "CLOCK_MONOTONIC around each operation, which returns once it is done"

    def __init__(self) -> None:
        """Nothing is loaded yet."""
        self._world = 0
        self._rank = 0
        self._torch: Any = None
        self._group: Any = None
        self._path = ""

    def scout(self, options: Options, channel: Channel) -> dict[str, Any] | None:
        """Only torch is needed. ``options``: the number of GPUs says nothing here."""
        channel.doing("import torch")
        try:
            self._import()
        except ImportError as error:
            method, detail = "import torch", {"message": f"torch can't be imported: {error}"}
            channel.add(Measurement(NAME, None, UNIT, method, NOT_MEASURED, "torch.missing", 0.0, detail=detail))
            return None
        world = int(os.environ.get(RANKS, "2"))
        members = [asdict(Member(rank, rank, "the CPU")) for rank in range(world)]
        return {"members": members, "record": {"note": "no GPU: these figures are of the host's CPUs"}}

    def _import(self) -> None:
        self._torch = importlib.import_module("torch")
        self._torch.set_num_threads(1)

    def identifier(self) -> bytes:
        """A file in which the ranks leave their addresses."""
        handle, self._path = tempfile.mkstemp(prefix="gpu_checks_gloo_")
        os.close(handle)
        return self._path.encode()

    def join(self, members: list[Member], world: int, identifier: bytes, largest: int, channel: Channel) -> Joined:
        """Become a rank."""
        if self._torch is None:
            channel.doing("import torch")
            self._import()
        torch = self._torch
        self._world, self._rank = world, members[0].rank
        # The host's own name need not resolve; the loopback is always there.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        channel.doing(f"join the other ranks through gloo ({world} in all)")
        store = torch.distributed.FileStore(identifier.decode(), world)
        torch.distributed.init_process_group("gloo", store=store, rank=self._rank, world_size=world, timeout=TIMEOUT)
        count = largest // ELEMENT_BYTES
        self.input, self.output = torch.zeros(count), torch.zeros(count)
        self._small = torch.zeros(1)
        self.align()
        return Joined(largest, {"library": "gloo, through torch", "version": str(torch.__version__)}, graphs=False)

    def _sum(self, begin: int, count: int, ranks: list[int]) -> Any:
        """The values of these ranks, added, for the first ``count`` places; ``begin``: the turn."""
        torch = self._torch
        places = torch.arange(count, dtype=torch.int64)
        sums = torch.zeros(count, dtype=torch.int64)
        for rank in ranks:
            words = (places * STEP + start(rank, begin)) & MASK
            sums += torch.div(words, (MASK + 1) // VALUES, rounding_mode="floor") + 1
        return sums.to(torch.float32)

    def fill(self, size: int, turn: int) -> None:
        """Values into the input, NaN into the output."""
        count = size // ELEMENT_BYTES
        self.input[:count] = self._sum(turn, count, [self._rank])
        self.output[:count] = float("nan")

    def reduce(self, size: int, fresh: bool) -> None:
        """One all-reduce; it is done when this returns."""
        count = size // ELEMENT_BYTES
        if fresh:
            self.output[:count] = self.input[:count]
        self._torch.distributed.all_reduce(self.output[:count])

    def record(self) -> contextlib.AbstractContextManager[Handle]:
        """There are no graphs on a CPU."""
        raise NotImplementedError

    def replay(self, handle: Handle) -> None:
        """Never called: nothing can be recorded."""

    def forget(self, handle: Handle) -> None:
        """Never called: nothing can be recorded."""

    def align(self) -> None:
        """One all-reduce of a single zero."""
        self._torch.distributed.all_reduce(self._small)

    @contextlib.contextmanager
    def held(self, marks: int) -> Iterator[None]:
        """Nothing can be held: each operation is run at once."""
        yield

    def mark(self) -> float:
        """The time now, in microseconds."""
        return time.monotonic() * 1e6

    def between(self, first: float, last: float) -> float:
        """Microseconds."""
        return last - first

    def wait(self) -> None:
        """Everything is done already."""

    def wrong(self, size: int, turn: int, factor: int) -> Wrong | None:
        """Compare bit by bit."""
        torch, count = self._torch, size // ELEMENT_BYTES
        right = self._sum(turn, count, list(range(self._world))) * float(factor)
        output = self.output[:count]
        differ = (right.view(torch.int32) != output.view(torch.int32)).nonzero().flatten()
        if len(differ) == 0:
            return None
        first = int(differ[0])
        got = shown(struct.pack("<f", float(output[first])))
        return Wrong(self._rank, len(differ), first, got, f"{total(first, self._world, turn) * factor:g}")

    def state(self) -> list[dict[str, Any]]:
        """There is no GPU to tell of."""
        return []

    def close(self) -> None:
        """Leave."""
        self._torch.distributed.destroy_process_group()
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def explain(self, error: Exception) -> RankError | None:
        """torch raises RuntimeError where gloo fails."""
        return RankError("allreduce.gloo_failed", str(error)) if isinstance(error, RuntimeError) else None
