"""A team of processes, one for each rank: start them, give all an order at once, hear their answers, see them die.

The leader touches no GPU: a driver that was started before a fork does not work after it. An order to all is the
barrier as well: nobody goes on before all have answered. A rank that does not answer in time, or dies, or says that it
failed, ends the order with ``Broken``, which names it and what it was about to do.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any, Callable

from gpu_checks import child, processes
from gpu_checks.allreduce import nccl
from gpu_checks.allreduce.channel import CHUNK_BYTES, Channel, live
from gpu_checks.measurement import from_dict
from gpu_checks.registry import Report
from gpu_checks.runner import ending

HUNG, DIED = "allreduce.hang", "allreduce.rank_died"

STDERR_KEPT_BYTES = 256 * 1024
"""The end of what a rank's libraries write: NCCL's report of its start is some 30 KB on a host with 8 GPUs."""

POLL_S = 0.05
"""Between two looks at whether a silent rank still lives."""

GRACE_S = 0.5
"""Where a rank fails, others often fail for that reason only: so long they are heard before one is blamed."""

CHATTER = (" NCCL INFO ", "NCCL version ")
"""Lines of NCCL that are no reason for a death."""


class Broken(Exception):
    """The team can't go on."""

    def __init__(self, cause: str, message: str, detail: dict[str, Any]) -> None:
        """Keep the cause, the sentence, and what is known of each rank."""
        super().__init__(message)
        self.cause, self.message, self.detail = cause, message, detail


@dataclass
class Rank:
    """The leader's view of one rank's process. ``steps``: how many things it said it would do in this order."""

    number: int
    pid: int
    file: socket.socket
    stderr: int
    label: str
    doing: str = "start"
    hung: str | None = None
    steps: int = 0
    answer: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    ending: str | None = None
    said: bytes = b""
    rest: bytes = b""
    open: set[int] = field(default_factory=set)

    @property
    def waited_for(self) -> bool:
        """Whether it still has to answer."""
        return self.answer is None and self.failure is None and self.ending is None

    @property
    def last_line(self) -> str:
        """The last line that it wrote to stderr or stdout, NCCL's chatter apart."""
        lines = [line for line in self.said.splitlines() if not any(each.encode() in line for each in CHATTER)]
        return child.last_line(b"\n".join(lines))


