"""Progress with a clock of its own: a step that runs for minutes says so at least every ten seconds."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TextIO

from gpuhost_cli.expectations import Expectations

__all__ = ["Expectations", "ProgressClock", "duration", "elapsed_text"]

INTERVAL_S = 10.0
"""A running step is reported at least this often."""
REDRAW_S = 1.0
"""On a terminal the live line follows the clock; elsewhere this is how often the steps are looked at."""

_OUTPUT = threading.RLock()
"""Held while any clock writes, and across fork(): no child is born with a stream's lock taken."""
_CLOCKS: weakref.WeakSet[ProgressClock] = weakref.WeakSet()


@dataclass
class _Running:
    """One step that runs now. Times are those of the clock."""

    host: str
    stage: str
    task: str
    expected: float | None
    started: float
    printed: float


def duration(seconds: float) -> str:
    """Seconds for people: ``0:07``, ``12:30``, ``1:02:15``."""
    whole = max(0, int(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"


def elapsed_text(elapsed: float, expected: float | None) -> str:
    """``1:20 of about 2:25``, and what it says where there is no estimate or it was passed."""
    if expected is None:
        return f"{duration(elapsed)}, no estimate yet"
    text = f"{duration(elapsed)} of about {duration(max(1.0, expected))}"
    return text + ", longer than expected" if elapsed > max(1.0, expected) * 1.5 + INTERVAL_S else text


class ProgressClock:
    """Prints step, elapsed and expected time for each running step, from a thread of its own.

    Each host runs one step at a time: a new ``begin`` for a host ends its earlier step. ``live`` rewrites one line at
    the bottom (None: if the stream is a terminal); else each report is a line. A stream that fails ends the printing,
    never the caller.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        expectations: Expectations | None = None,
        *,
        live: bool | None = None,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream: TextIO | None = stream if stream is not None else sys.stderr
        self._expectations = expectations or Expectations()
        self._live = _is_terminal(self._stream) if live is None else live
        self._interval = interval_s
        self._look_s = min(REDRAW_S, interval_s / 2)
        self._clock = clock
        self._origin = clock()
        self._running: dict[str, _Running] = {}
        self._live_shown = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        _CLOCKS.add(self)

    def start(self) -> ProgressClock:
        """Start the thread. It is a daemon and is stopped at exit, so it keeps no process alive."""
        with _OUTPUT:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=_run, args=(weakref.ref(self),), name="progress", daemon=True)
                self._thread.start()
        return self

    def stop(self) -> None:
        """Stop the thread and clear the live line. May be called twice, and from any thread."""
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=2.0)
        with _OUTPUT:
            self._running.clear()
            self._clear_live()
            self._flush()
        _CLOCKS.discard(self)

    def __enter__(self) -> ProgressClock:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def stopped(self) -> bool:
        """Whether ``stop`` was called: the thread ends by itself."""
        return self._stopped.is_set()

    def wait(self) -> None:
        """Sleep until the next look at the running steps is due."""
        self._stopped.wait(self._look_s)

    def begin(self, host: str, stage: str, task: str, expected: float | None = None) -> None:
        """A step begins on a host; it is printed at once."""
        with _OUTPUT:
            if expected is None:
                expected = self._expectations.seconds(stage, task, host)
            now = self._clock()
            step = _Running(host, stage, task, expected, now, now)
            self._running[host] = step
            about = "no estimate yet" if expected is None else f"about {duration(max(1.0, expected))}"
            self._report(step, about, now, lasting=not self._live)

    def end(self, host: str, status: str = "ok", message: str = "") -> float | None:
        """The host's step has ended: prints and gives back its seconds, None where none was running."""
        with _OUTPUT:
            step = self._running.pop(host, None)
            if step is None:
                return None
            now = self._clock()
            seconds = now - step.started
            text = f"{status} in {duration(seconds)}"
            self._report(step, f"{text}: {message}" if message else text, now, lasting=True)
            return seconds

    def say(self, text: str) -> None:
        """Print a line of the caller's among the progress, with the run's clock in front."""
        with _OUTPUT:
            self._print(f"{self._stamp(self._clock())} {text}")
            self._draw_live(self._clock())

    def show(self, *lines: str) -> None:
        """Print lines as they are: what a finished step says below its own line."""
        with _OUTPUT:
            for line in lines:
                self._print(line)
            self._draw_live(self._clock())

    def tick(self) -> None:
        """What the thread does: report each step that was not reported for the interval."""
        with _OUTPUT:
            now = self._clock()
            if self._live:
                self._draw_live(now)
                return
            for step in self._running.values():
                if now - step.printed > self._interval - self._look_s:  # at the next look it would be too late
                    self._report(step, elapsed_text(now - step.started, step.expected), now, lasting=True)

    def forget_parent(self) -> None:
        """In a forked child: nothing is running here, and nothing is printed."""
        self._stopped.set()
        self._thread = None
        self._running.clear()
        self._stream = None

    def _stamp(self, now: float) -> str:
        return f"[{duration(now - self._origin):>5}]"

    def _report(self, step: _Running, text: str, now: float, *, lasting: bool) -> None:
        step.printed = now
        if lasting:
            self._print(f"{self._stamp(now)} {_label(step)} … {text}")
        self._draw_live(now)

    def _draw_live(self, now: float) -> None:
        """Rewrite the live line: every running step, cut to the terminal's width."""
        if not self._live:
            return
        self._clear_live()
        if self._running:
            width = shutil.get_terminal_size((100, 24)).columns - 1
            steps = [f"{_label(s)} … {elapsed_text(now - s.started, s.expected)}" for s in self._running.values()]
            head = f"{self._stamp(now)} " + (f"{len(steps)} hosts: " if len(steps) > 1 else "")
            line = head + " | ".join(steps)
            self._write(line if len(line) <= width else line[: max(1, width - 1)] + "…")
            self._live_shown = True
        self._flush()

    def _clear_live(self) -> None:
        if self._live_shown:
            self._write("\r\x1b[2K")
            self._live_shown = False

    def _print(self, line: str) -> None:
        self._clear_live()
        self._write(line + "\n")
        self._flush()

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            self._write(text.encode("ascii", "replace").decode("ascii"))
        except (OSError, ValueError):  # the reader has gone, or the stream is closed
            self._stream = None

    def _flush(self) -> None:
        if self._stream is None:
            return
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None


def _label(step: _Running) -> str:
    return f"{step.host} {step.stage}: {step.task}" if step.stage else f"{step.host}: {step.task}"


def _is_terminal(stream: TextIO | None) -> bool:
    """A terminal that understands clearing a line."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    except ValueError:  # closed
        return False


def _run(reference: weakref.ref[ProgressClock]) -> None:
    """The thread. It holds no strong reference while it sleeps longer than one look, so a lost clock ends it."""
    while True:
        clock = reference()
        if clock is None or clock.stopped:
            return
        clock.wait()
        if not clock.stopped:
            clock.tick()
        del clock


def _stop_all() -> None:
    for clock in list(_CLOCKS):
        clock.stop()


def _after_fork_in_child() -> None:
    global _OUTPUT  # noqa: PLW0603 - the child needs a lock that no thread of the parent holds
    _OUTPUT = threading.RLock()
    for clock in list(_CLOCKS):
        clock.forget_parent()


def _before_fork() -> None:
    _OUTPUT.acquire()


def _after_fork_in_parent() -> None:
    _OUTPUT.release()


atexit.register(_stop_all)
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
