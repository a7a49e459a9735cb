"""Other programs that set the same things as our tuning: TuneD, power-profiles-daemon, cpupower and their kin.

They are named, and never touched. Who sets a value last wins, and that is not always us.

Sources: tuned.conf(5), tuned-main.conf(5) and TuneD's folders; the units' own names.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, field

from .host_io import Host

ACTIVE_PROFILE = "/etc/tuned/active_profile"
PROFILE_FOLDERS = ("/etc/tuned/profiles", "/etc/tuned", "/usr/lib/tuned/profiles", "/usr/lib/tuned")
MAIN_CONFIG = "/etc/tuned/tuned-main.conf"
CPU_TOOLS = (
    "power-profiles-daemon", "cpupower", "cpufrequtils", "loadcpufreq", "tlp", "auto-cpufreq", "ondemand", "thermald",
)  # fmt: skip
SYSCTL_TOOLS = ("ktune",)
SCRIPTS = ("/etc/rc.local", "/etc/rc.d/rc.local")
"""Run late in a boot, where they are executable; images and people put ``sysctl -w`` into them."""

_INCLUDE_DEPTH = 10


@dataclass(frozen=True)
class Tuned:
    """TuneD's active profile with what it includes. ``reapplies``: it lets sysctl.d have the last word over its own."""

    profile: str
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    reapplies: bool = True


@dataclass(frozen=True)
class Tuners:
    """Who else tunes here. ``scripts``: path -> the lines that write kernel settings."""

    tuned: Tuned | None = None
    units: tuple[str, ...] = ()
    scripts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def profile(text: str) -> dict[str, dict[str, str]]:
    """A TuneD profile: section -> key -> value. A file that can't be read as one gives nothing."""
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",), allow_no_value=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys keep their case
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}
    return {name: {key: value or "" for key, value in parser[name].items()} for name in parser.sections()}


def _merged(host: Host, name: str, depth: int = 0) -> dict[str, dict[str, str]]:
    """A profile over what it includes; ``[main] include`` may name several."""
    paths = [f"{folder}/{name}/tuned.conf" for folder in PROFILE_FOLDERS]
    text = next((text for text in map(host.read, paths) if text is not None), None)
    if text is None or depth > _INCLUDE_DEPTH:
        return {}
    own = profile(text)
    result: dict[str, dict[str, str]] = {}
    included = own.get("main", {}).get("include", "").replace(",", " ").split()
    for part in [*(_merged(host, item, depth + 1) for item in included), own]:
        for section, values in part.items():
            result.setdefault(section, {}).update(values)
    return result


def _runs(host: Host, unit: str) -> bool:
    """Whether a service runs or is started at boot: its cgroup, its link in some ``.wants`` folder, its SysV link."""
    name = f"{unit}.service"
    if host.exists(f"/sys/fs/cgroup/system.slice/{name}"):
        return True
    folders = [item for item in host.names("/etc/systemd/system") if item.endswith(".wants")]
    if any(name in host.names(f"/etc/systemd/system/{folder}") for folder in folders):
        return True
    return any(item.startswith("S") and item[3:] == unit for item in host.names("/etc/rc2.d"))


def _tuned(host: Host) -> Tuned | None:
    names = host.read_line(ACTIVE_PROFILE).split()
    if not names or not _runs(host, "tuned"):
        return None
    settings: dict[str, dict[str, str]] = {}
    for name in names:
        for section, values in _merged(host, name).items():
            settings.setdefault(section, {}).update(values)
    main = profile("[main]\n" + (host.read(MAIN_CONFIG) or ""))
    reapplies = main.get("main", {}).get("reapply_sysctl", "1").strip().lower() in ("1", "true", "yes", "on")
    return Tuned(" ".join(names), settings, reapplies)


def _script_lines(text: str) -> tuple[str, ...]:
    lines = (line.strip() for line in text.splitlines())
    words = ("sysctl ", "/proc/sys/", "scaling_governor", "cpupower ", "cpufreq-set", "transparent_hugepage")
    return tuple(line for line in lines if not line.startswith("#") and any(word in line for word in words))


def read(host: Host) -> Tuners:
    """Who else tunes this host."""
    scripts = {path: _script_lines(host.read(path) or "") for path in SCRIPTS if (host.mode(path) or 0) & 0o111}
    return Tuners(
        _tuned(host),
        tuple(unit for unit in (*SYSCTL_TOOLS, *CPU_TOOLS) if _runs(host, unit)),
        {path: lines for path, lines in scripts.items() if lines},
    )
