"""What a waterfall is made from, and what it is made of: times of a decode step as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Section = Literal["paper", "host", "live"]
Kind = Literal["term", "part", "gap", "total"]


@dataclass(frozen=True)
class PartTime:
    """One part over a whole step, in microseconds; None where it was not measured, and ``why``."""

    name: str
    us: float | None
    how: str = ""
    why: str = ""


@dataclass(frozen=True)
class Measured:
    """A step on a host: its parts, each alone, and as a whole (None: ``step_why``).

    ``reduce``: the all-reduces, which are not in the step; None where one rank has none to do.
    """

    parts: tuple[PartTime, ...]
    step_us: float | None
    step_why: str = ""
    reduce: PartTime | None = None


@dataclass(frozen=True)
class Term:
    """One term of the ceiling's sum, in ms."""

    title: str
    ms: float
    how: str = ""


@dataclass(frozen=True)
class Live:
    """What a server takes for a token of one stream: the median of time per output token, in ms."""

    label: str
    ms: float


@dataclass(frozen=True)
class Bar:
    """A bar from ``start_ms`` to ``end_ms``; backwards where a step takes less than its parts do together.

    ``before_ms``: how long it was before; None where that is not known. ``how``: where its number comes from.
    """

    section: Section
    kind: Kind
    title: str
    start_ms: float
    end_ms: float
    how: str = ""
    before_ms: float | None = None
    past: bool = False
    """A bar of what was before: it stands beside that of now."""

    @property
    def ms(self) -> float:
        """Its length; below zero where it goes backwards."""
        return self.end_ms - self.start_ms

    @property
    def change_ms(self) -> float | None:
        """Against before."""
        return None if self.before_ms is None else self.ms - self.before_ms


@dataclass(frozen=True)
class Missing:
    """What has no bar, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class PartRow:
    """A part before and after, in microseconds; None where it was not measured."""

    name: str
    group: str
    before_us: float | None
    us: float | None
    how: str
    why: str
