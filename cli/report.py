"""The report of a run: built from the recorded JSON files alone, as report.md, report.html and report.json."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jinja2

from gpuhost import gate_text
from gpuhost.documents import SCHEMA_PREFIX, seconds_between
from gpuhost_cli import outcomes, report_filters, report_words
from gpuhost_cli.expectations import read_json
from gpuhost_cli.records import RUN_FILE, load_documents, write_json, write_text
from gpuhost_cli.report_host import HostReport, build_host
from gpuhost_cli.report_read import number, text, texts

TEMPLATES = Path(__file__).parent / "templates"
_MARKDOWN_SPECIAL = re.compile(r"([\\`*\[\]<>|]|(?<!\w)_|_(?!\w))")
"""What Markdown would take as markup; an underscore within a word is safe."""


@dataclasses.dataclass(frozen=True)
class Report:
    """``report.json``. The same files give the same report."""

    schema: str
    schema_version: int
    run_id: str
    taken_at: str
    sentence: str
    """The first line: how every host came out."""
    next_step: str
    command: str
    target: str
    check_mode: bool
    started_at: str
    finished_at: str
    seconds: float | None
    exit_status: int | None
    exit_meaning: str
    hosts: tuple[HostReport, ...]
    not_recorded: tuple[str, ...]


def build(run_dir: Path) -> Report:
    """The report of a run folder. Raises ValueError where the folder is none."""
    if not run_dir.is_dir():
        raise ValueError(f"{run_dir} is not a run folder: name one of the folders in runs/")
    run = read_json(run_dir / RUN_FILE) or {}
    run_id = text(run.get("run_id")) or run_dir.name
    states = _host_states(run_dir, run)
    hosts = tuple(build_host(host, states[host], load_documents(run_dir, host), run, run_id) for host in states)
    # localhost only lends its hands: it is a host of the report if something was recorded about it
    hosts = tuple(host for host in hosts if not _is_helper(host, run_dir))
    started, finished = text(run.get("started_at")), text(run.get("finished_at"))
    status = number(run.get("exit_status"))
    missing = list(texts(run, "record_errors"))
    if not run:
        missing.insert(0, f"{RUN_FILE}: missing or unreadable, so times, failures and exit status are not known")
    return Report(
        schema=SCHEMA_PREFIX + "report",
        schema_version=1,
        run_id=run_id,
        taken_at=finished or started,
        sentence=report_words.run_sentence([(host.state, host.sentence) for host in hosts], finished=bool(finished)),
        next_step=report_words.run_next_step([(host.state, host.next_step) for host in hosts]),
        command=text(run.get("command")),
        target=text(run.get("target")),
        check_mode=run.get("check_mode") is True,
        started_at=started,
        finished_at=finished,
        seconds=_seconds(started, finished),
        exit_status=None if status is None else int(status),
        exit_meaning="" if status is None else report_words.exit_meaning(int(status), list(states.values())),
        hosts=hosts,
        not_recorded=tuple(missing),
    )


def write(run_dir: Path) -> Path:
    """Build and write all three forms. Gives back the path of report.html. Raises OSError, ValueError."""
    report = build(run_dir)
    try:
        html, markdown = render_html(report), render_markdown(report)
    except jinja2.TemplateError as error:
        raise ValueError(f"the report's template failed: {error}") from error
    write_json(run_dir / "report.json", dataclasses.asdict(report))
    write_text(run_dir / "report.md", markdown)
    write_text(run_dir / "report.html", html)
    return run_dir / "report.html"


def render_html(report: Report) -> str:
    """The report as one HTML page that needs nothing else."""
    return environment(html=True).get_template("report.html.j2").render(report=report, words=report_words)


def render_markdown(report: Report) -> str:
    """The report as Markdown, for a wiki or an issue."""
    page = environment(html=False).get_template("report.md.j2").render(report=report, words=report_words)
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"


@functools.cache
def environment(*, html: bool) -> jinja2.Environment:
    """What templates are rendered in: escaping, and the filters for values and for Markdown."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=html,  # noqa: S701 - Markdown is escaped by its own filters
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters.update(
        seconds=report_words.seconds_words, value=value_text, md=markdown_text, code=markdown_code, clock=clock_text,
        quantity=gate_text.quantity, change=gate_text.change, **report_filters.DECODE,
    )  # fmt: skip
    made.globals["was"] = report_words.was
    return made


def value_text(value: float | None) -> str:
    """A measured value with as many digits as it deserves."""
    if value is None:
        return "not measured"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def clock_text(time: str) -> str:
    """``01:14:50`` out of a document's time."""
    found = re.search(r"T(\d\d:\d\d:\d\d)", time)
    return found.group(1) if found else ""


def markdown_text(value: object) -> str:
    """Text that Markdown shows as it is, in a table too."""
    return _MARKDOWN_SPECIAL.sub(r"\\\1", text(value)) or "–"


def markdown_code(value: object) -> str:
    """Text as code, also in a table, whatever quotes and bars it holds."""
    plain = text(value).replace("|", "\\|")
    if not plain:
        return "–"
    fence = "``" if "`" in plain else "`"
    return f"{fence}{' ' if fence == '``' else ''}{plain}{' ' if fence == '``' else ''}{fence}"


def _host_states(run_dir: Path, run: Mapping[str, Any]) -> dict[str, str]:
    """State per host: from the record, else judged from the folders that are there."""
    recorded = run.get("hosts")
    if isinstance(recorded, dict) and recorded:
        return {str(host): text(state) or "untouched" for host, state in recorded.items()}
    hosts = [unquote(path.name) for path in sorted(run_dir.iterdir()) if path.is_dir()]
    unknown: frozenset[str] = frozenset()
    return {host: str(outcomes.host_state(load_documents(run_dir, host), [], unknown, unknown)) for host in hosts}


def _is_helper(host: HostReport, run_dir: Path) -> bool:
    return host.host == "localhost" and not host.failures and not load_documents(run_dir, host.host)


def _seconds(started: str, finished: str) -> float | None:
    try:
        return float(seconds_between(started, finished))
    except ValueError:
        return None
