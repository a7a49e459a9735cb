"""``gpuhost audit`` as it is read: on a terminal, as Markdown, as HTML, as JSON, and against an earlier one."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import audit_documents as documents
import pytest

from gpuhost.causes import FINDINGS, GOOD, USAGE
from gpuhost.documents import Finding
from gpuhost_cli import audit, audit_data, audit_pages, audit_text, outcomes
from gpuhost_cli.audit_data import LISTS, Audits, HostAudit, compared, host_audit
from gpuhost_cli.main import extra_of, parser
from gpuhost_cli.records import Recorder
from gpuhost_cli.run import InputError, Request

LOST = "host.unreachable: ssh: connect to host 192.0.2.7 port 22: No route to host"
BEFORE, AFTER, NO_ROOT = map(host_audit, (documents.BEFORE, documents.AFTER, documents.NO_ROOT))
ONE = Audits("20261130T011450Z-9f3c", "2026-11-30T01:14:50Z", (BEFORE,))
MANY = Audits("20261201T090000Z-0a0a", "2026-12-01T09:00:00Z", (AFTER, NO_ROOT, HostAudit("gpu3", failure=LOST)))
COMPARED = compared(MANY, {"gpu1.example.com": BEFORE, "gpu9.example.com": BEFORE})
ALL = (ONE, MANY, COMPARED)


class Page(HTMLParser):
    """The text of a page, and whether every element is closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "title"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def findings(audits: Audits) -> Iterator[Finding]:
    for host in audits.hosts:
        yield from host.findings


# --- the terminal


@pytest.mark.parametrize("audits", ALL)
def test_a_terminal_of_100_columns_is_enough(audits: Audits) -> None:
    text = audit_text.render(audits, False)
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_the_lists_are_those_that_people_know() -> None:
    text = audit_text.render(ONE, False)
    titles = [line for line in text.splitlines() if re.search(r"^\S.* \(\d+\)$", line)]
    assert titles == [
        "Security (1)", "P0, fixable at runtime (5)", "P1, needs a reboot (1)", "Unknown (1)", "Confirmed good (2)",
        "Info (1)",
    ]  # fmt: skip


def test_what_one_step_ends_stands_above_that_step() -> None:
    lines = audit_text.render(ONE, False).splitlines()
    assert lines.count("    -> gpuhost tune") == 1
    above = lines[: lines.index("    -> gpuhost tune")]
    assert [line.split()[0] for line in above[-5:]].count("pcie.max_read_request") == 2


def test_no_word_of_a_finding_is_lost() -> None:
    joined = re.sub(r"\s+", "", audit_text.render(ONE, False))
    for item in findings(ONE):
        assert re.sub(r"\s+", "", item.fix) in joined
    wide = replace(ONE, hosts=(replace(BEFORE, findings=BEFORE.findings[9:10]),))
    cells = " ".join(line[13:] for line in audit_text.render(wide, False).splitlines()[4:])
    assert BEFORE.findings[9].observed in " ".join(cells.split())


def test_many_hosts_have_one_line_each_first() -> None:
    lines = audit_text.render(MANY, False).splitlines()
    assert lines[0].split() == ["host", "security", "P0", "P1", "unknown", "good", "info", "kernel"]
    assert lines[1].split() == ["gpu1.example.com", "1", "2", "·", "·", "6", "1", "6.12.9-1-pve"]
    assert lines[2].split() == [
        "gpu2.example.com", "·", "·", "·", "1", "1", "·", "6.1.0-32-amd64", "(without", "root)",
    ]  # fmt: skip
    assert lines[3] == f"gpu3              not audited: {LOST}"[:99] + "…"


def test_colour_only_where_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert audit_text.has_colour(Terminal())
    assert not audit_text.has_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not audit_text.has_colour(Terminal())
    coloured = audit_text.render(ONE, True)
    assert "\x1b[1;31mP0, fixable at runtime (5)\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == audit_text.render(ONE, False)


