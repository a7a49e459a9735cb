"""Whose device rule is it: the attribution ladder, and what a list of rules really lets through.

Rungs: the number is NVIDIA's now (current); it was NVIDIA's before (recorded); nobody owns it and a needed NVIDIA
node has no rule (presumed). Whatever fits no rung is somebody else's rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .lxc_lines import DeviceRule
from .proc_devices import FRONT_NAMES, NVIDIA_NAMES, CharacterMajors, is_dynamic, names_by_major

Attribution = Literal["current", "recorded", "presumed"]
Reading = Literal["current", "recorded"]
Coverage = Literal["yes", "narrow", "denied", "no"]


@dataclass(frozen=True)
class NeededNode:
    """An NVIDIA node that the container is to open.

    major is None while the driver is not registered; minor is None when any minor of the driver will do. source
    "dev" is a Proxmox devN entry, for which Proxmox writes the rule. optional: a missing node is skipped at start.
    line is the config line that asks for the node, None when the inventory does.
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
            return "denied" if any(_matches(rule, need) for rule in self.denies) else "yes"
        matching = [rule for rule in self.allows if _matches(rule, need)]
        if any(set(need.access) <= set(rule.access) for rule in matching):
            return "yes"
        # The default policy's `c *:* m` says nothing about this node; only a rule of its own can be too narrow.
        return "narrow" if any(rule.kind == "path" or rule.major is not None for rule in matching) else "no"


def policy_of(rules: Iterable[DeviceRule], version: int) -> Policy:
    """Evaluate the rules of one section in file order for the mounted hierarchy.

    An empty value clears the rules of its key above it; a bare `a` resets all rules. While everything is blocked,
    a deny rule only takes back an equal allow rule, and the reverse while everything is allowed.
    """
    listed: list[DeviceRule] = []
    for rule in rules:
        if rule.version != version or rule.kind == "malformed":
            continue
        if rule.kind == "clear":
            listed = [old for old in listed if old.allow != rule.allow]
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
    return Policy(allow_all, () if allow_all else tuple(kept), tuple(kept) if allow_all else ())


def identity(rule: DeviceRule) -> tuple[object, ...]:
    """What liblxc compares to find that two rules are about the same thing."""
    return (rule.kind, rule.type, rule.major, rule.minor, frozenset(rule.access), rule.path)


def attribute(
    rules: Iterable[DeviceRule], current: CharacterMajors, recorded: Mapping[str, int], reading: Reading
) -> list[Target]:
    """Rungs 1 and 2 for rules with a character major. Block rules and wildcards are never NVIDIA's.

    reading decides for a number that is one NVIDIA driver's now and was another's before.
    """
    before = names_by_major(recorded)
    targets: list[Target] = []
    for rule in rules:
        if rule.kind != "numbers" or rule.type != "c" or rule.major is None:
            continue
        now, names = current.nvidia_name_of(rule.major), before.get(rule.major, ())
        if rule.major in {current.driver_major(name) for name in FRONT_NAMES}:
            targets.append(Target(rule, now or "nvidia", rule.major, "current"))
        elif now and (reading == "current" or not names or now in names):
            targets.append(Target(rule, now, rule.major, "current"))
        elif names:
            known = next((name for name in names if current.driver_major(name) is not None), names[0])
            targets.append(Target(rule, known, current.driver_major(known), "recorded"))
    return targets


def choose_reading(
    rules: Sequence[DeviceRule],
    needs: Sequence[NeededNode],
    current: CharacterMajors,
    recorded: Mapping[str, int],
    version: int,
) -> tuple[Reading, bool]:
    """Decide, for the whole file, whether numbers that changed hands among NVIDIA drivers are old or new ones.

    Whichever reading leaves fewer needed nodes without a rule wins, so a file that was reconciled already is read
    as current and a second run with the same record changes nothing. Nodes that are denied or have too few rights
    do not count: no run repairs them, so they would count again in the next one. With equal evidence, rules whose
    number is certainly old mark the file as not yet reconciled. Returns the reading and whether it was a guess.
    """
    results = {}
    for reading in ("current", "recorded"):
        targets = attribute(rules, current, recorded, reading)
        policy = policy_of(translated(rules, targets), version)
        uncovered = sum(need.major is not None and policy.coverage(need) == "no" for need in needs)
        results[reading] = (targets, uncovered, {identity(rule) for rule in (*policy.allows, *policy.denies)})
    (by_current, missing_now, rules_now), (_, missing_before, rules_before) = results["current"], results["recorded"]
    if missing_before != missing_now:
        return ("recorded" if missing_before < missing_now else "current"), False
    if rules_now == rules_before:
        return "current", False
    stale = any(target.major is not None and target.is_stale for target in by_current)
    return ("recorded", False) if stale else ("current", not needs)


def translated(rules: Iterable[DeviceRule], targets: Iterable[Target]) -> list[DeviceRule]:
    """The rules with the new numbers, all at once; unattributed rules as they are."""
    new = {target.rule.line: target.major for target in targets if target.major is not None}
    return [replace(rule, major=new[rule.line]) if rule.line in new else rule for rule in rules]


def presume(
    policy: Policy,
    needs: Sequence[NeededNode],
    current: CharacterMajors,
    recorded: Mapping[str, int],
    *,
    foreign: bool = False,
) -> tuple[list[Target], bool]:
    """Rung 3: unowned dynamic majors for needed NVIDIA drivers that have no rule at all.

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
    before, groups = names_by_major(recorded), dict[int, list[DeviceRule]]()
    for rule in policy.allows:
        if rule.type == "c" and rule.major is not None and is_dynamic(rule.major) and rule.major not in before:
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


def _matches(rule: DeviceRule, need: NeededNode) -> bool:
    if rule.kind == "path":
        return rule.path == need.path or (need.is_dir and rule.path.startswith(need.path + "/"))
    if rule.type not in ("a", "c") or rule.major not in (None, need.major):
        return False
    return rule.minor is None or need.minor is None or rule.minor == need.minor
