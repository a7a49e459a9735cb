#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Measure matrix multiplications on every GPU: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_gemm_check
short_description: Measure matrix multiplications on every GPU
description:
  - Rates in the number formats that the GPU has, and the small shapes of decoding, compared with a reference in
    float64. Needs torch in the workload's interpreter.
  - It measures, and no figure is too low for it, as M(gpuhost_gate) judges. It fails where a measurement is an error.
    What could not be measured (one GPU alone, no torch) is none, its status is V(not_measured), with a cause.
  - It needs the GPUs for itself, so that of several on one host each waits for the others.
extends_documentation_fragment: gpuhost_check
author: gpuhost
attributes:
  check_mode: {support: full, description: Says what would run and where; runs nothing.}
  diff_mode: {support: none, description: Changes nothing.}
"""

EXAMPLES = r"""
- name: Measure matrix multiplications with a server's own torch
  gpuhost_gemm_check:
    target: inference
    python: /opt/venv/bin/python3
"""

RETURN = r"""
targets: {description: Measurements by container or V(host)., returned: success, type: dict}
lines: {description: 'The measurements, a line each.', returned: success, type: list, elements: str}
"""

from ansible.module_utils.gpuhost.check_module import arguments, work_of
from ansible.module_utils.gpuhost.module import run_module

CHECK = "gemm"
work = work_of(CHECK)


def main() -> None:
    """Run as a module."""
    run_module(arguments(CHECK), work, needs_root=False)


if __name__ == "__main__":
    main()
