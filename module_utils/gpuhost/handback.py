"""The way on: promoted after a passed gate, and handed back, by a controller or by the host itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from . import deadman, devices, loaders, packages, return_service, trial, workloads
from .causes import GOOD
from .documents import Outcome, as_dict, make_head, utc_now
from .errors import DEFECTS, Stop, defect
from .host_io import Host
from .rollfile import Roll, closed, load_open, save


@dataclass(frozen=True)
class Return:
    """What came of bringing a host into service."""

    roll: Roll
    lines: tuple[str, ...]
    documents: tuple[dict[str, Any], ...]


def was_promoted(host: Host, roll: Roll) -> bool:
    """Whether the target runs for good, and only the hand back is left.

    Also where promote was cut off before it could record that: it had the dead-man's lock, which only a passed gate
    takes, and had made the target the default. A lock that somebody has taken by hand has the old kernel as default.
    """
    running = host.read_line(trial.RUNNING)
    if roll.is_promoted(running):
        return True
    if running != roll.target or not deadman.is_taken(host, roll.target):
        return False
    chosen = loaders.of(host).read().next_boot(one_shot=False)
    return chosen is not None and chosen.release == roll.target


def reconcile(host: Host, roll: Roll, lines: list[str], documents: list[dict[str, Any]]) -> Stop | None:
    """Bring nodes and rules to the running kernel's majors; what went wrong there, which keeps no container down."""
    try:
        found = devices.reconcile_host(host, roll.head.host, roll.head.run_id, devices.UNATTENDED, False)
    except (Stop, *DEFECTS) as error:
        return as_stop(error)
    documents.append(found.document)
    lines += found.said
    return None


def as_stop(error: BaseException) -> Stop:
    """A defect as a Stop with its name; a Stop as it is."""
    return error if isinstance(error, Stop) else Stop(defect(error))


def promote(host: Host, roll: Roll, keep_days: int) -> tuple[Roll, list[str]]:
    """Make the target what boots by itself, record it, and end what was there for the trial. Once or again.

    The return service stays until the host is handed back.
    """
    lines = trial.promote(host, loaders.of(host), roll)
    roll = replace(roll, promoted_at=roll.promoted_at or utc_now())
    save(host, roll)
    lines += deadman.disarm(host)
    if roll.kept_packages:
        lines += packages.unkeep_later(host, roll.kept_packages, keep_days)
        roll = replace(roll, kept_packages=())
    return roll, lines


def hand_back(host: Host, roll: Roll, name: str, run_id: str, sentence: str, problem: Stop | None = None) -> Return:
    """Start what ran before, lift the hold, close the roll as good. Raises Stop where one of them does not start.

    ``problem``: what went wrong on the way here; the containers start all the same, but the roll stays open.
    """
    roll, lines, failed = workloads.hand_back(host, roll)
    if workloads.release(host):
        lines.append("autostart hold lifted")
    problem = Stop(failed[0]) if failed else problem
    if problem is not None:
        save(host, roll)
        raise problem
    outcome = Outcome(make_head("outcome", name, run_id), "good", None, sentence, GOOD)
    roll = closed(roll, "good", None, sentence)
    save(host, roll)
    lines += return_service.remove(host)
    return Return(roll, tuple(lines), (as_dict(outcome),))


def finish(host: Host, roll: Roll) -> Return:
    """What a controller had left to do after the gate: promoted for certain, devices, handed back. Under the lock.

    There is no way back from here without a reboot, the gate has passed on this kernel, and it is what boots.
    """
    lines: list[str] = []
    documents: list[dict[str, Any]] = []
    problem: Stop | None = None
    try:
        roll, lines = promote(host, roll, packages.KEEP_DAYS)
    except (Stop, *DEFECTS) as error:
        problem, roll = as_stop(error), load_open(host)
    wrong = reconcile(host, roll, lines, documents)
    problem = problem or wrong
    sentence = f"{roll.target} had passed its gate; handed back by the host itself at its next boot"
    try:
        found = hand_back(host, roll, roll.head.host, roll.head.run_id, sentence, problem)
    except Stop as error:
        raise Stop(error.blocker, tuple(documents)) from error
    return replace(found, lines=(*lines, *found.lines), documents=(*documents, *found.documents))
