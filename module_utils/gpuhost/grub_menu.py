"""The menu of a grub.cfg: the top level of the file, followed as GRUB would run it.

Sources, the same in GRUB 2.06 and 2.12: grub-core/commands/menuentry.c (an entry without an id has its title as id),
util/grub.d/10_linux.in with Debian's patches (what is generated).

Pure: statements and dicts in, frozen dataclasses out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from . import grub_script
from .grub_script import Statement

_SET_OPTION = re.compile(rf"--set[= ]({grub_script.NAME})")
#: What GRUB, its firmware or a command sets by itself: not known here. Any other variable that is not set is empty.
_NOT_KNOWN = re.compile(r"[0-9?#*@]+|grub_.*|feature_.*|net_.*|prefix|root|cmdpath|config_\w+|lang|shim_lock|match")
_LINUX = ("linux", "linuxefi", "linux16")
_INITRD = ("initrd", "initrdefi", "initrd16")
_RECOVERY_ID = re.compile(r"gnulinux-[^>]+-recovery-[^>]*\Z")
_RECOVERY_WORD = re.compile(r"(?:^|\s)(?:single|recovery|emergency|rescue)(?=\s|$)")


@dataclass(frozen=True)
class GrubEntry:
    """One menu entry that boots something.

    id           full id path, as GRUB_DEFAULT and grub-reboot want it; ``>`` between levels, ``>>`` within a name
    title        titles from the outermost submenu to the entry
    release      from a kernel file ``vmlinuz-<release>``
    linux        path as written, without ``device`` (``($root)`` and the like)
    options      the linux line after the path, as written; ``received`` says what the kernel gets
    all_options  those of every linux line of the entry: Ubuntu's cloud images have a second one under a condition, for
                 the boot after a failed one; ``linux``, ``initrd`` and ``options`` are those of a normal boot
    """

    id: str
    title: tuple[str, ...]
    release: str | None
    linux: str | None
    device: str
    initrd: tuple[str, ...]
    options: str
    recovery: bool
    all_options: tuple[str, ...]


@dataclass(frozen=True)
class MenuItem:
    """One line of a menu: an entry, or a submenu with its own lines."""

    id: str
    title: str
    entry: GrubEntry | None
    items: tuple[MenuItem, ...] = ()


class Run:
    """The top level of the file, run with an environment block.

    A value None is not known. Where a condition is not known, each branch that may run is gone through, and what it
    sets is not known afterwards.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self.given = dict(env)
        self.stored: dict[str, str | None] = dict(env)
        self.variables: dict[str, str | None] = {"feature_menuentry_id": "y", **env}
        self.undecided = ""
        self.lines: list[Statement] = []  # all commands that run or may run

    def lookup(self, name: str) -> str | None:
        return self.variables.get(name, None if _NOT_KNOWN.fullmatch(name) else "")

    def run(
        self, script: Sequence[Statement], path: tuple[str, ...] = (), titles: tuple[str, ...] = (), maybe: bool = False
    ) -> Iterator[MenuItem]:
        for statement in script:
            head = statement.words[0]
            if head in ("menuentry", "submenu"):
                yield self.item(statement, path, titles)
            elif head == "if":
                yield from self.branches(statement, path, titles, maybe)
            elif head in ("for", "while", "until"):
                yield from self.run(statement.branches[0][1], path, titles, maybe=True)
            elif head != "function":
                self.command(statement, maybe)

    def branches(
        self, statement: Statement, path: tuple[str, ...], titles: tuple[str, ...], maybe: bool
    ) -> Iterator[MenuItem]:
        for condition, body in statement.branches:
            holds = self.holds(condition)
            if holds is not False:
                maybe = maybe or holds is None
                yield from self.run(body, path, titles, maybe)
            if holds:
                return

    def command(self, statement: Statement, maybe: bool) -> None:
        head = statement.words[0]
        self.lines.append(statement)
        assigned = grub_script.assignment(statement)
        if assigned:
            name, raw = assigned
            self.variables[name] = None if maybe else grub_script.value(raw, self.lookup)
            if name == "default" and self.variables[name] is None:
                self.undecided = f"line {statement.line}: default={raw}"
        elif head == "unset" and len(statement.words) > 1:
            self.variables[statement.words[1]] = None if maybe else ""
        elif head == "save_env":
            self.stored.update({name: self.variables.get(name, "") for name in statement.words[1:]})
        elif head == "load_env":
            self.variables.update({name: self.stored[name] for name in statement.words[1:] if name in self.stored})
        else:
            for name in _SET_OPTION.findall(" ".join(statement.words)):
                self.variables[name] = self.given.get(name)

    def holds(self, condition: Sequence[Statement]) -> bool | None:
        """Whether a condition holds; None where that is not known. No condition is ``else``."""
        if not condition:
            return True
        words = condition[-1].words
        if len(condition) > 1 or words[0] not in ("[", "test"):
            return None
        raw = words[1:-1] if words[0] == "[" and words[-1] == "]" else words[1:]
        values = [grub_script.value(word, self.lookup) for word in raw]
        # an unquoted variable falls apart at blanks, and vanishes where it is empty
        for word, value in zip(raw, values, strict=True):
            if (
                value is None
                or (word.startswith("$") and not value)
                or (re.search(r"^[^'\"]*\$", word) and " " in value)
            ):
                return False if value == "" and len(raw) == 1 else None
        match values:
            case ["!", *_]:
                return None
            case [str(only)]:
                return bool(only)
            case ["-n", str(only)]:
                return bool(only)
            case ["-z", str(only)]:
                return not only
            case [str(left), "=" | "==", str(right)]:
                return left == right
            case [str(left), "!=", str(right)]:
                return left != right
        return None

    def item(self, statement: Statement, path: tuple[str, ...], titles: tuple[str, ...]) -> MenuItem:
        """A menu line with what is in it."""
        title, name = _title_and_id([grub_script.value(word, self.lookup) or "" for word in statement.words[1:]])
        path, titles = (*path, name.replace(">", ">>")), (*titles, title)
        body = statement.branches[0][1] if statement.branches else ()
        inner = Run(self.given)
        inner.variables = {**self.variables}
        items = tuple(inner.run(body, path, titles))
        if statement.words[0] == "submenu":
            return MenuItem(name, title, None, items)
        return MenuItem(name, title, _entry(">".join(path), titles, inner.lines, body))


