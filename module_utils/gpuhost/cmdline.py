"""The kernel command line: take it apart, change our arguments in it, leave everything else byte for byte.

Rules of the kernel (lib/cmdline.c next_arg, kernel/params.c): arguments are separated by white space outside double
quotes; the key ends at the first ``=``; ``-`` and ``_`` are equal in a key; the value of a repeated key is the last one
for most parameters; after ``--`` everything belongs to init. Quotes around a value or around the whole argument are
taken off, so ``a="b"`` says the same as ``a=b``.

Pure: text in, text out. A result is the same text, and not merely an equal one, where nothing had to change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

#: What may be wanted of a key: a value, True for a bare flag, None or False for "not there".
Wanted = Mapping[str, str | bool | None]

#: Keys that mean something each time they occur (Documentation/admin-guide/kernel-parameters.txt). Which one a wish
#: would mean is a guess, so it is refused where there are several and none of them is what is wanted.
REPEATABLE = frozenset(
    {"console", "crashkernel", "earlycon", "hugepages", "hugepagesz", "memmap", "systemd.mask", "systemd.setenv"}
    | {"systemd.wants", "dyndbg", "ip", "blacklist", "module_blacklist", "modprobe.blacklist", "video", "efi"}
)

_TOKEN = re.compile(r'(?P<gap>[ \t\n\v\f\r]*)(?P<text>(?:"[^"]*(?:"|\Z)|[^ \t\n\v\f\r"])+)')
_KEY = re.compile(r'[^\s"=]+')
_SPACE = " \t\n\v\f\r"


@dataclass(frozen=True)
class Argument:
    """One argument: ``gap`` is the white space before it, ``text`` its own bytes with all quotes."""

    gap: str
    text: str

    @property
    def _plain(self) -> str:
        """Without quotes around the whole argument."""
        return self.text[1:].removesuffix('"') if self.text.startswith('"') else self.text

    @property
    def key(self) -> str:
        """The key as the kernel compares it, with ``_`` for ``-``."""
        return self._plain.partition("=")[0].replace("-", "_")

    @property
    def value(self) -> str | None:
        """The value as the kernel sees it; None for a bare flag."""
        _, equals, value = self._plain.partition("=")
        if not equals:
            return None
        return value[1:].removesuffix('"') if value.startswith('"') else value


@dataclass(frozen=True)
class CommandLine:
    """All arguments in order, and the white space after the last one (usually a line end)."""

    arguments: tuple[Argument, ...]
    tail: str

    def render(self) -> str:
        return "".join(argument.gap + argument.text for argument in self.arguments) + self.tail

    @property
    def own(self) -> tuple[Argument, ...]:
        """The kernel's own arguments, up to ``--``."""
        return self.arguments[: self.end]

    @property
    def end(self) -> int:
        """Number of the kernel's own arguments: those from ``--`` on are init's."""
        return next((index for index, item in enumerate(self.arguments) if item.text == "--"), len(self.arguments))


def parse(text: str) -> CommandLine:
    """Take a command line apart; ``parse(text).render() == text`` for every text."""
    arguments: list[Argument] = []
    position = 0
    while True:
        found = _TOKEN.match(text, position)
        if found is None:
            return CommandLine(tuple(arguments), text[position:])
        arguments.append(Argument(found["gap"], found["text"]))
        position = found.end()


def _normal(key: str) -> str:
    if not _KEY.fullmatch(key) or key == "--":
        raise ValueError(f"{key!r} is not the name of a kernel argument")
    return key.replace("-", "_")


def render_argument(key: str, value: str | bool) -> str:
    """``key``, ``key=value`` or ``key="a value"``; ValueError where the kernel could not read it back."""
    _normal(key)
    if value is True:
        return key
    if value is False or '"' in value or any(character in value for character in "\n\v\f\r\0"):
        raise ValueError(f"{key}={value!r} cannot be written on a kernel command line")
    return f'{key}="{value}"' if any(character in value for character in _SPACE) else f"{key}={value}"


def _is(argument: Argument, value: str | bool) -> bool:
    return argument.value is None if value is True else argument.value == value


def _set(line: CommandLine, key: str, value: str | bool) -> CommandLine:
    """The line with exactly this argument, in place of the first with its key, else after the kernel's last one."""
    text = render_argument(key, value)
    name = _normal(key)
    places = [index for index, item in enumerate(line.own) if item.key == name]
    right = [_is(line.arguments[index], value) for index in places]
    if places and (all(right) or (name in REPEATABLE and any(right))):
        return line
    if places:
        first = places[0]
        arguments = list(line.arguments)
        arguments[first] = Argument(arguments[first].gap, text)
        return _without(CommandLine(tuple(arguments), line.tail), places[1:])
    arguments = list(line.arguments)
    arguments.insert(line.end, Argument(" " if line.end else "", text))
    if line.end == 0 and len(arguments) > 1:  # before a "--" that had nothing in front of it
        arguments[1] = Argument(arguments[1].gap or " ", arguments[1].text)
    return CommandLine(tuple(arguments), line.tail)


