"""The waterfall's arithmetic by hand: bars, what is missing, what changed, what is not explained."""

from __future__ import annotations

import itertools
from unittest.mock import MagicMock
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from gpu_checks.decode.models import PRESETS, load
from gpu_checks.decode.stack import Maker, Order, build
from gpuhost_cli.waterfall import Waterfall, waterfall
from gpuhost_cli.waterfall_host import GROUPS
from gpuhost_cli.waterfall_rows import Bar, Live, Measured, PartTime, Term
from gpuhost_cli.waterfall_svg import (
    svg,
)
from gpuhost_cli.waterfall_words import change_text, lines, ms_text

TERMS = (Term("read the weights", 6.0), Term("all-reduces: latency", 4.0), Term("multiply", 0.0))


def measured(step_us: float | None = 21000.0, reduce: PartTime | None = None, **parts: float | None) -> Measured:
    """A step (synthetic)."""
    named = parts or {"qkv": 5000.0, "o": 3000.0, "rms_norm": 2000.0, "experts_up": 8000.0}
    why = "decode.no_room: too large"
    rows = tuple(PartTime(name, us, "synthetic", "" if us else why) for name, us in named.items())
    return Measured(rows, step_us, "" if step_us else "decode.failed: synthetic", reduce)


REDUCE = PartTime("all_reduce", 6000.0, "synthetic")


def titles(found: Waterfall) -> dict[str, Bar]:
    return {bar.title: bar for bar in found.bars}


def test_the_whole_picture_by_hand() -> None:
    found = waterfall(1, TERMS, measured(reduce=REDUCE), Live("", 100.0))
    spans = [(bar.section, bar.title, bar.start_ms, bar.end_ms) for bar in found.bars]
    assert spans == [
        ("paper", "read the weights", 0.0, 6.0),
        ("paper", "all-reduces: latency", 6.0, 10.0),
        ("paper", "ceiling: their sum", 0.0, 10.0),
        ("host", "attention's matrices", 0.0, 8.0),  # qkv and o
        ("host", "routed experts", 8.0, 16.0),
        ("host", "norms and RoPE", 16.0, 18.0),
        ("host", "step less its parts", 18.0, 21.0),
        ("host", "all-reduces", 21.0, 27.0),
        ("host", "measured step and all-reduces", 0.0, 27.0),
        ("live", "the server beyond that", 27.0, 100.0),
        ("live", "live step", 0.0, 100.0),
    ]
    assert (found.ceiling_ms, found.parts_ms, found.step_ms, found.reduce_ms) == (10.0, 18.0, 21.0, 6.0)
    assert (found.explained_ms, found.gap_ms, found.beyond_ms) == (24.0, 3.0, 73.0)
    assert found.unexplained_ms == 76.0 == found.gap_ms + found.beyond_ms
    assert (found.whole_ms, found.scale_ms, found.holds) == (100.0, 100.0, ())
    said = dict(lines(found, None))
    assert said["Where"] == (
        "The server takes 100.0 ms per token (one stream). On paper 10.0 ms (10.0 %). "
        "This host's parts and all-reduces, each alone: 24.0 ms (24.0 %)."
    )
    assert said["Unexplained"] == (
        "76.0 ms (76.0 %): 3.00 in the measured step beyond its parts, 73.0 in the server beyond the measured step."
    )
    assert "Changed" not in said


def test_what_is_missing_has_no_bar_and_is_in_what_is_not_explained() -> None:
    lost = PartTime("all_reduce", None, "", "decode.one_gpu: one GPU alone can't reduce")
    found = waterfall(1, TERMS, measured(qkv=5000.0, experts_up=None, reduce=lost), Live("", 100.0))
    bars = titles(found)
    assert "routed experts" not in bars
    assert "all-reduces" not in bars
    assert "step less its parts" not in bars, "parts are in it that have not been measured"
    assert (bars["parts not measured, and gaps"].start_ms, bars["parts not measured, and gaps"].end_ms) == (5.0, 21.0)
    assert [(item.name, item.why) for item in found.missing] == [
        ("experts_up", "decode.no_room: too large"),
        ("all-reduces", "decode.one_gpu: one GPU alone can't reduce"),
    ]
    assert (found.parts_ms, found.reduce_ms, found.unexplained_ms) == (5.0, None, 95.0)
    assert found.holds == ("experts_up", "all-reduces")
    assert "In it, as they were not measured: experts_up, all-reduces" in dict(lines(found, None))["Unexplained"]
    row = next(row for row in found.parts if row.name == "experts_up")
    assert (row.us, row.why) == (None, "decode.no_room: too large")


