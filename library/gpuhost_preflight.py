#!/usr/bin/python
# SPDX-License-Identifier: MIT
"""Prove the target kernel ready for its trial boot: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpuhost_preflight
short_description: Prove a kernel ready for its trial boot
description:
  - Read-only but for the roll file's log. One proof an entry; fails with the first proof that does not hold.
  - A warning is a proof that stops nothing. It is in the document, in the report and in C(lines).
  - In check mode the proofs are taken only where the target is installed already.
options:
  host_name: {description: Name of the host in the inventory., type: str, required: true}
  run_id: {description: Name of the run., type: str, required: true}
  plan: {description: 'The plan, which opens the roll where none is open.', type: dict}
author: gpuhost
attributes:
  check_mode: {support: full, description: Says what would change and changes nothing.}
  diff_mode: {support: none, description: Changes nothing.}
"""

RETURN = r"""
lines: {description: What differed and was changed, a line each., returned: success, type: list, elements: str}
"""

from dataclasses import replace
from typing import Any

from ansible.module_utils.gpuhost import fallbacks, loaders, preflight, steps
from ansible.module_utils.gpuhost.documents import as_dict
from ansible.module_utils.gpuhost.errors import Stop, blocker
from ansible.module_utils.gpuhost.host_io import Host
from ansible.module_utils.gpuhost.module import run_module
from ansible.module_utils.gpuhost.rollfile import Roll

SET_BEFORE = ("boot.default_not_held", "boot.cmdline_missing", "boot.no_panic_reboot", "boot.modprobe_options")
"""What hold and the boot configuration put right before this step."""


def work(host: Host, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Take every proof; stop at the first that does not hold."""

    def prove(roll: Roll) -> steps.Done:
        if roll.is_promoted(host.read_line("/proc/sys/kernel/osrelease")):
            return steps.Done(roll, changed=False, answer={"skipped_because": f"{roll.target} is promoted already"})
        if check and not host.exists(f"/boot/vmlinuz-{roll.target}"):
            return steps.Done(roll, changed=False, answer={"skipped_because": f"{roll.target} is not installed yet"})
        if check:
            # Nothing was held yet; the fallback is proven against itself, and its default is what hold would set.
            loader = loaders.of(host)
            fallback = fallbacks.record(host, loader, roll.running_before, None)
            roll = replace(roll, fallback=fallback)
        document = preflight.prove(host, params["host_name"], params["run_id"], roll)
        if check:
            # Check mode leaves out the steps before this one, which would have set these.
            kept = tuple(item for item in document.proofs if item.cause not in SET_BEFORE)
            document = replace(document, proofs=kept)
        failed = preflight.first_failure(document)
        if failed is not None and not check:
            found = blocker(failed.cause or "", failed.name, failed.observed, failed.expected, failed.next_step)
            raise Stop(found, (as_dict(document),))
        warned = preflight.warnings(document)
        held = len(document.proofs) - len(warned)
        lines = (
            f"{held} proofs hold for {roll.target}",
            *(f"warning: {item.cause}: {item.name}: {item.observed}" for item in warned),
        )
        if failed is not None:
            lines = (f"would stop: {failed.cause}: {failed.name}: {failed.observed}", *lines[1:])
        return steps.Done(roll, lines, documents=(as_dict(document),), changed=False)

    return steps.run_step(host, params, check, "prepare", "prove the target ready", prove)


def main() -> None:
    """Run as a module."""
    run_module(dict(steps.ARGUMENTS), work)


if __name__ == "__main__":
    main()
