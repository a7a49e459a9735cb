"""What is measured a second time before a gate fails for it: speeds, and nothing else. Pure.

A figure of one moment can be low on a healthy host: of 150 figures on two idle H200 one was 6 % below the run before.
Whatever is really slow is slow twice. What was wrong, hung or missing once counts, whatever comes later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .documents import Comparison
from .expectations import Item, Rules, limit_for, share_of, value_of
from .gate import Targets, judge_check
from .gate_rows import BAD, COUNT_UNIT, SLOW, TWICE
from .gate_text import HIGHER_IS_BETTER, LOWER_IS_BETTER, quantity

SPEEDS = (HIGHER_IS_BETTER | LOWER_IS_BETTER) - {COUNT_UNIT}
"""Units of figures, of which the better of two is the one with less in its way."""


TOO_SLOW = frozenset({*SLOW.values(), "p2p.collapse"})
"""Causes of a row that is bad for its speed alone. A pair without P2P has a speed too, and not for that it is bad."""


def is_slow(row: Comparison) -> bool:
    """Whether a row is bad for its speed alone."""
    return row.verdict == "fail" and row.value is not None and row.unit in SPEEDS and row.cause in TOO_SLOW


def wanted(required: Sequence[str], targets: Targets, rules: Rules) -> dict[str, dict[str, list[Comparison]]]:
    """Target -> check -> the figures for which it is worth measuring again; empty where nothing would come of it.

    A gate that fails for something else as well is not saved by better figures: it is told at once.
    """
    found: dict[str, dict[str, list[Comparison]]] = {}
    for target, answer in targets.items():
        for check in required:
            if not any(item["name"] == check for item in answer["measurements"]):
                continue
            judged = judge_check(check, target, answer, True, rules)
            bad = [row for row in judged.rows if row.verdict in BAD]
            if judged.verdict.status != "pass" and not (bad and check in SLOW and all(map(is_slow, bad))):
                return {}
            if bad:
                found.setdefault(target, {})[check] = bad
    return found


def lines(slow: Mapping[str, Mapping[str, Sequence[Comparison]]]) -> list[str]:
    """What is measured again, and why, for people."""
    found = []
    for target, checks in slow.items():
        for check, rows in checks.items():
            first = rows[0]
            more = f"; and {len(rows) - 1} more" if len(rows) > 1 else ""
            value = quantity(first.value, first.unit)
            found.append(f"{check} on {target} is measured again: {first.name} is {value}, not {first.limit}{more}")
    return found


def better_of(first: Sequence[Item], second: Sequence[Item], target: str, rules: Rules) -> list[Item]:
    """Both runs of some checks on a target as one: of each speed the better value, of everything else what is worse.

    ``second`` may have fewer checks than ``first``.
    """
    later = {item["name"]: item for item in second}
    known = {item["name"] for item in first}
    merged = [_better(item, later[item["name"]], target, rules) if item["name"] in later else item for item in first]
    return [*merged, *(item for item in second if item["name"] not in known)]


def _better(first: Item, second: Item, target: str, rules: Rules) -> Item:
    """Only a measured second value replaces the first; an error of the second run counts as one of the first would."""
    if second.get("status") == "error" or first.get("status") != "measured":
        return second
    if second.get("status") != "measured" or second.get("unit") != first.get("unit"):
        return first
    values = (value_of(first), value_of(second))
    if first.get("unit") not in SPEEDS or values[0] is None or values[1] is None:
        return second
    limit, shares = limit_for(first, target, rules), (share_of(first), share_of(second))
    if limit is not None and limit.of_share and shares[0] is not None and shares[1] is not None:
        # What is held against the limit decides: of several transfers at once that is the worst one's share of its own
        # fair share, while the value is the smallest share of all. The one can be better where the other is worse.
        best = second if shares[1] > shares[0] else first
    else:
        best = second if (values[1] > values[0]) == (first["unit"] in HIGHER_IS_BETTER) else first
    detail: dict[str, Any] = {**(best.get("detail") or {}), TWICE: list(values)}
    return {**best, "detail": detail}
