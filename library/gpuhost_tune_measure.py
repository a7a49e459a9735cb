#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Measure what the settings of tuning do on a host: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_tune_measure
short_description: Measure what each runtime setting of tuning does on a host
description:
  - Turns each setting alone to its old and its new value in turns, and measures the host each time.
  - Says for each setting and benchmark the effect with its interval; that there is none is a result.
  - Puts everything back. A setting that is in force and does harm gets its old value, and RV(variables) leave it out.
  - Refuses on a host that is at work. Old values come back by a timer on the host where the measurement is killed.
  - O(state=before) and O(state=after) are for a tune between the two.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run., type: str, required: true}
  state:
    description: Measure each setting; or take samples before a tune; or compare with them after it.
    type: str
    choices: [measured, before, after]
    default: measured
  before: {description: The answer RV(before) of O(state=before)., type: dict, default: {}}
  sysctl: {description: What M(gpuhost_sysctl) takes., type: dict, required: true}
  cpu: {description: What M(gpuhost_cpu_tuning) takes., type: dict, required: true}
  gpu_runtime: {description: What M(gpuhost_gpu_runtime) takes., type: dict, required: true}
  pcie: {description: What M(gpuhost_pcie) takes., type: dict, required: true}
  knobs:
    description: "Names of settings, with * as a wildcard; all if empty."
    type: list
    elements: str
    default: []
  pairs: {description: How often old and new value are measured., type: int, default: 12}
  seconds: {description: Seconds of one sample of one benchmark., type: float, default: 0.15}
  smallest_percent: {description: A smaller effect counts as none., type: float, default: 1.0}
  gpu_checks: {description: GPU checks that are measured too., type: list, elements: str, default: [cuda]}
  under_load: {description: Whether to measure on a host that is at work., type: bool, default: false}
  keep_harmful: {description: Whether settings that do harm are kept., type: bool, default: false}
  without_timer: {description: Whether to measure where there is no systemd., type: bool, default: false}
  program: {description: 'Our own code for the host, base64; filled in by the action plugin.', type: str, default: ""}
  archive: {description: 'The GPU checks, base64; filled in by the action plugin.', type: str, default: ""}
author: gpuhost
attributes:
  check_mode: {support: full, description: Names the settings that would be measured; measures nothing.}
  diff_mode: {support: none, description: Nothing stays changed but what does harm.}
"""

RETURN = r"""
lines: {description: 'What was found, a line each.', returned: success, type: list, elements: str}
before: {description: What O(before) takes., returned: with state before, type: dict}
variables: {description: Role variables that leave out what does harm., returned: with state measured, type: dict}
"""

import base64
from collections.abc import Sequence
from typing import Any

from ansible.module_utils.gpuhost import (
    check_runner,
    concerns,
    tune_effects_text,
    tune_knobs,
    tune_measure,
    tune_verify,
)
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module
from ansible.module_utils.gpuhost.return_service import PROGRAM
from ansible.module_utils.gpuhost.tune_effects import KnobEffect
from ansible.module_utils.gpuhost.tune_knobs import Knob
from ansible.module_utils.gpuhost.tune_measure import Run
from ansible.module_utils.gpuhost.tune_sampler import Sampler


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Find the settings, measure them, say what was found."""
    order = tune_verify.order_of(params)
    looks = [(item.name, item.concern.domain, item.look_of(params[item.name])) for item in concerns.ALL]
    if check:
        knobs = tune_knobs.read(host, looks, params["knobs"])
        names = ", ".join(item.name for item in knobs) or "nothing"
        return {"changed": False, "lines": [f"to be measured, {order.pairs} pairs each: {names}"], "variables": {}}
    begun = host.clock()
    with tune_measure.started(host, order, _sampler(host, params)) as run:
        knobs = tune_knobs.read(host, looks, params["knobs"])
        if params["state"] == "before":
            return {"changed": False, "lines": [], "before": tune_verify.before(run, knobs)}
        if params["state"] == "after":
            return _answer(run, params, [tune_verify.after(run, params["before"])], (), begun)
        return _answer(run, params, tune_measure.measure(run, knobs), knobs, begun)


def _sampler(host: Host, params: dict[str, Any]) -> Sampler:
    """What measures, with the files that it and the timer need on the host."""
    program = base64.b64decode(params["program"])
    if program and host.read_bytes(PROGRAM) != program:
        host.write_atomic(PROGRAM, program, 0o755)
    archive = check_runner.place(host, params["archive"]) if params["archive"] and params["gpu_checks"] else b""
    return Sampler(host, params["seconds"], tuple(params["gpu_checks"]), archive)


def _answer(
    run: Run, params: dict[str, Any], found: Sequence[KnobEffect], knobs: Sequence[Knob], begun: float
) -> dict[str, Any]:
    mode = "verify" if params["state"] == "after" else "measure"
    names = (params["host_name"], params["run_id"])
    document = tune_measure.document(run, names, mode, found, knobs, run.host.clock() - begun)
    out = [knob for knob, item in zip(knobs, found, strict=bool(knobs)) if item.decision == "left out"]
    variables = tune_knobs.variables_without(out, params["sysctl"]["keys"])
    advice = [f"in the inventory: {name}: {value}" for name, value in variables.items()]
    return {
        "changed": any(knob.in_force and not item.in_force for knob, item in zip(knobs, found, strict=bool(knobs))),
        "lines": [*tune_effects_text.lines(document), *advice],
        "variables": variables,
        "gpuhost_documents": [document],
    }


def main() -> None:
    """Run as a module."""
    names: dict[str, Any] = {"type": "list", "elements": "str", "default": []}
    arguments: dict[str, Any] = {
        "host_name": {"type": "str", "required": True},
        "run_id": {"type": "str", "required": True},
        "state": {"type": "str", "choices": ["measured", "before", "after"], "default": "measured"},
        "before": {"type": "dict", "default": {}},
        **{item.name: {"type": "dict", "required": True} for item in concerns.ALL},
        "knobs": names,
        "pairs": {"type": "int", "default": 12},
        "seconds": {"type": "float", "default": 0.15},
        "smallest_percent": {"type": "float", "default": 1.0},
        "gpu_checks": {**names, "default": ["cuda"]},
        "under_load": {"type": "bool", "default": False},
        "keep_harmful": {"type": "bool", "default": False},
        "without_timer": {"type": "bool", "default": False},
        "program": {"type": "str", "default": ""},
        "archive": {"type": "str", "default": ""},
    }
    run_module(arguments, work)


if __name__ == "__main__":
    main()
