#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Keep what a passed gate has measured, on the host: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_baseline
short_description: Keep what a passed gate has measured
description:
  - Writes /var/lib/gpuhost/baselines.json with what M(gpuhost_gate) says becomes a baseline, and keeps the values of
    the last passed gates beside it. A baseline that is there stays as it is unless the gate was told to replace it.
  - Where nobody has asked for a baseline yet, nothing is written.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  update: {description: The answer RV(gpuhost_gate#module:to_keep)., type: dict, required: true}
author: gpuhost
attributes:
  check_mode: {support: full, description: Says what would become a baseline.}
  diff_mode: {support: full, description: Shows old and new baselines.}
"""

RETURN = r"""
lines: {description: 'What became a baseline, a line each target.', returned: success, type: list, elements: str}
"""

from typing import Any

from ansible.module_utils.gpuhost import baselines
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module
from ansible.module_utils.gpuhost.rollfile import LOCK_FILE, LOCK_WAIT_S


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Merge into the file as it is now, under the host's lock. Only a changed baseline counts as a change."""
    update = baselines.update_from_dict(params["update"])
    if check:
        return _answer(_read(host), update)
    with host.lock(LOCK_FILE, LOCK_WAIT_S):
        before = _read(host)
        after = baselines.merged(before, update, params["host_name"])
        if after is not None:
            baselines.write(host, after)
    return _answer(before, update)


def _read(host: Host) -> baselines.Baselines | None:
    raw = baselines.read(host)
    return None if raw is None else baselines.from_dict(raw)


def _answer(before: baselines.Baselines | None, update: baselines.Update) -> dict[str, Any]:
    lines, diff = baselines.described(before, update)
    return {"changed": update.changes_baseline, "lines": lines, "diff": diff}


def main() -> None:
    """Run as a module."""
    arguments: dict[str, Any] = {
        "host_name": {"type": "str", "required": True},
        "update": {"type": "dict", "required": True},
    }
    run_module(arguments, work)


if __name__ == "__main__":
    main()
