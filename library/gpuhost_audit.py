#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Say what is good on a host and what is not: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_audit
short_description: Compare a GPU host with what its tuning would set, and look at the rest of it
description:
  - Reads everything in one call and changes nothing. What the tuning modules would set is what is expected here.
  - Takes the parameters of each of them, by the same names and with the same defaults.
  - What can't be read, without root or without a driver, is said to be unknown, with the reason.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run., type: str, required: true}
  serving_flags:
    description: "What servers are meant to run with: a list of {match, flags}."
    type: list
    elements: dict
    default: []
  sysctl:
    description: As gpuhost_sysctl has them.
    type: dict
    required: true
    options:
      keys: {description: As there., type: dict, default: {}}
      target_release: {description: As there., type: str, default: ""}
  cpu:
    description: As gpuhost_cpu_tuning has them.
    type: dict
    required: true
    options:
      mode: {description: As there., type: str, choices: [active, passive, guided, keep], default: keep}
      governor: {description: As there., type: str, default: keep}
      epp: {description: As there., type: str, default: keep}
      boost: {description: As there., type: str, default: keep}
      max_idle_latency_us: {description: As there., type: int, default: -1}
      huge_pages: {description: As there., type: str, default: keep}
  gpu_runtime:
    description: As gpuhost_gpu_runtime has them.
    type: dict
    required: true
    options:
      persistence: {description: As there., type: bool, default: true}
      peermem: {description: As there., type: str, choices: [auto, load, leave], default: auto}
      memlock: {description: As there., type: str, choices: [report, apply], default: report}
      uvm_disable_hmm: {description: As there., type: bool, default: false}
      power_limit_w: {description: As there., type: float, default: 0}
      lock_clocks_mhz: {description: As there., type: list, elements: int, default: []}
      application_clocks_mhz: {description: As there., type: list, elements: int, default: []}
      mig_layout: {description: As there., type: dict, default: {}}
  pcie:
    description: As gpuhost_pcie has them.
    type: dict
    required: true
    options:
      max_read_request_bytes:
        description: As there.
        type: int
        choices: [0, 128, 256, 512, 1024, 2048, 4096]
        default: 4096
      bridges: {description: As there., type: bool, default: true}
      devices: {description: As there., type: list, elements: str, default: []}
author: gpuhost
attributes:
  check_mode: {support: full, description: Reads the same in check mode.}
  diff_mode: {support: none, description: Changes nothing.}
"""

RETURN = r"""
audit: {description: 'The findings, schema gpuhost.audit.', returned: success, type: dict}
"""

from typing import Any

from ansible.module_utils.gpuhost import audit, tune_step
from ansible.module_utils.gpuhost.documents import as_dict
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module

WISHES: dict[str, dict[str, Any]] = {
    "sysctl": {
        "keys": {"type": "dict", "default": {}},
        "target_release": {"type": "str", "default": ""},
    },
    "cpu": {
        "mode": {"type": "str", "choices": ["active", "passive", "guided", "keep"], "default": "keep"},
        "governor": {"type": "str", "default": "keep"},
        "epp": {"type": "str", "default": "keep"},
        "boost": {"type": "str", "default": "keep"},
        "max_idle_latency_us": {"type": "int", "default": -1},
        "huge_pages": {"type": "str", "default": "keep"},
    },
    "gpu_runtime": {
        "persistence": {"type": "bool", "default": True},
        "peermem": {"type": "str", "choices": ["auto", "load", "leave"], "default": "auto"},
        "memlock": {"type": "str", "choices": ["report", "apply"], "default": "report"},
        "uvm_disable_hmm": {"type": "bool", "default": False},
        "power_limit_w": {"type": "float", "default": 0},
        "lock_clocks_mhz": {"type": "list", "elements": "int", "default": []},
        "application_clocks_mhz": {"type": "list", "elements": "int", "default": []},
        "mig_layout": {"type": "dict", "default": {}},
    },
    "pcie": {
        "max_read_request_bytes": {"type": "int", "choices": [0, 128, 256, 512, 1024, 2048, 4096], "default": 4096},
        "bridges": {"type": "bool", "default": True},
        "devices": {"type": "list", "elements": "str", "default": []},
    },
}
"""Each concern's arguments are those of its own module; a test compares them."""


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Read it."""
    parts = audit.parts_of({name: params[name] for name in WISHES}, params["serving_flags"])
    found = as_dict(audit.collect(host, params["host_name"], params["run_id"], parts))
    return {"changed": False, "audit": found, "gpuhost_documents": [found]}


def main() -> None:
    """Run as a module."""
    groups = {name: {"type": "dict", "required": True, "options": options} for name, options in WISHES.items()}
    serving = {"serving_flags": {"type": "list", "elements": "dict", "default": []}}
    run_module({**tune_step.ARGUMENTS, **serving, **groups}, work, needs_root=False)


if __name__ == "__main__":
    main()
