"""What a decode step is made of: parts, each a few calls of torch; and the places in the step where each is at work.

A part takes what it needs out of the tensors of its place (weights, caches) and of the values so far, and gives new
values; nothing else changes but the cache. So any part can be run alone, at all of its places, with the very values
that the whole step had there: the sum of such parts is made of the same kernels as the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Callable

Tensors = dict[str, Any]
Values = Mapping[str, Any]


def stored_bytes(tensor: Any) -> int:
    """Bytes of a tensor's elements."""
    return int(tensor.numel() * tensor.element_size())


def _all_bytes(part: Part, own: Tensors, _values: Values) -> int:
    return sum(stored_bytes(own[name]) for name in part.reads)


@dataclass(frozen=True)
class Part:
    """One component. ``how``: which implementation. ``reads``: the tensors of its place that it goes through.

    ``touched(part, own, values)``: how many bytes of them one run reads; of experts only those that are hit.
    ``source``, ``target``: of a matrix product, the values that it takes and gives.
    """

    name: str
    how: str
    reads: tuple[str, ...]
    run: Callable[[Tensors, Values], Tensors]
    touched: Callable[[Part, Tensors, Values], int] = _all_bytes
    source: str = ""
    target: str = ""


@dataclass(frozen=True)
class Place:
    """A part at work somewhere in the step, with its own tensors. ``kind`` of layer; empty: outside of layers.

    ``layer``: the layer's number.
    """

    part: Part
    own: Tensors
    kind: str = ""
    layer: int = -1

    def copied(self) -> Place:
        """The same with its tensors at other addresses, so that no cache has them yet."""
        fresh = {name: self.own[name].clone() for name in self.part.reads}
        return replace(self, own={**self.own, **fresh})


@dataclass(frozen=True)
class Seen:
    """A place with the values that it was given in a step."""

    place: Place
    values: Values

    def run(self) -> Tensors:
        """Run it alone; what it gives."""
        return self.place.part.run(self.place.own, self.values)

    @property
    def touched(self) -> int:
        """Bytes of weights and caches that a run reads."""
        return self.place.part.touched(self.place.part, self.place.own, self.values)


@dataclass
class Stack:
    """A whole step: its places in order, and the values that it starts with."""

    places: Sequence[Place]
    start: Values
    notes: list[str] = field(default_factory=list)

    def run(self) -> Tensors:
        """One step; all values at its end."""
        values = dict(self.start)
        for place in self.places:
            values.update(place.part.run(place.own, values))
        return values

    def watch(self) -> tuple[dict[str, list[Seen]], Tensors]:
        """One step, and for each part what it was given at each of its places. The values live as long as that does."""
        seen: dict[str, list[Seen]] = {}
        values = dict(self.start)
        for place in self.places:
            seen.setdefault(place.part.name, []).append(Seen(place, dict(values)))
            values.update(place.part.run(place.own, values))
        return seen, values
