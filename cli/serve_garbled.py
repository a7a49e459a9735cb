"""Text that no sound model writes. Pure: a text in, the reason out.

What numeric damage looks like from outside: a NaN in the logits makes argmax answer token 0 for ever, which is ``!`` in
the vocabularies of GPT-2's descent; a wrong scale or a wrong expert gives words of many scripts in a salad; a wrong
KV entry gives one phrase in a loop. None of it brings an HTTP error.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

REPLACEMENT = "\ufffd"
SHORT = 16
"""Characters below which nothing can be said."""
SAME_CHARACTER = 24
"""Of one character in a row. Rules and tables are drawn with - = _ * # . and blanks, which don't count."""
SAME = re.compile(rf"([^-=_*#.~+|─━═\s])\1{{{SAME_CHARACTER - 1},}}")
ODD_SHARE = 0.05
"""Of replacement, control and private-use characters; one at the end is a character that was cut in two."""
SCRIPTS, SCRIPT_LETTERS, LEADING_SHARE = 4, 3, 0.7
"""So many scripts with so many letters each, and none with more than this share of all, are a salad. An answer about
languages has two or three; one with formulas and names has more, in a text that is of one."""
LOOP_CHARACTERS, LOOP_TIMES = 96, 5
"""A phrase that fills the second half of an answer, this much text at least, and comes so often in it, is a loop."""


def garbled(text: str, *, loops: bool = False) -> str:
    """Why the text is garbled; empty where it is not.

    ``loops``: also a phrase without end. Not asked where a server was told to go on after the model's own end: then
    a sound model repeats itself too.
    """
    if len(text) < SHORT:
        return ""
    run = SAME.search(text)
    if run:
        return f"{run.group(1)!r} {len(run.group(0))} times in a row"
    body = text.rstrip(REPLACEMENT)
    odd = Counter(_odd(character) for character in body)
    odd.pop("", None)
    if sum(odd.values()) > ODD_SHARE * len(text):
        kind, count = odd.most_common(1)[0]
        return f"{count} of {len(text)} characters are {kind} characters"
    scripts = Counter(_script(character) for character in text if character.isalpha())
    mixed = sorted(name for name, count in scripts.items() if count >= SCRIPT_LETTERS)
    if len(mixed) >= SCRIPTS and max(scripts.values()) <= LEADING_SHARE * scripts.total():
        return f"letters of {len(mixed)} scripts: {', '.join(name.lower() for name in mixed)}"
    return _loop(text) if loops else ""


def _odd(character: str) -> str:
    if character == REPLACEMENT:
        return "replacement"
    category = unicodedata.category(character)
    if category in ("Co", "Cn", "Cs"):
        return "private or unassigned"
    return "control" if category == "Cc" and character not in "\n\r\t" else ""


def _script(character: str) -> str:
    """The first word of a letter's Unicode name: LATIN, CYRILLIC, CJK. Japanese counts as one with Chinese."""
    name = unicodedata.name(character, "UNKNOWN").split()[0].partition("-")[0]
    return "CJK" if name in ("HIRAGANA", "KATAKANA") else name


def _loop(text: str) -> str:
    """Greedy decoding that is caught in a loop repeats itself to the letter. Rules and tables have no letters."""
    end = text[-max(LOOP_CHARACTERS, len(text) // 2) :]
    if len(end) < LOOP_CHARACTERS:
        return ""
    for period in range(1, len(end) // LOOP_TIMES + 1):
        if end[period:] == end[:-period]:
            phrase = end[-period:]
            return f"{phrase!r} again and again at its end" if any(map(str.isalnum, phrase)) else ""
    return ""
