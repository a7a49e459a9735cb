"""Progress, run records and the report for a plain ``ansible-playbook``."""

from __future__ import annotations

import atexit
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from ansible import context
from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: gpuhost_progress
type: aggregate
short_description: progress with a clock, run records and a report
version_added: "0.1.0"
description:
  - Prints step, elapsed and expected time on stderr while a step runs, at least every ten seconds.
  - Records what the steps returned, one JSON file for each document, in a folder for each run.
  - Writes a report at the end of the run.
  - Never changes the result of a play. What cannot be recorded is said on stderr.
options:
  runs_dir:
    description: The folder that the run folders are in.
    type: str
    default: ./runs
    env:
      - name: GPUHOST_RUNS_DIR
  run_id:
    description: The id of this run. A new one is made, and set in the environment, if it is not given.
    type: str
    default: ""
    env:
      - name: GPUHOST_RUN_ID
  progress:
    description: >-
      C(off) prints no progress and no path of the report; it is recorded all the same. An absolute path names a file
      that the progress is appended to instead of stderr.
    type: str
    default: "on"
    env:
      - name: GPUHOST_PROGRESS
  command:
    description: The command line to record. Without it the playbook's name is recorded.
    type: str
    default: ""
    env:
      - name: GPUHOST_COMMAND
requirements:
  - enable in configuration
  - gpuhost_cli, which C(make install) installs
"""

try:
    from gpuhost.documents import STAGES
    from gpuhost_cli import outcomes, report, tune
    from gpuhost_cli.expectations import FIRST_GUESS, Expectations
    from gpuhost_cli.progress import ProgressClock
    from gpuhost_cli.records import Recorder, find_documents, new_run_id, one_line
    from gpuhost_cli.report_console import step_lines
    from gpuhost_cli.show import summary
except ImportError as error:
    IMPORT_ERROR: ImportError | None = error
else:
    IMPORT_ERROR = None

STAGE_TAGS = frozenset(() if IMPORT_ERROR else (*STAGES, "rollback"))
REPORTED_KINDS = frozenset({"plan", "roll", "verdict", "measurements", "outcome"})
ARGUMENT_CHECK = "Validating arguments against arg spec"
"""Ansible's own task before each role: it takes no time and says something only where it fails."""
FOLLOW_UP_ACTIONS = frozenset({"fail", "assert", "ansible.builtin.fail", "ansible.builtin.assert"})
"""Actions that can't carry a cause of their own: they say again what an earlier, rescued step has found."""


