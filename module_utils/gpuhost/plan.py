"""The planner: facts and wishes in, plan out. The same input gives the same plan; it asks and changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import cmdline, kernel
from .blockers import Wishes, package_notes, standing_blockers, target_blockers
from .boot_config import for_vendor, wanted_arguments
from .causes import GOOD
from .documents import Blocker, Outcome, Plan, Step, Target, make_head, seconds_between
from .errors import blocker
from .gate_blockers import gate_blockers

LISTED_PER_SERIES = 3
INSTALLED = "installed"
"""In place of a suite: the package is there, and no archive is asked for it."""
STALE_LISTS_S = 7 * 86400  # a week: kernels in Debian's security suite appear about that often
STAYS = (
    "once promoted, {release} is the boot default by name and stays so, also when newer kernels are installed: the "
    "next gpuhost upgrade ends that (by hand: docs/runbook.md, Back to an older kernel)"
)
"""What boots by itself is the newest kernel where nobody has said otherwise, and that never is the older one."""


def make_plan(facts: dict[str, Any], wishes: Wishes, run_id: str, controller_boot_id: str, back: bool = False) -> Plan:
    """The plan for one host. Whatever is in the way is in ``blockers``, all of it at once.

    ``back``: the target is an older kernel, by choice. The roll there is a roll like any other.
    """
    found = tuple(_candidate(item) for item in facts["candidates"])
    running = facts["kernel"]["release"]
    roll = facts["roll"]
    resumes = bool(roll and roll["state"] == "open")
    arguments, exchanged = for_vendor(wishes.cmdline, facts["kernel"]["cpu_vendor"])
    wishes = replace(wishes, cmdline=arguments)
    blockers = standing_blockers(facts, wishes, controller_boot_id)
    notes = [*facts["notes"], *exchanged]
    if resumes:
        target, problem = _resumed_target(roll, running, wishes, back)
    else:
        target, problem, note = _fresh_target(found, running, wishes, back)
        target = target and replace(target, companions=companions(facts, target.release))
        notes += note
    blockers += [problem] if problem else []
    idle = not resumes and target is not None and target.release == running and _settled(facts)
    if back and not resumes and not idle and target is not None and target.release == running:
        blockers.append(_not_from_here(facts, wishes.target))
    if target is not None and not idle:
        blockers += [*gate_blockers(facts, wishes), *target_blockers(facts, target, resumes, wishes)]
    notes += _notes(facts, wishes, idle)
    if target is not None and not idle:
        notes += package_notes(facts)
    if back and target is not None and (resumes or target.release not in (running, _default_release(facts))):
        notes.append(STAYS.format(release=target.release))
    return Plan(
        head=make_head("plan", facts["host"], roll["run_id"] if resumes else run_id),
        wanted=wishes.target,
        running=running,
        target=target,
        nothing_to_do=idle,
        resumes=resumes,
        cmdline=roll["plan"]["cmdline"] if resumes else wishes.cmdline,
        modprobe_options=roll["plan"]["modprobe_options"] if resumes else wishes.modprobe_options,
        gate_required=wishes.gate_required,
        steps=() if idle or target is None else _steps(facts, target, wishes),
        blockers=tuple(blockers),
        notes=tuple(notes),
        candidates=_listed(found),
        downtime_estimate_s=_last_downtime_s(roll),
    )


def idle_outcome(plan: Plan) -> Outcome:
    """The outcome of a host that is where it should be."""
    sentence = f"nothing to do: {plan.running} runs, and it boots by itself"
    return Outcome(replace(plan.head, schema="gpuhost.outcome"), "nothing_to_do", None, sentence, GOOD)


def _candidate(item: dict[str, Any]) -> kernel.Candidate:
    return kernel.Candidate(**item)


def _listed(found: tuple[kernel.Candidate, ...]) -> tuple[str, ...]:
    """The newest few of each series, newest first: enough to see what was chosen from, and what was passed over."""
    lines: list[str] = []
    shown: dict[str, int] = {}
    for item in found:
        series = ".".join(kernel.parse_release(item.release).version.split(".")[:2])
        shown[series] = shown.get(series, 0) + 1
        if shown[series] <= LISTED_PER_SERIES or item.installed:
            lines.append(_describe(item))
    return (*lines, f"and {len(found) - len(lines)} older ones") if len(found) > len(lines) else tuple(lines)


def _describe(item: kernel.Candidate) -> str:
    headers = f"headers from {item.headers_suite or 'dpkg'}" if item.headers_package else "NO HEADERS"
    state = "installed" if item.installed else item.image_suite or "no archive"
    return f"{item.release} ({item.image_version}, {state}; {headers})"


def _resumed_target(
    roll: dict[str, Any], running: str, wishes: Wishes, back: bool
) -> tuple[Target | None, Blocker | None]:
    """The open roll's own target, which has to be the one that is asked for, in the same direction.

    The direction counts because a prefix may mean both ends: 6.12.117 and 6.12.100 are both 6.12.
    """
    target, before = Target(**roll["plan"]["target"]), roll["running_before"]
    goes_back = kernel.is_older(target.release, before)
    other_way = kernel.is_older(before, target.release) if back else goes_back
    if not wishes.target or (kernel.matches(target.release, wishes.target) and not other_way):
        return target, None
    own = f"gpuhost rollback --to {target.release}" if goes_back else f"gpuhost upgrade --target {target.release}"
    way_out = f"Finish it first ({own}), or end it on {before} (gpuhost rollback without --to)."
    if roll["promoted_at"] and running == target.release:
        way_out = "Finish it first: gpuhost hand_back"  # it would not be led back any more
    observed = f"open roll {'back ' if goes_back else ''}to {target.release}"
    expected = f"a roll {'back ' if back else ''}to {wishes.target}"
    return target, blocker("roll.other_target", "roll file", observed, expected, way_out)


def _fresh_target(
    found: tuple[kernel.Candidate, ...], running: str, wishes: Wishes, back: bool
) -> tuple[Target | None, Blocker | None, list[str]]:
    if not wishes.target:
        return (
            None,
            blocker("input.invalid", "target", "not given", "a release or a prefix", "Add --target 6.12, say"),
            [],
        )
    choice = kernel.choose(kernel.ways_back(found, wishes.target, running) if back else found, wishes.target)
    skipped = choice.newest_without_headers
    if choice.candidate is None and skipped is not None:
        name = kernel.headers_package_names(skipped.release)[0]
        return (
            None,
            blocker(
                "dkms.headers_missing",
                name,
                f"no archive of this host has it, so DKMS could not build the driver for kernel {skipped.release}",
                f"version {skipped.image_version}",
                f"Make {name} installable (apt-cache policy {name}), then run the same command again.",
            ),
            [],
        )
    if choice.candidate is None and back:
        return None, _no_way_back(found, running, wishes.target), []
    if choice.candidate is None:
        known = ", ".join(choice.known) or "none"
        return None, blocker("target.unknown", f"--target {wishes.target}", "no kernel matches", f"one of: {known}"), []
    item = choice.candidate
    if not back and kernel.is_older(item.release, running):
        return None, blocker("target.not_newer", f"--target {wishes.target}", item.release, f"newer than {running}"), []
    notes = [f"{skipped.release} is newer, but has no headers"] if skipped else []
    return (
        _target(item, choice.reason),
        None,
        [*notes, *(_passed_over(found, item, running, wishes.target) if back else [])],
    )


def _no_way_back(found: tuple[kernel.Candidate, ...], running: str, wanted: str) -> Blocker:
    """Why a name leads back to nothing: what it means is newer, or is nowhere."""
    newer = [item.release for item in found if kernel.matches(item.release, wanted)]
    if newer:
        way_out = f"That is an upgrade: gpuhost upgrade --target {wanted}"
        return blocker("target.not_older", f"--to {wanted}", newer[0], f"older than {running}", way_out)
    here = [item.release for item in found if item.image_here and kernel.is_older(item.release, running)]
    expected = f"one of: {', '.join(here)}" if here else f"a kernel older than {running}; none is installed"
    way_out = "Choose one that is installed, or one that apt can install: apt-cache search linux-image"
    return blocker("target.unknown", f"--to {wanted}", "no kernel matches", expected, way_out)


def _not_from_here(facts: dict[str, Any], wanted: str) -> Blocker:
    """The kernel was picked in the loader's menu: it runs, but nothing could be its fallback while it does."""
    default = _default_release(facts) or "another kernel"
    observed = f"{facts['kernel']['release']} runs already, but {default} boots by itself"
    way_out = f"Reboot the host into {default}, then run the same command again: the way back is proven from there."
    return blocker("target.not_older", f"--to {wanted}", observed, "a kernel to go back from", way_out)


