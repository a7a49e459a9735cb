"""Character-device majors of the running kernel, and which of them are NVIDIA's.

Pure: the text of /proc/devices in, frozen dataclasses out. Only the *character* part is read: the block part
reuses the same numbers for other drivers (254 is gpiochip in one and mdp in the other).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

# Exact driver names as the NVIDIA modules register them. Never a prefix: "nvidia-fs" or "nvidia_p2p_vendor" of
# somebody else must not become ours. The order is the order of importance when something has to be presumed.
NVIDIA_NAMES: tuple[str, ...] = (
    "nvidia",
    "nvidiactl",
    "nvidia-frontend",
    "nvidia-modeset",
    "nvidia-uvm",
    "nvidia-caps",
    "nvidia-caps-imex-channels",
    "nvidia-nvswitch",
    "nvidia-nvlink",
)

# 195 is assigned to NVIDIA for good (kernel Documentation/admin-guide/devices.txt); the names below live on it.
NVIDIA_STATIC_MAJOR = 195
FRONT_NAMES: frozenset[str] = frozenset({"nvidia", "nvidiactl", "nvidia-frontend", "nvidia-modeset"})

# Ranges of the kernel's dynamic allocation: 254 downwards to 234, then 511 downwards to 384 (fs/char_dev.c).
_DYNAMIC = (range(234, 255), range(384, 512))
# Numbers without a fixed owner: local/experimental use, reserved 255, and the dynamic ranges (devices.txt).
_UNASSIGNED = (range(60, 64), range(120, 128), range(234, 256), range(384, 512))

# Driver name -> its number, or all numbers that rules may still name it by, the newest first.
Record = Mapping[str, int | Sequence[int]]
Table = Mapping[str, int]

_ENTRY = re.compile(r"\s*([0-9]{1,9})\s+(\S.*?)\s*\Z")
_HEADER = re.compile(r"\s*(Character|Block) devices:\s*\Z")


class ProcDevicesError(ValueError):
    """No character majors are known; judging rules against an empty table would make every rule look stale."""


@dataclass(frozen=True)
class CharacterMajors:
    """The character part of /proc/devices: (major, name) pairs in file order; both sides may repeat."""

    entries: tuple[tuple[int, str], ...] = ()

    @cached_property
    def _by_name(self) -> dict[str, int]:
        return {name: major for major, name in reversed(self.entries)}

    @cached_property
    def _by_major(self) -> dict[int, tuple[str, ...]]:
        found: dict[int, tuple[str, ...]] = {}
        for major, name in self.entries:
            found[major] = (*found.get(major, ()), name)
        return found

    def major_of(self, name: str) -> int | None:
        """The first major registered under exactly this name, or None."""
        return self._by_name.get(name)

    def names_of(self, major: int) -> tuple[str, ...]:
        """All names on this major in file order; empty when no driver owns it."""
        return self._by_major.get(major, ())

    def nvidia_name_of(self, major: int) -> str | None:
        """The first NVIDIA name on this major, or None."""
        return next((name for name in self._by_major.get(major, ()) if name in NVIDIA_NAMES), None)

    def foreign_name_of(self, major: int) -> str | None:
        """The first name on this major when no NVIDIA name is there too, or None."""
        names = self.names_of(major)
        return None if not names or self.nvidia_name_of(major) else names[0]

    def require_known(self) -> None:
        """Raise ProcDevicesError for an empty table; every Linux kernel has at least `1 mem`."""
        if not self.entries:
            raise ProcDevicesError("/proc/devices: no character devices found, expected the running kernel's table")

    def driver_major(self, driver: str) -> int | None:
        """The major by which this NVIDIA driver is reached now; None when it is not registered.

        The front names are synonyms (nvidia-frontend up to driver 5xx, nvidia + nvidiactl since) and have the
        assigned number even while the module is not loaded.
        """
        own = self.major_of(driver)
        if own is not None or driver not in FRONT_NAMES:
            return own
        others = (self.major_of(name) for name in NVIDIA_NAMES if name in FRONT_NAMES)
        return next((major for major in others if major is not None), NVIDIA_STATIC_MAJOR)


@dataclass(frozen=True)
class NvidiaNode:
    """A device path below /dev that belongs to an NVIDIA driver.

    minor is None for a folder of nodes and where the driver numbers freely; access is what an opener needs.
    """

    path: str
    driver: str
    minor: int | None
    access: str
    is_dir: bool = False


def parse_character_majors(text: str) -> CharacterMajors:
    """Read the character part of /proc/devices; never raises.

    Lines that are no entry are skipped. A text without the "Character devices:" header gives an empty table, which
    require_known() refuses where rules are judged by it.
    """
    entries: list[tuple[int, str]] = []
    part = ""
    for line in text.split("\n"):
        header = _HEADER.match(line)
        entry = _ENTRY.match(line)
        if header:
            part = header.group(1)
        elif entry and part == "Character":
            entries.append((int(entry.group(1)), entry.group(2)))
    return CharacterMajors(tuple(entries))


def nvidia_majors(majors: CharacterMajors) -> dict[str, int]:
    """Driver name -> major of the NVIDIA names only: the record to keep before an upgrade."""
    found = ((name, majors.major_of(name)) for name in NVIDIA_NAMES)
    return {name: major for name, major in found if major is not None}


def record_tables(recorded: Record) -> tuple[Table, ...]:
    """The tables that a record holds, newest first; a driver with fewer numbers than others kept its oldest one.

    Names that are not NVIDIA's are left out, so a foreign entry can never claim a rule.
    """
    numbers = {
        name: (found,) if isinstance(found, int) else tuple(found)
        for name in NVIDIA_NAMES
        if (found := recorded.get(name)) is not None
    }
    depth = max((len(found) for found in numbers.values()), default=0)
    return tuple(
        {name: found[min(age, len(found) - 1)] for name, found in numbers.items() if found} for age in range(depth)
    )


def names_by_major(recorded: Record) -> dict[int, tuple[str, ...]]:
    """Invert a record: the NVIDIA names of each number, the newest claim first."""
    inverse: dict[int, dict[str, None]] = {}
    for table in record_tables(recorded):
        for name, major in table.items():
            inverse.setdefault(major, {})[name] = None
    return {major: tuple(names) for major, names in inverse.items()}


def is_dynamic(major: int) -> bool:
    """Whether the kernel hands this character major out dynamically (234-254, 384-511)."""
    return any(major in numbers for numbers in _DYNAMIC)


def is_unassigned(major: int) -> bool:
    """Whether no fixed owner exists for this character major, so that an unowned number means nothing."""
    return any(major in numbers for numbers in _UNASSIGNED)


_NODES: tuple[tuple[re.Pattern[str], str, int | None, str], ...] = (
    (re.compile(r"nvidia([0-9]+)"), "nvidia", None, "rw"),
    (re.compile(r"nvidiactl"), "nvidiactl", 255, "rw"),
    (re.compile(r"nvidia-modeset"), "nvidia-modeset", 254, "rw"),
    (re.compile(r"nvidia-uvm"), "nvidia-uvm", 0, "rw"),
    (re.compile(r"nvidia-uvm-tools"), "nvidia-uvm", 1, "rw"),
    # The driver creates capability nodes readable only (0400/0444); opening them needs no write right.
    (re.compile(r"nvidia-caps/nvidia-cap([0-9]+)"), "nvidia-caps", None, "r"),
    (re.compile(r"nvidia-caps-imex-channels/channel([0-9]+)"), "nvidia-caps-imex-channels", None, "r"),
    (re.compile(r"nvidia-nvswitch([0-9]+)"), "nvidia-nvswitch", None, "rw"),
    (re.compile(r"nvidia-nvswitchctl"), "nvidia-nvswitch", 255, "rw"),
    (re.compile(r"nvidia-nvlink"), "nvidia-nvlink", None, "rw"),
)
_FOLDERS = {"nvidia-caps": "nvidia-caps", "nvidia-caps-imex-channels": "nvidia-caps-imex-channels"}


def nvidia_node(path: str) -> NvidiaNode | None:
    """The NVIDIA driver and minor behind a path below /dev, or None when the path is not NVIDIA's.

    Doubled and trailing slashes do not matter: /dev//nvidia-caps/ is the folder /dev/nvidia-caps.
    """
    parts = [part for part in path.split("/") if part and part != "."]
    if not path.startswith("/") or len(parts) < 2 or parts[0] != "dev":
        return None
    clean, below = "/" + "/".join(parts), "/".join(parts[1:])
    if below in _FOLDERS:
        return NvidiaNode(clean, _FOLDERS[below], None, "r", is_dir=True)
    for pattern, driver, minor, access in _NODES:
        found = pattern.fullmatch(below)
        # No node has a minor of more than 20 bits; a longer number is no NVIDIA node.
        if found and all(len(number) <= 7 for number in found.groups()):
            return NvidiaNode(clean, driver, int(found.group(1)) if found.groups() else minor, access)
    return None
