"""A waterfall as an SVG that stands in the page: no script, no font, colours from the page's style sheet. Pure.

Widths of texts are estimated from the widest letters that the page's font may have; what is longer is cut, with the
whole of it in a tooltip and in the table beside the picture.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence

from gpuhost_cli.waterfall import Waterfall
from gpuhost_cli.waterfall_rows import Bar
from gpuhost_cli.waterfall_words import SECTIONS, ms_text, share_text, signed

WIDTH = 940
LEFT, RIGHT = 266, 704
"""Where the bars begin and end, in pixels at 100 %."""
MS, SHARE, CHANGE = 776, 850, WIDTH - 2
"""Right edges of the columns of numbers."""
ROW, BAR, TOTAL_BAR, HEAD, TOP, AXIS = 23, 13, 15, 30, 30, 34
LETTER, STRONG = 7.1, 8.2
"""Pixels of a letter of 13 px, and of a bold one: DejaVu Sans, the widest of the page's fonts, on an average text."""
LEAST = 1.5
"""A bar is at least so wide: what is there has to be seen."""
TICKS = 6
NAMED = 5
"""So many missing parts have a row of their own; the others share one."""


def svg(found: Waterfall, ident: str) -> str:
    """The picture; ``ident`` keeps its names apart from those of other pictures in the page. Empty without a bar."""
    if not found.bars or found.scale_ms <= 0:
        return ""
    rows, height = _rows(found, ident)
    about = f"Where {ms_text(found.whole_ms)} ms of a step go" if found.whole_ms else "Where the time of a step goes"
    top = [
        f'<svg class="waterfall" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-labelledby="{ident}-title {ident}-desc">',
        f'<title id="{ident}-title">{_text(about)}</title>',
        f'<desc id="{ident}-desc">{_text(_described(found))}</desc>',
        f'<defs><pattern id="{ident}-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect class="wf-hatch-ground" width="6" height="6"/>'
        '<rect class="wf-hatch-line" width="2.5" height="6"/></pattern></defs>',
    ]
    return "\n".join([*top, *_grid(found, height), *_heads(found), *rows, "</svg>"])


def ticks(scale_ms: float) -> list[float]:
    """Round numbers from 0 up to the end, at most ``TICKS`` steps.

    >>> ticks(96.5), ticks(0.7)
    ([0.0, 20.0, 40.0, 60.0, 80.0], [0.0, 0.2, 0.4, 0.6])
    """
    rough = scale_ms / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [round(count * step, 9) for count in range(int(scale_ms / step + 1e-9) + 1)]


def x_of(ms: float, scale_ms: float) -> float:
    """Where a time is, in pixels."""
    return LEFT + (RIGHT - LEFT) * ms / scale_ms


def span(bar: Bar, scale_ms: float) -> tuple[float, float]:
    """Left edge and width of a bar in pixels."""
    left, right = sorted((x_of(bar.start_ms, scale_ms), x_of(bar.end_ms, scale_ms)))
    return left, max(LEAST, right - left)


def cut(text: str, pixels: float, letter: float = LETTER) -> str:
    """A text that fits in so many pixels."""
    letters = int(pixels / letter)
    return text if len(text) <= letters else text[: letters - 1].rstrip(" ,") + "…"


def _text(text: str) -> str:
    return html.escape(text, quote=True)


def _described(found: Waterfall) -> str:
    return "; ".join(f"{SECTIONS[bar.section]}: {bar.title} {ms_text(bar.ms)} ms" for bar in found.bars)


def _grid(found: Waterfall, height: int) -> Iterator[str]:
    bottom = height - AXIS + 6
    for tick in ticks(found.scale_ms):
        x = x_of(tick, found.scale_ms)
        yield f'<line class="wf-grid" x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{bottom}"/>'
        yield f'<text class="wf-soft wf-mid" x="{x:.1f}" y="{bottom + 16}">{tick:g}</text>'
    yield f'<text class="wf-soft wf-name" x="{LEFT - 12}" y="{bottom + 16}">ms per token</text>'


def _heads(found: Waterfall) -> Iterator[str]:
    yield f'<text class="wf-soft wf-end" x="{MS}" y="18">ms</text>'
    if found.whole_ms:
        yield f'<text class="wf-soft wf-end" x="{SHARE}" y="18">of step</text>'
    if any(bar.before_ms is not None for bar in found.bars):
        yield f'<text class="wf-soft wf-end" x="{CHANGE}" y="18">vs before</text>'


