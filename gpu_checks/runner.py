"""Run checks one after the other and turn every way in which one can end into measurements."""

from __future__ import annotations

import os
import signal
from typing import Any

from gpu_checks.child import Outcome, PipeReport, run_in_child
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


def run_check(check: Check, options: Options, timeout_seconds: float) -> list[Measurement]:
    """Run one check in a child that can be killed. Never raises for what the check does."""

    def inside(report: PipeReport) -> None:
        check.run(options, report)

    try:
        outcome = run_in_child(inside, timeout_seconds)
    except OSError as error:
        return [_failure(check, "check.crashed", 0.0, {"message": f"no process could be started: {error}"})]
    return conclude(check, outcome, timeout_seconds)