@pytest.mark.parametrize("observed", ["", "x" * 400, "ä" * 150, "a\tb\nc"])
def test_odd_texts_break_no_table(observed: str) -> None:
    odd = replace(BEFORE.findings[1], observed=observed, id="x." + "y" * 60, expected="z" * 90)
    text = audit_text.render(Audits("", "", (replace(BEFORE, host="h" * 70, findings=(odd,)), AFTER)), False)
    assert max(map(len, text.splitlines())) <= 100


# --- pages


@pytest.mark.parametrize("audits", ALL)
def test_html_is_whole_and_needs_nothing_else(audits: Audits) -> None:
    page = audit_pages.html(audits)
    parsed = Page(page)
    assert all(link.startswith("#") for link in parsed.links)
    assert "@import" not in page
    assert "url(" not in page
    for item in findings(audits):
        for word in (item.observed, item.expected if item.severity not in ("good", "info") else "", item.fix):
            assert " ".join(word.split()) in parsed.text
    for host in audits.hosts:
        for severity, title in LISTS.items():
            assert (title in parsed.text) or not host.listed(severity)
    assert "<disk>" not in page
    assert "a tape | a &lt;disk&gt;" in page


@pytest.mark.parametrize("audits", ALL)
def test_markdown_tables_have_their_columns(audits: Audits) -> None:
    page = audit_pages.markdown(audits)
    width = 0
    for line in page.splitlines():
        if not line.startswith("|"):
            width = 0
            continue
        columns = len(re.findall(r"(?<!\\)\|", line)) - 1
        assert columns == (width or columns), line
        width = columns
    assert r"a tape \| a \<disk\>" in page
    assert "\n\n\n" not in page


# --- JSON


def test_json_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    path.write_text(audit_data.as_json(MANY))
    assert audit_data.load(path) == {"gpu1.example.com": AFTER, "gpu2.example.com": NO_ROOT}
    data = json.loads(path.read_text())
    assert (data["schema"], data["schema_version"], data["run_id"]) == ("gpuhost.audits", 1, MANY.run_id)
    assert [item["host"] for item in data["hosts"]] == ["gpu1.example.com", "gpu2.example.com", "gpu3"]
    assert data["hosts"][2]["failure"] == LOST
    path.write_text(audit_data.as_json(COMPARED))
    assert audit_data.load(path) == audit_data.load(path)
    changed = json.loads(path.read_text())["hosts"][0]
    assert changed["compared_with"] == {"taken_at": "2026-11-30T01:14:50Z", "kernel": "6.8.12-1-pve"}
    assert {item["verdict"] for item in changed["changes"]} == {"expected", "not_expected"}


def test_a_document_and_a_runs_folder_can_be_read_too(tmp_path: Path) -> None:
    folder = tmp_path / "20261130T011450Z-9f3c" / "gpu1.example.com"
    folder.mkdir(parents=True)
    (folder / "audit.json").write_text(json.dumps(documents.BEFORE))
    for path in (folder / "audit.json", folder.parent):
        assert audit_data.load(path) == {"gpu1.example.com": BEFORE}


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"schema": "gpuhost.plan"}', None])
def test_what_is_no_audit_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "old.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        audit_data.load(path)


def test_a_folder_without_an_audit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no audit in there"):
        audit_data.load(tmp_path)


# --- comparing


def pairs(then: list[Finding], now: list[Finding]) -> list[tuple[str, str | None, str | None]]:
    host = audit_data.with_changes(HostAudit("h", findings=tuple(now)), HostAudit("h", findings=tuple(then)))
    return [
        (item.verdict, item.before and item.before.observed, item.after and item.after.observed)
        for item in host.changes or ()
    ]


