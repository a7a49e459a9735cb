"""What has to change in one container's configuration, decided before a byte of it is rewritten."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .lxc_attribution import (
    CGROUP2,
    NeededNode,
    Policy,
    Target,
    attribute,
    choose_reading,
    policy_of,
    presume,
    translated,
)
from .lxc_config import LxcDocument
from .lxc_includes import MainSection, main_section
from .lxc_lines import MAIN, DeviceRule
from .proc_devices import FRONT_NAMES, CharacterMajors, Record, Table, names_by_major, nvidia_node, record_tables

Presumed = Literal["report", "apply"]
# The mounted hierarchy that holds the devices controller; "legacy" is pure v1 and hybrid.
Hierarchy = Literal["cgroup2", "legacy"]


@dataclass(frozen=True)
class NewRule:
    """A rule that a needed node lacks; minor None is `*`."""

    driver: str
    major: int
    minor: int | None
    access: str

    @property
    def value(self) -> str:
        return f"c {self.major}:{'*' if self.minor is None else self.minor} {self.access}"


@dataclass(frozen=True)
class Plan:
    """All decisions about one container.

    recorded: the recorded numbers with the drivers that had them. base: whether rules that were not read stand before
    all others. stale: certain replacements. dropped: stale rules of drivers that come by devN only. converted: rules
    moved from the dead key to the live one. presumed: rung 3, to be applied only when apply_presumed. undecided: rules
    that are NVIDIA's, but the record names several drivers; left as they are. fixed: stale rules in files of the
    distribution. before: what the rules let through as they were read.
    """

    document: LxcDocument
    main: MainSection
    current: CharacterMajors
    recorded: Mapping[int, tuple[str, ...]]
    version: int
    base: bool
    needs: tuple[NeededNode, ...]
    targets: tuple[Target, ...]
    dropped: tuple[Target, ...]
    converted: tuple[Target, ...]
    presumed: tuple[Target, ...]
    ambiguous: bool
    apply_presumed: bool
    additions: tuple[NewRule, ...]
    mounts: tuple[NeededNode, ...]
    swap_undecided: bool
    undecided: tuple[DeviceRule, ...]
    fixed: tuple[Target, ...]
    before: Policy

    @property
    def stale(self) -> tuple[Target, ...]:
        """Rules to be replaced for certain (rungs 1 and 2), each line once."""
        gone = {target.rule.place for target in self.dropped}
        moved = (t for t in self.targets if t.is_stale and t.major is not None and t.rule.place not in gone)
        return tuple({target.rule.place: target for target in moved}.values())

    @property
    def unresolved(self) -> tuple[Target, ...]:
        """Rules that are NVIDIA's by the record, but whose driver has no number now."""
        return tuple(target for target in self.targets if target.major is None)

    @property
    def main_rules(self) -> tuple[DeviceRule, ...]:
        """The rules that the container starts with, those of included files among them."""
        return self.main.rules

    @property
    def uses_gpu(self) -> bool:
        """Whether the container has to do with NVIDIA at all; nothing is said about the rules of others."""
        return bool(self.needs or self.targets or self.undecided or self.fixed)


