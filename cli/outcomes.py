"""How a host, and a run, came out, judged from the documents that were recorded. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuhost.causes import BACK_ON_OLD, CAUSES, FINDINGS, GOOD, NEEDS_PERSON, SAFE_STOP, USAGE

Documents = Mapping[str, Mapping[str, Any]]
"""The documents of one host by kind."""

READ_ONLY_STAGES = frozenset({"survey", "plan", "report"})
DEFAULT_CAUSE = "host.module_failed"
UNREACHABLE_CAUSE = "host.unreachable"

_WORST_FIRST = (NEEDS_PERSON, BACK_ON_OLD, SAFE_STOP, USAGE, FINDINGS)
_STATE_EXIT = {
    "good_on_old": BACK_ON_OLD,
    "stopped": SAFE_STOP,
    "gate_failed": BACK_ON_OLD,
    "findings": FINDINGS,
    "refused": USAGE,
    "unreachable": USAGE,
    "needs_person": NEEDS_PERSON,
}
_AUDITED = ("security", "p0_runtime", "p1_reboot")
_TUNED = ("security", "p0_runtime")
"""Severities that are something to do: after an audit, and after tuning, which is not there to boot a host."""
_EXIT_STATE = {USAGE: "refused", NEEDS_PERSON: "needs_person"}


def exit_status_of(cause_code: str | None) -> int:
    """The exit status that a registered cause brings; a safe stop for one that is not registered."""
    cause = CAUSES.get(cause_code or "")
    return cause.exit_status if cause else SAFE_STOP


def worst(statuses: Iterable[int]) -> int:
    """The exit status of a run from those of its hosts: the one that needs a person most urgently."""
    seen = set(statuses)
    return next((status for status in _WORST_FIRST if status in seen), GOOD)


def standing_failures(failures: Iterable[Mapping[str, Any]], host: str) -> list[Mapping[str, Any]]:
    """The host's failures that nothing has repaired within the run."""
    return [item for item in failures if item.get("host") == host and not item.get("rescued")]


def host_state(
    documents: Documents,
    failures: list[Mapping[str, Any]],
    stages: frozenset[str],
    run_stages: frozenset[str],
    *,
    check_mode: bool = False,
) -> str:
    """The state of one host: those of ``documents.Outcome``, and ``ok``, ``findings``, ``unreachable``,
    ``gate_failed``.

    ``failures`` are the host's standing ones, ``stages`` those in which it ran a task, ``run_stages`` those of all
    hosts. Its own outcome document decides where there is one.
    """
    outcome = documents.get("outcome", {}).get("state")
    if isinstance(outcome, str) and outcome:
        return outcome
    result = documents.get("roll", {}).get("result")
    if documents.get("roll", {}).get("state") == "closed" and result in ("good", "good_on_old"):
        return str(result)
    if failures:
        return _state_of_failures(documents, failures)
    return _state_without_failures(documents, stages, run_stages, check_mode=check_mode)


def _state_of_failures(documents: Documents, failures: list[Mapping[str, Any]]) -> str:
    roll_open = documents.get("roll", {}).get("state") == "open"
    code = _last_cause(failures)
    if code == UNREACHABLE_CAUSE:
        return "needs_person" if roll_open else "unreachable"
    if not documents.get("roll") and _gate_failed(documents):
        return "gate_failed"
    return _EXIT_STATE.get(exit_status_of(code), "stopped")


def _state_without_failures(
    documents: Documents, stages: frozenset[str], run_stages: frozenset[str], *, check_mode: bool
) -> str:
    plan = documents.get("plan", {})
    if plan.get("blockers"):
        return "refused"
    if plan.get("nothing_to_do"):
        return "nothing_to_do"
    only_read = run_stages <= READ_ONLY_STAGES
    if plan and (check_mode or only_read):
        return "planned"
    if documents.get("verdict"):
        return "gate_failed" if _gate_failed(documents) else "ok"
    if stages <= READ_ONLY_STAGES and not only_read:
        return "untouched"
    if not plan and _something_to_do(documents):
        return "findings"
    return "ok" if stages else "untouched"


def _something_to_do(documents: Documents) -> bool:
    """Whether an audit has found, or tuning has left, what somebody has to do something about."""
    urgent = {"gpuhost.audit": _AUDITED, "gpuhost.tune": _TUNED, "gpuhost.effects": _TUNED}
    return any(
        isinstance(finding, Mapping) and finding.get("severity") in urgent.get(str(document.get("schema")), ())
        for document in documents.values()
        for finding in document.get("findings") or ()
    )


def _gate_failed(documents: Documents) -> bool:
    return bool(documents.get("verdict")) and documents["verdict"].get("status") != "pass"


def _last_cause(failures: list[Mapping[str, Any]]) -> str | None:
    code = failures[-1].get("cause") if failures else None
    return code if isinstance(code, str) else None


def state_exit_status(state: str, documents: Documents, failures: list[Mapping[str, Any]]) -> int:
    """The exit status that one host brings to the run."""
    outcome = documents.get("outcome", {}).get("exit_status")
    if isinstance(outcome, int):
        return outcome
    if state in ("refused", "stopped") and failures:
        return exit_status_of(_last_cause(failures))
    return _STATE_EXIT.get(state, GOOD)
