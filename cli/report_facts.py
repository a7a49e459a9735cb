"""What was and what is on a host, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuhost_cli import report_read as read
from gpuhost_cli.report_rows import Fact

Documents = Mapping[str, Mapping[str, Any]]


def facts(documents: Documents) -> tuple[Fact, ...]:
    """What was and what is, side by side."""
    before, after = documents.get("facts", {}), documents.get("facts_after")
    names = {
        "Kernel": ("kernel", "release"), "Command line": ("kernel", "cmdline"), "Boot id": ("kernel", "boot_id"),
        "NVIDIA driver": ("driver", "version"), "Default boot entry": ("boot", "default_entry"),
        "Boot loader": ("boot", "loader"),
    }  # fmt: skip
    found = [_fact(name, before, after, *keys) for name, keys in names.items()]
    found.insert(0, Fact("System", _system(before), _system(after) if after is not None else None))
    found.append(Fact("GPUs", _gpus(before), _gpus(after) if after is not None else None))
    found.append(Fact("Containers", _containers(before), _containers(after) if after is not None else None))
    return tuple(fact for fact in found if fact.before or fact.after)


def _fact(name: str, before: Any, after: Any, *keys: str) -> Fact:
    *path, last = keys
    now = read.text(read.sub(after, *path).get(last)) or None if after is not None else None
    return Fact(name, read.text(read.sub(before, *path).get(last)) or None, now)


def _system(facts: Any) -> str | None:
    system = read.sub(facts, "os")
    parts = [read.text(system.get(key)) for key in ("id", "version_id")]
    return read.text(system.get("name")) or " ".join(filter(None, parts)) or None


def _gpus(facts: Any) -> str | None:
    names = [read.text(gpu.get("name") or gpu.get("device")) or "GPU" for gpu in read.rows(facts, "gpus")]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or None


def _containers(facts: Any) -> str | None:
    found = [
        f"{read.text(item.get('name'))} ({'running' if item.get('running') else 'stopped'}"
        f"{'' if item.get('autostart') else ', no autostart'})"
        for item in read.rows(facts, "containers")
    ]
    return ", ".join(found) or None


def majors(documents: Documents) -> tuple[Fact, ...]:
    """Driver majors before and after; after the way back they are those of the old kernel again."""
    reconcile = documents.get("reconcile", {})
    before = (
        read.sub(documents.get("roll"), "majors_before")
        or read.sub(reconcile, "majors_before")
        or read.sub(documents.get("facts"), "majors")
    )
    after = read.sub(documents.get("facts_after"), "majors") or read.sub(reconcile, "majors_now")
    names = dict.fromkeys([*before, *after])
    return tuple(Fact(name, read.text(before.get(name)) or None, read.text(after.get(name)) or None) for name in names)
