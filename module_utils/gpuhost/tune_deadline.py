"""Old values come back by themselves: a timer on the host, armed before the first write of a measurement.

What a measurement turns is on record in /run, with the value from before. Where the measuring process is gone before
it has put everything back (killed, out of memory, its machine's network dead and sshd with it), the timer runs the
host's own copy of this package, which does it. A reboot needs neither: it takes values and record with it.

Units and record lie in /run: nothing of them is there after a boot.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from . import concerns, tuning
from .errors import DEFECTS, Stop, stop
from .host_io import Host
from .return_service import PROGRAM
from .rollfile import LOCK_FILE

FOLDER = "/run/gpuhost"
RECORD = f"{FOLDER}/measuring.json"
UNIT = "gpuhost-tune-deadline"
_SYSTEMD = "/run/systemd/system"
SERVICE_FILE, TIMER_FILE = f"{_SYSTEMD}/{UNIT}.service", f"{_SYSTEMD}/{UNIT}.timer"
_HEADER = "# Managed by gpuhost: there only while the effect of tuning is measured.\n"
SERVICE = f"""{_HEADER}[Unit]
Description=gpuhost: values from before a measurement that was cut off come back
StartLimitIntervalSec=0

[Service]
Type=oneshot
Environment=PYTHONPATH={PROGRAM}
ExecStart=/usr/bin/python3 -m gpuhost.tune_deadline
TimeoutStartSec=300
Restart=on-failure
RestartSec=30
"""
LOCK_WAIT_S = 20.0
"""At the deadline: a measuring process that still lives has the lock. It hangs then, and is not waited for."""
_SYSTEMCTL_S = 30.0
_KINDS = concerns.ALL
"""Imported for what it brings along: every kind of object that may be on record."""


def timer(seconds: int) -> str:
    """The timer's text. It counts anew from each start of the timer."""
    return f"""{_HEADER}[Unit]
Description=gpuhost: the deadline of a measurement

[Timer]
OnActiveSec={seconds}
AccuracySec=1s
"""


@dataclass(frozen=True)
class Value:
    """What an object is to have again."""

    kind: str
    object: str
    value: str


@dataclass(frozen=True)
class Deadline:
    """``seconds`` from each ``begin`` to the return; ``has_timer`` is False where no systemd answers."""

    seconds: int
    has_timer: bool


def install(host: Host, seconds: int) -> Deadline:
    """Lay down service and timer; whether systemd takes them is part of the answer."""
    host.write_atomic(SERVICE_FILE, SERVICE.encode())
    host.write_atomic(TIMER_FILE, timer(seconds).encode())
    taken = _systemctl(host, "daemon-reload") and _systemctl(host, "restart", f"{UNIT}.timer")
    if not taken or host.run(["systemctl", "is-active", f"{UNIT}.timer"], _SYSTEMCTL_S).rc != 0:
        remove(host)
        return Deadline(seconds, False)
    return Deadline(seconds, True)


def begin(host: Host, deadline: Deadline, values: Sequence[Value]) -> None:
    """Before the first write: what is to come back is on record, and the timer counts anew. Raises Stop."""
    content = {"schema": "gpuhost/measuring", "values": [vars(item) for item in values]}
    host.write_atomic(RECORD, (json.dumps(content, indent=2) + "\n").encode(), 0o600)
    if deadline.has_timer and not _systemctl(host, "restart", f"{UNIT}.timer"):
        host.remove(RECORD)
        raise stop("tune.no_timer", f"{UNIT}.timer", "systemd does not start it any more", "a timer that runs")


def is_on(host: Host) -> bool:
    """Whether the measurement may still write: at the deadline the record is taken away."""
    return host.exists(RECORD)


def put_back(host: Host) -> list[str]:
    """Put back what is on record, the last value first; lines for people, empty where nothing is. Raises Stop.

    What can't be put back stays on record. Call it under the host's lock before anything else is tuned.
    """
    values = _load(host)
    if values is None:
        return []
    results = [(item, *_put_back(host, item)) for item in reversed(values)]
    left = [item for item, problem, _ in results if problem]
    if left:
        begin(host, Deadline(0, False), left[::-1])
        text = "; ".join(problem for _, problem, _ in results if problem)
        raise stop("tune.not_restored", left[0].object, text, left[0].value.strip())
    host.remove(RECORD)
    host.remove_empty_folder(FOLDER)
    return [line for _, _, line in results if line]


def _put_back(host: Host, item: Value) -> tuple[str, str]:
    """(why it failed, what was done), each empty where there is nothing to say."""
    kind = tuning.KINDS.get(item.kind)
    if kind is None:
        return f"{item.object}: of an unknown kind, {item.kind}", ""
    try:
        now = kind.read(host, item.object)
        if kind.same(now, item.value):
            return "", ""
        kind.write(host, item.object, item.value)
        after = kind.read(host, item.object)
    except (Stop, *DEFECTS) as error:
        return f"{item.object}: {error.blocker.observed if isinstance(error, Stop) else error}", ""
    if not kind.same(after, item.value):
        return f"{item.object}: reads {(after or 'nothing').strip()} after {item.value.strip()} was written", ""
    return "", f"{item.object}: {(now or 'nothing').strip()} -> {item.value.strip()}, as before a measurement"


def _load(host: Host) -> list[Value] | None:
    text = host.read(RECORD)
    if text is None:
        return None
    try:
        return [
            Value(str(item["kind"]), str(item["object"]), str(item["value"])) for item in json.loads(text)["values"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise stop("tune.not_restored", RECORD, f"not a record of values: {error}", "") from error


def remove(host: Host) -> None:
    """Take timer and service away. The record is not touched: it goes when all is back."""
    if host.exists(TIMER_FILE):
        # The service too: one that waits for its next try would fail without its file, and a failed unit of ours keeps
        # the next kernel upgrade from its trial.
        _systemctl(host, "stop", f"{UNIT}.timer", f"{UNIT}.service")
    there = [host.remove(path) for path in (TIMER_FILE, SERVICE_FILE) if host.exists(path)]
    if any(there):
        _systemctl(host, "daemon-reload")


def _systemctl(host: Host, *words: str) -> bool:
    return host.run(["systemctl", *words], _SYSTEMCTL_S).rc == 0


def at_deadline(host: Host) -> str:
    """What the service does: a measurement that still runs loses its record, and with it the right to write."""
    try:
        with host.lock(LOCK_FILE, LOCK_WAIT_S):
            lines = put_back(host)
    except Stop as error:
        if error.blocker.cause != "roll.busy":
            raise
        lines = put_back(host)
    return "\n".join(lines) or "nothing to put back"


def main() -> int:
    """Run as a program."""
    try:
        print(at_deadline(Host()))
    except Stop as error:
        print(f"{error.blocker.cause}: {error.blocker.sentence}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
