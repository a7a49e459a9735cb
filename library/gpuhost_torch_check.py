#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Compute on every GPU through the workload's own torch: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_torch_check
short_description: Compute on every GPU through the workload's own torch
description:
  - Takes the torch of the workload's interpreter. What CUDA alone can do says nothing about a torch that is too old.
  - It measures, and no figure is too low for it, as M(gpuhost_gate) judges. It fails where a measurement is an error.
    What could not be measured (one GPU alone, no torch) is none, its status is V(not_measured), with a cause.
extends_documentation_fragment: gpuhost_check
author: gpuhost
attributes:
  check_mode: {support: full, description: Says what would run and where; runs nothing.}
  diff_mode: {support: none, description: Changes nothing.}
"""

EXAMPLES = r"""
- name: Does the server's torch work with this driver?
  gpuhost_torch_check:
    target: inference
    python: /opt/venv/bin/python3
    user: llm
"""

RETURN = r"""
targets: {description: Measurements by container or V(host)., returned: success, type: dict}
lines: {description: 'The measurements, a line each.', returned: success, type: list, elements: str}
"""

from ansible.module_utils.gpuhost.check_module import arguments, work_of
from ansible.module_utils.gpuhost.module import run_module

CHECK = "torch"
work = work_of(CHECK)


def main() -> None:
    """Run as a module."""
    run_module(arguments(CHECK), work, needs_root=False)


if __name__ == "__main__":
    main()
