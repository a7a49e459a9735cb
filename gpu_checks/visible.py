"""What CUDA_VISIBLE_DEVICES leaves of the GPUs. Pure.

CUDA takes the list up to its first bad entry, and says nothing about the rest: with 0,9 on one GPU it shows one GPU.
A list whose first entry is bad gives error 100, a GPU that is listed twice 101 (all measured with driver 580.159.04).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Shown:
    """How many GPUs the list leaves, and what it does, in words. ``bad``: the list itself has an error."""

    count: int
    text: str
    bad: bool = False


def shown(value: str | None, gpus: int) -> Shown | None:
    """What the list leaves of this many GPUs; None where the variable is not set.

    >>> shown("0,9", 1)
    Shown(count=1, text="CUDA_VISIBLE_DEVICES=0,9 is cut at '9': of 1 GPUs 1 are left", bad=True)
    """
    if value is None:
        return None
    said = f"{VARIABLE}={value}"
    if not value.strip():
        return Shown(0, f"{VARIABLE} is set and empty, which hides every GPU", bad=True)
    seen: list[str] = []
    for entry in (part.strip() for part in value.split(",")):
        if entry in seen:
            return Shown(0, f"{said} lists {entry} twice", bad=True)
        # A GPU's or MIG device's UUID, or the beginning of one, can't be judged from here.
        by_name = re.match(r"(?:GPU|MIG)-", entry) is not None
        if not by_name and not (re.fullmatch("[0-9]+", entry) and int(entry) < gpus):
            return Shown(len(seen), f"{said} is cut at {entry!r}: of {gpus} GPUs {len(seen)} are left", bad=True)
        seen.append(entry)
    return Shown(len(seen), f"{said} shows {len(seen)} of {gpus} GPUs")
