"""A generated grub.cfg: its menu, its default, and which entry the next boot takes.

Sources, the same in GRUB 2.06 and 2.12: grub-core/script/yylex.l and parser.y (words and statements),
grub-core/normal/menu.c (``get_entry_number``, ``menuentry_eq``, ``run_menu``, ``grub_menu_execute_entry``),
grub-core/commands/menuentry.c (an entry without an id has its title as id), grub-core/lib/cmdline.c (what the kernel
receives), util/grub.d/00_header.in and 10_linux.in with Debian's patches (what is generated).

The file is a program: its top level is followed as GRUB would run it, as far as that can be known here. Functions are
not followed, nor are other files that it reads (``sources``; 41_custom reads custom.cfg where there is one).

Pure: text and dicts in, frozen dataclasses out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from . import cmdline

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE = rf"\$(?:(?P<bare>{_NAME}|[0-9]+|[?#*@])|\{{(?P<braced>{_NAME}|[0-9]+|[?#*@])\}})"
_ANY_VARIABLE = rf"\$(?:{_NAME}|[0-9]+|[?#*@]|\{{(?:{_NAME}|[0-9]+|[?#*@])\}})"
_WORD = rf"(?:[^{{}}|&$;<> \t\n'\"\\]|\\.|\"(?:\\.|[^\"\\])*\"|'[^']*'|{_ANY_VARIABLE})+"
_TOKEN = re.compile(
    rf"(?:[ \t]|\\\n)*(?:\#[^\n]*)?(?:(?P<end>[\n;])|(?P<brace>[{{}}])|(?P<word>{_WORD})|\Z)", re.DOTALL
)
_PIECE = re.compile(
    rf"'(?P<single>[^']*)'|\"(?P<double>(?:\\.|[^\"\\])*)\"|\\(?P<escaped>.)|{_VARIABLE}|(?P<text>.)", re.DOTALL
)
_IN_DOUBLE = re.compile(rf"\\(?P<escaped>[$\\\"\n])|{_VARIABLE}|(?P<text>.)", re.DOTALL)
_ASSIGNMENT = re.compile(rf"(?P<name>{_NAME})=(?P<value>.*)", re.DOTALL)
_SET_OPTION = re.compile(rf"--set[= ]({_NAME})")
#: What GRUB, its firmware or a command sets by itself: not known here. Any other variable that is not set is empty.
_NOT_KNOWN = re.compile(r"[0-9?#*@]+|grub_.*|feature_.*|net_.*|prefix|root|cmdpath|config_\w+|lang|shim_lock|match")
_LINUX = ("linux", "linuxefi", "linux16")
_INITRD = ("initrd", "initrdefi", "initrd16")
_RECOVERY_ID = re.compile(r"gnulinux-[^>]+-recovery-[^>]*\Z")
_RECOVERY_WORD = re.compile(r"(?:^|\s)(?:single|recovery|emergency|rescue)(?=\s|$)")

Lookup = Callable[[str], "str | None"]


@dataclass(frozen=True)
class Statement:
    """A command, ``if`` or loop.

    words     raw words of a command with all quotes; ("if",) or ("for",) and the like otherwise
    rest      source text after the second word
    branches  (condition, body) of an ``if``, with no condition for ``else``; one body of a menuentry, function or loop
    """

    line: int
    words: tuple[str, ...]
    rest: str = ""
    branches: tuple[tuple[tuple[Statement, ...], tuple[Statement, ...]], ...] = ()


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


@dataclass(frozen=True)
class Override:
    """A ``set default=`` after the file's own. condition: the text of what stands over it, None without any."""

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
    overrides           later lines that set another default; ``next_boot`` obeys them
    sources             further files that it reads, as written
    """

    entries: tuple[GrubEntry, ...]
    menu: tuple[MenuItem, ...]
    default_word: str | None
    honours_next_entry: bool
    clears_next_entry: bool
    overrides: tuple[Override, ...]
    sources: tuple[str, ...]
    script: tuple[Statement, ...] = field(repr=False)


class _Reader:
    """Statements from text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.last: str | None = None  # the word that ended the last body

    def fail(self, what: str) -> ValueError:
        return ValueError(f"line {self.line} of grub.cfg: {what}")

    @property
    def line(self) -> int:
        return self.text.count("\n", 0, self.position) + 1

    def peek(self) -> re.Match[str]:
        found = _TOKEN.match(self.text, self.position)
        if found is None:
            raise self.fail(f"GRUB could not read {self.text[self.position : self.position + 40].strip()!r}")
        return found

    def take(self) -> re.Match[str]:
        found = self.peek()
        self.position = found.end()
        return found

    def body(self, *stops: str) -> tuple[Statement, ...]:
        """Statements up to one of these words, which is taken; without any, up to the end of the text."""
        result: list[Statement] = []
        while True:
            found = self.peek()
            word = found["word"] or found["brace"]
            if word in stops or (word is None and found["end"] is None):
                if stops and word is None:
                    raise self.fail(f"the file ends where {' or '.join(stops)} is missing")
                self.last = word
                self.position = found.end()
                return tuple(result)
            if found["end"]:
                self.position = found.end()
            elif found["brace"]:
                raise self.fail(f"a {word} that nothing leads to")
            else:
                result.append(self.statement())

    def statement(self) -> Statement:
        first = self.peek()
        self.position = first.start("word")
        line = self.line
        word = first["word"]
        if word == "if":
            self.take()
            return Statement(line, ("if",), "", tuple(self.conditions()))
        if word in ("while", "until", "for"):
            self.take()
            return Statement(line, (word,), "", ((self.body("do"), self.body("done")),))
        return self.command(line)

    def conditions(self) -> Iterator[tuple[tuple[Statement, ...], tuple[Statement, ...]]]:
        self.last = "if"
        while self.last != "fi":
            condition = () if self.last == "else" else self.body("then")
            yield condition, self.body("elif", "else", "fi")

    def command(self, line: int) -> Statement:
        words: list[str] = []
        start = end = self.position
        while (found := self.peek())["word"]:
            words.append(found["word"])
            self.position = end = found.end()
            start = end if len(words) <= 2 else start
        rest = self.text[start:end].strip(" \t")
        if found["brace"] == "{" and words[0] in ("menuentry", "submenu", "function"):
            self.take()
            return Statement(line, tuple(words), rest, (((), self.body("}")),))
        if found["brace"] == "{":
            raise self.fail("a { that belongs to no menu entry")
        return Statement(line, tuple(words), rest)


