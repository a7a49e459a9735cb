"""The CPUs' frequency and idle states: what is wanted, what is written now, and what makes it hold after a boot.

What is set and how is in ``cpu_boot``, which the host also runs by itself: at each boot, after the drivers are there,
and when a CPU comes online later. tmpfiles.d would run before a cpufreq driver that is a module.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import Any

from . import cpu_boot, cpu_findings, other_tuners
from .cpu_boot import KEEP, Wishes
from .cpu_findings import MODES, Facts
from .errors import stop
from .host_io import Host
from .tune_step import Concern
from .tuning import FILE, KINDS, LIVE, Kind, Wanted, Write

CONCERN = Concern("cpu", cpu_findings.DOMAIN, "cpu.refused")
PROGRAM = "/var/lib/gpuhost/cpu_boot.py"
UNIT = "gpuhost-cpu.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
LINK = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
RULES_FILE = "/etc/udev/rules.d/85-gpuhost-cpu.rules"
RULES = f"""\
# Managed by gpuhost, role cpu_tuning: a CPU that comes online later gets the same settings.
ACTION=="online", SUBSYSTEM=="cpu", RUN+="/usr/bin/systemctl --no-block start {UNIT}"
"""
LINK_KIND = "link_to_unit"
"""Kind of a link that starts a unit at boot: the value is where it leads."""

CHOICE = "choice"
"""Kind of a file that shows all choices, with the one in force in brackets, and takes one word: what was there before
is that word, for the kernel refuses the whole line."""

_WORD = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class AllWishes:
    """The role's variables. ``mode`` is that of amd_pstate and intel_pstate."""

    boot: Wishes = field(default_factory=Wishes)
    mode: str = KEEP


def wishes(given: dict[str, Any]) -> AllWishes:
    """From the module's parameters. Raises Stop(input.invalid)."""
    words = {name: _word(name, given[name]) for name in ("governor", "epp", "boost", "huge_pages", "mode")}
    for name, choices in (("boost", ("on", "off", KEEP)), ("mode", (*MODES, KEEP))):
        if words[name] not in choices:
            raise stop("input.invalid", f"cpu_tuning_{name}", words[name], f"one of {', '.join(choices)}")
    latency = given["max_idle_latency_us"]
    mode = words.pop("mode")
    return AllWishes(Wishes(**words, max_idle_latency_us=None if latency is None or latency < 0 else latency), mode)


def _word(name: str, value: Any) -> str:
    # YAML reads a bare on and off as booleans.
    text = {"True": "on", "False": "off"}.get(str(value), str(value)) if name == "boost" else str(value)
    if not _WORD.fullmatch(text):
        raise stop("input.invalid", f"cpu_tuning_{name}", repr(value), f"one word, or {KEEP}")
    return text


def read(host: Host) -> Facts:
    """Files of /sys, /proc and /etc; no program runs."""
    fields = [line.partition(":") for line in (host.read("/proc/cpuinfo") or "").splitlines() if ":" in line]
    first: dict[str, str] = {}
    for name, _, value in fields:
        first.setdefault(name.strip(), value.strip())
    return Facts(
        cpu_boot.read(host),
        vendor=first.get("vendor_id", ""),
        flags=frozenset(first.get("flags", "").split()),
        release=host.read_line("/proc/sys/kernel/osrelease"),
        has_cppc=bool(host.names(f"{cpu_boot.CPUS}/cpu0/acpi_cppc")),
        idle_driver=host.read_line(f"{cpu_boot.CPUS}/cpuidle/current_driver"),
        installed={path: host.read(path) or "" for path in (PROGRAM, UNIT_FILE, RULES_FILE) if host.exists(path)},
        enabled=_read_link(host, LINK) is not None,
        tuners=other_tuners.read(host),
    )


def wanted(facts: Facts, wish: AllWishes) -> Wanted:
    """Findings as the host is now, and the writes that end them. The files come first: a boot then finds them."""
    settings = cpu_boot.settings(facts.cpus, wish.boot)
    # One that is set: it is to be there at the next boot, and where nothing can be set nothing of ours is needed.
    files = boot_files(wish.boot) if settings else dict.fromkeys((PROGRAM, UNIT_FILE, RULES_FILE))
    kept = facts.enabled and all(facts.installed.get(path) == text for path, text in files.items())
    writes = [Write(FILE, path, text, "kept over a boot") for path, text in files.items()]
    writes.append(Write(LINK_KIND, LINK, UNIT_FILE if settings else None, ""))
    writes += [
        Write(CHOICE if item.path == cpu_boot.HUGE_PAGES else LIVE, item.path, item.value + "\n", item.about)
        for item in settings
    ]
    return Wanted(cpu_findings.findings(facts, wish.boot, wish.mode, kept), tuple(writes))


def boot_files(wish: Wishes) -> dict[str, str | None]:
    """What a boot needs: the program, the unit, the udev rule."""
    return {PROGRAM: inspect.getsource(cpu_boot), UNIT_FILE: unit_text(wish), RULES_FILE: RULES}


def unit_text(wish: Wishes) -> str:
    """The unit. It can be started again and again: the rule does so for every CPU that comes online."""
    return f"""# Managed by gpuhost, role cpu_tuning: a change here is overwritten.
[Unit]
Description=gpuhost: CPU frequency, idle states and huge pages
# After the drivers, and after others who set the same.
After=systemd-modules-load.service systemd-udev-trigger.service
After=tuned.service power-profiles-daemon.service cpupower.service cpufrequtils.service loadcpufreq.service
ConditionPathExists={PROGRAM}
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStartPre=-/usr/bin/udevadm settle --timeout=30
ExecStart=/usr/bin/python3 {PROGRAM} {" ".join(cpu_boot.arguments(wish))}
TimeoutStartSec=120

[Install]
WantedBy=multi-user.target
"""


def reload_units(host: Host, changed: bool) -> None:
    """Let systemd see a changed unit: the udev rule may start it before the next boot. Harmless where it can't."""
    if changed:
        host.run(["systemctl", "daemon-reload"])


def _read_link(host: Host, path: str) -> str | None:
    folder, _, name = path.rpartition("/")
    return UNIT_FILE if name in host.names(folder) else None


def _write_link(host: Host, path: str, value: str | None) -> None:
    if value is None:
        host.remove(path)
    else:
        host.link(path, value)


def _read_choice(host: Host, path: str) -> str | None:
    words = (host.read(path) or "").split()
    return next((word[1:-1] + "\n" for word in words if word.startswith("[")), None)


KINDS[CHOICE] = Kind(_read_choice, lambda host, path, value: host.write_live(path, value or ""))
KINDS[LINK_KIND] = Kind(_read_link, _write_link)