class Team:
    """All ranks of a collective. Use it in a ``with``: afterwards all processes are gone."""

    def __init__(self, report: Report) -> None:
        """``report``: where measurements of ranks go, and what they are about to do."""
        self._report = report
        self.ranks: dict[int, Rank] = {}

    def __enter__(self) -> Team:
        """Nothing is started yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no process behind."""
        self.kill()

    def start(self, number: int, life: Callable[[Channel], None], label: str = "") -> None:
        """Start the process of a rank; OSError where none can be had."""
        ours, theirs = socket.socketpair()
        stderr_end, stderr = os.pipe()
        leader = os.getpid()
        pid = os.fork()
        if pid == 0:
            # A copy of the leader's end of another rank would keep that one from seeing the leader's death.
            for other in self.ranks.values():
                other.file.close()
                os.close(other.stderr)
            ours.close()
            live(theirs, stderr, leader, life)
        theirs.close()
        os.close(stderr)
        rank = Rank(number, pid, ours, stderr_end, label or f"rank {number}")
        rank.open = {ours.fileno(), stderr_end}
        self.ranks[number] = rank

    def ask(self, orders: dict[int, dict[str, Any]], limit_s: float | None = None) -> dict[int, dict[str, Any]]:
        """Give each of these ranks its order and wait for all answers. Raises Broken.

        ``limit_s`` None: there is no limit but the check's own.
        """
        asked = [self.ranks[number] for number in orders]
        for rank in asked:
            rank.answer, rank.failure, rank.steps = None, None, 0
            # One that is gone is seen below, with its last words.
            with contextlib.suppress(OSError):
                rank.file.sendall(json.dumps(orders[rank.number], allow_nan=False).encode() + b"\n")
        deadline = None if limit_s is None else time.monotonic() + limit_s
        trouble: float | None = None
        while any(rank.waited_for for rank in asked):
            now = time.monotonic()
            if trouble is None and any(rank.failure or rank.ending for rank in asked):
                trouble = now + GRACE_S
            if trouble is not None and now > trouble:
                break
            if deadline is not None and now > deadline:
                break
            self._listen(POLL_S)
        self._settle(asked, limit_s)
        return {rank.number: rank.answer or {} for rank in asked}

    def _settle(self, asked: list[Rank], limit_s: float | None) -> None:
        """Blame the one that is at the root: who died, else who failed, else who got least far."""
        dead = [rank for rank in asked if rank.ending is not None]
        failed = [rank for rank in asked if rank.failure is not None]
        stuck = sorted((rank for rank in asked if rank.waited_for), key=lambda rank: (rank.steps, rank.number))
        detail: dict[str, Any] = {"ranks": [self._known(rank) for rank in asked]}
        if dead:
            first = dead[0]
            last = f": {first.last_line}" if first.last_line else ""
            text = f"{first.label} died ({first.ending}) while it was about to: {first.doing}{last}"
            raise Broken(DIED, text, detail)
        if failed:
            # What others say of a rank that failed first (a remote error) explains less than its own words.
            first = min(failed, key=lambda rank: (bool((rank.failure or {})["detail"].get("remote")), rank.number))
            said = first.failure or {}
            raise Broken(said["failed"], f"{first.label}: {said['message']}", {**detail, **said["detail"]})
        if stuck:
            first = stuck[0]
            # Who is behind is the suspect. Where all are equally far, as within one operation, nobody is.
            behind = [rank for rank in stuck if rank.steps == first.steps]
            who = " and ".join(rank.label for rank in behind)
            text = f"{who} did not get through in {limit_s:.3g} s, about to: {first.doing}"
            others = "; ".join(f"{rank.label}: {rank.doing}" for rank in stuck[len(behind) :])
            raise Broken(first.hung or HUNG, f"{text}; waiting too: {others}" if others else text, detail)

    @staticmethod
    def _known(rank: Rank) -> dict[str, Any]:
        state = processes.state(rank.pid) if rank.ending is None else rank.ending
        return {"rank": rank.label, "doing": rank.doing, "state": state, "stderr_last_line": rank.last_line}

    def _listen(self, seconds: float) -> None:
        """Wait at most so long for something to read, and take it in."""
        by_file = {file: rank for rank in self.ranks.values() for file in rank.open}
        ready, _, _ = select.select(sorted(by_file), [], [], seconds)
        for file in ready:
            rank = by_file[file]
            data = b""
            with contextlib.suppress(OSError):
                data = os.read(file, CHUNK_BYTES)
            if not data:
                rank.open.discard(file)
            elif file == rank.stderr:
                rank.said = (rank.said + data)[-STDERR_KEPT_BYTES:]
            else:
                self._take(rank, data)
        for rank in self.ranks.values():
            # A closed channel is a death; one whose files a grandchild holds open is found by looking.
            if rank.ending is None and (not ready or rank.file.fileno() not in rank.open):
                self._look(rank)

    def _take(self, rank: Rank, data: bytes) -> None:
        *lines, rank.rest = (rank.rest + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "doing" in said:
                rank.doing, rank.hung = said["doing"], said["hung"]
                rank.steps += 1
                self._report.doing(f"{rank.label}: {rank.doing}", rank.hung or HUNG, said["died"])
            elif "measurement" in said:
                self._report.add(from_dict(said["measurement"]))
            elif "answer" in said:
                rank.answer = said["answer"]
            else:
                rank.failure = said

    def _look(self, rank: Rank) -> None:
        """Whether a rank has ended; what it wrote last is read first."""
        if os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
        while rank.stderr in rank.open and select.select([rank.stderr], [], [], 0)[0]:
            data = os.read(rank.stderr, CHUNK_BYTES)
            if not data:
                break
            rank.said = (rank.said + data)[-STDERR_KEPT_BYTES:]
        rank.ending = ending(os.waitpid(rank.pid, 0)[1])

    def said(self, number: int) -> str:
        """What a rank has written to its stderr and stdout so far."""
        self._listen(0)
        return self.ranks[number].said.decode("utf-8", "replace")

    def kill(self) -> None:
        """End every process of the team, and forget it; what only they could have removed is removed."""
        opened = [processes.open_files(rank.pid) for rank in self.ranks.values() if rank.ending is None]
        left = {path for paths in opened for path in paths if path.startswith(nccl.SHARED_MEMORY)}
        for rank in self.ranks.values():
            if rank.ending is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank.pid, signal.SIGKILL)
        deadline = time.monotonic() + processes.GRACE_SECONDS
        for rank in self.ranks.values():
            while rank.ending is None and time.monotonic() < deadline:
                ended, status = os.waitpid(rank.pid, os.WNOHANG)
                if ended:
                    rank.ending = ending(status)
                else:
                    time.sleep(processes.POLL_SECONDS)
            rank.file.close()
            os.close(rank.stderr)
        for path in left:
            with contextlib.suppress(OSError):
                os.unlink(path)
        self.ranks = {}
