"""One measurement held against its limit, for the judge and for the table that people read. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .baselines import Entry
from .causes import CAUSES, cause
from .documents import Comparison, Status
from .expectations import Item, Limit, Rules, check_of, limit_for, link_of, pattern_for, share_of, value_of
from .gate_text import HIGHER_IS_BETTER, LOWER_IS_BETTER, UNITS, change, quantity

SLOW = {
    "p2p": "p2p.slow",
    "allreduce": "allreduce.slow",
    "memory": "memory.slow",
    "gemm": "gemm.slow",
    "decode": "decode.slow",
}
EXPECTATIONS = {
    "device_access": "every required device node answers",
    "cuda": "every expected GPU computes right",
    "torch": "every expected GPU computes right through torch",
    "health": "nothing is wrong with any GPU by what the driver and PCI say",
}
"""Checks that are judged without a baseline, and by what. Of them only a count of GPUs becomes one: how long a start
took is one sample, and twice that the next time, with nothing wrong."""
COUNT_CAUSE = {"device_access": "device.gpu_count"}
COUNT_UNIT = "gpus"
COLLAPSE_SHARE = 0.5
"""Several transfers at once that reach less than half of what they should have not merely shared a link."""
ALWAYS_SOME = frozenset({"gb_s", "tflop_s", "us", "ms"})
"""Units of rates and times: none of them is ever 0 or less, but by a broken clock."""
BAD: dict[str, Status] = {"error": "error", "fail": "fail", "not_measured": "not_measured"}
"""Rows that keep a check from passing, and the status that a verdict has for them."""


def registered(code: Any) -> str:
    """A measurement's cause, where the registry knows it."""
    return str(code) if code in CAUSES else "gate.not_measured"


def said(item: Item) -> str:
    """What a measurement without a value says about itself."""
    detail = item.get("detail") or {}
    text = detail.get("sentence") or detail.get("message")
    return str(text or CAUSES[registered(item.get("cause"))].sentence)


TWICE = "measured_twice"
"""Where a figure's detail has both values, in the order of measuring, if it was measured again: see gate_again."""


def twice(item: Item) -> list[float]:
    """Both values of a figure that was measured twice; empty for all others."""
    return list((item.get("detail") or {}).get(TWICE) or ())


def _named(item: Item) -> str:
    """What a measurement says about itself; a part says which one it is."""
    return f"{item['name']}: {said(item)}" if "." in item["name"] else said(item)


def counted(item: Item) -> str:
    """A number of GPUs for people."""
    value = value_of(item) or 0
    words = {"device_access": "usable", "health": "well"}
    return f"{value:g} {'GPU' if value == 1 else 'GPUs'} {words.get(check_of(item['name']), 'computing')}"


def entry_of(item: Item, target: str, rules: Rules) -> Entry | None:
    """A measurement's baseline; one of another unit is none."""
    entry = rules.entry(target, item["name"])
    return entry if entry is not None and entry.unit == item.get("unit") else None


def becomes_baseline(item: Item, target: str, rules: Rules) -> bool:
    """Whether a measurement is recorded once the gate has passed. Of nothing (0) everything later would be better."""
    if item.get("status") != "measured" or (value_of(item) or 0) <= 0:
        return False
    if item.get("unit") not in HIGHER_IS_BETTER | LOWER_IS_BETTER:
        return False
    if check_of(item["name"]) in EXPECTATIONS and item.get("unit") != COUNT_UNIT:
        return False
    return rules.replace or (rules.record and entry_of(item, target, rules) is None)


def rows_of(check: str, target: str, items: Sequence[Item], rules: Rules) -> tuple[Comparison, ...]:
    """A row for each measurement of a check, and one for each that should be there and is not."""
    own = with_links([item for item in items if check_of(item["name"]) == check])
    rows = [row_of(item, target, rules) for item in own]
    return (*rows, *_missing(check, target, {item["name"] for item in own}, rules))