def _title_and_id(words: Sequence[str]) -> tuple[str, str]:
    """The first word that is no option, and ``--id``, for which the title stands in."""
    titles: list[str] = []
    name = None
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if option in ("--id", "--class", "--users", "--hotkey"):
            value = value if equals else next(rest, "")
            name = value if option == "--id" else name
        elif not word.startswith("--"):
            titles.append(word)
    title = titles[0] if titles else ""
    return title, title if name is None else name


def _entry(name: str, titles: tuple[str, ...], lines: Sequence[Statement], body: Sequence[Statement]) -> GrubEntry:
    linux = [line for line in lines if line.words[0] in _LINUX and len(line.words) > 1]
    initrd = [line for line in lines if line.words[0] in _INITRD]
    written = grub_script.as_written(linux[-1].words[1]) if linux else ""
    device, path = re.findall(r"^(\([^)]*\))?(.*)", written, re.DOTALL)[0]
    release = re.search(r"(?:^|/)vmlinuz-([^/]+?)(?:\.efi\.signed)?$", path)
    options = linux[-1].rest if linux else ""
    return GrubEntry(
        id=name,
        title=titles,
        release=release[1] if release else None,
        linux=path or None,
        device=device,
        initrd=tuple(grub_script.as_written(word) for word in initrd[-1].words[1:]) if initrd else (),
        options=options,
        recovery=bool(_RECOVERY_ID.search(name) or _RECOVERY_WORD.search(options)),
        all_options=tuple(line.rest for line, _ in grub_script.walk(body) if line.words[0] in _LINUX),
    )
