#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Survey a host in one call: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_facts
short_description: Survey a GPU host in one read-only call
description:
  - Reads kernel, packages, kernel candidates, boot configuration, driver, device majors, containers and the roll file.
  - With O(refresh_apt=true) apt's package lists are fetched first; nothing else on the host is ever changed.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run that the document belongs to., type: str, required: true}
  refresh_apt: {description: Run C(apt-get update) first. Never done in check mode., type: bool, default: false}
author: gpuhost
attributes:
  check_mode: {support: full, description: Reads the same in check mode.}
  diff_mode: {support: none, description: Changes nothing.}
"""

RETURN = r"""
facts: {description: The facts, schema gpuhost.facts., returned: success, type: dict}
"""

from typing import Any

from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module
from ansible.module_utils.gpuhost.survey import collect


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Collect the facts."""
    facts = collect(host, params["host_name"], params["run_id"], params["refresh_apt"] and not check)
    return {"changed": False, "facts": facts, "gpuhost_documents": [facts]}


def main() -> None:
    """Run as a module."""
    run_module(
        {
            "host_name": {"type": "str", "required": True},
            "run_id": {"type": "str", "required": True},
            "refresh_apt": {"type": "bool", "default": False},
        },
        work,
    )


if __name__ == "__main__":
    main()
