"""Documents for the section "where the milliseconds go": what does not agree, --with, and pages that nothing breaks."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import decode_documents as made
import pytest
from decode_documents import AFTER, BEFORE, HOST, ceiling_document, decode_document, serve, serve_document
from test_report import Page, leaves, spoil

from gpuhost_cli import report
from gpuhost_cli.main import main
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


REFUSED = [
    (
        [ceiling_document("--preset", "kimi-k2"), decode_document()],
        "document-1.json measured a step of glm-5, document-0.json is the ceiling of Kimi-K2",
    ),
    (
        [ceiling_document("--preset", "glm-5", "--tp", "4"), decode_document()],
        "document-1.json was measured for TP 8, document-0.json is for TP 4: gpuhost ceiling --tp 8",
    ),
    ([decode_document(host="gpu-host-2")], "document-0.json was measured on gpu-host-2, this is gpu-host-1"),
    (
        [CEILING, serve_document(AFTER, model="moonshotai/Kimi-K2-Instruct")],
        "document-1.json: the server has moonshotai/Kimi-K2-Instruct, document-0.json is about GLM-5",
    ),
    (
        [ceiling_document("--preset", "glm-4.5"), serve_document(AFTER, model="zai-org/GLM-4.5-Air-FP8")],
        "the server has zai-org/GLM-4.5-Air-FP8, document-0.json is about GLM-4.5",
    ),
    (
        [decode_document(), serve_document(AFTER, model="Qwen/Qwen3-30B-A3B")],
        "document-1.json: the server has Qwen/Qwen3-30B-A3B, document-0.json is about glm-5",
    ),
    (
        [serve_document(BEFORE, model="my-model"), serve_document(AFTER, model="your-model")],
        "document-0.json is of the model my-model, document-1.json of your-model: leave one of them out",
    ),
    (
        [serve_document(BEFORE, host="gpu-a"), serve_document(AFTER, host="gpu-b")],
        "document-0.json is of the server gpu-a, document-1.json of gpu-b: leave one of them out",
    ),
    (
        [decode_document(BEFORE, tag="glm-5-tp8-b1-c1024"), decode_document(AFTER)],
        "document-0.json measured context 1024, document-1.json context 4096: leave one of them out",
    ),
]


@pytest.mark.parametrize(("documents", "sentence"), REFUSED)
def test_what_does_not_agree_is_refused_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], documents: list[dict[str, Any]], sentence: str
) -> None:
    """In the run's folder the report says it and goes on; with --with nothing is copied."""
    folder = made.folder(tmp_path / "in", *documents)
    part = part_of(folder)
    assert sentence in part.refused
    assert part.picture is None
    report.write(folder)
    assert sentence.partition(":")[0] in (folder / "report.html").read_text()
    assert "<svg" not in (folder / "report.html").read_text()
    assert "the documents do not agree" in (folder / "report.md").read_text()
    fresh = made.folder(tmp_path / "out")
    files = [write(tmp_path / f"{number}.json", document) for number, document in enumerate(documents)]
    assert main(["report", str(fresh), "--with", *map(str, files)]) == 2
    said = re.sub(r"document-(\d)", r"\1", sentence.partition(":")[0])
    assert said in capsys.readouterr().err, "the files are called as they were given"
    assert list((fresh / HOST).iterdir()) == []
    assert not (fresh / "report.html").exists()


