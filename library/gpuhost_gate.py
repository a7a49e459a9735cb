#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Judge measurements, on the controller: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_gate
short_description: Judge GPU measurements; only a pass opens the gate
description:
  - Pure, run on the controller. Fails with the cause of the first required check that has not passed.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run., type: str, required: true}
  kernel: {description: Release that the measurements were taken on., type: str, required: true}
  required: {description: Checks that have to pass., type: list, elements: str, required: true}
  targets: {description: Measurements as M(gpuhost_gpu_checks) gives them., type: dict, required: true}
author: gpuhost
attributes:
  check_mode: {support: full, description: Judges the same in check mode.}
  diff_mode: {support: none, description: Changes nothing.}
"""

RETURN = r"""
verdict: {description: 'The gate as a whole, schema gpuhost.verdict.', returned: success, type: dict}
"""

from typing import Any

from ansible.module_utils.gpuhost.documents import Blocker, as_dict
from ansible.module_utils.gpuhost.errors import Stop
from ansible.module_utils.gpuhost.gate import judge
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Judge; a gate that does not pass is a failure that still carries the verdicts."""
    result = judge(params["host_name"], params["run_id"], params["kernel"], params["required"], params["targets"])
    document = as_dict(result)
    failed = next((item for item in result.verdicts if item.required and item.status != "pass"), None)
    if failed is not None:
        about = f"gate {failed.check} on {failed.target}"
        found = Blocker(failed.cause or "gate.not_measured", about, failed.observed, failed.expected, failed.next_step)
        raise Stop(found, (document,))
    return {"changed": False, "verdict": document, "sentence": result.sentence, "gpuhost_documents": [document]}


def main() -> None:
    """Run as a module."""
    run_module(
        {
            "host_name": {"type": "str", "required": True},
            "run_id": {"type": "str", "required": True},
            "kernel": {"type": "str", "required": True},
            "required": {"type": "list", "elements": "str", "required": True},
            "targets": {"type": "dict", "required": True},
        },
        work,
        needs_root=False,
    )


if __name__ == "__main__":
    main()
