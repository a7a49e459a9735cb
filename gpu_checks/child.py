"""A child process of its own session that runs a function, with a hard time limit, and what it reports."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Callable, ClassVar

from gpu_checks import processes
from gpu_checks.causes import CAUSES
from gpu_checks.measurement import Measurement, from_dict, to_dict

STDERR_KEPT_BYTES = 16 * 1024
"""Only the end of what a child writes is kept; its last line is what we show."""

REPORT_LIMIT_BYTES = 16 * 1024 * 1024
"""A child that reports more than this has lost its way: thousands of measurements fit in it."""

CHUNK_BYTES = 64 * 1024
"""The size of a pipe's buffer on Linux, so one read can empty it."""

DRAIN_READS = 8
"""Two full pipes and two ends of file take four reads; short reads may need some more."""


@dataclass
class Heard:
    """What a child said so far. ``ended``: it said itself that it was through.

    ``hung`` and ``died``: the causes to give where what it does now never returns, or kills it; None: the general ones.
    """

    measurements: list[Measurement] = field(default_factory=list)
    doing: str = ""
    hung: str | None = None
    died: str | None = None
    ended: bool = False
    nonsense: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a child ended. ``wait_status`` is None where it was not reaped; ``survivors`` no SIGKILL could end.

    ``state``: what the kernel said of a child that ran out of time, before it was killed.
    """

    heard: Heard
    timed_out: bool
    wait_status: int | None
    stderr_last_line: str
    survivors: list[int]
    seconds: float
    state: str = ""


class PipeReport:
    """The child's side of the report: one JSON line for each thing said, written at once."""

    def __init__(self, file: int) -> None:
        """Write to this file descriptor."""
        self._file = file

    def _say(self, what: dict[str, Any]) -> None:
        data = json.dumps(what, allow_nan=False).encode() + b"\n"
        while data:
            data = data[os.write(self._file, data) :]

    def add(self, measurement: Measurement) -> None:
        """Hand over one finished measurement."""
        self._say({"measurement": to_dict(measurement)})

    def doing(self, what: str, hung: str | None = None, died: str | None = None) -> None:
        """Say what comes next, and what it means if it never returns or kills us."""
        self._say({"doing": what, "hung": hung, "died": died})

    def end(self) -> None:
        """Say that everything was said."""
        self._say({"end": True})


def _registered(cause: object) -> str | None:
    """A cause that was announced. Raises ValueError for one that nobody knows."""
    if cause is None or (isinstance(cause, str) and cause in CAUSES):
        return cause
    raise ValueError(f"cause {cause!r} is not registered")


def hear(heard: Heard, line: bytes) -> None:
    """Take in one line of a report. What is no report is remembered and ends the child's credit."""
    try:
        said = json.loads(line)
        if "measurement" in said:
            heard.measurements.append(from_dict(said["measurement"]))
        elif "doing" in said:
            heard.doing = str(said["doing"])
            heard.hung, heard.died = _registered(said.get("hung")), _registered(said.get("died"))
        elif "end" in said:
            heard.ended = True
    except (ValueError, TypeError) as error:
        heard.nonsense = f"unreadable report: {error}"


def last_line(text: bytes) -> str:
    """The last line that says something; of a traceback that is the error itself."""
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _life(function: Callable[[PipeReport], None], report: int, stderr: int) -> None:
    """The child's life."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    # Libraries write to stdout as they please; ours is the document's.
    os.dup2(stderr, 1)
    os.dup2(stderr, 2)
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    talk = PipeReport(report)
    function(talk)
    talk.end()


class _Listener:
    """The parent's side of the two pipes: lines of the report, and the end of stderr."""

    def __init__(self, report: int, stderr: int) -> None:
        self.heard = Heard()
        self.stderr = b""
        self._report, self._stderr = report, stderr
        self._open = {report, stderr}
        self._rest = b""
        self._total = 0

    def listen(self, seconds: float) -> bool:
        """Wait at most so long for something to read, and read it. False where nothing came."""
        ready, _, _ = select.select(sorted(self._open), [], [], max(0.0, seconds))
        for file in ready:
            data = os.read(file, CHUNK_BYTES)
            if not data:
                self._open.discard(file)
            elif file == self._stderr:
                self.stderr = (self.stderr + data)[-STDERR_KEPT_BYTES:]
            else:
                self._take(data)
        return bool(ready)

    def _take(self, data: bytes) -> None:
        self._total += len(data)
        if self._total > REPORT_LIMIT_BYTES:
            self.heard.nonsense = f"more than {REPORT_LIMIT_BYTES} bytes reported"
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            hear(self.heard, line)

    def drain(self) -> None:
        """Read what is still in the pipes, and no more than they hold: what survived may still write."""
        for _ in range(DRAIN_READS):
            if not self.listen(0):
                return

    @property
    def through(self) -> bool:
        """Nothing more is to be expected: it said so, it talked nonsense, or its side of the report is closed."""
        return self.heard.ended or bool(self.heard.nonsense) or self._report not in self._open


