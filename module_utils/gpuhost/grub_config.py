"""A generated grub.cfg: its menu, its default, and which entry the next boot takes.

Sources, the same in GRUB 2.06 and 2.12: grub-core/normal/menu.c (``get_entry_number``, ``menuentry_eq``, ``run_menu``,
``grub_menu_execute_entry``), grub-core/lib/cmdline.c (what the kernel receives), util/grub.d/00_header.in and
10_linux.in with Debian's patches (what is generated). Words and statements are in grub_script.py, the menu's lines in
grub_menu.py.

The file is a program: its top level is followed as GRUB would run it, as far as that can be known here. Functions are
not followed, nor are other files that it reads (``sources``; 41_custom reads custom.cfg where there is one).

Pure: text and dicts in, frozen dataclasses out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from . import grub_script
from .grub_menu import GrubEntry, MenuItem, Run
from .grub_script import Statement

__all__ = [
    "GrubConfig",
    "GrubEntry",
    "MenuItem",
    "next_boot",
    "parse",
    "received",
    "resolve",
]


@dataclass(frozen=True)
class _Default:
    """A ``set default=``. condition: the text of what stands over it, None without any."""

    line: int
    word: str
    condition: str | None


@dataclass(frozen=True)
class GrubConfig:
    """A grub.cfg.

    default_word        the default without a one-shot as the file says it: ``0``, an id path, a title, or
                        ``${saved_entry}``; None where it sets none
    honours_next_entry  whether it takes ``next_entry`` of the environment block
    clears_next_entry   whether it then saves an empty one
    sources             further files that it reads, as written
    """

    entries: tuple[GrubEntry, ...]
    menu: tuple[MenuItem, ...]
    default_word: str | None
    honours_next_entry: bool
    clears_next_entry: bool
    sources: tuple[str, ...]
    script: tuple[Statement, ...] = field(repr=False)


def _leaves(items: Sequence[MenuItem]) -> Iterator[GrubEntry]:
    for item in items:
        if item.entry is not None:
            yield item.entry
        yield from _leaves(item.items)


def _defaults(script: Sequence[Statement]) -> list[_Default]:
    """All lines that set a default, in order."""
    found = []
    for statement, condition in grub_script.walk(script):
        assigned = grub_script.assignment(statement)
        if assigned and assigned[0] == "default":
            found.append(_Default(statement.line, grub_script.as_written(assigned[1]), condition))
    return found


def parse(text: str) -> GrubConfig:
    """Take a grub.cfg apart. ValueError where GRUB itself could not read it.

    An entry under a condition that is not known here, such as the firmware's setup, is in the menu.
    """
    script = grub_script.Reader(text).body()
    run = Run({})
    menu = tuple(run.run(script))
    honours = clears = False
    own, all_of_them = None, _defaults(script)
    for statement in script:
        inside = _defaults([statement]) if statement.words[0] == "if" else []
        if not honours and any(line.word == "${next_entry}" for line in inside):
            honours = True
            clears = any(line.words == ("save_env", "next_entry") for line, _ in grub_script.walk([statement]))
            own = next((line for line in inside if line.condition == "else"), None)
    if not honours and all_of_them and all_of_them[0].condition is None:
        own = all_of_them[0]
    sources = (line.words[1] for line in run.lines if line.words[0] in ("source", ".", "configfile") and line.words[1:])
    return GrubConfig(
        entries=tuple(_leaves(menu)),
        menu=menu,
        default_word=own.word if own else None,
        honours_next_entry=honours,
        clears_next_entry=clears,
        sources=tuple(grub_script.as_written(word) for word in sources),
        script=script,
    )


# --- which entry a word selects


def _number(word: str) -> int | None:
    """GRUB's strtoul with base 0: the digits that a word *begins* with; None where it begins with none."""
    text = word.lstrip(" \t\n\v\f\r")
    found = re.match(r"0x([0-9a-f]+)", text, re.IGNORECASE) if text.startswith("0x") else None
    if found is not None:
        value = int(found[1], 16)
    elif octal := re.match(r"0[0-7]+", text):
        value = int(octal[0], 8)
    elif not text.startswith("0x") and (decimal := re.match(r"[0-9]+", text)):
        value = int(decimal[0])
    else:
        return None
    if value >= 1 << 64:
        return -1
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _split(word: str) -> tuple[str, str]:
    """The first level of a word, ``>>`` read as ``>``, and the rest after a single ``>``."""
    found = re.match(r"((?:>>|[^>])*)(?:>(.*))?", word, re.DOTALL)
    return (found[1].replace(">>", ">"), found[2] or "") if found else (word, "")


