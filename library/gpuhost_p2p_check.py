#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Move data between every pair of GPUs, and compare it: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_p2p_check
short_description: Move data between every pair of GPUs, and compare it
description:
  - Copies by copy engines and by kernels, both ways, latency, and several transfers at once. Every copy's data is
    compared.
  - Each pair is a measurement of its own, with its link and the speed that is expected of it.
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
- name: Measure all pairs of GPUs on this machine
  gpuhost_p2p_check:
    target: host
  register: p2p

- name: Show the pairs
  ansible.builtin.debug:
    msg: "{{ p2p.lines }}"

- name: Look at a container in seconds, and go on whatever comes out
  gpuhost_p2p_check:
    target: inference
    quick: true
    fail_on_error: false
"""

RETURN = r"""
targets: {description: Measurements by container or V(host)., returned: success, type: dict}
lines: {description: 'The measurements, a line each.', returned: success, type: list, elements: str}
"""

from ansible.module_utils.gpuhost.check_module import arguments, work_of
from ansible.module_utils.gpuhost.module import run_module

CHECK = "p2p"
work = work_of(CHECK)


def main() -> None:
    """Run as a module."""
    run_module(arguments(CHECK), work, needs_root=False)


if __name__ == "__main__":
    main()