def one(observed: str, severity: str = "good", code: str = "sysctl.value", source: str = "/a", **more: str) -> Finding:
    words: Any = {"expected": "0", "why": "", "fix": "", "domain": "kernel_runtime", **more}
    return Finding(id=code, severity=severity, observed=observed, source=source, **words)  # type: ignore[arg-type]


def test_the_same_audit_has_not_changed() -> None:
    assert compared(ONE, {BEFORE.host: BEFORE}).hosts[0].changes == ()
    text = audit_text.render(compared(ONE, {BEFORE.host: BEFORE}), False)
    assert "nothing has changed" in text
    assert "not booted since" in text
    assert "Nothing has changed." in audit_pages.html(compared(ONE, {BEFORE.host: BEFORE}))
    assert "Nothing has changed." in audit_pages.markdown(compared(ONE, {BEFORE.host: BEFORE}))


@pytest.mark.parametrize(
    ("then", "now", "verdict"),
    [
        ("p0_runtime", "good", "expected"),
        ("p1_reboot", "info", "expected"),
        ("unknown", "good", "expected"),
        ("security", None, "expected"),
        (None, "good", "expected"),
        ("good", "p0_runtime", "not_expected"),
        ("info", "security", "not_expected"),
        (None, "p1_reboot", "not_expected"),
        ("p0_runtime", "p0_runtime", "not_expected"),
        ("p0_runtime", "unknown", "other"),
        ("good", "unknown", "other"),
        ("good", "good", "other"),
        ("info", None, "other"),
    ],
)
def test_expected_is_what_now_is_as_wished(then: str | None, now: str | None, verdict: str) -> None:
    found = pairs([one("1", then)] if then else [], [one("2", now)] if now else [])
    assert found == [(verdict, "1" if then else None, "2" if now else None)]


def test_a_finding_is_found_again_under_another_id_or_another_source() -> None:
    assert pairs([one("1", "p0_runtime")], [one("0", code="sysctl.after_boot", severity="p0_runtime")]) == [
        ("not_expected", "1", "0")
    ]
    assert pairs([one("1", "p0_runtime", source="/a")], [one("0", source="/b")]) == [("expected", "1", "0")]


def test_one_of_several_alike_is_taken_for_none_of_the_others() -> None:
    found = pairs([one("1", source="/a"), one("2", source="/a")], [one("2", source="/a"), one("3", source="/a")])
    assert found == [("other", "1", "3")]
    found = pairs([one("1"), one("2")], [one("3"), one("4"), one("5")])
    assert [before for _, before, _ in found] == ["1", "2", None, None, None]


def test_a_boot_and_another_kernel_are_said() -> None:
    text = audit_text.render(COMPARED, False)
    assert "since 2026-11-30T01:14:50Z, kernel then 6.8.12-1-pve, booted since" in text
    assert "note: not compared, since the earlier audit does not have it: gpu2.example.com" in text
    assert "note: in the earlier audit only: gpu9.example.com" in text
    less = audit_text.render(compared(ONE, {BEFORE.host: replace(BEFORE, as_root=False)}), False)
    assert "then without root: what is known differs by that alone" in less


# --- the command


def options(*words: str) -> Any:
    return parser().parse_args(["audit", *words])


def asked(*words: str) -> Request:
    given = options(*words)
    return audit.request_of(given, extra_of(given))


def test_without_an_inventory_it_is_about_this_machine() -> None:
    made = asked()
    assert made.inventory is None
    assert made.variables["gpuhost_hosts"] == "localhost"
    assert made.variables["ansible_connection"] == "local"
    assert not made.check


def test_with_an_inventory_nothing_is_forced_on_it() -> None:
    made = asked("-i", "inventory", "--hosts", "gpus", "-l", "gpu1", "-e", "pcie_tuning_bridges=false")
    assert made.variables == {"gpuhost_hosts": "gpus"}
    assert (made.playbook, made.limit, made.extra) == ("audit", "gpu1", ("-e", "pcie_tuning_bridges=false"))


