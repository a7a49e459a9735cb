"""The section "where the milliseconds go": figures by hand, what is missing, and what is said beside it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import decode_documents as made
import pytest
from decode_documents import AFTER, BEFORE, HOST, ceiling_document, decode_document, serve, serve_document

from gpuhost_cli import report
from gpuhost_cli.report_decode import DecodePart
from gpuhost_cli.waterfall import Waterfall

CEILING = ceiling_document()


def part_of(folder: Path) -> DecodePart:
    part = report.build(folder).hosts[0].decode
    assert part is not None
    return part


def picture_of(folder: Path) -> Waterfall:
    picture = part_of(folder).picture
    assert picture is not None
    return picture


def write(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def full(tmp_path: Path) -> Path:
    return made.folder(
        tmp_path,
        CEILING,
        decode_document(BEFORE),
        made.slower(decode_document(AFTER), attention=1.4, step=1.05),
        serve_document(BEFORE, label="old"),
        made.compared(serve(BEFORE), serve(AFTER, 1.1, label="new")),
    )


def test_all_of_it_in_one_picture(full: Path) -> None:
    part, picture = part_of(full), picture_of(full)
    assert picture.ceiling_ms == pytest.approx(sum(term["counted"] for term in CEILING["terms"]) * 1e3)
    assert sum(made.PARTS.values()) == pytest.approx(made.SUM_US)
    assert picture.parts_ms == pytest.approx((made.SUM_US + 0.4 * 2410.0) / 1e3)
    assert picture.step_ms == pytest.approx(made.STEP_US * 1.05 / 1e3)
    assert picture.reduce_ms == pytest.approx(6.6)
    assert picture.live_ms == pytest.approx(96.5 * 1.1)
    assert picture.live_before_ms == pytest.approx(96.5)
    assert picture.unexplained_ms == pytest.approx(106.15 - (18.889 + 0.964 + 6.6))
    changes = {bar.title: bar.change_ms for bar in picture.bars if bar.change_ms}
    assert changes["attention over the cache"] == pytest.approx(0.964)
    assert changes["live step after, new"] == pytest.approx(9.65)
    assert part.absent == ()
    assert [row.what for row in part.sources] == ["ceiling", "parts", "parts", "live", "live"]
    assert any("BF16 weights; the ceiling has NVFP4" in note for note in part.notes)
    assert dict(part.lines)["Changed"].startswith("The server 96.5 → 106.2 ms, +10.0 % (95 %: +")


def test_the_batch_table_by_hand(full: Path) -> None:
    rows = {(row.concurrency, row.side): row for row in part_of(full).batches}
    assert list(rows) == [(n, side) for n in (1, 2, 10, 64) for side in ("before", "after")]
    before, after = rows[10, "before"], rows[10, "after"]
    ceiling = next(step["tok_s"] for step in CEILING["steps"] if step["batch"] == 10)
    assert before.ceiling_tok_s == after.ceiling_tok_s == ceiling
    assert before.decoding_tok_s == pytest.approx(1e3 * 10 / 131.0)
    assert before.efficiency == pytest.approx(1e3 * 10 / 131.0 / ceiling)
    assert after.efficiency == pytest.approx(1e3 * 10 / (131.0 * 1.1) / ceiling)
    answers = serve(BEFORE).levels[2].answers
    assert before.delivered_tok_s == pytest.approx(10 * 128 * len(answers) / sum(one.seconds for one in answers))
    assert before.tpot_change is None
    said = made.compared(serve(BEFORE), serve(AFTER, 1.1))["comparison"]["changes"]
    own = next(one for one in said if one["concurrency"] == 10 and one["name"] == "tpot_median")
    change = after.tpot_change
    assert change is not None
    assert (change.percent, change.low, change.high) == (
        own["change_percent"], own["low_percent"], own["high_percent"],
    )  # fmt: skip
    assert change.verdict == "worse"
    assert after.rate_change is not None
    assert after.rate_change.percent == next(
        one["change_percent"] for one in said if one["concurrency"] == 10 and one["name"] == "output_rate"
    )


def test_the_comparison_alone_brings_before(tmp_path: Path) -> None:
    folder = made.folder(tmp_path, CEILING, made.compared(serve(BEFORE), serve(AFTER, 1.1)))
    picture, rows = picture_of(folder), part_of(folder).batches
    assert picture.live_before_ms == pytest.approx(96.5, rel=0.01)
    assert [row.side for row in rows[:2]] == ["before", "after"]
    assert rows[1].tpot_change is not None
    assert rows[1].tpot_change.low is not None


def test_two_runs_that_were_not_compared_have_a_change_without_an_interval(tmp_path: Path) -> None:
    folder = made.folder(tmp_path, CEILING, serve_document(AFTER, 1.1), serve_document(BEFORE))
    row = part_of(folder).batches[1]
    assert row.tpot_change is not None
    assert (round(row.tpot_change.percent or 0, 6), row.tpot_change.low, row.tpot_change.verdict) == (10.0, None, "")
    assert "no interval" in (report.write(folder), (folder / "report.html").read_text())[1]
    stale = made.compared(serve("2026-11-01T00:00:00Z"), serve(AFTER, 1.2))
    other = made.folder(tmp_path / "stale", CEILING, serve_document(BEFORE), stale)
    change = part_of(other).batches[1].tpot_change
    assert change is not None
    assert change.low is None, "that interval is of another run of before"
    assert change.percent == pytest.approx(20.0)


def test_what_was_asked_differently_is_not_compared(tmp_path: Path) -> None:
    after = serve_document(AFTER, 1.1)
    after["parameters"]["max_tokens"] = 64
    part = part_of(made.folder(tmp_path, CEILING, serve_document(BEFORE), after))
    assert "no change is given: max_tokens was 128 before and is 64 after" in part.notes
    assert all(row.tpot_change is None and row.rate_change is None for row in part.batches)


@pytest.mark.parametrize(
    ("documents", "absent"),
    [
        ([CEILING], {"no measured parts": "--tags decode", "no live figures": "gpuhost serve-check URL --output FILE"}),
        ([decode_document()], {"no ceiling": "gpuhost ceiling", "no live figures": "gpuhost report RUN --with FILE"}),
        ([serve_document(AFTER)], {"no ceiling": "--json > ceiling.json", "nothing to compare with": "second one"}),
    ],
)
def test_what_is_not_there_is_said(tmp_path: Path, documents: list[dict[str, Any]], absent: dict[str, str]) -> None:
    folder = made.folder(tmp_path, *documents)
    part = part_of(folder)
    report.write(folder)
    pages = [(folder / f"report.{form}").read_text() for form in ("html", "md")]
    for begin, step in absent.items():
        line = next(line for line in part.absent if line.startswith(begin))
        assert step in line
        assert all(begin in page for page in pages)
    assert "<svg" in pages[0]


def test_without_any_of_them_there_is_no_section(tmp_path: Path) -> None:
    folder = made.folder(tmp_path, {"schema": "gpuhost.measurements", "schema_version": 1, "targets": {}})
    assert report.build(folder).hosts[0].decode is None
    report.write(folder)
    assert "<h3>Where the milliseconds go" not in (folder / "report.html").read_text()
    assert "Where the milliseconds go" not in (folder / "report.md").read_text()


def test_parts_that_were_not_measured_are_listed_and_are_in_the_rest(tmp_path: Path) -> None:
    parts = {**made.PARTS, "experts_up": "decode.no_room", "sampling": "decode.no_room"}
    folder = made.folder(
        tmp_path, CEILING, decode_document(parts=parts, reduce="decode.one_gpu"), serve_document(AFTER)
    )
    picture = picture_of(folder)
    assert picture.holds == ("experts_up", "sampling", "all-reduces")
    assert picture.parts_ms == pytest.approx((made.SUM_US - 3105.0 - 58.0) / 1e3)
    report.write(folder)
    html = (folder / "report.html").read_text()
    assert "experts_up, sampling: decode.no_room" in html
    assert "decode.one_gpu" in html
    markdown = (folder / "report.md").read_text()
    assert "| host | experts_up | not measured |" in markdown


def test_a_rank_alone_reduces_nothing(tmp_path: Path) -> None:
    tag = made.TAG.replace("tp8", "tp1")
    assert picture_of(made.folder(tmp_path, decode_document(tag=tag, reduce="decode.one_rank"))).holds == ()


def test_the_gates_baseline_stands_for_the_parts_of_before(tmp_path: Path) -> None:
    now = made.slower(decode_document(), attention=1.5, step=1.1)
    folder = made.folder(tmp_path, now)
    write(folder / HOST / "verdict.json", made.judged(decode_document(BEFORE), now))
    picture, part = picture_of(folder), part_of(folder)
    bars = {bar.title: bar.before_ms for bar in picture.bars}
    assert bars["measured step and all-reduces"] == pytest.approx((made.STEP_US + made.REDUCE_US) / 1e3)
    assert bars["attention over the cache"] == pytest.approx((2410.0 + 905.0 + 167.0) / 1e3)
    assert bars["step less its parts"] is None, "small parts have no baseline"
    assert bars["dense MLP"] is None
    rows = {row.name: (row.before_us, row.us) for row in picture.parts}
    assert rows["attention"] == (2410.0, pytest.approx(3615.0))
    assert rows["embedding"] == (None, 3.1)
    source = part.sources[-1]
    assert (source.what, source.taken_at, source.about) == (
        "parts before", BEFORE, "this host's baseline: kernel 6.8.12-9-pve, driver 570.172.08",
    )  # fmt: skip
    assert "attention over the cache (+1.21)" in dict(part.lines)["Changed"]
    write(folder / HOST / "older.json", decode_document("2026-11-01T00:00:00Z", step=10000.0))
    assert {bar.title: bar.before_ms for bar in picture_of(folder).bars}["measured step and all-reduces"] == 16.6


def test_the_check_that_could_not_run_says_why(tmp_path: Path) -> None:
    document = decode_document(parts={}, step=None, reduce=None)
    document["targets"]["llm-a"]["measurements"] = [
        made.item("decode", "parts", None, "torch.missing", message="no torch (synthetic)")
    ]
    folder = made.folder(tmp_path, CEILING, document, serve_document(AFTER))
    picture = picture_of(folder)
    assert part_of(folder).refused == ""
    assert [bar.section for bar in picture.bars if bar.section == "host"] == []
    assert (picture.batch, picture.live_ms, picture.holds) == (1, 96.5, ("all parts", "the step as a whole"))
    assert picture_of(made.folder(tmp_path / "alone", document)).bars == ()
    assert any("torch.missing: no torch (synthetic)" in item.why for item in picture.missing)
    report.write(folder)
    assert "no torch (synthetic)" in (folder / "report.html").read_text()


def test_a_ceiling_from_another_hosts_parts_is_refused(tmp_path: Path) -> None:
    document = copy.deepcopy(CEILING)
    document["notes"].append("measured: on gpu-host-2 at 2026-11-30T01:00:00Z")
    part = part_of(made.folder(tmp_path, document))
    assert "document-0.json was made from measurements of gpu-host-2, this is gpu-host-1" in part.refused
    document["notes"][-1] = f"measured: on {HOST} at 2026-11-30T01:00:00Z"
    assert part_of(made.folder(tmp_path / "own", document)).refused == ""
    document["notes"][-1] = "measured: in llm-a at 2026-11-30T01:00:00Z"
    inside = part_of(made.folder(tmp_path / "inside", document))
    assert inside.refused == "", "a container's name is no host's"
    document["notes"].pop()
    sheet = part_of(made.folder(tmp_path / "sheet", document))
    said = (
        f"the ceiling has the numbers of a sheet ({document['machine']}), not this host's: gpuhost ceiling --measured"
    )
    assert (said in sheet.notes, said in inside.notes) == (True, False)


def test_a_server_may_call_its_model_as_it_likes(tmp_path: Path) -> None:
    part = part_of(made.folder(tmp_path, CEILING, serve_document(AFTER, model="chat")))
    assert part.refused == ""
    assert "the server calls its model chat: taken to be GLM-5" in part.notes


@pytest.mark.parametrize(
    ("preset", "model", "note"),
    [
        ("deepseek-v3", "deepseek-ai/DeepSeek-V3-0324", ""),
        ("deepseek-v3", "deepseek-ai/DeepSeek-V3.2", "taken to be DeepSeek-V3"),
        ("kimi-k2", "moonshotai/Kimi-K2.5", "taken to be Kimi-K2"),
        ("kimi-k2", "kimi_k2", ""),
    ],
)
def test_another_version_of_a_model_is_not_that_model(tmp_path: Path, preset: str, model: str, note: str) -> None:
    part = part_of(made.folder(tmp_path, ceiling_document("--preset", preset), serve_document(AFTER, model=model)))
    assert part.refused == ""
    said = [each for each in part.notes if each.startswith("the server calls its model")]
    assert said == ([f"the server calls its model {model}: {note}"] if note else [])


def test_prompts_of_another_size_than_the_context_are_said(tmp_path: Path) -> None:
    long = ceiling_document("--preset", "glm-5", "--context", "32768")
    part = part_of(made.folder(tmp_path, long, serve_document(AFTER)))
    wanted = "the server's prompts had about 300 tokens, the ceiling a context of 32768: gpuhost ceiling --context 300"
    assert wanted in part.notes
    with_parts = part_of(made.folder(tmp_path / "parts", CEILING, decode_document(), serve_document(AFTER)))
    assert "the server's prompts had about 300 tokens, the parts a context of 4096" in with_parts.notes
    short = part_of(made.folder(tmp_path / "short", ceiling_document("--preset", "glm-5"), serve_document(AFTER)))
    assert not any("prompts had" in note for note in short.notes), "300 tokens are nothing beside the weights"


@pytest.mark.parametrize("version", [2, None, "1"])
def test_documents_of_another_version_are_left_out_and_named(tmp_path: Path, version: Any) -> None:
    documents = [CEILING, decode_document(), serve_document(AFTER)]
    for number, document in enumerate(documents):
        newer = [{**each, "schema_version": version} if each is document else each for each in documents]
        part = part_of(made.folder(tmp_path / str(number), *newer))
        said = f"document-{number}.json is left out: version {version} of {document['schema']}, this gpuhost reads 1"
        assert said in part.notes
        assert len(part.sources) == 2
        assert len([line for line in part.absent if line.startswith("no ")]) == 1
    alone = part_of(made.folder(tmp_path / "alone", {**CEILING, "schema_version": version}))
    assert dict(alone.lines)["Where"] == "Nothing was measured, and there is no ceiling."
    assert report.render_html(report.build(tmp_path / "alone" / made.RUN_ID)).count("is left out: version") == 1


def test_no_text_of_a_document_is_markup(tmp_path: Path) -> None:
    bad = "<script>x</script> | `y` **z**"
    document, after = copy.deepcopy(CEILING), made.compared(serve(BEFORE), serve(AFTER, 1.1, label=bad, model=bad))
    document["shape"]["title"] = document["machine"] = document["terms"][0]["title"] = bad
    for change in after["comparison"]["changes"]:
        change["verdict"] = bad
    built = report.build(made.folder(tmp_path, document, after))
    assert "<script" not in report.render_html(built)
    page = report.render_markdown(built)
    assert "script" in page
    assert "<script" not in page.replace(r"\<", "")
    assert " | `y" not in page


def test_a_config_without_a_name_agrees_by_its_layers(tmp_path: Path) -> None:
    tag = "config-tp8-b1-c4096"
    same = part_of(made.folder(tmp_path / "same", CEILING, decode_document(tag=tag, model="config")))
    assert same.refused == ""
    assert any("taken to be the same" in note for note in same.notes)
    other = part_of(made.folder(tmp_path / "other", CEILING, decode_document(tag=tag, model="config", layers=61)))
    assert "measured a step of config" in other.refused


def test_the_order_that_fits_the_ceiling_is_shown_and_others_are_named(tmp_path: Path) -> None:
    document = decode_document()
    more = decode_document(tag="glm-5-tp8-b16-c4096", step=40000.0)
    rows = document["targets"]["llm-a"]["measurements"]
    rows[:0] = more["targets"]["llm-a"]["measurements"]
    part = part_of(made.folder(tmp_path, CEILING, document))
    assert part.picture is not None
    assert part.picture.step_ms == pytest.approx(made.STEP_US / 1e3)
    assert "also measured: glm5 with TP 8, batch 16, context 4096 in llm-a" in part.notes


def test_parts_of_a_batch_are_held_against_the_step_of_that_batch(tmp_path: Path) -> None:
    decode = decode_document(tag="glm-5-tp8-b64-c4096", step=60000.0)
    folder = made.folder(tmp_path, CEILING, decode, serve_document(AFTER))
    picture = picture_of(folder)
    rate = next(step["tok_s"] for step in CEILING["steps"] if step["batch"] == 64)
    assert (picture.batch, picture.live_ms) == (64, 260.0)
    assert picture.ceiling_ms == pytest.approx(64e3 / rate)
    odd = part_of(
        made.folder(tmp_path / "odd", CEILING, decode_document(tag="glm-5-tp8-b48-c4096"), serve_document(AFTER))
    )
    assert odd.picture is not None
    assert (odd.picture.ceiling_ms, odd.picture.live_ms) == (None, None)
    assert "no ceiling with 48 streams: gpuhost ceiling --concurrency 48" in odd.absent
    assert any(line.startswith("no live figure with 48 streams") and "1, 2, 10, 64" in line for line in odd.absent)


def test_more_than_the_ceiling_is_called_so(tmp_path: Path) -> None:
    folder = made.folder(tmp_path, CEILING, serve_document(AFTER, 0.05))
    row = part_of(folder).batches[0]
    assert row.above
    assert row.efficiency == pytest.approx(1e3 / (96.5 * 0.05) / row.ceiling_tok_s) if row.ceiling_tok_s else False
    report.write(folder)
    assert "Above 100 %" in (folder / "report.html").read_text()
    assert "above the ceiling" in (folder / "report.md").read_text()
    said = dict(part_of(folder).lines)["Unexplained"]
    assert said.endswith(
        "Below zero: faster than the ceiling: one of its inputs is wrong (precision, rates), or the server speculates."
    )
    parts = part_of(made.folder(tmp_path / "parts", CEILING, decode_document(), serve_document(AFTER, 0.05)))
    assert "Below zero: faster than the parts" in dict(parts.lines)["Unexplained"]


def test_a_concurrency_without_a_ceiling_has_no_efficiency(tmp_path: Path) -> None:
    bare = ceiling_document("--preset", "glm-5")
    rows = {row.concurrency: row for row in part_of(made.folder(tmp_path, bare, serve_document(AFTER))).batches}
    known = {step["batch"] for step in bare["steps"]}
    for concurrency, row in rows.items():
        assert (row.efficiency is None) == (concurrency not in known)
    page = (report.write(tmp_path / made.RUN_ID), (tmp_path / made.RUN_ID / "report.html").read_text())[1]
    assert ("gpuhost ceiling --concurrency N" in page) == (not set(rows) <= known)


def test_a_picture_of_streams_that_have_no_ceiling_says_so(tmp_path: Path) -> None:
    """serve-check without one stream: the picture is of the fewest that it has."""
    part = part_of(made.folder(tmp_path, CEILING, serve_document(AFTER, tpot={48: 200.0})))
    assert part.picture is not None
    assert (part.picture.batch, part.picture.ceiling_ms) == (48, None)
    assert "no ceiling with 48 streams: gpuhost ceiling --concurrency 48" in part.absent


def test_a_server_that_gave_no_second_token_has_no_live_figure(tmp_path: Path) -> None:
    document = serve_document(AFTER)
    for level in document["levels"]:
        level["tpot_ms"], level["answers"] = None, []
    folder = made.folder(tmp_path, CEILING, document)
    part = part_of(folder)
    assert "no live figure with one stream: serve-check measured nothing" in part.absent
    assert dict(part.lines)["Unexplained"].startswith("Not known")
    assert all(row.decoding_tok_s is None and row.efficiency is None for row in part.batches)
    report.write(folder)


def test_both_runs_after_the_roll_say_nothing_about_it(tmp_path: Path) -> None:
    folder = made.folder(tmp_path, serve_document("2026-11-30T19:00:00Z"), serve_document("2026-11-30T20:00:00Z"))
    assert not any("not the roll's" in note for note in part_of(folder).notes), "there was no roll"
    write(folder / HOST / "roll.json", {"schema": "gpuhost.roll", "schema_version": 1, "state": "closed"})
    assert any("taken after this run" in note for note in part_of(folder).notes)
    write(folder / HOST / "document-0.json", serve_document(BEFORE))
    assert not any("not the roll's" in note for note in part_of(folder).notes)


def test_a_run_that_was_broken_off_says_so(tmp_path: Path) -> None:
    document = serve_document(AFTER, state="stopped", sentence="the stream broke (synthetic)")
    document["levels"][-1]["complete"] = False
    notes = part_of(made.folder(tmp_path, document)).notes
    assert "document-0.json is stopped: the stream broke (synthetic)" in notes
    assert "document-0.json: concurrency 64 was broken off" in notes
