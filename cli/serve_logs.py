"""The last lines of the server's own log, from where the command line says that they are."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuhost_cli.explain_text import printable

LIMIT_S = 20.0
"""For the program that shows the log; a host that does not answer must not hold up the message."""
LINE = 400
TAIL_BYTES = 4 << 20
READ_LINES = 5000
"""Read at most, to choose from: an engine of vLLM that dies makes each open stream write the same 60 lines."""
ACCESS = re.compile(r'"(GET|POST) \S+ HTTP/1\.[01]" 200\b')
"""uvicorn's line for a request that went well, which vLLM, SGLang and transformers write for each one: no news."""
SEE_ABOVE = re.compile(r"See (stack trace \(above\)|root cause above)")
"""vLLM's API server says so, for each open stream, when its engine is dead. Why is in the engine's own lines."""
STARTED = "Application startup complete"
"""uvicorn's. What stands before it is of an earlier life, or of this one's loading."""
ENGINE = re.compile(r"\((?:EngineCore|VllmWorker|Worker)[^()]*\) (?:ERROR|CRITICAL) (?P<rest>.*)")
DETAIL = re.compile(r"\[[\w.]+:\d+\](?: \s| Dumping |\s*$)")
"""Of the engine's lines: a traceback's frames, its blank lines, and the dump of all its settings, 5 kB in one line."""


@dataclass(frozen=True)
class LogSource:
    """At most one of them is set. ``command`` is an argument list: for logs elsewhere, as over ssh."""

    file: str = ""
    unit: str = ""
    container: str = ""
    command: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        if self.command:
            return shlex.join(self.command)
        if self.unit:
            return f"unit {self.unit}"
        return f"container {self.container}" if self.container else self.file

    def argv(self, lines: int) -> list[str]:
        """The program that shows the last lines; empty for a file."""
        if self.command:
            return list(self.command)
        if self.unit:
            return ["journalctl", "--no-pager", "--quiet", "--output=cat", f"--lines={lines}", f"--unit={self.unit}"]
        if self.container:
            tool = next((name for name in ("docker", "podman") if shutil.which(name)), "docker")
            return [tool, "logs", "--tail", str(lines), self.container]
        return []


def last_lines(source: LogSource, lines: int) -> tuple[str, ...]:
    """The last lines that tell something, safe for a terminal; one with the reason where they can't be read."""
    if not source.name:
        return ()
    argv = source.argv(max(lines, READ_LINES))
    try:
        text = _output(argv) if argv else _tail(Path(source.file))
    except (OSError, subprocess.SubprocessError) as error:
        return (f"(can't be read: {printable(str(getattr(error, 'strerror', None) or error))})",)
    found = telling([line for line in text.splitlines() if line.strip()], lines)
    return tuple(printable(line[:LINE]) for line in found) or ("(empty)",)


def telling(found: Sequence[str], lines: int) -> Sequence[str]:
    """The last lines without those of requests that went well; for a dead engine of vLLM what that engine said."""
    last = ([line for line in found if not ACCESS.search(line)] or found)[-lines:]
    begun = max((number for number, line in enumerate(found) if STARTED in line), default=-1)
    recent = found[begun + 1 :]
    pointers = [line for line in recent if SEE_ABOVE.search(line)]
    said = [line for line in recent if (match := ENGINE.search(line)) and not DETAIL.search(match["rest"])]
    return [*said[-max(lines - 1, 1) :], pointers[-1]] if pointers and said else last


def _tail(path: Path) -> str:
    with path.open("rb") as handle:
        handle.seek(max(0, path.stat().st_size - TAIL_BYTES))
        return handle.read().decode("utf-8", "replace")


def _output(argv: list[str]) -> str:
    """Both streams: docker shows a container's stderr on stderr."""
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False,
        env={**os.environ, "LC_ALL": "C"}, errors="replace",
    )  # fmt: skip
    return done.stdout if done.stdout.strip() or done.returncode == 0 else f"(exit status {done.returncode})"


def stopped(source: LogSource) -> str:
    """Why the unit or container does not run; empty where it does, or where nobody can tell."""
    if source.unit:
        argv = ["systemctl", "show", "--property=ActiveState,SubState,Result", "--value", source.unit]
        states = _state(argv).split()
        return (
            f"unit {source.unit} is {states[0]} ({', '.join(states[1:])})"
            if states[:1] in (["failed"], ["inactive"])
            else ""
        )
    if source.container:
        tool = source.argv(1)[0]
        state = _state([tool, "inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", source.container]).split()
        if state[:1] in (["exited"], ["dead"]):
            return f"container {source.container} is {state[0]} (exit status {state[-1]})"
    return ""


def _state(argv: list[str]) -> str:
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""
