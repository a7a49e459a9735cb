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
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run., type: str, required: true}
  plan: {description: Not used here; every step takes it., type: dict}
  archive: {description: 'The zipapp, base64; filled in by the action plugin.', type: str, required: true}
  checks: {description: Names of the checks., type: list, elements: str, required: true}
  targets: {description: 'Containers to measure in, or V(host).', type: list, elements: str, default: []}
  python: {description: Interpreter of the workload., type: str, default: /usr/bin/python3}
  user:
    description: 'User of the workload, a name or a uid inside the target; empty: root.'
    type: str
    default: ''
  timeout_s: {description: Limit for one check., type: int, default: 120}
author: gpuhost
attributes:
  check_mode: {support: full, description: Runs nothing; RV(targets) is empty.}
  diff_mode: {support: none, description: Changes nothing.}
"""

RETURN = r"""
targets: {description: Measurements and stale device rules by target., returned: success, type: dict}
"""

from typing import Any

from ansible.module_utils.gpuhost import check_runner, deadman, devices, steps, workloads
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


def measure(host: Host, params: dict[str, Any], gpus_before: tuple[str, ...]) -> dict[str, Any]:
    """Measurements and stale rules by target."""
    archive = check_runner.place(host, params["archive"])
    order = check_runner.Order(archive, params["checks"], params["python"], params["timeout_s"], params["user"])
    return check_runner.measure_all(host, order, params["targets"], gpus_before)


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Measure, inside a roll or outside."""
    roll = load(host)
    release = host.read_line("/proc/sys/kernel/osrelease")
    if check:
        return {"changed": False, "targets": {}, "kernel": release, "checks": params["checks"]}

    def gate(now: Roll) -> steps.Done:
        # A gate may take longer than the dead-man's deadline, and has a limit of its own.
        places = 1 + len(params["targets"] or workloads.survey(host))
        checks = len(params["checks"]) + bool(params["user"])  # cuda may run once more, as root
        deadman.renew(host, places * (checks * params["timeout_s"] + 180))
        devices.record_if_right(host)  # for the next boot, planned or not
        lines = start_what_is_measured(host, now, params["targets"])
        answers = measure(host, params, now.gpu_nodes_before)
        found = check_runner.document(params["host_name"], params["run_id"], answers)
        return steps.Done(now, tuple(lines), documents=(found,), answer={"targets": answers, "kernel": release})

    if roll is not None and roll.is_open:
        return steps.run_step(host, params, check, "gate", "measure", gate)
    with host.lock(LOCK_FILE, LOCK_WAIT_S):
        devices.record_if_right(host)
    answers = measure(host, params, ())
    found = check_runner.document(params["host_name"], params["run_id"], answers)
    return {"changed": False, "targets": answers, "kernel": release, "gpuhost_documents": [found]}


def main() -> None:
    """Run as a module."""
    arguments = {
        **steps.ARGUMENTS,
        "archive": {"type": "str", "required": True},
        "checks": {"type": "list", "elements": "str", "required": True},
        "targets": {"type": "list", "elements": "str", "default": []},
        "python": {"type": "str", "default": "/usr/bin/python3"},
        "user": {"type": "str", "default": ""},
        "timeout_s": {"type": "int", "default": 120},
    }
    run_module(arguments, work)


if __name__ == "__main__":
    main()
