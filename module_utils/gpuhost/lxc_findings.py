"""What is to be said about one container configuration, besides the changes: one small function per subject.

Findings describe the file as it was read, before any change of the same plan. They never lead to a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .documents import Finding, Severity
from .lxc_attribution import Target
from .lxc_lines import MAIN, PENDING, DeviceRule
from .lxc_plan import Plan
from .proc_devices import CharacterMajors, is_dynamic, is_unassigned, names_by_major, nvidia_node

RECONCILE = "Run playbooks/reconcile.yml"
# Includes of the distribution hold the default policy and no device of anybody's own.
_USUAL_INCLUDES = ("/usr/share/lxc/config/", "/usr/share/lxcfs/")


def findings_of(plan: Plan, recorded: Mapping[str, int]) -> tuple[Finding, ...]:
    """All findings about the plan's file; the same file and tables give the same findings in the same order."""
    found: list[Finding] = []
    for subject in (_lock, _policy, _needs, _stale, _unresolved, _swap, _text):
        found += subject(plan)
    if plan.uses_gpu:
        found += _others(plan, recorded)
        found += _dead_keys(plan)
        found += _includes(plan)
    found += _snapshots(plan, recorded)
    return tuple(found)


def _finding(
    code: str, severity: Severity, source: str, observed: str, expected: str, why: str, fix: str = RECONCILE
) -> Finding:
    return Finding(code, "containers", severity, observed, expected, why, fix, source)


def _at(rule: DeviceRule) -> str:
    return f"config line {rule.line}"


def _lock(plan: Plan) -> Iterator[Finding]:
    lock = plan.document.facts.lock
    if lock is not None:
        yield _finding(
            "lxc.locked", "unknown", "config", f"lock: {lock}", "no lock",
            "The config belongs to a running job of Proxmox.",
            "Wait for the job, or pct unlock when it is gone; then run playbooks/reconcile.yml",
        )  # fmt: skip
    elif "vzdump" in plan.document.sections:
        yield _finding(
            "lxc.backup_section", "info", "config", "section [vzdump]", "no such section outside a backup",
            "A backup is running or was broken off.", "Look whether a backup runs; else pct delsnapshot N vzdump",
        )  # fmt: skip


def _policy(plan: Plan) -> Iterator[Finding]:
    for rule in plan.main_rules if plan.uses_gpu else ():
        if rule.kind == "all" and rule.allow and rule.version == plan.version and plan.before.allow_all:
            yield _finding(
                "lxc.allow_all", "info", _at(rule), rule.text, "rules for single devices",
                "Every device is allowed, which covers the GPU; the isolation of devices is off.",
                "Nothing for the GPU; name single devices to have isolation.",
            )  # fmt: skip
        elif rule.type == "a":
            yield _finding(
                "lxc.allow_all_unusual", "unknown", _at(rule), rule.text, "a bare 'a', or rules of type c or b",
                "liblxc takes only a bare 'a' as allow-all; this is an ordinary rule for both kinds of devices.",
                "Open the nodes inside the container to see what it allows.",
            )  # fmt: skip


def _needs(plan: Plan) -> Iterator[Finding]:
    # A stale rule is the cause, so it is named instead of the rule that is missing.
    repaired = {target.driver for target in (*plan.stale, *plan.presumed)}
    for need in plan.needs:
        source = f"config line {need.line}" if need.line else "inventory"
        if need.major is None:
            yield _finding(
                "lxc.driver_not_registered", "p0_runtime", source, f"{need.path}: no {need.driver} in /proc/devices",
                f"{need.driver} loaded", "Without the driver the node has no number, so no rule can be right.",
                f"Load the driver of {need.driver} (nvidia-modprobe -c 0 -u); then run playbooks/reconcile.yml",
            )  # fmt: skip
            continue
        coverage = "yes" if need.source == "dev" else plan.before.coverage(need)
        minor = "*" if need.minor is None else need.minor
        if coverage == "narrow" and need.driver not in repaired:
            yield _finding(
                "lxc.rule_access", "p0_runtime", source, f"{need.path} is allowed, but not with {need.access}",
                f"c {need.major}:{minor} with {need.access}", "Rights are never widened by us.",
                "Give the rule the missing rights, if the container is to have them.",
            )  # fmt: skip
        elif coverage == "denied":
            yield _finding(
                "lxc.rule_denied", "p0_runtime", source, f"{need.path} is mounted and denied by a rule",
                f"no deny rule for {need.major}:{minor}", "A deny rule is somebody's decision.",
                "Remove the deny rule or the mount.",
            )  # fmt: skip
        elif coverage == "no" and need.driver not in repaired:
            yield _finding(
                "lxc.rule_missing", "p0_runtime", source, f"{need.path}: no rule covers the node",
                f"c {need.major}:{minor}", "The node is there, but opening it fails with EPERM.",
            )  # fmt: skip


