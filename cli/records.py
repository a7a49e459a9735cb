"""Run records: one folder per run, one JSON file per document. A record must never break a roll."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpuhost.documents import SCHEMA_PREFIX, utc_now
from gpuhost_cli import outcomes
from gpuhost_cli.expectations import read_json

RUN_FILE = "run.json"
DOCUMENTS_KEY = "gpuhost_documents"
SAVE_EVERY_S = 20.0
"""run.json is also written while the run goes on, so that a killed controller leaves its timings behind."""

_RESERVED_NAMES = frozenset({RUN_FILE, "report.md", "report.html", "report.json"})
_KIND = re.compile(r"[a-z][a-z0-9_]{0,63}")
_NAME_LIMIT = 150


def new_run_id(now: datetime | None = None) -> str:
    """A run id that sorts by time: ``20261130T011450Z-9f3c``."""
    moment = now or datetime.now(UTC)
    return f"{moment.astimezone(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def safe_name(name: str) -> str:
    """A host's name, or a run id, as one folder name: nothing in it can leave the run folder or hide a file of ours."""
    quoted = quote(name, safe="")
    if quoted.startswith(".") or quoted in _RESERVED_NAMES:
        quoted = quoted.replace(".", "%2E")
    if len(quoted) > _NAME_LIMIT:
        quoted = quoted[:_NAME_LIMIT] + "-" + hashlib.sha256(name.encode()).hexdigest()[:12]
    return quoted or "%00"


def one_line(text: object, limit: int = 400) -> str:
    """A message as one line of bounded length."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON file so that a reader sees the old or the new text, never half. Raises OSError, ValueError."""
    write_text(path, json.dumps(data, indent=2, sort_keys=False, ensure_ascii=False, default=str) + "\n")


