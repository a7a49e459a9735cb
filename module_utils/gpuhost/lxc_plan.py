"""What has to change in one container configuration, decided before a byte of it is rewritten."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .lxc_attribution import (
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
from .lxc_lines import MAIN, DeviceRule
from .proc_devices import FRONT_NAMES, CharacterMajors, nvidia_node

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
    """All decisions about one file.

    stale: certain replacements. dropped: stale rules of drivers that come by devN only. converted: rules moved from
    the dead key to the live one. presumed: rung 3, to be applied only when apply_presumed. before: what the rules let
    through as they were read.
    """

    document: LxcDocument
    current: CharacterMajors
    version: int
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
    before: Policy

    @property
    def stale(self) -> tuple[Target, ...]:
        """Rules to be replaced for certain (rungs 1 and 2)."""
        gone = {target.rule.line for target in self.dropped}
        return tuple(t for t in self.targets if t.is_stale and t.major is not None and t.rule.line not in gone)

    @property
    def unresolved(self) -> tuple[Target, ...]:
        """Rules that are NVIDIA's by the record, but whose driver has no number now."""
        return tuple(target for target in self.targets if target.major is None)

    @property
    def main_rules(self) -> tuple[DeviceRule, ...]:
        return tuple(rule for rule in self.document.rules if rule.section == MAIN)

    @property
    def uses_gpu(self) -> bool:
        """Whether the container has to do with NVIDIA at all; nothing is said about the rules of others."""
        return bool(self.needs or self.targets)


def make_plan(
    document: LxcDocument,
    current: CharacterMajors,
    recorded: Mapping[str, int],
    *,
    declared: Sequence[str] = (),
    hierarchy: Hierarchy = "cgroup2",
    presumed: Presumed = "apply",
) -> Plan:
    """Walk the ladder over the main section. Raises ValueError for a declared path that is not an NVIDIA node."""
    version = 2 if hierarchy == "cgroup2" else 1
    rules = [rule for rule in document.rules if rule.section == MAIN]
    live = [rule for rule in rules if rule.version == version]
    needs = needed_nodes(document, current, declared)
    by_rule = [need for need in needs if need.source != "dev"]
    reading, guessed = choose_reading(live, by_rule, current, recorded, version)
    targets = attribute(live, current, recorded, reading)
    dropped = [target for target in targets if _only_by_dev(target, needs)]
    gone = {target.rule.line for target in dropped}
    kept = translated([rule for rule in live if rule.line not in gone], targets)
    # A dead key was never rewritten by us, so its numbers are always the old ones.
    dead = attribute([rule for rule in rules if rule.version != version], current, recorded, "recorded")
    converted = _conversions(dead, policy_of(kept, version), by_rule)
    kept = _with_converted(rules, kept, converted, version)
    guesses, ambiguous = presume(policy_of(kept, version), by_rule, current, recorded)
    apply_presumed = presumed == "apply" and not ambiguous
    if apply_presumed:
        kept = translated(kept, guesses)
    # In report mode the rule is not added either: beside it the stale one could never be attributed again. With a
    # record the driver's old number is known and was not found, so the guess is dropped and the rule is added.
    guesses = [target for target in guesses if presumed == "apply" or target.driver not in recorded]
    held = {target.driver for target in guesses} if presumed == "report" and not ambiguous else set()
    lacking = [need for need in by_rule if need.driver not in held]
    return Plan(
        document, current, version, needs, tuple(targets), tuple(dropped), tuple(converted), tuple(guesses), ambiguous,
        apply_presumed, _additions(policy_of(kept, version), lacking, targets), _missing_mounts(needs), guessed,
        policy_of(live, version),
    )  # fmt: skip


def needed_nodes(document: LxcDocument, current: CharacterMajors, declared: Sequence[str]) -> tuple[NeededNode, ...]:
    """The NVIDIA nodes of the main section's mounts and devN entries, then those the inventory declares beyond them."""
    needs: list[NeededNode] = []

    def need(path: str, source: Literal["mount", "dev", "declared"], optional: bool, line: int | None) -> None:
        node = nvidia_node(path)
        if node is None:
            raise ValueError(f"{path}: not an NVIDIA device node, expected e.g. /dev/nvidia0 or /dev/nvidia-uvm")
        if any(old.path == node.path and source == "declared" for old in needs):
            return
        major = current.driver_major(node.driver)
        needs.append(
            NeededNode(node.path, node.driver, major, node.minor, node.access, source, optional, line, node.is_dir)
        )

    for mount in document.mounts:
        if mount.section == MAIN and mount.node:
            need(mount.source, "mount", mount.optional, mount.line)
    for dev in document.dev_entries:
        if dev.section == MAIN and dev.node:
            need(dev.path, "dev", False, dev.line)
    for path in declared:
        need(path, "declared", True, None)
    return tuple(needs)


def _only_by_dev(target: Target, needs: Iterable[NeededNode]) -> bool:
    """A stale rule of a driver that Proxmox itself gives to the container: a second rule would only widen it."""
    sources = {need.source for need in needs if need.driver == target.driver}
    return target.is_stale and target.major is not None and target.rule.allow and sources == {"dev"}


def _conversions(dead: Iterable[Target], policy: Policy, needs: Iterable[NeededNode]) -> list[Target]:
    """Rules under the dead key for drivers that have none under the live key."""
    lacking = {need.major for need in needs if need.major is not None and policy.coverage(need) == "no"}
    lacking = {major for major in lacking if not policy.has_rule_for(major)}
    return [target for target in dead if target.rule.allow and target.major in lacking]


def _with_converted(
    rules: Sequence[DeviceRule], kept: Sequence[DeviceRule], converted: Sequence[Target], version: int
) -> list[DeviceRule]:
    """The live rules with the converted ones at their own positions."""
    moved = {t.rule.line: replace(t.rule, version=version, major=t.major) for t in converted}
    by_line = {rule.line: rule for rule in kept} | moved
    return [by_line[rule.line] for rule in rules if rule.line in by_line]


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
