"""What ``gpuhost-devices.service`` does at every boot, before any container starts."""

from __future__ import annotations

import json
from typing import Any

from . import devices
from .host_io import Host
from .rollfile import LOCK_FILE
from .workloads import is_held

RECORD = "/var/lib/gpuhost/devices_at_boot.json"
"""The document of the last boot at which a config was rewritten; ``gpuhost status`` says when that was."""
LOCK_S = 60


def at_boot(host: Host, rules: bool) -> str:
    """Make the nodes and, with ``rules``, bring the containers' rules to this kernel's majors; a line for the journal.

    Nobody watches: only certain attributions are acted on. While a roll holds the containers off, the rules are the
    business of its reconcile stage, or of the return service.
    """
    with host.lock(LOCK_FILE, LOCK_S):
        if not rules or is_held(host):
            lines = devices.make_nodes(host)
            return "; ".join(lines or ["every node is there"])
        name = host.read_line("/proc/sys/kernel/hostname")
        work = devices.reconcile_host(host, name, "at-boot", devices.UNATTENDED, False)
        if work.diffs:
            text = json.dumps({**work.document, "lines": work.lines}, indent=2)
            host.write_atomic(RECORD, (text + "\n").encode(), 0o600)
        return "; ".join(work.said or ["nodes and rules are right"])


def healed(host: Host) -> dict[str, Any] | None:
    """The document of the last boot at which the host had to rewrite a config; None where it never had."""
    try:
        found = json.loads(host.read(RECORD) or "null")
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("lines"), list) else None
