"""The planner: facts and wishes in, plan out. The same input gives the same plan; it asks and changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import cmdline, kernel
from .blockers import Wishes, standing_blockers, target_blockers
from .boot_config import for_vendor, wanted_arguments
from .causes import GOOD
from .debian_version import compare_part
from .documents import Blocker, Outcome, Plan, Step, Target, make_head, seconds_between
from .errors import blocker

LISTED_PER_SERIES = 3
STALE_LISTS_S = 7 * 86400  # a week: kernels in Debian's security suite appear about that often


def make_plan(facts: dict[str, Any], wishes: Wishes, run_id: str, controller_boot_id: str) -> Plan:
    """The plan for one host. Whatever is in the way is in ``blockers``, all of it at once."""
    found = tuple(_candidate(item) for item in facts["candidates"])
    running = facts["kernel"]["release"]
    roll = facts["roll"]
    resumes = bool(roll and roll["state"] == "open")
    arguments, exchanged = for_vendor(wishes.cmdline, facts["kernel"]["cpu_vendor"])
    wishes = replace(wishes, cmdline=arguments)
    blockers = standing_blockers(facts, wishes, controller_boot_id)
    notes = [*facts["notes"], *exchanged]
    if resumes:
        target, problem = _resumed_target(roll, wishes)
    else:
        target, problem, note = _fresh_target(found, running, wishes)
        notes += note
    blockers += [problem] if problem else []
    idle = not resumes and target is not None and target.release == running and _settled(facts)
    if target is not None and not idle:
        blockers += target_blockers(facts, target, resumes, wishes)
    notes += _notes(facts, wishes, idle)
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


def _resumed_target(roll: dict[str, Any], wishes: Wishes) -> tuple[Target | None, Blocker | None]:
    target = Target(**roll["plan"]["target"])
    if wishes.target and not kernel.matches(target.release, wishes.target):
        return target, blocker(
            "roll.other_target", "roll file", f"open roll to {target.release}", f"a roll to {wishes.target}"
        )
    return target, None


def _fresh_target(
    found: tuple[kernel.Candidate, ...], running: str, wishes: Wishes
) -> tuple[Target | None, Blocker | None, list[str]]:
    if not wishes.target:
        return (
            None,
            blocker("input.invalid", "target", "not given", "a release or a prefix", "Add --target 6.12, say"),
            [],
        )
    choice = kernel.choose(found, wishes.target)
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
    if choice.candidate is None:
        known = ", ".join(choice.known) or "none"
        return None, blocker("target.unknown", f"--target {wishes.target}", "no kernel matches", f"one of: {known}"), []
    item = choice.candidate
    if _older(item.release, running):
        return None, blocker("target.not_newer", f"--target {wishes.target}", item.release, f"newer than {running}"), []
    note = [f"{skipped.release} is newer, but has no headers"] if skipped else []
    return _target(item, choice.reason), None, note


def _older(release: str, running: str) -> bool:
    """Whether a release is older than the running one; a self-built kernel's name may not say."""
    try:
        return compare_part(kernel.parse_release(release).version, kernel.parse_release(running).version) < 0
    except ValueError:
        return False


def _target(item: kernel.Candidate, reason: str) -> Target:
    return Target(
        item.release,
        item.image_package,
        item.image_version,
        item.image_suite or "installed",
        item.headers_package or "",
        item.headers_version or "",
        item.headers_suite or "installed",
        reason,
    )


def _settled(facts: dict[str, Any]) -> bool:
    """Whether what runs is also what boots by itself."""
    entries = {entry["id"]: entry for entry in facts["boot"]["entries"]}
    default = entries.get(facts["boot"]["default_entry"] or "")
    return default is not None and default["release"] == facts["kernel"]["release"]


def _steps(facts: dict[str, Any], target: Target, wishes: Wishes) -> tuple[Step, ...]:
    names = [item["name"] for item in facts["containers"] if item["running"]]
    arguments = " ".join(key if not value else f"{key}={value}" for key, value in wishes.cmdline.items())
    packages = f"{target.image_package}={target.image_version} ({target.image_suite}), "
    packages += f"{target.headers_package}={target.headers_version} ({target.headers_suite})"
    rows = [
        ("prepare", f"hold {facts['kernel']['release']} as the explicit boot default", False),
        ("prepare", f"install {packages}", False),
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
