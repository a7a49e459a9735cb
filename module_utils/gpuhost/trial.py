"""The trial boot: the fallback held as default, one boot of the new kernel, then promote or back.

The order of writes is the safety: default before apt, roll file before the one-shot, one-shot in the same call as the
reboot. A machine that dies between any two of them boots the old kernel.
"""

from __future__ import annotations

from dataclasses import replace

from . import boot, cmdline, systemd_boot
from .boot_config import wanted_arguments
from .documents import utc_now
from .errors import stop
from .host_io import Host
from .rollfile import Fallback, Roll, Trial

RUNNING = "/proc/sys/kernel/osrelease"
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def record_fallback(host: Host, release: str, last: Roll | None) -> Fallback:
    """What boots the running kernel, with hashes, and the default policy as it was found.

    A roll that came back has left its fallback as the explicit default: then the policy is the one that *it* had found.
    """
    state = boot.read(host)
    files = boot.fallback_hashes(host, state, release)
    entry = state.entry(release)
    if entry is None:
        raise stop("boot.fallback_missing", release, f"no entry on {state.esp}")
    policy = state.default
    if last is not None and last.fallback and last.result != "good" and policy == last.fallback.entry:
        policy = last.fallback.policy_before
    return Fallback(entry.filename, release, policy, files)


def loader_conf_change(state: boot.BootState, entry: str | None) -> tuple[str, str, str]:
    """(path, before, after) of loader.conf with this explicit default; None takes the line out."""
    if state.esp is None:
        raise stop(
            "loader.unsupported",
            "ESP",
            f"not mounted on {', '.join(boot.ESP_MOUNT_POINTS)}",
            "a mounted ESP with systemd-boot",
            "Mount it (mount /boot/efi), then run the same command again.",
        )
    return f"{state.esp}/loader/loader.conf", state.loader_conf, systemd_boot.with_default(state.loader_conf, entry)


def set_default(host: Host, entry: str | None) -> bool:
    """Write loader.conf's default; whether it had to change."""
    path, before, after = loader_conf_change(boot.read(host), entry)
    if before == after:
        return False
    host.write_atomic(path, after.encode(), None)
    return True


def hold_fallback(host: Host, fallback: Fallback) -> bool:
    """Make the fallback the explicit default and read back that the loader would boot it; whether it had to change."""
    changed = set_default(host, fallback.entry)
    state = boot.read(host)
    if state.efi_default is not None:
        raise stop("boot.efi_default_set", "LoaderEntryDefault", state.efi_default, "not set")
    prove_default(state, fallback)
    return changed


def prove_default(state: boot.BootState, fallback: Fallback) -> None:
    """Raises Stop(boot.default_not_held) unless the loader would boot the fallback by itself."""
    entry = state.next_boot()
    if entry is None or entry.filename != fallback.entry:
        raise stop("boot.default_not_held", f"{state.esp}/loader/loader.conf", _name(entry), fallback.entry)


def clear_own_one_shot(host: Host, roll: Roll) -> None:
    """Take back the one-shot of a trial that was armed but never booted (the controller or the host died in between).

    Raises Stop(boot.foreign_one_shot) for any other.
    """
    state = boot.read(host)
    if state.one_shot is None:
        return
    target = state.entry(roll.target)
    if not roll.trial.boots or target is None or target.filename != state.one_shot:
        raise stop("boot.foreign_one_shot", "LoaderEntryOneShot", state.one_shot, "not set")
    clear_one_shot(host)


def _name(entry: systemd_boot.Entry | None) -> str:
    return entry.filename if entry else "nothing"


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


def armed(host: Host, roll: Roll, boot_id: str) -> Roll:
    """The roll as it must stand in the file before the one-shot is set: this trial counts from now on."""
    if boot.read(host).entry(roll.target) is None:
        raise stop("boot.entry_missing", roll.target, "no boot entry")  # set-oneshot would not check the name
    boots = roll.trial.boots if boot_id == roll.trial.boot_id_before else roll.trial.boots + 1
    return replace(roll, trial=Trial(boots, utc_now(), boot_id))


def start(host: Host, roll: Roll) -> None:
    """Set the one-shot, read it back, reboot. The reboot is detached so that the answer still gets out."""
    state = boot.read(host)
    entry = state.entry(roll.target)
    if entry is None:
        raise stop("boot.entry_missing", roll.target, "no boot entry")
    result = host.run(["bootctl", "set-oneshot", entry.filename])
    chosen = boot.read(host).next_boot()
    if result.rc != 0 or chosen is None or chosen.filename != entry.filename:
        clear_one_shot(host)
        raise stop(
            "boot.entry_missing", "bootctl set-oneshot", f"{result.last_line}; next: {_name(chosen)}", entry.filename
        )
    reboot(host)


def reboot(host: Host) -> None:
    """Reboot in a second, by a timer of systemd's, so that the answer still gets out.

    Raises Stop where systemd does not take it: nothing would reboot then, and a one-shot must not be left behind.
    """
    argv = ["systemd-run", "--on-active=1", "--timer-property=AccuracySec=100ms", "systemctl", "reboot"]
    result = host.run(argv)
    if result.rc != 0:
        clear_one_shot(host)
        raise stop("host.module_failed", "systemd-run", f"the reboot was not taken: {result.last_line}")


def clear_one_shot(host: Host) -> bool:
    """Take a one-shot back; whether there was one."""
    if boot.read(host).one_shot is None:
        return False
    result = host.run(["bootctl", "set-oneshot", ""])
    if result.rc != 0:
        raise stop("boot.foreign_one_shot", "bootctl set-oneshot", result.last_line, "cleared")
    return True


def prove_booted(host: Host, roll: Roll) -> list[str]:
    """Prove that the trial really booted: a new boot id, the release, the arguments. Returns what is seen."""
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
    return [f"booted {running}, boot id {boot_id}", f"command line: {line}"]


def promote(host: Host, roll: Roll) -> list[str]:
    """Make the new kernel what boots by itself.

    The policy found before the roll comes back where it now leads to the new kernel (no pin stays no pin); where it
    would not, the new kernel's entry becomes the explicit default.
    """
    if roll.fallback is None:
        raise stop("boot.fallback_missing", "roll file", "no fallback recorded")
    state = boot.read(host)
    target = state.entry(roll.target)
    if target is None:
        raise stop("boot.entry_missing", roll.target, "no boot entry")
    before = roll.fallback.policy_before
    by_policy = systemd_boot.selected(list(state.entries), before, None, None)
    # @saved means the entry last booted, which a one-shot does not count as: it would lead to the old kernel.
    leads_there = by_policy is not None and by_policy.filename == target.filename and (before or "").lower() != "@saved"
    choice = before if leads_there else target.filename
    changed = set_default(host, choice)
    entry = boot.read(host).next_boot()
    if entry is None or entry.filename != target.filename:
        set_default(host, roll.fallback.entry)
        raise stop("boot.default_not_held", "loader.conf", _name(entry), target.filename)
    how = f"default {choice}" if choice else "no explicit default, as before: the newest kernel boots"
    return [f"{entry.filename} boots by itself ({how})"] if changed else []


def undo(host: Host, roll: Roll) -> list[str]:
    """Take back what the trial set: one-shot cleared, fallback the explicit default, read back."""
    lines = ["one-shot boot entry cleared"] if clear_one_shot(host) else []
    if roll.fallback is not None:
        if set_default(host, roll.fallback.entry):
            lines.append(f"default set to {roll.fallback.entry}")
        prove_default(boot.read(host), roll.fallback)
    return lines
