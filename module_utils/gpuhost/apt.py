"""What apt and dpkg print: archive versions, simulated transactions, package states, errors.

Pure: text in, frozen dataclasses out. All texts are those of ``LC_ALL=C`` (apt 2.4 to 3.0: Ubuntu 22.04 to Debian 13).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from . import debian_version

#: A change of these decides which driver, root filesystem, hypervisor or boot loader the host runs, so none of them
#: may change as a side effect of a kernel. ``firmware-nvidia*`` carries the GSP firmware of exactly one driver version.
#: Removals block whatever is removed.
GUARDED = (
    "nvidia*",
    "libnvidia*",
    "firmware-nvidia*",
    "xserver-xorg-video-nvidia*",
    "cuda*",
    "libcuda*",
    "dkms",
    "zfs*",
    "libzfs*",
    "libzpool*",
    "libnvpair*",
    "libuutil*",
    "pve-*",
    "libpve-*",
    "proxmox-*",
    "qemu-server",
    "grub*",
    "systemd-boot*",
    "shim*",
)

#: Ubuntu's precompiled driver: one package for each kernel, so a *new* one belongs to the kernel that is installed.
#: A change of one that is there changes the driver of an installed kernel, the way back among them.
GUARDED_ONCE_INSTALLED = ("linux-modules-nvidia-*", "linux-objects-nvidia-*", "linux-signatures-nvidia-*")


@dataclass(frozen=True)
class MadisonLine:
    """One version of one package in one archive; ``suite`` is empty for a flat repository."""

    package: str
    version: str
    suite: str


@dataclass(frozen=True)
class PackageChange:
    """One package of a transaction. ``old`` is None for a new package, ``new`` is None for a removal.

    ``suite`` is apt's text for where it comes from (``Debian-Security:12/oldstable-security``; several are separated
    by ", "), empty for a removal or a local file.
    """

    name: str
    old: str | None
    new: str | None
    suite: str = ""


@dataclass(frozen=True)
class Transaction:
    """What apt would do, in apt's order. A reinstallation of the same version counts among the upgrades."""

    installs: tuple[PackageChange, ...] = ()
    upgrades: tuple[PackageChange, ...] = ()
    downgrades: tuple[PackageChange, ...] = ()
    removals: tuple[PackageChange, ...] = ()

    @property
    def changes(self) -> tuple[PackageChange, ...]:
        """Everything except removals."""
        return self.installs + self.upgrades + self.downgrades

    @property
    def empty(self) -> bool:
        return not (self.changes or self.removals)


@dataclass(frozen=True)
class PackageState:
    """One package in dpkg's data base.

    ``desired``, ``status`` and ``error`` are the letters of ``db:Status-Abbrev`` (dpkg-query(1)): desired one of
    ``uihrp``, status one of ``ncHUFWti``, error "" or ``R``.
    """

    name: str
    version: str
    desired: str
    status: str
    error: str = ""

    @property
    def installed(self) -> bool:
        """Fully installed, whatever is wished for it: a package on hold (``hi``) is installed."""
        return self.status == "i" and not self.error

    @property
    def broken(self) -> bool:
        """Started and not finished: the next apt run would go on with it (``iF``, ``iU``, ``iH``, ``iW``, ``it``)."""
        return self.status in "HUFWt" or bool(self.error)

    @property
    def held(self) -> bool:
        return self.desired == "h"


def _madison_suite(source: str) -> str | None:
    """Suite of ``URI suite/component arch Packages``; None where the line is not about a binary package."""
    words = source.split()
    if not words or words[-1] != "Packages":
        return None
    if len(words) >= 4:  # a cdrom "URI" may hold blanks, so count from the end
        return words[-3].rpartition("/")[0]
    return words[1].strip("./") if len(words) == 3 else ""  # flat repository: "URI [dir] Packages"


def parse_madison(text: str) -> list[MadisonLine]:
    """``apt-cache madison NAME...``: ``pkg | version | URI suite/comp arch Packages``; Sources lines are skipped.

    madison lists archives only: a package that is installed but in no archive any more does not appear.
    """
    lines = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 3 or not fields[0] or not fields[1]:
            continue
        suite = _madison_suite(fields[2])
        if suite is not None:
            lines.append(MadisonLine(fields[0], fields[1], suite))
    return lines


_INST = re.compile(r"^Inst (?P<name>\S+)(?: \[(?P<old>[^\]]*)\])? \((?P<new>\S+)(?P<rest>[^)]*)\)")
_REMV = re.compile(r"^(?:Remv|Purg) (?P<name>\S+)(?: \[(?P<old>[^\]]*)\])?")
_ARCH = re.compile(r"\s*\[[^\]]*\]\s*$")


def _installation(match: re.Match[str]) -> PackageChange:
    return PackageChange(match["name"], match["old"] or None, match["new"], _ARCH.sub("", match["rest"]).strip())


