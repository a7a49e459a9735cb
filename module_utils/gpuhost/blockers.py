"""What stands in the way of a roll, and what the operator asks for. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .apt_guard import held_and_due, held_meta, reboot_pending_libraries
from .documents import Blocker, Target
from .driver_support import flavour_of, flavour_problem, too_old
from .errors import blocker

KNOWN_CHECKS = ("device_access", "cuda", "torch", "p2p", "allreduce", "memory", "gemm", "decode", "health")
SEVERAL_GPUS = ("p2p", "allreduce")
"""Checks that one GPU alone can't pass."""


@dataclass(frozen=True)
class Wishes:
    """What the operator asks for: the inventory and the command line."""

    target: str
    reboot_allowed: bool
    gate_required: tuple[str, ...]
    gate_targets: tuple[str, ...] = ()
    gate_checks: tuple[str, ...] = ()
    gate_expect: dict[str, Any] = field(default_factory=dict)
    gate_tolerance: dict[str, Any] = field(default_factory=dict)
    gate_records: bool = False
    """Whether the gate records baselines, so that none is needed before."""
    cmdline: dict[str, str | None] = field(default_factory=dict)
    modprobe_options: dict[str, dict[str, str]] = field(default_factory=dict)
    retry_trial: bool = False
    needs_reboot: bool = True
    """False where only prepare is asked for, which needs no consent to a reboot."""


def standing_blockers(facts: dict[str, Any], wishes: Wishes, controller_boot_id: str) -> list[Blocker]:
    """What stands in the way of any roll on this host, whatever the target."""
    found = []
    if facts["kernel"]["boot_id"] == controller_boot_id:
        found.append(blocker("roll.controller_on_target", facts["host"], "has the controller's own boot id", "another"))
    if facts["roll_error"]:
        found.append(blocker("roll.file_unreadable", facts["host"], facts["roll_error"]))
    if wishes.needs_reboot and not wishes.reboot_allowed:
        found.append(blocker("roll.reboot_not_allowed", facts["host"], "host_reboot_allowed is not set", "true"))
    if wishes.needs_reboot and not wishes.gate_required:
        found.append(blocker("gate.nothing_required", "gpu_gate_required", "undefined or empty", "a list of checks"))
    found += [
        blocker("gate.unknown_check", "gpu_gate_required", name, f"one of {', '.join(KNOWN_CHECKS)}")
        for name in wishes.gate_required
        if name not in KNOWN_CHECKS
    ]
    if wishes.needs_reboot:
        found += _gate_target_blockers(facts, wishes) + _single_gpu_blockers(facts, wishes)
    found += [Blocker(**item) for item in facts["boot"]["problems"]]
    return found


def _gate_target_blockers(facts: dict[str, Any], wishes: Wishes) -> list[Blocker]:
    """A gate that could measure nowhere is known before the downtime."""
    names = {item["name"] for item in facts["containers"]} | {"host"}
    unknown = [name for name in wishes.gate_targets if name not in names]
    if unknown:
        return [blocker("gate.no_target", "gpu_gate_targets", ", ".join(unknown), f"one of {', '.join(sorted(names))}")]
    with_gpu = [item for item in facts["containers"] if item["gpu"]]
    drained = bool(facts["roll"] and facts["roll"]["state"] == "open" and facts["roll"]["workloads"])
    if wishes.gate_targets or drained or not with_gpu or any(item["running"] for item in with_gpu):
        return []
    return [
        blocker("gate.no_target", ", ".join(item["name"] for item in with_gpu), "has GPUs but does not run", "running")
    ]


def _single_gpu_blockers(facts: dict[str, Any], wishes: Wishes) -> list[Blocker]:
    """A check between GPUs where there is one alone can't pass, and the host would go back for it."""
    wanted = [name for name in wishes.gate_required if name in SEVERAL_GPUS]
    if not wanted:
        return []
    with_gpu = {item["name"]: len(item.get("gpu_nodes") or ()) for item in facts["containers"] if item["gpu"]}
    places = wishes.gate_targets or tuple(with_gpu) or ("host",)
    total = len(facts["gpus"])
    # A container's template may name more nodes than there are GPUs; one that names none gets them in another way.
    seen = {place: min(total, with_gpu.get(place) or total) for place in places}
    return [
        blocker("gate.one_gpu", f"gpu_gate_required: {', '.join(wanted)}", f"{place} has 1 GPU", "at least 2")
        for place, count in seen.items()
        if count == 1
    ]