class CallbackModule(CallbackBase):  # type: ignore[misc]  # Ansible has no types
    """Listens to Ansible's events; keeps no play from its way."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gpuhost_progress"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pid = os.getpid()
        self._play_name = ""
        self._clock: ProgressClock | None = None
        self._recorder: Recorder | None = None
        self._started: dict[str, tuple[str, str, float]] = {}
        self._failures: dict[str, list[list[dict[str, Any]]]] = {}
        """The failures of each host: one list for each failed step, with one entry for each item of its loop."""

    # --- events of the playbook

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Begin the run's record, or go on with it: each playbook of one command line starts anew."""
        if IMPORT_ERROR is not None:
            self.disabled = True
            self._display.warning(f"gpuhost records nothing ({IMPORT_ERROR}). Run once: make install")
            return
        if self._recorder is None:
            self._recorder = self._open_run(Path(str(getattr(playbook, "_file_name", "") or "playbook")).name)
            atexit.register(self._leave)
        self._recorder.reopen()
        if self._speaks:
            run_dir = self._recorder.run_dir
            expectations = Expectations.from_runs(run_dir.parent, FIRST_GUESS, exclude=run_dir.name)
            self._clock = ProgressClock(self._stream(), expectations, live=False).start()

    def _open_run(self, playbook_name: str) -> Recorder:
        run_id = self.get_option("run_id") or new_run_id()
        runs_dir = Path(self.get_option("runs_dir")).expanduser().absolute()
        os.environ["GPUHOST_RUN_ID"] = run_id
        os.environ["GPUHOST_RUNS_DIR"] = str(runs_dir)
        return Recorder(
            runs_dir,
            run_id,
            command=self.get_option("command") or f"ansible-playbook {playbook_name}",
            check_mode=bool(context.CLIARGS.get("check")),
            warn=lambda text: self._display.warning(f"gpuhost: {text}"),
        )

    @property
    def _speaks(self) -> bool:
        return str(self.get_option("progress")).lower() not in ("off", "0", "no", "false")

    def _stream(self) -> TextIO:
        """Where progress goes: stderr, or the file that the gpuhost command follows."""
        wanted = str(self.get_option("progress"))
        if not wanted.startswith("/"):
            return sys.stderr
        try:
            return Path(wanted).open("a", encoding="utf-8", buffering=1)  # line by line: somebody reads along
        except OSError as error:
            self._display.warning(f"gpuhost: {wanted}: {error.strerror}: progress goes to stderr")
            return sys.stderr

    def _leave(self) -> None:
        """At exit, also after Ctrl-C: a run that did not reach its end keeps what it had."""
        own = os.getpid() == self._pid
        if own and self._recorder is not None and self._recorder.record["finished_at"] is None:
            self._recorder.save()

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Name the play's hosts: those of later batches too, so that an untouched host is known as such."""
        self._play_name = one_line(play.get_name())
        if self._recorder is not None:
            for host in play.get_variable_manager().get_vars(play=play).get("ansible_play_hosts_all", []):
                self._recorder.host(str(host))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """The end: which failures were rescued, ``run.json``, the report."""
        if self._recorder is None:
            return
        for host in list(self._started):
            self._end_open_step(host)
        self._mark_rescued(stats)
        self._recorder.finish()
        documents = {host: self._recorder.documents(host) for host in self._recorder.hosts}
        kinds = {name.partition("-")[0] for own in documents.values() for name in own}
        if self._recorder.record["failures"] or REPORTED_KINDS & kinds:
            self._write_report(self._recorder.run_dir)
        if self._clock is not None:
            self._clock.show(*tune.summary(documents, bool(context.CLIARGS.get("check"))))
            self._clock.stop()

    # --- events of tasks

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """A step begins on a host."""
        name = host.get_name()
        self._end_open_step(name)
        stage, label = self._stage(task), _label(task)
        if label.startswith(ARGUMENT_CHECK):
            return
        self._started[name] = (stage, label, time.monotonic())
        if self._clock is not None:
            self._clock.begin(name, stage, label)

    def v2_runner_on_ok(self, result: Any) -> None:
        self._end(result, "changed" if result.is_changed() else "ok")

    def v2_runner_on_skipped(self, result: Any) -> None:
        """A step was not needed."""
        self._end(result, "skipped")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """A step has failed. Whether something rescues it is known only at the end."""
        self._end(result, "failed", str(_cause(result.result) or _message(result.result)))
        if not ignore_errors:
            self._note_failures(result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """The host does not answer."""
        message = _message(result.result)
        self._end(result, "unreachable", message)
        if not getattr(result.task, "ignore_unreachable", False):
            self._add_failures(result, [{"cause": outcomes.UNREACHABLE_CAUSE, "msg": message}])

    def v2_runner_retry(self, result: Any) -> None:
        """A step is tried again: said, as it explains the time that it takes."""
        if self._clock is not None:
            label = f"{result.host.get_name()} {self._stage(result.task)}: {_label(result.task)}"
            self._clock.say(f"{label} … try {result.result.get('attempts')} of {result.result.get('retries')}")

    # --- what they share

    def _stage(self, task: Any) -> str:
        """The stage that the tags name, the task's own before those of its blocks and play; else the play's name."""
        tags = [str(tag) for tag in getattr(task, "tags", None) or ()]
        return next((tag for tag in tags if tag in STAGE_TAGS), self._play_name)

    def _end(self, result: Any, status: str, message: str = "") -> None:
        host = result.host.get_name()
        if status == "failed" or not _label(result.task).startswith(ARGUMENT_CHECK):
            self._close_step(host, result.task, status, message)
        if self._recorder is not None:
            self._recorder.take(host, result.result)
        if self._clock is not None:
            self._clock.show(*step_lines(result.result, status, diff=bool(context.CLIARGS.get("diff"))))

    def _close_step(self, host: str, task: Any, status: str, message: str) -> None:
        stage, label, begun = self._started.pop(host, (self._stage(task), _label(task), time.monotonic()))
        if self._clock is not None:
            self._clock.end(host, status, one_line(message, 160))
        if self._recorder is not None:
            seconds = time.monotonic() - begun
            self._recorder.task(host, stage, label, seconds=seconds, status=status, message=message)

    def _end_open_step(self, host: str) -> None:
        """A host that begins a step, or the end of the run, ends what has sent no result (some includes)."""
        if host in self._started:
            self._close_step(host, None, "ok", "")

    def _note_failures(self, result: Any) -> None:
        """One failure for each item of a loop that has failed, with its own cause."""
        data = result.result
        items = [item for item in data.get("results") or () if isinstance(item, dict)]
        failed = [item for item in items if item.get("failed") or item.get("failed_when_result")]
        self._add_failures(result, failed or [data])

    def _add_failures(self, result: Any, parts: list[dict[str, Any]]) -> None:
        if self._recorder is None:
            return
        host, label = result.host.get_name(), _label(result.task)
        earlier = self._failures.setdefault(host, [])
        inherited = earlier[-1][-1]["cause"] if earlier and result.task.action in FOLLOW_UP_ACTIONS else None
        entries = [
            self._recorder.failure(
                host,
                self._stage(result.task),
                label,
                cause=str(_cause(part) or inherited or outcomes.DEFAULT_CAUSE),
                message=_message(part),
                **{key: _text(part.get(key)) for key in ("observed", "expected", "object", "next_step")},
            )
            for part in parts
        ]
        earlier.append(entries)

    def _mark_rescued(self, stats: Any) -> None:
        """Of a host's failures the last ones stand, as many as Ansible counts; those before them were rescued."""
        for host, steps in self._failures.items():
            summary = stats.summarize(host)
            standing = summary["failures"] + summary["unreachable"]
            for entries in steps[: max(0, len(steps) - standing)]:
                for entry in entries:
                    entry["rescued"] = True

    def _write_report(self, run_dir: Path) -> None:
        try:
            path = report.write(run_dir)
        except (OSError, ValueError) as error:
            self._display.warning(f"gpuhost: the report could not be written: {error}")
            return
        if self._clock is not None:
            self._clock.show(*summary(report.build(run_dir)))
            self._clock.say(f"report: {path}")


def _label(task: Any) -> str:
    """The task's own name, without its role in front, so that the same step has the same name in every run."""
    return str(one_line(getattr(task, "name", "") or getattr(task, "action", "") or "task"))


def _message(data: dict[str, Any]) -> str:
    last = str(data.get("stderr") or "").strip().splitlines()[-1:]  # a command's msg is only "non-zero return code"
    return str(one_line(": ".join([str(data.get("msg") or data.get("censored") or ""), *last]), 1000))


def _cause(data: dict[str, Any]) -> Any:
    """The cause that the result names, else the one in its documents."""
    return data.get("cause") or next((item["cause"] for item in find_documents(data) if item.get("cause")), None)


def _text(value: Any) -> str | None:
    return None if value in (None, "") else str(one_line(value))
