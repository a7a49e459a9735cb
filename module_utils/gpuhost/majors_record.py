"""The record of NVIDIA's majors on the host: which numbers container rules may still name. Rung 2 of the ladder.

It is written at every gate and every reconciliation, so an unplanned reboot is covered as well as a roll.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from .errors import stop
from .host_io import Host
from .proc_devices import nvidia_majors, parse_character_majors

RECORD = "/var/lib/gpuhost/majors.json"

Majors = dict[str, tuple[int, ...]]
"""Driver name -> the numbers that rules may name it by, the newest first."""


def running(host: Host) -> dict[str, int]:
    """NVIDIA's majors on the running kernel."""
    return nvidia_majors(parse_character_majors(host.read("/proc/devices") or ""))


def read(host: Host) -> Majors:
    """The recorded majors; empty where none were ever recorded. Raises Stop where the record can't be read."""
    text = host.read(RECORD)
    if text is None:
        return {}
    try:
        recorded = json.loads(text)["majors"]
        # A record of an earlier version has one number for each driver.
        return {
            str(name): tuple(int(number) for number in (found if isinstance(found, list) else [found]))
            for name, found in recorded.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise stop("host.module_failed", RECORD, f"not a record of majors: {error}", "", f"Remove {RECORD}") from error


def write(host: Host, majors: Mapping[str, tuple[int, ...]]) -> None:
    """Record these majors; an empty record or one that says the same already is not written."""
    if majors and read(host) != dict(majors):
        text = json.dumps({"majors": {name: list(found) for name, found in majors.items()}}, indent=2, sort_keys=True)
        host.write_atomic(RECORD, (text + "\n").encode())


def changing(recorded: Majors, now: Mapping[str, int]) -> Majors:
    """The record while rules are being rewritten: they may name the old number or the new one."""
    both = {name: (major, *(old for old in recorded.get(name, ()) if old != major)) for name, major in now.items()}
    return {**recorded, **both}


def settled(recorded: Majors, now: Mapping[str, int]) -> Majors:
    """The record when every rule names the current number. A driver that is not loaded now keeps its old ones.

    Older numbers must go: they would go on claiming what somebody may give to other devices later.
    """
    return {**recorded, **{name: (major,) for name, major in now.items()}}


def newest(recorded: Majors) -> dict[str, int]:
    """Driver name -> the last number, for people."""
    return {name: numbers[0] for name, numbers in recorded.items() if numbers}