def with_links(items: Sequence[Item]) -> list[Item]:
    """The same, and each pattern of transfers between GPUs knows that all of its ways are NVLinks, where they are."""
    kinds = {item["name"].rpartition(".")[2]: link_of(item)[0] for item in items if link_of(item)[0]}

    def linked(item: Item) -> Item:
        flows = [flow for flow in (item.get("detail") or {}).get("flows") or () if isinstance(flow, Mapping)]
        ways = {kinds.get(f"{flow.get('source')}-{flow.get('target')}") for flow in flows}
        return {**item, "detail": {**item["detail"], "link": {"kind": "nvlink"}}} if ways == {"nvlink"} else item

    return [linked(item) for item in items]


def row_of(item: Item, target: str, rules: Rules) -> Comparison:
    """One measurement beside its limit."""
    status = item.get("status")
    if rules.require_p2p and status != "error" and (code := _without_p2p(item)) is not None:
        observed = f"{item['name']}: {said({**item, 'cause': code})}"
        return _row(item, target, rules, "fail", code, observed, "P2P everywhere (gpu_gate_require_p2p)")
    if status == "error":
        code = registered(item.get("cause"))
        # An error of the checks or of the gate itself says nothing about the GPUs.
        verdict = "error" if code.startswith(("check.", "gate.")) else "fail"
        return _row(item, target, rules, verdict, code, _named(item))
    if status != "measured":
        return _not_measured(item, target, rules)
    if "." not in item["name"] and item.get("unit") in (COUNT_UNIT, "pairs"):
        found = _count(item, target, rules)
        if found is not None:
            return found
    return _measured(item, target, rules)


WITHOUT_P2P = ("p2p.no_peer_access", "p2p.disabled_by_environment")


def _without_p2p(item: Item) -> str | None:
    """The cause by which a pair's data goes through the host, although nothing is broken."""
    if item.get("cause") in WITHOUT_P2P:
        return str(item["cause"])
    staged = check_of(item["name"]) == "p2p" and (item.get("detail") or {}).get("peer_access") is False
    return WITHOUT_P2P[0] if staged else None


def _not_measured(item: Item, target: str, rules: Rules) -> Comparison:
    """A part that nothing is expected of is only shown: what a GPU does not have can't be measured."""
    name, code = item["name"], registered(item.get("cause"))
    expected = pattern_for(rules.expect, name) is not None or (
        not rules.replace and rules.entry(target, name) is not None
    )
    bad = "." not in name or expected
    return _row(item, target, rules, "not_measured" if bad else "shown", code, _named(item))


def _count(item: Item, target: str, rules: Rules) -> Comparison | None:
    """A number of GPUs, or of pairs, that is not what it has to be; None where it is."""
    check, detail = item["name"], item.get("detail") or {}
    if item["unit"] == "pairs":
        pairs = detail.get("expected_pairs")
        if pairs is None or value_of(item) == pairs:
            return None
        observed = f"data arrived right in {item['value']} pairs"
        return _row(item, target, rules, "fail", "gate.limit_missed", observed, f"{pairs} pairs")
    code = COUNT_CAUSE.get(check, "cuda.gpu_count")
    if not value_of(item):
        return _row(item, target, rules, "fail", code, "no usable GPU", "at least one")
    wanted = detail.get("expected_gpus")
    if wanted is not None and item["value"] != wanted:
        return _row(item, target, rules, "fail", code, counted(item), f"{wanted} GPUs")
    return None


def _measured(item: Item, target: str, rules: Rules) -> Comparison:
    value = value_of(item)
    figure = item.get("unit") in ALWAYS_SOME and check_of(item["name"]) not in EXPECTATIONS
    if value is None or (figure and value <= 0):
        observed = f"{item['name']} has no value that can be compared: {item.get('value')!r}"
        return _row(item, target, rules, "error", "gate.not_measured", observed)
    limit = limit_for(item, target, rules)
    recorded = becomes_baseline(item, target, rules)
    before = rules.entry(target, item["name"])
    by_inventory = limit is not None and limit.source == "inventory"
    if before is not None and before.unit != item.get("unit") and not (by_inventory or recorded or rules.replace):
        now, then = quantity(value, str(item.get("unit") or "")), UNITS.get(before.unit, before.unit)
        observed = f"{item['name']} is {now}, its baseline is in {then}"
        return _row(item, target, rules, "not_measured", "gate.no_expectation", observed, "a baseline in its unit")
    if limit is None:
        return _row(item, target, rules, "recorded" if recorded else "shown")
    held = share_of(item) if limit.of_share else value_of(item)
    if held is None:
        observed = f"{item['name']}: nothing says what share of its speed it has reached"
        return _row(item, target, rules, "not_measured", "gate.no_expectation", observed, limit.text)
    if limit.holds(held):
        return _row(item, target, rules, "recorded" if recorded else "pass", limit=limit.text)
    code, observed = _missed(item, target, limit, rules), _worse(item, target, rules, held, limit)
    return _row(item, target, rules, "fail", code, observed, limit.text)


