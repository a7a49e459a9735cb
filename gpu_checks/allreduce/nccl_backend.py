"""The check ``allreduce`` on GPUs: NCCL, called directly on streams of our own."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from ctypes import c_void_p
from dataclasses import asdict
from typing import Any

from gpu_checks import gpus
from gpu_checks.allreduce import nccl
from gpu_checks.allreduce.arithmetic import ELEMENT_BYTES
from gpu_checks.allreduce.backend import Joined, Member, Wrong
from gpu_checks.allreduce.channel import Channel, RankError
from gpu_checks.allreduce.nccl import Nccl, NcclError
from gpu_checks.allreduce.place import SMALL_BYTES, Place, explain
from gpu_checks.cuda_api import CudaError
from gpu_checks.cuda_async import AsyncApi
from gpu_checks.host_view import read
from gpu_checks.measurement import NOT_MEASURED, Measurement
from gpu_checks.registry import Options
from gpu_checks.triage import HUNG

NAME, UNIT = "allreduce", "us"


class NcclBackend:
    """NCCL in one process, with one GPU or all of them. ``share``: two processes on one GPU, for tests."""

    name = "nccl"
    timed_by = "CUDA events, every stream held until all is queued"

    def __init__(self, number: int, share: bool = False) -> None:
        """``number``: of this process among all. Nothing is loaded yet."""
        self._number, self._share = number, share
        self._set: dict[str, str] = {}
        self._api: AsyncApi | None = None
        self._nccl: Nccl | None = None
        self._gpus: gpus.Gpus | None = None
        self._places: list[Place] = []
        self._world = 0
        self._marked = 0

    # Before the ranks have met. -----------------------------------------------------------------------------------

    def scout(self, options: Options, channel: Channel) -> dict[str, Any] | None:
        """Count the GPUs; every reason against them is reported here."""
        begin = time.monotonic()
        # Two on one GPU need only that one.
        self._gpus = found = gpus.open_gpus(options, channel, NAME, UNIT, at_least=1 if self._share else 2)
        if found is None:
            return None
        if not nccl.find():
            channel.add(missing(time.monotonic() - begin))
            return None
        self._api = found.api
        ordinals = [0, 0] if self._share else [gpu.ordinal for gpu in found.gpus]
        names = {gpu.ordinal: f"GPU {gpu.ordinal} ({gpu.pci_bus_id})" for gpu in found.gpus}
        channel.doing("look whether anybody else uses the GPUs", hung=HUNG)
        return {
            "members": [asdict(Member(rank, ordinal, names[ordinal])) for rank, ordinal in enumerate(ordinals)],
            "record": {"others_active": found.others_active(), "identities": [asdict(gpu) for gpu in found.gpus]},
        }

    def _environment(self) -> None:
        """Set what NCCL reads, but nothing that the user has set: the workload runs with that too."""
        texts = [read(path) or "" for path in nccl.configuration_files(os.environ)]
        self._set = nccl.additions(os.environ, texts, self._number if self._share else None)
        os.environ.update(self._set)

    @property
    def _library(self) -> Nccl:
        """libnccl, loaded at the first use."""
        if self._nccl is None:
            self._environment()
            found = nccl.find()
            try:
                self._nccl = Nccl(found[0] if found else nccl.LIBRARY)
            except OSError as error:
                raise RankError("nccl.missing", f"{nccl.LIBRARY} can't be loaded: {error}", found=found) from error
        return self._nccl

    def identifier(self) -> bytes:
        """NCCL's unique id."""
        return self._library.unique_id()

    # The ranks meet. ----------------------------------------------------------------------------------------------

    def join(self, members: list[Member], world: int, identifier: bytes, largest: int, channel: Channel) -> Joined:
        """Contexts, communicators, buffers; one small operation, so that the first code is loaded."""
        library, seconds = self._library, {}
        self._world = world
        begin = time.monotonic()
        if self._api is None:  # the scout has it already
            channel.doing("call cuInit", hung=HUNG)
            self._api = AsyncApi()
            self._api.init()
        for member in members:
            channel.doing(f"make a context on {member.name}", hung=HUNG)
            self._places.append(Place(self._api, member))
        seconds["contexts"] = round(time.monotonic() - begin, 6)
        begin = time.monotonic()
        channel.doing(f"join the other ranks through NCCL ({world} in all)")
        if len(members) == 1:
            communicators = [library.join(world, identifier, members[0].rank)]
        else:
            communicators = library.join_all([member.ordinal for member in members])
        for place, communicator in zip(self._places, communicators):
            place.communicator = communicator
        channel.doing(f"wait for the first all-reduce, of {SMALL_BYTES} bytes")
        self.align()
        self.wait()
        seconds["nccl"] = round(time.monotonic() - begin, 6)
        nccl.flush_output()
        size = min(place.allocate(largest, 2 if self._share else 1) for place in self._places)
        return Joined(size, {**self._used(), "seconds": seconds})

    def _used(self) -> dict[str, Any]:
        """Which NCCL this is, and what it was told."""
        return {
            "library": self._library.path,
            "version": self._library.version(),
            "other_libraries": nccl.find()[1:],
            "settings": nccl.settings(os.environ),
            "set_by_check": self._set,
            "configuration_files": nccl.configuration_files(os.environ),
        }

    # Operations. --------------------------------------------------------------------------------------------------

    def fill(self, size: int, turn: int) -> None:
        """Values into the inputs, NaN into the outputs."""
        for place in self._places:
            place.fill(size, turn)

    def reduce(self, size: int, fresh: bool) -> None:
        """One all-reduce for every member here."""
        buffers = [(place.input if fresh else place.output, place.output) for place in self._places]
        self._reduce(buffers, size // ELEMENT_BYTES)

    def align(self) -> None:
        """One all-reduce of two zeros."""
        self._reduce([(place.small, place.small) for place in self._places], SMALL_BYTES // ELEMENT_BYTES)

    def _reduce(self, buffers: list[tuple[int, int]], elements: int) -> None:
        library = self._library
        if len(self._places) == 1:
            (source, target), place = buffers[0], self._places[0]
            library.all_reduce(source, target, elements, place.communicator, place.stream)
            return
        library.group_start()
        for place, (source, target) in zip(self._places, buffers):
            library.all_reduce(source, target, elements, place.communicator, place.stream)
        library.group_end()

    @contextlib.contextmanager
    def record(self) -> Iterator[list[c_void_p]]:
        """A CUDA graph for each member here; it is in the list once the ``with`` has ended."""
        graphs: list[c_void_p] = []
        for place in self._places:
            place.begin_capture()
        yield graphs
        recorded = [place.stop_capture() for place in self._places]
        graphs += [place.instantiate(graph) for place, graph in zip(self._places, recorded)]

    def replay(self, handle: list[c_void_p]) -> None:
        """Launch every member's graph."""
        for place, graph in zip(self._places, handle):
            place.launch(graph)

    def forget(self, handle: list[c_void_p]) -> None:
        """Destroy the graphs."""
        for place, graph in zip(self._places, handle):
            place.api.destroy_graph(graph)

    @contextlib.contextmanager
    def held(self, marks: int) -> Iterator[None]:
        """Hold every member's stream."""
        self._marked = 0
        with contextlib.ExitStack() as stack:
            for place in self._places:
                stack.enter_context(place.held(marks))
            yield

    def mark(self) -> int:
        """Queue an event for every member; its number."""
        for place in self._places:
            place.mark(self._marked)
        self._marked += 1
        return self._marked - 1

    def between(self, first: int, last: int) -> float:
        """The slowest member's microseconds between two events."""
        return max(place.between(first, last) for place in self._places)

    def wait(self) -> None:
        """Wait for every member's stream."""
        for place in self._places:
            place.wait()

    def wrong(self, size: int, turn: int, factor: int) -> Wrong | None:
        """Compare on the GPUs; the first member with something wrong is the one that is told of."""
        found = [place.wrong(size, self._world, turn, factor) for place in self._places]
        return next((each for each in found if each is not None), None)

    # The end. -----------------------------------------------------------------------------------------------------

    def state(self) -> list[dict[str, Any]]:
        """Clocks, temperature, power and so on of every GPU."""
        return self._gpus.states() if self._gpus is not None else []

    def close(self) -> None:
        """Leave NCCL. Memory and contexts end with the process, which is about to."""
        for place in self._places:
            place.use()
            self._library.leave(place.communicator)

    def explain(self, error: Exception) -> RankError | None:
        """The cause of an error of NCCL or CUDA; None for a defect of ours."""
        if isinstance(error, NcclError):
            return RankError(error.cause, str(error), remote=error.number == nccl.REMOTE_ERROR)
        return explain(error) if isinstance(error, CudaError) else None


def missing(seconds: float) -> Measurement:
    """The whole check, not measured for want of a libnccl."""
    method = "search where a workload's loader would: LD_LIBRARY_PATH, beside this Python's torch, the system's folders"
    detail = {"message": f"{nccl.LIBRARY} is nowhere: {method.partition(': ')[2]}"}
    return Measurement(NAME, None, UNIT, method, NOT_MEASURED, "nccl.missing", round(seconds, 6), detail=detail)
