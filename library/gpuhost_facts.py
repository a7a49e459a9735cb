#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Survey a host in one call: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_facts
short_description: Survey a GPU host in one read-only call
description:
  - Reads kernel, packages, kernel candidates, boot configuration, driver, device majors, containers and the roll file.
  - Where O(apt_max_age_s) says so apt's package lists are fetched first; nothing else on the host is ever changed.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run that the document belongs to., type: str, required: true}
  apt_max_age_s:
    description: Run C(apt-get update) first where the lists are older; -1 is never, as in check mode.
    type: int
    default: -1
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
    limit = params["apt_max_age_s"]
    facts = collect(host, params["host_name"], params["run_id"], None if check or limit < 0 else limit)
    return {"changed": False, "facts": facts, "gpuhost_documents": [facts]}


def main() -> None:
    """Run as a module."""
    run_module(
        {
            "host_name": {"type": "str", "required": True},
            "run_id": {"type": "str", "required": True},
            "apt_max_age_s": {"type": "int", "default": -1},
        },
        work,
    )


if __name__ == "__main__":
    main()