def _rows(found: Waterfall, ident: str) -> tuple[list[str], int]:
    """All rows below each other, and the height of the picture."""
    made, y = list[str](), TOP
    for section, title in SECTIONS.items():
        bars = [bar for bar in found.bars if bar.section == section]
        lost = _lost(found) if section == "host" else []
        if not bars and not lost:
            continue
        made.append(f'<text class="wf-head" x="0" y="{y + 19}">{_text(title)}</text>')
        y += HEAD
        for bar, following in zip(bars, [*bars[1:], None][: len(bars)], strict=True):
            # What is missing stands before the sum that it is not in.
            if bar.kind == "total" and lost:
                made += [_missing(name, y + ROW * number) for number, name in enumerate(lost)]
                y += ROW * len(lost)
                lost = []
            made += _row(bar, following, found, ident, y)
            y += ROW
        made += [_missing(name, y + ROW * number) for number, name in enumerate(lost)]
        y += ROW * len(lost)
    return made, y + AXIS


def _lost(found: Waterfall) -> list[str]:
    names = [item.name for item in found.missing]
    more = len(names) - NAMED
    return names if more <= 1 else [*names[:NAMED], f"{more} more parts"]


def _row(bar: Bar, following: Bar | None, found: Waterfall, ident: str, y: int) -> Iterator[str]:
    scale, middle = found.scale_ms, y + ROW / 2
    left, width = span(bar, scale)
    high = TOTAL_BAR if bar.kind == "total" else BAR
    style = f"wf-{bar.section} wf-{bar.kind}{' wf-past' if bar.past else ''}"
    fill = f' fill="url(#{ident}-hatch)"' if bar.kind == "gap" else ""
    weight = " wf-strong" if bar.kind in ("total", "gap") else ""
    base, name = middle + 4.5, cut(bar.title, LEFT - 14, STRONG if weight else LETTER)
    change = bar.change_ms
    tip = f"{bar.title}: {ms_text(bar.ms)} ms{'. ' + bar.how if bar.how else ''}"
    yield f"<g><title>{_text(tip)}</title>"
    yield f'<text class="wf-name{weight}" x="{LEFT - 12}" y="{base:.1f}">{_text(name)}</text>'
    yield (
        f'<rect class="{style}" x="{left:.2f}" y="{middle - high / 2:.1f}" width="{width:.2f}" height="{high}"{fill}/>'
    )
    if following is not None and following.kind != "total" and bar.kind != "total":
        x = x_of(bar.end_ms, scale)
        yield f'<line class="wf-link" x1="{x:.1f}" y1="{middle + high / 2:.1f}" x2="{x:.1f}" y2="{y + ROW + 5}"/>'
    yield f'<text class="wf-end{weight}" x="{MS}" y="{base:.1f}">{ms_text(bar.ms)}</text>'
    if found.whole_ms and not bar.past:
        share = share_text(bar.ms, found.whole_ms)
        yield f'<text class="wf-end wf-soft" x="{SHARE}" y="{base:.1f}">{share}</text>'
    if change is not None:
        yield f'<text class="wf-end{weight}" x="{CHANGE}" y="{base:.1f}">{signed(change)}</text>'
    yield "</g>"


def _missing(name: str, y: int) -> str:
    middle = y + ROW / 2
    return (
        f'<g><text class="wf-name wf-soft" x="{LEFT - 12}" y="{middle + 4.5:.1f}">{_text(cut(name, LEFT - 14))}</text>'
        f'<rect class="wf-lost" x="{LEFT}" y="{middle - BAR / 2:.1f}" width="96" height="{BAR}" rx="2"/>'
        f'<text class="wf-soft wf-small" x="{LEFT + 6}" y="{middle + 4.5:.1f}">not measured</text>'
        f'<text class="wf-end wf-soft" x="{MS}" y="{middle + 4.5:.1f}">?</text></g>'
    )


def chart_bars(bars: Sequence[Bar], scale_ms: float, width: int = 24) -> list[str]:
    """The same as text, for Markdown: blanks up to where a bar begins, then blocks.

    >>> chart_bars([Bar("paper", "term", "a", 0.0, 5.0), Bar("paper", "gap", "b", 5.0, 10.0)], 10.0, width=4)
    ['██', '··▒▒']
    """
    made = []
    for bar in bars:
        left, right = sorted(round(width * ms / scale_ms) for ms in (bar.start_ms, bar.end_ms))
        made.append("·" * left + ("▒" if bar.kind == "gap" else "█") * max(1, right - left))
    return made
