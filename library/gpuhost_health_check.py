#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Ask the driver and PCI how every GPU of a host is: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_health_check
short_description: Ask the driver and PCI how every GPU of a host is
description:
  - Faults since boot, ECC, row remapping, recovery action, throttling, the number of GPUs against PCI, link width
    and speed under load.
  - It is about the machine, so it runs on the host, with the Python that Ansible uses.
  - It measures, and no figure is too low for it, as M(gpuhost_gate) judges. It fails where a measurement is an error.
    What could not be measured (one GPU alone, no torch) is none, its status is V(not_measured), with a cause.
options:
  host_name: {description: 'Name in the document; empty: the host name.', type: str, default: ''}
  run_id: {description: Name of the run in the document., type: str, default: ''}
  archive: {description: 'The checks, base64; filled in by the action plugin.', type: str, required: true}
  timeout_s: {description: Seconds until the check is killed., type: int, default: 120}
  quick: {description: Only what shows within seconds that something is broken., type: bool, default: false}
  fail_on_error: {description: Whether a measurement that is an error fails the task., type: bool, default: true}
author: gpuhost
attributes:
  check_mode: {support: full, description: Says what would run and where; runs nothing.}
  diff_mode: {support: none, description: Changes nothing.}
"""

EXAMPLES = r"""
- name: Is any GPU of this host unwell?
  gpuhost_health_check:
"""

RETURN = r"""
targets: {description: Measurements by container or V(host)., returned: success, type: dict}
lines: {description: 'The measurements, a line each.', returned: success, type: list, elements: str}
"""

from ansible.module_utils.gpuhost.check_module import arguments, work_of
from ansible.module_utils.gpuhost.module import run_module

CHECK = "health"
work = work_of(CHECK)


def main() -> None:
    """Run as a module."""
    run_module(arguments(CHECK), work, needs_root=False)


if __name__ == "__main__":
    main()
