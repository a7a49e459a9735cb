"""The report: the outcome first, nothing prettier than it was, and nothing that breaks it."""

from __future__ import annotations

import copy
import json
import random
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gpuhost_cli import report, report_words
from gpuhost_cli.report_host import HostReport

RUNS = Path(__file__).parents[2] / "fixtures" / "runs"
GOOD = "20261130T011450Z-9f3c"
BACK = "20261130T022010Z-51d0"
HEADERS = "20261129T214405Z-c0a7"
NOTHING = "20261130T061500Z-0b1e"
ALL = (GOOD, BACK, HEADERS, NOTHING)
OLD, NEW = "6.1.0-49-amd64", "6.12.94+deb12-amd64"


def host_of(run_id: str, number: int = 0) -> HostReport:
    return report.build(RUNS / run_id).hosts[number]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUNS / BACK, tmp_path / BACK))


def test_the_first_line_says_it_all() -> None:
    sentences = {run_id: report.build(RUNS / run_id).sentence for run_id in ALL}
    assert sentences[GOOD] == f"gpu1.example.com runs {NEW}, gate passed, downtime 1 min 49 s."
    assert sentences[BACK] == (
        f"gpu2.example.com is back on {OLD}, gate failed on {NEW} (lxc.stale_major), downtime 2 min 50 s; "
        f"gpu3.example.com is untouched on {OLD}."
    )
    assert sentences[HEADERS] == (
        f"gpu1.example.com still runs {OLD}, stopped at a safe point (dkms.headers_missing), no downtime."
    )
    assert sentences[NOTHING] == f"gpu1.example.com already runs {NEW}, nothing to do, no downtime."


def test_the_next_step_is_the_most_specific_one() -> None:
    assert report.build(RUNS / GOOD).next_step == ""
    assert report.build(RUNS / BACK).next_step.startswith("Set gpuhost_lxc_presumed: apply for gpu2.example.com")
    assert report.build(RUNS / HEADERS).next_step.startswith("Make the headers package installable")


def test_a_warning_is_shown_and_is_no_failure(folder: Path) -> None:
    path = folder / "gpu2.example.com" / "preflight.json"
    document = json.loads(path.read_text())
    warned = {
        "name": "interface names", "ok": False, "cause": "net.name_unpinned", "observed": "enp5s0 is named by slot",
        "expected": "pinned", "next_step": "Pin it.", "blocks": False,
    }  # fmt: skip
    document["proofs"].append(warned)
    path.write_text(json.dumps(document))
    found = report.build(folder).hosts[0]
    assert found.proofs is not None
    assert (found.proofs[-1].status, found.proofs[-1].cause) == ("warning", "net.name_unpinned")
    assert report.build(folder).next_step.startswith("Set gpuhost_lxc_presumed"), "a warning is not the way out"
    page = (report.write(folder), (folder / "report.html").read_text())[1]
    assert re.search(r'class="nowrap warn">warning<', page)
    assert "net.name_unpinned" in (folder / "report.md").read_text()
    warned["blocks"] = True
    path.write_text(json.dumps(document))
    proofs = report.build(folder).hosts[0].proofs
    assert proofs is not None
    assert proofs[-1].status == "not proven"


def test_downtime_is_from_the_first_stop_to_the_hand_back() -> None:
    assert host_of(GOOD).downtime_s == 109
    assert host_of(BACK).downtime_s == 170, "to the end of the way back"
    assert host_of(HEADERS).downtime_s is None
    assert not host_of(HEADERS).downtime_open


def test_a_downtime_that_is_not_over_is_no_number(folder: Path) -> None:
    path = folder / "gpu2.example.com" / "roll.json"
    roll = json.loads(path.read_text())
    roll["steps"] = [step for step in roll["steps"] if step["stage"] != "rollback"]
    path.write_text(json.dumps({**roll, "state": "open"}))
    host = report.build(folder).hosts[0]
    assert (host.downtime_s, host.downtime_open) == (None, True)
    assert "downtime not over" in host.sentence


