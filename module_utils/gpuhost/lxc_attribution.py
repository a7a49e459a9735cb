"""Whose device rule is it: the attribution ladder, and what a list of rules really lets through.

Rungs: the number is NVIDIA's now (current); it was NVIDIA's before (recorded); nobody owns it and a needed NVIDIA
node has no rule (presumed). Whatever fits no rung is somebody else's rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .lxc_lines import DeviceRule
from .proc_devices import (
    FRONT_NAMES,
    NVIDIA_NAMES,
    CharacterMajors,
    Table,
    is_dynamic,
    nvidia_majors,
)

Attribution = Literal["current", "recorded", "presumed"]
Coverage = Literal["yes", "narrow", "denied", "no"]


CGROUP2 = 2


@dataclass(frozen=True)
class NeededNode:
    """An NVIDIA node that the container is to open.

    major is None while the driver is not registered; minor is None when any minor of the driver will do. source
    "dev" is a Proxmox devN entry, for which Proxmox writes the rule. optional: a missing node is skipped at start.
    line is the config line that asks for the node, None when the inventory does; file is as in Line.
    """

    path: str
    driver: str
    major: int | None
    minor: int | None
    access: str
    source: Literal["mount", "dev", "declared"]
    optional: bool
    line: int | None
    is_dir: bool = False
    file: str = ""


@dataclass(frozen=True)
class Target:
    """A rule that is NVIDIA's: its driver and the number it should have; None while the driver is not registered."""

    rule: DeviceRule
    driver: str
    major: int | None
    attribution: Attribution

    @property
    def is_stale(self) -> bool:
        return self.rule.major != self.major


@dataclass(frozen=True)
class Policy:
    """What the rules of one cgroup version amount to at start, as liblxc builds it."""

    allow_all: bool
    allows: tuple[DeviceRule, ...]
    denies: tuple[DeviceRule, ...]

    def has_rule_for(self, major: int) -> bool:
        """Whether some rule names this character major, whatever its minor and rights."""
        return any(rule.major == major and rule.type in ("a", "c") for rule in self.allows)

    def coverage(self, need: NeededNode) -> Coverage:
        """Whether the node can be opened: yes, with fewer rights (narrow), denied by a rule, or no.

        One rule must grant all rights: the kernel's program checks rule by rule and does not add rights up.
        """
        if self.allow_all:
            return "denied" if any(_matches(rule, need) and _takes_away(rule, need) for rule in self.denies) else "yes"
        matching = [rule for rule in self.allows if _matches(rule, need)]
        if any(set(need.access) <= set(rule.access) for rule in matching):
            return "yes"
        # The default policy's `c *:* m` says nothing about this node; only a rule of its own can be too narrow.
        return "narrow" if any(rule.kind == "path" or rule.major is not None for rule in matching) else "no"


def policy_of(rules: Iterable[DeviceRule], version: int, *, base: bool = True) -> Policy:
    """Evaluate the rules of one section in reading order for the mounted hierarchy.

    An empty value clears the rules of its key above it; a bare `a` resets all rules. While everything is blocked,
    a deny rule only takes back an equal allow rule, and the reverse while everything is allowed. base: rules that are
    not among these stand before them, as Proxmox's own do. Without any, no rule means that nothing is blocked: on
    cgroup2 liblxc then attaches no program (cgfsng.c: cgfsng_devices_activate).
    """
    listed: list[DeviceRule] = []
    for rule in rules:
        if rule.version != version or rule.malformed:
            continue
        if rule.kind == "clear":
            listed = [old for old in listed if not old.key.startswith(rule.key)]
        else:
            listed.append(rule)
    allow_all, kept = False, list[DeviceRule]()
    for rule in listed:
        if rule.kind == "all":
            allow_all, kept = rule.allow, []
            continue
        kept = [old for old in kept if old.allow == rule.allow or identity(old) != identity(rule)]
        if rule.allow != allow_all:
            kept.append(rule)
    if not base and not (kept if version == CGROUP2 else listed):
        allow_all = True
    return Policy(allow_all, () if allow_all else tuple(kept), tuple(kept) if allow_all else ())


def identity(rule: DeviceRule) -> tuple[object, ...]:
    """What liblxc compares to find that two rules are about the same thing."""
    return (rule.kind, rule.type, rule.major, rule.minor, rule.access, rule.path)


def attribute(
    rules: Iterable[DeviceRule],
    current: CharacterMajors,
    history: Sequence[Table],
    table: Table,
    *,
    doubtful: bool = True,
) -> list[Target]:
    """Rungs 1 and 2 for rules with a character major. Block rules and wildcards are never NVIDIA's.

    history are the recorded tables, newest first. table is the one that the numbers are read by where several know
    them: the current one or a recorded one. A number that it does not know is the current driver's, else that of the
    newest table that knows it; where the tables name different drivers only with doubtful.
    """
    reading, older = _by_number(table), [_by_number(old) for old in history]
    front = {current.driver_major(name) for name in FRONT_NAMES}
    targets: list[Target] = []
    for rule in rules:
        if rule.kind != "numbers" or rule.type != "c" or rule.major is None:
            continue
        now, read = current.nvidia_name_of(rule.major), reading.get(rule.major, ())
        known = [_registered(names, current) for old in older if (names := old.get(rule.major))]
        if rule.major in front:
            targets.append(Target(rule, now or "nvidia", rule.major, "current"))
        elif now and (not read or now in read):
            targets.append(Target(rule, now, rule.major, "current"))
        elif read or (known and (doubtful or len(set(known)) == 1)):
            driver = _registered(read, current) if read else known[0]
            targets.append(Target(rule, driver, current.driver_major(driver), "recorded"))
    return targets


def _by_number(table: Table) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name, major in table.items():
        found.setdefault(major, []).append(name)
    return found


