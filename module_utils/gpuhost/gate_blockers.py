"""What would make the gate of a roll fail for certain, and is known before the downtime. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .baselines import FILE
from .blockers import KNOWN_CHECKS, Wishes
from .check_runner import HOST_TARGET, SAME_NAME
from .documents import Blocker
from .errors import Stop, blocker
from .expectations import check_of, checked_expect, checked_tolerance
from .gate_rows import EXPECTATIONS

WITH_A_FLOOR = ("p2p",)
"""Checks that arithmetic may have a limit for: whether it has one is only known when they have run."""


def gate_blockers(facts: dict[str, Any], wishes: Wishes) -> list[Blocker]:
    """Settings that make no sense, baselines that can't be read, figures that nothing could be held against."""
    if not wishes.needs_reboot:
        return []
    found = [
        blocker("gate.unknown_check", "gpu_gate_checks", name, f"one of {', '.join(KNOWN_CHECKS)}")
        for name in wishes.gate_checks
        if name not in KNOWN_CHECKS
    ]
    with_gpu = {item["name"] for item in facts["containers"] if item["gpu"]}
    if not wishes.gate_targets and HOST_TARGET in with_gpu & set(_places(facts, wishes)):
        found.append(blocker("gate.no_target", f"container {HOST_TARGET}", SAME_NAME, "another name"))
    found += _refused(checked_expect, wishes.gate_expect) + _refused(checked_tolerance, wishes.gate_tolerance)
    error = facts["baselines"]["error"]
    return [*found, blocker("gate.baseline_unreadable", FILE, error)] if error else found + _bare(facts, wishes)


def _refused(prove: Callable[[Mapping[str, Any]], Any], setting: Mapping[str, Any]) -> list[Blocker]:
    try:
        prove(setting)
    except Stop as error:
        return [error.blocker]
    return []


def _bare(facts: dict[str, Any], wishes: Wishes) -> list[Blocker]:
    """Required figures without a baseline where they will be measured, and without a word of the inventory."""
    expected = {check_of(pattern) for pattern in wishes.gate_expect}
    figures = [
        name
        for name in wishes.gate_required
        if name in KNOWN_CHECKS and name not in (*EXPECTATIONS, *WITH_A_FLOOR) and name not in expected
    ]
    if wishes.gate_records:
        return []
    recorded = facts["baselines"]["checks"]
    return [
        blocker("gate.nothing_recorded", f"gpu_gate_required: {name}", f"{place} has no baseline", "a baseline")
        for place in _places(facts, wishes)
        for name in figures
        if name not in recorded.get(place, ())
    ]


def _places(facts: dict[str, Any], wishes: Wishes) -> list[str]:
    """Where the gate will measure: in a roll that goes on also in what it has stopped."""
    if wishes.gate_targets:
        return list(wishes.gate_targets)
    roll = facts["roll"]
    drained = {item["name"] for item in roll["workloads"] if item["was_running"]} if _is_open(roll) else set()
    with_gpu = [item for item in facts["containers"] if item["gpu"]]
    if not with_gpu:
        return [HOST_TARGET]
    return [item["name"] for item in with_gpu if item["running"] or item["name"] in drained]


def _is_open(roll: dict[str, Any] | None) -> bool:
    return bool(roll and roll["state"] == "open")
