"""What servers were declared to run with, against the command lines that they really have.

``host_audit_serving_flags`` is a list of ``{match: TEXT, flags: [FLAG, ...]}``: every server whose command line, or
whose container, has the text is meant to run with these flags (``--ep-size 8``, ``--trust-remote-code``). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import stop

VARIABLE = "host_audit_serving_flags"

_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
# Spellings of the same option: SGLang's ServerArgs, vLLM's EngineArgs, llama.cpp's common/arg.cpp.
_SAME = (
    ("--tensor-parallel-size", "--tp-size", "--tp", "-tp"),
    ("--pipeline-parallel-size", "--pp-size", "--pp", "-pp"),
    ("--data-parallel-size", "--dp-size", "--dp", "-dp"),
    ("--expert-parallel-size", "--ep-size", "--ep"),
    ("--enable-expert-parallel", "-ep"),
    ("--model-path", "--model"),
    ("--mem-fraction-static",),
    ("--n-gpu-layers", "--gpu-layers", "-ngl"),
    ("--ctx-size", "-c"),
    ("--n-predict", "--predict", "-n"),
    ("--parallel", "-np"),
    ("--flash-attn", "-fa"),
)
_ALIASES = {name: names[0] for names in _SAME for name in names}


@dataclass(frozen=True)
class Flag:
    """One option; ``value`` None where it stands alone, or where any value will do."""

    name: str
    value: str | None = None

    @property
    def text(self) -> str:
        """As it is written."""
        return self.name if self.value is None else f"{self.name} {self.value}"


@dataclass(frozen=True)
class Declared:
    """Flags of the servers that a text picks."""

    match: str
    flags: tuple[Flag, ...]


def declared(given: Any) -> tuple[Declared, ...]:
    """From the role's variable. Raises Stop(input.invalid)."""
    if not isinstance(given, (list, tuple)):
        raise stop("input.invalid", VARIABLE, repr(given), "a list of {match, flags}")
    return tuple(_one(item) for item in given)


def _one(item: Any) -> Declared:
    shape = "{match: TEXT, flags: [FLAG, ...]}"
    if not isinstance(item, Mapping) or set(item) != {"match", "flags"}:
        raise stop("input.invalid", VARIABLE, repr(item), shape)
    match, flags = item["match"], item["flags"]
    texts = [flags] if isinstance(flags, str) else flags
    if not isinstance(match, str) or not match or not isinstance(texts, (list, tuple)) or not texts:
        raise stop("input.invalid", VARIABLE, repr(item), shape)
    return Declared(match, tuple(_flag(text) for text in texts))


def _flag(text: Any) -> Flag:
    words = text.replace("=", " ", 1).split(None, 1) if isinstance(text, str) else []
    if not words or not _FLAG.fullmatch(words[0]):
        raise stop("input.invalid", VARIABLE, repr(text), "one flag, such as --ep-size 8")
    return Flag(words[0], words[1].strip() if len(words) > 1 else None)


def canonical(name: str) -> str:
    """One spelling for each option: argparse and vLLM take ``_`` for ``-``."""
    plain = name.replace("_", "-") if name.startswith("--") else name
    return _ALIASES.get(plain, plain)


def given(argv: Sequence[str]) -> dict[str, str | None]:
    """The options of a command line by their one spelling; of a repeated one the last, as argparse has it."""
    found: dict[str, str | None] = {}
    for index, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if not _FLAG.fullmatch(name):
            continue
        following = argv[index + 1] if index + 1 < len(argv) else ""
        takes_next = not equals and following and not _FLAG.fullmatch(following)
        found[canonical(name)] = value if equals else following if takes_next else None
    return found


def missing(wanted: Sequence[Flag], argv: Sequence[str]) -> list[str]:
    """What of the declared flags a command line does not have, in words: ``--ep-size 8 (has 4)``."""
    there = given(argv)
    texts = []
    for flag in wanted:
        name = canonical(flag.name)
        if name not in there:
            texts.append(flag.text)
        elif flag.value is not None and there[name] != flag.value:
            texts.append(f"{flag.text} (has {there[name] or 'no value'})")
    return texts
