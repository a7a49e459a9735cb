"""How long a step is expected to take: what the same step took in the newest earlier run, else a caller's default."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

NEWEST_RUNS = 20
"""How many earlier runs are looked at. A step that none of them had is too rare for its old time to mean much."""

Key = tuple[str, str]


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file, or None where there is none that can be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


class Expectations:
    """Seconds per (stage, task name), for the same host where that is known."""

    def __init__(self, defaults: Mapping[str, float] | None = None) -> None:
        self._defaults = dict(defaults or {})
        self._by_step: dict[Key, dict[str, float]] = {}

    @classmethod
    def from_runs(cls, runs_dir: Path, defaults: Mapping[str, float] | None = None, exclude: str = "") -> Expectations:
        """Learn from the run records of a folder. ``exclude`` is the id of the run that is going on."""
        expectations = cls(defaults)
        for record in _newest_records(runs_dir, exclude):
            expectations.learn(record)
        return expectations

    def learn(self, record: Mapping[str, Any]) -> None:
        """Take the steps of one ``run.json`` that are not known yet: call it with the newest record first."""
        fresh: dict[Key, dict[str, float]] = {}
        tasks = record.get("tasks")
        for task in tasks if isinstance(tasks, list) else []:
            step = _timed_step(task)
            if step is None or step[0] in self._by_step:
                continue
            key, host, seconds = step
            by_host = fresh.setdefault(key, {})
            by_host[host] = max(seconds, by_host.get(host, 0.0))
        self._by_step.update(fresh)

    def seconds(self, stage: str, task: str, host: str = "") -> float | None:
        """The expected seconds, or None: no estimate yet."""
        by_host = self._by_step.get((stage, task))
        if by_host:
            return by_host[host] if host in by_host else max(by_host.values())
        return self._defaults.get(task)


def _newest_records(runs_dir: Path, exclude: str) -> Iterator[dict[str, Any]]:
    """The run records, newest first: a run id begins with its time, so names sort by age."""
    try:
        folders = sorted((path for path in runs_dir.iterdir() if path.name != exclude), reverse=True)
    except OSError:
        return
    for folder in folders[:NEWEST_RUNS]:
        record = read_json(folder / "run.json")
        if record is not None:
            yield record


def _timed_step(task: Any) -> tuple[Key, str, float] | None:
    """One entry of ``tasks`` if it ran to its end; skipped and failed ones say nothing about the time."""
    if not isinstance(task, dict) or task.get("status") not in ("ok", "changed"):
        return None
    seconds = task.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return None
    return (str(task.get("stage", "")), str(task.get("task", ""))), str(task.get("host", "")), float(seconds)
