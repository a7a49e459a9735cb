"""/etc/default/grub and /etc/default/grub.d/*.cfg: what they come to, and a drop-in that gets our arguments in.

grub-mkconfig sources the main file and then each ``*.cfg`` in the order of a shell's glob (util/grub-mkconfig.in with
Debian's ``default-grub-d.patch``), with a plain POSIX shell under ``set -e``. Another ending (``.conf``) is not read. A
kernel gets ``$GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT``, a recovery entry only the first (10_linux.in).

What is understood: assignments with all kinds of quotes, joined pieces, escapes, continued lines, ``$VAR`` and
``${VAR}``, several on a line, ``export``. Everything else makes the variables that it may concern unknown: a command
substitution the variable it is assigned to, ``if`` and the like those named within, a sourced file or ``eval`` all. An
unknown value is only a problem where one of the variables we need depends on it: then ValueError with file and line,
and nobody guesses. A file that the shell could not read is refused in any case: an unclosed quote, ``VAR+=``.

Pure: text in, frozen dataclasses and text out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import cmdline, grub_config

#: Our drop-in: it sorts behind what distributions ship there (50-cloudimg-settings, init-select, kdump-tools).
OWN = "zz-gpuhost.cfg"
LINUX, DEFAULT = "GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT"
#: The variables whose value has to be certain.
NEEDED = (LINUX, DEFAULT, "GRUB_DEFAULT")

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_PIECE = re.compile(
    rf"""(?P<joined>\\\n)
    | \\(?P<escaped>.)
    | '(?P<single>[^']*)'
    | "(?P<double>(?:\\.|`(?:\\.|[^`\\])*`|[^"\\`])*)"
    | \$(?:(?P<bare>{_NAME})|\{{(?P<braced>{_NAME})\}})
    | (?P<unknown>`(?:\\.|[^`\\])*`|\$\((?:[^()]|\([^()]*\))*\)|\$\{{[^}}]*\}}|\$[0-9?#*@!$({{-]|(?<![^=:])~)
    | (?P<text>[^\s;&|<>()'"`])""",
    re.DOTALL | re.VERBOSE,
)
_IN_DOUBLE = re.compile(
    rf"""(?P<joined>\\\n)
    | \\(?P<escaped>[$`"\\])
    | \$(?:(?P<bare>{_NAME})|\{{(?P<braced>{_NAME})\}})
    | (?P<unknown>`(?:\\.|[^`\\])*`|\$\((?:[^()]|\([^()]*\))*\)|\$\{{[^}}]*\}}|\$[0-9?#*@!$({{-]|`)
    | (?P<text>.)""",
    re.DOTALL | re.VERBOSE,
)
_BLANK = re.compile(r"(?:[ \t]|\\\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_OPERATOR = re.compile(r"\n|;;|;|&&|\|\||&|\||<<-?|>>|[<>()]")
_ASSIGNMENT = re.compile(rf"({_NAME})=")
_OPENERS = frozenset({"if", "case", "for", "while", "until", "{"})
_CLOSERS = frozenset({"fi", "esac", "done", "}"})
_BETWEEN = frozenset({"then", "elif", "else", "do", "!"})
_ANYTHING = frozenset({".", "source", "eval", "exec", "exit", "return"})


@dataclass(frozen=True)
class Reference:
    """``$VAR``; quoted: within double quotes, where the shell does not split it."""

    name: str
    quoted: bool


@dataclass(frozen=True)
class Assignment:
    """``name=value`` at a line. parts: literal text and references; None where the value is not understood."""

    line: int
    name: str
    parts: tuple[str | Reference, ...] | None


@dataclass(frozen=True)
class Effective:
    """The values that grub-mkconfig works with; None where no file sets the variable.

    assigned  variable -> names of the files that assign it, in order
    """

    cmdline_linux: str | None
    cmdline_linux_default: str | None
    default: str | None
    assigned: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """What a kernel gets behind ``root=... ro``."""
        return f"{self.cmdline_linux or ''} {self.cmdline_linux_default or ''}"


@dataclass(frozen=True)
class _Word:
    raw: str
    parts: tuple[str | Reference, ...] | None


def _parts(text: str, pattern: re.Pattern[str], quoted: bool) -> list[str | Reference | None]:
    """The pieces of a word or of what is in double quotes; None for one that is not understood."""
    parts: list[str | Reference | None] = []
    for found in pattern.finditer(text):
        piece = found.groupdict()
        name = piece["bare"] or piece["braced"]
        if name:
            parts.append(Reference(name, quoted))
        elif piece["unknown"] is not None:
            parts.append(None)
        elif piece.get("double") is not None:
            parts += _parts(piece["double"], _IN_DOUBLE, quoted=True)
        elif piece["joined"] is None:
            parts.append(piece["escaped"] or piece.get("single") or piece["text"] or "")
    return parts


def _statements(text: str) -> list[tuple[int, list[_Word], str]]:
    """(line, words, the operator that ended it) of each simple command; ValueError for an unclosed quote."""
    result: list[tuple[int, list[_Word], str]] = []
    words: list[_Word] = []
    position, line = 0, 1

    def at() -> int:
        return text.count("\n", 0, position) + 1

    while position < len(text):
        if found := _BLANK.match(text, position) or _COMMENT.match(text, position):
            position = found.end()
        elif found := _OPERATOR.match(text, position):
            if words or found[0] not in "\n":
                result.append((line if words else at(), words, found[0]))
            words, position = [], found.end()
        else:
            line = line if words else at()
            start = position
            while found := _PIECE.match(text, position):
                position = found.end()
            if position == start:
                raise ValueError(f"line {at()}: a quote that is not closed: {text[position:].splitlines()[0]!r}")
            raw = text[start:position]
            known = [part for part in _parts(raw, _PIECE, quoted=False) if part is not None]
            words.append(_Word(raw, tuple(known) if None not in _parts(raw, _PIECE, quoted=False) else None))
    if words:
        result.append((line, words, ""))
    return result


def _assignment(line: int, word: _Word, exported: bool) -> Assignment | None:
    """The word as an assignment; None where it is none."""
    found = _ASSIGNMENT.match(word.raw)
    if found is None:
        return None
    if word.parts is None:
        return Assignment(line, found[1], None)
    parts = list(word.parts)
    rest = len(found[0])  # the name and "=" are single characters of the first parts
    parts = parts[rest:]
    # an older dash splits what an unquoted variable gives to export at its blanks
    split = exported and any(isinstance(part, Reference) and not part.quoted for part in parts)
    return Assignment(line, found[1], None if split else tuple(parts))


def _mentioned(line: int, words: Sequence[_Word], everything: bool) -> list[Assignment]:
    """The variables we need, unknown from here on, where a statement may set them."""
    text = " ".join(word.raw for word in words)
    return [Assignment(line, name, None) for name in NEEDED if everything or re.search(rf"\b{name}\b", text)]


def assignments(text: str) -> list[Assignment]:
    """The assignments of one file in order, unknown ones included; ValueError where the shell could not read it."""
    result: list[Assignment] = []
    depth = parentheses = 0
    functions = False
    before = "\n"
    for line, words, operator in _statements(text):
        _refuse(line, words, operator)
        opened, head = _head(words)
        depth += opened
        exported = head == "export"
        found = [_assignment(line, word, exported) for word in words[1 if exported else 0 :]]
        plain = [item for item in found if item is not None]
        certain = depth == parentheses == 0 and operator in ("\n", ";", "") and before in ("\n", ";")
        functions = functions or (operator == "(" and bool(words))
        if certain and (exported or len(plain) == len(found)):
            result += plain
        elif words:
            # in front of a command they are its environment only; a function or a sourced file may set anything
            result += _mentioned(line, words, functions or any(word.raw in _ANYTHING for word in words))
        depth -= head in _CLOSERS
        parentheses = max(parentheses + (operator == "(") - (operator == ")"), 0)  # "a)" of a case opens none
        before = operator
    return result


def _refuse(line: int, words: Sequence[_Word], operator: str) -> None:
    for word in words:
        if re.match(rf"{_NAME}\+=", word.raw):
            raise ValueError(f"line {line}: a POSIX shell has no +=, and update-grub fails at it: {word.raw!r}")
    if operator.startswith("<<"):
        raise ValueError(f"line {line}: a here-document, which is not understood")


def _head(words: Sequence[_Word]) -> tuple[int, str]:
    """How many compound commands a statement opens, and its first word behind those."""
    opened = 0
    for word in words:
        if word.raw not in _OPENERS | _BETWEEN:
            return opened, word.raw
        opened += word.raw in _OPENERS
    return opened, ""


def _order(name: str) -> tuple[bool, bytes]:
    """The main file first, then the drop-ins as a shell's glob sorts them in the C locale."""
    last = name.rsplit("/", 1)[-1]
    return last.endswith(".cfg"), last.encode("utf-8", "surrogateescape")


def _is_read(name: str) -> bool:
    last = name.rsplit("/", 1)[-1]
    return last == "grub" or (last.endswith(".cfg") and not last.startswith("."))


def effective(files: Sequence[tuple[str, str]], without_ours: bool = False) -> Effective:
    """The values after all files were sourced.

    files         (name or path, text) of /etc/default/grub and of the files in grub.d, in any order
    without_ours  leave our own drop-in out: what ``render_dropin`` starts from

    ValueError, with file and line, where a variable we need is not certain.
    """
    values: dict[str, str | None] = {}
    unknown: dict[str, str] = {}
    assigned: dict[str, tuple[str, ...]] = {}
    for name, text in sorted(files, key=lambda item: _order(item[0])):
        if not _is_read(name) or (without_ours and name.rsplit("/", 1)[-1] == OWN):
            continue
        try:
            found = assignments(text)
        except ValueError as error:
            raise ValueError(f"{name}, {error}") from error
        for item in found:
            assigned[item.name] = (*assigned.get(item.name, ()), name)
            value = _evaluate(item, values)
            values[item.name] = value
            if value is None:
                references = [part.name for part in item.parts or () if isinstance(part, Reference)]
                cause = next((unknown[other] for other in references if other in unknown), "")
                unknown[item.name] = cause or f"{name}, line {item.line}"
    for needed in NEEDED:
        if needed in values and values[needed] is None:
            raise ValueError(f"{unknown[needed]}: the value of {needed} is not understood")
    return Effective(values.get(LINUX), values.get(DEFAULT), values.get("GRUB_DEFAULT"), assigned)


def _evaluate(item: Assignment, values: dict[str, str | None]) -> str | None:
    """The value of an assignment; None where it is unknown. A variable that is not set is empty."""
    if item.parts is None:
        return None
    result = ""
    for part in item.parts:
        value = values.get(part.name, "") if isinstance(part, Reference) else part
        if value is None:
            return None
        result += value
    return result


# --- our drop-in


def _escaped(text: str) -> str:
    """Text for between double quotes of a shell; ValueError for a line end, which a kernel line cannot hold."""
    if re.search(r"[\n\0]", text):
        raise ValueError(f"a line end in {text!r}")
    return re.sub(r'([\\"$`])', r"\\\1", text)


def _has(text: str, key: str) -> bool:
    name = key.replace("-", "_")
    return any(item.key == name for item in cmdline.parse(text).own)


def _changed(linux: str, default: str, wanted: cmdline.Wanted) -> tuple[str, str]:
    """Both values with our arguments: each where its key is already, a new one in the second."""
    for key, value in wanted.items():
        together = f"{linux} {default}"
        if cmdline.apply(together, {key: value}) == together:  # right already; also refuses to guess
            continue
        if value is None or value is False:
            linux, default = cmdline.apply(linux, {key: None}), cmdline.apply(default, {key: None})
        elif _has(linux, key) or len(cmdline.parse(linux).own) < len(cmdline.parse(linux).arguments):
            linux, default = cmdline.apply(linux, {key: value}), cmdline.apply(default, {key: None})
        else:
            default = cmdline.apply(default, {key: value})
    return linux, default


def _others(line: str, wanted: cmdline.Wanted) -> list[tuple[str, str | None]]:
    keys = {key.replace("-", "_") for key in wanted}
    return [(item.key, item.value) for item in cmdline.parse(line).arguments if item.key not in keys]


def render_dropin(effective_before: Effective, wanted: cmdline.Wanted) -> str:
    """Text of ``/etc/default/grub.d/zz-gpuhost.cfg``; empty where the arguments are all right without it.

    effective_before  the values without our own drop-in

    A new argument is appended, so that later changes of the other files still count. Where one has to be replaced or
    removed, the value is set as a whole. Nothing else is changed, which is proven on what the kernel receives.

    ValueError: a guess would be needed (see ``cmdline.apply``), GRUB could not hand a value on, or a file that sorts
    behind ours sets the same variable.
    """
    linux, default = effective_before.cmdline_linux or "", effective_before.cmdline_linux_default or ""
    if "\n" in linux + default:
        raise ValueError(f"a line end within {LINUX} or {DEFAULT}: it would end the command in grub.cfg")
    new_linux, new_default = _changed(linux, default, wanted)
    if (new_linux, new_default) == (linux, default):
        return ""
    before, after = (grub_config.received(text) for text in (f"{linux} {default}", f"{new_linux} {new_default}"))
    lacks = cmdline.missing(after, wanted)
    if lacks or _others(before, wanted) != _others(after, wanted):
        raise ValueError(f"GRUB would not hand these arguments to the kernel as they are: {' '.join(lacks) or after}")
    lines = ["# Written by gpuhost: kernel arguments. What is set here by hand is lost."]
    for name, old, new in ((LINUX, linux, new_linux), (DEFAULT, default, new_default)):
        if new == old:
            continue
        sources = effective_before.assigned.get(name, ())
        later = [source for source in sources if _order(source) > _order(OWN)]
        if later:
            raise ValueError(f"{later[-1]} sorts behind {OWN} and sets {name} again")
        kept = old.rstrip(" ")
        if not kept or new.startswith(kept + " "):
            lines.append(f'{name}="${name} {_escaped(new[len(kept) :].strip(" "))}"')
        else:
            lines.append(f"# An argument is replaced, so this is the whole value. {sources[-1]} came to: {old}")
            lines.append(f'{name}="{_escaped(new)}"')
    return "\n".join(lines) + "\n"


def with_default(entry: str) -> str:
    """Text of a drop-in that makes an entry the default, by its id path.

    grub-mkconfig copies the value between double quotes of grub.cfg as it is: ValueError for what would not survive.
    """
    if not entry or re.search(r'[\\"$`\n\0]', entry):
        raise ValueError(f"{entry!r} cannot be a GRUB_DEFAULT")
    return f'GRUB_DEFAULT="{entry}"\n'
