"""The judge: measurements and expectations in, verdicts out. Only ``pass`` opens the gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import baselines
from .blockers import KNOWN_CHECKS
from .causes import cause
from .documents import Comparison, GateResult, Status, Verdict, make_head
from .errors import stop
from .expectations import TOLERANCE_PERCENT, Item, Rules, check_of, pattern_for, value_of
from .gate_rows import ALWAYS_SOME, BAD, COUNT_UNIT, EXPECTATIONS, becomes_baseline, counted, rows_of, twice
from .gate_text import HIGHER_IS_BETTER, LOWER_IS_BETTER, counts, quantity

Targets = dict[str, dict[str, Any]]
"""Target name -> {``measurements``: [..], ``stale``: [{``container``, ``driver``, ``allowed``, ``now``}, ..],
``checks``: the names of those that were run there; without it all that are known are judged}."""


@dataclass(frozen=True)
class Judged:
    """One check on one target: its verdict, and what each of its measurements was held against."""

    verdict: Verdict
    rows: tuple[Comparison, ...] = ()


def judge(
    name: str, run_id: str, kernel: str, required: Sequence[str], targets: Targets, rules: Rules | None = None
) -> GateResult:
    """The gate's result for one host. Raises Stop where the question itself is wrong (nothing required)."""
    if not required:
        raise stop("gate.nothing_required", "gpu_gate_required", "undefined or empty", "a list of checks")
    rules = rules or Rules()
    judged = [
        judge_check(check, target, answer, check in required, rules)
        for target, answer in sorted(targets.items())
        for check in sorted(answer.get("checks") or {*KNOWN_CHECKS, *required}, key=_order)
    ]
    rows = tuple(row for item in judged for row in item.rows)
    records = any(row.verdict == "recorded" for row in rows)
    verdicts = [_for_recording(item.verdict) if records else item.verdict for item in judged]
    if not targets:
        verdicts.append(_no_target(required[0]))
    else:
        seen = {item.check for item in verdicts}
        verdicts += [_nowhere(check) for check in required if check not in seen]
    status, code, sentence = _sum_up(kernel, verdicts)
    head = make_head("verdict", name, run_id)
    now = _origin(head.taken_at, run_id, kernel, rules, targets)
    notes = baselines.changes_since(rules.baselines, now) if rules.baselines else []
    notes += [*_twice(targets), *_unproven(rules, targets), *_uncompared(rows)]
    return GateResult(
        head, kernel, tuple(required), status, code, sentence, tuple(verdicts), rules.driver, rows, tuple(notes)
    )


def _order(check: str) -> tuple[int, str]:
    return (KNOWN_CHECKS.index(check) if check in KNOWN_CHECKS else len(KNOWN_CHECKS), check)


def _for_recording(verdict: Verdict) -> Verdict:
    """A fault that the check health has seen counts where something becomes a baseline, required or not."""
    ill = verdict.check == "health" and verdict.status == "fail" and (verdict.cause or "").startswith("health.")
    return replace(verdict, required=True) if ill else verdict


def _twice(targets: Targets) -> list[str]:
    """Which checks were measured a second time, see gate_again."""
    return [
        f"{target} {check}: measured twice, the first time it was too slow: of each figure the better value counts"
        for target, answer in targets.items()
        for check in dict.fromkeys(check_of(item["name"]) for item in answer["measurements"] if twice(item))
    ]


def _unproven(rules: Rules, targets: Targets) -> list[str]:
    """What is asked for, or was there before, and nobody has looked at now: a line each."""
    names = {item["name"] for answer in targets.values() for item in answer["measurements"]}
    ran = set(map(check_of, names))
    lines = [
        f"gpu_gate_expect: {pattern}: held against nothing, {check_of(pattern)} was not run"
        for pattern in rules.expect
        if check_of(pattern) not in ran
    ]
    lines += [
        f"gpu_gate_tolerance: {pattern}: fits no measurement"
        for pattern in rules.tolerance
        if pattern not in TOLERANCE_PERCENT and not any(pattern_for({pattern: 1}, name) for name in names)
    ]
    if rules.require_p2p and "p2p" not in ran:
        lines.append("gpu_gate_require_p2p: not proven, p2p was not run")
    known = rules.baselines.targets if rules.baselines else {}
    places = sorted(name for name, own in known.items() if own and name not in targets)
    return lines + [f"{name} has a baseline and was not measured now" for name in places]


