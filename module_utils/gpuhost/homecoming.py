"""The way back: a host that runs its old kernel while a roll is open goes into service again.

One implementation, two callers: the rollback stage of a controller, and ``gpuhost-return.service`` on the host itself,
where no controller is there any more. Both hold the host's lock, so exactly one does the work, and the other reads what
came of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from . import check_runner, deadman, gate, handback, loaders, packages, return_service, steps, trial, workloads
from .causes import BACK_ON_OLD, CAUSES, GOOD, NEEDS_PERSON, SAFE_STOP
from .documents import Outcome, as_dict, make_head
from .errors import DEFECTS, Stop, stop
from .handback import Return, as_stop, reconcile
from .host_io import Host
from .rollfile import Roll, closed, load, save

RECORD = "/var/lib/gpuhost/return.json"
"""The documents of a way back that no controller watched; the next controller collects them."""
DEVICE_CHECKS = ("device_access",)
"""The part of the gate that the old kernel has to pass: it was good before, and only its devices have moved."""
LOCK_S = 900
"""Seconds to wait for the other caller, who may be starting containers."""


@dataclass(frozen=True)
class Reason:
    """Why the roll goes back: ``failed`` is false where somebody chose it."""

    failed: bool
    cause: str | None
    sentence: str


def is_back(host: Host, roll: Roll) -> bool:
    """Whether the trial was booted and the host runs its old kernel again."""
    booted = roll.trial.boots > 0 and host.read_line(trial.BOOT_ID) != roll.trial.boot_id_before
    return booted and host.read_line(trial.RUNNING) == roll.running_before


def was_drained(host: Host, roll: Roll) -> bool:
    """Whether the host has rebooted between drain and trial: containers are held off, and nobody has them in hand."""
    before_trial = roll.trial.boots == 0 and host.read_line(trial.RUNNING) == roll.running_before
    return before_trial and workloads.is_held(host) and not workloads.held_in_this_boot(host)


def came_back(roll: Roll, sentence: str) -> Stop:
    """The stop for a trial that did not hold."""
    observed = sentence.removeprefix(f"{roll.target}: ")
    return stop("trial.expired", roll.target, observed, "a trial that reaches its gate")


def why(host: Host, roll: Roll) -> Reason:
    """What is known of why the trial did not hold: the controller's word, else the dead-man's note, else the fact."""
    if roll.trial.cause or roll.trial.sentence:
        return Reason(bool(roll.trial.cause), roll.trial.cause, roll.trial.sentence)
    note = deadman.fired(host)
    running = host.read_line(trial.RUNNING)
    if roll.trial.boots == 0:
        return Reason(True, None, f"{running} was booted again between drain and trial, which is still to come")
    if note:
        return Reason(True, "trial.expired", f"{roll.target}: {note}")
    fact = f"{running} runs again, and the dead-man had not fired: a panic, a power cut, or it never booted"
    return Reason(True, "trial.expired", f"{roll.target}: {fact}")


def come_back(host: Host, roll: Roll, reason: Reason) -> Return:
    """Bring the host into service on its old kernel, under the lock. Raises Stop where a person is needed.

    In the order of what the users wait for: default and one-shot first (fast, and what a power cut would meet), then
    nodes, rules, containers; then the device part of the gate; then the settings, which may take a loader's refresh;
    last the hold, which has kept apt's daily runs away meanwhile. What fails on the way to the containers needs a
    person, but keeps none of them down. Nobody watches: rules that are only presumed to be NVIDIA's are left alone.
    """
    running = host.read_line(trial.RUNNING)
    if running != roll.running_before:
        raise stop("trial.wrong_kernel", "uname -r", running, roll.running_before)
    tried = roll.trial.boots > 0
    moved = tried or was_drained(host, roll)  # majors may be others after any boot
    documents: list[dict[str, Any]] = []
    lines: list[str] = []
    problem: Stop | None = None
    try:
        lines += trial.undo(host, loaders.of(host), roll)
    except (Stop, *DEFECTS) as error:
        problem = as_stop(error)
    if tried:
        # The next caller, after a way back that needed a person, still knows why there was one.
        roll = replace(roll, trial=replace(roll.trial, cause=reason.cause, sentence=reason.sentence))
    if moved:
        wrong = reconcile(host, roll, lines, documents)
        problem = problem or wrong
    roll, started, failed = workloads.hand_back(host, roll)
    lines += started
    save(host, roll)
    try:
        if failed:
            raise Stop(failed[0], tuple(documents))
        if tried and host.exists(check_runner.ARCHIVE):
            documents += gate_devices(host, roll)
        if problem:
            raise Stop(problem.blocker, tuple(documents))
        if tried or not reason.failed:
            lines += trial.like_before(host, loaders.of(host), roll)
            lines += packages.try_unkeep(host, roll.kept_packages)
    except (Stop, *DEFECTS):
        workloads.release(host)
        raise
    if workloads.release(host):
        lines.append("autostart hold lifted")
    lines += deadman.disarm(host)
    roll, outcome = _end(roll, reason)
    save(host, roll)
    lines += return_service.remove(host)  # where the roll stays open, the next drain installs it again
    return Return(roll, tuple(lines), (*documents, as_dict(outcome)))


def gate_devices(host: Host, roll: Roll) -> list[dict[str, Any]]:
    """Measure and judge the devices. Raises Stop with the gate's own cause where they do not answer."""
    name, run_id = roll.head.host, roll.head.run_id
    archive = host.read_bytes(check_runner.ARCHIVE) or b""
    order = check_runner.Order(
        archive, list(DEVICE_CHECKS), roll.orders.python, roll.orders.timeout_s, roll.orders.user
    )
    answers = check_runner.measure_all(host, order, list(roll.orders.targets), roll.gpu_nodes_before)
    result = gate.judge(name, run_id, roll.running_before, list(DEVICE_CHECKS), answers)
    documents = [check_runner.document(name, run_id, answers), as_dict(result)]
    if result.status != "pass":
        text = f"the old kernel's devices do not answer: {result.sentence}"
        failed = stop(result.cause or "gate.not_measured", name, text, "pass")
        raise Stop(failed.blocker, tuple(documents))
    return documents


