#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Set kernel settings so that they hold after a boot: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_sysctl
short_description: Set kernel settings, and prove which file sets them at the next boot
description:
  - Writes one file in /etc/sysctl.d whose name sorts last, and each value that differs into the running kernel.
  - A key that the kernel does not have is skipped; one that it refuses is reported, and the others go on.
  - Files and programs of others that set the same keys are named and never touched.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run., type: str, required: true}
  keys: {description: "Key to value; null leaves a key of the defaults alone.", type: dict, default: {}}
  target_release:
    description: A kernel that the host is to boot later; its /boot/config-RELEASE says which keys it has.
    type: str
    default: ""
author: gpuhost
attributes:
  check_mode: {support: full, description: Says what would change and changes nothing.}
  diff_mode: {support: full, description: Shows the file.}
"""

RETURN = r"""
lines: {description: What differed and was changed, a line each., returned: success, type: list, elements: str}
"""

from typing import Any

from ansible.module_utils.gpuhost import sysctl, tune_step
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Look, write, look again."""
    wish = sysctl.wishes(params["keys"], params["target_release"])
    return tune_step.tune(host, params, check, sysctl.CONCERN, lambda: sysctl.wanted(sysctl.read(host, wish), wish))


def main() -> None:
    """Run as a module."""
    arguments = {
        **tune_step.ARGUMENTS,
        "keys": {"type": "dict", "default": {}},
        "target_release": {"type": "str", "default": ""},
    }
    run_module(arguments, work)


if __name__ == "__main__":
    main()