def _without(line: CommandLine, places: list[int]) -> CommandLine:
    """The line without these arguments and the white space before each; the first one left keeps the line's start."""
    kept = [item for index, item in enumerate(line.arguments) if index not in places]
    if kept and 0 in places:
        kept[0] = Argument(line.arguments[0].gap, kept[0].text)
    return CommandLine(tuple(kept), line.tail)


def _check(line: CommandLine, current: str, wanted: Wanted) -> None:
    """ValueError where a change would be a guess."""
    if current.count('"') % 2:
        raise ValueError(f"unbalanced double quote in the kernel command line: {current.strip()!r}")
    names = [_normal(key) for key in wanted]
    for name, value in zip(names, wanted.values(), strict=True):
        if names.count(name) > 1:
            raise ValueError(f"{name} is wanted twice, once with '-' and once with '_'")
        there = [item for item in line.own if item.key == name]
        satisfied = value is not None and any(_is(item, value) for item in there)
        if name in REPEATABLE and len({item.value for item in there}) > 1 and not satisfied:
            raise ValueError(f"{name} occurs several times with different values; change it by hand: {current.strip()}")


def apply(current: str, wanted: Wanted) -> str:
    """The command line with our arguments.

    current  one line, with or without a line end, which is kept
    wanted   key -> value; True for a bare flag; None or False removes the key. Keys compare as the kernel does.

    An argument that is there is replaced in place, with further ones of its key taken out; a new one is appended
    before ``--``. Repeated arguments that are all right already stay. Everything else is kept byte for byte.

    ValueError: an unbalanced quote, an unwritable key or value, or a wish for one of several ``console=`` and the like.
    """
    line = parse(current)
    _check(line, current, wanted)
    for key, value in wanted.items():
        if value is None or value is False:
            name = _normal(key)
            line = _without(line, [index for index, item in enumerate(line.own) if item.key == name])
        else:
            line = _set(line, key, value)
    return line.render()


def missing(actual: str, wanted: Wanted) -> list[str]:
    """What ``actual`` (/proc/cmdline, or the options of a boot entry) lacks; empty where all of it is in effect.

    ``key=value`` for an argument that is not there or whose last occurrence says otherwise (for a repeatable key: none
    says it), ``key (must be absent)`` for one that should not be there.
    """
    lacks = []
    own = parse(actual).own
    for key, value in wanted.items():
        name = _normal(key)
        there = [item for item in own if item.key == name]
        if value is None or value is False:
            if there:
                lacks.append(f"{key} (must be absent)")
        elif not any(_is(item, value) for item in (there if name in REPEATABLE else there[-1:])):
            lacks.append(render_argument(key, value))
    return lacks


def effective_first_line(text: str) -> tuple[str, list[str]]:
    """What proxmox-boot-tool takes from /etc/kernel/cmdline, and what is wrong with the rest.

    Only the first line counts and it must hold ``root=`` (zz-proxmox-boot; case cmdline-01). The line comes without
    its end; each warning is a sentence.
    """
    first, *rest = text.split("\n")
    first = first.removesuffix("\r")
    warnings = [
        f"line {number} of /etc/kernel/cmdline has no effect, only the first line counts: {line.strip()}"
        for number, line in enumerate(rest, start=2)
        if line.strip()
    ]
    if not has_root(first):
        warnings.append("the first line of /etc/kernel/cmdline has no root=, so proxmox-boot-tool refuses to use it")
    return first, warnings


def has_root(text: str) -> bool:
    """Whether a command line names its root device."""
    return any(item.key == "root" and item.value for item in parse(text).own)


def _content(text: str) -> list[str]:
    """The lines that say something, the one with ``root=`` in front."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    said = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return sorted(said, key=lambda line: not has_root(line))  # stable: only root= moves


def rewrite_file(text: str, wanted: Wanted) -> str:
    """New content of /etc/kernel/cmdline: one line with our arguments and one line end (case cmdline-01).

    Arguments on further lines are joined to the first, the part with ``root=`` in front; comment lines are dropped,
    because the file knows none. ValueError where the result would have no ``root=``.
    """
    lines = _content(text)
    joined = lines[0] if len(lines) == 1 else " ".join(line.strip(_SPACE) for line in lines)
    result = apply(joined, wanted)
    if not has_root(result):
        raise ValueError(f"refusing to write a kernel command line without root=: {result!r}")
    return result + "\n"
