"""Proofs on what the loader would boot: the target's entry, the fallback, the way there, and room for both."""

from __future__ import annotations

from . import boot, cmdline, survey
from .boot_config import reboots_on_panic, wanted_arguments
from .documents import Proof
from .errors import Stop
from .loader_systemd_boot import booted_cmdline
from .preflight_evidence import Evidence, proof, warning
from .rollfile import Fallback


def proofs(seen: Evidence) -> list[Proof]:
    """The loader's own problems first: what it can't read, nothing else here can prove."""
    return [*_loader_proofs(seen), *_entry_proofs(seen), *_room_proofs(seen), _kexec_proof(seen)]


def _loader_proofs(seen: Evidence) -> list[Proof]:
    problems = seen.state.problems
    if not problems:
        return [proof("loader", True, "loader.unsupported", seen.state.loader, "one that boots an entry once")]
    return [proof(item.object, False, item.cause, item.observed, item.expected, item.next_step) for item in problems]


def _entry_proofs(seen: Evidence) -> list[Proof]:
    """The target's entry exists, its files are byte for byte those in /boot, its options hold what was asked for."""
    entry, arguments = seen.entry, seen.roll.plan["cmdline"]
    if entry is None:
        expected = f"an entry for {seen.target}"
        return [proof("boot entry", False, "boot.entry_missing", f"none in {seen.state.loader}", expected)]
    # An initramfs that is missing has a proof of its own.
    missing = seen.host.size_bytes(seen.image_path) == 0
    wrong = [path for path in boot.stale_copies(seen.host, entry, seen.target) if not (missing and path != entry.linux)]
    absent = cmdline.missing(entry.options, wanted_arguments(entry.options, arguments))
    asked = " ".join(f"{key}={value}" if value else key for key, value in arguments.items()) or "nothing of ours"
    return [
        proof(
            "boot entry",
            not wrong and bool(entry.initrd),
            "boot.entry_missing",
            f"differs from /boot: {', '.join(wrong)}" if wrong else entry.id,
            "kernel and initrd as in /boot",
        ),
        proof(
            "way back after a panic",
            reboots_on_panic(entry.options),
            "boot.no_panic_reboot",
            entry.options,
            "panic= with a number of seconds, not 0",
        ),
        proof(
            "kernel arguments",
            not absent,
            "boot.cmdline_missing",
            f"missing: {' '.join(absent)}" if absent else entry.options,
            asked,
        ),
        _argument_source_proof(seen, arguments, asked),
    ]


def _argument_source_proof(seen: Evidence, arguments: dict[str, str | None], asked: str) -> Proof:
    """The files that entries are made from say the same: else the next kernel package takes the arguments away.

    Of /etc/kernel/cmdline only the first line counts, and of GRUB's files what they come to together.
    """
    try:
        changes = seen.loader.argument_changes(arguments)
        observed = f"{', '.join(item.path for item in changes)} would have to change" if changes else "the same"
    except (Stop, ValueError) as error:
        changes, observed = [], str(error)
        return proof("source of the arguments", False, "boot.cmdline_missing", observed, asked)
    return proof("source of the arguments", not changes, "boot.cmdline_missing", observed, asked)


def _room_proofs(seen: Evidence) -> list[Proof]:
    """Room for one more copy of the target's kernel and initrd: its hooks write the new one beside the old one."""
    size = seen.host.size_bytes
    needed = size(f"/boot/vmlinuz-{seen.target}") + size(seen.image_path)
    return [
        proof(
            f"room on {place['path']}",
            place["free_bytes"] >= needed,
            "boot.no_space",
            f"{place['free_bytes'] // 2**20} MiB free",
            f"at least {-(-needed // 2**20)} MiB",
        )
        for place in boot.room(seen.host, seen.state, seen.target)
    ]


def _kexec_proof(seen: Evidence) -> Proof:
    reason = survey.read_kexec(seen.host)
    return proof("kexec", reason is None, "boot.kexec_armed", reason or "not armed", "a reboot through the loader")


def fallback_proofs(seen: Evidence) -> list[Proof]:
    """The fallback is what the loader boots by itself, and not one byte of it has changed since the roll began."""
    fallback, state = seen.roll.fallback, seen.state
    if fallback is None:
        return [proof("fallback", False, "boot.fallback_missing", "not recorded", seen.roll.running_before)]
    changed = _changed_fallback(seen, fallback)
    return [
        proof(
            "fallback unchanged",
            not changed,
            "boot.fallback_changed",
            f"changed: {', '.join(changed)}" if changed else f"{len(fallback.files)} files",
            "SHA-256 as before the roll",
        ),
        proof(
            "default is the fallback",
            state.default_entry == fallback.entry,
            "boot.default_not_held",
            state.default_entry or "nothing that is known",
            fallback.entry,
        ),
        proof(
            "no EFI default",
            state.efi_default is None,
            "boot.efi_default_set",
            state.efi_default or "not set",
            "not set",
        ),
        proof(
            "one-shot",
            state.one_shot_by is not None,
            "loader.unsupported",
            state.one_shot_by or "none",
            "a way to boot an entry once",
        ),
        proof(
            "no foreign one-shot",
            state.one_shot is None,
            "boot.foreign_one_shot",
            state.one_shot or "not set",
            "not set",
        ),
        *([] if changed else _proven_by_running(seen, fallback)),
    ]


def _proven_by_running(seen: Evidence, fallback: Fallback) -> list[Proof]:
    """What runs has been booted with these arguments. A fallback with others would be a trial of its own."""
    entry = seen.state.named(fallback.entry)
    if entry is None or seen.running != fallback.release:
        return []
    ours, booted = set(entry.options.split()), set(booted_cmdline(seen.host).split())
    different = [*(f"+{word}" for word in sorted(ours - booted)), *(f"-{word}" for word in sorted(booted - ours))]
    observed = f"against the running command line: {' '.join(different)}" if different else "the running command line"
    return [warning("fallback arguments", not different, "boot.fallback_not_booted", observed, "as it was booted")]


def _changed_fallback(seen: Evidence, fallback: Fallback) -> list[str]:
    """What boots the fallback and is not, byte for byte, what it was when the roll began."""
    entry = seen.state.named(fallback.entry)
    if entry is None:
        return [fallback.entry]
    try:
        now = boot.fallback_hashes(seen.host, entry, fallback.release)
    except Stop as error:
        return [error.blocker.observed]
    return sorted(path for path in {*now, *fallback.files} if now.get(path) != fallback.files.get(path))
