"""The batch table: what the ceiling allows at each concurrency, what the server does, before and after. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gpuhost_cli.waterfall_serve import Change, Level, Serve


@dataclass(frozen=True)
class BatchRow:
    """One concurrency on one side of the change. Rates in tok/s of all streams together; None: not known.

    ``decoding_tok_s``: streams by the median time per output token, which is what a ceiling of decoding can be held
    against; ``delivered_tok_s`` has the reading of prompts in it. ``efficiency``: decoding by ceiling.
    ``tpot_change`` and ``rate_change``: against before, of the time per token and of what is delivered.
    """

    concurrency: int
    side: Literal["before", "after", "now"]
    ceiling_tok_s: float | None
    tpot_ms: float | None
    decoding_tok_s: float | None
    delivered_tok_s: float | None
    efficiency: float | None
    tpot_change: Change | None
    rate_change: Change | None

    @property
    def above(self) -> bool:
        """More than the ceiling allows: one of the inputs is wrong, or the server speculates."""
        return self.efficiency is not None and self.efficiency > 1


def batch_rows(
    rates: Mapping[int, float], before: Serve | None, after: Serve | None, *, comparable: bool = True
) -> tuple[BatchRow, ...]:
    """Each concurrency that was measured, before and after. ``rates``: the ceiling's, by the number of streams."""
    levels = [each.levels if each is not None else {} for each in (before, after)]
    rows = []
    for concurrency in sorted({*levels[0], *levels[1]}):
        ceiling, old, new = rates.get(concurrency), levels[0].get(concurrency), levels[1].get(concurrency)
        if before is not None:
            rows.append(_row(concurrency, "before", ceiling, old, None, None))
        if after is not None:
            tpot, rate = (
                _compared(concurrency, name, old, new, before, after) if comparable and before is not None else None
                for name in ("tpot_median", "output_rate")
            )
            rows.append(_row(concurrency, "now" if before is None else "after", ceiling, new, tpot, rate))
    return tuple(rows)


def _row(
    concurrency: int,
    side: Literal["before", "after", "now"],
    ceiling: float | None,
    level: Level | None,
    tpot: Change | None,
    rate: Change | None,
) -> BatchRow:
    tpot_ms = level.tpot_ms if level else None
    decoding = 1e3 * concurrency / tpot_ms if tpot_ms else None
    share = decoding / ceiling if decoding and ceiling else None
    delivered = level.rate if level else None
    return BatchRow(concurrency, side, ceiling, tpot_ms, decoding, delivered, share, tpot, rate)


def _compared(
    concurrency: int, name: str, old: Level | None, new: Level | None, before: Serve | None, after: Serve | None
) -> Change | None:
    """The comparison's own change, with its interval, where it is one against that very run; else the bare change."""
    if before is not None and after is not None and after.before_taken_at == before.taken_at:
        found = after.changes.get((concurrency, name))
        if found is not None and found.percent is not None:
            return found
    pair = [(each.tpot_ms if name == "tpot_median" else each.rate) if each else None for each in (old, new)]
    if not pair[0] or not pair[1]:
        return None
    return Change(pair[0], 100 * (pair[1] / pair[0] - 1), None, None, "")
