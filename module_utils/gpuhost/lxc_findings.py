"""What is to be said about one container configuration, besides the changes: one small function per subject.

Findings describe the file as it was read, before any change of the same plan. They never lead to a change.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import lxc_file_findings as of_file
from .documents import Finding
from .lxc_attribution import Target
from .lxc_file_findings import at, finding
from .lxc_lines import DeviceRule, place
from .lxc_plan import Plan, brings
from .lxc_setups import managed
from .proc_devices import is_dynamic, is_unassigned


def findings_of(plan: Plan) -> tuple[Finding, ...]:
    """All findings about the plan's container; the same files and tables give the same findings in the same order."""
    if managed(plan.document):
        return tuple(of_file.generated(plan))
    subjects = [of_file.lock, _policy, _needs, _stale, _unresolved, _fixed, _swap, of_file.text]
    if plan.uses_gpu:
        subjects += [_others, of_file.dead_keys, of_file.includes]
    subjects += [of_file.other_ways, of_file.snapshots]
    return tuple(found for subject in subjects for found in subject(plan))


def _policy(plan: Plan) -> Iterator[Finding]:
    for rule in plan.main_rules if plan.uses_gpu else ():
        if rule.kind == "all" and rule.allow and rule.version == plan.version and plan.before.allow_all:
            yield finding(
                "lxc.allow_all", "info", at(rule), rule.text, "rules for single devices",
                "Every device is allowed, which covers the GPU; the isolation of devices is off.",
                "Nothing for the GPU; name single devices to have isolation.",
            )  # fmt: skip
        elif rule.type == "a":
            yield finding(
                "lxc.allow_all_unusual", "unknown", at(rule), rule.text, "a bare 'a', or rules of type c or b",
                "liblxc takes only a bare 'a' as allow-all; this is an ordinary rule for both kinds of devices.",
                "Open the nodes inside the container to see what it allows.",
            )  # fmt: skip


def _needs(plan: Plan) -> Iterator[Finding]:
    # A stale rule is the cause, so it is named instead of the rule that is missing.
    repaired = {target.driver for target in (*plan.stale, *plan.presumed)}
    for need in plan.needs:
        source = place(need.file, need.line) if need.line else "inventory"
        if need.major is None:
            yield finding(
                "lxc.driver_not_registered", "p0_runtime", source, f"{need.path}: no {need.driver} in /proc/devices",
                f"{need.driver} loaded", "Without the driver the node has no number, so no rule can be right.",
                f"Load the driver of {need.driver} (nvidia-modprobe -c 0 -u); then run playbooks/reconcile.yml",
            )  # fmt: skip
            continue
        coverage = "yes" if need.source == "dev" else plan.before.coverage(need)
        minor = "*" if need.minor is None else need.minor
        if coverage == "narrow" and need.driver not in repaired:
            yield finding(
                "lxc.rule_access", "p0_runtime", source, f"{need.path} is allowed, but not with {need.access}",
                f"c {need.major}:{minor} with {need.access}", "Rights are never widened by us.",
                "Give the rule the missing rights, if the container is to have them.",
            )  # fmt: skip
        elif coverage == "denied":
            yield finding(
                "lxc.rule_denied", "p0_runtime", source, f"{need.path} is mounted and denied by a rule",
                f"no deny rule for {need.major}:{minor}", "A deny rule is somebody's decision.",
                "Remove the deny rule or the mount.",
            )  # fmt: skip
        elif coverage == "no" and need.driver not in repaired:
            yield finding(
                "lxc.rule_missing", "p0_runtime", source, f"{need.path}: no rule covers the node",
                f"c {need.major}:{minor}", "The node is there, but opening it fails with EPERM.",
            )  # fmt: skip


def _stale(plan: Plan) -> Iterator[Finding]:
    for target in (*plan.stale, *plan.dropped):
        yield _stale_finding(plan, target, "lxc.stale_major")
    for target in plan.presumed:
        yield _stale_finding(plan, target, "lxc.presumed_stale")


