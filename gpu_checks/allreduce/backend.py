"""What the check ``allreduce`` needs of a library of collectives, so that NCCL and gloo run the same code around it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from gpu_checks.allreduce.channel import Channel, RankError
from gpu_checks.registry import Options


@dataclass(frozen=True)
class Member:
    """One rank, and the GPU that it works on: by CUDA's ordinal, and by its name for a person."""

    rank: int
    ordinal: int
    name: str = ""


@dataclass(frozen=True)
class Wrong:
    """What is wrong in a buffer: how many elements, and the first of them with what stands there."""

    rank: int
    elements: int
    first: int
    got: str
    expected: str

    def sentence(self, count: int) -> str:
        """For a message; ``count``: how many elements there are."""
        what = f"element {self.first} is {self.got}, expected {self.expected}"
        return f"rank {self.rank}: {self.elements} of {count} elements are wrong, the first: {what}"


@dataclass(frozen=True)
class Joined:
    """What is known once all ranks have found each other. ``largest``: bytes of the buffers that there is room for;
    ``graphs``: whether operations can be recorded."""

    largest: int
    record: dict[str, Any]
    graphs: bool = True


Handle = Any
"""Recorded operations, as made by ``Backend.record``."""


class Backend(Protocol):
    """A library of collectives in one process, which holds one or several members.

    A member has an input and an output. ``reduce`` queues one all-reduce for all members of this process, from the
    input (``fresh``) or in place from the output; into the output. What a method raises, ``explain`` explains.
    """

    name: str
    timed_by: str

    def scout(self, options: Options, channel: Channel) -> dict[str, Any] | None:
        """In the first process alone: who can take part (``members``), what is known of the host (``record``).

        None where there can be no measurement; why, it has reported itself then.
        """

    def identifier(self) -> bytes:
        """What the others need to find rank 0."""

    def join(self, members: list[Member], world: int, identifier: bytes, largest: int, channel: Channel) -> Joined:
        """Become these members of a world of so many ranks; make room for ``largest`` bytes, or what there is."""

    def fill(self, size: int, turn: int) -> None:
        """Put every member's values into its input, and what can't be a result into its output."""

    def reduce(self, size: int, fresh: bool) -> None:
        """Queue one all-reduce (a sum of float32)."""

    def record(self) -> AbstractContextManager[Handle]:
        """Until the end of the ``with``, ``reduce`` is recorded and not run. Only where ``Joined.graphs`` says so."""

    def replay(self, handle: Handle) -> None:
        """Queue the recorded operations."""

    def forget(self, handle: Handle) -> None:
        """Give recorded operations back."""

    def align(self) -> None:
        """Queue what makes all ranks begin together: an all-reduce of a buffer of its own, as small as can be."""

    def held(self, marks: int) -> AbstractContextManager[None]:
        """Nothing that is queued in the ``with`` begins before its end, where the backend can hold it.

        ``marks``: how many marks will be queued in it; those of an earlier ``held`` are void.
        """

    def mark(self) -> Any:
        """Queue a mark that takes the time, for every member."""

    def wait(self) -> None:
        """Wait until everything is done."""

    def between(self, first: Any, last: Any) -> float:
        """Microseconds between two marks that were passed: the slowest member's."""

    def wrong(self, size: int, turn: int, factor: int) -> Wrong | None:
        """Compare every member's output with the sum over all ranks times ``factor``, bit by bit."""

    def state(self) -> list[dict[str, Any]]:
        """What the GPUs of the host do right now; only in the process that was the scout."""

    def close(self) -> None:
        """Leave, and give everything back."""

    def explain(self, error: Exception) -> RankError | None:
        """What an error that a method raised means; None where it is a defect of ours."""
