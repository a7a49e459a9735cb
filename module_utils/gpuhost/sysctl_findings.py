"""What is to be said about kernel settings: now, after the next boot, after somebody's ``sysctl --system``.

Findings describe the host as it was read. They never lead to a change by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from . import other_tuners
from .documents import Finding, Severity
from .sysctl_defaults import BY_KEY
from .sysctl_facts import PROC, Facts, Wish, Wishes
from .sysctl_files import (
    RIVALS,
    SYSCTL_CONF,
    Setting,
    after_boot,
    dotted,
    in_order,
    normal,
    outcome,
    parse,
    system_writes,
)

DOMAIN = "kernel_runtime"
TUNE = "gpuhost tune"


def holds(boot: Mapping[str, Setting], key: str, item: Wish) -> bool:
    """Whether a boot leaves a key as it is wanted."""
    return key in boot and item.met_by(boot[key].value)


def findings(facts: Facts, wish: Wishes, ours: tuple[str, ...], planned: Mapping[str, str]) -> tuple[Finding, ...]:
    """All of them. ``ours``: the keys of our file; ``planned``: all files with it."""
    present = after_boot(facts.files, wish.touched, facts.arguments)
    boot = after_boot(planned, wish.touched, facts.arguments)
    found: list[Finding] = []
    for key, item in wish.keys.items():
        taken = key in ours and not holds(boot, key, item)
        found += _about(facts, wish, key, item, present.get(key) or present.get(RIVALS.get(key, "")), taken)
        if taken:
            found.append(_overridden(key, item, boot.get(key) or boot.get(RIVALS.get(key, "")), planned))
    found += _by_hand(wish, planned, boot)
    found += _tuned(facts.tuners.tuned, wish)
    found += _others(facts.tuners, wish)
    found += [
        _finding("sysctl.unreadable", "unknown", f"{path}: unknown: needs root", "readable",
                 "What it says can't be told.", path, "Run it as root")
        for path in facts.unreadable
    ]  # fmt: skip
    return tuple(found)


def _finding(
    code: str, severity: Severity, observed: str, expected: str, why: str, source: str, fix: str = TUNE
) -> Finding:
    return Finding(code, DOMAIN, severity, observed, expected, why, fix, source)


def _about(facts: Facts, wish: Wishes, key: str, item: Wish, boot: Setting | None, taken: bool) -> Iterator[Finding]:
    """One key: whether it is there, and its value."""
    name, source = dotted(key), PROC + key
    reason = "Our file has it with a leading -: no error where it is not there, and in force where it is."
    if facts.absent_on_target(key):
        observed = f"{name} is not available on {wish.target}"
        config = f"/boot/config-{wish.target}"
        yield _finding("sysctl.not_on_target", "info", observed, item.expected, reason, config, "")
    if key not in facts.live:
        observed = f"{name} is not available on this kernel"
        yield _finding("sysctl.not_available", "info", observed, item.expected, reason, source, "")
    else:
        yield from _value(name, item, facts.live[key], boot if not taken else None, source, taken)


def _value(
    name: str, item: Wish, value: str | None, boot: Setting | None, source: str, taken: bool
) -> Iterator[Finding]:
    known = BY_KEY.get(normal(name))
    why = known.why if known else "sysctl_tuning_keys asks for it."
    later = f"{boot.place} sets {_shown(boot)}" if boot else "no file sets it"
    right_later = boot is not None and dotted(boot.key) == name and item.met_by(boot.value)
    if value is None:
        yield _finding("sysctl.value", "unknown", f"{name}: unknown: needs root", item.expected, why, source, "")
    elif not item.met_by(value):
        observed = f"{name} reads {value}" + ("" if taken else f"; at a boot {later}")
        yield _finding("sysctl.value", "p0_runtime", observed, item.expected, why, source)
    elif taken:
        return  # sysctl.overridden says it
    elif boot is not None and not right_later:
        observed = f"{name} reads {value} now, but at a boot {later}"
        yield _finding("sysctl.after_boot", "p0_runtime", observed, item.expected, why, boot.path)
    elif boot is None and not item.at_least:
        observed = f"{name} reads {value} now, and {later}"
        reason = "A value that was set by hand is gone after a boot; one that the kernel has by itself stays."
        yield _finding("sysctl.after_boot", "info", observed, f"{item.expected}, set by a file", reason, source)
    else:
        yield _finding(
            "sysctl.value", "good", f"{name} reads {value}; at a boot {later}", item.expected, why, source, ""
        )


def _shown(setting: Setting) -> str:
    name = dotted(setting.key)
    return f"{name} = {setting.value}" if setting.value else f"{name} to nothing"


def _overridden(key: str, item: Wish, winner: Setting | None, planned: Mapping[str, str]) -> Finding:
    """A file after ours sets the key, sets its rival, or (a line ``-key``) takes it out."""
    if winner is not None:
        place, observed = winner.path, f"{winner.place} sets {_shown(winner)} after our file"
    else:
        lines = [line for path in in_order(planned) for line in parse(path, planned[path]) if line.key == key]
        place, observed = lines[-1].path, f"{lines[-1].place} takes {dotted(key)} out after our file"
    why = "systemd-sysctl reads all files in the order of their names, and the last one wins."
    fix = f"Take the line out of {place}, or rename that file so that it sorts first; it is not ours to edit"
    return _finding("sysctl.overridden", "p0_runtime", observed, f"{dotted(key)} = {item.value}", why, place, fix)


def given_way(facts: Facts, key: str, rival: str, setting: Setting | None) -> Finding:
    """A default of ours that is left out, since the kernel would clear what somebody has set in its place."""
    where = f"{setting.place} sets {_shown(setting)}" if setting else "no file sets it"
    observed = f"{dotted(rival)} reads {facts.live.get(rival) or 'nothing'}, {where}: {dotted(key)} is left alone"
    why = "Of the two only one is in force. Who has set bytes has meant it; our ratio would be far more."
    fix = f"To have the ratio all the same: {dotted(key)} in sysctl_tuning_keys"
    return _finding("sysctl.value", "info", observed, "", why, PROC + rival, fix)


def _by_hand(wish: Wishes, planned: Mapping[str, str], boot: Mapping[str, Setting]) -> Iterator[Finding]:
    """``sysctl --system`` reads /etc/sysctl.conf last, also where no boot does."""
    after = outcome(system_writes(planned, wish.touched))
    for key, item in wish.keys.items():
        setting = after.get(key) or after.get(RIVALS.get(key, ""))
        if setting is None or setting == boot.get(setting.key) or holds(after, key, item):
            continue
        observed = f"sysctl --system would follow {setting.place}: {_shown(setting)}"
        why = f"A boot does not; but packages and scripts call it, and it reads {SYSCTL_CONF} last."
        fix = f"Take the line out of {setting.path}; it is not ours to edit"
        yield _finding("sysctl.by_hand", "info", observed, f"{dotted(key)} = {item.value}", why, setting.path, fix)


def _tuned(tuned: other_tuners.Tuned | None, wish: Wishes) -> Iterator[Finding]:
    """TuneD sets its values long after systemd-sysctl; with reapply_sysctl it then reads the files once more."""
    for name, value in (tuned.settings.get("sysctl", {}) if tuned else {}).items():
        item = wish.keys.get(normal(name))
        if tuned is None or item is None:
            continue
        severity: Severity = "info" if tuned.reapplies or item.met_by(value) else "p0_runtime"
        order = "then reads the files again (reapply_sysctl)" if tuned.reapplies else "has the last word"
        yield _finding(
            "sysctl.other_tool", severity, f"TuneD's profile {tuned.profile} sets {name} = {value}, and {order}",
            item.expected, "Whoever sets a value last wins.", other_tuners.ACTIVE_PROFILE,
            "Take the key out of the profile, or set it to null in sysctl_tuning_keys; TuneD is not ours to change",
        )  # fmt: skip


def _others(tuners: other_tuners.Tuners, wish: Wishes) -> Iterator[Finding]:
    seen = [(f"{unit}.service is in use", unit) for unit in tuners.units if unit in other_tuners.SYSCTL_TOOLS]
    for path, lines in tuners.scripts.items():
        seen += [
            (f"{path}: {line}", path) for line in lines if any(dotted(key) in line or key in line for key in wish.keys)
        ]
    for observed, source in seen:
        yield _finding(
            "sysctl.other_tool", "info", observed, "no second tool for the same keys",
            "It sets kernel settings after systemd-sysctl does, and whoever is last wins.", source,
            "Compare again after a boot: gpuhost audit",
        )  # fmt: skip
