"""Kernel releases, the packages that carry them, and which of them a wish means.

A *release* is what ``uname -r`` prints: ``6.12.117+deb12-cloud-amd64`` is version ``6.12.117+deb12`` of flavour
``cloud-amd64``. Names of packages: case dkms-03 (Proxmox renamed ``pve-*`` to ``proxmox-*`` during the 6.2 series; on
Debian and Ubuntu the headers are ``linux-headers-<release>``). Everything derives from the *target* release, never
from the running one.

Pure: names, versions and apt's lines in, frozen dataclasses out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from . import debian_version
from .apt import MadisonLine

#: Version: at least two numbers, an optional pre-release, then dash-separated parts that start with a digit (the ABI
#: number), ``bpo``/``deb`` (a backport), or local parts after ``+`` or ``~``. What follows is the flavour.
_RELEASE = re.compile(
    r"(?P<version>\d+\.\d+(?:\.\d+)*"
    r"(?:[-~]rc\d+)?"
    r"(?:[+~][0-9A-Za-z.+~]+)?"
    r"(?:-(?:\d[0-9A-Za-z.+~]*|bpo\d+|deb\d+))*)"
    r"(?:-(?P<flavour>[A-Za-z][0-9A-Za-z._+-]*))?"
)
#: A versioned image has a patch level or is a release candidate; ``6.12`` alone is a meta package's series.
_VERSIONED = re.compile(r"\d+\.\d+(?:\.\d+|[-~]rc\d+)")
_IMAGE_NAME = re.compile(
    r"(?:linux-image-(?:unsigned-)?(?P<linux>\d\S*?)(?:-unsigned)?"
    r"|(?:proxmox-kernel-|pve-kernel-)(?P<pve>\d\S*?-pve)(?:-signed)?)"
)
_NO_IMAGE = re.compile(r"-(?:dbg|dbgsym|signed-template)$")
#: Debian's flavours end in the architecture; Ubuntu's (generic, lowlatency, nvidia) do not.
_DEBIAN_FLAVOUR = re.compile(r"(?:^|-)(?:amd64|arm64|arm64-16k|ppc64el|riscv64)$")


@dataclass(frozen=True)
class Release:
    """``text`` = ``version`` + "-" + ``flavour``; ``flavour`` is empty for a self-built kernel without one."""

    text: str
    version: str
    flavour: str


@dataclass(frozen=True)
class Candidate:
    """One kernel that could be booted.

    ``image_suite`` and ``headers_suite`` are apt's suite (``bookworm-security``), None where only the installed package
    is known. ``installed``: exactly ``image_version`` of ``image_package`` is fully installed. ``image_here`` and
    ``headers_here`` are the installed versions, whatever the archives have; None where the package is not installed.
    """

    release: str
    image_package: str
    image_version: str
    image_suite: str | None
    headers_package: str | None
    headers_version: str | None
    headers_suite: str | None
    installed: bool
    image_here: str | None = None
    headers_here: str | None = None


@dataclass(frozen=True)
class Choice:
    """The answer to a wish.

    ``candidate`` is what to boot, None where nothing fits. ``newest_without_headers`` is a newer match that was skipped
    (or, with ``candidate`` None, the newest match at all) because no headers package exists for it. ``known`` lists the
    series that there are (``6.12``, ``6.1``), newest first, for the error message.
    """

    candidate: Candidate | None
    reason: str
    newest_without_headers: Candidate | None = None
    known: tuple[str, ...] = ()


def parse_release(text: str) -> Release:
    """Take a release apart; ValueError where it is none."""
    found = _RELEASE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a kernel release such as 6.12.117+deb12-amd64")
    return Release(text, found["version"], found["flavour"] or "")


def _is_proxmox(release: str) -> bool:
    return parse_release(release).flavour == "pve"


def headers_package_names(release: str) -> tuple[str, ...]:
    """Names of the headers package for exactly this release, the one to prefer first (case dkms-03).

    No meta package: ``proxmox-default-headers`` and ``linux-headers-amd64`` do not follow an opt-in kernel's series.
    """
    if _is_proxmox(release):
        return (f"proxmox-headers-{release}", f"pve-headers-{release}")
    return (f"linux-headers-{release}",)


def image_package_names(release: str) -> tuple[str, ...]:
    """Names of the image package for exactly this release: signed before unsigned, new name before old."""
    if _is_proxmox(release):
        return (f"proxmox-kernel-{release}-signed", f"proxmox-kernel-{release}", f"pve-kernel-{release}")
    if _DEBIAN_FLAVOUR.search(parse_release(release).flavour):
        return (f"linux-image-{release}", f"linux-image-{release}-unsigned")
    return (f"linux-image-{release}", f"linux-image-unsigned-{release}")


def release_of_image_package(name: str) -> str | None:
    """The release that an image package carries; None for meta, debug, template and other packages."""
    if _NO_IMAGE.search(name):
        return None
    found = _IMAGE_NAME.fullmatch(name)
    if found is None:
        return None
    text = found["linux"] or found["pve"]
    parsed = _RELEASE.fullmatch(text)
    if parsed is None or not parsed["flavour"] or not _VERSIONED.match(parsed["version"]):
        return None
    if (found["pve"] is not None) != (parsed["flavour"] == "pve"):
        return None
    return text


def image_name_patterns(running_release: str) -> tuple[str, ...]:
    """Prefixes for ``apt-cache pkgnames PREFIX`` that find every image package of this kind of host."""
    if _is_proxmox(running_release):
        return ("proxmox-kernel-", "pve-kernel-")
    return ("linux-image-",)


#: package name -> its versions, each with its suite, or None where only the installed package is known
_Known = Mapping[str, Sequence[tuple[str, str | None]]]


def _versions(madison: Iterable[MadisonLine], installed: Mapping[str, str]) -> dict[str, list[tuple[str, str | None]]]:
    """Every version of every package, archives first, so that a suite is known where there is one."""
    known: dict[str, list[tuple[str, str | None]]] = {}
    for line in madison:
        known.setdefault(line.package, []).append((line.version, line.suite))
    for name, version in installed.items():
        entries = known.setdefault(name, [])
        if all(version != other for other, _ in entries):
            entries.append((version, None))
    return known


def _highest(entries: Iterable[tuple[str, str | None]]) -> tuple[str, str | None]:
    """The highest version; of equal ones the first, which is the archive that apt prefers."""
    return max(entries, key=lambda entry: debian_version.sort_key(entry[0]))


def _image(release: str, known: _Known, installed: Mapping[str, str]) -> tuple[str, str, str | None]:
    """Name, version and suite of the image package to use.

    An installed package wins over the order of names: signed and unsigned images of one release conflict, so that
    apt would have to remove what is there.
    """
    names = image_package_names(release)
    name = next((name for name in names if name in installed), None) or next(name for name in names if name in known)
    return (name, *_highest(known[name]))


def _headers(release: str, version: str, known: _Known) -> tuple[str | None, str | None, str | None]:
    """Name, version and suite of the headers package: the image's own version where it exists, else the highest."""
    for name in headers_package_names(release):
        entries = known.get(name)
        if entries:
            same = [entry for entry in entries if entry[0] == version]
            return (name, *_highest(same or entries))
    return (None, None, None)