def test_moved_majors_rules_and_leaks() -> None:
    host = host_of(GOOD)
    assert [(row.name, row.before, row.after) for row in host.majors if row.differs] == [
        ("nvidia-uvm", "504", "509"),
        ("nvidia-caps", "507", "237"),
    ]
    assert {(row.container, row.leaks_to) for row in host.leaks} == {("llm-a", "hidraw"), ("llm-b", "hidraw")}
    page = report.render_html(report.build(RUNS / GOOD))
    assert "llm-a could open hidraw" in page
    assert "- lxc.cgroup2.devices.allow = c 504:* rwm" in page
    assert "+ lxc.cgroup2.devices.allow = c 509:* rwm" in page


def test_what_was_not_measured_is_never_good() -> None:
    host = host_of(GOOD)
    assert host.verdict is not None
    assert {row.status for row in host.verdict.verdicts if row.check == "decode"} == {"not_measured"}
    assert host.measurements is not None
    assert all(row.value is None for row in host.measurements if row.name == "decode_tokens_s")
    for page in (report.render_html(report.build(RUNS / GOOD)), report.render_markdown(report.build(RUNS / GOOD))):
        assert "not measured" in page
    assert all(report_words.GATE_TONE[status] != "good" for status in ("not_measured", "error", "fail", "not_run"))


@pytest.mark.parametrize("status", [None, "", "passed", True, 1])
def test_an_unknown_verdict_is_an_error(folder: Path, status: Any) -> None:
    path = folder / "gpu2.example.com" / "verdict.json"
    verdict = json.loads(path.read_text())
    verdict["status"] = verdict["verdicts"][0]["status"] = status
    path.write_text(json.dumps(verdict))
    host = report.build(folder).hosts[0]
    assert host.gate == "error"
    assert host.verdict is not None
    assert "error" in {row.status for row in host.verdict.verdicts}


def test_a_failure_and_what_followed_from_it_are_one() -> None:
    failures = host_of(BACK).failures
    assert len(failures) == 1
    assert failures[0].cause == "lxc.stale_major"
    assert failures[0].observed.startswith("llm-b allows major 504")
    assert failures[0].then == (f"promote: gpu2.example.com is back on {OLD} and in service; no other host is touched",)
    assert not failures[0].rescued, "the roll has failed, even though the first failure was handled"


def test_untouched_hosts_are_named() -> None:
    host = host_of(BACK, 1)
    assert (host.host, host.state, host.kernel_now) == ("gpu3.example.com", "untouched", OLD)
    assert host.missing == ("preflight", "device rules", "gate", "measurements")
    page = report.render_html(report.build(RUNS / BACK))
    assert "Not recorded in this run: preflight, device rules, gate, measurements." in page


def test_missing_documents_are_said_to_be_missing(folder: Path) -> None:
    for path in (folder / "gpu2.example.com").iterdir():
        path.unlink()
    built = report.build(folder)
    for page in (report.render_html(built), report.render_markdown(built)):
        for section in ("Facts", "Plan", "Preflight", "Gate", "Device rules", "Measurements"):
            assert f"{section}: not recorded in this run." in page


def test_a_folder_without_run_json_still_gives_a_report(folder: Path) -> None:
    (folder / "run.json").unlink()
    built = report.build(folder)
    assert [host.host for host in built.hosts] == ["gpu2.example.com", "gpu3.example.com"]
    assert built.sentence.startswith("Not finished, the run was interrupted or is still going on: ")
    assert "run.json" in built.not_recorded[0]
    assert report.build(folder).exit_status is None


def test_no_folder_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name one of the folders in runs/"):
        report.build(tmp_path / "absent")


def test_the_three_forms_are_written_and_the_same_again(folder: Path) -> None:
    path = report.write(folder)
    assert path == folder / "report.html"
    first = {name: (folder / name).read_bytes() for name in ("report.html", "report.md", "report.json")}
    report.write(folder)
    assert first == {name: (folder / name).read_bytes() for name in first}
    data = json.loads(first["report.json"])
    assert data["schema"] == "gpuhost.report"
    assert [host["state"] for host in data["hosts"]] == ["good_on_old", "untouched"]
    assert first["report.md"].startswith(b"# gpu2.example.com is back on ")


