"""The last lines of the server's own log, from where the command line says that they are."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from gpuhost_cli.explain_text import printable

LIMIT_S = 20.0
"""For the program that shows the log; a host that does not answer must not hold up the message."""
LINE = 400
TAIL_BYTES = 256 * 1024


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
    """The last lines, safe for a terminal; one line with the reason where they can't be read."""
    if not source.name:
        return ()
    argv = source.argv(lines)
    try:
        text = _output(argv) if argv else _tail(Path(source.file))
    except (OSError, subprocess.SubprocessError) as error:
        return (f"(can't be read: {printable(str(getattr(error, 'strerror', None) or error))})",)
    found = deque((line for line in text.splitlines() if line.strip()), maxlen=lines)
    return tuple(printable(line[:LINE]) for line in found) or ("(empty)",)


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