def _uncompared(rows: Sequence[Comparison]) -> list[str]:
    """How many figures of a check nothing is expected of; a new version, or a full run after a quick one, has more."""
    bare = [
        (row.target, row.check)
        for row in rows
        if row.verdict == "shown"
        and row.unit in ALWAYS_SOME
        and row.value is not None
        and row.check not in EXPECTATIONS
    ]
    return [
        f"{target} {check}: nothing is expected of {count} values (gpu_gate_first_run: record makes them the baseline)"
        for (target, check), count in Counter(bare).items()
    ]


def _sum_up(kernel: str, verdicts: Sequence[Verdict]) -> tuple[Status, str | None, str]:
    """Status, cause and sentence of the gate: those of the first required check that has not passed."""
    failed = next((item for item in verdicts if item.required and item.status != "pass"), None)
    if failed is not None:
        return failed.status, failed.cause, f"{failed.target}: {failed.observed}: {failed.next_step}"
    passed = ", ".join(f"{item.target} {item.check} ({item.observed})" for item in verdicts if item.required)
    return "pass", None, f"passed on {kernel}: {passed}"


def _no_target(check: str) -> Verdict:
    return _verdict(check, "host", "not_measured", "gate.no_target", "nothing to measure in", "a running container")


def _nowhere(check: str) -> Verdict:
    code = "gate.not_measured" if check in KNOWN_CHECKS else "gate.unknown_check"
    return _verdict(check, "host", "not_measured", code, "not run anywhere", "one measurement")


def _verdict(
    check: str,
    target: str,
    status: Status,
    code: str | None,
    observed: str,
    expected: str,
    required: bool = True,
    seconds: float | None = None,
) -> Verdict:
    next_step = cause(code).next_step if code else ""
    return Verdict(check, target, status, code, observed, expected, next_step, required, seconds)


def judge_check(check: str, target: str, answer: dict[str, Any], required: bool, rules: Rules | None = None) -> Judged:
    """One check on one target. Its overall measurement is the one that has the check's own name, the others are parts.

    It passes where the overall one was measured, no part is an error, and every part keeps the limit that it has.
    """
    overall = [item for item in answer["measurements"] if item["name"] == check]
    if not overall:
        code = "gate.not_measured" if check in KNOWN_CHECKS else "gate.unknown_check"
        return Judged(_verdict(check, target, "not_measured", code, "no measurement", "one measurement", required))
    rows = rows_of(check, target, answer["measurements"], rules or Rules())
    seconds = overall[-1].get("seconds")
    # A check that was killed has reported before, and once more at its end: the worse of both counts.
    bad = sorted((row for row in rows if row.verdict in BAD), key=lambda row: (row.name != check, _severity(row)))
    if bad:
        code, observed, expected = _explained(bad[0], target, answer)
        more = f"; and {len(bad) - 1} more of {check}" if len(bad) > 1 else ""
        status: Status = BAD[bad[0].verdict] if code == bad[0].cause else "fail"
        verdict = _verdict(check, target, status, code, f"{observed}{more}", expected, required, seconds)
    elif check in EXPECTATIONS or any(row.limit or row.verdict == "recorded" for row in rows):
        observed = _passed(overall[0], rows)
        verdict = _verdict(check, target, "pass", None, observed, _expected(check, rows), required, seconds)
    else:
        observed = quantity(value_of(overall[0]), str(overall[0].get("unit") or ""))
        code, wanted = "gate.no_expectation", "a baseline, or gpu_gate_expect"
        verdict = _verdict(check, target, "not_measured", code, observed, wanted, required, seconds)
    return Judged(verdict, rows)


