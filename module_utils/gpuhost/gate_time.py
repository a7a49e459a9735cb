"""How long measuring may take at most, so that a trial's dead-man lets it come to its end."""

from __future__ import annotations

from collections.abc import Collection

from . import workloads
from .check_runner import EXCLUSIVE_CHECKS, LOCK_WAIT_S
from .gate_rows import SLOW
from .host_io import Host

A_PLACE_S = 180
"""For everything but the checks' own limits in one place: finding it, starting the interpreter, ending what hangs."""


def longest_s(
    host: Host, checks: Collection[str], required: Collection[str], wanted: Collection[str], user: str, timeout_s: int
) -> int:
    """Seconds where every check takes its whole limit, in every place that is ``wanted`` (empty: all), and on the host.

    cuda may run once more, as root where there is a ``user``; what is ``required`` and has speeds a second time; and
    another measurement of this host may have to end first.
    """
    places = 1 + len(wanted or [item for item in workloads.survey(host) if item["gpu"]])
    runs = len(checks) + bool(user) + len(set(required) & set(SLOW))
    others = LOCK_WAIT_S if set(checks) & set(EXCLUSIVE_CHECKS) else 0
    return others + places * (runs * timeout_s + A_PLACE_S)