def _passed_over(found: tuple[kernel.Candidate, ...], item: kernel.Candidate, running: str, wanted: str) -> list[str]:
    """Notes for somebody who may have meant another kernel by the same name."""
    fitting = [other for other in found if kernel.matches(other.release, wanted)]
    if item.release == running:
        here = [other.release for other in fitting if other.image_here and kernel.is_older(other.release, running)]
        return [f"{running} is {wanted} already; to go back to {here[0]}, give its whole name"] if here else []
    if item.image_here is None:
        return [f"{item.release} is not installed any more: it is installed from {item.image_suite} first"]
    between = [
        other.release
        for other in fitting
        if kernel.is_older(item.release, other.release) and kernel.is_older(other.release, running)
        if not other.image_here
    ]
    return [f"{between[0]} is newer, but not installed: to go there, give its whole name"] if between else []


def companions(facts: dict[str, Any], release: str) -> tuple[str, ...]:
    """What apt has to install with a kernel, beside image and headers."""
    return tuple(name for name, state in facts["companions"].get(release, {}).items() if state == "available")


def _target(item: kernel.Candidate, reason: str) -> Target:
    return Target(
        item.release,
        item.image_package,
        item.image_version,
        item.image_suite or INSTALLED,
        item.headers_package or "",
        item.headers_version or "",
        item.headers_suite or INSTALLED,
        reason,
    )


