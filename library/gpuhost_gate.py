#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Judge measurements, on the controller: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_gate
short_description: Judge GPU measurements; only a pass opens the gate
description:
  - Pure, run on the controller. Fails with the cause of the first required check that has not passed.
  - A value is held against the inventory's word (O(expect)), else this host's own baseline, else what arithmetic says
    of its link. A required check that has none of these does not pass.
  - After a pass M(gpuhost_baseline) keeps RV(to_keep) on the host.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run., type: str, required: true}
  kernel: {description: Release that the measurements were taken on., type: str, required: true}
  driver: {description: Version of the driver that they were taken on., type: str, default: ''}
  required: {description: Checks that have to pass., type: list, elements: str, required: true}
  targets: {description: Measurements as M(gpuhost_gpu_checks) gives them., type: dict, required: true}
  baselines: {description: Baselines of the host as M(gpuhost_gpu_checks) gives them., type: dict, default: {}}
  expect: {description: 'Limits by name or pattern: min, max or both, or min_share.', type: dict, default: {}}
  tolerance: {description: 'Percent by unit, or by name or pattern of a measurement.', type: dict, default: {}}
  first_run:
    description: V(record) lets values without an expectation pass, and makes them the baseline.
    type: str
    choices: ['', record]
    default: ''
  baseline:
    description: V(replace) holds nothing against the old baseline, and makes everything that was measured the new one.
    type: str
    choices: [keep, replace]
    default: keep
  require_p2p: {description: Whether every pair of GPUs has to reach each other's memory., type: bool, default: false}
  quick: {description: Whether the checks ran their quick part only., type: bool, default: false}
author: gpuhost
attributes:
  check_mode: {support: full, description: Judges the same in check mode.}
  diff_mode: {support: none, description: Changes nothing.}
"""

RETURN = r"""
verdict: {description: 'The gate as a whole, schema gpuhost.verdict.', returned: success, type: dict}
sentence: {description: The gate in one sentence., returned: success, type: str}
lines: {description: 'What was held against what, a line each.', returned: success, type: list, elements: str}
to_keep: {description: What M(gpuhost_baseline) is to keep., returned: success, type: dict}
"""

from dataclasses import asdict
from typing import Any

from ansible.module_utils.gpuhost import expectations, gate, gate_text
from ansible.module_utils.gpuhost.documents import Blocker, as_dict
from ansible.module_utils.gpuhost.errors import Stop
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Judge; a gate that does not pass is a failure that still carries the verdicts."""
    rules, targets = expectations.rules_of(params, params["baselines"], params["driver"]), params["targets"]
    result = gate.judge(params["host_name"], params["run_id"], params["kernel"], params["required"], targets, rules)
    document = as_dict(result)
    failed = next((item for item in result.verdicts if item.required and item.status != "pass"), None)
    if failed is not None:
        about = f"gate {failed.check} on {failed.target}"
        found = Blocker(failed.cause or "gate.not_measured", about, failed.observed, failed.expected, failed.next_step)
        raise Stop(found, (document,))
    return {
        "changed": False,
        "verdict": document,
        "sentence": result.sentence,
        "lines": [*result.notes, *gate_text.table(result.comparisons)],
        "to_keep": asdict(gate.update_for(result, targets, rules)),
        "gpuhost_documents": [document],
    }


def main() -> None:
    """Run as a module."""
    run_module(
        {
            "host_name": {"type": "str", "required": True},
            "run_id": {"type": "str", "required": True},
            "kernel": {"type": "str", "required": True},
            "driver": {"type": "str", "default": ""},
            "required": {"type": "list", "elements": "str", "required": True},
            "targets": {"type": "dict", "required": True},
            "baselines": {"type": "dict", "default": {}},
            **expectations.RULES_ARGUMENTS,
            "require_p2p": {"type": "bool", "default": False},
            "quick": {"type": "bool", "default": False},
        },
        work,
        needs_root=False,
    )


if __name__ == "__main__":
    main()
