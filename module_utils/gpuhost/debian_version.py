"""Order of Debian package versions, as dpkg sees it.

Source: deb-version(7) and dpkg's lib/dpkg/version.c. A version is ``[epoch:]upstream[-revision]``; both parts are
compared in turns of a non-digit and a digit run. In a non-digit run ``~`` sorts before everything, even before the
end of the text, then the end, then letters, then every other character by its code.

Pure: text in, numbers out. Unlike dpkg this accepts any text (an unparsable epoch counts as part of the upstream
version), because a sort must not fail on an odd package.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable
from typing import Any

_RUN = re.compile(r"([^0-9]*)([0-9]*)")


def _order(character: str) -> int:
    """Weight of one non-digit character; the end of the text weighs 0."""
    if character == "~":
        return -1
    if character.isascii() and character.isalpha():
        return ord(character)
    return ord(character) + 256


def _compare_text(a: str, b: str) -> int:
    """Compare two non-digit runs."""
    for position in range(max(len(a), len(b))):
        left = _order(a[position]) if position < len(a) else 0
        right = _order(b[position]) if position < len(b) else 0
        if left != right:
            return -1 if left < right else 1
    return 0


def compare_part(a: str, b: str) -> int:
    """Compare two texts as dpkg compares one part (upstream or revision): -1, 0 or 1.

    Kernel releases are compared with this rather than with :func:`compare`, because in ``6.14.11-5-bpo12`` the last
    dash is not a Debian revision: ``6.14.11-10`` must come after it.
    """
    for (text_a, digits_a), (text_b, digits_b) in itertools.zip_longest(
        _RUN.findall(a), _RUN.findall(b), fillvalue=("", "")
    ):
        result = _compare_text(text_a, text_b)
        if result:
            return result
        number_a, number_b = int(digits_a or 0), int(digits_b or 0)
        if number_a != number_b:
            return -1 if number_a < number_b else 1
    return 0


def split(version: str) -> tuple[int, str, str]:
    """``1:2.3-4`` -> (1, "2.3", "4"); a missing epoch is 0, a missing revision is ""."""
    text = version.strip()
    head, colon, tail = text.partition(":")
    epoch = 0
    if colon and head.isascii() and head.isdigit():
        epoch, text = int(head), tail
    upstream, dash, revision = text.rpartition("-")
    return (epoch, upstream, revision) if dash else (epoch, text, "")


def compare(a: str, b: str) -> int:
    """-1 where ``a`` is the older version, 1 where it is the newer one, 0 where both are equal for dpkg."""
    epoch_a, upstream_a, revision_a = split(a)
    epoch_b, upstream_b, revision_b = split(b)
    if epoch_a != epoch_b:
        return -1 if epoch_a < epoch_b else 1
    return compare_part(upstream_a, upstream_b) or compare_part(revision_a, revision_b)


#: ``sorted(versions, key=sort_key)``: oldest first.
sort_key: Callable[[str], Any] = functools.cmp_to_key(compare)

#: The same for kernel releases or other texts without epoch and revision.
part_sort_key: Callable[[str], Any] = functools.cmp_to_key(compare_part)