def test_one_rank_has_nothing_to_reduce_and_misses_nothing() -> None:
    found = waterfall(1, (), measured(), None)
    assert found.missing == ()
    assert titles(found)["measured step"].end_ms == 21.0
    assert (found.unexplained_ms, found.whole_ms, found.ceiling_ms) == (3.0, 21.0, None)


def test_without_a_step_the_parts_are_a_sum_and_the_rest_is_not_known() -> None:
    found = waterfall(1, TERMS, measured(step_us=None), None)
    assert titles(found)["sum of these parts"].end_ms == 18.0
    assert (found.unexplained_ms, found.whole_ms, found.gap_ms) == (None, None, None)
    assert found.holds == ("the step as a whole",)
    assert dict(lines(found, None))["Unexplained"].startswith("Not known")


def test_a_step_alone_counts_as_explained_and_says_that_its_parts_are_missing() -> None:
    found = waterfall(1, TERMS, Measured((), 21000.0), Live("", 30.0))
    assert titles(found)["the step as a whole"].ms == 21.0
    assert (found.explained_ms, found.unexplained_ms, found.gap_ms) == (21.0, 9.0, None)
    assert found.holds == ("all parts",)


def test_nothing_that_was_measured_leaves_the_ceiling() -> None:
    nothing = Measured((), None, "torch.missing: synthetic")
    found = waterfall(1, TERMS, nothing, None)
    assert [bar.title for bar in found.bars] == ["read the weights", "all-reduces: latency", "ceiling: their sum"]
    assert (found.parts_ms, found.step_ms, found.explained_ms, found.unexplained_ms) == (None, None, 10.0, None)
    assert ("the step as a whole", "torch.missing: synthetic") in [(item.name, item.why) for item in found.missing]
    live = waterfall(1, TERMS, nothing, Live("", 100.0))
    assert titles(live)["beyond the ceiling"].ms == 90.0 == live.unexplained_ms
    empty = waterfall(1, (), None, None)
    assert (empty.bars, empty.scale_ms, svg(empty, "x")) == ((), 0.0, "")
    assert dict(lines(empty, None))["Where"] == "Nothing was measured, and there is no ceiling."


def test_a_server_faster_than_the_parts_goes_backwards() -> None:
    found = waterfall(1, TERMS, measured(reduce=REDUCE), Live("", 20.0))
    bar = titles(found)["the server beyond that"]
    assert (bar.start_ms, bar.end_ms, bar.ms) == (27.0, 20.0, -7.0)
    assert (found.unexplained_ms, found.scale_ms) == (-4.0, 27.0)
    assert "Below zero" in dict(lines(found, None))["Unexplained"]
    overlapped = waterfall(1, (), measured(step_us=17000.0), None)
    assert titles(overlapped)["step less its parts"].ms == -1.0
    assert overlapped.scale_ms == 18.0, "the parts reach further than the step"


def test_before_and_after() -> None:
    before = measured(reduce=REDUCE, qkv=5000.0, o=2000.0, experts_up=8000.0, step_us=19000.0)
    after = measured(reduce=REDUCE, qkv=6000.0, o=2000.0, experts_up=8000.0, step_us=21000.0)
    found = waterfall(
        1, TERMS, after, Live("after", 100.0), measured_before=before, live_before=Live("before", 90.0)
    )  # fmt: skip
    changes = {bar.title: bar.change_ms for bar in found.bars if bar.change_ms is not None}
    assert changes == {
        "attention's matrices": 1.0,
        "routed experts": 0.0,
        "step less its parts": 1.0,
        "all-reduces": 0.0,
        "measured step and all-reduces": 2.0,
        "the server beyond that": 8.0,  # 100 - 27 now, 90 - 25 then
        "live step after": 10.0,
    }
    assert [bar.past for bar in found.bars if bar.section == "live"] == [False, True, False]
    assert dict(lines(found, None))["Changed"] == (
        "The server 90.0 → 100.0 ms. The measured step and all-reduces 25.0 → 27.0 ms, "
        "most of it attention's matrices (+1.00)."
    )