def target_blockers(facts: dict[str, Any], target: Target, resumes: bool, wishes: Wishes) -> list[Blocker]:
    found = []
    if facts["packages"]["half_configured"] and not resumes:
        # A resumed roll may have been killed inside apt: its next apt call configures what is left.
        found.append(blocker("apt.half_configured", "dpkg", ", ".join(facts["packages"]["half_configured"])))
    if facts["boot"]["efi_default"]:
        found.append(blocker("boot.efi_default_set", "LoaderEntryDefault", facts["boot"]["efi_default"], "not set"))
    if facts["boot"]["one_shot"] and not resumes:
        found.append(blocker("boot.foreign_one_shot", "LoaderEntryOneShot", facts["boot"]["one_shot"], "not set"))
    if not resumes:
        # A roll that goes on has these proven by its preflight, before anything is stopped.
        found += _package_blockers(facts, target) + _driver_blockers(facts, target)
    roll = facts["roll"]
    if _expired(roll, target) and not resumes and not wishes.retry_trial:
        found.append(
            blocker(
                "trial.expired",
                target.release,
                f"came back on the old kernel on {roll['closed_at']}: {roll['sentence']}",
            )
        )
    if target.release not in {entry["release"] for entry in facts["boot"]["entries"]}:
        found += [
            blocker(
                "boot.no_space",
                place["path"],
                f"{place['free_bytes'] // 2**20} MiB free",
                f"at least {place['needed_bytes'] // 2**20} MiB for another kernel",
            )
            for place in facts["boot"]["room"]
            if place["free_bytes"] < place["needed_bytes"]
        ]
    return found


def _package_blockers(facts: dict[str, Any], target: Target) -> list[Blocker]:
    """What keeps apt from installing the target, or a reboot from going through the boot loader."""
    found = []
    packages = facts["packages"]
    if packages["locked_by"]:
        found.append(blocker("apt.locked", "apt", packages["locked_by"], "nobody at work"))
    wanted = {target.image_package: target.image_version, target.headers_package: target.headers_version}
    held = held_and_due(packages["held"], wanted)
    if held:
        found.append(blocker("apt.held", ", ".join(held), "on hold", f"free to become what {target.release} needs"))
    if facts["kernel"]["kexec_armed"]:
        found.append(blocker("boot.kexec_armed", "kexec", facts["kernel"]["kexec_armed"], "not armed"))
    return found


def _driver_blockers(facts: dict[str, Any], target: Target) -> list[Blocker]:
    """Drivers that can't be there for the target, by what is known before anything is installed."""
    found = []
    driver = facts["driver"]
    built = target.release in driver["built_for"]
    if driver["source"] == "run":
        found.append(blocker("driver.run_without_dkms", "NVIDIA driver", driver["source_detail"]))
    flavour, version = flavour_of(driver["license"]), driver["dkms_version"]
    reason = None if built else too_old(version, flavour, target.release, driver["package_version"])
    if reason:
        found.append(blocker("driver.too_old", f"NVIDIA driver {version}", reason))
    wrong = flavour_problem([gpu["device"] for gpu in facts["gpus"]], driver["license"], version)
    if wrong:
        found.append(blocker("driver.wrong_flavour", f"NVIDIA driver {version}".rstrip(), wrong))
    for name, state in facts["companions"].get(target.release, {}).items():
        if state == "nowhere" and name.startswith("linux-modules-extra-"):
            found.append(blocker("boot.modules_extra_missing", name, "no archive of this host has it"))
        elif state == "nowhere" and driver["source"] == "precompiled":
            found.append(blocker("driver.precompiled_missing", name, "no archive of this host has it"))
    return found


def package_notes(facts: dict[str, Any]) -> list[str]:
    """What stops nothing, but ought to be known before the roll begins."""
    notes = []
    held = held_meta("\n".join(facts["packages"]["held"]))
    if held:
        notes.append(f"on hold, so that no later kernel or driver comes by itself: {', '.join(held)}")
    driver = facts["driver"]
    pending = reboot_pending_libraries(driver["version"] or "", driver["library_version"])
    return [*notes, pending] if pending else notes


def _expired(roll: dict[str, Any] | None, target: Target) -> bool:
    """Whether this kernel was booted on trial here and the host came back."""
    if not roll or roll["state"] != "closed" or roll["result"] != "good_on_old":
        return False
    return bool(roll["target"] == target.release and roll["trial"]["boots"] > 0)
