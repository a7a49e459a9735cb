#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Plan a roll for one host, on the controller: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_plan
short_description: Plan a kernel roll for one host
description:
  - Pure, run on the controller (C(delegate_to=localhost)). Gives the plan, and fails with the first blocker's line.
options:
  facts: {description: Facts of the host as M(gpuhost_facts) gives them., type: dict, required: true}
  run_id: {description: Name of the run., type: str, required: true}
  target: {description: 'Kernel release, or a prefix such as 6.12; empty continues a roll.', type: str, default: ""}
  rollback_to: {description: 'An older kernel to go back to, as O(target) has it; empty plans an upgrade.', type: str,
                default: ""}
  reboot_allowed: {description: The inventory's consent to a reboot., type: bool, default: false}
  needs_reboot: {description: False where only what needs no downtime is asked for., type: bool, default: true}
  gate_required: {description: Checks that the host must pass., type: list, elements: str, default: []}
  gate_targets: {description: 'Where the gate is to measure, if named.', type: list, elements: str, default: []}
  gate_checks: {description: Checks that the gate runs beside these., type: list, elements: str, default: []}
  gate_expect: {description: 'The gate''s limits, as M(gpuhost_gate) takes them.', type: dict, default: {}}
  gate_tolerance: {description: 'The gate''s tolerances, as M(gpuhost_gate) takes them.', type: dict, default: {}}
  gate_first_run: {description: V(record) where the gate is to record., type: str, default: ''}
  gate_baseline: {description: V(replace) where the gate is to record anew., type: str, default: keep}
  cmdline: {description: Kernel arguments to set; null removes a key and an empty string is a bare flag., type: dict,
            default: {}}
  modprobe_options: {description: Module options to set by module and key., type: dict, default: {}}
  retry_trial: {description: Allow one more trial boot of a kernel that came back., type: bool, default: false}
author: gpuhost
attributes:
  check_mode: {support: full, description: Plans the same in check mode.}
  diff_mode: {support: none, description: Changes nothing.}
"""

RETURN = r"""
plan: {description: The plan, schema gpuhost.plan., returned: always, type: dict}
"""

from typing import Any

from ansible.module_utils.gpuhost.blockers import Wishes
from ansible.module_utils.gpuhost.documents import as_dict
from ansible.module_utils.gpuhost.errors import Stop, stop
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module
from ansible.module_utils.gpuhost.plan import idle_outcome, make_plan
from ansible.module_utils.gpuhost.survey import BOOT_ID


def argument_value(key: str, value: Any) -> str | None:
    """A kernel argument as the inventory has it: true is a bare flag, false and null take the key away."""
    if value is None or value is False:
        return None
    if value is True:
        return ""
    if isinstance(value, (str, int, float)):
        return str(value)
    raise stop("input.invalid", f"boot_config_cmdline.{key}", f"{value!r}", "text, a number, true, false or null")


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Plan; a blocker is a failure that still carries the plan."""
    wishes = Wishes(
        target=params["rollback_to"] or params["target"],
        reboot_allowed=params["reboot_allowed"],
        gate_required=tuple(params["gate_required"]),
        gate_targets=tuple(params["gate_targets"]),
        gate_checks=tuple(params["gate_checks"]),
        gate_expect=params["gate_expect"],
        gate_tolerance=params["gate_tolerance"],
        gate_records=params["gate_first_run"] == "record" or params["gate_baseline"] == "replace",
        cmdline={key: argument_value(key, value) for key, value in params["cmdline"].items()},
        modprobe_options={
            module: {key: str(value) for key, value in options.items()}
            for module, options in params["modprobe_options"].items()
        },
        retry_trial=params["retry_trial"],
        needs_reboot=params["needs_reboot"],
    )
    back = bool(params["rollback_to"])
    plan = make_plan(params["facts"], wishes, params["run_id"], host.read_line(BOOT_ID), back)
    document = as_dict(plan)
    if plan.blockers:
        raise Stop(plan.blockers[0], (document,))
    documents = [document, as_dict(idle_outcome(plan))] if plan.nothing_to_do else [document]
    return {"changed": False, "plan": document, "gpuhost_documents": documents}


def main() -> None:
    """Run as a module."""
    run_module(
        {
            "facts": {"type": "dict", "required": True},
            "run_id": {"type": "str", "required": True},
            "target": {"type": "str", "default": ""},
            "rollback_to": {"type": "str", "default": ""},
            "reboot_allowed": {"type": "bool", "default": False},
            "needs_reboot": {"type": "bool", "default": True},
            "gate_required": {"type": "list", "elements": "str", "default": []},
            "gate_targets": {"type": "list", "elements": "str", "default": []},
            "gate_checks": {"type": "list", "elements": "str", "default": []},
            "gate_expect": {"type": "dict", "default": {}},
            "gate_tolerance": {"type": "dict", "default": {}},
            "gate_first_run": {"type": "str", "default": ""},
            "gate_baseline": {"type": "str", "default": "keep"},
            "cmdline": {"type": "dict", "default": {}},
            "modprobe_options": {"type": "dict", "default": {}},
            "retry_trial": {"type": "bool", "default": False},
        },
        work,
        needs_root=False,
    )


if __name__ == "__main__":
    main()