def _severity(row: Comparison) -> tuple[int, float, str]:
    """Failures before what was not measured, the largest change first."""
    return row.verdict == "not_measured", -abs(row.change_percent or 0), row.name


def _explained(row: Comparison, target: str, answer: dict[str, Any]) -> tuple[str, str, str]:
    """Cause, observed and expected of a bad row, with what the host knows and the check inside a container does not."""
    code, observed = row.cause or "gate.not_measured", row.observed
    expected = row.limit or EXPECTATIONS.get(row.check, "a measurement")
    if code == "device.denied_cgroup" and (stale := _stale_sentence(target, answer)):
        code, observed, expected = "lxc.stale_major", *stale
    if row.check == "cuda" and answer.get("cuda_as_root") == "measured":
        code, observed = "cuda.permission", f"{observed}; as root it works"
    return code, observed, expected


def _stale_sentence(target: str, answer: dict[str, Any]) -> tuple[str, str] | None:
    """Both numbers: what the container's rule allows, and what the driver has now."""
    stale = answer.get("stale") or []
    if not stale:
        return None
    rows = [f"{item['allowed']} for {item['driver']}, this kernel uses {item['now'] or 'none'}" for item in stale]
    wanted = ", ".join(f"a rule for {item['driver']} major {item['now']}" for item in stale)
    return f"{target} allows major {'; and '.join(rows)}", wanted


def _passed(item: Item, rows: Sequence[Comparison]) -> str:
    """What a check that passed has given, and how many values were held against what."""
    value = counted(item) if item.get("unit") == COUNT_UNIT else quantity(value_of(item), str(item.get("unit") or ""))
    held = counts(rows)
    return f"{value}; {held}" if held else value


def _expected(check: str, rows: Sequence[Comparison]) -> str:
    if check in EXPECTATIONS:
        return EXPECTATIONS[check]
    own = next((row.limit for row in rows if row.name == check and row.limit), "")
    return own or ("recorded, by gpu_gate_first_run or gpu_gate_baseline" if not any(row.limit for row in rows) else
                   "every value within its limit")  # fmt: skip


def _origin(taken_at: str, run_id: str, kernel: str, rules: Rules, targets: Targets) -> baselines.Origin:
    return baselines.origin_of((taken_at, run_id), (kernel, rules.driver), targets)


def update_for(result: GateResult, targets: Targets, rules: Rules) -> baselines.Update:
    """What a gate that passed has for the host's file: its values, and which of them become baselines.

    Only of checks that passed: a check that is not required may fail in a gate that passes.
    """
    head = result.head
    now = _origin(head.taken_at, head.run_id, result.kernel, rules, targets)
    entries: dict[str, dict[str, baselines.Entry]] = {}
    values: dict[str, dict[str, float]] = {}
    dropped: dict[str, list[str]] = {}
    for target, answer in targets.items():
        passed = {item.check for item in result.verdicts if item.target == target and item.status == "pass"}
        items = [item for item in answer["measurements"] if check_of(item["name"]) in passed and _is_comparable(item)]
        values[target] = {item["name"]: value_of(item) or 0.0 for item in items}
        entries[target] = {
            item["name"]: baselines.entry_from(item, now.key, rules.quick)
            for item in items
            if becomes_baseline(item, target, rules)
        }
        if rules.replace and not rules.quick and rules.baselines:
            before = rules.baselines.targets.get(target, {})
            dropped[target] = [name for name in before if check_of(name) in passed and name not in values[target]]
    return baselines.Update(now, entries, values, dropped)


def _is_comparable(item: Item) -> bool:
    known = item.get("unit") in HIGHER_IS_BETTER | LOWER_IS_BETTER
    return known and item.get("status") == "measured" and value_of(item) is not None