def test_only_the_like_is_compared() -> None:
    """A group with other parts than before, or a step without its all-reduces, has no change."""
    before = measured(qkv=5000.0, experts_up=8000.0)
    after = measured(reduce=REDUCE, qkv=6000.0, o=2000.0, experts_up=8000.0)
    found = waterfall(1, (), after, Live("", 50.0), measured_before=before, live_before=Live("", 50.0))
    bars = titles(found)
    assert bars["attention's matrices"].before_ms is None
    assert bars["routed experts"].before_ms == 8.0
    assert bars["all-reduces"].before_ms is None
    assert bars["measured step and all-reduces"].before_ms is None
    assert bars["the server beyond that"].before_ms is None
    rows = {row.name: (row.before_us, row.us) for row in found.parts}
    assert rows["o"] == (None, 2000.0)
    gone = waterfall(1, (), measured(qkv=1.0), None, measured_before=measured(qkv=1.0, router=2.0))
    row = next(row for row in gone.parts if row.name == "router")
    assert (row.before_us, row.us, row.why) == (2.0, None, "not a part of this step")


def test_an_unknown_part_has_a_bar_of_its_own() -> None:
    found = waterfall(1, (), measured(qkv=1000.0, speculation=500.0), None)
    assert titles(found)["speculation"].ms == 0.5
    assert [bar.title for bar in found.bars][:2] == ["attention's matrices", "speculation"]


times = st.one_of(st.none(), st.floats(0.001, 1e6))


@given(
    parts=st.dictionaries(st.sampled_from(["qkv", "o", "router", "experts_up", "sampling", "new"]), times),
    step=times, reduce=times, live=times, terms=st.lists(st.floats(0, 1e3), max_size=4),
)  # fmt: skip
def test_bars_join_and_nothing_is_lost(
    parts: dict[str, float | None], step: float | None, reduce: float | None, live: float | None, terms: list[float]
) -> None:
    rows = tuple(PartTime(name, us, "", "why") for name, us in parts.items())
    host = Measured(rows, step, "why", PartTime("all_reduce", reduce, "", "why"))
    made = tuple(Term(str(number), ms) for number, ms in enumerate(terms))
    found = waterfall(1, made, host, Live("", live / 1e3) if live else None)
    for section in ("paper", "host"):
        bars = [bar for bar in found.bars if bar.section == section and bar.kind != "total"]
        assert all(one.end_ms == other.start_ms for one, other in itertools.pairwise(bars))
        ends = [bar.end_ms for bar in found.bars if bar.section == section and bar.kind == "total"]
        assert not (bars and ends) or abs(bars[-1].end_ms - ends[0]) < 1e-6 * max(1.0, ends[0])
    assert {item.name for item in found.missing} >= {name for name, us in parts.items() if us is None}
    if found.unexplained_ms is not None and found.explained_ms is not None and found.whole_ms is not None:
        assert abs(found.explained_ms + found.unexplained_ms - found.whole_ms) < 1e-6 * max(1.0, found.scale_ms)
    if found.bars and found.scale_ms > 0:
        assert ET.fromstring(svg(found, "x")).tag == "{http://www.w3.org/2000/svg}svg"


def test_texts_of_numbers() -> None:
    assert ms_text(-4.67) == "-4.67"
    assert change_text(None) == "–"


def test_every_part_that_the_check_knows_belongs_somewhere() -> None:
    known = {name for names in GROUPS.values() for name in names}
    found = set()
    for preset in PRESETS:
        model = load(preset)
        order = Order(model, 1, 1024, min(1, model.dense), min(1, model.sparse))
        maker = Maker(MagicMock(), "cpu", MagicMock())  # names alone: nothing is computed
        stack = build(maker, order, lambda queries, keys, values: queries, "x", grouped_experts=True)
        found |= {place.part.name for place in stack.places}
    assert found == known
