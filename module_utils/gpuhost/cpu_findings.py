"""What is to be said about the CPUs: scaling driver, frequencies, idle states, huge pages, and who else sets them.

Sources for the drivers: Documentation/admin-guide/pm/{amd-pstate,intel_pstate}.rst; drivers/cpufreq/amd-pstate.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from . import cpu_boot, other_tuners
from .cpu_boot import KEEP, Wishes
from .documents import Finding, Severity

DOMAIN = "kernel_runtime"
TUNE = "gpuhost tune"
MODES = ("active", "passive", "guided")
PSTATE = {"AuthenticAMD": "amd_pstate", "GenuineIntel": "intel_pstate"}
DRIVERS = {
    ("amd_pstate", "active"): "amd-pstate-epp",
    ("amd_pstate", "passive"): "amd-pstate",
    ("amd_pstate", "guided"): "amd-pstate",
    ("intel_pstate", "active"): "intel_pstate",
    ("intel_pstate", "passive"): "intel_cpufreq",
}
"""What scaling_driver reads, by driver and mode."""

SINCE = {"active": (6, 3), "passive": (6, 1), "guided": (6, 4)}
"""The kernel from which on ``amd_pstate=MODE`` is understood."""


@dataclass(frozen=True)
class Facts:
    """What a host shows. ``installed``: the files of ours that are there; ``enabled``: our unit starts at boot."""

    cpus: cpu_boot.Facts = field(default_factory=cpu_boot.Facts)
    vendor: str = ""
    flags: frozenset[str] = frozenset()
    release: str = ""
    has_cppc: bool = False
    idle_driver: str = ""
    installed: Mapping[str, str] = field(default_factory=dict)
    enabled: bool = False
    tuners: other_tuners.Tuners = field(default_factory=other_tuners.Tuners)

    @property
    def is_guest(self) -> bool:
        """Whether a hypervisor says that it is there."""
        return "hypervisor" in self.flags


def findings(facts: Facts, wish: Wishes, mode: str, kept: bool) -> tuple[Finding, ...]:
    """All of them. ``kept``: what makes the settings hold after a boot is in place."""
    found = [
        *_driver(facts, mode),
        *_governor(facts, wish),
        *_epp(facts, wish),
        *_boost(facts, wish),
        *_idle_states(facts, wish),
        *_huge_pages(facts, wish),
    ]
    right = not any(item.severity == "p0_runtime" for item in found)
    if cpu_boot.settings(facts.cpus, wish) and not kept and right:
        # Where something is wrong, the tuning that ends it also keeps it.
        found.append(_finding(
            "cpu.after_boot", "info", "right now, and nothing of gpuhost's keeps it over a boot", "gpuhost-cpu.service",
            "Governor, energy preference and idle states are the kernel's own again after every boot.",
            "/etc/systemd/system/gpuhost-cpu.service", TUNE,
        ))  # fmt: skip
    return (*found, *_others(facts.tuners))


def _finding(
    code: str, severity: Severity, observed: str, expected: str, why: str, source: str, fix: str = ""
) -> Finding:
    return Finding(code, DOMAIN, severity, observed, expected, why, fix, source)


def _counted(values: Iterable[str]) -> str:
    """``schedutil`` or ``performance on 3, schedutil on 1``."""
    words = list(values)
    kinds = sorted(set(words))
    return kinds[0] if len(kinds) == 1 else ", ".join(f"{kind} on {words.count(kind)}" for kind in kinds)


# --- the scaling driver


def _driver(facts: Facts, mode: str) -> Iterator[Finding]:
    source = f"{cpu_boot.CPUS}/cpufreq/policy*/scaling_driver"
    if not facts.cpus.policies:
        observed = "not applicable: no frequency scaling here"
        why, fix = "In a virtual machine its host sets the frequency.", ""
        if not facts.is_guest:
            why = "The firmware keeps the frequencies to itself, or the driver's module is not loaded."
            fix = "Look for CPPC, P-states or a power profile by the OS in the firmware's setup"
        yield _finding("cpu.scaling_driver", "info", observed, "", why, source, fix)
        return
    driver = _counted(item.driver for item in facts.cpus.policies)
    family = PSTATE.get(facts.vendor, "")
    offers, possible = ("CPPC", facts.has_cppc) if family == "amd_pstate" else ("HWP", "hwp" in facts.flags)
    expected = DRIVERS.get((family, mode))
    if mode == KEEP or expected is None or driver == expected:
        yield _finding("cpu.scaling_driver", "good", driver, expected or driver, _WHY_DRIVER, source)
    elif not possible:
        observed = f"{driver}; the firmware does not offer {offers}"
        fix = f"Look for {offers} in the firmware's setup"
        yield _finding("cpu.scaling_driver", "info", observed, expected, _WHY_DRIVER, source, fix)
    else:
        other_mode = driver in {name for (item, _), name in DRIVERS.items() if item == family}
        observed = f"{driver} instead of {expected if other_mode else family}"
        fix = _driver_fix(facts, family, mode)
        yield _finding("cpu.scaling_driver", "p1_reboot", observed, expected, _WHY_DRIVER, source, fix)


_WHY_DRIVER = (
    "The pstate drivers let the CPU choose among all its frequencies within microseconds; acpi-cpufreq knows the few "
    "that the firmware's table lists. No measured effect on decoding known."
)


def _driver_fix(facts: Facts, family: str, mode: str) -> str:
    """The exact variable of the role boot_config."""
    text = f"boot_config_cmdline: {{{family}: {mode}}}, then boot"
    since = SINCE[mode]
    if family == "amd_pstate" and _version(facts.release) < since:
        text += f"; it needs Linux {since[0]}.{since[1]} or later, this is {facts.release}"
    return text


def _version(release: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


# --- frequencies


def _governor(facts: Facts, wish: Wishes) -> Iterator[Finding]:
    policies = facts.cpus.policies
    if not policies or wish.governor == KEEP:
        return
    source = f"{cpu_boot.CPUS}/cpufreq/policy*/scaling_governor"
    why = "A CPU that has to speed up first launches kernels late. No measured effect on decoding known."
    observed = _counted(item.governor for item in policies)
    if observed == wish.governor:
        yield _finding("cpu.governor", "good", observed, wish.governor, why, source)
    elif any(cpu_boot.governor_of(item, wish) and item.governor != wish.governor for item in policies):
        yield _finding("cpu.governor", "p0_runtime", observed, wish.governor, why, source, TUNE)
    else:
        offered = " ".join(policies[0].governors)
        yield _finding(
            "cpu.governor", "info", f"{observed}; the driver has only: {offered}", wish.governor, why, source
        )


def _epp(facts: Facts, wish: Wishes) -> Iterator[Finding]:
    policies = [item for item in facts.cpus.policies if item.epp]
    if not policies or wish.epp == KEEP:
        return
    source = f"{cpu_boot.CPUS}/cpufreq/policy*/energy_performance_preference"
    why = "It tells the CPU how much speed it may give up for power. No measured effect on decoding known."
    observed = _counted(item.epp for item in policies)
    if observed == wish.epp:
        yield _finding("cpu.epp", "good", observed, wish.epp, why, source)
    elif any(cpu_boot.epp_of(item, wish) and item.epp != wish.epp for item in policies):
        yield _finding("cpu.epp", "p0_runtime", observed, wish.epp, why, source, TUNE)
    else:
        reason = "The governor performance knows no other preference; the list in force has no such word otherwise."
        yield _finding("cpu.epp", "info", f"{observed}; {wish.epp} is not offered", wish.epp, reason, source)


def _boost(facts: Facts, wish: Wishes) -> Iterator[Finding]:
    if facts.cpus.boost is None or wish.boost == KEEP:
        return
    path, is_on = facts.cpus.boost
    observed = "on" if is_on else "off"
    why = "Few threads launch all kernels, and their speed is that of one core. No measured effect on decoding known."
    if observed == wish.boost:
        yield _finding("cpu.boost", "good", observed, wish.boost, why, path)
    else:
        yield _finding("cpu.boost", "p0_runtime", observed, wish.boost, why, path, TUNE)


# --- idle states


def _idle_states(facts: Facts, wish: Wishes) -> Iterator[Finding]:
    if wish.max_idle_latency_us is None:
        return
    source = f"{cpu_boot.CPUS}/cpu*/cpuidle/state*"
    why = "A thread that waits for a GPU sleeps between steps, and each wake-up may take this long."
    states = facts.cpus.idle_states
    if not states:
        reason = "its host decides" if facts.is_guest else "the kernel has no idle driver"
        observed = f"not applicable: no idle states here ({facts.idle_driver or 'none'})"
        yield _finding("cpu.idle_states", "info", observed, "", f"There is nothing to set: {reason}.", source)
        return
    slow = cpu_boot.too_slow(facts.cpus, wish)
    expected = f"none above {wish.max_idle_latency_us} us"
    open_states = [item for item in slow if not item.disabled]
    unknown = sorted({item.name for item in states if item.latency_us is None})
    if open_states:
        yield _finding("cpu.idle_states", "p0_runtime", _shown(open_states), expected, why, source, TUNE)
    else:
        observed = f"{_shown(slow)}, off" if slow else f"the slowest is {_shown(_slowest(states))}"
        yield _finding("cpu.idle_states", "good", observed, expected, why, source)
    if unknown:
        observed = f"unknown: the latency of {', '.join(unknown)} can't be read"
        yield _finding("cpu.idle_states", "unknown", observed, expected, why, source)


def _slowest(states: Iterable[cpu_boot.IdleState]) -> list[cpu_boot.IdleState]:
    return sorted((item for item in states if not item.disabled), key=lambda item: item.latency_us or 0)[-1:]


def _shown(states: Iterable[cpu_boot.IdleState]) -> str:
    """``C2 with 100 us latency on 4 CPUs``, a state each."""
    keys = [(item.latency_us or 0, item.name) for item in states]
    return ", ".join(
        f"{name} with {latency} us latency" + (f" on {keys.count((latency, name))} CPUs" if len(keys) > 1 else "")
        for latency, name in sorted(set(keys))
    )


# --- huge pages, others


def _huge_pages(facts: Facts, wish: Wishes) -> Iterator[Finding]:
    observed = facts.cpus.huge_pages
    if not observed or wish.huge_pages == KEEP:
        return
    why = (
        "Programs that ask for huge pages get them, and no others wait for them. No measured effect on decoding known."
    )
    if observed == wish.huge_pages:
        yield _finding("cpu.huge_pages", "good", observed, wish.huge_pages, why, cpu_boot.HUGE_PAGES)
    elif wish.huge_pages in facts.cpus.huge_page_choices:
        yield _finding("cpu.huge_pages", "p0_runtime", observed, wish.huge_pages, why, cpu_boot.HUGE_PAGES, TUNE)


_TUNED_SECTIONS = {
    "cpu": ("governor", "energy_perf_bias", "energy_performance_preference", "force_latency", "no_turbo", "boost"),
    "vm": ("transparent_hugepages", "transparent_hugepage"),
}


def _others(tuners: other_tuners.Tuners) -> Iterator[Finding]:
    seen = [(f"{unit}.service is in use", unit) for unit in tuners.units if unit in other_tuners.CPU_TOOLS]
    if tuners.tuned is not None:
        for section, keys in _TUNED_SECTIONS.items():
            given = tuners.tuned.settings.get(section, {})
            words = ", ".join(f"{key} = {given[key]}" for key in keys if key in given)
            if words:
                seen.append((f"TuneD's profile {tuners.tuned.profile} sets {words}", other_tuners.ACTIVE_PROFILE))
    words_of_ours = ("scaling_governor", "cpupower ", "cpufreq-set", "transparent_hugepage")
    for path, lines in tuners.scripts.items():
        seen += [(f"{path}: {line}", path) for line in lines if any(word in line for word in words_of_ours)]
    for observed, source in seen:
        yield _finding(
            "cpu.other_tool", "info", observed, "no second tool for the same settings",
            "Whoever sets a value last wins: ours runs after it at boot, and not again when the other one does.",
            source, "Let one of the two do it; this one is not ours to change",
        )  # fmt: skip
