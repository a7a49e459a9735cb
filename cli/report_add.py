"""``gpuhost report RUN --with FILE``: documents from elsewhere, copied into the run's folder, which remembers them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from gpuhost_cli import serve_compare, serve_read
from gpuhost_cli.expectations import read_json
from gpuhost_cli.records import RUN_FILE, load_documents, safe_name, write_json, write_text
from gpuhost_cli.report_decode import VERSION, decode_part
from gpuhost_cli.serve_documents import ServeCheck
from gpuhost_cli.waterfall_read import CEILING, is_decode, paper_of
from gpuhost_cli.waterfall_serve import SERVE

TAKEN = "a ceiling (gpuhost ceiling --json), a serve-check (--output), or measurements with a decode step"
Document = dict[str, Any]


def add(run_dir: Path, files: Sequence[Path], host: str | None) -> None:
    """Copy them into the folder of their host, all or none. Raises ValueError for what is not understood, or does not
    belong together; OSError where it can't be written."""
    given = {path: _read(path) for path in files}
    run = read_json(run_dir / RUN_FILE) or {}
    hosts = _hosts(run_dir, run)
    by_host: dict[str, dict[Path, Document]] = {}
    for path, document in given.items():
        own = host or _host_of(path, document, hosts)
        if own not in hosts:
            raise ValueError(f"--host {own}: the run has {', '.join(hosts) or 'no host'}")
        _prove(path, document, own, hosts)
        by_host.setdefault(own, {})[path] = document
    known = {own: load_documents(run_dir, own) for own in by_host}
    for own, added in by_host.items():
        part = decode_part(own, _together(known[own], added), run)
        if part is not None and part.refused:
            raise ValueError(part.refused)
    for own, added in by_host.items():
        folder = run_dir / safe_name(own)
        for document in added.values():
            if not _is_in(document, known[own]):
                name = _name(document, known[own])
                write_json(folder / f"{name}.json", document)
                known[own][name] = document
        _compare(folder, known[own])


def _together(known: Mapping[str, Document], added: Mapping[Path, Document]) -> dict[str, Document]:
    """What the report would be made from, the new ones by the names that they were given by."""
    ceiling = any(document["schema"] == CEILING for document in added.values())
    kept = {name: document for name, document in known.items() if not (ceiling and name == "ceiling")}
    new = {path: document for path, document in added.items() if not _is_in(document, kept)}
    return {**kept, **{path.stem if path.stem not in kept else str(path): each for path, each in new.items()}}


def _is_in(document: Mapping[str, Any], known: Mapping[str, Document]) -> bool:
    """Whether it lies there already. A run of serve-check may have been written again since (``_compare``)."""
    if document["schema"] != SERVE:
        return document in known.values()
    told_apart = ("schema", "taken_at", "url", "label")
    return any(all(document.get(name) == each.get(name) for name in told_apart) for each in known.values())


def _read(path: Path) -> Document:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}: --with takes {TAKEN}") from error
    except ValueError as error:
        raise ValueError(f"{path}: no JSON: {error}: --with takes {TAKEN}") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema not in (CEILING, SERVE) and not (isinstance(document, dict) and is_decode(document)):
        raise ValueError(f"{path}: the schema is {schema}: --with takes {TAKEN}")
    if document.get("schema_version") != VERSION:
        raise ValueError(f"{path}: version {document.get('schema_version')} of {schema}, this gpuhost reads {VERSION}")
    if schema == SERVE:
        serve_read.load(path, ServeCheck, SERVE)  # before anything is written
    if schema == CEILING and paper_of(document, path.name) is None:
        raise ValueError(f"{path}: a ceiling without terms: make it again with gpuhost ceiling --json")
    return dict(document)


def _hosts(run_dir: Path, run: Mapping[str, Any]) -> list[str]:
    """The run's hosts, without the controller itself."""
    recorded = run.get("hosts")
    named = list(recorded) if isinstance(recorded, dict) else []
    found = named or sorted(unquote(path.name) for path in run_dir.iterdir() if path.is_dir())
    others = [str(name) for name in found if name != "localhost"]
    return others or [str(name) for name in found]


def _host_of(path: Path, document: Mapping[str, Any], hosts: Sequence[str]) -> str:
    """Whose it is: it says so, or there is one host only."""
    if document.get("host") in hosts:
        return str(document["host"])
    if len(hosts) == 1:
        return hosts[0]
    raise ValueError(f"{path}: whose is it? The run has {', '.join(hosts) or 'no host'}: say --host")


def _prove(path: Path, document: Mapping[str, Any], host: str, hosts: Sequence[str]) -> None:
    """A server may be known by any name, but not by that of another host of the run."""
    said = document.get("host")
    if said != host and said in hosts:
        raise ValueError(f"{path} is of {said}, not of {host}: --host {said} puts it there")


def _name(document: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """The name of its file. There is one ceiling, the last one; the others are told apart by their times.

    ``decode-``, not ``measurements-``: the host's own measurements are what the run itself has measured.
    """
    if document["schema"] == CEILING:
        return "ceiling"
    kind = "serve_check" if document["schema"] == SERVE else "decode"
    name = f"{kind}-{re.sub(r'[^0-9A-Za-z]', '', str(document.get('taken_at')))}"
    return name if name not in known else next(f"{name}-{n}" for n in range(2, 1000) if f"{name}-{n}" not in known)


def _compare(folder: Path, known: Mapping[str, Document]) -> None:
    """The intervals of the last run of serve-check against the first, where it was not compared with that one yet."""
    runs = sorted(
        ((str(each.get("taken_at")), name) for name, each in known.items() if each.get("schema") == SERVE),
    )
    if len(runs) < 2:
        return
    first, last = (folder / f"{name}.json" for _, name in (runs[0], runs[-1]))
    compared = known[runs[-1][1]].get("comparison")
    if isinstance(compared, dict) and compared.get("before_taken_at") == runs[0][0]:
        return
    try:
        (before, data), (after, _) = (serve_read.load(each, ServeCheck, SERVE) for each in (first, last))
    except ValueError:
        return  # one that lay there already has another form: the report shows the change without an interval
    if not serve_compare.incomparable(data, after.parameters, [level.concurrency for level in after.levels]):
        found = serve_compare.compare(before, after, first.name, serve_compare.Tolerance())
        write_text(last, serve_read.as_json(serve_compare.with_comparison(after, found)))
