#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Put back what was there before the first tune: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_tune_revert
short_description: Put everything back that tuning has changed on a host
description:
  - Restores each value, file and unit that tuning has changed, as it was before the first time, from the host's record.
  - What the host refuses is reported for itself and stays on record; the rest is put back.
  - On a host that was never tuned there is nothing to do.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run., type: str, required: true}
author: gpuhost
attributes:
  check_mode: {support: full, description: Says what would be put back and changes nothing.}
  diff_mode: {support: none, description: The lines say what comes back.}
"""

RETURN = r"""
lines: {description: 'What was put back, a line each.', returned: success, type: list, elements: str}
"""

from typing import Any

from ansible.module_utils.gpuhost import tune_revert, tune_step
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Put it back."""
    return tune_revert.revert(host, params["host_name"], params["run_id"], check)


def main() -> None:
    """Run as a module."""
    run_module(dict(tune_step.ARGUMENTS), work)


if __name__ == "__main__":
    main()
