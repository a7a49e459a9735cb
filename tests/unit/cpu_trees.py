"""Trees of /sys/devices/system/cpu, in the formats of the kernel (drivers/cpufreq, drivers/cpuidle/sysfs.c).

All are synthetic, but for ``captured_vm``: that one has what a real virtual machine with two H200 showed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

CPUS = "/sys/devices/system/cpu"
HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
CAPTURE = Path(__file__).resolve().parents[1] / "fixtures/h200-vm/knobs.txt"
EPPS = "default performance balance_performance balance_power power "


@dataclass(frozen=True)
class State:
    """An idle state as the kernel lists it."""

    name: str
    description: str
    latency_us: int
    residency_us: int


POLL = State("POLL", "CPUIDLE CORE POLL IDLE", 0, 0)
EPYC = (POLL, State("C1", "ACPI FFH MWAIT 0x0", 1, 2), State("C2", "ACPI IOPORT 0x814", 100, 200))
XEON = (
    POLL,
    State("C1", "MWAIT 0x00", 1, 1),
    State("C1E", "MWAIT 0x01", 2, 4),
    State("C6", "MWAIT 0x20", 290, 800),
)


def _policies(count: int, driver: str, governors: str, governor: str, epp: str = "") -> dict[str, str]:
    files: dict[str, str] = {}
    for number in range(count):
        place = f"{CPUS}/cpufreq/policy{number}"
        files |= {
            f"{place}/affected_cpus": f"{number}\n",
            f"{place}/related_cpus": f"{number}\n",
            f"{place}/scaling_driver": f"{driver}\n",
            f"{place}/scaling_governor": f"{governor}\n",
            f"{place}/scaling_available_governors": f"{governors}\n",
            f"{place}/scaling_max_freq": "3700000\n",
        }
        if epp:
            files[f"{place}/energy_performance_preference"] = f"{epp}\n"
            files[f"{place}/energy_performance_available_preferences"] = f"{EPPS}\n"
    return files


def _idle(count: int, states: tuple[State, ...], driver: str) -> dict[str, str]:
    files = {f"{CPUS}/cpuidle/current_driver": f"{driver}\n", f"{CPUS}/cpuidle/current_governor": "menu\n"}
    for cpu in range(count):
        for number, state in enumerate(states):
            place = f"{CPUS}/cpu{cpu}/cpuidle/state{number}"
            files |= {
                f"{place}/name": f"{state.name}\n",
                f"{place}/desc": f"{state.description}\n",
                f"{place}/latency": f"{state.latency_us}\n",
                f"{place}/residency": f"{state.residency_us}\n",
                f"{place}/disable": "0\n",
                f"{place}/default_status": "enabled\n",
                f"{place}/usage": "4711\n",
                f"{place}/time": "815\n",
            }
    return files


def _machine(count: int, vendor: str, flags: str, release: str, huge_pages: str) -> dict[str, str]:
    blocks = [f"processor\t: {number}\nvendor_id\t: {vendor}\nflags\t\t: fpu {flags}\n" for number in range(count)]
    return {
        "/proc/cpuinfo": "\n".join(blocks) + "\n",
        "/proc/sys/kernel/osrelease": f"{release}\n",
        HUGE_PAGES: f"{huge_pages}\n",
        f"{CPUS}/online": f"0-{count - 1}\n",
        f"{CPUS}/present": f"0-{count - 1}\n",
    }


def _cppc(count: int) -> dict[str, str]:
    return {f"{CPUS}/cpu{number}/acpi_cppc/highest_perf": "255\n" for number in range(count)}


def epyc_acpi(count: int = 4, *, governor: str = "performance", release: str = "6.8.12-4-pve") -> dict[str, str]:
    """The incident's host: two EPYC sockets with acpi-cpufreq although the firmware offers CPPC, C2 with 100 us."""
    governors = "conservative ondemand userspace powersave performance schedutil "
    return {
        **_machine(count, "AuthenticAMD", "cpb hw_pstate cppc", release, "always [madvise] never"),
        **_policies(count, "acpi-cpufreq", governors, governor),
        **_idle(count, EPYC, "acpi_idle"),
        **_cppc(count),
        f"{CPUS}/cpufreq/boost": "1\n",
    }


def epyc_pstate(count: int = 4, *, governor: str = "powersave", epp: str = "balance_performance") -> dict[str, str]:
    """An EPYC with amd_pstate=active."""
    return {
        **_machine(count, "AuthenticAMD", "cpb hw_pstate cppc", "6.14.0-1-generic", "[always] madvise never"),
        **_policies(count, "amd-pstate-epp", "performance powersave", governor, epp),
        **_idle(count, EPYC, "acpi_idle"),
        **_cppc(count),
        f"{CPUS}/amd_pstate/status": "active\n",
        f"{CPUS}/cpufreq/boost": "0\n",
    }


def xeon(count: int = 4) -> dict[str, str]:
    """A Xeon with intel_pstate and HWP."""
    return {
        **_machine(count, "GenuineIntel", "hwp hwp_epp", "6.12.9", "[always] madvise never"),
        **_policies(count, "intel_pstate", "performance powersave", "powersave", "balance_performance"),
        **_idle(count, XEON, "intel_idle"),
        f"{CPUS}/intel_pstate/status": "active\n",
        f"{CPUS}/intel_pstate/no_turbo": "1\n",
    }


def vm(count: int = 2) -> dict[str, str]:
    """A virtual machine: no cpufreq, no cpuidle."""
    return {
        **_machine(count, "GenuineIntel", "hypervisor", "6.1.0-1-amd64", "[always] madvise never"),
        f"{CPUS}/cpuidle/current_driver": "none\n",
        f"{CPUS}/cpuidle/current_governor": "menu\n",
    }


def captured_vm() -> dict[str, str]:
    """The captured virtual machine: each line ``/path: what it reads``; a line with an error is a file that is not."""
    text = CAPTURE.read_text()
    seen = re.findall(r"^(/(?:proc|sys)/\S+): (?!cat: )(.*)$", text, re.MULTILINE)
    found = {path: f"{value}\n" for path, value in seen}
    flags = "hypervisor" if "Hypervisor vendor:" in text else ""
    vendor = re.search(r"Vendor ID:\s+(\S+)", text)
    assert vendor is not None
    return {**_machine(32, vendor[1], flags, "6.8.0-1-generic", ""), **found}


TREES = {
    "EPYC, acpi-cpufreq": epyc_acpi,
    "EPYC, amd_pstate": epyc_pstate,
    "Xeon, intel_pstate": xeon,
    "VM": vm,
    "captured VM": captured_vm,
}
