#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Run GPU checks where the workload runs: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_gpu_checks
short_description: Run GPU checks on a host or inside its containers
description:
  - Ships one file and runs it in every running container with a GPU, or on the host where there is none. It measures;
    M(gpuhost_gate) judges.
  - Inside a roll it first starts the containers with GPUs that ran before, because only these can be measured.
  - Reads the host's baselines too, which M(gpuhost_gate) compares with. A file that can't be read stops it at once.
  - A required check that would fail the gate for its speed alone is measured a second time, and the better value of
    each figure counts; what was wrong, hung or missing once stays so.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run., type: str, required: true}
  plan: {description: Not used here; every step takes it., type: dict}
  archive: {description: 'The zipapp, base64; filled in by the action plugin.', type: str, required: true}
  checks: {description: Names of the checks., type: list, elements: str, required: true}
  required:
    description: Checks that have to pass; they are run too. Left out, nothing is going to be judged; empty is refused.
    type: list
    elements: str
  targets: {description: 'Containers to measure in, or V(host).', type: list, elements: str, default: []}
  python: {description: Interpreter of the workload., type: str, default: /usr/bin/python3}
  user:
    description: 'User of the workload, a name or a uid inside the target; empty: root.'
    type: str
    default: ''
  timeout_s: {description: Limit for one check., type: int, default: 120}
  expect: {description: As for M(gpuhost_gate)., type: dict, default: {}}
  tolerance: {description: As for M(gpuhost_gate)., type: dict, default: {}}
  first_run: {description: As for M(gpuhost_gate)., type: str, choices: ['', record], default: ''}
  baseline: {description: As for M(gpuhost_gate)., type: str, choices: [keep, replace], default: keep}
  require_p2p: {description: As for M(gpuhost_gate)., type: bool, default: false}
  quick: {description: Only what shows within seconds that something is broken., type: bool, default: false}
  decode:
    description: 'What the check decode measures: model, tp, context, batch; see M(gpuhost_decode_check).'
    type: dict
    default: {}
author: gpuhost
attributes:
  check_mode: {support: full, description: Says what would run and where; RV(targets) is empty.}
  diff_mode: {support: none, description: Changes nothing.}
"""

RETURN = r"""
targets: {description: Measurements and stale device rules by target., returned: success, type: dict}
lines: {description: 'What was measured twice, a line each.', returned: success, type: list, elements: str}
kernel: {description: The release that runs., returned: success, type: str}
driver: {description: 'The driver that is loaded; empty: none.', returned: success, type: str}
baselines: {description: 'The file of baselines but for its history; empty: none.', returned: success, type: dict}
"""

from typing import Any

from ansible.module_utils.gpuhost import check_runner, deadman, devices, steps, workloads
from ansible.module_utils.gpuhost.blockers import KNOWN_CHECKS
from ansible.module_utils.gpuhost.check_module import for_judge
from ansible.module_utils.gpuhost.errors import stop
from ansible.module_utils.gpuhost.expectations import RULES_ARGUMENTS, Rules
from ansible.module_utils.gpuhost.gate_time import longest_s
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module
from ansible.module_utils.gpuhost.rollfile import LOCK_FILE, LOCK_WAIT_S, Roll, load


def start_what_is_measured(host: Host, roll: Roll, wanted_targets: list[str]) -> list[str]:
    """Start the drained containers that have GPUs, and those that the inventory names."""
    with_gpu = {item["name"] for item in workloads.survey(host) if item["gpu"]} | set(wanted_targets)
    wanted = [item.name for item in roll.workloads if item.was_running and item.name in with_gpu]
    started = [name for name in wanted if workloads.start_container(host, name)]
    lines = [f"container {name} started for the gate" for name in started]
    return lines + workloads.wait_until_ready(host, started)


def checks_of(params: dict[str, Any]) -> list[str]:
    """What to run: what is asked for, and what has to pass. The judge names what nobody knows."""
    return [name for name in dict.fromkeys([*params["checks"], *(params["required"] or [])]) if name in KNOWN_CHECKS]


def order_of(params: dict[str, Any], archive: bytes) -> check_runner.Order:
    """The order for the runner."""
    names = ("python", "timeout_s", "user", "quick", "decode")
    return check_runner.Order(archive, checks_of(params), *(params[name] for name in names))


def measure(
    host: Host, params: dict[str, Any], gpus_before: tuple[str, ...], rules: Rules
) -> tuple[dict[str, Any], list[str]]:
    """Measurements and stale rules by target, and what was measured twice."""
    order = order_of(params, check_runner.place(host, params["archive"]))
    required = params["required"] or []
    return check_runner.measure_for_gate(host, order, params["targets"], gpus_before, required, rules)


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Measure, inside a roll or outside."""
    if params["required"] == []:
        raise stop("gate.nothing_required", "gpu_gate_required", "undefined or empty", "a list of checks")
    unknown = [name for name in params["checks"] if name not in KNOWN_CHECKS]
    if unknown:
        raise stop("gate.unknown_check", "gpu_gate_checks", ", ".join(unknown), f"one of {', '.join(KNOWN_CHECKS)}")
    roll = load(host)
    known, rules = for_judge(host, params)
    if check:
        lines = check_runner.intended(host, order_of(params, b""), params["targets"])
        return {"changed": False, "targets": {}, "lines": lines, **known}

    def gate(now: Roll) -> steps.Done:
        # A gate may take longer than the dead-man's deadline, and has a limit of its own.
        rest = (params["targets"], params["user"], params["timeout_s"])
        deadman.renew(host, longest_s(host, checks_of(params), params["required"] or [], *rest))
        devices.record_if_right(host)  # for the next boot, planned or not
        lines = start_what_is_measured(host, now, params["targets"])
        answers, again = measure(host, params, now.gpu_nodes_before, rules)
        found = check_runner.document(params["host_name"], params["run_id"], answers)
        # A container that was started is a change; what was measured twice is none.
        return steps.Done(now, (*lines, *again), (), (found,), bool(lines), {"targets": answers, **known})

    if roll is not None and roll.is_open:
        return steps.run_step(host, params, check, "gate", "measure", gate)
    with host.lock(LOCK_FILE, LOCK_WAIT_S):
        devices.record_if_right(host)
    answers, lines = measure(host, params, (), rules)
    found = check_runner.document(params["host_name"], params["run_id"], answers)
    return {"changed": False, "targets": answers, "lines": lines, "gpuhost_documents": [found], **known}


def main() -> None:
    """Run as a module."""
    arguments = {
        **steps.ARGUMENTS,
        "archive": {"type": "str", "required": True},
        "checks": {"type": "list", "elements": "str", "required": True},
        "required": {"type": "list", "elements": "str"},
        "targets": {"type": "list", "elements": "str", "default": []},
        "python": {"type": "str", "default": "/usr/bin/python3"},
        "user": {"type": "str", "default": ""},
        "timeout_s": {"type": "int", "default": 120},
        "quick": {"type": "bool", "default": False},
        **RULES_ARGUMENTS,
        "require_p2p": {"type": "bool", "default": False},
        "decode": {"type": "dict", "default": {}},
    }
    run_module(arguments, work)


if __name__ == "__main__":
    main()