def test_with_copies_compares_and_remembers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made.folder(tmp_path)
    given = tmp_path / "given"
    given.mkdir()
    files = [
        write(given / "c.json", CEILING),
        write(given / "d.json", decode_document(AFTER)),
        write(given / "b.json", serve_document(BEFORE)),
        write(given / "a.json", serve_document(AFTER, 1.1)),
    ]
    assert main(["report", str(folder), "--with", *map(str, files)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert sorted(path.name for path in (folder / HOST).iterdir()) == [
        "ceiling.json", "decode-20261130T182000Z.json",
        "serve_check-20261130T170200Z.json", "serve_check-20261130T182000Z.json",
    ]  # fmt: skip
    change = part_of(folder).batches[1].tpot_change
    assert change is not None
    assert change.low is not None, "the two runs were compared as they were copied"
    host = report.build(folder).hosts[0]
    assert host.measurements is None, "they are no measurements of this run"
    first = (folder / "report.html").read_bytes()
    for path in files:
        path.unlink()
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.html").read_bytes() == first
    again = [write(given / "b.json", serve_document(BEFORE)), write(given / "a.json", serve_document(AFTER, 1.1))]
    for _ in range(2):
        assert main(["report", str(folder), "--with", *map(str, again)]) == 0
    assert len(list((folder / HOST).iterdir())) == 4, "what is there already is not copied again"


def test_a_newer_ceiling_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    folder = made.folder(tmp_path)
    for number, wanted in enumerate((("--preset", "glm-5"), ("--preset", "kimi-k2"))):
        path = write(tmp_path / f"{number}.json", ceiling_document(*wanted))
        assert main(["report", str(folder), "--with", str(path)]) == 0
    assert [row.about.partition(" on ")[0] for row in part_of(folder).sources] == ["Kimi-K2"]


def test_with_several_hosts_it_has_to_be_clear_whose_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made.folder(tmp_path, hosts=("gpu-a", "gpu-b"))
    plain = write(tmp_path / "c.json", CEILING)
    assert main(["report", str(folder), "--with", str(plain)]) == 2
    assert "c.json: whose is it? The run has gpu-a, gpu-b: say --host" in capsys.readouterr().err
    assert main(["report", str(folder), "--with", str(plain), "--host", "gpu-c"]) == 2
    assert "--host gpu-c: the run has gpu-a, gpu-b" in capsys.readouterr().err
    named = write(tmp_path / "d.json", decode_document(host="gpu-b"))
    assert main(["report", str(folder), "--with", str(named)]) == 0
    assert [path.name for path in (folder / "gpu-b").iterdir()] == ["decode-20261130T182000Z.json"]
    server = write(tmp_path / "s.json", serve_document(AFTER, host="gpu-b"))
    assert main(["report", str(folder), "--with", str(server), "--host", "gpu-a"]) == 2
    assert "s.json is of gpu-b, not of gpu-a: --host gpu-b puts it there" in capsys.readouterr().err
    assert main(["report", str(folder), "--with", str(plain), "--host", "gpu-a"]) == 0
    capsys.readouterr()
    assert main(["report", str(folder), "--host", "gpu-a"]) == 2
    assert "--host goes with --with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "--with takes a ceiling"),
        ("{", "no JSON"),
        ("[]", "the schema is None: --with takes a ceiling (gpuhost ceiling --json)"),
        ('{"schema": "gpuhost.trace"}', "the schema is gpuhost.trace"),
        ('{"schema": "gpuhost.measurements", "targets": {}}', "the schema is gpuhost.measurements: --with takes"),
        ('{"schema": "gpuhost.ceiling", "schema_version": 7}', "version 7 of gpuhost.ceiling, this gpuhost reads 1"),
        ('{"schema": "gpuhost.ceiling", "schema_version": 1}', "a ceiling without terms"),
        ('{"schema": "gpuhost.serve_check", "schema_version": 1}', "the document has no label"),
    ],
)
def test_what_is_not_understood_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, message: str
) -> None:
    folder, path = made.folder(tmp_path), tmp_path / "given.json"
    if text is not None:
        path.write_text(text)
    assert main(["report", str(folder), "--with", str(path)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "given.json" in said
    assert list((folder / HOST).iterdir()) == []


def test_the_answer_of_gpu_checks_itself_will_do(tmp_path: Path) -> None:
    """It has no targets, and its host may be a container's own name, which says nothing."""
    document = decode_document(host="llm-a")
    document["measurements"] = document.pop("targets")["llm-a"]["measurements"]
    given = write(tmp_path / "d.json", document)
    folder = made.folder(tmp_path)
    assert main(["report", str(folder), "--with", str(given)]) == 0
    assert picture_of(folder).step_ms == pytest.approx(made.STEP_US / 1e3)
    assert part_of(folder).sources[0].about.endswith("in llm-a")


def test_a_failed_gate_comes_first(tmp_path: Path) -> None:
    folder = made.folder(tmp_path, decode_document())
    for factor, first in ((1.0, "Where the milliseconds go"), (1.5, "Gate")):
        now = made.slower(decode_document(), step=factor)
        write(folder / HOST / "verdict.json", made.judged(decode_document(BEFORE), now))
        report.write(folder)
        heads = re.findall(r"<h3>(.*?)</h3>", (folder / "report.html").read_text())
        assert heads[0] == first


def test_the_pages_are_whole_and_fetch_nothing(full: Path) -> None:
    report.write(full)
    html = (full / "report.html").read_text()
    page = Page()
    page.feed(html)
    assert page.open == []
    assert not [each for each in page.fetched if each.startswith(("http", "//")) or each in ("script", "img")]
    data = json.loads((full / "report.json").read_text())
    picture = data["hosts"][0]["decode"]["picture"]
    assert picture["unexplained_ms"] == pytest.approx(106.15 - 26.453)
    assert {"title", "start_ms", "end_ms", "before_ms"} <= set(picture["bars"][0])


def test_no_document_of_another_form_breaks_the_report(full: Path) -> None:
    chance = random.Random(11)  # the same places every time
    for path in sorted((full / HOST).glob("*.json")):
        document = json.loads(path.read_text())
        places = [place for place in leaves(document) if place and "answers" not in place]
        for place in chance.sample(places, 10):
            for value in (None, "text", -1.0, [], {}, float("inf"), float("nan"), 1e300, 1e-320, True):
                path.write_text(json.dumps(spoil(document, place, value)))
                built = report.build(full)
                assert "<h2>" in report.render_html(built), place
                assert report.render_markdown(built)
        path.write_text(json.dumps(document))
