"""Included files: their lines stand where the include line stands, as liblxc reads them.

Facts from liblxc (confile.c: set_config_includefiles, do_includedir; tried with 5.0.2): a folder means its *.conf
files in whatever order the file system gives them, so nothing may rest on that order; a folder that is not there is
skipped only when the path ends with a slash; any other path that can't be read makes the start fail; a cycle never
ends. Proxmox hands `lxc.include` to liblxc like every other `lxc.*` line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from .lxc_config import LxcDocument, parse
from .lxc_entries import device_mount, device_rule
from .lxc_lines import MAIN, DeviceMount, DeviceRule, Line, Style

_SUFFIX = ".conf"
# liblxc knows no limit; a file that is read more often than this is one that doubles itself.
_MOST_FILES = 256


@dataclass(frozen=True)
class Unfollowed:
    """An include line whose file was not read, or stands in a cycle."""

    line: Line
    path: str
    why: Literal["unread", "missing", "cycle"]


@dataclass(frozen=True)
class MainSection:
    """What a container starts from, in reading order: its own main section with the included lines in their places.

    documents: every file that was read, by path; "" is the container's own.
    """

    lines: tuple[Line, ...] = field(repr=False)
    documents: Mapping[str, LxcDocument] = field(repr=False)
    unfollowed: tuple[Unfollowed, ...]

    @cached_property
    def rules(self) -> tuple[DeviceRule, ...]:
        return tuple(rule for line in self.lines if (rule := device_rule(line)) is not None)

    @cached_property
    def mounts(self) -> tuple[DeviceMount, ...]:
        """Bind mounts from below /dev; an empty `lxc.mount.entry` drops those above it."""
        found: list[DeviceMount] = []
        for line in self.lines:
            if line.kind == "entry" and line.key == "lxc.mount.entry" and not line.value:
                found.clear()
            mount = device_mount(line)
            found += [mount] if mount else []
        return tuple(found)


def include_paths(config: bytes, style: Style = "lxc") -> tuple[str, ...]:
    """The files and folders that a config includes itself, in order; those of an included file are asked for again."""
    return tuple(dict.fromkeys(path for _, path in parse(config, style).includes))


def read_includes(
    config: bytes,
    read: Callable[[str], bytes | None],
    names: Callable[[str], Sequence[str]],
    *,
    style: Style = "lxc",
) -> dict[str, bytes]:
    """All that a config includes, nested ones too: path to bytes, as reconcile() takes it.

    read gives the bytes of a file, None where there is no such file; names lists a folder.
    """
    found: dict[str, bytes] = {}
    seen: set[str] = set()
    waiting = list(include_paths(config, style))
    while waiting:
        path = waiting.pop(0)
        # A relative path is relative to wherever the container is started from: nobody can say where that is.
        if path in seen or not path.startswith("/"):
            continue
        seen.add(path)
        whole = None if path.endswith("/") else read(path)
        files = {path: whole} if whole is not None else {file: read(file) for file in _in_folder(path, names(path))}
        for file, data in files.items():
            if data is not None and file not in found:
                found[file] = data
                waiting += include_paths(data)
    return found


def main_section(document: LxcDocument, includes: Mapping[str, bytes] | None = None) -> MainSection:
    """Put the included lines into their places. Without includes none is followed."""
    documents, unfollowed, opened = {"": document}, list[Unfollowed](), list[str]()

    def walk(lines: Sequence[Line], above: tuple[str, ...]) -> Iterator[Line]:
        for line in lines:
            yield line
            path = line.included_path
            files = _files(path, includes or {}) if path else ()
            if files is None:
                unfollowed.append(Unfollowed(line, path, "unread" if includes is None else "missing"))
            for file in files or ():
                if file in above or len(opened) == _MOST_FILES:
                    unfollowed.append(Unfollowed(line, path, "cycle"))
                    continue
                opened.append(file)
                if file not in documents:
                    documents[file] = parse((includes or {})[file], "lxc", file)
                yield from walk(documents[file].lines, (*above, file))

    lines = tuple(walk([line for line in document.lines if line.section == MAIN], ()))
    return MainSection(lines, documents, tuple(unfollowed))


def _files(path: str, includes: Mapping[str, bytes]) -> tuple[str, ...] | None:
    """The files behind an include line; None where the start fails for want of them."""
    if path in includes:
        return (path,)
    folder = path.rstrip("/") + "/"
    below = sorted(file[len(folder) :] for file in includes if file.startswith(folder))
    found = tuple(_in_folder(path, [name for name in below if "/" not in name]))
    return found if found or (path.endswith("/") and includes) else None


def _in_folder(path: str, names: Sequence[str]) -> list[str]:
    return [f"{path.rstrip('/')}/{name}" for name in names if name.endswith(_SUFFIX) and name != _SUFFIX]
