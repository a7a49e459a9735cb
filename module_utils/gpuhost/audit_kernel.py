"""The domain *kernel_version*: which kernel runs, which is installed, which apt has.

Installed is what has both an image in /boot and modules. What apt has comes from its lists as they are: nothing is
fetched here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from . import debian_version, kernel, survey
from .documents import Finding, Severity
from .errors import Stop
from .host_io import Host

DOMAIN = "kernel_version"
RELEASE = "/proc/sys/kernel/osrelease"
_IMAGE = "vmlinuz-"
# "#1 SMP PREEMPT_DYNAMIC Debian 6.1.172-1 (2026-05-12)": the package's version is part of a Debian kernel's own text.
_BUILD = re.compile(r"\bDebian (\S+) \(")


@dataclass(frozen=True)
class Facts:
    """What was read."""

    running: str = ""
    flavour: str = ""
    build: str = ""
    """Version of the package that the running kernel was built as; only Debian's kernels say it."""
    build_installed: str = ""
    """Version of the package of the same name that is installed now."""
    installed: tuple[str, ...] = ()
    """Releases of the running flavour that could be booted, newest first."""
    candidate: str = ""
    """The newest release of the flavour that apt has or that is installed."""
    candidate_suite: str = ""
    lists_age_s: float | None = None
    unknown: str = ""
    """Why nothing is known of packages."""


def read(host: Host, candidates: Sequence[kernel.Candidate] | None = None) -> Facts:
    """``candidates``: where the caller has read them already (survey.read_candidates)."""
    running = host.read_line(RELEASE)
    flavour = survey.flavour_of(running)
    build = _BUILD.search(host.read_line("/proc/sys/kernel/version"))
    unknown, packages = "", {}
    try:
        packages = survey.read_packages(host)
        found = survey.read_candidates(host, running, packages)[0] if candidates is None else candidates
    except Stop as error:
        found, unknown = candidates or (), error.blocker.observed
    versions = survey.installed_versions(packages)
    own = [versions[name] for name in kernel.image_package_names(running) if name in versions] if flavour else []
    return Facts(
        running=running,
        flavour=flavour,
        build=build[1] if build else "",
        build_installed=own[0] if own else "",
        installed=_installed(host, flavour),
        candidate=found[0].release if found else "",
        candidate_suite=(found[0].image_suite or "") if found else "",
        lists_age_s=survey.lists_age_s(host),
        unknown=unknown,
    )


def _installed(host: Host, flavour: str) -> tuple[str, ...]:
    images = (name[len(_IMAGE) :] for name in host.names("/boot") if name.startswith(_IMAGE))
    modules = set(host.names("/lib/modules"))
    return newest_first(name for name in images if name in modules and survey.flavour_of(name) == flavour)


def newest_first(releases: Iterable[str]) -> tuple[str, ...]:
    """Releases by their versions; what is no release is left out."""
    known = []
    for release in releases:
        try:
            known.append((debian_version.part_sort_key(kernel.parse_release(release).version), release))
        except ValueError:
            continue
    return tuple(release for _, release in sorted(known, reverse=True))


def findings(facts: Facts) -> tuple[Finding, ...]:
    """All of them."""
    return (_running(facts), _candidate(facts))


def _finding(
    code: str, severity: Severity, observed: str, expected: str, why: str, source: str, fix: str = ""
) -> Finding:
    return Finding(code, DOMAIN, severity, observed, expected, why, fix, source)


def _running(facts: Facts) -> Finding:
    code, expected = "kernel.old", "the newest one that is installed"
    why = "What was mended in the newer kernel is not in force, and the next boot, planned or not, changes the kernel."
    newest = facts.installed[0] if facts.installed else ""
    if newest and newest != facts.running and newest_first((newest, facts.running))[0] == newest:
        observed = f"old kernel: {facts.running} runs, {newest} is installed"
        fix = f"gpuhost upgrade --target {newest}: it proves the driver for it, boots it once, and comes back by itself"
        return _finding(code, "p1_reboot", observed, expected, why, "/boot", fix)
    if facts.build and facts.build_installed and facts.build != facts.build_installed:
        observed = f"old kernel: {facts.running} runs as built in {facts.build}, {facts.build_installed} is installed"
        return _finding(code, "p1_reboot", observed, expected, why, "/proc/version", "Reboot, with: gpuhost upgrade")
    if not newest:
        observed = f"{facts.running}; unknown: /boot has no kernel of its kind"
        return _finding(code, "unknown", observed, expected, why, "/boot")
    return _finding(code, "good", f"{facts.running}, of {len(facts.installed)} installed", expected, why, "/boot")


def _candidate(facts: Facts) -> Finding:
    code, why = "kernel.update_available", "Only said: which kernel a host is to run is the operator's choice."
    # Not part of what is observed: two audits would differ every day.
    age = "" if facts.lists_age_s is None else f", {facts.lists_age_s / 86400:.0f} days old"
    source, expected = f"{survey.APT_LISTS}{age}", f"the newest {facts.flavour} kernel" if facts.flavour else ""
    if facts.unknown or not facts.candidate:
        reason = facts.unknown or "apt knows no kernel of this flavour"
        return _finding(code, "unknown", f"unknown: {reason}", expected, why, source)
    here = newest_first((facts.running, *facts.installed))[:1]
    if newest_first((facts.candidate, *here))[0] in here or not here:
        return _finding(code, "good", "apt has nothing newer", expected, why, source)
    suite = f" from {facts.candidate_suite}" if facts.candidate_suite else ""
    fix = f"gpuhost plan --target {facts.candidate}"
    return _finding(code, "info", f"apt has {facts.candidate}{suite}", expected, why, source, fix)
