"""Secrets in command lines: seen by everybody on the host who may run ps, and never to be shown in a report.

Pure: words in, words out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"

# Options whose value is a secret: --api-key, --admin-api-key, --hf-token, --password, --ssl-keyfile-password, HF_TOKEN=
_NAME = (
    r"(?:[\w.-]*[-_.])?(?:api[-_]?keys?|keys?|token|passw(?:or)?d|passphrase|secret|credentials?)(?:[-_](?:id|value))?"
)
_OPTION = re.compile(rf"--?{_NAME}", re.IGNORECASE)
_ASSIGNED = re.compile(rf"(?P<name>(?:--?)?{_NAME})=(?P<value>.+)", re.IGNORECASE | re.DOTALL)
# Values that are secrets wherever they stand: Hugging Face, OpenAI and its kin, NVIDIA NGC, GitHub, AWS, web tokens.
_VALUE = re.compile(
    r"(?<![\w-])(?:hf_\w{8,}|sk-[\w-]{8,}|nvapi-[\w-]{8,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|AKIA[A-Z0-9]{12,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
# In the middle of a word: JSON ("token": "..."), a URL's query (?api_key=...), a header (Authorization: Bearer ...).
_INSIDE = re.compile(rf'(?P<before>["?&]{_NAME}(?:"\s*:\s*"|=))[^"&\s]+', re.IGNORECASE)
_HEADER = re.compile(r"(?P<before>\b(?:Bearer|Basic)\s+)[\w.~+/=-]{6,}", re.IGNORECASE)
# vLLM takes several keys behind one --api-key.
_SEVERAL = re.compile(r"--?api[-_]?keys?", re.IGNORECASE)
_IN_URL = re.compile(r"(?P<before>\w+://)[^/\s:@]+:[^/\s@]+(?P<after>@)")


def hidden(words: Sequence[str]) -> tuple[str, ...]:
    """The words with every secret's value replaced; a word stays one word."""
    found: list[str] = []
    option = ""
    for word in words:
        if option and not word.startswith("-"):
            found.append(HIDDEN)
            option = option if _SEVERAL.fullmatch(option) else ""
            continue
        option = word if _OPTION.fullmatch(word) else ""
        assigned = _ASSIGNED.fullmatch(word)
        shown = f"{assigned['name']}={HIDDEN}" if assigned else word
        found.append(without_values(shown))
    return tuple(found)


def without_values(text: str) -> str:
    """A text without what is a secret by its own form, and without passwords in URLs."""
    for pattern in (_INSIDE, _HEADER):
        text = pattern.sub(rf"\g<before>{HIDDEN}", text)
    return _VALUE.sub(HIDDEN, _IN_URL.sub(rf"\g<before>{HIDDEN}\g<after>", text))