def make_plan(
    document: LxcDocument,
    current: CharacterMajors,
    recorded: Record,
    *,
    declared: Sequence[str] = (),
    hierarchy: Hierarchy = "cgroup2",
    presumed: Presumed = "apply",
    includes: Mapping[str, bytes] | None = None,
) -> Plan:
    """Walk the ladder over the main section. Raises ValueError for a declared path that is not an NVIDIA node."""
    version = CGROUP2 if hierarchy == "cgroup2" else 1
    main, history = main_section(document, includes), record_tables(recorded)
    live = [rule for rule in main.rules if rule.version == version]
    # Proxmox includes the default policy by itself; what was not read may hold it as well.
    base = document.style == "pve" or bool(main.unfollowed)
    needs = needed_nodes(document, current, declared, main)
    by_rule = [need for need in needs if need.source != "dev"]
    claims = names_by_major(recorded)
    if not needs and not _any_nvidia(main.rules, current, claims):
        # Nothing of the ladder can fit: most containers of a host have no GPU.
        return Plan(
            document, main, current, claims, version, base, (), (), (), (), (), False, False, (), (), False, (), (),
            policy_of(live, version, base=base),
        )  # fmt: skip
    needed = {need.driver for need in needs}
    ours = [
        rule
        for rule in live
        if not rule.fixed
        and (needed.intersection(claims.get(rule.major or 0, ())) or not _is_anothers(rule, document, main, current))
    ]
    targets, guessed = choose_reading(live, ours, by_rule, current, history, version, base=base)
    dropped = [target for target in targets if _only_by_dev(target, needs)]
    gone = {target.rule.place for target in dropped}
    kept = translated([rule for rule in live if rule.place not in gone], targets)
    # A dead key was never rewritten by us, so its numbers are the oldest ones. Included files are not converted.
    dead = [rule for rule in main.rules if rule.version != version and not rule.file]
    old = attribute(dead, current, history, history[-1] if history else {})
    converted = _conversions(old, policy_of(kept, version, base=base), by_rule)
    kept = _with_converted(main.rules, kept, converted, version)
    guesses, ambiguous = presume(policy_of(kept, version, base=base), by_rule, current, history)
    apply_presumed = presumed == "apply" and not ambiguous
    if apply_presumed:
        kept = translated(kept, guesses)
    # In report mode the rule is not added either: beside it the stale one could never be attributed again. With a
    # record the driver's old number is known and was not found, so the guess is dropped and the rule is added.
    known = {name for table in history for name in table}
    guesses = [target for target in guesses if presumed == "apply" or target.driver not in known]
    held = {target.driver for target in guesses} if presumed == "report" and not ambiguous else set()
    lacking = [need for need in by_rule if need.driver not in held]
    additions = _additions(policy_of(kept, version, base=base), lacking, targets)
    undecided = _undecided(ours, targets, claims)
    return Plan(
        document, main, current, claims, version, base, needs, tuple(targets), tuple(dropped), tuple(converted),
        tuple(guesses), ambiguous, apply_presumed, additions, _missing_mounts(needs), guessed or bool(undecided),
        undecided, _fixed(live, current, history), policy_of(live, version, base=base),
    )  # fmt: skip


def needed_nodes(
    document: LxcDocument, current: CharacterMajors, declared: Sequence[str], main: MainSection | None = None
) -> tuple[NeededNode, ...]:
    """The NVIDIA nodes of the main section's mounts and devN entries, then those the inventory declares beyond them."""
    needs: list[NeededNode] = []

    def need(
        path: str, source: Literal["mount", "dev", "declared"], optional: bool, line: int | None, file: str = ""
    ) -> None:
        node = nvidia_node(path)
        if node is None:
            raise ValueError(f"{path}: not an NVIDIA device node, expected e.g. /dev/nvidia0 or /dev/nvidia-uvm")
        if any(old.path == node.path and source == "declared" for old in needs):
            return
        major = current.driver_major(node.driver)
        needs.append(
            NeededNode(
                node.path, node.driver, major, node.minor, node.access, source, optional, line, node.is_dir, file
            )
        )

    for mount in (main or main_section(document)).mounts:
        if mount.node:
            need(mount.source, "mount", mount.optional, mount.line, mount.file)
    for dev in document.dev_entries:
        if dev.section == MAIN and dev.node:
            need(dev.path, "dev", False, dev.line)
    for path in declared:
        need(path, "declared", True, None)
    return tuple(needs)


def brings(document: LxcDocument, main: MainSection, owner: str) -> bool:
    """Whether a mounted or passed-through node carries the driver's name, as /dev/gpiochip0 does gpiochip's."""
    paths = [mount.source for mount in main.mounts]
    paths += [dev.path for dev in document.dev_entries if dev.section == MAIN]
    return any(path.rsplit("/", 1)[-1].startswith(owner) for path in paths)


def _is_anothers(rule: DeviceRule, document: LxcDocument, main: MainSection, current: CharacterMajors) -> bool:
    """Whether another driver has the number now, and the config asks for that driver."""
    owner = current.foreign_name_of(rule.major) if rule.major is not None else None
    return owner is not None and brings(document, main, owner)


