#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Say what is armed on a host: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_status
short_description: Say where a host stands and what is armed on it
description:
  - Roll, boot default, one-shot, dead-man, return service and holds, read in one call. Changes nothing.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run., type: str, required: true}
author: gpuhost
attributes:
  check_mode: {support: full, description: Reads the same in check mode.}
  diff_mode: {support: none, description: Changes nothing.}
"""

RETURN = r"""
lines: {description: What is so, a line each., returned: success, type: list, elements: str}
"""

from typing import Any

from ansible.module_utils.gpuhost import status
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Read it."""
    found = status.read(host, params["host_name"], params["run_id"])
    return {"changed": False, "lines": status.as_lines(found), "gpuhost_documents": [found]}


def main() -> None:
    """Run as a module."""
    run_module({"host_name": {"type": "str", "required": True}, "run_id": {"type": "str", "required": True}}, work)


if __name__ == "__main__":
    main()
