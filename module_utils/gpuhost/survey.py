"""The survey: everything that plan and preflight need, read in one process, changing nothing.

``collect`` reads through a ``Host``; what the texts mean is decided by the pure parsers.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from . import (
    apt,
    apt_guard,
    baselines,
    boot,
    dkms,
    driver_facts,
    driver_source,
    kernel,
    loaders,
    majors_record,
    target_modules,
    workloads,
)
from .documents import as_dict, make_head
from .errors import Stop, stop
from .expectations import check_of
from .host_io import Host
from .rollfile import Roll, load

BOOT_ID = "/proc/sys/kernel/random/boot_id"
DPKG_FORMAT = "${Package}\t${Version}\t${db:Status-Abbrev}\n"
APT_LISTS = "/var/lib/apt/lists"
APT_WAIT_S = 120
"""How long the survey waits for another program's apt: states that dpkg is just changing say nothing."""


def collect(host: Host, name: str, run_id: str, apt_max_age_s: int | None) -> dict[str, Any]:
    """``facts.json`` as a dict. Raises Stop where the packages can't be read at all.

    apt's package lists are fetched first where they are older than ``apt_max_age_s``; never where it is None.
    """
    head = make_head("facts", name, run_id)
    notes: list[str] = []
    roll, roll_error = _read_roll(host)
    # On a trial boot the dead-man's clock runs, and an open roll has this proven by its preflight.
    locked_by = wait_for_apt(host, 0 if roll is not None and roll.is_open else APT_WAIT_S)
    age = lists_age_s(host)
    if apt_max_age_s is not None and (age is None or age > apt_max_age_s):
        result = host.run(["apt-get", "-q", "update"], timeout_s=600)
        if result.rc != 0:
            notes.append(f"apt-get update: {apt.parse_apt_error(result.stderr) or result.last_line}")
    running = host.read_line("/proc/sys/kernel/osrelease")
    packages = read_packages(host)
    candidates, companions = read_candidates(host, running, packages)
    return {
        **asdict(head),
        "notes": notes,
        "kernel": {
            "release": running,
            "flavour": flavour_of(running),
            "cmdline": host.read_line("/proc/cmdline"),
            "boot_id": host.read_line(BOOT_ID),
            "cpu_vendor": _cpu_vendor(host),
            "uptime_s": float((host.read_line("/proc/uptime") or "0").split()[0]),
            "kexec_armed": read_kexec(host),
        },
        "os": _os_release(host),
        "packages": {
            "half_configured": list(apt.half_configured(packages)),
            "lists_age_s": lists_age_s(host),
            "held": held_versions(packages),
            "locked_by": locked_by,
        },
        "candidates": [asdict(item) for item in candidates],
        "companions": companions,
        "boot": boot.survey(loaders.of(host).read(), host, running),
        "driver": driver_facts.read(host, running, installed_versions(packages)),
        # dkms status unpacks and compares every module: seconds on a host with several kernels. The preflight needs it.
        "dkms": [name for name in host.names("/var/lib/dkms") if dkms.is_nvidia_driver(name)],
        "majors": majors_record.running(host),
        "gpus": driver_facts.read_gpus(host),
        "containers": workloads.survey(host),
        "roll": None if roll is None else as_dict(roll),
        "roll_error": roll_error,
        "baselines": _read_baselines(host),
    }


def _read_baselines(host: Host) -> dict[str, Any]:
    """Which checks have baselines, by target; and why the file can't be read, where it can't."""
    try:
        raw = baselines.read(host)
    except Stop as error:
        return {"error": error.blocker.observed, "checks": {}}
    targets = raw["targets"] if raw else {}
    return {"error": None, "checks": {name: sorted(set(map(check_of, own))) for name, own in targets.items()}}


def flavour_of(release: str) -> str:
    """A release's flavour; empty for a self-built kernel whose name says none."""
    try:
        return kernel.parse_release(release).flavour
    except ValueError:
        return ""


def lists_age_s(host: Host) -> float | None:
    """Seconds since apt's package lists were last fetched. An update that finds everything unchanged leaves its mark
    only in ``partial``, or in the stamp of apt's own periodic job.
    """
    marks = (APT_LISTS, f"{APT_LISTS}/partial", "/var/lib/apt/periodic/update-success-stamp")
    ages = [age for age in map(host.age_s, marks) if age is not None]
    return min(ages) if ages else None


def read_packages(host: Host) -> dict[str, apt.PackageState]:
    """dpkg's view of every package."""
    result = host.run(["dpkg-query", "-W", "-f", DPKG_FORMAT])
    packages = apt.parse_dpkg_status(result.stdout)
    if result.rc != 0 or not packages:
        raise stop("apt.failed", "dpkg-query -W", result.last_line, "the list of packages")
    return packages


