"""The assignments of a file that a POSIX shell sources, such as /etc/default/grub.

What is understood: assignments with all kinds of quotes, joined pieces, escapes, continued lines, ``$VAR`` and
``${VAR}``, several on a line, ``export``. Everything else makes the variables that it may concern unknown: a command
substitution the variable it is assigned to, ``if`` and the like those named within, a sourced file or ``eval`` all. An
unknown value is only a problem where one of the variables we need depends on it: then ValueError with file and line,
and nobody guesses. A file that the shell could not read is refused in any case: an unclosed quote, ``VAR+=``.

Pure: text in, frozen dataclasses out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

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
