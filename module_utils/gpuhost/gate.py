"""The judge: measurements and expectations in, verdicts out. Only ``pass`` opens the gate."""

from __future__ import annotations

from typing import Any

from .blockers import KNOWN_CHECKS
from .causes import CAUSES, cause
from .documents import GateResult, Status, Verdict, make_head
from .errors import stop

Targets = dict[str, dict[str, Any]]
"""Target name -> {``measurements``: [..], ``stale``: [{``container``, ``driver``, ``allowed``, ``now``}, ..]}."""


def judge(name: str, run_id: str, kernel: str, required: list[str], targets: Targets) -> GateResult:
    """The gate's result for one host. Raises Stop where the question itself is wrong (nothing required)."""
    if not required:
        raise stop("gate.nothing_required", "gpu_gate_required", "undefined or empty", "a list of checks")
    verdicts = tuple(
        judge_check(check, target, answer, check in required)
        for target, answer in sorted(targets.items())
        for check in sorted(set(KNOWN_CHECKS) | set(required), key=_order)
    )
    if not targets:
        verdicts = (_no_target(required[0]),)
    failed = next((item for item in verdicts if item.required and item.status != "pass"), None)
    if failed is None:
        sentence = f"passed on {kernel}: " + ", ".join(
            f"{item.target} {item.check} ({item.observed})" for item in verdicts if item.required
        )
        return GateResult(make_head("verdict", name, run_id), kernel, tuple(required), "pass", None, sentence, verdicts)
    return GateResult(
        make_head("verdict", name, run_id),
        kernel,
        tuple(required),
        failed.status,
        failed.cause,
        f"{failed.target}: {failed.observed}: {failed.next_step}",
        verdicts,
    )


def _order(check: str) -> tuple[int, str]:
    return (KNOWN_CHECKS.index(check) if check in KNOWN_CHECKS else len(KNOWN_CHECKS), check)


def _no_target(check: str) -> Verdict:
    return _verdict(check, "host", "not_measured", "gate.no_target", "nothing to measure in", "a running container")


def _verdict(
    check: str, target: str, status: Status, code: str | None, observed: str, expected: str, required: bool = True
) -> Verdict:
    return Verdict(
        check, target, status, code, observed, expected, cause(code).next_step if code else "", required
    )  # fmt: skip


def judge_check(check: str, target: str, answer: dict[str, Any], required: bool) -> Verdict:
    """One check on one target: its overall measurement is the one that has the check's own name."""
    found = [item for item in answer["measurements"] if item["name"] == check]
    if not found:
        code = "gate.not_measured" if check in KNOWN_CHECKS else "gate.unknown_check"
        return _verdict(check, target, "not_measured", code, "no measurement", "one measurement", required)
    item = found[0]
    if item["status"] == "measured" and check == "device_access" and not item["value"]:
        return _verdict(check, target, "fail", "device.gpu_count", "no usable GPU", "at least one", required)
    if item["status"] == "measured":
        return _verdict(check, target, "pass", None, _observed(item), "every required device node answers", required)
    code = item["cause"] if item["cause"] in CAUSES else "gate.not_measured"
    observed, expected = _observed(item), "every required device node answers"
    if code == "device.denied_cgroup" and (stale := _stale_sentence(target, answer)):
        code, observed, expected = "lxc.stale_major", *stale
    status: Status = "error" if item["status"] == "error" else "not_measured"
    if status == "error" and code.startswith(("lxc.", "device.", "driver.")):
        status = "fail"
    return _verdict(check, target, status, code, observed, expected, required)


def _observed(item: dict[str, Any]) -> str:
    detail = item.get("detail") or {}
    if item["status"] == "measured":
        return f"{item['value']:g} {item['unit']} usable" if item["value"] is not None else "measured"
    return str(detail.get("sentence") or detail.get("message") or _sentence(item["cause"]))


def _sentence(code: str | None) -> str:
    return (CAUSES.get(code or "") or CAUSES["gate.not_measured"]).sentence


def _stale_sentence(target: str, answer: dict[str, Any]) -> tuple[str, str] | None:
    """Both numbers: what the container's rule allows, and what the driver has now."""
    stale = answer.get("stale") or []
    if not stale:
        return None
    allowed = "; ".join(f"{target} allows major {item['allowed']} for {item['driver']}" for item in stale)
    now = "; ".join(f"this kernel uses {item['now']} for {item['driver']}" for item in stale)
    return f"{allowed}, {now}", ", ".join(f"a rule for {item['driver']} major {item['now']}" for item in stale)
