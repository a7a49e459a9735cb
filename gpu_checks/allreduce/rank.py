"""What happens in a rank's process: orders come in, the backend works, data is compared, times go out."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from gpu_checks.allreduce.arithmetic import ELEMENT_BYTES, GRAPH, factor, is_fresh
from gpu_checks.allreduce.backend import Backend, Handle, Member
from gpu_checks.allreduce.channel import Channel, RankError
from gpu_checks.registry import Options

BATCH_OPERATIONS = 160
"""Operations queued while a stream is held: with NCCL's own entries and ours well below the driver's thousand."""

SCOUT, IDENTIFY, JOIN, TRY, TIME, STATE, CLOSE = "scout", "identify", "join", "try", "time", "state", "close"


class Worker:
    """Carries out the leader's orders with one backend."""

    def __init__(self, backend: Backend, options: Options, channel: Channel) -> None:
        """Nothing is started yet."""
        self._backend, self._options, self._channel = backend, options, channel
        self._world = 0
        self._turn = 0
        self._at = ""

    def _doing(self, what: str) -> None:
        self._at = what
        self._channel.doing(what)

    def carry(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry out one order."""
        orders = {
            SCOUT: self._scout, IDENTIFY: self._identify, JOIN: self._join, TRY: self._try,
            TIME: self._time, STATE: self._state, CLOSE: self._close,
        }  # fmt: skip
        try:
            return orders[order["do"]](order)
        except RankError:
            raise
        except Exception as error:
            known = self._backend.explain(error)
            if known is None:
                raise
            raise RankError(known.cause, f"{known.message} ({self._at})", **known.detail) from error

    def _scout(self, _order: dict[str, Any]) -> dict[str, Any]:
        return {"found": self._backend.scout(self._options, self._channel)}

    def _identify(self, _order: dict[str, Any]) -> dict[str, Any]:
        self._doing("make the id by which the ranks find each other")
        return {"identifier": self._backend.identifier().hex()}

    def _join(self, order: dict[str, Any]) -> dict[str, Any]:
        self._world = order["world"]
        members = [Member(**each) for each in order["members"]]
        identifier = bytes.fromhex(order["identifier"])
        self._doing(f"join the other ranks ({self._world} in all)")
        return asdict(self._backend.join(members, self._world, identifier, order["largest"], self._channel))

    def _state(self, _order: dict[str, Any]) -> dict[str, Any]:
        return {"states": self._backend.state()}

    def _close(self, _order: dict[str, Any]) -> dict[str, Any]:
        self._doing("leave the other ranks")
        self._backend.close()
        return {}

    def _fill(self, size: int) -> int:
        """Fresh data, with values that no earlier pass had."""
        self._turn += 1
        self._doing(f"fill the buffers with {size} bytes")
        self._backend.fill(size, self._turn)
        self._backend.wait()
        return self._turn

    def _compare(self, size: int, turn: int, times: int) -> dict[str, Any] | None:
        self._doing(f"compare {size} bytes with the sum that must come out")
        found = self._backend.wrong(size, turn, times)
        return None if found is None else {**asdict(found), "message": found.sentence(size // ELEMENT_BYTES)}

    def _try(self, order: dict[str, Any]) -> dict[str, Any]:
        """One operation with its data compared; then, how long another one takes, launch included."""
        size = order["size"]
        turn = self._fill(size)
        self._run_one(size, order["mode"])
        wrong = self._compare(size, turn, 1)
        # The first one may have connected the ranks, or loaded code: only the second shows what is to be expected.
        begin = time.monotonic()
        self._doing(f"repeat the all-reduce of {size} bytes")
        self._backend.reduce(size, fresh=True)
        self._backend.wait()
        return {"wrong": wrong, "estimate_us": (time.monotonic() - begin) * 1e6}

    def _run_one(self, size: int, mode: str) -> None:
        """One operation, in the way that is asked for."""
        backend = self._backend
        if mode != GRAPH:
            self._doing(f"wait for the all-reduce of {size} bytes")
            backend.reduce(size, fresh=True)
            backend.wait()
            return
        # Loose first: what a library allocates at its first use can't be recorded.
        self._doing(f"wait for the all-reduce of {size} bytes before it is recorded")
        backend.reduce(size, fresh=True)
        backend.wait()
        backend.fill(size, self._turn)
        handle = self._record(size, 1)
        self._doing(f"wait for the graph with the all-reduce of {size} bytes")
        backend.replay(handle)
        backend.wait()
        backend.forget(handle)

    def _record(self, size: int, operations: int) -> Handle:
        self._doing(f"record {operations} all-reduces of {size} bytes into a graph")
        with self._backend.record() as handle:
            self._queue(size, operations)
        return handle

    def _queue(self, size: int, operations: int) -> None:
        """One sample: each operation takes what the one before left, see ``collective_math``."""
        for operation in range(operations):
            self._backend.reduce(size, is_fresh(operation, self._world))

    def _time(self, order: dict[str, Any]) -> dict[str, Any]:
        """The timed pass, and its own result compared: that of the last sample."""
        size, operations, samples = order["size"], order["operations"], order["samples"]
        backend, graph = self._backend, order["mode"] == GRAPH
        turn = self._fill(size)
        handle = self._record(size, operations) if graph else None
        times: list[float] = []
        # A graph is queued with one call, but the driver may take an entry for each of its kernels.
        batch = max(1, BATCH_OPERATIONS // operations - 1)
        self._doing(f"wait for {operations} all-reduces of {size} bytes, {order['mode']}, to warm up")
        self._sample(size, operations, handle)
        backend.wait()
        while len(times) < samples:
            count = min(batch, samples - len(times))
            self._doing(f"wait for {count} x {operations} all-reduces of {size} bytes, {order['mode']}")
            times += self._batch(size, operations, count, handle)
        wrong = self._compare(size, turn, factor(operations, self._world))
        if handle is not None:
            backend.forget(handle)
        return {"wrong": wrong, "times_us": [each / operations for each in times]}

    def _sample(self, size: int, operations: int, handle: Handle | None) -> None:
        if handle is None:
            self._queue(size, operations)
        else:
            self._backend.replay(handle)

    def _batch(self, size: int, operations: int, count: int, handle: Handle | None) -> list[float]:
        """Microseconds of each of ``count`` samples, one directly behind the other.

        All is queued before the first begins. The ranks do not get there at the same time: the small operation in
        front lets them begin together, and one unmeasured sample takes the gap behind it.
        """
        backend = self._backend
        with backend.held(count + 1):
            backend.align()
            self._sample(size, operations, handle)
            marks = [backend.mark()]
            for _ in range(count):
                self._sample(size, operations, handle)
                marks.append(backend.mark())
        backend.wait()
        return [backend.between(first, last) for first, last in zip(marks, marks[1:])]
