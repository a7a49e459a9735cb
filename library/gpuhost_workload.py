#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Stop, remember, hold and hand back what runs on a host: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_workload
short_description: Drain a host's workloads, or hand the host back
description:
  - V(drained) remembers what runs in the roll file, holds autostart off, and stops it. One that does not stop in time
    fails the drain, and what had been stopped starts again. From here on the host can come back by itself.
  - Containers of plain LXC and of Proxmox. Virtual machines, guests under Proxmox's HA manager, other containers and a
    node without quorum block a drain before anything is stopped.
  - V(handed_back) starts what ran before in its order, proves that it runs, lifts the hold, and closes the roll.
    The host may have done so by itself, after a power cut behind the promotion.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run., type: str, required: true}
  plan: {description: 'The plan, for check mode.', type: dict}
  state: {description: What to reach., type: str, choices: [drained, handed_back], required: true}
  sentence: {description: How the roll ended, for the roll file., type: str, default: ''}
  timeout_s: {description: Limit for one workload to stop., type: int, default: 300}
  program: {description: 'Our own code for the host, base64; filled in by the action plugin.', type: str, default: ""}
  archive: {description: 'The checks, base64; filled in by the action plugin.', type: str, default: ""}
author: gpuhost
attributes:
  check_mode: {support: full, description: Says what would change and changes nothing.}
  diff_mode: {support: none, description: The lines say it.}
"""

RETURN = r"""
lines: {description: What differed and was changed, a line each., returned: success, type: list, elements: str}
"""

from dataclasses import replace
from typing import Any

from ansible.module_utils.gpuhost import (
    check_runner,
    containers,
    devices,
    handback,
    homecoming,
    return_service,
    steps,
    workloads,
)
from ansible.module_utils.gpuhost.documents import as_dict
from ansible.module_utils.gpuhost.errors import Stop, stop
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module
from ansible.module_utils.gpuhost.rollfile import Roll, load, save

RUNNING = "/proc/sys/kernel/osrelease"


def drain(host: Host, params: dict[str, Any], check: bool, roll: Roll) -> steps.Done:
    """Remember first, hold second, stop last: a controller that dies in between leaves a roll that knows.

    The return service is there before the hold is: a host that loses its power now has nobody else to lift it.
    """
    if roll.is_promoted(host.read_line(RUNNING)):
        return steps.Done(roll)  # a rerun that has only the hand back left
    roll = replace(roll, workloads=workloads.remembered(host, roll))
    blockers = workloads.in_the_way(host)
    if blockers:
        raise Stop(blockers[0])
    if check:
        running = containers.running(host)
        names = [item.name for item in roll.workloads if item.name in running]
        return steps.Done(roll, tuple(f"container {name} would be stopped" for name in names))
    save(host, roll)
    return_service.install(host, params["program"], check_runner.ARCHIVE, params["archive"])
    devices.record_if_right(host)
    workloads.hold(host)
    try:
        roll, lines = workloads.drain(host, roll, params["timeout_s"])
    except Stop:
        workloads.release(host)
        return_service.remove(host)
        raise
    return steps.Done(roll, tuple(lines))


def hand_back(host: Host, params: dict[str, Any], check: bool, roll: Roll) -> steps.Done:
    """Start what ran, lift the hold, close the roll."""
    if check:
        names = [item.name for item in roll.workloads or workloads.take_inventory(host) if item.was_running]
        return steps.Done(roll, tuple(f"container {name} would be started" for name in names))
    running = host.read_line(RUNNING)
    if not roll.is_promoted(running):
        raise stop(
            "roll.not_promoted", roll.target, f"{running} runs, promoted: {roll.promoted_at or 'no'}", "promoted"
        )
    found = handback.hand_back(host, roll, params["host_name"], params["run_id"], params["sentence"])
    return steps.Done(found.roll, found.lines, documents=found.documents)


def after_the_end(host: Host, roll: Roll) -> dict[str, Any]:
    """What the host has done by itself, for a controller that comes later."""
    line = f"the host was handed back by itself at {roll.closed_at}"
    documents = [*homecoming.read_record(host), as_dict(roll), as_dict(homecoming.outcome_of(roll))]
    return {"changed": False, "lines": [line], "gpuhost_documents": documents}


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Drain or hand back."""
    if params["state"] == "drained":
        name, stage, action = "stop and remember", "drain", drain
    else:
        name, stage, action = "start what ran before", "hand_back", hand_back
    late = params["state"] == "handed_back" and not check
    try:
        return steps.run_step(
            host,
            params,
            check,
            stage,
            name,
            lambda roll: action(host, params, check, roll),
            wait_s=homecoming.LOCK_S if late else 0,
        )
    except Stop as error:
        run_ids = {(params["plan"] or {}).get("run_id")}
        ended = homecoming.ended_by_host(load(host), run_ids, "good") if late else None
        if ended is None or error.blocker.cause != "roll.not_open":
            raise
        return after_the_end(host, ended)


def main() -> None:
    """Run as a module."""
    arguments = {
        **steps.ARGUMENTS,
        "state": {"type": "str", "choices": ["drained", "handed_back"], "required": True},
        "sentence": {"type": "str", "default": ""},
        "timeout_s": {"type": "int", "default": 300},
        "program": {"type": "str", "default": ""},
        "archive": {"type": "str", "default": ""},
    }
    run_module(arguments, work)


if __name__ == "__main__":
    main()
