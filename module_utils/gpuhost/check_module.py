"""What the modules of single checks share: their arguments, and the one call that measures and answers."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from . import baselines, check_runner, deadman
from .causes import CAUSES
from .check_runner import HOST_CHECKS, Order
from .documents import Blocker
from .errors import Stop, blocker, stop
from .expectations import RULES_ARGUMENTS, Rules, rules_of
from .gate_rows import said
from .gate_text import quantity
from .gate_time import longest_s
from .host_io import Host

COMMON: dict[str, Any] = {
    "host_name": {"type": "str", "default": ""},
    "run_id": {"type": "str", "default": ""},
    "archive": {"type": "str", "required": True},
    "timeout_s": {"type": "int", "default": 120},
    "quick": {"type": "bool", "default": False},
    "fail_on_error": {"type": "bool", "default": True},
}
DECODE: dict[str, Any] = {
    "model": {"type": "json"},
    "tp": {"type": "int"},
    "context": {"type": "int"},
    "batch": {"type": "int"},
}
"""What the check decode is asked for; what is not given has the check's own default."""
WORKLOAD: dict[str, Any] = {
    "targets": {"type": "list", "elements": "str", "default": [], "aliases": ["target"]},
    "python": {"type": "str", "default": check_runner.SYSTEM_PYTHON},
    "user": {"type": "str", "default": ""},
}


def arguments(check: str) -> dict[str, Any]:
    """The arguments of a check's module. A check about the machine has no place, interpreter and user of a workload."""
    if check in HOST_CHECKS:
        return dict(COMMON)
    return {**COMMON, **WORKLOAD, **({**DECODE, **RULES_ARGUMENTS} if check == "decode" else {})}


def work_of(check: str) -> Callable[[Host, dict[str, Any], bool], dict[str, Any]]:
    """The work of a check's module."""

    def work(host: Host, params: dict[str, Any], check_mode: bool) -> dict[str, Any]:
        return measure(check, host, params, check_mode)

    return work


def work_for_gate(check: str) -> Callable[[Host, dict[str, Any], bool], dict[str, Any]]:
    """The same, with what the judge needs beside the measurements: kernel, driver, baselines.

    A file of baselines that can't be read stops it before anything is measured. It is root's: others have none.
    """

    def work(host: Host, params: dict[str, Any], check_mode: bool) -> dict[str, Any]:
        known, rules = for_judge(host, params)
        return {**measure(check, host, params, check_mode, rules), **known}

    return work


def for_judge(host: Host, params: dict[str, Any]) -> tuple[dict[str, Any], Rules]:
    """What the judge needs beside measurements, and what it is going to judge by. Raises Stop, see ``rules_of``."""
    recorded = baselines.read(host) if host.is_root() else None
    driver = check_runner.driver_version(host)
    known = {
        "kernel": host.read_line("/proc/sys/kernel/osrelease"),
        "driver": driver,
        "baselines": baselines.without_history(recorded) if recorded else {},
    }
    return known, rules_of(params, recorded, driver)


def measure(
    check: str, host: Host, params: dict[str, Any], check_mode: bool, rules: Rules | None = None
) -> dict[str, Any]:
    """Run one check where the workload runs; its measurements. Raises Stop where one is an error.

    With ``rules`` it is measured a second time where it would fail a gate for its speed alone.
    """
    wanted, user = params.get("targets") or [], params.get("user") or ""
    _prove_root(host, check, wanted, user)
    python = params.get("python") or check_runner.SYSTEM_PYTHON
    decode = {name: params.get(name) for name in check_runner.DECODE_OPTIONS}
    if check_mode:
        order = Order(b"", [check], python, params["timeout_s"], user, params["quick"], decode)
        return {"changed": False, "targets": {}, "lines": check_runner.intended(host, order, wanted)}
    root = host.is_root()
    archive = check_runner.place(host, params["archive"]) if root else base64.b64decode(params["archive"])
    order = Order(archive, [check], python, params["timeout_s"], user, params["quick"], decode)
    required = [check] if rules else []
    if root:
        # A trial may be armed while somebody measures by hand.
        deadman.renew(host, longest_s(host, [check], required, wanted, user, params["timeout_s"]))
    answers, again = check_runner.measure_for_gate(host, order, wanted, (), required, rules or Rules())
    name = params["host_name"] or host.read_line("/proc/sys/kernel/hostname")
    document = {**check_runner.document(name, params["run_id"], answers), "concern": check}
    failed = _first_error(check, answers)
    if failed is not None and params["fail_on_error"]:
        raise Stop(failed, (document,))
    lines = again + [
        line for target, answer in answers.items() for line in _lines(target, answer["measurements"], len(answers) > 1)
    ]
    return {"changed": False, "targets": answers, "lines": lines, "gpuhost_documents": [document]}


def _prove_root(host: Host, check: str, wanted: list[str], user: str) -> None:
    """Without root this very user can measure on the host; everything else has to be root."""
    on_host = check in HOST_CHECKS or wanted == [check_runner.HOST_TARGET]
    if not host.is_root() and (user or not on_host):
        step = "Connect as root, or set ansible_become: true; or measure as this user: targets: host"
        raise stop("host.not_root", "this connection", "an ordinary user", "root", step)


def _first_error(check: str, answers: dict[str, dict[str, Any]]) -> Blocker | None:
    """The first error, the check's own before those of its parts."""
    for target, answer in answers.items():
        errors = [item for item in answer["measurements"] if item["status"] == "error"]
        for item in sorted(errors, key=lambda item: item["name"] != check):
            code = item["cause"] if item["cause"] in CAUSES else "check.crashed"
            return blocker(code, f"{item['name']} on {target}", said(item), "measured")
    return None


def _lines(target: str, measurements: list[dict[str, Any]], several: bool) -> list[str]:
    """A line for each measurement, for the console."""
    lines = []
    for item in measurements:
        where = f"{target} " if several else ""
        value = quantity(item["value"], item["unit"]) if item["status"] == "measured" else item["status"]
        samples = item.get("samples") or {}
        spread = f" ({samples['p20']:.4g} to {samples['p80']:.4g})" if samples.get("p20") is not None else ""
        why = "" if item["status"] == "measured" else f": {item['cause']}: {said(item)}"
        lines.append(f"{where}{item['name']}: {value}{spread}{why}")
    return lines
