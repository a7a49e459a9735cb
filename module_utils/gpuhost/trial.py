"""The trial boot: the fallback held as default, one boot of the new kernel, then promote or back.

The order of writes is the safety: default before apt, roll file before the one-shot, dead-man before the one-shot,
one-shot in the same call as the reboot. A machine that dies between any two of them boots the old kernel.
"""

from __future__ import annotations

from dataclasses import replace

from . import cmdline, deadman, fallbacks, units
from .boot import BootEntry, Loader
from .boot_config import wanted_arguments
from .documents import utc_now
from .errors import stop
from .host_io import Host
from .rollfile import Fallback, Roll, Trial

RUNNING = "/proc/sys/kernel/osrelease"
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def clear_own_one_shot(loader: Loader, roll: Roll) -> None:
    """Take back the one-shot of a trial that was armed but never booted (the controller or the host died in between).

    Raises Stop(boot.foreign_one_shot) for any other.
    """
    state = loader.read()
    if state.one_shot is None:
        return
    target = state.entry(roll.target)
    if not roll.trial.boots or target is None or target.id != state.one_shot:
        raise stop("boot.foreign_one_shot", "one-shot boot entry", state.one_shot, "not set")
    clear_one_shot(loader)


def may_reboot(host: Host, name: str, allowed: bool, controller_boot_id: str) -> None:
    """Consent, and never the controller's own machine. Raises Stop."""
    if not allowed:
        raise stop("roll.reboot_not_allowed", name, "host_reboot_allowed is not set", "true")
    if host.read_line(BOOT_ID) == controller_boot_id.strip():
        raise stop("roll.controller_on_target", name, "has the controller's own boot id", "another")


def may_boot_trial(host: Host, roll: Roll, retry: bool) -> None:
    """Raises Stop(trial.expired) where this roll's trial boot is used up."""
    running = host.read_line(RUNNING)
    # With the boot id of the arming the host has not rebooted since: the trial was armed, but never booted.
    booted = roll.trial.boots > 0 and host.read_line(BOOT_ID) != roll.trial.boot_id_before
    if booted and running != roll.target and not retry:
        raise stop(
            "trial.expired",
            roll.target,
            f"booted on trial at {roll.trial.armed_at}, but the host runs {running}",
        )


def armed(loader: Loader, roll: Roll, boot_id: str) -> Roll:
    """The roll as it must stand in the file before the one-shot is set: this trial counts from now on."""
    if loader.read().entry(roll.target) is None:
        raise stop("boot.entry_missing", roll.target, "no boot entry")  # set-oneshot would not check the name
    boots = roll.trial.boots if boot_id == roll.trial.boot_id_before else roll.trial.boots + 1
    return replace(roll, trial=Trial(boots, utc_now(), boot_id))  # why an earlier one failed says nothing of this one


def start(host: Host, loader: Loader, roll: Roll) -> None:
    """Set the one-shot, read it back, reboot. The reboot is detached so that the answer still gets out."""
    entry = loader.read().entry(roll.target)
    if entry is None:
        raise stop("boot.entry_missing", roll.target, "no boot entry")
    said = loader.set_one_shot(entry)
    chosen = loader.read().next_boot()
    if said or chosen is None or chosen.id != entry.id:
        clear_one_shot(loader)
        raise stop("boot.one_shot_failed", loader.name, f"{said or 'no error'}; next: {_name(chosen)}", entry.id)
    reboot(host, loader)


def _name(entry: BootEntry | None) -> str:
    return entry.id if entry else "nothing"


def reboot(host: Host, loader: Loader) -> None:
    """Reboot in a second, by a timer of systemd's, so that the answer still gets out.

    -i, because since systemd 257 a lock of somebody's refuses root's reboot too, in the timer, where nobody sees it:
    ``units.prove_no_inhibitor`` has looked before. Raises Stop where systemd does not take it: nothing would reboot
    then, and a one-shot must not be left behind.
    """
    argv = ["systemd-run", "--on-active=1", "--timer-property=AccuracySec=100ms", "systemctl", "reboot", "-i"]
    result = host.run(argv)
    if result.rc != 0:
        clear_one_shot(loader)
        raise stop("host.module_failed", "systemd-run", f"the reboot was not taken: {result.last_line}")


def clear_one_shot(loader: Loader) -> bool:
    """Take a one-shot back; whether there was one."""
    if loader.read().one_shot is None:
        return False
    error = loader.clear_one_shot()
    if error or loader.read().one_shot is not None:
        raise stop("boot.foreign_one_shot", "one-shot boot entry", error or "still there", "cleared")
    return True


def prove_booted(host: Host, roll: Roll) -> list[str]:
    """Prove that the trial really booted: a new boot id, the release, the arguments, our units. What is seen."""
    boot_id = host.read_line(BOOT_ID)
    running = host.read_line(RUNNING)
    line = host.read_line("/proc/cmdline")
    if running != roll.target:
        raise stop("trial.wrong_kernel", "uname -r", running, roll.target)
    if boot_id == roll.trial.boot_id_before:
        raise stop("trial.wrong_kernel", "boot id", f"still {boot_id}", "a new one")
    absent = cmdline.missing(line, wanted_arguments(line, roll.plan["cmdline"]))
    if absent:
        raise stop("trial.cmdline", "/proc/cmdline", f"lacks {' '.join(absent)}", "")
    proofs = [*units.prove_units(host), *units.prove_pve(host)]
    for proof in proofs:
        if not proof.ok:
            raise stop(proof.cause or "reboot.unit_failed", proof.name, proof.observed, proof.expected, proof.next_step)
    lines = [f"{proof.name}: {proof.observed}" for proof in proofs]
    return [f"booted {running}, boot id {boot_id}", f"command line: {line}", *lines]


