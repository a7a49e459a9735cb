"""A waterfall in words: where the milliseconds go, what changed, what is unexplained. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpuhost_cli.report_batches import BatchRow
from gpuhost_cli.waterfall import Waterfall
from gpuhost_cli.waterfall_serve import Change

SECTIONS = {"paper": "On paper", "host": "Measured on this host, each part alone", "live": "The server"}
SHORT = {"paper": "paper", "host": "host", "live": "server"}
"""The same for the rows of a table."""


FASTER_THAN_PARTS = "faster than the parts, as with narrower weights, or with work side by side"
FASTER_THAN_PAPER = "faster than the ceiling: one of its inputs is wrong (precision, rates), or the server speculates"


def ms_text(ms: float) -> str:
    """Milliseconds with as many digits as they deserve.

    >>> [ms_text(each) for each in (0.0049, 0.25, 6.413, 96.51, 1234.4, -0.0001)]
    ['0.005', '0.25', '6.41', '96.5', '1234', '0.000']
    """
    size = abs(ms)
    digits = 3 if size < 0.1 else 2 if size < 10 else 1 if size < 1000 else 0
    return f"{round(ms, digits) + 0.0:.{digits}f}"  # no minus before a zero


def share_text(part: float, whole: float | None) -> str:
    """``11.1 %``; a dash where there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else "–"


def signed(ms: float) -> str:
    """A change in ms; zero for one that no one can see.

    >>> signed(0.31), signed(-12.04), signed(0.0002)
    ('+0.31', '-12.0', '0')
    """
    text = ms_text(abs(ms))
    return "0" if not float(text) else f"{'+' if ms > 0 else '-'}{text}"


def change_text(change: Change | None) -> str:
    """``+2.8 % (95 %: +1.2 to +4.1)``; without the interval where there is none."""
    if change is None or change.percent is None:
        return "–"
    interval = f" (95 %: {change.low:+.1f} to {change.high:+.1f})" if None not in (change.low, change.high) else ""
    return f"{change.percent:+.1f} %{interval}"


def lines(found: Waterfall, row: BatchRow | None) -> Iterator[tuple[str, str]]:
    """The three things to see at once, each with a word before it."""
    yield "Where", _where(found)
    changed = _changed(found, row)
    if changed:
        yield "Changed", changed
    yield "Unexplained", _unexplained(found)


def streams(batch: int) -> str:
    """A number of streams in words."""
    return "one stream" if batch == 1 else f"{batch} streams"


def _where(found: Waterfall) -> str:
    whole = found.whole_ms
    texts = []
    if found.live_ms is not None:
        texts.append(f"The server takes {ms_text(found.live_ms)} ms per token ({streams(found.batch)}).")
    elif whole is not None:
        title = next(bar.title for bar in found.bars if bar.section == "host" and bar.kind == "total")
        texts.append(f"The {title} take{'' if found.reduce_ms is not None else 's'} {ms_text(whole)} ms.")
    if found.ceiling_ms is not None:
        texts.append(f"On paper {_of(found.ceiling_ms, whole)}.")
    if found.parts_ms is not None and found.explained_ms is not None:
        what = "parts and all-reduces" if found.reduce_ms is not None else "parts"
        what += " that were measured" if any(row.us is None for row in found.parts) else ""
        texts.append(f"This host's {what}, each alone: {_of(found.explained_ms, whole)}.")
    return " ".join(texts) or "Nothing was measured, and there is no ceiling."


def _of(ms: float, whole: float | None) -> str:
    return f"{ms_text(ms)} ms" + (f" ({share_text(ms, whole)})" if whole else "")


def _changed(found: Waterfall, row: BatchRow | None) -> str:
    texts = []
    if found.live_ms is not None and found.live_before_ms is not None:
        change = row.tpot_change if row is not None else None
        said = f", {change_text(change)}" if change else ""
        called = f": {change.verdict}" if change and change.verdict else ""
        texts.append(f"The server {ms_text(found.live_before_ms)} → {ms_text(found.live_ms)} ms{said}{called}.")
    for bar in found.bars:
        if bar.section == "host" and bar.kind == "total" and bar.before_ms is not None:
            texts.append(f"The {bar.title} {ms_text(bar.before_ms)} → {ms_text(bar.ms)} ms{_most(found)}.")
    return " ".join(texts)


def _most(found: Waterfall) -> str:
    """Which part moved most; empty where none did."""
    moved = [
        (bar.change_ms, bar.title)
        for bar in found.bars
        if bar.section == "host" and bar.kind != "total" and bar.change_ms is not None
    ]
    most, title = max(moved, key=lambda each: abs(each[0]), default=(0.0, ""))
    return "" if signed(most) == "0" else f", most of it {title} ({signed(most)})"


def _unexplained(found: Waterfall) -> str:
    if found.unexplained_ms is None:
        return "Not known: it takes a step, and what it is made of."
    text = f"{ms_text(found.unexplained_ms)} ms"
    if found.whole_ms:
        text += f" ({share_text(found.unexplained_ms, found.whole_ms)})"
    pieces = []
    if found.gap_ms is not None:
        pieces.append(f"{ms_text(found.gap_ms)} in the measured step beyond its parts")
    if found.beyond_ms is not None:
        above = "measured step" if found.step_ms is not None else "parts" if found.parts_ms is not None else "ceiling"
        pieces.append(f"{ms_text(found.beyond_ms)} in the server beyond the {above}")
    if len(pieces) > 1:
        text += f": {', '.join(pieces)}"
    elif pieces:
        text += f", {pieces[0].partition(' ')[2]}"
    if found.holds:
        text += f". In it, as they were not measured: {', '.join(found.holds)}"
    if found.unexplained_ms < 0:
        text += f". Below zero: {FASTER_THAN_PARTS if found.step_ms or found.parts_ms else FASTER_THAN_PAPER}"
    return f"{text}."
