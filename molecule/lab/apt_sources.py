"""Which Debian archive the guest uses, and which apt settings it needs to reach it.

A building machine that reaches only a mirror, or only through a proxy, says so in its
own apt configuration; the guest gets the same. Third-party archives are left out.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from .command import run

SUITE = "bookworm"
SUITES = (SUITE, f"{SUITE}-updates", f"{SUITE}-security")
DEBIAN_SUITE = re.compile(
    r"(bullseye|bookworm|trixie|forky|sid|oldstable|stable|testing|unstable)(-updates|-security|-backports)?"
)
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DEFAULT_MIRROR = "http://deb.debian.org/debian"
# The settings that decide whether an archive can be reached and is accepted; no others
# are carried over (compressed lists, for one, cost much time under emulation).
CARRIED = re.compile(r'Acquire::(https?::\S+|Check-Valid-Until|Check-Date|ForceIPv[46]|Retries) "(.*)";')
# How QEMU's user network calls the machine it runs on.
BUILDING_MACHINE = "10.0.2.2"


@dataclass(frozen=True)
class Archive:
    """One archive and the suites of it that are used."""

    uri: str
    suites: tuple[str, ...]


def _is_debians_own(uri: str, suites: Iterable[str], components: Iterable[str], signed_by: str) -> bool:
    """Tell Debian's archive and its mirrors from what others offer."""
    path = urlsplit(uri).path.rstrip("/")
    ours = all(DEBIAN_SUITE.fullmatch(suite) for suite in suites) and "main" in components
    signed = not signed_by or "debian-archive" in signed_by
    return ours and signed and path.rpartition("/")[2] in ("debian", "debian-security")


def parse_deb822(text: str) -> list[Archive]:
    """Debian's archives in a .sources file, whatever suite the machine runs."""
    found = []
    for stanza in re.split(r"\n\s*\n", text):
        lines = (line for line in stanza.splitlines() if not line.startswith("#"))
        fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if fields.get("Enabled", "yes") == "no" or "deb" not in fields.get("Types", "").split():
            continue
        suites, components = tuple(fields.get("Suites", "").split()), fields.get("Components", "").split()
        for uri in fields.get("URIs", "").split():
            if suites and _is_debians_own(uri, suites, components, fields.get("Signed-By", "")):
                found.append(Archive(uri.rstrip("/"), suites))
    return found


def parse_list(text: str) -> list[Archive]:
    """Debian's archives in a one-line-style file, whatever suite the machine runs."""
    found = []
    for line in text.splitlines():
        match = re.match(r"deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s+(.+)", line.strip())
        if match is None:
            continue
        options, uri, suite, components = match.groups()
        signed_by = next((o.partition("=")[2] for o in (options or "").split() if o.startswith("signed-by=")), "")
        if _is_debians_own(uri, [suite], components.split(), signed_by):
            found.append(Archive(uri.rstrip("/"), (suite,)))
    return found


def _machine_archives(apt_dir: Path) -> list[Archive]:
    """The Debian archives that the building machine's own apt uses."""
    found = []
    for path in [apt_dir / "sources.list", *sorted((apt_dir / "sources.list.d").glob("*"))]:
        if path.is_file() and path.suffix == ".sources":
            found += parse_deb822(path.read_text())
        elif path.is_file() and path.suffix == ".list":
            found += parse_list(path.read_text())
    return found


def _for_suite(own: Iterable[Archive]) -> list[Archive]:
    """The machine's archives for the lab's suite; where it runs another one, its mirror with the lab's suite."""
    own = list(own)
    found = [Archive(each.uri, tuple(suite for suite in each.suites if suite in SUITES)) for each in own]
    found = [each for each in found if each.suites]
    mirror = next((each.uri for each in own if each.uri.endswith("/debian")), "")
    if mirror and not any(SUITE in each.suites for each in found):
        security = next((each.uri for each in own if each.uri.endswith("/debian-security")), f"{mirror}-security")
        found = [Archive(mirror, SUITES[:2]), Archive(security, SUITES[2:])]
    return found


def archives(env: Mapping[str, str] = os.environ, apt_dir: Path = Path("/etc/apt")) -> list[Archive]:
    """LAB_MIRROR, else the machine's own archives, else Debian's; always with backports."""
    mirror = env.get("LAB_MIRROR", "").rstrip("/")
    found = [] if mirror else _for_suite(_machine_archives(apt_dir))
    if not any(SUITE in archive.suites for archive in found):
        mirror = mirror or DEFAULT_MIRROR
        security = env.get("LAB_MIRROR_SECURITY") or f"{mirror}-security"
        found = [Archive(mirror, SUITES[:2]), Archive(security, SUITES[2:])]
    main = next(archive.uri for archive in found if SUITE in archive.suites)
    return [*found, Archive(main, (f"{SUITE}-backports",))]


def render_deb822(found: Iterable[Archive]) -> str:
    """The guest's /etc/apt/sources.list.d/debian.sources."""
    return "\n".join(
        f"Types: deb\nURIs: {archive.uri}\nSuites: {' '.join(archive.suites)}\nComponents: main\nSigned-By: {KEYRING}\n"
        for archive in found
    )


def apt_settings(dump: str | None = None, env: Mapping[str, str] = os.environ) -> str:
    """The guest's apt.conf: the machine's proxy and acceptance settings, nothing else."""
    text = run(["apt-config", "dump"], timeout_s=30) if dump is None else dump
    lines = [line for line in text.splitlines() if CARRIED.fullmatch(line)]
    for scheme in ("http", "https"):
        proxy = env.get(f"{scheme}_proxy")
        if proxy and not any(line.startswith(f"Acquire::{scheme}::Proxy ") for line in lines):
            lines.append(f'Acquire::{scheme}::Proxy "{proxy}";')
    lines.append('Acquire::Languages "none";')
    return "\n".join(sorted(lines)) + "\n"


def for_guest(text: str) -> str:
    """The same text as the guest must see it: loopback means the building machine."""
    return re.sub(r"(?<=//)(localhost|127\.0\.0\.1)(?=[:/])", BUILDING_MACHINE, text)