@pytest.fixture
def recorded(tmp_path: Path) -> Recorder:
    run = Recorder(tmp_path, ONE.run_id, command="gpuhost audit")
    for document in (documents.BEFORE, documents.NO_ROOT):
        run.take(document["host"], {"gpuhost_documents": [document]})
        run.task(document["host"], "Audit", "Audit the host", seconds=1, status="ok")
    run.host("gpu3")
    run.failure("gpu3", "Audit", "Audit the host", cause="host.unreachable", message=LOST.partition(": ")[2])
    run.host("gpu4")
    return run


def test_what_was_recorded_is_shown(recorded: Recorder) -> None:
    recorded.finish()
    found = audit.collect(recorded.run_dir)
    assert found.hosts[:2] == (BEFORE, NO_ROOT)
    assert [item.failure for item in found.hosts[2:]] == [LOST, "the run ended before it was read"]


@pytest.mark.parametrize(
    ("name", "begin"),
    [("a.md", "# "), ("a.html", "<!DOCTYPE html>"), ("a.json", "{"), ("a.txt", "host "), ("a", "host ")],
)
def test_the_files_name_says_the_format(
    recorded: Recorder,
    tmp_path: Path,
    name: str,
    begin: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(audit, "execute", lambda _: (recorded.finish(), recorded.run_dir))
    path = tmp_path / "out" / name
    assert audit.run(options("--output", str(path)), ()) == USAGE  # gpu3 did not answer
    assert path.read_text().startswith(begin)
    assert capsys.readouterr().out.splitlines()[-1] == str(path)
    audit.run(options("--format", "json", "--output", str(path)), ())
    assert audit_data.load(path)["gpu1.example.com"] == BEFORE
    audit.run(options("--format", "md"), ())
    assert capsys.readouterr().out.splitlines()[-1].startswith("**Not audited:**")


def test_what_cannot_be_used_is_one_line(
    recorded: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "execute", lambda _: pytest.fail("ran all the same"))
    with pytest.raises(InputError, match="old"):
        audit.run(options("--compare", str(tmp_path / "old.json")), ())
    monkeypatch.setattr(audit, "execute", lambda _: (recorded.finish(), recorded.run_dir))
    with pytest.raises(InputError, match=r"run\.json"):
        audit.run(options("--output", str(recorded.run_dir / "run.json" / "x")), ())
    monkeypatch.setattr(audit, "execute", lambda _: (USAGE, tmp_path))
    assert audit.run(options(), ()) == USAGE
    assert capsys.readouterr().out == ""


# --- exit status


def state(document: dict[str, Any]) -> tuple[str, int]:
    found = {"audit": document}
    name = outcomes.host_state(found, [], frozenset({"Audit"}), frozenset({"Audit"}))
    return name, outcomes.state_exit_status(name, found, [])


@pytest.mark.parametrize(
    ("severity", "status"),
    [
        ("security", FINDINGS), ("p0_runtime", FINDINGS), ("p1_reboot", FINDINGS), ("unknown", GOOD), ("good", GOOD),
        ("info", GOOD),
    ],
)  # fmt: skip
def test_the_exit_status_is_1_where_there_is_something_to_do(severity: str, status: int) -> None:
    document = documents.audit("h", documents.finding("x.y", "pcie", severity, "z"))
    assert state(document) == ("findings" if status else "ok", status)


def test_a_command_line_does_nothing_to_the_terminal() -> None:
    text = "vLLM, pid 7: vllm serve \x1b]0;name\x07\x1b[2J\x9b31m"
    bad = Finding("serving.servers", "serving", "info", text, "", "", "\x1b[2J", "/proc/7/cmdline")
    for host in (HostAudit("gpu1", findings=(bad,)), HostAudit("gpu1", failure=text)):
        shown = audit_text.render(Audits("r", "t", (host,)), False)
        assert all(character.isprintable() or character == "\n" for character in shown)
        assert "\\x1b[2J" in shown
