#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Set the CPUs' frequency and idle states so that they hold after a boot: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_cpu_tuning
short_description: Set governor, energy preference, boost, idle states by latency and huge pages
description:
  - Sets what differs, and installs a unit that sets it again at every boot and when a CPU comes online.
  - Idle states are chosen by the latency that the kernel gives for them, never by their number.
  - Where there is no frequency scaling and no idle state, as in most virtual machines, it says so.
  - Another scaling driver needs a kernel argument and a boot; the finding names the variable of the role boot_config.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run., type: str, required: true}
  mode:
    description: Mode of amd_pstate or intel_pstate that is expected.
    type: str
    choices: [active, passive, guided, keep]
    default: keep
  governor: {description: Frequency governor; keep leaves it., type: str, default: keep}
  epp: {description: Energy preference; keep leaves it., type: str, default: keep}
  boost: {description: Boost above the base frequency; keep leaves it., type: str, default: keep}
  max_idle_latency_us:
    description: Idle states that take longer to leave are switched off; -1 leaves all.
    type: int
    default: -1
  huge_pages: {description: Transparent huge pages; keep leaves them., type: str, default: keep}
author: gpuhost
attributes:
  check_mode: {support: full, description: Says what would change and changes nothing.}
  diff_mode: {support: full, description: Shows the files.}
"""

RETURN = r"""
lines: {description: What differed and was changed, a line each., returned: success, type: list, elements: str}
"""

from typing import Any

from ansible.module_utils.gpuhost import cpu_tuning, tune_step
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Look, write, look again."""
    wish = cpu_tuning.wishes(params)
    answer = tune_step.tune(
        host, params, check, cpu_tuning.CONCERN, lambda: cpu_tuning.wanted(cpu_tuning.read(host), wish)
    )
    cpu_tuning.reload_units(host, bool(answer["diff"]) and not check)
    return answer


def main() -> None:
    """Run as a module."""
    arguments = {
        **tune_step.ARGUMENTS,
        "mode": {"type": "str", "choices": ["active", "passive", "guided", "keep"], "default": "keep"},
        "governor": {"type": "str", "default": "keep"},
        "epp": {"type": "str", "default": "keep"},
        "boost": {"type": "str", "default": "keep"},
        "max_idle_latency_us": {"type": "int", "default": -1},
        "huge_pages": {"type": "str", "default": "keep"},
    }
    run_module(arguments, work)


if __name__ == "__main__":
    main()
