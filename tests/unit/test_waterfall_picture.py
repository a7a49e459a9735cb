"""The waterfall's picture: well-formed, each bar as wide as it says, no text on another."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree as ET

import pytest
from test_waterfall import REDUCE, TERMS, measured

from gpuhost_cli.waterfall import Waterfall, waterfall
from gpuhost_cli.waterfall_rows import Live, Term
from gpuhost_cli.waterfall_svg import (
    BAR,
    CHANGE,
    LEAST,
    LEFT,
    LETTER,
    MS,
    RIGHT,
    SHARE,
    STRONG,
    WIDTH,
    cut,
    svg,
    ticks,
)

SVG = "{http://www.w3.org/2000/svg}"


def drawn(found: Waterfall) -> ET.Element:
    return ET.fromstring(svg(found, "wf-1"))


FULL = waterfall(
    1, TERMS, measured(reduce=REDUCE), Live("after, 6.8.12-11-pve", 100.0),
    measured_before=measured(reduce=REDUCE, step_us=20000.0), live_before=Live("before, 6.8.12-9-pve", 96.0),
)  # fmt: skip
BACKWARDS = waterfall(1, TERMS, measured(qkv=5000.0, experts_up=None, router=None), Live("", 20.0))


@pytest.mark.parametrize("found", [FULL, BACKWARDS])
def test_each_bar_is_as_wide_and_where_it_says(found: Waterfall) -> None:
    rects = [
        each for each in drawn(found).iter(f"{SVG}rect")
        if "wf-lost" not in each.get("class", "") and "wf-hatch" not in each.get("class", "")
    ]  # fmt: skip
    assert len(rects) == len(found.bars)
    pixels = (RIGHT - LEFT) / found.scale_ms
    for bar, rect in zip(found.bars, rects, strict=True):
        x, width = float(rect.attrib["x"]), float(rect.attrib["width"])
        assert width == pytest.approx(max(LEAST, abs(bar.ms) * pixels), abs=0.011), bar.title
        assert x == pytest.approx(LEFT + min(bar.start_ms, bar.end_ms) * pixels, abs=0.011), bar.title
        assert x + width <= RIGHT + LEAST
        assert {f"wf-{bar.section}", f"wf-{bar.kind}"} <= set(rect.attrib["class"].split())
        assert ("url(#wf-1-hatch)" in rect.get("fill", "")) == (bar.kind == "gap")


def test_what_is_missing_is_drawn_as_missing() -> None:
    lost = [each for each in drawn(BACKWARDS).iter(f"{SVG}rect") if "wf-lost" in each.get("class", "")]
    assert len(lost) == 2
    said = "".join(drawn(BACKWARDS).itertext())
    assert said.count("not measured") >= 2
    many = waterfall(1, (), measured(**{f"part{number}": None for number in range(9)}, qkv=1000.0), None)
    assert "4 more parts" in "".join(drawn(many).itertext())


@pytest.mark.parametrize("found", [FULL, BACKWARDS])
def test_texts_have_room(found: Waterfall) -> None:
    """No two texts of a line touch, by the widest font's letters; none leaves the picture."""
    by_line: dict[float, list[tuple[float, float, str]]] = {}
    root = drawn(found)
    height = float(root.attrib["viewBox"].split()[3])
    for text in root.iter(f"{SVG}text"):
        style, said, x, y = text.attrib["class"], text.text or "", float(text.attrib["x"]), float(text.attrib["y"])
        wide = len(said) * (STRONG if "wf-strong" in style or "wf-head" in style else LETTER)
        begin = x - wide if "wf-end" in style or "wf-name" in style else x - wide / 2 if "wf-mid" in style else x
        assert begin >= -1, said
        assert begin + wide <= WIDTH, said
        assert y <= height
        by_line.setdefault(round(y), []).append((begin, begin + wide, said))
    lines_of = sorted(by_line)
    assert all(other - one >= BAR for one, other in itertools.pairwise(lines_of)), "lines stand apart"
    for texts in by_line.values():
        for one, other in itertools.pairwise(sorted(texts)):
            assert one[1] <= other[0], (one, other)
    assert LEFT < RIGHT < MS < SHARE < CHANGE <= WIDTH


def test_texts_are_escaped_and_long_ones_cut() -> None:
    name = '<script>alert("1")</script> & a name that is far too long for the picture'
    text = svg(waterfall(1, (Term(name, 1.0),), None, None), "x")
    assert "<script>" not in text
    root = ET.fromstring(text)
    label = next(each for each in root.iter(f"{SVG}text") if "wf-name" in each.get("class", "") and each.text)
    assert label.text is not None
    assert label.text.endswith("…") or len(label.text) < 36
    assert name in "".join(root.itertext()), "the whole of it is in the tooltip"
    assert cut("abc", 100) == "abc"
    assert len(cut("a" * 99, 100)) * LETTER <= 100


def test_the_picture_can_be_read_without_seeing_it() -> None:
    root = drawn(FULL)
    assert root.attrib["role"] == "img"
    named = {each.get("id"): each.text for each in root.iter() if each.get("id")}
    assert all(named[ident] for ident in root.attrib["aria-labelledby"].split())
    described = named["wf-1-desc"] or ""
    assert all(bar.title in described for bar in FULL.bars)
    assert "<script" not in svg(FULL, "x")


@pytest.mark.parametrize(("scale", "last"), [(96.5, 80.0), (0.7, 0.6), (100.0, 100.0), (1.0, 1.0), (0.031, 0.03)])
def test_ticks_are_round(scale: float, last: float) -> None:
    found = ticks(scale)
    assert found[0] == 0.0
    assert found[-1] == last
    assert 3 <= len(found) <= 8
