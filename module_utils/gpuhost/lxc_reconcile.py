"""Give a container its NVIDIA devices by driver name: rewrite the majors that moved, and nothing else.

Pure: config bytes and two tables of majors in, new bytes with reasons out. The caller reads, writes and restarts:
rules are applied at container start, so a running container keeps its old ones until then.

The record is the table *before* the change of kernel. After a successful write, record the current table: an old
record would go on claiming numbers that somebody may give to other devices later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .documents import Finding
from .lxc_attribution import Attribution, NeededNode, Target, policy_of, presume, translated
from .lxc_config import MAIN, Line, LxcDocument, SpanEdit, Style, display, parse
from .lxc_findings import findings_of
from .lxc_plan import Hierarchy, Plan, Presumed, make_plan
from .proc_devices import CharacterMajors

__all__ = [
    "Change",
    "Hierarchy",
    "NeededNode",
    "Presumed",
    "Reconciliation",
    "StaleRule",
    "declared_nodes",
    "reconcile",
    "stale_rules",
]

ChangeKind = Literal["replace", "convert", "remove", "add", "mount"]


@dataclass(frozen=True)
class Change:
    """One line that changes. line counts from 1 in the old file; for "add" and "mount" the new line follows it.

    before/after are whole lines without line end, None where there is none. leaks_to is the driver that owns the old
    number now: until the rewrite the container may open its devices. held says why the change was not applied.
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
    held: Literal["", "presumed", "locked"] = ""

    @property
    def severity(self) -> Literal["security", "p0_runtime"]:
        return "security" if self.leaks_to else "p0_runtime"


@dataclass(frozen=True)
class Reconciliation:
    """The outcome for one file. content equals the input when changed is False.

    held: changes that were found but not applied (presumed in report mode, or the config is locked).
    required_paths: what must exist as a character device before the container starts, or the start fails.
    needs_open_test: reading cannot decide; open the nodes inside the container.
    """

    content: bytes
    changed: bool
    changes: tuple[Change, ...]
    held: tuple[Change, ...]
    findings: tuple[Finding, ...]
    needed: tuple[NeededNode, ...]
    required_paths: tuple[str, ...]
    needs_open_test: bool


@dataclass(frozen=True)
class StaleRule:
    """For the gate's judge: config line, driver, the number that is allowed and the driver's number now.

    major_now is None while the driver is not registered. owner is who owns the allowed number now, if anybody. With
    attribution "presumed" the driver is the best guess.
    """

    line: int
    driver: str
    major_allowed: int
    major_now: int | None
    attribution: Attribution
    owner: str | None

    def sentence(self, container: str) -> str:
        """What is wrong, for people; container is the name or file they know it by."""
        now = "does not have that driver loaded" if self.major_now is None else f"uses {self.major_now}"
        guess = " (presumed)" if self.attribution == "presumed" else ""
        leak = f"; {self.major_allowed} now opens {self.owner}" if self.owner else ""
        return f"{container} allows major {self.major_allowed} for {self.driver}{guess}, this kernel {now}{leak}"


def reconcile(
    config: bytes,
    current: CharacterMajors,
    recorded: Mapping[str, int],
    *,
    style: Style = "pve",
    presumed: Presumed = "apply",
    declared: Sequence[str] = (),
    hierarchy: Hierarchy = "cgroup2",
) -> Reconciliation:
    """Bring the device rules of one config to the current majors; any config bytes are accepted.

    recorded maps NVIDIA driver names to their majors before the upgrade; empty when there is no record. presumed
    says what happens to rules that only rung 3 attributes; unattended runs pass "report". declared are host paths
    of NVIDIA nodes that the inventory wants in the container: missing rules *and* mounts are added for them.
    Raises ProcDevicesError when current is empty, ValueError for a declared path that is no NVIDIA node.
    """
    current.require_known()
    document = parse(config, style)
    plan = make_plan(document, current, recorded, declared=declared, hierarchy=hierarchy, presumed=presumed)
    locked = document.facts.lock is not None
    wanted, edits, insertions, removals = _carry_out(plan)
    held = [] if plan.apply_presumed or plan.ambiguous else _held_presumed(plan)
    content = config if locked else document.rewrite(edits, insertions, removals)
    if locked:
        held = [*(_with_hold(change, "locked") for change in wanted), *held]
    return Reconciliation(
        content=content,
        changed=content != config,
        changes=() if locked else tuple(wanted),
        held=tuple(held),
        findings=findings_of(plan, recorded),
        needed=plan.needs,
        required_paths=_required_paths(plan),
        needs_open_test=any(rule.type == "a" and rule.major is None for rule in plan.before.allows),
    )


def stale_rules(
    config: bytes,
    current: CharacterMajors,
    recorded: Mapping[str, int],
    *,
    style: Style = "pve",
    declared: Sequence[str] = (),
    hierarchy: Hierarchy = "cgroup2",
) -> tuple[StaleRule, ...]:
    """Allow rules that name an old number of an NVIDIA driver, in file order; nothing is rewritten.

    Goes one step beyond the ladder where a needed node has no rule: a dynamic number that another driver owns by
    now is presumed to be the old one. That explains a failure; it is no ground for touching the rule.
    """
    current.require_known()
    plan = make_plan(parse(config, style), current, recorded, declared=declared, hierarchy=hierarchy)
    found: list[Target] = [*plan.stale, *plan.dropped, *plan.unresolved, *plan.presumed]
    needs = [need for need in plan.needs if need.source != "dev"]
    live = translated([rule for rule in plan.main_rules if rule.version == plan.version], found)
    found += presume(policy_of(live, plan.version), needs, current, recorded, foreign=True)[0]
    return tuple(
        StaleRule(t.rule.line, t.driver, t.rule.major, t.major, t.attribution, _other_owner(plan, t))
        for t in sorted(found, key=lambda target: target.rule.line)
        if t.rule.allow and t.rule.major is not None
    )


