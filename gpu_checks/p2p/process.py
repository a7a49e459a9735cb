"""A process that measures and can be killed: a copy that hangs takes its CUDA contexts with it, not the check.

The check itself never starts CUDA. It forks a worker, which does everything that touches a GPU and says each thing at
once through a pipe; the check knows what was begun last, and how long that may take.
"""

from __future__ import annotations

import functools
import json
import os
import select
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Callable

from gpu_checks import processes
from gpu_checks.child import CHUNK_BYTES, PipeReport
from gpu_checks.runner import ending

ENDED, HUNG, DIED, STOPPED = "ended", "hung", "died", "stopped"


class Talk(PipeReport):
    """The worker's side: a check's report, and what only the check itself needs."""

    def tell(self, **what: Any) -> None:
        """Say something that is no measurement."""
        self._say({"told": what})


@dataclass(frozen=True)
class Ending:
    """How a worker ended. ``how``: in words; ``state``: what a hung one did, as the kernel says; ``survivors``: see
    ``processes.end_all``."""

    kind: str
    how: str = ""
    state: str = ""
    seconds: float = 0.0
    survivors: list[int] = field(default_factory=list)


def _life(function: Callable[[Talk], None], pipe: int) -> None:
    """The worker's life. It stays in the check's session, so that it is killed with the check."""
    talk = Talk(pipe)
    function(talk)
    talk.end()


def _listen(pipe: int, hear: Callable[[dict[str, Any]], float | None], limit_s: float) -> str:
    """Hear everything until the worker says that it is through; how that ended."""
    rest, deadline = b"", time.monotonic() + limit_s
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return HUNG
        ready, _, _ = select.select([pipe], [], [], left)
        if not ready:
            continue
        data = os.read(pipe, CHUNK_BYTES)
        if not data:
            return DIED
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message.get("end"):
                return ENDED
            allowed = hear(message)
            if allowed is None:
                return STOPPED
            deadline = time.monotonic() + allowed


def follow(function: Callable[[Talk], None], hear: Callable[[dict[str, Any]], float | None], limit_s: float) -> Ending:
    """Run ``function`` in a worker; nothing of it is left afterwards.

    ``hear`` gets each message and says how many seconds may pass until the next one, or None to end the worker now.
    ``limit_s``: the same for the first. Raises OSError where no process can be started.
    """
    begin = time.monotonic()
    spared = processes.children(os.getpid())
    listen, talk = os.pipe()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = 0
    try:
        pid = os.fork()
        if pid == 0:
            os.close(listen)
            processes.only_live(parent, functools.partial(_life, function, talk))
        os.close(talk)
        kind = _listen(listen, hear, limit_s)
        state = processes.state(pid) if kind == HUNG else ""
        if kind == DIED:
            _await(pid)  # its pipe closes a moment before its status can be had
        status, survivors = processes.end_all(pid, spared)
        pid = 0
        return Ending(kind, ending(status), state, time.monotonic() - begin, survivors)
    finally:
        if pid:
            processes.end_all(pid, spared)
        os.close(listen)


def _await(pid: int) -> None:
    """Give a process that has closed its pipe the time to become a dead one, so that its own status is seen."""
    deadline = time.monotonic() + processes.GRACE_SECONDS
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(processes.POLL_SECONDS)
