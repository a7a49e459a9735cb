"""The words of ``gpuhost explain``: short lines for somebody who was woken up."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gpuhost.lxc_lines import display
from gpuhost.lxc_native import Migration
from gpuhost.lxc_reconcile import Change

if TYPE_CHECKING:
    from gpuhost_cli.explain import Explanation

STYLE_WORD = {"pve": "a Proxmox config", "lxc": "a plain LXC config"}
HELD = {
    "locked": "Not changed, the config is locked",
    "presumed": "Not changed, because it is only presumed",
    "undecided": "Not changed, because the record gives the number to several drivers",
}

QUIET = ("good", "info")
"""Severities that need nobody."""


def lines(found: Explanation) -> list[str]:
    """Everything, the diff first and the next step last."""
    outcome = found.reconciliation
    text = [f"{found.name}: read as {STYLE_WORD[found.style]} ({found.style_by})"]
    text += [f"{found.name}: {words}" for words in found.assumptions]
    if found.content != found.config:
        text += ["", *diff(found.name, found.config, found.content)]
    for item in outcome.included:
        if item.changed:
            text += ["", *diff(item.path, found.includes[item.path], item.content)]
    text += _block("Changes", (row for change in outcome.all_changes for row in _change(change)))
    for held, title in HELD.items():
        text += _block(title, (row for change in outcome.held if change.held == held for row in _change(change)))
    if found.migration:
        text += _block("Moved to devN", _migration(found.migration))
        text += _block("Not moved to devN", (printable(item.sentence) for item in found.migration.refusals))
    text += _block("Findings", _findings(found))
    text += _block("Must exist before the container starts", (found.migration or outcome).required_paths)
    return [*text, "", f"Next: {next_step(found)}"]


def diff(name: str, before: bytes, after: bytes) -> list[str]:
    """A unified diff as lines; empty where nothing differs."""
    old, new = (
        [printable(display(line).removesuffix("\r")) for line in data.removesuffix(b"\n").split(b"\n")]
        for data in (before, after)
    )
    return list(difflib.unified_diff(old, new, name, f"{name} (new)", lineterm="", n=1))


def next_step(found: Explanation) -> str:
    """The one thing to do now."""
    outcome, migration = found.reconciliation, found.migration
    held = {change.held for change in outcome.held}
    command = "gpuhost reconcile -i INVENTORY --limit HOST"
    if "locked" in held:
        return "wait for the job that holds the lock, or pct unlock when it is gone; then look again."
    if found.content != found.config or any(item.changed for item in outcome.included):
        extra = " -e lxc_devices_presumed=apply" if any(c.attribution == "presumed" for c in outcome.changes) else ""
        extra += " -e lxc_devices_style=native" if migration and migration.changed else ""
        left = bool(held) or any(item.severity not in QUIET for item in outcome.left)
        more = " What it leaves, listed above, needs somebody." if left else ""
        return f"{command}{extra} writes it; restart the container, rules are read at its start.{more}"
    if "presumed" in held:
        return (
            "if these rules are NVIDIA's: see the diff with --presumed apply, then write it with "
            f"{command} -e lxc_devices_presumed=apply"
        )
    if migration and migration.refusals:
        return printable(migration.refusals[0].next_step)
    urgent = [f"{item.source}: {item.fix}" for item in outcome.findings if item.severity not in QUIET]
    return printable(urgent[0]) if urgent else "nothing to do."


def reason(change: Change) -> str:
    """Why a change is made, and how sure that is."""
    if change.kind in ("add", "mount"):
        return f"certain: {change.driver} is needed and has no {'rule' if change.kind == 'add' else 'mount'}"
    if change.kind == "remove":
        return f"certain: the number was {change.driver}'s before, and a devN entry brings its own rule"
    if change.held == "undecided":
        return f"undecided: {change.old_major} was {change.driver}'s before, and another driver's before that"
    if change.attribution == "presumed":
        return (
            f"presumed: nobody owns {change.old_major} now, {change.driver}'s node has no rule, "
            "and no record says whose it was"
        )
    if change.attribution == "recorded":
        return f"certain: the number was {change.driver}'s before"
    return f"certain: the number is {change.driver}'s" + ("; the key has no effect" if change.kind == "convert" else "")


def printable(text: str) -> str:
    """Text of a file for a terminal: control characters as escapes, so that none of them acts."""
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def _block(title: str, rows: Iterable[str]) -> list[str]:
    found = [f"  {row}" for row in rows]
    return ["", f"{title}:", *found] if found else []


def _change(change: Change) -> Iterator[str]:
    numbers = f"{change.old_major or 'none'} -> {change.new_major or 'none'}"
    where = f"after line {change.line}" if change.kind in ("add", "mount") else f"line {change.line}"
    where += f" of {change.file}" if change.file else ""
    if change.attribution == "presumed":
        yield f"{where}: {change.driver} {numbers}"
        yield f"    {reason(change)}"
    else:
        yield f"{where}: {change.driver} {numbers}, {reason(change)}"
    if change.leaks_to:
        yield f"    SECURITY: {change.old_major} is {change.leaks_to}'s now, the container can open its devices"


def _migration(migration: Migration) -> Iterator[str]:
    kinds = Counter(change.kind for change in migration.changes)
    if kinds:
        yield f"{kinds['dev']} entries come, {kinds['mount']} mounts and {kinds['rule']} rules go: see the diff"
    yield from (printable(f"note: {note}") for note in migration.notes)


def _findings(found: Explanation) -> Iterator[str]:
    for item in found.reconciliation.left:
        loud = "SECURITY: " if item.severity == "security" else "note: " if item.severity in QUIET else ""
        yield printable(f"{loud}{item.source}: {item.observed}, expected {item.expected} ({item.id})")
        yield printable(f"    {item.why} {item.fix}")
