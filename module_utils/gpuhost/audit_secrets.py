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
_IN_URL = re.compile(r"(?P<before>\w+://)[^/\s:@]+:[^/\s@]+(?P<after>@)")


def hidden(words: Sequence[str]) -> tuple[str, ...]:
    """The words with every secret's value replaced; a word stays one word."""
    found: list[str] = []
    for index, word in enumerate(words):
        before = words[index - 1] if index else ""
        if _OPTION.fullmatch(before) and not word.startswith("-"):
            found.append(HIDDEN)
            continue
        assigned = _ASSIGNED.fullmatch(word)
        shown = f"{assigned['name']}={HIDDEN}" if assigned else word
        found.append(without_values(shown))
    return tuple(found)


def without_values(text: str) -> str:
    """A text without what is a secret by its own form, and without passwords in URLs."""
    return _VALUE.sub(HIDDEN, _IN_URL.sub(rf"\g<before>{HIDDEN}\g<after>", text))
