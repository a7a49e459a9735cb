#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Set kernel arguments, module options, initramfs and boot entry of the target: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_boot_config
short_description: Configure the target kernel's boot, and leave the fallback's alone
description:
  - Kernel arguments are replaced by key in C(/etc/kernel/cmdline); module options are one file of ours.
  - Initramfs and boot entry are made again for the target kernel only, and only where something differs.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run., type: str, required: true}
  plan: {description: 'The plan, which opens the roll where none is open.', type: dict}
  rebuild: {description: False writes the files only., type: bool, default: true}
  timeout_s: {description: Limit for the initramfs., type: int, default: 1800}
author: gpuhost
attributes:
  check_mode: {support: full, description: Says what would change and changes nothing.}
  diff_mode: {support: full, description: Shows the files.}
"""

RETURN = r"""
lines: {description: What differed and was changed, a line each., returned: success, type: list, elements: str}
"""

from dataclasses import replace
from typing import Any

from ansible.module_utils.gpuhost import boot_config, loaders, steps
from ansible.module_utils.gpuhost.boot import FileChange
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module
from ansible.module_utils.gpuhost.rollfile import ChangedFile, Roll, save


def remembered(roll: Roll, changes: list[FileChange]) -> dict[str, ChangedFile]:
    """What a host that goes back gets back: the text before the roll's first change, and what it is now."""
    return {
        change.path: ChangedFile(
            roll.files_changed[change.path].before if change.path in roll.files_changed else change.before,
            change.after,
        )
        for change in changes
    }


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Write what differs, then rebuild what has to be."""

    def configure(roll: Roll) -> steps.Done:
        arguments, options = roll.plan["cmdline"], roll.plan["modprobe_options"]
        loader = loaders.of(host)
        changes = boot_config.wanted_files(loader, arguments, options)
        reasons = []
        if changes and not check:
            roll = replace(roll, files_changed={**roll.files_changed, **remembered(roll, changes)})
            save(host, roll)
            boot_config.write(host, changes)
        if params["rebuild"] and (not check or host.exists(f"/boot/vmlinuz-{roll.target}")):
            # A kernel that is not installed yet gets initramfs and entry by its own package's hooks.
            written = any(change.path == boot_config.MODPROBE_FILE for change in changes)
            reasons = boot_config.needs_rebuild(loader, roll.target, arguments, written)
        if params["rebuild"] and check:
            changes = []  # the step before has shown them
        if reasons and not check:
            boot_config.rebuild(loader, roll.target, params["timeout_s"])
        lines = [f"{change.path} written" for change in changes]
        lines += [f"initramfs and entry of {roll.target} made again: {reason}" for reason in reasons]
        diffs = tuple(change.as_diff() for change in changes)
        return steps.Done(roll, tuple(lines), diffs)

    step = "configure the target's boot" if params["rebuild"] else "write arguments and options"
    return steps.run_step(host, params, check, "prepare", step, configure)


def main() -> None:
    """Run as a module."""
    run_module(
        {
            **steps.ARGUMENTS,
            "rebuild": {"type": "bool", "default": True},
            "timeout_s": {"type": "int", "default": 1800},
        },
        work,
    )


if __name__ == "__main__":
    main()