def _stale(plan: Plan) -> Iterator[Finding]:
    for target in (*plan.stale, *plan.dropped):
        yield _stale_finding(plan, target, "lxc.stale_major")
    for target in plan.presumed:
        yield _stale_finding(plan, target, "lxc.presumed_stale")


def _stale_finding(plan: Plan, target: Target, code: str) -> Finding:
    rule, owners = target.rule, plan.current.names_of(target.rule.major or 0)
    leak = rule.allow and bool(owners)
    why = f"{rule.major} now opens {owners[0]} to the container" if leak else "Opening the node fails with EPERM"
    if code == "lxc.presumed_stale":
        why += "; presumed, because the number is dynamic, has no owner, and a mounted node has no rule"
        if plan.ambiguous:
            why += "; not applied, because more such rules than mounted drivers exist"
    expected = "no rule, devN brings its own" if target in plan.dropped else f"major {target.major}"
    return _finding(
        "lxc.leaked_major" if leak else code, "security" if leak else "p0_runtime", _at(rule),
        f"allows major {rule.major} for {target.driver}", expected, why + ".",
    )  # fmt: skip


def _unresolved(plan: Plan) -> Iterator[Finding]:
    for target in plan.unresolved:
        owners = plan.current.names_of(target.rule.major or 0)
        observed = f"allows major {target.rule.major}, which was {target.driver}'s"
        yield _finding(
            "lxc.leaked_major" if owners else "lxc.driver_not_registered", "security" if owners else "p0_runtime",
            _at(target.rule), observed + (f" and is {owners[0]}'s now" if owners else ""),
            f"{target.driver} in /proc/devices", "Without the driver its new number is not known; the rule stays.",
            f"Load the driver of {target.driver} and run playbooks/reconcile.yml, or remove the rule.",
        )  # fmt: skip


def _swap(plan: Plan) -> Iterator[Finding]:
    if plan.swap_undecided:
        yield _finding(
            "lxc.swap_undecided", "unknown", "config", "numbers that changed hands among NVIDIA drivers, no mounts",
            "mounts or a declaration that show which node each rule is for",
            "Old and new reading of the rules differ and nothing tells which one holds; nothing was changed.",
            "Declare the container's GPU nodes in the inventory; then run playbooks/reconcile.yml",
        )  # fmt: skip


def _text(plan: Plan) -> Iterator[Finding]:
    for rule in plan.main_rules:
        if rule.kind == "malformed":
            yield _finding(
                "lxc.rule_malformed", "p1_reboot", _at(rule), rule.text, "type major:minor access, e.g. c 195:* rwm",
                f"liblxc refuses the rule and the container's start: {rule.malformed}.", "Correct the line.",
            )  # fmt: skip
    for line in plan.document.ignored_rules:
        if line.section == MAIN:
            yield _finding(
                "lxc.rule_ignored", "p1_reboot", f"config line {line.number}", line.text, "the key at column 1",
                "The line looks like a device rule, but is not read as one.", "Correct the line.",
            )  # fmt: skip


def _others(plan: Plan, recorded: Mapping[str, int]) -> Iterator[Finding]:
    """Rules without fixed owner that are not ours: each is left alone, and named."""
    ours = {target.rule.line for target in (*plan.targets, *plan.presumed)}
    before = names_by_major(recorded)
    for rule in plan.before.allows:
        if rule.type != "c" or rule.major is None or rule.line in ours or rule.major in before:
            continue
        owner = plan.current.foreign_name_of(rule.major)
        if owner is None and is_unassigned(rule.major):
            yield _finding(
                "lxc.unowned_major", "info", _at(rule), f"allows major {rule.major}", "a major that a driver owns",
                "No driver has this number; the next one to get it would be open to the container.",
                "Remove the rule if nobody knows what it is for.",
            )  # fmt: skip
        elif owner and is_dynamic(rule.major) and not _explained(plan, owner):
            yield _finding(
                "lxc.foreign_major", "security", _at(rule), f"allows major {rule.major}, which is {owner}'s",
                f"a mount of a node of {owner}, or no such rule",
                "The number is handed out anew at each boot, and nothing in the config asks for this driver.",
                f"Remove the rule, unless the container is to have {owner}.",
            )  # fmt: skip


