#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""What CUDA needs of a host at run time, and what GPUs forget at a reboot: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_gpu_runtime
short_description: Set what CUDA needs of a host at run time, and keep what GPUs forget at a reboot
description:
  - nvidia-persistenced and persistence mode, nvidia-peermem, memlock, and declared limits, clocks and MIG layouts.
  - What is declared and lies outside of a card's own range is refused before anything is set.
  - MIG mode is never switched, and MIG instances of others are never removed.
  - Records the GPUs' state, so that what the next reboot loses can be named.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run., type: str, required: true}
  persistence: {description: Whether persistence mode is wanted., type: bool, default: true}
  peermem:
    description: When nvidia-peermem is loaded.
    type: str
    choices: [auto, load, leave]
    default: auto
  memlock:
    description: What is done about memlock limits of containers and services with GPUs.
    type: str
    choices: [report, apply]
    default: report
  uvm_disable_hmm: {description: Whether HMM is expected to be off., type: bool, default: false}
  power_limit_w: {description: Power limit of every GPU in W; 0 declares none., type: float, default: 0}
  lock_clocks_mhz:
    description: One graphics clock, or the lowest and the highest.
    type: list
    elements: int
    default: []
  application_clocks_mhz: {description: "Memory clock, graphics clock.", type: list, elements: int, default: []}
  mig_layout: {description: "GPU (index, address or all) to the profiles of its instances.", type: dict, default: {}}
  program: {description: 'Our own code for the host, base64; filled in by the action plugin.', type: str, default: ""}
author: gpuhost
attributes:
  check_mode: {support: full, description: Says what would change and changes nothing.}
  diff_mode: {support: full, description: Shows each file.}
"""

RETURN = r"""
lines: {description: 'What was changed, a line each.', returned: success, type: list, elements: str}
"""

from dataclasses import asdict
from typing import Any

from ansible.module_utils.gpuhost import gpu_runtime, gpu_state_unit, tune_step
from ansible.module_utils.gpuhost.documents import make_head
from ansible.module_utils.gpuhost.errors import Stop, stop
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module
from ansible.module_utils.gpuhost.tuning import Wanted, document


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Look, refuse what no card can have, write, look again, and keep the state that was seen last."""
    wish = _wishes(params)
    facts = [gpu_runtime.read(host)]
    first = iter(facts[:])
    refused = gpu_runtime.refusals(facts[0], wish)
    if refused:
        head = asdict(make_head("tune", params["host_name"], params["run_id"]))
        found = document((), gpu_runtime.wanted(facts[0], wish))
        raise Stop(refused[0], ({**head, "concern": gpu_runtime.CONCERN.name, **found},))
    due = gpu_runtime.wanted(facts[0], wish).writes
    line = gpu_state_unit.program_line(host, due, params["program"], check)

    def look() -> Wanted:
        facts.append(next(first, None) or gpu_runtime.read(host))
        return gpu_runtime.wanted(facts[-1], wish)

    answer = tune_step.tune(host, params, check, gpu_runtime.CONCERN, look)
    if not check:
        gpu_runtime.remember(host, facts[-1])
    if line:
        answer |= {"changed": True, "lines": [line, *answer["lines"]]}
    return answer


def _wishes(params: dict[str, Any]) -> gpu_runtime.Wishes:
    try:
        return gpu_runtime.wishes(params)
    except (TypeError, ValueError, AttributeError) as error:
        raise stop("input.invalid", "gpu_runtime", str(error)) from error


def main() -> None:
    """Run as a module."""
    arguments = {
        **tune_step.ARGUMENTS,
        "persistence": {"type": "bool", "default": True},
        "peermem": {"type": "str", "choices": ["auto", "load", "leave"], "default": "auto"},
        "memlock": {"type": "str", "choices": ["report", "apply"], "default": "report"},
        "uvm_disable_hmm": {"type": "bool", "default": False},
        "power_limit_w": {"type": "float", "default": 0},
        "lock_clocks_mhz": {"type": "list", "elements": "int", "default": []},
        "application_clocks_mhz": {"type": "list", "elements": "int", "default": []},
        "mig_layout": {"type": "dict", "default": {}},
        "program": {"type": "str", "default": ""},
    }
    run_module(arguments, work)


if __name__ == "__main__":
    main()
