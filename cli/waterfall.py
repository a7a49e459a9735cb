"""Where the milliseconds of one decode step go: ceiling, measured parts, live step, as the bars of one picture. Pure.

Three sections on one scale. On paper: the ceiling's terms, one after the other. On this host: the parts of a step, each
measured alone, what the measured step takes beyond them, and the all-reduces. Live: what the server takes beyond that.
What was not measured has no bar and is never zero: it is listed, and what cannot be told apart from it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuhost_cli.waterfall_host import Host, part_rows, stacked
from gpuhost_cli.waterfall_rows import Bar, Live, Measured, Missing, PartRow, Term


@dataclass(frozen=True)
class Waterfall:
    """The picture. Times in ms, of a step with ``batch`` streams; None where they are not known.

    ``explained_ms``: parts and all-reduces that were measured, or the ceiling where none were. ``whole_ms``: the live
    step, or else the measured one. ``unexplained_ms``: what is left of it; ``holds`` names what was not measured and
    can't be told apart from it.
    """

    batch: int
    bars: tuple[Bar, ...]
    missing: tuple[Missing, ...]
    parts: tuple[PartRow, ...]
    ceiling_ms: float | None
    parts_ms: float | None
    """Of all parts that were measured, each alone; of some of them where ``holds`` names parts."""
    step_ms: float | None
    reduce_ms: float | None
    live_ms: float | None
    live_before_ms: float | None
    whole_ms: float | None
    explained_ms: float | None
    gap_ms: float | None
    """Of the unexplained: the measured step less its parts."""
    beyond_ms: float | None
    """Of the unexplained: the live step less what was measured."""
    unexplained_ms: float | None
    holds: tuple[str, ...]
    scale_ms: float
    """The right end of the picture."""


def waterfall(
    batch: int,
    terms: Sequence[Term],
    measured: Measured | None,
    live: Live | None,
    *,
    measured_before: Measured | None = None,
    live_before: Live | None = None,
) -> Waterfall:
    """The picture of what is there. ``terms`` is empty where there is no ceiling."""
    ceiling = sum(term.ms for term in terms) if terms else None
    bars = [*stacked([("term", term.title, term.ms, term.how, None) for term in terms], "paper")]
    if ceiling is not None:
        bars.append(Bar("paper", "total", "ceiling: their sum", 0.0, ceiling))
    host, before = Host.of(measured), Host.of(measured_before)
    bars += host.bars(before)
    from_host = host.end_ms is not None
    base = host.end_ms if from_host else ceiling
    beyond = None if live is None or base is None else live.ms - base
    if live is not None and base is not None:
        title = "the server beyond that" if from_host else "beyond the ceiling"
        old_base = base if measured_before is None or not from_host else before.end_like(host)
        old = None if live_before is None or old_base is None else live_before.ms - old_base
        bars.append(Bar("live", "gap", title, base, live.ms, "live step less all above", old))
    for each, past in ((live_before, True), (live, False)):
        if each is not None:
            other = live_before.ms if live_before is not None and not past else None
            title = f"live step {each.label}".rstrip()
            bars.append(Bar("live", "total", title, 0.0, each.ms, "median time per output token", other, past))
    whole = live.ms if live is not None else host.end_ms if host.step_ms is not None else None
    explained = host.explained_ms if from_host else ceiling
    return Waterfall(
        batch=batch,
        bars=tuple(bars),
        missing=host.missing,
        parts=tuple(part_rows(measured_before, measured)),
        ceiling_ms=ceiling,
        parts_ms=host.parts_ms if host.groups else None,
        step_ms=host.step_ms,
        reduce_ms=host.reduce_ms,
        live_ms=None if live is None else live.ms,
        live_before_ms=None if live_before is None else live_before.ms,
        whole_ms=whole,
        explained_ms=explained,
        gap_ms=host.gap_ms,
        beyond_ms=beyond,
        unexplained_ms=None if whole is None or explained is None else whole - explained,
        holds=tuple(item.name for item in host.missing),
        scale_ms=max((max(bar.start_ms, bar.end_ms) for bar in bars), default=0.0),
    )
