"""Containers that still run with the rules from before a rewrite: a container takes its rules when it starts."""

from __future__ import annotations

import json
from collections.abc import Iterable

from .errors import stop
from .host_io import Host

RECORD = "/var/lib/gpuhost/old_rules.json"
"""Container -> its init as it ran when the rules were rewritten: ``PID STARTTIME``, or STOPPED."""
STOPPED = "stopped for its restart"
"""We have stopped it: until it runs again, whoever has the consent starts it."""

_STARTTIME = 22 - 3
"""Field 22 of proc_pid_stat(5), counted behind the command's name, which may hold blanks."""


def init_of(host: Host, name: str) -> str:
    """Process id and start time of a container's init, which a restart changes; empty where it does not run."""
    found = host.run(["lxc-info", "-n", name, "-p", "-H"])
    pid = found.stdout.strip()
    if found.rc != 0 or not pid.isdecimal():
        return ""
    behind_name = (host.read(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return f"{pid} {behind_name[_STARTTIME]}" if len(behind_name) > _STARTTIME else ""


def read(host: Host) -> dict[str, str]:
    """The record; empty where there is none."""
    text = host.read(RECORD)
    if text is None:
        return {}
    try:
        return {str(name): str(init) for name, init in json.loads(text).items()}
    except (ValueError, AttributeError) as error:
        raise stop("host.module_failed", RECORD, f"not a record: {error}", "", f"Remove {RECORD}") from error


def due(host: Host, rewritten: Iterable[str] = ()) -> dict[str, str]:
    """Containers that run with old rules: those just rewritten, and those of the record that still run as then.

    And those that a restart has stopped and that nobody has started since. Raises Stop where nobody says who runs.
    """
    recorded = read(host)
    asked = list(dict.fromkeys([*recorded, *rewritten]))
    active = _active(host) if asked else set()
    now = {name: init_of(host, name) for name in asked if name in active}
    just = set(rewritten)
    found = {name: init for name, init in now.items() if init and (name in just or init == recorded.get(name))}
    return {**found, **{name: STOPPED for name, init in recorded.items() if init == STOPPED and name not in active}}


def _active(host: Host) -> set[str]:
    found = host.run(["lxc-ls", "-1", "--active"])
    if found.rc not in (0, 127):
        raise stop("host.module_failed", "lxc-ls --active", found.last_line)
    return set(found.stdout.split())


def remember(host: Host, still: dict[str, str]) -> None:
    """Record who still runs with old rules; with nobody left the record goes."""
    if not still and host.exists(RECORD):
        host.remove(RECORD)
    elif still and read(host) != still:
        host.write_atomic(RECORD, (json.dumps(still, indent=2, sort_keys=True) + "\n").encode())
