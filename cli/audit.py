"""``gpuhost audit``: the playbook, then what it found on each host as a table, a page or JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuhost.documents import utc_now
from gpuhost_cli import audit_data, audit_pages, audit_text, records
from gpuhost_cli.audit_data import Audits, HostAudit
from gpuhost_cli.expectations import read_json
from gpuhost_cli.outcomes import standing_failures
from gpuhost_cli.run import InputError, Request, execute

FORMATS = ("terminal", "md", "html", "json")
SUFFIXES = {".md": "md", ".html": "html", ".htm": "html", ".json": "json"}
HELP = "say what is good, what to fix at runtime, what needs a reboot; read-only, without -i about this machine"
EPILOG = """\
What gpuhost tune would set is what is expected. Without root, without a driver or
without a GPU it says what it can, and why the rest is unknown.

  gpuhost audit                                            this machine
  gpuhost audit -i inventory/mine --output audit.html
  gpuhost audit -i inventory/mine --format json --output monday.json
  gpuhost audit -i inventory/mine --compare monday.json    what has changed since

Exit status: 0 nothing to do, 1 a finding of P0, P1 or security, 2 usage, input or
connection.
"""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """The command line; the caller adds what all commands have."""
    made: argparse.ArgumentParser = commands.add_parser(
        "audit", help=HELP, description=HELP, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("-i", "--inventory", metavar="PATH", help="inventory file or folder (default: this machine)")
    made.add_argument("--format", choices=FORMATS, help="default: terminal, or what FILE's name says")
    made.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it there instead of on the terminal")
    made.add_argument(
        "--compare",
        type=Path,
        metavar="OLD",
        help="what has changed since: audit.json, our JSON, or a run's folder",
    )
    return made


def request_of(options: argparse.Namespace, extra: tuple[str, ...]) -> Request:
    """The playbook call. Without an inventory it is about this machine, by this command's own Python."""
    variables: dict[str, Any] = {"gpuhost_hosts": options.hosts} if options.hosts else {}
    if options.inventory is None:
        variables = {
            "gpuhost_hosts": "localhost",
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
        }
    return Request(
        "audit", options.inventory, options.limit, False, options.verbose, extra, variables, options.runs
    )  # fmt: skip


def run(options: argparse.Namespace, extra: tuple[str, ...]) -> int:
    """Audit, show, compare. Raises InputError."""
    try:
        earlier = audit_data.load(options.compare) if options.compare else None
    except ValueError as error:
        raise InputError(str(error)) from error
    status, folder = execute(request_of(options, extra))
    found = collect(folder)
    if not found.hosts:
        return status  # ansible-playbook could not begin, and that was said
    if earlier is not None:
        found = audit_data.compared(found, earlier)
    _show(found, options.format, options.output)
    return status


def collect(folder: Path) -> Audits:
    """The audits of a run, in the order of its hosts; a host without one with the reason."""
    record = read_json(folder / records.RUN_FILE) or {}
    failures = [item for item in record.get("failures") or () if isinstance(item, dict)]
    hosts = tuple(_host(folder, str(name), failures) for name in record.get("hosts") or ())
    return Audits(str(record.get("run_id", folder.name)), str(record.get("started_at") or utc_now()), hosts)


def _host(folder: Path, name: str, failures: Sequence[Mapping[str, Any]]) -> HostAudit:
    document = records.load_documents(folder, name).get("audit")
    if document is not None:
        return audit_data.host_audit(document)
    standing = standing_failures(list(failures), name)
    if not standing:
        return HostAudit(name, failure="the run ended before it was read")
    cause, message = str(standing[-1].get("cause", "")), str(standing[-1].get("message", ""))
    return HostAudit(name, failure=message if message.startswith(cause) else f"{cause}: {message}")


def _show(found: Audits, wanted: str | None, output: Path | None) -> None:
    chosen = wanted or (SUFFIXES.get(output.suffix, "terminal") if output else "terminal")
    text = {
        "terminal": lambda: audit_text.render(found, output is None and audit_text.has_colour(sys.stdout)),
        "md": lambda: audit_pages.markdown(found),
        "html": lambda: audit_pages.html(found),
        "json": lambda: audit_data.as_json(found),
    }[chosen]()
    if output is None:
        sys.stdout.write(text)
        return
    try:
        records.write_text(output, text)
    except OSError as error:
        raise InputError(f"{output}: {error.strerror}") from error
    print(f"{found.sentence}\n{output}")