def _value(raw: str, lookup: Lookup) -> str | None:
    """A word without its quotes and with its variables; None where one of them is not known."""

    def pieces(pattern: re.Pattern[str], text: str) -> Iterator[str | None]:
        for found in pattern.finditer(text):
            parts = found.groupdict()
            name = parts["bare"] or parts["braced"]
            if name:
                yield lookup(name)
            elif parts.get("double") is not None:
                yield from pieces(_IN_DOUBLE, parts["double"])
            elif parts["escaped"] is not None:
                yield "" if parts["escaped"] == "\n" else parts["escaped"]
            else:
                yield parts.get("single") or parts["text"] or ""

    result = list(pieces(_PIECE, raw))
    return None if None in result else "".join(part for part in result if part is not None)


def _as_written(raw: str) -> str:
    """A word without its quotes, variables as they stand."""
    return _value(raw, lambda name: f"${{{name}}}") or ""


def _assignment(statement: Statement) -> tuple[str, str] | None:
    """Name and raw value of ``set a=b`` or ``a=b``."""
    words = statement.words[1:] if statement.words[0] == "set" else statement.words
    found = _ASSIGNMENT.fullmatch(words[0]) if len(words) == 1 else None
    return (found["name"], found["value"]) if found else None


class _Run:
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
        assigned = _assignment(statement)
        if assigned:
            name, raw = assigned
            self.variables[name] = None if maybe else _value(raw, self.lookup)
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
        values = [_value(word, self.lookup) for word in raw]
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
        title, name = _title_and_id([_value(word, self.lookup) or "" for word in statement.words[1:]])
        path, titles = (*path, name.replace(">", ">>")), (*titles, title)
        body = statement.branches[0][1] if statement.branches else ()
        inner = _Run(self.given)
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


def _walk(script: Sequence[Statement], condition: str | None = None) -> Iterator[tuple[Statement, str | None]]:
    """All commands, with the condition over each; neither functions nor menu entries are entered."""
    for statement in script:
        if statement.words[0] in ("menuentry", "submenu", "function"):
            continue
        if not statement.branches:
            yield statement, condition
        for tests, body in statement.branches:
            said = " ".join(word for test in tests for word in test.words) if tests else "else"
            yield from _walk(body, f"{condition}, {said}" if condition else said)


def _entry(name: str, titles: tuple[str, ...], lines: Sequence[Statement], body: Sequence[Statement]) -> GrubEntry:
    linux = [line for line in lines if line.words[0] in _LINUX and len(line.words) > 1]
    initrd = [line for line in lines if line.words[0] in _INITRD]
    written = _as_written(linux[-1].words[1]) if linux else ""
    device, path = re.findall(r"^(\([^)]*\))?(.*)", written, re.DOTALL)[0]
    release = re.search(r"(?:^|/)vmlinuz-([^/]+?)(?:\.efi\.signed)?$", path)
    options = linux[-1].rest if linux else ""
    return GrubEntry(
        id=name,
        title=titles,
        release=release[1] if release else None,
        linux=path or None,
        device=device,
        initrd=tuple(_as_written(word) for word in initrd[-1].words[1:]) if initrd else (),
        options=options,
        recovery=bool(_RECOVERY_ID.search(name) or _RECOVERY_WORD.search(options)),
        all_options=tuple(line.rest for line, _ in _walk(body) if line.words[0] in _LINUX),
    )