def _stale_finding(plan: Plan, target: Target, code: str) -> Finding:
    rule, owner = target.rule, _leaks_to(plan, target.rule)
    why = f"{rule.major} now opens {owner} to the container" if owner else "Opening the node fails with EPERM"
    if not rule.allow:
        why = "The rule denies a number that the driver no longer has"
    if code == "lxc.presumed_stale":
        why += "; presumed, because the number is dynamic, has no owner, and a mounted node has no rule"
        if plan.ambiguous:
            why += "; not applied, because more such rules than mounted drivers exist"
    expected = "no rule, devN brings its own" if target in plan.dropped else f"major {target.major}"
    return finding(
        "lxc.leaked_major" if owner else code, "security" if owner else "p0_runtime", at(rule),
        f"{_verb(rule)} major {rule.major} for {target.driver}", expected, why + ".",
    )  # fmt: skip


def _leaks_to(plan: Plan, rule: DeviceRule) -> str:
    """The driver to which a stale rule opens the container now; "" where there is none."""
    owners = plan.current.names_of(rule.major) if rule.allow and rule.major is not None else ()
    return owners[0] if owners else ""


def _verb(rule: DeviceRule) -> str:
    return "allows" if rule.allow else "denies"


def _unresolved(plan: Plan) -> Iterator[Finding]:
    for target in plan.unresolved:
        owner = _leaks_to(plan, target.rule)
        observed = f"{_verb(target.rule)} major {target.rule.major}, which was {target.driver}'s"
        yield finding(
            "lxc.leaked_major" if owner else "lxc.driver_not_registered", "security" if owner else "p0_runtime",
            at(target.rule), observed + (f" and is {owner}'s now" if owner else ""),
            f"{target.driver} in /proc/devices", "Without the driver its new number is not known; the rule stays.",
            f"Load the driver of {target.driver} and run playbooks/reconcile.yml, or remove the rule.",
        )  # fmt: skip


def _fixed(plan: Plan) -> Iterator[Finding]:
    for target in plan.fixed:
        leak = bool(_leaks_to(plan, target.rule))
        yield finding(
            "lxc.include_stale", "security" if leak else "p0_runtime", at(target.rule),
            f"{_verb(target.rule)} major {target.rule.major} for {target.driver}", "no such rule in a package's file",
            "The file belongs to the distribution: an upgrade overwrites it, so nothing is rewritten there.",
            "Move the line into the container's config; then run playbooks/reconcile.yml",
        )  # fmt: skip


def _swap(plan: Plan) -> Iterator[Finding]:
    if not plan.swap_undecided:
        return
    leaks = [f"line {rule.line} opens {owner}" for rule in plan.undecided if (owner := _leaks_to(plan, rule))]
    yield finding(
        "lxc.swap_undecided", "security" if leaks else "unknown", "config",
        "; ".join(["numbers that changed hands among NVIDIA drivers, no mounts", *leaks]),
        "mounts that show which node each rule is for",
        "Old and new reading of the rules differ and nothing tells which one holds; these rules were left as they are.",
        "Mount the container's GPU nodes in its config, as it is to have them; then run playbooks/reconcile.yml",
    )  # fmt: skip


def _others(plan: Plan) -> Iterator[Finding]:
    """Rules without fixed owner that are not ours: each is left alone, and named."""
    ours = {target.rule.place for target in (*plan.targets, *plan.presumed)}
    for rule in plan.before.allows:
        if rule.type != "c" or rule.major is None or rule.place in ours or rule.major in plan.recorded:
            continue
        owner = plan.current.foreign_name_of(rule.major)
        if owner is None and is_unassigned(rule.major):
            yield finding(
                "lxc.unowned_major", "info", at(rule), f"allows major {rule.major}", "a major that a driver owns",
                "No driver has this number; the next one to get it would be open to the container.",
                "Remove the rule if nobody knows what it is for.",
            )  # fmt: skip
        elif owner and is_dynamic(rule.major) and not brings(plan.document, plan.main, owner):
            yield finding(
                "lxc.foreign_major", "security", at(rule), f"allows major {rule.major}, which is {owner}'s",
                f"a mount of a node of {owner}, or no such rule",
                "The number is handed out anew at each boot, and nothing in the config asks for this driver.",
                f"Remove the rule, unless the container is to have {owner}.",
            )  # fmt: skip
