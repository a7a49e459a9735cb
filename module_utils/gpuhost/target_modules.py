"""Which of the kernel modules that a host needs the target kernel has.

Pure: text in, frozen dataclasses out. What a host needs is found in needed_modules.py.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

_MODULE_FILE = re.compile(r"([^/]+)\.ko(?:\.(?:gz|xz|zst|lz4|bz2|lzma))?")
_TREE = re.compile(r"^/?(?:usr/)?lib/modules/[^/]+/")


@dataclass(frozen=True)
class Needed:
    """One module and why it is needed.

    driver    what /sys calls it; a file system, a dm target and the like are their own driver
    modalias  what the device says it is; empty where it says nothing
    foreign   its path where the running kernel has it from DKMS or another package (``updates/``, ``extra/``), else ""
    guess     it is loaded and could be needed, but nothing says that this device needs it
    """

    purpose: str
    device: str
    driver: str
    module: str
    modalias: str = ""
    foreign: str = ""
    guess: bool = False


@dataclass(frozen=True)
class Target:
    """What the target's tree offers; ``index`` is modules.dep: name -> the module's path and those it depends on."""

    builtin: frozenset[str]
    index: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Missing:
    """A needed module that the target can't load. ``dkms``: it comes from outside the kernel and has to be built."""

    needed: Needed
    problem: str
    dkms: bool


def canonical(name: str) -> str:
    """One spelling per module: the kernel takes ``-`` and ``_`` as equal."""
    return name.replace("_", "-")


def module_name(path: str) -> str:
    """The module in a file, spelled with ``-``; empty where the path is no module's."""
    found = _MODULE_FILE.fullmatch(posixpath.basename(path))
    return canonical(found[1]) if found else ""


def is_foreign(path: str) -> bool:
    """Whether a module's path in its tree is one that no kernel package uses: DKMS and drivers' own installers."""
    return _TREE.sub("", path).split("/")[0] in ("updates", "extra", "weak-updates")


def provided(builtin: str, dep: str) -> Target:
    """The target's view, from its modules.builtin and modules.dep."""
    index = {}
    for line in dep.splitlines():
        path, colon, rest = line.partition(":")
        if colon:
            index[module_name(path)] = tuple(_TREE.sub("", item) for item in (path, *rest.split()))
    return Target(frozenset(map(module_name, builtin.split())), index)


def missing(
    needed: Iterable[Needed], target: Target, files: Collection[str] | None = None, aliases: str = ""
) -> tuple[Missing, ...]:
    """The needed modules that the target does not have.

    files    paths of all files of the target's tree (absolute or relative to it); None: not looked at
    aliases  the target's modules.alias: where a module is gone, another one that claims the device takes its place
    """
    there = None if files is None else {_TREE.sub("", path) for path in files}
    table = [line.split()[1:3] for line in aliases.splitlines() if line.startswith("alias ") and len(line.split()) > 2]
    found = []
    for item in needed:
        problem = _problem(item, target, there, table)
        if problem:
            paths = target.index.get(canonical(item.module), ("",))
            found.append(Missing(item, problem, bool(item.foreign) or is_foreign(paths[0])))
    return tuple(found)


def _problem(item: Needed, target: Target, there: set[str] | None, table: list[list[str]]) -> str:
    name = canonical(item.module)
    if name in target.index:
        gone = [path for path in target.index[name] if there is not None and path not in there]
        if gone:
            return f"modules.dep names {gone[0]}, which does not exist"
        if item.foreign and not is_foreign(target.index[name][0]):
            return f"only {target.index[name][0]} is there, the running kernel has it from {item.foreign}"
        return ""
    if item.foreign or name not in target.builtin:
        bus = item.modalias.partition(":")[0] or "none"
        others = [
            module
            for pattern, module in table
            if pattern.startswith(bus + ":") and fnmatch.fnmatchcase(item.modalias, pattern)
        ]
        loadable = [module for module in map(canonical, others) if module in target.index or module in target.builtin]
        return "" if loadable and not item.foreign else f"no module {item.module}"
    return ""


def depmod_problems(dep: str, files: Collection[str], prefix: str = "nvidia") -> tuple[str, ...]:
    """Modules of a name that are files but not in modules.dep, or the reverse: depmod did not run after a change.

    depmod lists one file per module: of two copies the one in ``updates/`` (depmod.d(5)), and the other never.
    """
    indexed = {name: paths[0] for name, paths in provided("", dep).index.items() if name.startswith(prefix)}
    there = {_TREE.sub("", path) for path in files}
    problems = {
        path: f"modules.dep names {path}, which does not exist" for path in indexed.values() if path not in there
    }
    for path in there:
        name = module_name(path)
        listed = indexed.get(name)
        if name.startswith(prefix) and (listed is None or (_in_updates(path) and not _in_updates(listed))):
            problems[path] = f"{path} is not in modules.dep"
    return tuple(problems[path] for path in sorted(problems))


def _in_updates(path: str) -> bool:
    return path.startswith("updates/")


def extra_package(running: str, target: str, installed: Collection[str]) -> str | None:
    """Ubuntu's package with the less common drivers, where the running kernel has it and the target does not."""
    name = f"linux-modules-extra-{target}"
    return name if f"linux-modules-extra-{running}" in installed and name not in installed else None