def _only_by_dev(target: Target, needs: Iterable[NeededNode]) -> bool:
    """A stale rule of a driver that Proxmox itself gives to the container: a second rule would only widen it."""
    sources = {need.source for need in needs if need.driver == target.driver}
    ours = target.rule.allow and not target.rule.file
    return target.is_stale and target.major is not None and ours and sources == {"dev"}


def _undecided(
    rules: Iterable[DeviceRule], targets: Iterable[Target], recorded: Container[int]
) -> tuple[DeviceRule, ...]:
    """Rules with a recorded number that nothing attributes to one of the drivers that had it."""
    decided = {target.rule.place for target in targets}
    left = (rule for rule in rules if rule.type == "c" and rule.place not in decided)
    return tuple(rule for rule in left if rule.major is not None and rule.major in recorded)


def _any_nvidia(rules: Iterable[DeviceRule], current: CharacterMajors, recorded: Mapping[int, object]) -> bool:
    """Whether some rule names a number that is or was NVIDIA's."""
    majors = {rule.major for rule in rules if rule.major is not None}
    front = {current.driver_major(name) for name in FRONT_NAMES}
    return any(major in recorded or major in front or current.nvidia_name_of(major) for major in majors)


def _fixed(rules: Iterable[DeviceRule], current: CharacterMajors, history: Sequence[Table]) -> tuple[Target, ...]:
    """Stale rules in files of the distribution: they are named and never rewritten."""
    found = attribute([rule for rule in rules if rule.fixed], current, history, {})
    return tuple(target for target in found if target.is_stale)


def _conversions(dead: Iterable[Target], policy: Policy, needs: Iterable[NeededNode]) -> list[Target]:
    """Rules under the dead key for drivers that have none under the live key."""
    lacking = {need.major for need in needs if need.major is not None and policy.coverage(need) == "no"}
    lacking = {major for major in lacking if not policy.has_rule_for(major)}
    return [target for target in dead if target.rule.allow and target.major in lacking]


def allow_key(version: int) -> str:
    """The key of allow rules for a cgroup version."""
    return "lxc.cgroup2.devices.allow" if version == CGROUP2 else "lxc.cgroup.devices.allow"


def _with_converted(
    rules: Sequence[DeviceRule], kept: Sequence[DeviceRule], converted: Sequence[Target], version: int
) -> list[DeviceRule]:
    """The live rules with the converted ones at their own positions."""
    key = allow_key(version)
    moved = {t.rule.place: replace(t.rule, key=key, version=version, major=t.major) for t in converted}
    by_place = {rule.place: rule for rule in kept} | moved
    return [by_place[rule.place] for rule in rules if rule.place in by_place]


def _additions(policy: Policy, needs: Sequence[NeededNode], targets: Sequence[Target]) -> tuple[NewRule, ...]:
    """Rules for needed nodes without any, in the manner of the file: minors one by one where it does that."""
    ours = [target.rule for target in targets if target.rule.allow]
    by_minor = bool(ours) and all(rule.minor is not None for rule in ours)
    full = "rw" if ours and not any("m" in rule.access for rule in ours) else "rwm"
    added: list[NewRule] = []
    for need in needs:
        if need.major is None or policy.coverage(need) != "no":
            continue
        driver = "nvidia" if need.driver in FRONT_NAMES else need.driver
        if need.minor is None or not (by_minor or policy.has_rule_for(need.major)):
            added.append(NewRule(driver, need.major, None, "rwm"))
        else:
            added.append(NewRule(driver, need.major, need.minor, "r" if need.access == "r" else full))
    wide = {new.major for new in added if new.minor is None}
    return tuple(new for new in dict.fromkeys(added) if new.minor is None or new.major not in wide)


def _missing_mounts(needs: Sequence[NeededNode]) -> tuple[NeededNode, ...]:
    """Declared nodes that neither a mount nor a folder's mount brings into the container."""
    folders = tuple(need.path + "/" for need in needs if need.is_dir)
    declared = [need for need in needs if need.source == "declared"]
    return tuple(need for need in declared if not need.path.startswith(folders))
