"""The judge: measurements and expectations in, verdicts out. Only ``pass`` opens the gate."""

from __future__ import annotations

from typing import Any

from .blockers import KNOWN_CHECKS
from .causes import CAUSES, cause
from .documents import GateResult, Status, Verdict, make_head
from .errors import stop

EXPECTATIONS = {
    "device_access": "every required device node answers",
    "cuda": "every expected GPU computes right",
}
"""Checks that are judged without a baseline, and by what."""

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


def judge_check(check: str, target: str, answer: dict[str, Any], required: bool) -> Verdict:
    """One check on one target: its overall measurement is the one that has the check's own name."""
    found = [item for item in answer["measurements"] if item["name"] == check]
    if not found:
        code = "gate.not_measured" if check in KNOWN_CHECKS else "gate.unknown_check"
        return _verdict(check, target, "not_measured", code, "no measurement", "one measurement", required)
    item = found[0]
    expected = EXPECTATIONS.get(check, "a measurement")
    if item["status"] == "measured":
        return _measured(check, target, item, required)
    code = item["cause"] if item["cause"] in CAUSES else "gate.not_measured"
    observed = _observed(item)
    if code == "device.denied_cgroup" and (stale := _stale_sentence(target, answer)):
        code, observed, expected = "lxc.stale_major", *stale
    if check == "cuda" and answer.get("cuda_as_root") == "measured":
        code, observed = "cuda.permission", f"{observed}; as root it works"
    status: Status = "error" if item["status"] == "error" else "not_measured"
    if status == "error" and code.startswith(("lxc.", "device.", "driver.", "cuda.")):
        status = "fail"
    return _verdict(check, target, status, code, observed, expected, required, item.get("seconds"))


def _measured(check: str, target: str, item: dict[str, Any], required: bool) -> Verdict:
    """A number passes only against an expectation.

    device_access and cuda have their own: all nodes answer, every GPU computes right, and at least one does.
    """
    seconds = item.get("seconds")
    if check not in EXPECTATIONS:
        code = "gate.no_expectation"
        return _verdict(check, target, "not_measured", code, _observed(item), "a baseline", required, seconds)
    if not item["value"]:
        code = "cuda.gpu_count" if check == "cuda" else "device.gpu_count"
        return _verdict(check, target, "fail", code, "no usable GPU", "at least one", required, seconds)
    wanted = (item.get("detail") or {}).get("expected_gpus")
    if check == "cuda" and wanted is not None and item["value"] != wanted:
        return _verdict(check, target, "fail", "cuda.gpu_count", _observed(item), f"{wanted} GPUs", required, seconds)
    return _verdict(check, target, "pass", None, _observed(item), EXPECTATIONS[check], required, seconds)


def _observed(item: dict[str, Any]) -> str:
    detail = item.get("detail") or {}
    if item["status"] == "measured":
        unit = item["unit"]
        if unit == "gpus":
            unit = f"{'GPU' if item['value'] == 1 else 'GPUs'} {'computing' if item['name'] == 'cuda' else 'usable'}"
        return f"{item['value']:g} {unit}" if item["value"] is not None else "measured"
    return str(detail.get("sentence") or detail.get("message") or _sentence(item["cause"]))


def _sentence(code: str | None) -> str:
    return (CAUSES.get(code or "") or CAUSES["gate.not_measured"]).sentence


def _stale_sentence(target: str, answer: dict[str, Any]) -> tuple[str, str] | None:
    """Both numbers: what the container's rule allows, and what the driver has now."""
    stale = answer.get("stale") or []
    if not stale:
        return None
    rows = [f"{item['allowed']} for {item['driver']}, this kernel uses {item['now'] or 'none'}" for item in stale]
    wanted = ", ".join(f"a rule for {item['driver']} major {item['now']}" for item in stale)
    return f"{target} allows major {'; and '.join(rows)}", wanted