def promote(host: Host, loader: Loader, roll: Roll) -> list[str]:
    """Make the new kernel what boots by itself, and take away what the trial had put there.

    First the dead-man's lock: of the two who want to decide, exactly one does. Then the default: the policy found
    before the roll where it leads to the new kernel (no pin stays no pin), else the new kernel's entry by name.
    """
    if roll.fallback is None:
        raise stop("boot.fallback_missing", "roll file", "no fallback recorded")
    if roll.promoted_at is None and not deadman.take(host, roll.target):
        raise stop("trial.expired", roll.target, "the deadline has passed, the host reboots into the old kernel")
    state = loader.read()
    target = state.entry(roll.target)
    if target is None:
        raise stop("boot.entry_missing", roll.target, "no boot entry")
    lines = _make_default(loader, roll.fallback, target)
    loader.remove_fallback()
    booted = loader.read().next_boot()
    if booted is None or booted.id != target.id:
        # Menus that count their entries may have shifted when ours went.
        lines = [*lines, *_make_default(loader, roll.fallback, target)]
    return lines


def _make_default(loader: Loader, fallback: Fallback, target: BootEntry) -> list[str]:
    """Set the first policy that leads to the target, and read back that it does; else the fallback stays."""
    state = loader.read()
    wanted = next(
        (
            policy
            for policy in loader.policies(target, fallback.policy_before)
            if (found := loader.would_boot(state, policy)) is not None and found.release == target.release
        ),
        loader.explicit(target),
    )
    changed = loader.set_default(wanted)
    booted = loader.read().next_boot()
    if booted is not None and booted.id != target.id and booted.release == target.release:
        booted = target  # GRUB's first entry and the one in its submenu are the same kernel
    if booted is None or booted.id != target.id:
        held = loader.read().named(fallback.entry)
        if held is not None:
            loader.set_default(loader.explicit(held))
        raise stop("boot.default_not_held", loader.name, _name(booted), target.id)
    how = f"default {wanted}" if wanted else "no explicit default, as before: the newest kernel boots"
    return [f"{target.id} boots by itself ({how})"] if changed else []


def undo(host: Host, loader: Loader, roll: Roll) -> list[str]:
    """Take back what the trial set: the one-shot goes, the fallback is the explicit default, read back."""
    lines = ["one-shot boot entry cleared"] if clear_one_shot(loader) else []
    if roll.fallback is not None:
        held = fallbacks.held_entry(loader.read(), roll.fallback)
        if loader.set_default(loader.explicit(held)):
            lines.append(f"default set to {held.id}")
        fallbacks.prove_default(loader.read(), held)
    return lines


def like_before(host: Host, loader: Loader, roll: Roll) -> list[str]:
    """On the old kernel, for good: arguments and options as they were, the old kernel's own entry the default.

    The fallback's copy goes only where the loader's own entry boots the same command line again.
    """
    lines = restore_files(host, loader, roll)
    if roll.fallback is None:
        return lines
    state = loader.read()
    own, copy = state.entry(roll.running_before), state.named(roll.fallback.entry)
    if copy is None:
        loader.remove_fallback()  # what a way back that was cut off has left of it
    if own is None or copy is None or own.id == copy.id:
        return lines
    if own.options.split() != copy.options.split() or not _same_files(host, own, copy):
        return [*lines, f"default stays {copy.id}: {own.id} boots other arguments or files than before the roll"]
    loader.set_default(loader.explicit(own))
    booted = loader.read().next_boot()
    if booted is None or booted.id != own.id:
        loader.set_default(loader.explicit(copy))
        return [*lines, f"default stays {copy.id}: {own.id} did not become it"]
    loader.remove_fallback()
    return [*lines, f"default set to {own.id}, the fallback's copy removed"]


def restore_files(host: Host, loader: Loader, roll: Roll) -> list[str]:
    """Put back the files that the roll changed, where they are still as the roll wrote them."""
    lines = []
    refresh = False
    for path, saved in sorted(roll.files_changed.items()):
        now = host.read(path)
        if now == saved.before:
            continue
        if now != saved.after:
            lines.append(f"{path} was changed by somebody else since, and is left as it is")
            continue
        if saved.before is None:
            host.remove(path)
        else:
            host.write_atomic(path, saved.before.encode())
        refresh = refresh or loader.refreshes(path)
        lines.append(f"{path} is as before the roll")
    if refresh:
        loader.arguments_like_before()
    return lines


def _same_files(host: Host, own: BootEntry, copy: BootEntry) -> bool:
    """Whether two entries boot the same bytes: an initrd that was made again during the roll has never been booted."""
    pairs = list(zip((own.linux, *own.initrd), (copy.linux, *copy.initrd), strict=False))
    digests = [(host.sha256(one), host.sha256(other)) for one, other in pairs]
    return len(own.initrd) == len(copy.initrd) and all(one == other is not None for one, other in digests)
