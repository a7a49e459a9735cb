"""What is wished of the kernel's settings, and what a host shows of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from . import cmdline, other_tuners
from .errors import Stop, stop
from .host_io import Host
from .sysctl_defaults import CONFIG_SYMBOLS, DEFAULTS
from .sysctl_files import FOLDERS, RIVALS, SYSCTL_CONF, dotted, normal

PROC = "/proc/sys/"

_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:@-]*")


@dataclass(frozen=True)
class Wish:
    """A value that is wanted. ``at_least``: a larger last number is as good, and is left alone."""

    value: str
    at_least: bool = False

    def met_by(self, value: str | None) -> bool:
        """Whether this value will do; the kernel separates numbers by tabs."""
        if value is None:
            return False
        words, wanted = value.split(), self.value.split()
        if self.at_least and words and words[-1].isdecimal() and wanted[-1].isdecimal():
            return int(words[-1]) >= int(wanted[-1])
        return words == wanted

    def raised(self, seen: str | None) -> Wish:
        """For several numbers: the larger of each, so that what somebody has raised is not lowered with the rest."""
        there, wanted = (seen or "").split(), self.value.split()
        numbers = all(word.isdecimal() for word in (*there, *wanted))
        if not self.at_least or len(wanted) < 2 or len(there) != len(wanted) or not numbers:
            return self
        return replace(self, value=" ".join(max(pair, key=int) for pair in zip(there, wanted, strict=True)))

    @property
    def expected(self) -> str:
        """For people."""
        return f"at least {self.value}" if self.at_least else self.value


@dataclass(frozen=True)
class Wishes:
    """Key (path below /proc/sys) -> what is wanted. ``target``: a kernel that this host is to boot later."""

    keys: Mapping[str, Wish] = field(default_factory=dict)
    target: str = ""
    yielding: frozenset[str] = frozenset()
    """Defaults that give way where somebody has set their rival: setting them would clear it."""

    @property
    def touched(self) -> set[str]:
        """The keys, and those that setting them clears."""
        return {*self.keys, *(RIVALS[key] for key in self.keys if key in RIVALS)}


@dataclass(frozen=True)
class Facts:
    """What a host shows. ``live`` has the touched keys that are there; None is one that can't be read."""

    live: Mapping[str, str | None] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    target_config: str | None = None
    tuners: other_tuners.Tuners = field(default_factory=other_tuners.Tuners)

    def absent_on_target(self, key: str) -> bool:
        """Whether the target kernel is built without the key; one whose symbol we don't know is taken to be there."""
        symbol = CONFIG_SYMBOLS.get(key)
        return bool(symbol and self.target_config is not None and f"\n{symbol}=" not in "\n" + self.target_config)


def wishes(given: Mapping[str, Any], target: str = "") -> Wishes:
    """The defaults, with the keys that the inventory adds, changes or (null) leaves alone. Raises Stop."""
    own = {_key(name): None if value is None else Wish(_value(name, value)) for name, value in given.items()}
    for key, item in own.items():
        if item is not None and own.get(RIVALS.get(key, "")) is not None:
            both = f"{dotted(key)} and {dotted(RIVALS[key])}"
            raise stop("input.invalid", "sysctl_tuning_keys", both, "one of them: the kernel clears the other")
    base = {item.key: Wish(item.value, item.at_least) for item in DEFAULTS if own.get(RIVALS.get(item.key, "")) is None}
    merged: dict[str, Wish | None] = {**base, **own}
    yielding = frozenset(key for key in base if key in RIVALS and key not in own)
    return Wishes({key: item for key, item in sorted(merged.items()) if item is not None}, target, yielding)


def _key(name: Any) -> str:
    if not isinstance(name, str) or not _KEY.fullmatch(name):
        expected = "the name of one kernel setting, no pattern"
        raise stop("input.invalid", "sysctl_tuning_keys", f"{name!r} is no key", expected)
    return normal(name)


def _value(name: str, value: Any) -> str:
    text = str(int(value)) if isinstance(value, bool) else " ".join(str(value).split())
    if not isinstance(value, (str, int)) or not text:
        raise stop("input.invalid", f"sysctl_tuning_keys: {name}", repr(value), "a number or a text, or null")
    return text


def read(host: Host, wanted: Wishes) -> Facts:
    """Everything that matters for these wishes, from files of /proc, /etc and their kin: no program runs."""
    unreadable: list[str] = []

    def text(path: str) -> str | None:
        try:
            return host.read(path)
        except Stop:
            unreadable.append(path)
            return None

    paths = [f"{folder}/{name}" for folder in FOLDERS for name in host.names(folder) if name.endswith(".conf")]
    files = {path: text(path) or "" for path in [*paths, *([SYSCTL_CONF] if host.exists(SYSCTL_CONF) else [])]}
    live = {key: _live(host, key) for key in sorted(wanted.touched) if host.exists(PROC + key)}
    arguments = {
        normal(item.key.removeprefix("sysctl.")): item.value or ""
        for item in cmdline.parse(host.read_line("/proc/cmdline")).own
        if item.key.startswith("sysctl.")
    }
    config = text(f"/boot/config-{wanted.target}") if wanted.target else None
    return Facts(live, files, tuple(unreadable), arguments, config, other_tuners.read(host))


def _live(host: Host, key: str) -> str | None:
    text = host.read(PROC + key)
    return None if text is None else " ".join(text.split())
