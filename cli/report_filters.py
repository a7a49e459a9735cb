"""The filters of the templates that show where the milliseconds go."""

from __future__ import annotations

import hashlib

from markupsafe import Markup

from gpuhost_cli import waterfall_svg, waterfall_words
from gpuhost_cli.waterfall import Waterfall
from gpuhost_cli.waterfall_rows import Bar


def rate_text(value: float | None) -> str:
    """Tokens per second; a dash where there are none.

    >>> rate_text(93.43), rate_text(7820.7), rate_text(None)
    ('93.4', '7,821', '–')
    """
    return "–" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def picture(found: Waterfall, name: str) -> Markup:
    """The picture for a page. ``name``: the host's, which may hold anything."""
    ident = f"wf-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return Markup(waterfall_svg.svg(found, ident))  # noqa: S704 - made here, every text in it escaped


def block(bar: Bar, scale_ms: float) -> str:
    """A bar as text."""
    return waterfall_svg.chart_bars([bar], scale_ms)[0]


DECODE = {
    "ms": waterfall_words.ms_text,
    "of": waterfall_words.share_text,
    "signed": waterfall_words.signed,
    "changed": waterfall_words.change_text,
    "section": waterfall_words.SHORT.__getitem__,
    "rate": rate_text,
    "waterfall": picture,
    "block": block,
}