def _registered(names: Sequence[str], current: CharacterMajors) -> str:
    """Of several names with one number the one that is registered now, else the first."""
    return next((name for name in names if current.driver_major(name) is not None), names[0])


@dataclass(frozen=True)
class _Reading:
    """All rules read by one table: needed nodes that stay without a rule, rules that the table does not know."""

    targets: list[Target]
    uncovered: int
    strangers: int
    says_nothing: bool
    effect: set[tuple[object, ...]]

    @property
    def evidence(self) -> tuple[int, int, bool]:
        """The less the better."""
        return self.uncovered, self.strangers, self.says_nothing


def choose_reading(
    rules: Sequence[DeviceRule],
    ours: Sequence[DeviceRule],
    needs: Sequence[NeededNode],
    current: CharacterMajors,
    history: Sequence[Table],
    version: int,
    *,
    base: bool = True,
) -> tuple[list[Target], bool]:
    """Attribute rules by the table that they were written for: the current one, or one of the recorded ones.

    rules are all that count at start; ours are those of them that may be NVIDIA's and may be rewritten.

    The reading that leaves fewest needed nodes without a rule wins, then the one with fewest rules whose number its
    table does not know. So rules that were reconciled already are read as current, and a second run with the same
    record changes nothing: what no run repairs (denied nodes, too few rights, drivers that are not loaded) does not
    count. Returns the targets and whether readings were equal that end differently, with no
    needed node to tell: then only what they agree on is attributed, and numbers that are current stay.
    """
    readings: list[_Reading] = []
    for table in (nvidia_majors(current), *history):
        targets = attribute(ours, current, history, table, doubtful=bool(needs))
        policy = policy_of(translated(rules, targets), version, base=base)
        uncovered = sum(need.major is not None and policy.coverage(need) == "no" for need in needs)
        moving = [target for target in targets if target.major is not None and target.driver not in FRONT_NAMES]
        strangers = sum(t.rule.major not in table.values() if readings else t.is_stale for t in moving)
        effect = {identity(rule) for rule in (*policy.allows, *policy.denies)}
        readings.append(_Reading(targets, uncovered, strangers, not moving, effect))
    now, best = readings[0], min(readings, key=lambda reading: reading.evidence)
    rivals = [other for other in readings if other.evidence == best.evidence and other.effect != best.effect]
    if now.uncovered == best.uncovered and now.effect == best.effect:
        best = now
    if not rivals or needs:
        return best.targets, False
    drivers = [{target.rule.place: target.driver for target in rival.targets} for rival in rivals]
    agreed = [t for t in best.targets if all(known.get(t.rule.place) == t.driver for known in drivers)]
    return (best.targets if best is now else agreed), True


def translated(rules: Iterable[DeviceRule], targets: Iterable[Target]) -> list[DeviceRule]:
    """The rules with the new numbers, all at once; unattributed rules as they are."""
    new = {target.rule.place: target.major for target in targets if target.major is not None}
    return [replace(rule, major=new[rule.place]) if rule.place in new else rule for rule in rules]


def presume(
    policy: Policy,
    needs: Sequence[NeededNode],
    current: CharacterMajors,
    history: Sequence[Table],
    *,
    foreign: bool = False,
) -> tuple[list[Target], bool]:
    """Rung 3: unowned dynamic majors for needed NVIDIA drivers that have no rule at all; never in included files.

    Returns the targets and whether there were more candidates than drivers to place: then at least one of them is
    somebody else's, nothing says which, and a caller that writes must not touch any. With foreign=True numbers
    that another driver owns are candidates instead; only a judge asks that, nothing is rewritten by it.
    """
    wanted: dict[str, set[int | None]] = {}
    # The front names never move from their assigned number, so no stale number can have been theirs.
    moving = [need for need in needs if need.driver not in FRONT_NAMES]
    for need in sorted(moving, key=lambda need: NVIDIA_NAMES.index(need.driver)):
        if need.major is not None and not policy.has_rule_for(need.major) and policy.coverage(need) == "no":
            wanted.setdefault(need.driver, set()).add(need.minor)
    before, groups = {major for table in history for major in table.values()}, dict[int, list[DeviceRule]]()
    for rule in policy.allows:
        if rule.file or rule.type != "c" or rule.major is None:
            continue
        if is_dynamic(rule.major) and rule.major not in before:
            owner = current.foreign_name_of(rule.major)
            if current.nvidia_name_of(rule.major) is None and (owner is not None) == foreign:
                groups.setdefault(rule.major, []).append(rule)
    ambiguous = bool(wanted) and len(groups) > len(wanted)
    targets: list[Target] = []
    for driver, minors in wanted.items():
        fitting = (major for major, members in groups.items() if any(_fits(rule, minors) for rule in members))
        major = next(fitting, None)
        if major is not None:
            now = current.driver_major(driver)
            targets += [Target(rule, driver, now, "presumed") for rule in groups.pop(major)]
    return targets, ambiguous


def _fits(rule: DeviceRule, minors: set[int | None]) -> bool:
    return rule.minor is None or None in minors or rule.minor in minors


def _takes_away(rule: DeviceRule, need: NeededNode) -> bool:
    """Whether a deny rule refuses the access: on cgroup2 one with all of its letters, on v1 one with any of them."""
    if rule.version == CGROUP2:
        return set(need.access) <= set(rule.access)
    return bool(set(need.access) & set(rule.access))


def _matches(rule: DeviceRule, need: NeededNode) -> bool:
    if rule.kind == "path":
        return rule.path == need.path or (need.is_dir and rule.path.startswith(need.path + "/"))
    if rule.type not in ("a", "c") or rule.major not in (None, need.major):
        return False
    return rule.minor is None or need.minor is None or rule.minor == need.minor