def _has_ended(pid: int) -> bool:
    """Whether a child is dead, leaving it to be reaped later."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _follow(pid: int, listener: _Listener, deadline: float) -> bool:
    """Listen until the child is through, dead or out of time; True where it ran out of time."""
    while not listener.through:
        left = deadline - time.monotonic()
        if left <= 0:
            return True
        # A grandchild can hold the pipes open for ever, so the death of the child is looked for as well.
        if not listener.listen(min(left, 0.05)) and _has_ended(pid):
            break
    return False


class Child:
    """A process of its own session that runs ``function``. Use it in a ``with``: afterwards nothing of it is left.

    It begins at once. What it says before somebody listens waits in its pipes.
    """

    _living = 0
    """How many there are now: as long as there is one, orphans below us become our children, see ``processes``."""

    _begun: ClassVar[set[int]] = set()
    """All that were not ended yet, also those that began after this one."""

    _unkillable: ClassVar[set[int]] = set()
    """What outlived SIGKILL."""

    def __init__(self, function: Callable[[PipeReport], None]) -> None:
        """Start it. Raises OSError where no process can be had."""
        self._spared = processes.children(os.getpid())
        report_end, report = os.pipe()
        stderr_end, stderr = os.pipe()
        self._ends = (report_end, stderr_end)
        self._listener = _Listener(report_end, stderr_end)
        parent = os.getpid()
        # The child must not inherit half-written text.
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = 0
        Child._living += 1
        processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
        try:
            self._pid = os.fork()
            if self._pid == 0:
                processes.only_live(parent, functools.partial(_life, function, report, stderr))
            Child._begun.add(self._pid)
        except OSError:
            self.__exit__()
            raise
        finally:
            os.close(report)
            os.close(stderr)

    def __enter__(self) -> Child:
        """It runs already."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it, if it was not heard to its end, and everything below it."""
        if self._pid:
            self._end()
        for file in self._ends:
            os.close(file)
        Child._living -= 1
        if not Child._living:
            processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 0)

    def _end(self) -> tuple[int | None, list[int]]:
        Child._begun.discard(self._pid)
        wait_status, survivors = processes.end_all(self._pid, self._spared | Child._begun | Child._unkillable)
        Child._unkillable.update(survivors)
        self._pid = 0
        return wait_status, survivors

    def lives(self) -> bool:
        """Whether it has not died yet."""
        return not _has_ended(self._pid)

    def hear(self, timeout_seconds: float) -> Outcome:
        """Listen until it is through, or this time is over; then end it and everything below it."""
        begin = time.monotonic()
        timed_out = _follow(self._pid, self._listener, begin + timeout_seconds)
        state = processes.state(self._pid) if timed_out else ""
        wait_status, survivors = self._end()
        self._listener.drain()
        seconds = time.monotonic() - begin
        line = last_line(self._listener.stderr)
        return Outcome(self._listener.heard, timed_out, wait_status, line, survivors, seconds, state)

    @staticmethod
    @contextlib.contextmanager
    def none_left() -> Iterator[None]:
        """Afterwards no child is left that was not there before.

        Also none of which no ``with`` knows: a signal may end us between a fork and the next line.
        """
        before = processes.children(os.getpid())
        try:
            yield
        finally:
            spared = before | Child._unkillable
            left = processes.children(os.getpid()) - spared
            if left:
                processes.end_all(min(left), spared)