def _release_key(candidate: Candidate) -> tuple[object, object]:
    version = parse_release(candidate.release).version
    return (debian_version.part_sort_key(version), debian_version.sort_key(candidate.image_version))


def candidates(madison: Iterable[MadisonLine], installed: Mapping[str, str], flavour: str) -> tuple[Candidate, ...]:
    """The kernels of one flavour that apt can install or that are installed, newest first.

    madison    lines of image and headers packages (others do no harm)
    installed  name -> version of the fully installed packages, so that a kernel counts that no archive carries any more
    """
    known = _versions(madison, installed)
    releases = {release for release in map(release_of_image_package, known) if release is not None}
    found = []
    for release in releases:
        if parse_release(release).flavour != flavour or not any(name in known for name in image_package_names(release)):
            continue
        image, version, suite = _image(release, known, installed)
        headers, headers_version, headers_suite = _headers(release, version, known)
        found.append(
            Candidate(
                release=release,
                image_package=image,
                image_version=version,
                image_suite=suite,
                headers_package=headers,
                headers_version=headers_version,
                headers_suite=headers_suite,
                installed=installed.get(image) == version,
                image_here=installed.get(image),
                headers_here=installed.get(headers or ""),
            )
        )
    return tuple(sorted(found, key=_release_key, reverse=True))


