"""GRUB's language: the statements of a script, and what a word of it comes to.

Sources, the same in GRUB 2.06 and 2.12: grub-core/script/yylex.l and parser.y (words and statements).

Pure: text in, frozen dataclasses out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE = rf"\$(?:(?P<bare>{NAME}|[0-9]+|[?#*@])|\{{(?P<braced>{NAME}|[0-9]+|[?#*@])\}})"
_ANY_VARIABLE = rf"\$(?:{NAME}|[0-9]+|[?#*@]|\{{(?:{NAME}|[0-9]+|[?#*@])\}})"
_WORD = rf"(?:[^{{}}|&$;<> \t\n'\"\\]|\\.|\"(?:\\.|[^\"\\])*\"|'[^']*'|{_ANY_VARIABLE})+"
_TOKEN = re.compile(
    rf"(?:[ \t]|\\\n)*(?:\#[^\n]*)?(?:(?P<end>[\n;])|(?P<brace>[{{}}])|(?P<word>{_WORD})|\Z)", re.DOTALL
)
_PIECE = re.compile(
    rf"'(?P<single>[^']*)'|\"(?P<double>(?:\\.|[^\"\\])*)\"|\\(?P<escaped>.)|{_VARIABLE}|(?P<text>.)", re.DOTALL
)
_IN_DOUBLE = re.compile(rf"\\(?P<escaped>[$\\\"\n])|{_VARIABLE}|(?P<text>.)", re.DOTALL)
_ASSIGNMENT = re.compile(rf"(?P<name>{NAME})=(?P<value>.*)", re.DOTALL)

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


class Reader:
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


def value(raw: str, lookup: Lookup) -> str | None:
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


def as_written(raw: str) -> str:
    """A word without its quotes, variables as they stand."""
    return value(raw, lambda name: f"${{{name}}}") or ""


def assignment(statement: Statement) -> tuple[str, str] | None:
    """Name and raw value of ``set a=b`` or ``a=b``."""
    words = statement.words[1:] if statement.words[0] == "set" else statement.words
    found = _ASSIGNMENT.fullmatch(words[0]) if len(words) == 1 else None
    return (found["name"], found["value"]) if found else None


def walk(script: Sequence[Statement], condition: str | None = None) -> Iterator[tuple[Statement, str | None]]:
    """All commands, with the condition over each; neither functions nor menu entries are entered."""
    for statement in script:
        if statement.words[0] in ("menuentry", "submenu", "function"):
            continue
        if not statement.branches:
            yield statement, condition
        for tests, body in statement.branches:
            said = " ".join(word for test in tests for word in test.words) if tests else "else"
            yield from walk(body, f"{condition}, {said}" if condition else said)
