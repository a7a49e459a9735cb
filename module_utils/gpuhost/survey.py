"""The survey: everything that plan and preflight need, read in one process, changing nothing.

``collect`` reads through a ``Host``; what the texts mean is decided by the pure parsers.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from . import apt, boot, dkms, kernel, loaders, workloads
from .documents import as_dict, make_head
from .errors import Stop, stop
from .host_io import Host
from .proc_devices import nvidia_majors, parse_character_majors
from .rollfile import Roll, load

BOOT_ID = "/proc/sys/kernel/random/boot_id"
DPKG_FORMAT = "${Package}\t${Version}\t${db:Status-Abbrev}\n"
APT_LISTS = "/var/lib/apt/lists"


def collect(host: Host, name: str, run_id: str, apt_max_age_s: int | None) -> dict[str, Any]:
    """``facts.json`` as a dict. Raises Stop where the packages can't be read at all.

    apt's package lists are fetched first where they are older than ``apt_max_age_s``; never where it is None.
    """
    head = make_head("facts", name, run_id)
    notes: list[str] = []
    age = lists_age_s(host)
    if apt_max_age_s is not None and (age is None or age > apt_max_age_s):
        result = host.run(["apt-get", "-q", "update"], timeout_s=600)
        if result.rc != 0:
            notes.append(f"apt-get update: {apt.parse_apt_error(result.stderr) or result.last_line}")
    running = host.read_line("/proc/sys/kernel/osrelease")
    packages = read_packages(host)
    roll, roll_error = _read_roll(host)
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
        },
        "os": _os_release(host),
        "packages": {
            "half_configured": list(apt.half_configured(packages)),
            "lists_age_s": lists_age_s(host),
        },
        "candidates": [asdict(item) for item in read_candidates(host, running, packages)],
        "boot": boot.survey(loaders.of(host).read(), host, running),
        "driver": _driver(host),
        # dkms status unpacks and compares every module: seconds on a host with several kernels. The preflight needs it.
        "dkms": [name for name in host.names("/var/lib/dkms") if dkms.is_nvidia_driver(name)],
        "majors": read_majors(host),
        "gpus": _gpus(host),
        "containers": workloads.survey(host),
        "roll": None if roll is None else as_dict(roll),
        "roll_error": roll_error,
    }


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


def read_candidates(host: Host, running: str, packages: dict[str, apt.PackageState]) -> tuple[kernel.Candidate, ...]:
    """Kernels of the running flavour that are installed or that apt could install, newest first."""
    names: set[str] = set()
    for pattern in kernel.image_name_patterns(running):
        names.update(host.run(["apt-cache", "pkgnames", pattern]).stdout.split())
    flavour = flavour_of(running)
    releases = {name: kernel.release_of_image_package(name) for name in sorted(names)}
    wanted: list[str] = []
    for name, release in releases.items():
        if release is not None and flavour_of(release) == flavour:
            wanted += [name, *kernel.headers_package_names(release)]
    madison = host.run(["apt-cache", "madison", *sorted(set(wanted))], timeout_s=120) if wanted else None
    lines = apt.parse_madison(madison.stdout) if madison else []
    installed = {name: state.version for name, state in packages.items() if state.installed}
    return kernel.candidates(lines, installed, flavour)


def read_majors(host: Host) -> dict[str, int]:
    """NVIDIA's character majors as they are now, by driver name."""
    return dict(nvidia_majors(parse_character_majors(host.read("/proc/devices") or "")))


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


def _driver(host: Host) -> dict[str, Any]:
    version = host.read_line("/sys/module/nvidia/version")
    return {
        "loaded": host.exists("/sys/module/nvidia"),
        "version": version or None,
        "uvm_disable_hmm": host.read_line("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm") or None,
    }


def _gpus(host: Host) -> list[dict[str, str]]:
    """NVIDIA's display and 3D controllers (PCI class 03xx) by PCI address."""
    found = []
    for address in host.names("/sys/bus/pci/devices"):
        base = f"/sys/bus/pci/devices/{address}"
        if host.read_line(f"{base}/vendor") == "0x10de" and host.read_line(f"{base}/class").startswith("0x03"):
            found.append({"address": address, "device": host.read_line(f"{base}/device")})
    return found