def _missed(item: Item, target: str, limit: Limit, rules: Rules) -> str:
    """The cause for a value beyond its limit."""
    check, detail = check_of(item["name"]), item.get("detail") or {}
    if item.get("unit") == COUNT_UNIT:
        return COUNT_CAUSE.get(check, "cuda.gpu_count")
    if check == "p2p" and detail.get("pattern"):
        entry = entry_of(item, target, rules)
        of_baseline = (value_of(item) or 0) / entry.value if entry is not None and entry.value else None
        if limit.source == "floor" or (of_baseline is not None and of_baseline < COLLAPSE_SHARE):
            return "p2p.collapse"
    return SLOW.get(check, "gate.limit_missed")


def _worse(item: Item, target: str, rules: Rules, held: float, limit: Limit) -> str:
    """Both numbers, and where they come from."""
    text = f"{item['name']} is {quantity(value_of(item), item['unit'])}"
    if limit.of_share and item["unit"] != "share":
        text += f", {quantity(held, 'share')} of its expected speed"
    both = twice(item)
    if both:
        text += f" at best (measured twice: {' and '.join(quantity(value, item['unit']) for value in both)})"
    entry, percent = entry_of(item, target, rules), change_percent(item, target, rules)
    if entry is not None and percent is not None:
        text += f", {change(percent)} against the baseline {quantity(entry.value, entry.unit)}"
        origin = rules.baselines.origin(entry) if rules.baselines else None
        if origin is not None:
            text += f" of {origin.taken_at} (kernel {origin.kernel}, driver {origin.driver or 'unknown'})"
    return text


def change_percent(item: Item, target: str, rules: Rules) -> float | None:
    """By how much a value differs from its baseline; None where there is none."""
    entry, value = entry_of(item, target, rules), value_of(item)
    if entry is None or not entry.value or value is None or item.get("status") != "measured":
        return None
    return round(100 * (value / entry.value - 1), 2)


def _row(
    item: Item, target: str, rules: Rules, verdict: Any, code: str | None = None, observed: str = "", limit: str = ""
) -> Comparison:
    entry = entry_of(item, target, rules)
    return Comparison(
        target,
        check_of(item["name"]),
        item["name"],
        value_of(item) if item.get("status") == "measured" else None,
        str(item.get("unit") or ""),
        None if entry is None else entry.value,
        change_percent(item, target, rules),
        limit,
        verdict,
        code,
        observed,
        cause(code).next_step if code else "",
    )


def _missing(check: str, target: str, there: set[str], rules: Rules) -> list[Comparison]:
    """What the baseline or the inventory has and this run has not. A quick run measures less, and that is known."""
    before = rules.baselines.targets.get(target, {}) if rules.baselines else {}
    gone = [
        name
        for name, entry in before.items()
        if check_of(name) == check and name not in there and not rules.replace and not (rules.quick and not entry.quick)
    ]
    found = [_absent(check, target, name, before[name], "gate.part_missing") for name in sorted(gone)]
    unmatched = [
        pattern
        for pattern in rules.expect
        if check_of(pattern) == check and not rules.quick and not any(pattern_for({pattern: 1}, name) for name in there)
    ]
    return found + [_absent(check, target, pattern, None, "gate.expectation_unmatched") for pattern in unmatched]


def _absent(check: str, target: str, name: str, entry: Entry | None, code: str) -> Comparison:
    value, unit = (None, "") if entry is None else (entry.value, entry.unit)
    was = f" (baseline {quantity(value, unit)})" if entry is not None else " (gpu_gate_expect)"
    observed = f"{name} was not measured{was}"
    return Comparison(
        target, check, name, None, unit, value, None, "", "not_measured", code, observed, cause(code).next_step
    )
