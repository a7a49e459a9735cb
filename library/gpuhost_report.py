#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Write a run's report, on the controller: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_report
short_description: Write a run's report from its records
description:
  - Runs on the controller, in the Python environment that holds the gpuhost command.
options:
  runs: {description: Folder of the run records., type: path, required: true}
  run_id: {description: Name of the run., type: str, required: true}
author: gpuhost
attributes:
  check_mode: {support: full, description: "A report is no change to any host: it is written in check mode too."}
  diff_mode: {support: none, description: Changes nothing on a host.}
"""

RETURN = r"""
sentence: {description: Where the report is., returned: success, type: str}
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.gpuhost.errors import stop
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Write it."""
    try:
        from gpuhost_cli import report  # noqa: PLC0415 - only the controller's environment has it
    except ImportError as error:
        raise stop("input.invalid", "gpuhost_cli", str(error), "installed", "Run: make install") from error
    folder = Path(params["runs"]) / params["run_id"]
    if not (folder / "run.json").is_file():
        raise stop(
            "input.invalid", str(folder), "no run.json", "a run's folder", "Name a run with -e gpuhost_run=RUN_ID"
        )
    return {"changed": False, "sentence": f"report: {report.write(folder)}"}


def main() -> None:
    """Run as a module."""
    run_module(
        {"runs": {"type": "path", "required": True}, "run_id": {"type": "str", "required": True}},
        work,
        needs_root=False,
    )


if __name__ == "__main__":
    main()