def _explained(plan: Plan, owner: str) -> bool:
    """Whether a mounted or passed-through node carries the driver's name, as /dev/gpiochip0 does gpiochip's."""
    paths = [mount.source for mount in plan.document.mounts if mount.section == MAIN]
    paths += [dev.path for dev in plan.document.dev_entries if dev.section == MAIN]
    return any(path.rsplit("/", 1)[-1].startswith(owner) for path in paths)


def _dead_keys(plan: Plan) -> Iterator[Finding]:
    converted = [target.rule.line for target in plan.converted]
    kept = [rule.line for rule in plan.main_rules if rule.version != plan.version and rule.line not in converted]
    key = "lxc.cgroup" if plan.version == 2 else "lxc.cgroup2"
    for what, lines in (("converted to the live key", converted), ("kept as they are", kept)):
        if lines:
            yield _finding(
                "lxc.dead_cgroup_key", "info", "config lines " + ", ".join(map(str, lines)),
                f"{key}.devices.* has no effect on this host; the lines are {what}", "rules under the live key only",
                "The mounted cgroup hierarchy decides which of the two keys counts.",
                "Nothing; remove what is left over.",
            )  # fmt: skip


def _includes(plan: Plan) -> Iterator[Finding]:
    for line, path in plan.document.includes:
        if not path.startswith(_USUAL_INCLUDES):
            yield _finding(
                "lxc.include", "info", f"config line {line}", f"includes {path}", "device rules in the config itself",
                "The included file may hold device rules; it was not read.", f"Look at the device rules in {path}.",
            )  # fmt: skip


def _snapshots(plan: Plan, recorded: Mapping[str, int]) -> Iterator[Finding]:
    document = plan.document
    other_rules = [rule for rule in document.rules if rule.section != MAIN]
    gpu = {rule.section for rule in other_rules if _was_nvidia(rule, plan.current, recorded)}
    gpu |= {mount.section for mount in document.mounts if mount.section != MAIN and mount.node}
    gpu |= {dev.section for dev in document.dev_entries if dev.section != MAIN and dev.node}
    named = [name for name in document.sections if name in gpu]
    if named and not any(need.source != "declared" for need in plan.needs) and not plan.targets:
        sections = ", ".join(f"[{name}]" for name in named)
        yield _finding(
            "lxc.gpu_only_in_snapshot", "p0_runtime", "config", f"GPU lines exist only in section {sections}",
            "GPU lines before the first section",
            "The container itself has no GPU access; a snapshot's lines do nothing.",
            "Declare the container's GPU nodes in the inventory, if it is to have them.",
        )  # fmt: skip
    stale = {rule.section for rule in other_rules if _is_old(rule, plan.current, recorded)} - {PENDING}
    if stale and plan.uses_gpu:
        names = ", ".join(name for name in document.sections if name in stale)
        yield _finding(
            "lxc.snapshot_stale", "info", "config", f"old numbers in snapshot {names}", "current numbers",
            f"A rollback to {names} brings stale numbers back.", "After a rollback run playbooks/reconcile.yml",
        )  # fmt: skip


def _was_nvidia(rule: DeviceRule, current: CharacterMajors, recorded: Mapping[str, int]) -> bool:
    if rule.kind == "path":
        return nvidia_node(rule.path) is not None
    if rule.type != "c" or rule.major is None:
        return False
    return rule.major in names_by_major(recorded) or current.nvidia_name_of(rule.major) is not None


def _is_old(rule: DeviceRule, current: CharacterMajors, recorded: Mapping[str, int]) -> bool:
    """A snapshot's rule whose number was NVIDIA's by the record and moved, or that is dynamic without owner."""
    if rule.type != "c" or rule.major is None or not rule.allow:
        return False
    names = names_by_major(recorded).get(rule.major, ())
    if names:
        return all(current.driver_major(name) != rule.major for name in names)
    return is_dynamic(rule.major) and not current.names_of(rule.major)
