#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Set MaxReadReq of GPUs and the bridges above them, and keep it: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_pcie
short_description: Set PCIe MaxReadReq of GPUs and the bridges above them, and keep it
description:
  - Writes bits 14:12 of Device Control and no other, through the kernel's files, and reads them back.
  - Installs a unit for every boot, and udev rules for a driver that binds anew and for a GPU back from a PCIe error.
  - What a device or the kernel does not take is reported for itself and keeps none of the others back.
  - What was there before the first time is on record, and can be put back.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run., type: str, required: true}
  max_read_request_bytes:
    description: The size. 0 leaves it as it is, and takes away what kept another one.
    type: int
    choices: [0, 128, 256, 512, 1024, 2048, 4096]
    default: 4096
  bridges:
    description: Whether the bridges above each GPU are set too, up to its root port.
    type: bool
    default: true
  devices:
    description: Full addresses of the GPUs, domain and all. Empty means every GPU that the nvidia driver has.
    type: list
    elements: str
    default: []
  program: {description: 'Our own code for the host, base64; filled in by the action plugin.', type: str, default: ""}
author: gpuhost
attributes:
  check_mode: {support: full, description: Says what would change and changes nothing.}
  diff_mode: {support: full, description: Shows each file.}
"""

RETURN = r"""
lines: {description: 'What was changed, a line each.', returned: success, type: list, elements: str}
"""

from typing import Any

from ansible.module_utils.gpuhost import pcie, pcie_unit, tune_step
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module
from ansible.module_utils.gpuhost.tuning import Wanted


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """The program first: once the unit and the rules are there, they may start it at any moment."""
    wishes = pcie.wishes(params)

    def look() -> Wanted:
        return pcie.wanted(pcie.read(host), wishes)

    line = pcie_unit.program_line(host, look().writes, params["program"], check)
    answer = tune_step.tune(host, params, check, pcie.CONCERN, look)
    if line:
        answer |= {"changed": True, "lines": [line, *answer["lines"]]}
    return answer


def main() -> None:
    """Run as a module."""
    arguments = {
        **tune_step.ARGUMENTS,
        "max_read_request_bytes": {
            "type": "int",
            "choices": [0, 128, 256, 512, 1024, 2048, 4096],
            "default": 4096,
        },
        "bridges": {"type": "bool", "default": True},
        "devices": {"type": "list", "elements": "str", "default": []},
        "program": {"type": "str", "default": ""},
    }
    run_module(arguments, work)


if __name__ == "__main__":
    main()
