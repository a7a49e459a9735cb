"""Give a container its NVIDIA devices by driver name: rewrite the majors that moved, and nothing else.

Pure: config bytes and two tables of majors in, new bytes with reasons out. The caller reads, writes and restarts:
rules are applied at container start, so a running container keeps its old ones until then.

The record is the table *before* the change of kernel. Before writing, record the current table beside it, so that a
kill in between leaves no number without a driver; after it, the current one alone: an old record would go on claiming
numbers that somebody may give to other devices later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .documents import Finding
from .lxc_attribution import Attribution, NeededNode, Target, policy_of, presume, translated
from .lxc_changes import (
    Change,
    IncludedFile,
    carry_out,
    held_presumed,
    held_undecided,
    included_files,
    other_owner,
    undecided_targets,
    with_hold,
)
from .lxc_config import MAIN, Style, parse
from .lxc_findings import findings_of
from .lxc_includes import include_paths, read_includes
from .lxc_lines import place
from .lxc_plan import Hierarchy, Plan, Presumed, make_plan
from .lxc_setups import managed
from .proc_devices import FRONT_NAMES, CharacterMajors, Record, nvidia_node, record_tables

__all__ = [
    "Change",
    "Hierarchy",
    "IncludedFile",
    "NeededNode",
    "Presumed",
    "Reconciliation",
    "StaleRule",
    "declared_nodes",
    "include_paths",
    "read_includes",
    "reconcile",
    "stale_rules",
]


@dataclass(frozen=True)
class Reconciliation:
    """The outcome for one container. content equals the input when changed is False; both are about its own file.

    held: changes that were found but not applied (presumed in report mode, undecided, or the config is locked).
    included: the included files of the user's own, in the order in which they are first read; other containers may
    share them, so write one container's files before the next one's are read.
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
    included: tuple[IncludedFile, ...] = ()

    @property
    def all_changes(self) -> tuple[Change, ...]:
        """Of the config itself, and of the files that it includes."""
        return (*self.changes, *(change for item in self.included for change in item.changes))

    @property
    def left(self) -> tuple[Finding, ...]:
        """The findings that no change deals with, made or held: what there is to say besides the changes."""
        changes = (*self.all_changes, *self.held)
        told = {place(change.file, change.line) for change in changes}
        return tuple(
            item
            for item in self.findings
            if not (item.id in _SAID_BY_CHANGES and item.source in told) and not _is_added(item, self.changes)
        )


_SAID_BY_CHANGES = ("lxc.stale_major", "lxc.leaked_major", "lxc.presumed_stale")


def _is_added(item: Finding, changes: Iterable[Change]) -> bool:
    """Whether a change adds the rule that a finding misses."""
    node = nvidia_node(item.observed.partition(":")[0]) if item.id == "lxc.rule_missing" else None
    driver = "nvidia" if node and node.driver in FRONT_NAMES else node and node.driver
    return any(change.kind == "add" and change.driver == driver for change in changes)


@dataclass(frozen=True)
class StaleRule:
    """For the gate's judge: config line, driver, the number that is allowed and the driver's number now.

    major_now is None while the driver is not registered. owner is who owns the allowed number now, if anybody. With
    attribution "presumed" the driver is the best guess. file is the included file that holds the line, if any.
    """

    line: int
    driver: str
    major_allowed: int
    major_now: int | None
    attribution: Attribution
    owner: str | None
    file: str = ""

    def sentence(self, container: str) -> str:
        """What is wrong, for people; container is the name or file they know it by."""
        now = "does not have that driver loaded" if self.major_now is None else f"uses {self.major_now}"
        guess = " (presumed)" if self.attribution == "presumed" else ""
        leak = f"; {self.major_allowed} now opens {self.owner}" if self.owner else ""
        return f"{container} allows major {self.major_allowed} for {self.driver}{guess}, this kernel {now}{leak}"


