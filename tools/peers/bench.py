"""Run ours and the peers one after the other, under one limit of time, and keep what each said."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ours
from figures import Reading

LEAST_S = 15.0
"""A command that never ran before is not begun with less than this left: CUDA takes seconds to start on many GPUs."""

MARGIN = 1.3
"""So much longer than the last time a command may take before it is not begun any more."""

TAIL_CHARACTERS = 1500
"""Of what a failed command wrote so much is kept: the end, where the error stands."""

KILLED_S = 10.0
"""SIGKILL ends all but what hangs in the driver; longer than this nothing is waited for."""

Values = dict[Reading, float]
Reader = Callable[["Done"], Values]


class OutOfTime(Exception):
    """The limit would be passed."""


@dataclass(frozen=True)
class Done:
    """A command that ended, or was ended (``rc`` is negative then)."""

    argv: list[str]
    rc: int
    out: str
    err: str
    seconds: float


@dataclass(frozen=True)
class Setup:
    """Where everything is. ``environment``: what every command gets beside ours; ``gpus``: how many there are."""

    python: str
    archive: str
    programs: Path
    gpus: int
    environment: dict[str, str]
    mpi: bool = False


@dataclass
class Collected:
    """What one set of figures has so far: an entry for each command, of ours and of each peer."""

    ours: list[Values] = field(default_factory=list)
    peers: dict[str, list[Values]] = field(default_factory=dict)


@dataclass
class Bench:
    """Runs commands, and remembers. ``said``: called with each line of progress; ``after``: after each command."""

    setup: Setup
    limit_s: float
    said: Callable[[str], None]
    after: Callable[[], None] = lambda: None
    begun: float = field(default_factory=time.monotonic)
    collected: dict[str, Collected] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    documents: dict[str, list[ours.Measurement]] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    _took: dict[str, float] = field(default_factory=dict)

    def left_s(self) -> float:
        """Seconds until the limit."""
        return self.limit_s - (time.monotonic() - self.begun)

    def note(self, text: str) -> None:
        """Something that the reader of the table has to know; once."""
        if text not in self.notes:
            self.notes.append(text)
            self.said(f"note: {text}")

    def of(self, name: str) -> Collected:
        """What the set of this name has so far."""
        return self.collected.setdefault(name, Collected())

    def run(self, argv: list[str], variables: dict[str, str] | None = None) -> Done:
        """Run a command in a process group of its own; nothing of it is left at its end. Raises OutOfTime."""
        own = variables or {}
        key = " ".join([*(f"{name}={value}" for name, value in own.items()), *argv])
        left = self.left_s()
        if left < self._took.get(key, LEAST_S / MARGIN) * MARGIN:
            raise OutOfTime(f"{left:.0f} s are left, not begun: {key}")
        begin = time.monotonic()
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
            env={**os.environ, **self.setup.environment, **own}, start_new_session=True,
        )  # fmt: skip
        ended = True
        try:
            out, err = process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            ended = False
        seconds = time.monotonic() - begin
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if not ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=KILLED_S)
            out, err = "", f"killed: the limit of {self.limit_s:g} s was reached"
        done = Done(argv, -1 if process.returncode is None else process.returncode, out, err, seconds)
        self._took[key] = seconds
        tail = (done.out + done.err)[-TAIL_CHARACTERS:] if done.rc else ""
        self.runs.append({"argv": argv, "variables": own, "rc": done.rc, "seconds": round(seconds, 3), "tail": tail})
        return done

    def ours(
        self, name: str, checks: list[str], quick: bool = False, variables: dict[str, str] | None = None
    ) -> Values:
        """Run checks of ours for a set; what they gave."""
        done = self.run(ours.command(self.setup.python, self.setup.archive, checks, quick), variables)
        try:
            measurements = ours.parse(done.out)
        except ours.NotUsable as error:
            self.note(f"ours, {' '.join(checks)}: {error} {done.err[-300:]}".rstrip())
            return {}
        finally:
            self.after()
        self.documents[f"{name}{' quick' if quick else ''}"] = measurements
        for text in ours.troubles(measurements):
            self.note(f"ours: {text}")
        values = ours.readings(measurements)
        self.said(f"{name}: ours took {done.seconds:.1f} s, {len(values)} figures")
        return {**values, ("seconds", "all"): done.seconds}

    def peer(self, name: str, peer: str, argv: list[str], read: Reader) -> Values:
        """Run a peer for a set; what it gave. A peer that fails is noted."""
        done = self.run(argv)
        try:
            values = read(done)
        except ValueError as error:  # every parser's NotUsable is one
            self.note(f"{peer} ended with {done.rc}: {error} {done.err[-300:]}".rstrip())
            return {}
        finally:
            self.after()
        self.said(f"{name}: {peer} took {done.seconds:.1f} s, {len(values)} figures")
        return {**values, ("seconds", "all"): done.seconds}

    def keep(self, name: str, values: Values, peer: str | None = None) -> None:
        """Remember what a command gave, at once: what comes next may not be reached. ``peer``: None for ours."""
        collected = self.of(name)
        if values:
            (collected.ours if peer is None else collected.peers.setdefault(peer, [])).append(values)
        self.after()
