#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Give containers their GPU devices by driver name: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_lxc_devices
short_description: Reconcile containers' device rules with the running kernel's majors
description:
  - Makes device nodes that are missing, and rewrites only the major numbers of rules that are NVIDIA's.
  - Installs the unit that does so at every boot, before containers start.
  - With an open roll the step is logged in the roll file; without one it works all the same.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run., type: str, required: true}
  plan: {description: Not used here; every step takes it., type: dict}
  presumed:
    description: What to do with rules that are only presumed to be NVIDIA's.
    type: str
    choices: [report, apply]
    default: report
  style:
    description:
      - V(native) moves the NVIDIA mounts and rules of Proxmox's containers to C(devN:) entries, which have no number
        that could go stale. What they can't express is left as it is and said.
    type: str
    choices: [keep, native]
    default: keep
  restart:
    description: The consent to restart containers that run with rules from before a rewrite.
    type: bool
    default: false
  at_boot:
    description: What the host does by itself at every boot before containers start.
    type: str
    choices: [reconcile, nodes, nothing]
    default: nothing
  program: {description: 'Our own code for the host, base64; filled in by the action plugin.', type: str, default: ""}
author: gpuhost
attributes:
  check_mode: {support: full, description: Says what would change and changes nothing.}
  diff_mode: {support: full, description: Shows each config.}
"""

RETURN = r"""
lines: {description: 'What was changed, and what to know.', returned: success, type: list, elements: str}
"""

from typing import Any

from ansible.module_utils.gpuhost import devices, devices_unit, steps
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module
from ansible.module_utils.gpuhost.rollfile import LOCK_FILE, LOCK_WAIT_S, Roll, load


def reconcile(host: Host, params: dict[str, Any], check: bool) -> devices.Work:
    """Nodes and rules now, and the unit for the next boot."""
    unit = devices_unit.difference(host, params["at_boot"], params["program"])
    if unit and not check:
        devices_unit.apply(host, params["at_boot"], params["program"])
    wishes = devices.Wishes(params["presumed"], params["style"], params["restart"])
    found = devices.reconcile_host(host, params["host_name"], params["run_id"], wishes, check)
    return found.with_lines(unit) if unit else found


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Reconcile, inside a roll or outside."""
    roll = load(host)

    def step(now: Roll) -> steps.Done:
        found = reconcile(host, params, check)
        return steps.Done(now, found.said, found.diffs, (found.document,), found.changed)

    if roll is not None and roll.is_open:
        return steps.run_step(host, params, check, "reconcile", "device rules by driver name", step)
    if check:
        return _answer(reconcile(host, params, True))
    with host.lock(LOCK_FILE, LOCK_WAIT_S):
        return _answer(reconcile(host, params, False))


def _answer(found: devices.Work) -> dict[str, Any]:
    return {
        "changed": found.changed,
        "lines": list(found.said),
        "diff": list(found.diffs),
        "gpuhost_documents": [found.document],
    }


def main() -> None:
    """Run as a module."""
    arguments = {
        **steps.ARGUMENTS,
        "presumed": {"type": "str", "choices": ["report", "apply"], "default": "report"},
        "style": {"type": "str", "choices": ["keep", "native"], "default": "keep"},
        "restart": {"type": "bool", "default": False},
        "at_boot": {"type": "str", "choices": ["reconcile", "nodes", "nothing"], "default": "nothing"},
        "program": {"type": "str", "default": ""},
    }
    run_module(arguments, work)


if __name__ == "__main__":
    main()
