"""Kernel settings that hold: what is wanted now, what the next boot will set, and the one file of ours between them.

Which file sets a key last is decided by ``sysctl_files``; what is said about it is in ``sysctl_findings``.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace

from . import sysctl_findings
from .documents import Finding
from .host_io import Host
from .sysctl_facts import PROC, Facts, Wishes, read, wishes
from .sysctl_files import RIVALS, Setting, after_boot, dotted, parse
from .sysctl_findings import holds
from .tune_step import Concern
from .tuning import FILE, KINDS, LIVE, Kind, Wanted, Write

__all__ = ["CONCERN", "DROP_INS", "read", "wanted", "wishes"]

CONCERN = Concern("sysctl", sysctl_findings.DOMAIN, "sysctl.refused")
DROP_INS = ("/etc/sysctl.d/zzz-gpuhost.conf", "/etc/sysctl.d/~zzz-gpuhost.conf")
"""Our file. It has the second name where a file that sorts after the first one takes a key of ours; there is no third:
what sorts after that too is a finding."""
HEADER = """\
# Managed by gpuhost, role sysctl_tuning: a change here is overwritten, sysctl_tuning_keys is the place for it.
# The name is meant to sort last. With a leading "-" a kernel that does not have the key is no error.
"""
RIVAL = "sysctl_rival"
"""Kind of two keys of which one clears the other: the object is ``/proc/sys/vm/A|B``, the value ``A NUMBER``."""


def wanted(facts: Facts, wish: Wishes) -> Wanted:
    """Findings as the host is now, and the writes that end them. The file comes first: a boot then finds it."""
    others = {path: text for path, text in facts.files.items() if path not in DROP_INS}
    wish = replace(wish, keys={key: item.raised(facts.live.get(key)) for key, item in wish.keys.items()})
    wish, given_way = _without_rivals(facts, wish, others)
    ours = _kept(facts, wish, after_boot(others, wish.touched, facts.arguments))
    path, planned = _drop_in(facts, wish, others, ours)
    findings = (*sysctl_findings.findings(facts, wish, ours, planned), *given_way)
    files = [Write(FILE, item, planned[item] if item == path and ours else None) for item in DROP_INS]
    return Wanted(findings, (*files, *_live_writes(facts, wish)))


def _without_rivals(facts: Facts, wish: Wishes, others: Mapping[str, str]) -> tuple[Wishes, tuple[Finding, ...]]:
    """A default ratio does not take the place of bytes that somebody has set: in a file, or in force by hand."""
    boot = after_boot(others, wish.touched, facts.arguments)
    taken = {
        key: RIVALS[key]
        for key in wish.yielding
        if key not in boot and (RIVALS[key] in boot or (facts.live.get(RIVALS[key]) or "0") != "0")
    }
    keys = {key: item for key, item in wish.keys.items() if key not in taken}
    found = [sysctl_findings.given_way(facts, key, rival, boot.get(rival)) for key, rival in sorted(taken.items())]
    return replace(wish, keys=keys), tuple(found)


def _kept(facts: Facts, wish: Wishes, foreign: Mapping[str, Setting]) -> tuple[str, ...]:
    """The keys that our file has: all, but for those that are large enough by another file, or by themselves."""
    mine = {item.key for path in DROP_INS for item in parse(path, facts.files.get(path, ""))}
    return tuple(
        key
        for key, item in wish.keys.items()
        if not item.at_least
        or (not holds(foreign, key, item) if key in foreign else key in mine or not item.met_by(facts.live.get(key)))
    )


def _drop_in(
    facts: Facts, wish: Wishes, others: Mapping[str, str], ours: tuple[str, ...]
) -> tuple[str, dict[str, str]]:
    """Our file's path, and all files as they will be. The second name only where the first one would lose."""
    if not ours:
        return DROP_INS[0], dict(others)
    lines = [f"{_dash(facts, key)}{dotted(key)} = {wish.keys[key].value}\n" for key in ours]
    planned: dict[str, str] = {}
    for path in DROP_INS:
        planned = {**others, path: HEADER + "".join(lines)}
        boot = after_boot(planned, wish.touched, facts.arguments)
        if all(holds(boot, key, wish.keys[key]) for key in ours):
            return path, planned
    return DROP_INS[-1], planned  # it wins whatever the first one wins


def _dash(facts: Facts, key: str) -> str:
    return "-" if key not in facts.live or facts.absent_on_target(key) else ""


def _live_writes(facts: Facts, wish: Wishes) -> list[Write]:
    writes = []
    for key, item in wish.keys.items():
        value = facts.live.get(key)
        if value is None or item.met_by(value):
            continue
        if RIVALS.get(key) in facts.live:
            folder, _, name = f"{PROC}{key}".rpartition("/")
            about = f"{folder}/{name}|{posixpath.basename(RIVALS[key])}"
            writes.append(Write(RIVAL, about, f"{name} {item.value}", dotted(key)))
        else:
            writes.append(Write(LIVE, PROC + key, item.value + "\n", dotted(key)))
    return writes


def _read_rival(host: Host, about: str) -> str | None:
    """The one that is in force; the first where both read 0."""
    folder, _, names = about.rpartition("/")
    values = {name: " ".join((host.read(f"{folder}/{name}") or "").split()) for name in names.split("|")}
    name = next((name for name, value in values.items() if value not in ("", "0")), next(iter(values)))
    return f"{name} {values[name]}"


def _write_rival(host: Host, about: str, value: str | None) -> None:
    name, _, number = (value or "").partition(" ")
    host.write_live(f"{posixpath.dirname(about)}/{name}", number + "\n")


KINDS[RIVAL] = Kind(_read_rival, _write_rival)
