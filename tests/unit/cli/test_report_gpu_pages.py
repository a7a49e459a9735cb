"""The pages around the section about the GPUs: runs that only measure, markup, and documents of another form."""

from __future__ import annotations

import copy
import json
import random
import re
from pathlib import Path

import gate_runs as runs
import pytest
from gate_runs import eight, host_of, pages
from test_report import Page, leaves, spoil

from gpuhost_cli import report, report_words
from gpuhost_cli.report_console import failed_gate_lines


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    return runs.folder(tmp_path, *runs.slow_gate())


def test_single_documents_are_shown_and_nothing_is_called_good(tmp_path: Path) -> None:
    targets = {"host": runs.target(*runs.items("memory")), "llm-a": runs.target(*runs.items("p2p_hang"))}
    folder = runs.folder(tmp_path, targets, None, single=True)
    host = host_of(folder)
    assert host.sentence == "gpu-host-1: 12 values measured, 7 not measured, 1 error, nothing judged"
    assert host.gpu is not None
    assert host.gpu.table is None
    assert host.measurements is not None
    assert len(host.measurements) == 21
    assert next(row.share for row in host.measurements if row.name == "memory.copy.gpu0") == 0.8636
    assert "ACS" in host.next_step, "an error has a way out, judged or not"
    html, markdown = pages(folder)
    assert "done, with errors" in html
    for page in (html, markdown):
        assert "Only measured: nothing was held against a limit." in page or "nothing was held against a limit" in page
        assert "Preflight: not recorded" not in page, "a run without a roll has none of a roll's sections"
    assert "86 %" in html


def test_a_gate_outside_of_a_roll_knows_its_kernel_and_is_back_on_none(slow: Path) -> None:
    built = report.build(slow)
    assert built.sentence == f"gpu-host-1 runs {runs.NEW}, gate failed (memory.slow)."
    assert built.exit_meaning == report_words.STANDALONE_GATE
    assert report_words.exit_meaning(3, ["good_on_old", "gate_failed"]) == report_words.EXIT_MEANING[3]
    assert report_words.exit_meaning(99, []) == "unknown"


def test_the_pages_are_whole(tmp_path: Path) -> None:
    measured = {"llm-a": runs.target(*runs.items("p2p_hang"))}
    folders = [
        runs.folder(tmp_path / "slow", *runs.slow_gate()),
        eight(tmp_path / "eight", ce_0_5=4.1, ce_2_3="p2p.hang"),
        runs.folder(tmp_path / "measured", measured, None, single=True),
    ]
    for folder in folders:
        html, markdown = pages(folder)
        page = Page()
        page.feed(html)
        assert (page.open, page.fetched) == ([], [])
        columns = 0
        for line in markdown.splitlines():
            found = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
            assert columns in (0, found) or not found, line
            columns = found
        data = json.loads((report.write(folder).parent / "report.json").read_text())
        assert data["hosts"][0]["gpu"]["matrices"]


def test_text_of_a_gpu_can_not_become_markup(slow: Path) -> None:
    nasty = "<script>alert(1)</script> | x"
    for name, keys in (("verdict", ("observed", "limit", "name", "target", "unit")), ("measurements", ("name",))):
        path = slow / runs.HOST / f"{name}.json"
        document = json.loads(path.read_text())
        rows = document.get("comparisons") or document["targets"]["host"]["measurements"]
        for row in rows[:3]:
            gpu = {"uuid": nasty, "ordinal": nasty}
            row.update(dict.fromkeys(keys, nasty), detail={"message": nasty, "gpus": {"after": [gpu]}})
        document["notes"] = [nasty]
        path.write_text(json.dumps(document))
    html, markdown = pages(slow)
    assert "<script" not in html
    assert "<script" not in re.sub(r"`[^`]*`|\\<", "", markdown)


def test_no_document_of_another_form_breaks_the_section(slow: Path) -> None:
    chance = random.Random(11)  # the same places every time
    for name in ("verdict", "measurements"):
        path = slow / runs.HOST / f"{name}.json"
        document = json.loads(path.read_text())
        places = [place for place in leaves(document) if place]
        chosen = [place for place in places if "gpus" in place or "link" in place or "comparisons" in place]
        for place in chance.sample(places, 30) + chance.sample(chosen, 30):
            value = chance.choice([None, 7, "text", [], {}, ["a", 1], {"a": {"b": 1}}, True, -1.5])
            path.write_text(json.dumps(spoil(copy.deepcopy(document), place, value)))
            pages(slow)
            failed_gate_lines({"gpuhost_documents": [json.loads(path.read_text())]})
        path.write_text(json.dumps(document))