def write_text(path: Path, text: str) -> None:
    """Temp file in the same folder, fsync, rename, fsync of the folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temp.open("w", encoding="utf-8", errors="replace") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        temp.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temp.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def find_documents(result: Any) -> list[dict[str, Any]]:
    """The documents in a module's result, those of a loop's items included, in the order in which they came."""
    if not isinstance(result, Mapping):
        return []
    own = result.get(DOCUMENTS_KEY)
    found = [item for item in own if isinstance(item, dict)] if isinstance(own, list) else []
    items = result.get("results")
    for item in items if isinstance(items, list) else []:
        found.extend(find_documents(item))
    return found


def document_kind(document: Mapping[str, Any]) -> str | None:
    """``plan`` for ``gpuhost.plan``; None for what is not a document of ours."""
    schema = document.get("schema")
    if not isinstance(schema, str) or not schema.startswith(SCHEMA_PREFIX):
        return None
    kind = schema.removeprefix(SCHEMA_PREFIX)
    return kind if _KIND.fullmatch(kind) else None


def document_name(kind: str, document: Mapping[str, Any]) -> str:
    """The name of its file: each concern of tuning has a document of its own, ``tune-sysctl``."""
    concern = document.get("concern")
    return f"{kind}-{concern}" if isinstance(concern, str) and _KIND.fullmatch(concern) else kind


def _warn_on_stderr(text: str) -> None:
    print(f"gpuhost: {text}", file=sys.stderr, flush=True)


class Recorder:
    """Writes the folder of one run. Whatever can't be written is said once on stderr, and the run goes on."""

    def __init__(
        self,
        runs_dir: Path,
        run_id: str,
        *,
        command: str = "",
        target: str = "",
        check_mode: bool = False,
        warn: Callable[[str], None] = _warn_on_stderr,
    ) -> None:
        self.run_dir = runs_dir / safe_name(run_id)
        self.run_id = run_id
        self._warn = warn
        self._warned: set[str] = set()
        self._documents: dict[str, dict[str, dict[str, Any]]] = {}
        self._states: dict[str, str] = {}
        self._last_save = time.monotonic()
        self._record: dict[str, Any] = {
            "schema": SCHEMA_PREFIX + "run",
            "schema_version": 1,
            "run_id": run_id,
            "command": command,
            "target": target,
            "check_mode": check_mode,
            "started_at": utc_now(),
            "finished_at": None,
            "exit_status": None,
            "hosts": {},
            "tasks": [],
            "failures": [],
        }
        self._continue_earlier()

    def _continue_earlier(self) -> None:
        """A command may call ansible-playbook several times for one run: go on with what is there."""
        earlier = read_json(self.run_dir / RUN_FILE)
        if earlier is None or earlier.get("schema") != self._record["schema"]:
            return
        for key in ("command", "target", "started_at"):
            self._record[key] = earlier.get(key) or self._record[key]
        for key in ("tasks", "failures"):
            self._record[key] = [item for item in earlier.get(key) or [] if isinstance(item, dict)]
        for host in earlier.get("hosts") or {}:
            self._documents[host] = load_documents(self.run_dir, host)

    @property
    def record(self) -> dict[str, Any]:
        """The run's record as it stands (``run.json``)."""
        return self._record

    @property
    def hosts(self) -> list[str]:
        """The hosts of the run, in the order in which they were named."""
        return list(self._documents)

    def host(self, name: str, state: str | None = None) -> None:
        """A host belongs to the run, touched or not. A given state is kept; else it is derived at the end."""
        self._documents.setdefault(name, {})
        if state is not None:
            self._states[name] = state

    def documents(self, host: str) -> dict[str, dict[str, Any]]:
        """The newest document of each kind that the host gave."""
        return self._documents.get(host, {})

    def take(self, host: str, result: Any) -> list[str]:
        """Write the documents in a module's result. Gives back their kinds."""
        kinds = []
        for document in find_documents(result):
            kind = document_kind(document)
            if kind is not None:
                self._take_document(host, kind, document)
                kinds.append(kind)
        return kinds

    def _take_document(self, host: str, kind: str, document: dict[str, Any]) -> None:
        self.host(host)
        folder = self.run_dir / safe_name(host)
        name = document_name(kind, document)
        again = name in self._documents[host] or (folder / f"{name}.json").exists()
        self._documents[host][name] = document
        name = "facts_after" if kind == "facts" and again else name
        self._write(folder / f"{name}.json", document)

    def task(self, host: str, stage: str, task: str, *, seconds: float, status: str, message: str = "") -> None:
        """A step that has ended on a host: ok, changed, failed, skipped or unreachable."""
        self.host(host)
        self._record["tasks"].append({
            "host": host, "stage": stage, "task": task, "seconds": round(seconds, 2), "status": status,
            "message": one_line(message),
        })  # fmt: skip
        if time.monotonic() - self._last_save > SAVE_EVERY_S:
            self.save()

    def failure(
        self, host: str, stage: str, task: str, *, cause: str, message: str, **more: str | None
    ) -> dict[str, Any]:
        """A failure with its cause code; ``more``: observed, expected, object, next_step, where they are known.

        Gives back the entry, which the caller may mark ``rescued`` later.
        """
        self.host(host)
        entry: dict[str, Any] = {
            "host": host, "stage": stage, "task": task, "cause": cause, "message": one_line(message, 1000),
        }  # fmt: skip
        entry.update({key: one_line(value, 1000) for key, value in more.items() if value})
        self._record["failures"].append(entry)
        self.save()
        return entry

    def save(self) -> None:
        """Write ``run.json`` as it stands."""
        self._last_save = time.monotonic()
        self._record["hosts"] = {host: self._states.get(host) or self._derive_state(host) for host in self._documents}
        if not self._record["target"]:
            self._record["target"] = next(filter(None, map(self._planned_target, self._documents)), "")
        self._write(self.run_dir / RUN_FILE, self._record)

    def reopen(self) -> None:
        """The run goes on, with another playbook."""
        self._record["finished_at"] = self._record["exit_status"] = None
        self.save()

    def finish(self, exit_status: int | None = None) -> int:
        """Write ``run.json`` as finished; without a given exit status it is judged from the hosts' states."""
        self.save()
        if exit_status is None:
            exit_status = outcomes.worst(self._host_exit_status(host) for host in self._documents)
        self._record["finished_at"] = utc_now()
        self._record["exit_status"] = exit_status
        self.save()
        return exit_status

    def _planned_target(self, host: str) -> str:
        plan = self._documents[host].get("plan", {})
        target = plan.get("target")
        return str((target.get("release") if isinstance(target, dict) else "") or plan.get("wanted") or "")

    def _derive_state(self, host: str) -> str:
        stages = frozenset(task["stage"] for task in self._record["tasks"] if task.get("host") == host)
        state: str = outcomes.host_state(
            self._documents[host],
            outcomes.standing_failures(self._record["failures"], host),
            stages,
            frozenset(task["stage"] for task in self._record["tasks"]),
            check_mode=bool(self._record["check_mode"]),
        )
        return state

    def _host_exit_status(self, host: str) -> int:
        failures = outcomes.standing_failures(self._record["failures"], host)
        status: int = outcomes.state_exit_status(self._record["hosts"][host], self._documents[host], failures)
        return status

    def _write(self, path: Path, data: Mapping[str, Any]) -> None:
        try:
            write_json(path, data)
        except (OSError, ValueError, TypeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._record.setdefault("record_errors", []).append(f"{path.name}: {reason}")
            if reason not in self._warned:
                self._warned.add(reason)
                self._warn(f"the run goes on, but {path} could not be recorded: {reason}")


def load_documents(run_dir: Path, host: str) -> dict[str, dict[str, Any]]:
    """All documents of a host by file name: ``plan``, ``facts``, ``facts_after``, …"""
    found: dict[str, dict[str, Any]] = {}
    try:
        paths = sorted((run_dir / safe_name(host)).glob("*.json"))
    except OSError:
        return found
    for path in paths:
        document = read_json(path)
        if document is not None:
            found[path.stem] = document
    return found
