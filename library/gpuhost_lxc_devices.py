#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Give containers their GPU devices by driver name: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_lxc_devices
short_description: Reconcile containers' device rules with the running kernel's majors
description:
  - Makes device nodes that are missing, and rewrites only the major numbers of rules that are NVIDIA's.
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
author: gpuhost
attributes:
  check_mode: {support: full, description: Says what would change and changes nothing.}
  diff_mode: {support: full, description: Shows each config.}
"""

RETURN = r"""
lines: {description: What differed and was changed, a line each., returned: success, type: list, elements: str}
"""

from typing import Any

from ansible.module_utils.gpuhost import devices, steps
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module
from ansible.module_utils.gpuhost.rollfile import Roll, load


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Reconcile, inside a roll or outside."""
    name, run_id, presumed = params["host_name"], params["run_id"], params["presumed"]
    roll = load(host)

    def reconcile(now: Roll) -> steps.Done:
        found = devices.reconcile_host(host, name, run_id, presumed, check)
        return steps.Done(now, found.lines, found.diffs, (found.document,))

    if roll is not None and roll.is_open:
        return steps.run_step(host, params, check, "reconcile", "device rules by driver name", reconcile)
    found = devices.reconcile_host(host, name, run_id, presumed, check)
    return {
        "changed": found.changed,
        "lines": list(found.lines),
        "diff": list(found.diffs),
        "gpuhost_documents": [found.document],
    }


def main() -> None:
    """Run as a module."""
    arguments = {
        **steps.ARGUMENTS,
        "presumed": {"type": "str", "choices": ["report", "apply"], "default": "report"},
    }
    run_module(arguments, work)


if __name__ == "__main__":
    main()