def _leaves(items: Sequence[MenuItem]) -> Iterator[GrubEntry]:
    for item in items:
        if item.entry is not None:
            yield item.entry
        yield from _leaves(item.items)


def _defaults(script: Sequence[Statement]) -> list[Override]:
    """All lines that set a default, in order."""
    found = []
    for statement, condition in _walk(script):
        assigned = _assignment(statement)
        if assigned and assigned[0] == "default":
            found.append(Override(statement.line, _as_written(assigned[1]), condition))
    return found


def parse(text: str) -> GrubConfig:
    """Take a grub.cfg apart. ValueError where GRUB itself could not read it.

    An entry under a condition that is not known here, such as the firmware's setup, is in the menu.
    """
    script = _Reader(text).body()
    run = _Run({})
    menu = tuple(run.run(script))
    honours = clears = False
    own, others = None, _defaults(script)
    for statement in script:
        inside = _defaults([statement]) if statement.words[0] == "if" else []
        if not honours and any(line.word == "${next_entry}" for line in inside):
            honours = True
            clears = any(line.words == ("save_env", "next_entry") for line, _ in _walk([statement]))
            own = next((line for line in inside if line.condition == "else"), None)
            others = [line for line in others if line.line > inside[-1].line]
    if not honours and others and others[0].condition is None:
        own = others.pop(0)
    sources = (line.words[1] for line in run.lines if line.words[0] in ("source", ".", "configfile") and line.words[1:])
    return GrubConfig(
        entries=tuple(_leaves(menu)),
        menu=menu,
        default_word=own.word if own else None,
        honours_next_entry=honours,
        clears_next_entry=clears,
        overrides=tuple(others),
        sources=tuple(_as_written(word) for word in sources),
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


def exists(config: GrubConfig, word: str) -> bool:
    """Whether a word is the full id path of an entry, so that it selects that entry and no other by accident."""
    found = resolve(config, word)
    return found is not None and found.id == word


def next_boot(config: GrubConfig, env: Mapping[str, str], one_shot: bool = True) -> GrubEntry | None:
    """The entry that the next boot takes if nobody touches the menu; None where there is no entry.

    env       the environment block; variables that a search command sets (``search --set=esp``) are taken from it too
    one_shot  False: the boot after that one, when ``next_entry`` is used up

    ValueError where the default depends on something that is not known here; it names the line.
    """
    without = () if one_shot else ("next_entry", "prev_entry")
    run = _Run({name: value for name, value in env.items() if name not in without})
    for _ in run.run(config.script):
        pass
    word = run.lookup("default")
    if word is None:
        raise ValueError(f"the default of grub.cfg depends on a condition that is not known here ({run.undecided})")
    return resolve(config, word)


def entries_for(config: GrubConfig, release: str) -> list[GrubEntry]:
    """The entries of one kernel release without the recovery ones, those within a submenu first.

    The top-level ``gnulinux-simple-...`` leads to another kernel after the next update-grub, the others do not.
    """
    found = [entry for entry in config.entries if entry.release == release and not entry.recovery]
    return sorted(found, key=lambda entry: len(entry.title) == 1)


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
        script = _Reader(f"linux path {options}").body()
    except ValueError as error:
        raise ValueError(f"GRUB could not read these options: {options!r}") from error
    if len(script) != 1:
        raise ValueError(f"GRUB would not read this as options of one kernel: {options!r}")
    result = []
    for raw in script[0].words[2:]:
        value = _value(raw, lambda name: known.get(name, "")) or ""
        if value or re.search("['\"]", raw):
            escaped = re.sub(r"([\\'\"])", r"\\\1", value)
            result.append(f'"{escaped}"' if " " in value else escaped)
    return " ".join(result)


def quote_options(options: str) -> str:
    """A kernel command line (as in /proc/cmdline) as options of a linux line, from which the kernel receives the same.

    ValueError where that cannot be: GRUB puts a backslash before a quote, and the kernel takes it literally.
    """
    words = []
    for argument in cmdline.parse(options.strip()).arguments:
        plain = argument.text.replace('"', "")
        words.append(plain if re.fullmatch(r"[A-Za-z0-9_.,:/=@%+~^()-]+", plain) else f"'{plain}'")
    result = " ".join(words)
    if "'" in options or _arguments(received(result)) != _arguments(options):
        raise ValueError(f"GRUB cannot hand this command line to the kernel: {options.strip()!r}")
    return result


def _arguments(line: str) -> list[tuple[str, str | None]]:
    return [(item.key, item.value) for item in cmdline.parse(line.strip()).arguments]