def resolve(config: GrubConfig, word: str) -> GrubEntry | None:
    """The entry that GRUB boots with ``default`` set to this word; None only where the menu, or the submenu, is empty.

    Each level of the word, up to a single ``>``, is looked up in one menu (normal/menu.c, ``get_entry_number``):
    where it begins with digits it is a number (0 is the first line, submenus count; ``1>2`` and ``6.1`` are 1 and 6),
    else the first line whose title or whose id is equal (``menuentry_eq``). What is not found, or lies past the end,
    is the first line (``run_menu``) - so an id from within a submenu without the submenu's boots the first entry. The
    rest is the default within a submenu (``grub_menu_execute_entry``); without a rest that is its first line, and
    after an entry that is no submenu the rest means nothing.
    """
    items = config.menu
    while items:
        name, rest = _split(word)
        number = _number(word)
        if number is None:
            number = next((index for index, item in enumerate(items) if name in (item.title, item.id)), -1)
        item = items[number] if 0 <= number < len(items) else items[0]
        if item.entry is not None:
            return item.entry
        items, word = item.items, rest
    return None


def next_boot(config: GrubConfig, env: Mapping[str, str], one_shot: bool = True) -> GrubEntry | None:
    """The entry that the next boot takes if nobody touches the menu; None where there is no entry.

    env       the environment block; variables that a search command sets (``search --set=esp``) are taken from it too
    one_shot  False: the boot after that one, when ``next_entry`` is used up

    ValueError where the default depends on something that is not known here; it names the line.
    """
    without = () if one_shot else ("next_entry", "prev_entry")
    run = Run({name: value for name, value in env.items() if name not in without})
    for _ in run.run(config.script):
        pass
    word = run.lookup("default")
    if word is None:
        raise ValueError(f"the default of grub.cfg depends on a condition that is not known here ({run.undecided})")
    return resolve(config, word)


# --- what the kernel receives


def received(options: str, variables: Mapping[str, str] | None = None) -> str:
    """What the kernel receives for the options of a linux line (lib/cmdline.c): compare this, not the line.

    GRUB takes the words apart as a shell does and drops their quotes; then it puts ``"`` around each whole word with a
    blank in it and a backslash before each of ``\\ ' "`` that is left. ``a="b c"`` becomes ``"a=b c"``, which the
    kernel reads as the same. A variable that is not set (Ubuntu's ``$vt_handoff``) is empty. /proc/cmdline has
    ``BOOT_IMAGE=<path>`` in front.

    ValueError for what would not stay one command of GRUB's, such as ``;`` or ``{`` without quotes.
    """
    known = variables or {}
    try:
        script = grub_script.Reader(f"linux path {options}").body()
    except ValueError as error:
        raise ValueError(f"GRUB could not read these options: {options!r}") from error
    if len(script) != 1:
        raise ValueError(f"GRUB would not read this as options of one kernel: {options!r}")
    result = []
    for raw in script[0].words[2:]:
        value = grub_script.value(raw, lambda name: known.get(name, "")) or ""
        if value or re.search("['\"]", raw):
            escaped = re.sub(r"([\\'\"])", r"\\\1", value)
            result.append(f'"{escaped}"' if " " in value else escaped)
    return " ".join(result)