def _settled(facts: dict[str, Any]) -> bool:
    """Whether what runs is also what boots by itself."""
    return _default_release(facts) == facts["kernel"]["release"]


def _default_release(facts: dict[str, Any]) -> str | None:
    """The kernel that boots by itself; None where that is not known."""
    releases: dict[str, str | None] = {entry["id"]: entry["release"] for entry in facts["boot"]["entries"]}
    return releases.get(facts["boot"]["default_entry"] or "")


def _steps(facts: dict[str, Any], target: Target, wishes: Wishes) -> tuple[Step, ...]:
    names = [item["name"] for item in facts["containers"] if item["running"]]
    arguments = " ".join(key if not value else f"{key}={value}" for key, value in wishes.cmdline.items())
    packages = [
        f"{name}={version} ({suite})"
        for name, version, suite in (
            (target.image_package, target.image_version, target.image_suite),
            (target.headers_package, target.headers_version, target.headers_suite),
        )
        if suite != INSTALLED
    ]
    packages += target.companions
    rows = [
        ("prepare", f"hold {facts['kernel']['release']} as the explicit boot default", False),
        ("prepare", f"install {', '.join(packages) or 'nothing: kernel and headers are there'}", False),
        (
            "prepare",
            f"command line of {target.release}: {arguments or 'as it is'}; its initramfs and boot entry",
            False,
        ),
        ("prepare", f"prove headers, NVIDIA modules, boot entry and fallback for {target.release}", False),
        ("drain", f"stop {', '.join(names)}" if names else "nothing runs", True),
        ("trial", f"reboot once into {target.release}", True),
        ("reconcile", "device rules by driver name", True),
        ("gate", f"required: {', '.join(wishes.gate_required) or 'nothing'}", True),
        ("promote", f"{target.release} becomes what boots by itself", True),
        ("hand_back", f"start {', '.join(names)}" if names else "nothing ran", True),
    ]
    return tuple(Step(stage, text, downtime) for stage, text, downtime in rows)


def _notes(facts: dict[str, Any], wishes: Wishes, idle: bool) -> list[str]:
    notes = []
    age = facts["packages"]["lists_age_s"]
    if age is not None and age > STALE_LISTS_S:
        notes.append(f"apt's package lists are {age / 86400:.0f} days old: newer kernels may exist")
    if idle:
        line = facts["kernel"]["cmdline"]
        absent = cmdline.missing(line, wanted_arguments(line, wishes.cmdline))
        if absent:
            notes.append(f"the running kernel lacks {' '.join(absent)}: it takes effect with the next roll")
    return notes


def _last_downtime_s(roll: dict[str, Any] | None) -> float | None:
    """What the host's last roll took, from the first stop to the last hand-back; None where it has had none."""
    if not roll or roll["state"] != "closed":
        return None
    starts = [step["started_at"] for step in roll["steps"] if step["stage"] == "drain" and step["changed"]]
    ends = [step["finished_at"] for step in roll["steps"] if step["stage"] in ("hand_back", "rollback")]
    return seconds_between(starts[0], ends[-1]) if starts and ends else None
