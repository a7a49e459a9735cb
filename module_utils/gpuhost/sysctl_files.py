"""Which file sets a kernel setting last: as systemd-sysctl does it at boot, and as ``sysctl --system`` does it by hand.

Sources: sysctl.d(5); systemd's src/sysctl/sysctl.c and src/basic/conf-files.c, procps' src/sysctl.c; both programs are
the oracle of tests/integration/test_sysctl_native.py (systemd 252, procps 4.0).

Pure: texts in, frozen dataclasses out.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

FOLDERS = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d")
"""Of two files of one name the one in the first of these folders is read, and the other is not."""

SYSCTL_CONF = "/etc/sysctl.conf"
"""Not read by systemd, unless some link in a folder leads to it; read last by ``sysctl --system``."""

RIVALS = {
    "vm/dirty_ratio": "vm/dirty_bytes",
    "vm/dirty_background_ratio": "vm/dirty_background_bytes",
}
"""Of these only one can be set: the kernel clears the other (Documentation/admin-guide/sysctl/vm.rst)."""
RIVALS.update({value: key for key, value in tuple(RIVALS.items())})

_LINE_END = re.compile(r"\r\n|\n\r|\n|\r|\0")
_BLANK = " \t\n\r"


@dataclass(frozen=True)
class Setting:
    """One line of a file. ``key`` is a path below /proc/sys; ``value`` None excludes the key from patterns."""

    key: str
    value: str | None
    path: str
    line: int

    @property
    def place(self) -> str:
        """For people."""
        return f"{self.path} line {self.line}" if self.line else self.path


def normal(key: str) -> str:
    """A key as a path below /proc/sys: with a dot as its first separator, dots and slashes change places."""
    first = re.search(r"[./]", key)
    if first and first[0] == ".":
        key = key.translate(str.maketrans("./", "/."))
    return "/".join(part for part in key.split("/") if part not in ("", "."))


def dotted(key: str) -> str:
    """The usual spelling of a path below /proc/sys."""
    return key.translate(str.maketrans("./", "/."))


def parse(path: str, text: str) -> tuple[Setting, ...]:
    """The settings of a file. A line without ``=`` counts only with a leading ``-``: it excludes a key.

    There are no comments behind a value: they are part of it, and the kernel refuses them.
    """
    found = []
    for number, raw in enumerate(_LINE_END.split(text), 1):
        line = raw.strip(_BLANK)
        if not line or line[0] in "#;":
            continue
        left, equals, right = line.partition("=")
        if not equals and not left.startswith("-"):
            continue
        key = normal(left.removeprefix("-").strip(_BLANK))
        if key:
            found.append(Setting(key, right.strip(_BLANK) if equals else None, path, number))
    return tuple(found)


def in_order(paths: Iterable[str]) -> list[str]:
    """The files that are read, in the order in which they are: by file name, byte by byte, whatever their folder.

    A mask (a link to /dev/null, an empty file, a link that leads nowhere) hides its namesakes as any file does.
    """
    chosen: dict[str, str] = {}
    for path in sorted(paths, key=_rank):
        name = posixpath.basename(path)
        if posixpath.dirname(path) in FOLDERS and name.endswith(".conf") and not name.startswith("."):
            chosen.setdefault(name, path)
    return [chosen[name] for name in sorted(chosen, key=sort_key)]


def sort_key(name: str) -> bytes:
    """File names sort as strcmp(3) does it."""
    return name.encode("utf-8", "surrogateescape")


def _rank(path: str) -> int:
    folder = posixpath.dirname(path)
    return FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)


def is_pattern(key: str) -> bool:
    """Whether a key stands for several."""
    return any(sign in key for sign in "*?[")


def matches(pattern: str, key: str) -> bool:
    """glob(3): a star crosses no slash."""
    parts, names = pattern.split("/"), key.split("/")
    return len(parts) == len(names) and all(
        fnmatch.fnmatchcase(name, part) for name, part in zip(names, parts, strict=True)
    )


def boot_writes(files: Mapping[str, str], keys: Collection[str]) -> Iterator[Setting]:
    """What systemd-sysctl writes into ``keys`` (paths below /proc/sys), in its order.

    Each key is written once. The last line for a key is in force and moves it to the end, but one that only repeats
    the value leaves it where it is. A pattern counts for keys that no line names, an exclusion included.
    """
    options: dict[str, Setting] = {}
    for path in in_order(files):
        for item in parse(path, files[path]):
            known = options.get(item.key)
            if known is not None and known.value == item.value:
                continue
            options.pop(item.key, None)
            options[item.key] = item
    yield from _expanded([item for item in options.values() if item.value is not None], options, keys)


def system_writes(files: Mapping[str, str], keys: Collection[str]) -> Iterator[Setting]:
    """What ``sysctl --system`` writes: every line in its turn, and /etc/sysctl.conf last, link or not.

    An exclusion keeps patterns away, but no line that names the key.
    """
    order = [*in_order(files), *([SYSCTL_CONF] if SYSCTL_CONF in files else [])]
    lines = [item for path in order for item in parse(path, files[path])]
    named = {item.key for item in lines}
    yield from _expanded([item for item in lines if item.value is not None], named, keys)


def _expanded(items: Iterable[Setting], named: Collection[str], keys: Collection[str]) -> Iterator[Setting]:
    for item in items:
        if is_pattern(item.key):
            yield from (replace(item, key=key) for key in keys if key not in named and matches(item.key, key))
        elif item.key in keys:
            yield item


def outcome(writes: Iterable[Setting]) -> dict[str, Setting]:
    """What is in force for each key after these writes; a key whose rival was written last is not in it."""
    found: dict[str, Setting] = {}
    for item in writes:
        found[item.key] = item
        found.pop(RIVALS.get(item.key, ""), None)
    return found


def after_boot(files: Mapping[str, str], keys: Collection[str], arguments: Mapping[str, str]) -> dict[str, Setting]:
    """Who sets each key at the next boot: the files, or before them the kernel's ``sysctl.KEY=VALUE`` arguments."""
    first = [Setting(key, value, "the kernel command line", 0) for key, value in arguments.items() if key in keys]
    return outcome([*first, *boot_writes(files, keys)])