def matches(release: str, target: str) -> bool:
    """Whether a wish means this release: exact release, exact version, or a prefix that ends at a boundary.

    ``6.1`` means 6.1.0-57 and not 6.12; ``6.12.11`` does not mean 6.12.117; ``6.14.11`` means 6.14.11-5-bpo12.
    """
    version = parse_release(release).version
    if target in (release, version):
        return True
    return bool(target) and version.startswith(target) and version[len(target)] in ".-+~"


def is_older(release: str, other: str) -> bool:
    """Whether a release is older than another; a self-built kernel's name may not say."""
    try:
        return debian_version.compare_part(parse_release(release).version, parse_release(other).version) < 0
    except ValueError:
        return False


def ways_back(candidates: Iterable[Candidate], target: str, running: str) -> tuple[Candidate, ...]:
    """The kernels that a way back by this name may choose from; empty where none of those it means is older.

    The running kernel alone where the name means it, too: the same command again must not go back a second step. Then
    the older ones that are installed, as they are installed; only where there is none, those of the archives.
    """
    fitting = [candidate for candidate in candidates if matches(candidate.release, target)]
    runs = [_as_installed(candidate) for candidate in fitting if candidate.release == running]
    older = [candidate for candidate in fitting if is_older(candidate.release, running)]
    here = [_as_installed(candidate) for candidate in older if candidate.image_here]
    return tuple(runs or here or older)


def _as_installed(candidate: Candidate) -> Candidate:
    """With the installed versions: a kernel that has run here is not exchanged for a later build of its package."""
    if candidate.image_here is not None:
        candidate = replace(candidate, image_version=candidate.image_here, image_suite=None, installed=True)
    if candidate.headers_here is not None:
        candidate = replace(candidate, headers_version=candidate.headers_here, headers_suite=None)
    return candidate


def _series(ordered: Sequence[Candidate]) -> dict[str, str]:
    """``6.12`` -> ``6.12.117+deb12``, its newest version; newest series first."""
    series: dict[str, str] = {}
    for candidate in ordered:
        version = parse_release(candidate.release).version
        series.setdefault(".".join(re.findall(r"\d+", version)[:2]), version)
    return series


def choose(candidates: Sequence[Candidate], target: str) -> Choice:
    """The newest candidate that ``target`` means and whose headers exist; ``candidates`` in any order."""
    ordered = sorted(candidates, key=_release_key, reverse=True)
    series = _series(ordered)
    known = tuple(series)
    fitting = [candidate for candidate in ordered if matches(candidate.release, target)]
    if not fitting:
        there = ", ".join(f"{name} (newest {version})" for name, version in series.items()) or "none"
        return Choice(None, f"no kernel fits {target!r}; there are: {there}", None, known)
    complete = next((candidate for candidate in fitting if candidate.headers_package), None)
    newest = fitting[0]
    if complete is None:
        wanted = " or ".join(headers_package_names(newest.release))
        return Choice(None, f"{newest.release} fits {target!r}, but no archive has {wanted}", newest, known)
    if complete is newest:
        return Choice(complete, f"{complete.release} is the newest that fits {target!r}", None, known)
    reason = f"{complete.release} is the newest with headers that fits {target!r}; {newest.release} has none"
    return Choice(complete, reason, newest, known)
