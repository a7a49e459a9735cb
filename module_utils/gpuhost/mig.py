"""MIG: which instances a GPU has, which it can have, and what is missing of a declared layout.

Formats of ``nvidia-smi mig -lgip`` and ``-lgi`` (the first captured with driver 580.159.04, the second as the MIG user
guide shows it). A GPU instance's profile name (``3g.71gb``, ``1g.18gb+me``) is its name for people and for ``-cgi``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

# "|   0  MIG 1g.18gb+me      20     1/1  ..." and "|   0  MIG 1g.18gb          19        7          4:1     |"
_PROFILE = re.compile(r"\|\s*(\d+)\s+MIG\s+(\S+)\s+(\d+)\s+(\d+)/(\d+)\s")
_INSTANCE = re.compile(r"\|\s*(\d+)\s+MIG\s+(\S+)\s+(\d+)\s+(\d+)\s+(\d+):(\d+)\s*\|")


@dataclass(frozen=True)
class Profile:
    """A kind of GPU instance: how many more fit now, and how many fit into an empty GPU."""

    gpu: int
    name: str
    id: int
    free: int
    total: int


@dataclass(frozen=True)
class Instance:
    """A GPU instance that exists."""

    gpu: int
    name: str
    profile: int
    id: int
    start: int
    size: int


def parse_profiles(text: str) -> tuple[Profile, ...]:
    """What ``nvidia-smi mig -lgip`` lists."""
    return tuple(
        Profile(int(gpu), name, int(number), int(free), int(total))
        for gpu, name, number, free, total in _PROFILE.findall(text)
    )


def parse_instances(text: str) -> tuple[Instance, ...]:
    """What ``nvidia-smi mig -lgi`` lists; none where it says that there are none."""
    return tuple(
        Instance(int(gpu), name, int(profile), int(number), int(start), int(size))
        for gpu, name, profile, number, start, size in _INSTANCE.findall(text)
    )


def layout(names: Sequence[str]) -> str:
    """A layout as one text, whatever order it was declared in."""
    return ",".join(sorted(names))


def names_of(text: str) -> list[str]:
    """The profiles of a layout's text."""
    return [name for name in text.split(",") if name]


def missing_and_more(have: Sequence[str], declared: Sequence[str]) -> tuple[list[str], list[str]]:
    """(what has to be made, what is there and not declared)."""
    return (
        sorted((Counter(declared) - Counter(have)).elements()),
        sorted((Counter(have) - Counter(declared)).elements()),
    )


def misfit(declared: Sequence[str], profiles: Sequence[Profile]) -> str:
    """Why a declared layout can't be this GPU's, as far as counts can say it; empty where nothing speaks against it.

    Whether the placements of different profiles fit beside each other is the driver's to say.
    """
    known = {profile.name: profile for profile in profiles}
    for name, count in sorted(Counter(declared).items()):
        if name not in known:
            return f"has no profile {name}, but {', '.join(known) or 'none'}"
        if count > known[name].total:
            return f"holds at most {known[name].total} of {name}"
    return ""
