"""The audit of one host: every concern's and every domain's findings, read in one process, changing nothing.

Each part stands by itself: what one of them can't read is one ``unknown`` finding with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import audit_domains, concerns
from .documents import Finding, Head, make_head
from .errors import DEFECTS, Stop
from .host_io import Host
from .pcie_tree import ADDRESS
from .workloads import BOOT_ID

NOT_READ = "audit.not_read"
URGENT = ("security", "p0_runtime", "p1_reboot")
"""Severities that somebody has to do something about: with one of them ``gpuhost audit`` ends with 1."""

_REFUSED = ("Permission denied", "Operation not permitted")

Findings = Sequence[Finding]


@dataclass(frozen=True)
class Part:
    """One piece of the audit. ``domain`` is that of the finding which says that it could not be read."""

    name: str
    domain: str
    look: Callable[[Host], Findings]


@dataclass(frozen=True)
class PartRead:
    """How long a part took, and whether all of it could be read."""

    name: str
    seconds: float
    complete: bool


@dataclass(frozen=True)
class Audit:
    """``audit.json``. Two of the same host can be compared."""

    head: Head
    kernel: str
    boot_id: str
    as_root: bool
    seconds: float
    parts: tuple[PartRead, ...]
    findings: tuple[Finding, ...]


def parts_of(wishes: Mapping[str, Mapping[str, Any]], serving_flags: Any) -> tuple[Part, ...]:
    """All parts. ``wishes``: the tuning modules' parameters by concern. Raises Stop(input.invalid) for wrong ones."""
    tunings = [(item, item.look_of(wishes[item.name])) for item in concerns.ALL]
    return (
        *(Part(item.name, item.concern.domain, _findings_of(look)) for item, look in tunings),
        *(Part(name, name, look) for name, look in audit_domains.looks(serving_flags).items()),
    )


def _findings_of(look: concerns.Look) -> Callable[[Host], Findings]:
    return lambda host: look(host).findings


def collect(host: Host, name: str, run_id: str, parts: Sequence[Part]) -> Audit:
    """Read the host."""
    begun = host.clock()
    findings: list[Finding] = []
    read = []
    for part in parts:
        start = host.clock()
        found, complete = _guarded(host, part)
        findings += found
        read.append(PartRead(part.name, round(host.clock() - start, 3), complete))
    return Audit(
        make_head("audit", name, run_id),
        host.read_line("/proc/sys/kernel/osrelease"),
        host.read_line(BOOT_ID),
        host.is_root(),
        round(host.clock() - begun, 3),
        tuple(read),
        merged(findings),
    )


def merged(findings: Findings) -> tuple[Finding, ...]:
    """What is said of many devices in the same words is one finding: tuning has one for each, which may be refused."""
    groups: dict[Finding, list[Finding]] = {}
    for item in findings:
        what, _, address = item.observed.rpartition(": ")
        alike = replace(item, observed=what, source="") if ADDRESS.fullmatch(address) else item
        groups.setdefault(alike, []).append(item)
    return tuple(_as_one(group) for group in groups.values())


def _as_one(group: Findings) -> Finding:
    more = [item.observed.rpartition(": ")[2] for item in group[1:] if item != group[0]]
    return replace(group[0], observed=", ".join([group[0].observed, *more]))


def _guarded(host: Host, part: Part) -> tuple[Findings, bool]:
    try:
        return part.look(host), True
    except Stop as error:
        reason = f"{error.blocker.object}: {error.blocker.observed}"
    except DEFECTS as error:
        reason = f"{type(error).__name__}: {error}"
    why = "Where it can't be read nothing is known: neither that it is right nor that it is wrong."
    observed, fix = f"unknown: {reason}", "Look at what it names; if that is in order, it is a defect of gpuhost's"
    if not host.is_root() and any(words in reason for words in _REFUSED):
        observed, fix = f"unknown: needs root ({reason})", "Run it as root"
    return (Finding(NOT_READ, part.domain, "unknown", observed, "readable", why, fix, part.name),), False
