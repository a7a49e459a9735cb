"""How long a step is expected to take: what the same step took in the newest earlier run, else a caller's default."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

NEWEST_RUNS = 20
"""How many earlier runs are looked at. A step that none of them had is too rare for its old time to mean much."""

FIRST_GUESS: dict[str, float] = {
    "Build the base image where it is missing": 110,
    "Boot the machines": 55,
    "Survey the host": 15,
    "Hold the running kernel as the boot default": 10,
    "Write kernel arguments and module options": 5,
    "Install kernel and headers": 270,
    "Configure the target's boot": 10,
    "Prove the target ready": 25,
    "Stop and remember what runs": 10,
    "Boot once into the target": 8,
    "Boot the old kernel where the trial's runs": 10,
    "Wait for a new boot id": 60,
    "Measure": 10,
}
"""Seconds in the lab, whose machine is emulated: the only guess before a first run of one's own. On real hardware the
steps that compute are faster, and a reboot is slower."""

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
        self._changed: dict[Key, dict[str, float]] = {}
        self._unchanged: dict[Key, dict[str, float]] = {}

    @classmethod
    def from_runs(cls, runs_dir: Path, defaults: Mapping[str, float] | None = None, exclude: str = "") -> Expectations:
        """Learn from the run records of a folder. ``exclude`` is the id of the run that is going on."""
        expectations = cls(defaults)
        for record in _newest_records(runs_dir, exclude):
            expectations.learn(record)
        return expectations

    def learn(self, record: Mapping[str, Any]) -> None:
        """Take the steps of one ``run.json`` that are not known yet: call it with the newest record first.

        A run in check mode says nothing about the time of a real one. A step that changed something says more than a
        newer one that had nothing to do: the former is what takes its time again.
        """
        if record.get("check_mode"):
            return
        tasks = record.get("tasks")
        for known, status in ((self._changed, "changed"), (self._unchanged, "ok")):
            fresh: dict[Key, dict[str, float]] = {}
            for task in tasks if isinstance(tasks, list) else []:
                step = _timed_step(task)
                if step is None or task.get("status") != status or step[0] in known:
                    continue
                key, host, seconds = step
                by_host = fresh.setdefault(key, {})
                by_host[host] = max(seconds, by_host.get(host, 0.0))
            known.update(fresh)

    def seconds(self, stage: str, task: str, host: str = "") -> float | None:
        """The expected seconds, or None: no estimate yet."""
        by_host = self._changed.get((stage, task)) or self._unchanged.get((stage, task))
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