def declared_nodes(gpus: Iterable[int], *, uvm_tools: bool = False, modeset: bool = False) -> tuple[str, ...]:
    """The host paths a container with these GPU minors needs for CUDA; empty for no GPUs."""
    cards = tuple(f"/dev/nvidia{gpu}" for gpu in gpus)
    if not cards:
        return ()
    more = (("/dev/nvidia-uvm-tools",) if uvm_tools else ()) + (("/dev/nvidia-modeset",) if modeset else ())
    return (*cards, "/dev/nvidiactl", "/dev/nvidia-uvm", *more)


def _carry_out(plan: Plan) -> tuple[list[Change], list[SpanEdit], dict[int, list[bytes]], set[int]]:
    """The plan as changes and as edits of the parsed lines, so that all of them happen at once."""
    changes: list[Change] = []
    edits: list[SpanEdit] = []
    rewritten = [*plan.stale, *(plan.presumed if plan.apply_presumed else ())]
    for target in rewritten:
        edit = _number_edit(target)
        edits.append(edit)
        changes.append(_change(plan, target, "replace", [edit]))
    for target in plan.converted:
        both = [edit for edit in (_key_edit(plan, target), _number_edit(target)) if edit]
        edits += both
        changes.append(_change(plan, target, "convert", both))
    changes += [_change(plan, target, "remove", []) for target in plan.dropped]
    insertions: dict[int, list[bytes]] = {}
    for change in _new_lines(plan):
        changes.append(change)
        insertions.setdefault(change.line, []).append((change.after or "").encode("utf-8", "surrogateescape"))
    changes.sort(key=lambda change: change.line)
    return changes, edits, insertions, {target.rule.line for target in plan.dropped}


def _held_presumed(plan: Plan) -> list[Change]:
    changes = (_change(plan, target, "replace", [_number_edit(target)]) for target in plan.presumed)
    return [_with_hold(change, "presumed") for change in changes]


def _with_hold(change: Change, reason: Literal["presumed", "locked"]) -> Change:
    return Change(**{**vars(change), "held": reason})


def _number_edit(target: Target) -> SpanEdit:
    start, end = target.rule.major_span
    return SpanEdit(target.rule.line, start, end, str(target.major).encode("ascii"))


def _key_edit(plan: Plan, target: Target) -> SpanEdit:
    line = plan.document.lines[target.rule.line - 1]
    new = _allow_key(plan).encode("ascii")
    return SpanEdit(line.number, line.key_start, line.key_start + len(line.key), new)


def _allow_key(plan: Plan) -> str:
    return "lxc.cgroup2.devices.allow" if plan.version == 2 else "lxc.cgroup.devices.allow"


def _change(plan: Plan, target: Target, kind: ChangeKind, edits: Sequence[SpanEdit]) -> Change:
    line = plan.document.lines[target.rule.line - 1]
    raw = line.raw[: len(line.raw) - len(line.eol)]
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        raw = raw[: edit.start] + edit.new + raw[edit.end :]
    # A rule under the dead key opens nothing, a deny rule neither.
    leaks_to = None if kind == "convert" or not target.rule.allow else _other_owner(plan, target)
    after = None if kind == "remove" else display(raw)
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
    )


def _other_owner(plan: Plan, target: Target) -> str | None:
    names = plan.current.names_of(target.rule.major) if target.rule.major is not None else ()
    return next((name for name in names if name != target.driver), None)


def _new_lines(plan: Plan) -> list[Change]:
    """New rules after the last device rule, new mounts after the last mount, all inside the main section."""
    filled = [line for line in plan.document.lines if line.section == MAIN and line.kind not in ("blank", "section")]
    rules = {rule.line for rule in plan.main_rules}
    rule_anchor = next((line for line in reversed(filled) if line.number in rules), None)
    mount_anchor = next((line for line in reversed(filled) if line.key == "lxc.mount.entry"), None)
    last = filled[-1].number if filled else 0
    rule_at = rule_anchor.number if rule_anchor else last
    mount_at = max(mount_anchor.number, rule_at) if mount_anchor and rule_anchor else last
    separator = _separator(plan.document, rule_anchor or mount_anchor)
    key = _allow_key(plan) + separator
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


def _required_paths(plan: Plan) -> tuple[str, ...]:
    """devN entries, rules by path, and mounts without `optional`: a missing node makes the start fail."""
    devs = [dev.path for dev in plan.document.dev_entries if dev.section == MAIN]
    rules = [rule.path for rule in plan.main_rules if rule.kind == "path" and rule.version == plan.version]
    mounts = [need.path for need in plan.needs if need.source == "mount" and not need.optional and not need.is_dir]
    return tuple(dict.fromkeys([*devs, *rules, *mounts]))