def installed_versions(packages: dict[str, apt.PackageState]) -> dict[str, str]:
    """Fully installed package -> its version."""
    return {name: state.version for name, state in packages.items() if state.installed}


def held_versions(packages: dict[str, apt.PackageState]) -> dict[str, str]:
    """Held package -> its installed version, empty where it is not installed."""
    return {name: state.version if state.installed else "" for name, state in packages.items() if state.held}


def wait_for_apt(host: Host, limit_s: float) -> str | None:
    """Wait until nobody holds apt's locks; who still does after that long, None where nobody."""
    end = host.clock() + limit_s
    while (holder := read_lock_holder(host)) is not None and host.clock() < end:
        host.sleep(2)
    return holder


def read_lock_holder(host: Host) -> str | None:
    """Who holds one of apt's locks now."""
    locks = host.read("/proc/locks") or ""
    inodes = {host.inode(path) or 0: path for path in apt_guard.LOCK_FILES if host.exists(path)}
    pids = {word for line in locks.splitlines() for word in line.split()[4:5] if word.isdigit()}
    return apt_guard.lock_holder(locks, inodes, {int(pid): host.read_line(f"/proc/{pid}/comm") for pid in pids})


def read_kexec(host: Host) -> str | None:
    """Why a reboot would not go through the boot loader; None where it would."""
    names = [f"{apt_guard.KEXEC_DEFAULTS}.d/{name}" for name in host.names(f"{apt_guard.KEXEC_DEFAULTS}.d")]
    defaults = "\n".join(host.read(path) or "" for path in (apt_guard.KEXEC_DEFAULTS, *names))
    loaded = host.read_line(apt_guard.KEXEC_LOADED)
    if apt_guard.kexec_armed(loaded, defaults, {}) is None:
        return None
    units = {name: host.run(["systemctl", "is-enabled", name]).stdout for name in apt_guard.KEXEC_UNITS}
    return apt_guard.kexec_armed(loaded, defaults, units)


def read_candidates(
    host: Host, running: str, packages: dict[str, apt.PackageState]
) -> tuple[tuple[kernel.Candidate, ...], dict[str, dict[str, str]]]:
    """Kernels of the running flavour that are installed or that apt could install, newest first.

    And release -> the packages that must come with it, because the running kernel has them beside its own, each with
    ``installed``, ``available`` or ``nowhere``.
    """
    names: set[str] = set()
    for pattern in kernel.image_name_patterns(running):
        names.update(host.run(["apt-cache", "pkgnames", pattern]).stdout.split())
    flavour = flavour_of(running)
    releases = {name: kernel.release_of_image_package(name) for name in sorted(names)}
    installed = installed_versions(packages)
    wanted: list[str] = []
    companions: dict[str, list[str]] = {}
    for name, release in releases.items():
        if release is not None and flavour_of(release) == flavour:
            companions[release] = companion_packages(installed, running, release)
            wanted += [name, *kernel.headers_package_names(release), *companions[release]]
    madison = host.run(["apt-cache", "madison", *sorted(set(wanted))], timeout_s=120) if wanted else None
    lines = apt.parse_madison(madison.stdout) if madison else []
    available = {line.package for line in lines}
    states = {
        release: {name: _availability(name, available, installed) for name in names}
        for release, names in companions.items()
        if names
    }
    return kernel.candidates(lines, installed, flavour), states


def _availability(name: str, available: set[str], installed: dict[str, str]) -> str:
    return "installed" if name in installed else "available" if name in available else "nowhere"


def companion_packages(installed: dict[str, str], running: str, release: str) -> list[str]:
    """Ubuntu's packages that a kernel needs beside its own: the precompiled driver, the less common drivers."""
    names = [
        driver_source.precompiled_package(installed, running, release),
        target_modules.extra_package(running, release, installed),
    ]
    return [name for name in names if name]


def _read_roll(host: Host) -> tuple[Roll | None, str | None]:
    try:
        return load(host), None
    except Stop as error:
        return None, error.blocker.observed


def _os_release(host: Host) -> dict[str, str]:
    pairs = dict(
        line.split("=", 1) for line in (host.read("/etc/os-release") or "").splitlines() if "=" in line
    )  # fmt: skip
    return {
        "id": pairs.get("ID", "").strip('"'),
        "version_id": pairs.get("VERSION_ID", "").strip('"'),
        "name": pairs.get("PRETTY_NAME", "").strip('"'),
    }


def _cpu_vendor(host: Host) -> str:
    """``AuthenticAMD``, ``GenuineIntel``; empty where /proc/cpuinfo says neither."""
    lines = (host.read("/proc/cpuinfo") or "").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
