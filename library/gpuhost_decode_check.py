#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Measure one decode step of a model and its parts: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_decode_check
short_description: Measure one decode step of a model and its parts
description:
  - One step of one rank as a CUDA graph, with random weights, and each of its parts alone, in the workload's own torch;
    what is left between their sum and the step; casts of a KV pool, launches and products in FP8 beside it. Takes less
    than a minute.
  - It measures, and no figure is too low for it, as M(gpuhost_gate) judges. It fails where a measurement is an error.
    What could not be measured is none, its status is V(not_measured), with a cause.
  - Where M(gpuhost_gate) would find it too slow it is measured once more, and the better value of each figure counts.
  - It needs the first GPU for itself, and takes at most half of its free memory; where the model does not fit in that
    it measures fewer layers, and says so.
options:
  quick: {description: 'Only the step as a whole, without its parts.', type: bool, default: false}
  model:
    description:
      - 'A preset: V(glm-5), V(deepseek-v3), V(kimi-k2), V(glm-4.5), V(glm-4.5-air), V(qwen3-235b-a22b),
        V(qwen3-30b-a3b) (the default), V(llama-3-8b), V(llama-3-70b); or the content of a Hugging Face config.json.'
    type: json
  tp: {description: 'GPUs that a replica is cut over; the step is that of one of them. Default 1.', type: int}
  context: {description: 'Tokens in the cache of each sequence. Default 4096.', type: int}
  batch: {description: 'Sequences decoded together. Default 1.', type: int}
  expect: {description: As for M(gpuhost_gate)., type: dict, default: {}}
  tolerance: {description: As for M(gpuhost_gate)., type: dict, default: {}}
  first_run: {description: As for M(gpuhost_gate)., type: str, choices: ['', record], default: ''}
  baseline: {description: As for M(gpuhost_gate)., type: str, choices: [keep, replace], default: keep}
extends_documentation_fragment: gpuhost_check
author: gpuhost
attributes:
  check_mode: {support: full, description: Says what would run and where; runs nothing.}
  diff_mode: {support: none, description: Changes nothing.}
"""

EXAMPLES = r"""
- name: Measure a decode step of the model that is served
  gpuhost_decode_check:
    target: inference
    python: /opt/venv/bin/python3
    model: "{{ lookup('file', 'config.json') }}"
    tp: 8
    context: 8192
"""

RETURN = r"""
targets: {description: Measurements by container or V(host)., returned: success, type: dict}
lines: {description: 'The measurements, a line each.', returned: success, type: list, elements: str}
kernel: {description: The release that runs., returned: success, type: str}
driver: {description: 'The driver that is loaded; empty: none.', returned: success, type: str}
baselines: {description: 'The file of baselines, as it is; empty: there is none.', returned: success, type: dict}
"""

from ansible.module_utils.gpuhost.check_module import arguments, work_for_gate
from ansible.module_utils.gpuhost.module import run_module

CHECK = "decode"
work = work_for_gate(CHECK)


def main() -> None:
    """Run as a module."""
    run_module(arguments(CHECK), work, needs_root=False)


if __name__ == "__main__":
    main()