class Page(HTMLParser):
    """Counts what must balance, and collects what would be fetched."""

    VOID = frozenset({"meta", "br", "link", "img", "input", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href") and value and value[0] != "#"]
        self.fetched += [tag] if tag in ("script", "link", "iframe", "img") else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


@pytest.mark.parametrize("run_id", ALL)
def test_the_page_is_whole_and_fetches_nothing(run_id: str) -> None:
    text = report.render_html(report.build(RUNS / run_id))
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.fetched == []
    assert "url(" not in text
    assert "@import" not in text


@pytest.mark.parametrize("run_id", ALL)
def test_markdown_tables_have_the_same_columns_in_every_row(run_id: str) -> None:
    columns = 0
    for line in report.render_markdown(report.build(RUNS / run_id)).splitlines():
        if line.startswith("|"):
            found = len(re.findall(r"(?<!\\)\|", line))
            assert columns in (0, found), line
            columns = found
        else:
            columns = 0


NASTY = "<script>alert(1)</script> | `x` *y* \n# z"


def test_text_of_a_host_can_not_become_markup(folder: Path) -> None:
    path = folder / "run.json"
    run = json.loads(path.read_text())
    run["failures"][0].update(message=NASTY, observed=NASTY, expected=NASTY, object=NASTY)
    run["command"] = NASTY
    path.write_text(json.dumps(run))
    built = report.build(folder)
    assert "<script" not in report.render_html(built)
    markdown = report.render_markdown(built)
    assert "\n# z" not in markdown
    assert "observed: \\<script\\>alert(1)\\</script\\> \\| \\`x\\` \\*y\\* # z" in markdown
    assert report.markdown_code("a`b|c") == "`` a`b\\|c ``"


def leaves(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value in a document."""
    yield path
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield from leaves(child, (*path, key))


def spoil(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    spoiled = copy.deepcopy(document)
    node = spoiled
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    return spoiled


def test_no_document_of_another_form_breaks_the_report(folder: Path) -> None:
    chance = random.Random(7)  # the same places every time
    for path in sorted(folder.rglob("*.json")):
        document = json.loads(path.read_text())
        places = [place for place in leaves(document) if place]
        for place in chance.sample(places, min(12, len(places))):
            value = chance.choice([None, 7, "text", [], {}, ["a", 1], {"a": {"b": 1}}, True, -1.5])
            path.write_text(json.dumps(spoil(document, place, value)))
            built = report.build(folder)
            report.render_html(built)
            report.render_markdown(built)
        for text in ("", "[]", "{", "null"):
            path.write_text(text)
            report.render_html(report.build(folder))
        path.write_text(json.dumps(document))


def test_many_hosts_are_counted_the_worst_first() -> None:
    hosts = [("good", "a"), ("untouched", "b"), ("good", "c"), ("good_on_old", "d"), ("needs_person", "e")]
    assert report_words.run_sentence(hosts, finished=True) == (
        "5 hosts: 1 needs a person, 1 back on the old kernel, 2 good, 1 untouched."
    )
    steps = [("untouched", "again"), ("good_on_old", "look"), ("needs_person", "go there")]
    assert report_words.run_next_step(steps) == "go there"
    assert report_words.run_sentence([], finished=True) == "no host took part in this run."


@pytest.mark.parametrize("state", sorted(report_words.STATE_WORD))
def test_every_state_has_words_and_a_sentence(state: str) -> None:
    outline = report_words.Outline("h", state, "", "", "not_run", "", None, False, None)
    assert report_words.host_sentence(outline).startswith("h ")
    assert state in report_words.STATE_TONE


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "not recorded"), (0, "0 s"), (0.44, "0.4 s"), (9.96, "10 s"), (59.7, "1 min 00 s"), (252, "4 min 12 s"),
     (7380, "2 h 03 min")],
)  # fmt: skip
def test_times_read_like_words(seconds: float | None, words: str) -> None:
    assert report_words.seconds_words(seconds) == words