def _end(roll: Roll, reason: Reason) -> tuple[Roll, Outcome]:
    """The roll's end: good on the old kernel, or stopped before the trial, where it stays open to be resumed."""
    head = make_head("outcome", roll.head.host, roll.head.run_id)
    why_not, sentence = reason.cause, reason.sentence
    if roll.trial.boots == 0 and reason.failed:
        status = CAUSES[why_not].exit_status if why_not in CAUSES else SAFE_STOP
        return roll, Outcome(head, "stopped", why_not, sentence, status)
    if roll.trial.boots == 0:
        return closed(roll, "rolled_back", None, sentence), Outcome(head, "good_on_old", None, sentence, GOOD)
    status = BACK_ON_OLD if reason.failed else GOOD
    return closed(roll, "good_on_old", why_not, sentence), Outcome(head, "good_on_old", why_not, sentence, status)


def outcome_of(roll: Roll) -> Outcome:
    """The outcome of a roll that the host has ended by itself, for the controller that comes later."""
    head = make_head("outcome", roll.head.host, roll.head.run_id)
    good = roll.result in ("good", "good_on_old", "rolled_back")
    state = "good_on_old" if roll.result == "rolled_back" else roll.result or "needs_person"
    status = (BACK_ON_OLD if roll.cause else GOOD) if good else NEEDS_PERSON
    return Outcome(head, state, roll.cause, roll.sentence, status)


def write_record(host: Host, documents: tuple[dict[str, Any], ...]) -> None:
    """Keep the documents for the controller that comes later."""
    host.write_atomic(RECORD, (json.dumps(list(documents), indent=2) + "\n").encode(), 0o600)


def read_record(host: Host) -> list[dict[str, Any]]:
    """What a way back without a controller has recorded; empty where there was none, or where it can't be read."""
    text = host.read(RECORD)
    try:
        found = json.loads(text) if text else []
    except ValueError:
        return []
    return [item for item in found if isinstance(item, dict)]


def ended_by_host(roll: Roll | None, run_ids: set[str | None], result: str) -> Roll | None:
    """The roll that a controller follows, where the host itself has ended it with this result; else None."""
    ours = roll is not None and not roll.is_open and roll.trial.boots > 0 and roll.head.run_id in run_ids
    return roll if ours and roll is not None and roll.result == result else None


def _due(host: Host, roll: Roll) -> tuple[str, str, Callable[[Roll], Return]] | None:
    """Stage, step and work of what this boot has to bring back; None where nothing is, or where a controller is at it.

    A hold of this very boot is a controller's that has come since, and has drained the host again.
    """
    if workloads.held_in_this_boot(host):
        return None
    if is_back(host, roll) or was_drained(host, roll):
        return "rollback", "back into service by itself", lambda now: come_back(host, now, why(host, now))
    if handback.was_promoted(host, roll):
        return "hand_back", "handed back by itself", lambda now: handback.finish(host, now)
    return None


def by_itself(host: Host) -> str:
    """What ``gpuhost-return.service`` does at every boot while a roll is open; one line for the journal."""
    roll = load(host)
    if roll is None or not roll.is_open:
        return "; ".join(["no roll is open", *return_service.remove(host)])  # a way back was cut off at its very end
    due = _due(host, roll)
    if due is None:
        return f"{host.read_line(trial.RUNNING)} runs, nothing to bring back"
    stage, step, _ = due

    def work(now: Roll) -> steps.Done:
        still = _due(host, now)  # whoever had the lock before may have changed that
        if still is None:
            return steps.Done(now, ("a controller has the roll in hand",), changed=False)
        found = still[2](now)
        return steps.Done(found.roll, found.lines, documents=found.documents, changed=True)

    params = {"host_name": roll.head.host, "run_id": roll.head.run_id}
    try:
        answer = steps.run_step(host, params, False, stage, step, work, wait_s=LOCK_S)
    except Stop as error:
        if error.blocker.cause == "roll.not_open":
            return "a controller has ended the roll meanwhile"
        write_record(host, error.documents)
        raise
    write_record(host, tuple(answer["gpuhost_documents"]))
    return "; ".join(answer["lines"])