def parse_simulation(text: str) -> Transaction:
    """``apt-get -s ...``: the ``Inst``, ``Remv`` and ``Purg`` lines; ``Conf`` lines repeat what ``Inst`` said."""
    installs: list[PackageChange] = []
    upgrades: list[PackageChange] = []
    downgrades: list[PackageChange] = []
    removals: dict[str, PackageChange] = {}
    for line in text.splitlines():
        found = _INST.match(line)
        if found:
            change = _installation(found)
            if change.old is None:
                installs.append(change)
            elif debian_version.compare(change.new or "", change.old) < 0:
                downgrades.append(change)
            else:
                upgrades.append(change)
            continue
        found = _REMV.match(line)
        if found:
            removals[found["name"]] = PackageChange(found["name"], found["old"] or None, None)
    return Transaction(tuple(installs), tuple(upgrades), tuple(downgrades), tuple(removals.values()))


def _bare(name: str) -> str:
    """``libcuda1:i386`` -> ``libcuda1``."""
    return name.partition(":")[0]


def _guarded(change: PackageChange) -> bool:
    patterns = GUARDED if change.old is None else GUARDED + GUARDED_ONCE_INSTALLED
    return any(fnmatch.fnmatchcase(_bare(change.name), pattern) for pattern in patterns)


def blocked(tx: Transaction, wanted: Collection[str]) -> tuple[str, ...]:
    """Reasons why this transaction must not run, one readable sentence per package; empty where it may.

    Every removal blocks, a wanted package included. A change of a package in :data:`GUARDED` or
    :data:`GUARDED_ONCE_INSTALLED` blocks unless its name is in ``wanted`` (the kernel and headers that were asked for,
    with or without ``:arch``).
    """
    allowed = {_bare(name) for name in wanted}
    reasons = [f"would remove {change.name} {change.old or ''}".rstrip() for change in tx.removals]
    for change in tx.changes:
        if not _guarded(change) or _bare(change.name) in allowed:
            continue
        if change.old is None:
            reasons.append(f"would install {change.name} {change.new}")
        elif change.old == change.new:
            reasons.append(f"would reinstall {change.name} {change.new}")
        else:
            reasons.append(f"would change {change.name} {change.old} -> {change.new}")
    return tuple(reasons)


def _rank(state: PackageState) -> int:
    return 2 if state.broken else 1 if state.installed else 0


def parse_dpkg_status(text: str) -> dict[str, PackageState]:
    """``dpkg-query -W -f '${Package}\\t${Version}\\t${db:Status-Abbrev}\\n'``.

    A package known for two architectures has two lines; the broken one is kept, else the installed one. Malformed
    lines are skipped.
    """
    states: dict[str, PackageState] = {}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) != 3 or not fields[0] or len(fields[2].strip()) < 2:
            continue
        letters = fields[2]
        state = PackageState(fields[0], fields[1], letters[0], letters[1], letters[2:].strip())
        known = states.get(state.name)
        if known is None or _rank(state) > _rank(known):
            states[state.name] = state
    return states


def half_configured(states: Mapping[str, PackageState]) -> tuple[str, ...]:
    """``linux-image-x (iF)`` for each package that dpkg has not finished, by name.

    Case dkms-04: ``iF`` on a kernel package means that its hooks failed and that its initrd is missing or stale.
    """
    return tuple(
        f"{name} ({state.desired}{state.status}{state.error})" for name, state in sorted(states.items()) if state.broken
    )


#: Sentences that name the cause, and the way out where apt's own text has none. First match in this order wins.
_CAUSES = (
    re.compile(r"\block\b|lock-frontend|is another process using it", re.IGNORECASE),
    re.compile(r"dpkg was interrupted"),
    re.compile(r"enough free space|No space left on device"),
    re.compile(r"Unable to locate package|was not found|has no installation candidate"),
    re.compile(r"Packages need to be removed|Held packages were changed|packages were downgraded", re.IGNORECASE),
    re.compile(r"unmet dependencies|Unmet dependencies|held broken packages"),
    re.compile(r"Failed to fetch|Unable to fetch|is not signed|Hash Sum mismatch"),
)
#: These only say that something else failed.
_GENERIC = re.compile(r"Sub-process .* returned an error code|Some packages could not be (authenticated|installed)")
_DEPENDENCY = re.compile(r"^ (?P<what>\S+ : .*)$")
_ERROR_LINES = 2


def _messages(text: str) -> Iterable[str]:
    for line in text.splitlines():
        if line.startswith("E: "):
            yield line[3:].strip()
        elif line.startswith("dpkg: error"):
            yield line.strip()


def parse_apt_error(stderr: str) -> str:
    """The ``E:`` lines that name the cause, at most two, joined by "; "; "" where there is none.

    stdout may be appended to ``stderr``: apt prints unmet dependencies there, and the first of them is added.
    """
    messages = list(dict.fromkeys(_messages(stderr)))
    for cause in _CAUSES:
        found = [message for message in messages if cause.search(message)]
        if found:
            break
    else:
        found = [message for message in messages if not _GENERIC.search(message)] or messages
    found = found[:_ERROR_LINES]
    if any("held broken" in message or "nmet dependencies" in message for message in found):
        details = (_DEPENDENCY.match(line) for line in stderr.splitlines())
        found += [match["what"] for match in details if match][:1]
    return "; ".join(found)