def reconcile(
    config: bytes,
    current: CharacterMajors,
    recorded: Record,
    *,
    style: Style = "pve",
    presumed: Presumed = "apply",
    declared: Sequence[str] = (),
    hierarchy: Hierarchy = "cgroup2",
    includes: Mapping[str, bytes] | None = None,
) -> Reconciliation:
    """Bring the device rules of one container to the current majors; any config bytes are accepted.

    recorded maps NVIDIA driver names to their majors before the upgrade, to one or to several, newest first; empty
    when there is no record. presumed says what happens to rules that only rung 3 attributes; unattended runs pass
    "report". declared are host paths of NVIDIA nodes that the inventory wants in the container: missing rules *and*
    mounts are added for them. includes are the included files as read_includes() gives them; without it none is
    followed. Raises ProcDevicesError when current is empty, ValueError for a declared path that is no NVIDIA node.
    """
    current.require_known()
    document = parse(config, style)
    plan = make_plan(
        document, current, recorded, declared=declared, hierarchy=hierarchy, presumed=presumed, includes=includes
    )
    if managed(document):
        return Reconciliation(config, False, (), (), findings_of(plan), plan.needs, (), False)
    locked = document.facts.lock is not None
    wanted, edits, insertions, removals = carry_out(plan)
    held = [] if plan.apply_presumed or plan.ambiguous else held_presumed(plan)
    held += held_undecided(plan)
    if locked:
        held = [*(with_hold(change, "locked") for change in wanted), *held]
        wanted, edits, insertions, removals = [], {}, {}, set()
    content = document.rewrite(edits.get("", ()), insertions, removals)
    return Reconciliation(
        content=content,
        changed=content != config,
        changes=tuple(change for change in wanted if not change.file),
        held=tuple(held),
        findings=findings_of(plan),
        needed=plan.needs,
        required_paths=_required_paths(plan),
        needs_open_test=any(rule.type == "a" and rule.major is None for rule in plan.before.allows),
        included=tuple(included_files(plan, wanted, edits)),
    )


def stale_rules(
    config: bytes,
    current: CharacterMajors,
    recorded: Record,
    *,
    style: Style = "pve",
    declared: Sequence[str] = (),
    hierarchy: Hierarchy = "cgroup2",
    includes: Mapping[str, bytes] | None = None,
) -> tuple[StaleRule, ...]:
    """Allow rules that name an old number of an NVIDIA driver, the container's own first; nothing is rewritten.

    Goes one step beyond the ladder where a needed node has no rule: a dynamic number that another driver owns by
    now is presumed to be the old one. That explains a failure; it is no ground for touching the rule.
    """
    current.require_known()
    plan = make_plan(parse(config, style), current, recorded, declared=declared, hierarchy=hierarchy, includes=includes)
    if managed(plan.document):
        return ()
    found: list[Target] = [*plan.stale, *plan.dropped, *plan.unresolved, *plan.fixed, *plan.presumed]
    found += undecided_targets(plan)
    needs = [need for need in plan.needs if need.source != "dev"]
    live = translated([rule for rule in plan.main_rules if rule.version == plan.version], found)
    found += presume(
        policy_of(live, plan.version, base=plan.base), needs, current, record_tables(recorded), foreign=True
    )[0]
    return tuple(
        StaleRule(t.rule.line, t.driver, t.rule.major, t.major, t.attribution, other_owner(plan, t), t.rule.file)
        for t in sorted({t.rule.place: t for t in found}.values(), key=lambda target: target.rule.place)
        if t.rule.allow and t.rule.major is not None
    )


def declared_nodes(gpus: Iterable[int], *, uvm_tools: bool = False, modeset: bool = False) -> tuple[str, ...]:
    """The host paths a container with these GPU minors needs for CUDA; empty for no GPUs."""
    cards = tuple(f"/dev/nvidia{gpu}" for gpu in gpus)
    if not cards:
        return ()
    more = (("/dev/nvidia-uvm-tools",) if uvm_tools else ()) + (("/dev/nvidia-modeset",) if modeset else ())
    return (*cards, "/dev/nvidiactl", "/dev/nvidia-uvm", *more)


def _required_paths(plan: Plan) -> tuple[str, ...]:
    """devN entries, rules by path, and mounts without `optional`: a missing node makes the start fail."""
    devs = [dev.path for dev in plan.document.dev_entries if dev.section == MAIN]
    rules = [rule.path for rule in plan.main_rules if rule.kind == "path" and rule.version == plan.version]
    mounts = [need.path for need in plan.needs if need.source == "mount" and not need.optional and not need.is_dir]
    return tuple(dict.fromkeys([*devs, *rules, *mounts]))
