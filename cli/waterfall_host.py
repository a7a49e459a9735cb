"""The middle of a waterfall: what a step's parts take on a host, each alone, and the step as a whole. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuhost_cli.waterfall_rows import Bar, Kind, Measured, Missing, PartRow, Section

GROUPS: dict[str, tuple[str, ...]] = {
    "attention's matrices": ("qkv", "qkv_a", "q_b", "absorb_k", "absorb_v", "o", "indexer"),
    "attention over the cache": ("attention", "index_top", "kv_write"),
    "routed experts": ("experts_up", "expert_act", "experts_down"),
    "shared experts": ("shared_up", "shared_act", "shared_down"),
    "dense MLP": ("mlp_up", "mlp_act", "mlp_down"),
    "routing": ("router", "top_k", "permute", "combine"),
    "norms and RoPE": ("rms_norm", "latent_norm", "qk_norm", "rope"),
    "embedding, lm_head": ("embedding", "lm_head"),
    "sampling": ("sampling",),
}
"""The parts of the check ``decode`` by what they belong to. One that is not known here has a bar of its own."""

ALL_REDUCE = "all_reduce"

REDUCES, STEP, PARTS = "all-reduces", "the step as a whole", "all parts"
"""What else can be missing beside single parts."""


def group_of(name: str) -> str:
    """What a part belongs to.

    >>> group_of("q_b"), group_of("something_new")
    ("attention's matrices", 'something_new')
    """
    return next((group for group, names in GROUPS.items() if name in names), name)


Piece = tuple[Kind, str, float, str, float | None]


def stacked(pieces: Sequence[Piece], section: Section, start: float = 0.0) -> list[Bar]:
    """One after the other. What takes no time has no bar."""
    bars = []
    for kind, title, ms, how, before in pieces:
        if ms or before:
            bars.append(Bar(section, kind, title, start, start + ms, how, before))
            start += ms
    return bars


@dataclass(frozen=True)
class Host:
    """The middle section. ``groups``: ms by what belongs together, of parts that were measured."""

    groups: Mapping[str, float]
    names: Mapping[str, tuple[str, ...]]
    missing: tuple[Missing, ...]
    step_ms: float | None
    reduce_ms: float | None
    some: bool

    @classmethod
    def of(cls, measured: Measured | None) -> Host:
        if measured is None:
            return cls({}, {}, (), None, None, some=False)
        groups: dict[str, float] = {}
        names: dict[str, tuple[str, ...]] = {}
        order = [*GROUPS, *(part.name for part in measured.parts)]
        for part in sorted(measured.parts, key=lambda each: order.index(group_of(each.name))):
            if part.us is not None:
                group = group_of(part.name)
                groups[group] = groups.get(group, 0.0) + part.us / 1e3
                names[group] = (*names.get(group, ()), part.name)
        missing = [Missing(part.name, part.why) for part in measured.parts if part.us is None]
        if not measured.parts:
            missing.append(Missing(PARTS, "only the step as a whole was" if measured.step_us else measured.step_why))
        reduce = measured.reduce
        if reduce is not None and reduce.us is None:
            missing.append(Missing(REDUCES, reduce.why))
        if measured.step_us is None:
            missing.append(Missing(STEP, measured.step_why))
        return cls(
            groups,
            names,
            tuple(missing),
            None if measured.step_us is None else measured.step_us / 1e3,
            None if reduce is None or reduce.us is None else reduce.us / 1e3,
            some=True,
        )

    @property
    def parts_ms(self) -> float:
        return sum(self.groups.values())

    @property
    def explained_ms(self) -> float | None:
        """Everything that was measured by itself: the parts, or the step where none of them was."""
        own = self.parts_ms if self.groups else self.step_ms
        return own if own is None else own + (self.reduce_ms or 0.0)

    @property
    def gap_ms(self) -> float | None:
        return None if self.step_ms is None or not self.groups else self.step_ms - self.parts_ms

    @property
    def end_ms(self) -> float | None:
        """Where the section ends: the measured step, or its parts where there is none, with the all-reduces."""
        own = self.step_ms if self.step_ms is not None else self.parts_ms if self.groups else None
        return own if own is None else own + (self.reduce_ms or 0.0)

    @property
    def lost_parts(self) -> bool:
        return any(item.name not in (REDUCES, STEP) for item in self.missing)

    def bars(self, before: Host) -> list[Bar]:
        """The section, with what was before beside it where the same was measured then."""
        if not self.some:
            return []
        pieces: list[Piece] = [
            ("part", group, ms, ", ".join(self.names[group]), self._old(before, group))
            for group, ms in self.groups.items()
        ]
        if not self.groups and self.step_ms is not None:
            pieces.append(("part", STEP, self.step_ms, "a CUDA graph; no part was measured", before.step_ms))
        if self.gap_ms is not None:
            title = "parts not measured, and gaps" if self.lost_parts else "step less its parts"
            old = None if self.lost_parts or before.lost_parts else before.gap_ms
            pieces.append(("gap", title, self.gap_ms, "measured step less sum of parts", old))
        if self.reduce_ms is not None:
            pieces.append(("part", REDUCES, self.reduce_ms, "over all GPUs, not in the step", before.reduce_ms))
        end = self.end_ms
        if end is None:
            return stacked(pieces, "host")
        words = "measured step" if self.step_ms is not None else "sum of these parts"
        title = words + (" and all-reduces" if self.reduce_ms is not None else "")
        return [*stacked(pieces, "host"), Bar("host", "total", title, 0.0, end, "", before.end_like(self))]

    def end_like(self, other: Host) -> float | None:
        """Where it ends, if its end is made of the same as the other's."""
        same = (self.step_ms is None, self.reduce_ms is None) == (other.step_ms is None, other.reduce_ms is None)
        return self.end_ms if same and (self.step_ms is not None or self.names == other.names) else None

    def _old(self, before: Host, group: str) -> float | None:
        """A group before, if it was made of the same parts then."""
        return before.groups.get(group) if before.names.get(group) == self.names[group] else None


def part_rows(before: Measured | None, now: Measured | None) -> list[PartRow]:
    """Every part, also of the run before, in the order of the step; the all-reduces last."""
    sides = [[] if each is None else [*each.parts, *([each.reduce] if each.reduce else [])] for each in (before, now)]
    old, new = ({part.name: part for part in side} for side in sides)
    rows = []
    for name in dict.fromkeys([*new, *old]):
        then, part = old.get(name), new.get(name) or old[name]
        group = REDUCES if name == ALL_REDUCE else group_of(name)
        us = part.us if name in new else None
        why = part.why if name in new else "not a part of this step" if now is not None else ""
        rows.append(PartRow(name, group, then.us if then else None, us, part.how, why))
    return rows
