"""Run checks one after the other and turn every way in which one can end into measurements."""

from __future__ import annotations

import contextlib
import os
import signal
from contextlib import ExitStack
from typing import Any

from gpu_checks.child import Child, Outcome, PipeReport
from gpu_checks.measurement import ERROR, Measurement
from gpu_checks.registry import Check, Options


def ending(wait_status: int | None) -> str:
    """How a process ended, in words."""
    if wait_status is None:
        return "it could not be waited for"
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        known = {int(each): each.name for each in signal.Signals}
        return f"killed by {known.get(number, f'signal {number}')}"
    return f"exit status {os.WEXITSTATUS(wait_status)}"


def _failure(check: Check, cause: str, seconds: float, detail: dict[str, Any]) -> Measurement:
    return Measurement(check.name, None, check.unit, check.summary, ERROR, cause, round(seconds, 6), detail=detail)


def conclude(check: Check, outcome: Outcome, timeout_seconds: float) -> list[Measurement]:
    """The measurements of a check: those it reported, and one more where it hung or died or said nothing."""
    heard = outcome.heard
    detail: dict[str, Any] = {"doing": heard.doing, "stderr_last_line": outcome.stderr_last_line}
    if outcome.survivors:
        # Only a process inside the kernel outlives SIGKILL: the driver hangs, and a reboot is what ends that.
        detail["unkillable_pids"] = outcome.survivors
    if outcome.timed_out:
        detail["timeout_s"] = timeout_seconds
        detail["process_state"] = outcome.state
        state = f"; its state was {outcome.state}" if heard.hung and outcome.state else ""
        doing = heard.doing or "start"
        detail["message"] = f"killed after {timeout_seconds:g} s, while it was about to: {doing}{state}"
        return [*heard.measurements, _failure(check, heard.hung or "check.timeout", outcome.seconds, detail)]
    if heard.ended and not heard.nonsense and heard.measurements:
        return list(heard.measurements)
    detail["ending"] = ending(outcome.wait_status)
    nothing = "it reported no measurement" if heard.ended else ""
    said = heard.nonsense or nothing or outcome.stderr_last_line or detail["ending"]
    detail["message"] = f"{said} (while it was about to: {heard.doing or 'start'})"
    # What died of an error in our own code (a traceback, an exit) says nothing about the driver.
    by_signal = outcome.wait_status is not None and os.WIFSIGNALED(outcome.wait_status)
    cause = heard.died if heard.died and by_signal else "check.crashed"
    return [*heard.measurements, _failure(check, cause, outcome.seconds, detail)]


def run_check(check: Check, options: Options) -> list[Measurement]:
    """Run one check in a child that can be killed. Never raises for what the check does."""

    def inside(report: PipeReport) -> None:
        check.run(options, report)

    try:
        with Child(inside) as child:
            return conclude(check, child.hear(options.timeout_s), options.timeout_s)
    except OSError as error:
        return [_failure(check, "check.crashed", 0.0, {"message": f"no process could be started: {error}"})]


class Ahead:
    """A check that is there before its turn: it imports torch, which takes seconds, while others run.

    Only where nothing but faults is looked for: beside the figures of the others a core of the host is kept busy.
    """

    def __init__(self, check: Check, options: Options) -> None:
        """Begin to import. Raises OSError where no process can be had."""
        self._check, self._options = check, options
        self._wait, self._go = os.pipe()
        try:
            self._child = Child(self._life)
        except OSError:
            self._close()
            raise

    def _life(self, report: PipeReport) -> None:
        from gpu_checks.torch_gpu import import_ahead  # noqa: PLC0415 - as in the registry: only the child needs it

        os.close(self._go)
        import_ahead(report)
        if os.read(self._wait, 1):
            self._check.run(self._options, report)

    def run(self) -> list[Measurement]:
        """It is its turn: as ``run_check``. One that has died meanwhile is run once more, to be seen dying."""
        if not self._child.lives():
            return run_check(self._check, self._options)
        os.write(self._go, b"1")
        limit = self._options.timeout_s
        return conclude(self._check, self._child.hear(limit), limit)

    def __enter__(self) -> Ahead:
        """It imports already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing of it is left, also where its turn never came."""
        self._child.__exit__()
        self._close()

    def _close(self) -> None:
        os.close(self._wait)
        os.close(self._go)


def _begin_ahead(checks: list[Check], options: Options, ends: ExitStack) -> dict[str, Ahead]:
    """Those that can begin before their turn: in a quick run, what uses torch and is not the first."""
    begun = {}
    for check in checks[1:] if options.quick else ():
        if check.uses_torch:
            # Where no process can be had now, there may be one at its turn.
            with contextlib.suppress(OSError):
                begun[check.name] = ends.enter_context(Ahead(check, options))
    return begun


def run_checks(checks: list[Check], options: Options) -> list[Measurement]:
    """Run them one after the other, in this order; no process of theirs is left. Never raises for what a check does."""
    made: list[Measurement] = []
    with Child.none_left(), ExitStack() as ends:
        ahead = _begin_ahead(checks, options, ends)
        for check in checks:
            if check.name in ahead:
                made += ahead[check.name].run()
            else:
                made += run_check(check, options)
            if ahead and any(each.status == ERROR for each in made):
                # What is broken is said at once: a check that finds the same does not wait for an import first.
                ends.close()
                ahead = {}
    return made
