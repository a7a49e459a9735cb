"""Run programs as argument lists, with a limit and with signs of life."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from .errors import LabError

# A person who watches should see within this time that it goes on.
HEARTBEAT_S = 10.0
# Enough of a log to see the cause, short enough to read.
TAIL_LINES = 25


def say(text: str) -> None:
    """One progress line, on stderr: stdout is for results."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


@contextmanager
def heartbeat(step: str, expected_s: float) -> Iterator[None]:
    """Say every HEARTBEAT_S how long a step has been going on, and at its end how long it took."""
    started = time.monotonic()
    done = threading.Event()

    def beat() -> None:
        while not done.wait(HEARTBEAT_S):
            say(f"{step}: {time.monotonic() - started:.0f} s of about {expected_s:.0f} s")

    say(f"{step}: about {expected_s:.0f} s")
    beater = threading.Thread(target=beat, daemon=True)
    beater.start()
    try:
        yield
    finally:
        done.set()
        beater.join()
    say(f"{step}: done in {time.monotonic() - started:.0f} s")


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, readable even where it holds terminal codes."""
    if not path.exists():
        return f"({path} does not exist)"
    text = path.read_bytes().decode("utf-8", "replace").replace("\r", "")
    return "\n".join(text.splitlines()[-lines:])


def c_locale(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with the C locale."""
    return {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", **(extra or {})}


def run(argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None, stdin: str = "") -> str:
    """Run a short command and give back its stdout; a failure carries its stderr."""
    try:
        done = subprocess.run(
            list(argv), env=c_locale(env), timeout=timeout_s, input=stdin, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise LabError(f"{argv[0]} is not installed: see the lab's section in the docs for its packages") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{' '.join(argv)}: not finished after {timeout_s:.0f} s") from error
    if done.returncode != 0:
        raise LabError(f"{' '.join(argv)}: exit status {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def run_logged(argv: Sequence[str], *, step: str, log: Path, timeout_s: float, expected_s: float) -> None:
    """Run a long command into a log file, with signs of life."""
    with log.open("ab") as out, heartbeat(step, expected_s):
        try:
            done = subprocess.run(
                list(argv),
                env=c_locale(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
            )
        except FileNotFoundError as error:
            raise LabError(f"{step}: {argv[0]} is not installed") from error
        except subprocess.TimeoutExpired as error:
            raise LabError(f"{step}: not finished after {timeout_s:.0f} s, log {log}\n{tail(log)}") from error
        if done.returncode != 0:
            raise LabError(f"{step}: exit status {done.returncode}, log {log}\n{tail(log)}")
