#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Install the target kernel and its headers: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_kernel_upgrade
short_description: Install a kernel and its headers in one shown transaction
description:
  - Simulates apt with exact versions, refuses what would break the host, then installs kernel and headers together.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run., type: str, required: true}
  plan: {description: 'The plan, which opens the roll where none is open.', type: dict}
  apt_lock_timeout_s: {description: How long apt waits for its lock., type: int, default: 600}
  timeout_s: {description: 'Limit for the installation, DKMS builds included.', type: int, default: 3600}
author: gpuhost
attributes:
  check_mode: {support: full, description: Says what would change and changes nothing.}
  diff_mode: {support: none, description: RV(lines) lists the packages.}
"""

RETURN = r"""
lines: {description: What differed and was changed, a line each., returned: success, type: list, elements: str}
"""

from dataclasses import replace
from typing import Any

from ansible.module_utils.gpuhost import kernel, packages, steps
from ansible.module_utils.gpuhost.documents import Target
from ansible.module_utils.gpuhost.errors import stop
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module
from ansible.module_utils.gpuhost.rollfile import Roll


def prove_files(host: Host, target: Target) -> None:
    """Raises Stop(target.incomplete) where dpkg has a kernel of which somebody has deleted the files."""
    places = (f"/boot/vmlinuz-{target.release}", f"/lib/modules/{target.release}")
    gone = [path for path in places if not host.exists(path)]
    if gone:
        observed = f"dpkg has it installed, but {' and '.join(gone)} do not exist"
        again = f"apt-get install --reinstall {target.image_package}={target.image_version}"
        way_out = f"Install it again: {again}"
        raise stop("target.incomplete", target.image_package, observed, "image and modules", way_out)


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Simulate, then install unless in check mode."""

    def install(roll: Roll) -> steps.Done:
        target = Target(**roll.plan["target"])
        lines = [] if check else packages.finish_interrupted(host, target, params["timeout_s"])
        simulation = packages.simulate(host, target, params["apt_lock_timeout_s"])
        if simulation.changes and not check:
            packages.install(host, target, params["apt_lock_timeout_s"], params["timeout_s"])
        if not (simulation.changes and check):
            prove_files(host, target)
        lines += simulation.lines
        if kernel.is_older(target.release, roll.running_before) and not check:
            # apt's autoremove takes the older kernels first.
            held = packages.keep(host, target.release)
            roll = replace(roll, kept_packages=(*roll.kept_packages, *held))
            lines += [f"packages held: {', '.join(held)}"] if held else []
        return steps.Done(roll, tuple(lines))

    return steps.run_step(host, params, check, "prepare", "install kernel and headers", install)


def main() -> None:
    """Run as a module."""
    arguments = {
        **steps.ARGUMENTS,
        "apt_lock_timeout_s": {"type": "int", "default": 600},
        "timeout_s": {"type": "int", "default": 3600},
    }
    run_module(arguments, work)


if __name__ == "__main__":
    main()
