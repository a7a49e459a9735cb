"""A plan as changes of lines and as new bytes, in the container's own file and in those that it includes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .lxc_attribution import Attribution, Target
from .lxc_config import MAIN, Line, LxcDocument, SpanEdit, display
from .lxc_lines import is_distribution
from .lxc_plan import Plan, allow_key

ChangeKind = Literal["replace", "convert", "remove", "add", "mount"]
Edits = dict[str, list[SpanEdit]]
"""Edits by file; "" is the container's own."""


@dataclass(frozen=True)
class Change:
    """One line that changes. line counts from 1 in the old file; for "add" and "mount" the new line follows it.

    before/after are whole lines without line end, None where there is none. leaks_to is the driver that owns the old
    number now: until the rewrite the container may open its devices. held says why the change was not applied. file
    is "" for the container's own file, else the path of the included one.
    """

    kind: ChangeKind
    line: int
    before: str | None
    after: str | None
    driver: str
    old_major: int | None
    new_major: int | None
    attribution: Attribution
    leaks_to: str | None = None
    held: Literal["", "presumed", "locked", "undecided"] = ""
    file: str = ""

    @property
    def severity(self) -> Literal["security", "p0_runtime"]:
        return "security" if self.leaks_to else "p0_runtime"


@dataclass(frozen=True)
class IncludedFile:
    """An included file of the user's own: only numbers of certain attribution change in it."""

    path: str
    content: bytes
    changed: bool
    changes: tuple[Change, ...]


def carry_out(plan: Plan) -> tuple[list[Change], Edits, dict[int, list[bytes]], set[int]]:
    """The plan as changes and as edits of the parsed lines of each file, so that all of them happen at once."""
    changes: list[Change] = []
    edits: Edits = {}
    for target in [*plan.stale, *(plan.presumed if plan.apply_presumed else ())]:
        edit = _number_edit(target)
        edits.setdefault(target.rule.file, []).append(edit)
        changes.append(_change(plan, target, "replace", [edit]))
    for target in plan.converted:
        both = [_key_edit(plan, target), _number_edit(target)]
        edits.setdefault("", []).extend(both)
        changes.append(_change(plan, target, "convert", both))
    changes += [_change(plan, target, "remove", []) for target in plan.dropped]
    insertions: dict[int, list[bytes]] = {}
    for change in _new_lines(plan):
        changes.append(change)
        insertions.setdefault(change.line, []).append((change.after or "").encode("utf-8", "surrogateescape"))
    changes.sort(key=lambda change: (change.file, change.line))
    return changes, edits, insertions, {target.rule.line for target in plan.dropped}


def included_files(plan: Plan, changes: Sequence[Change], edits: Edits) -> Iterator[IncludedFile]:
    """Every included file that may be rewritten, with what becomes of it."""
    for path, document in plan.main.documents.items():
        if path and not is_distribution(path):
            before, content = document.render(), document.rewrite(edits.get(path, ()))
            made = tuple(change for change in changes if change.file == path)
            yield IncludedFile(path, content, content != before, made)


def held_presumed(plan: Plan) -> list[Change]:
    """What only rung 3 attributes, as changes that are not made."""
    changes = (_change(plan, target, "replace", [_number_edit(target)]) for target in plan.presumed)
    return [with_hold(change, "presumed") for change in changes]


def held_undecided(plan: Plan) -> list[Change]:
    """What could be made of rules that the record gives to several drivers: the newest claim, as changes not made."""
    targets = [target for target in undecided_targets(plan) if target.major is not None]
    changes = (_change(plan, target, "replace", [_number_edit(target)]) for target in targets)
    return [with_hold(change, "undecided") for change in changes]


def undecided_targets(plan: Plan) -> list[Target]:
    """Rules that the record gives to several drivers, with the newest claim as a guess."""
    claims = [(rule, plan.recorded[rule.major][0]) for rule in plan.undecided if rule.major is not None]
    return [Target(rule, name, plan.current.driver_major(name), "presumed") for rule, name in claims]


def with_hold(change: Change, reason: Literal["presumed", "locked", "undecided"]) -> Change:
    """The same change, not made for this reason."""
    return replace(change, held=reason)


def _number_edit(target: Target) -> SpanEdit:
    start, end = target.rule.major_span
    return SpanEdit(target.rule.line, start, end, str(target.major).encode("ascii"))


def _key_edit(plan: Plan, target: Target) -> SpanEdit:
    line = plan.document.lines[target.rule.line - 1]
    new = allow_key(plan.version).encode("ascii")
    return SpanEdit(line.number, line.key_start, line.key_start + len(line.key), new)


def _change(plan: Plan, target: Target, kind: ChangeKind, edits: Sequence[SpanEdit]) -> Change:
    line = plan.main.documents[target.rule.file].lines[target.rule.line - 1]
    body = line.body
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        body = body[: edit.start] + edit.new + body[edit.end :]
    # A rule under the dead key opens nothing, a deny rule neither.
    leaks_to = None if kind == "convert" or not target.rule.allow else other_owner(plan, target)
    after = None if kind == "remove" else display(body)
    return Change(
        kind=kind,
        line=line.number,
        before=line.text,
        after=after,
        driver=target.driver,
        old_major=target.rule.major,
        new_major=target.major,
        attribution=target.attribution,
        leaks_to=leaks_to,
        file=target.rule.file,
    )


def other_owner(plan: Plan, target: Target) -> str | None:
    """Who else has the number of a rule now, if anybody."""
    names = plan.current.names_of(target.rule.major) if target.rule.major is not None else ()
    return next((name for name in names if name != target.driver), None)


def _new_lines(plan: Plan) -> list[Change]:
    """New rules after the last device rule, new mounts after the last mount, all inside the own main section.

    An include counts as a rule: what it holds, a `deny = a` for instance, must not come after the new ones.
    """
    own = [line for line in plan.document.lines if line.section == MAIN]
    filled = [line for line in own if line.kind in ("entry", "comment")]
    rules = {rule.line for rule in plan.main_rules if not rule.file}
    rule_anchor = next((line for line in reversed(filled) if line.number in rules), None)
    mount_anchor = next((line for line in reversed(filled) if line.key == "lxc.mount.entry"), None)
    last = filled[-1].number if filled else 0
    include_at = max((line.number for line in filled if line.included_path), default=0)
    rule_at = max(rule_anchor.number, include_at) if rule_anchor else last
    mount_at = max(mount_anchor.number, rule_at) if mount_anchor and rule_anchor else last
    separator = _separator(plan.document, rule_anchor or mount_anchor)
    key = allow_key(plan.version) + separator
    new = [
        Change("add", rule_at, None, key + rule.value, rule.driver, None, rule.major, "current")
        for rule in plan.additions
    ]
    for need in plan.mounts:
        create = "dir" if need.is_dir else "file"
        entry = f"lxc.mount.entry{separator}{need.path} {need.path[1:]} none bind,optional,create={create}"
        new.append(Change("mount", mount_at, None, entry, need.driver, None, need.major, "current"))
    return new


def _separator(document: LxcDocument, model: Line | None) -> str:
    usual = ": " if document.style == "pve" else " = "
    # The separator of a quoted value ends with the opening quote, which the new value does not have.
    return model.separator.rstrip(b"'\"").decode("ascii", "replace") if model else usual
