"""What ``gpuhost-devices.service`` does at every boot, before any container starts."""

from __future__ import annotations

import json
from typing import Any

from . import devices, units
from .host_io import Host
from .rollfile import LOCK_FILE
from .workloads import is_held

RECORD = "/var/lib/gpuhost/devices_at_boot.json"
"""The document of the last boot at which a config was rewritten; ``gpuhost status`` says when that was."""
LOCK_S = 60
_URGENT = ("security", "p0_runtime")
QUORUM_S = 90.0
"""pve-cluster.service is up before corosync is started, so at every boot of a cluster's node quorum comes later."""


def at_boot(host: Host, rules: bool) -> str:
    """Make the nodes and, with ``rules``, bring the containers' rules to this kernel's majors; a line for the journal.

    Nobody watches: only certain attributions are acted on. While a roll holds the containers off, the rules are the
    business of its reconcile stage, or of the return service.
    """
    with host.lock(LOCK_FILE, LOCK_S):
        lines = devices.make_nodes(host)
        if not rules or is_held(host):
            return "; ".join(lines or ["every node is there"])
        name = host.read_line("/proc/sys/kernel/hostname")
        _wait_for_quorum(host, name)
        work = devices.reconcile_host(host, name, "at-boot", devices.UNATTENDED, False).with_lines(*lines)
        if work.diffs:
            text = json.dumps({**work.document, "lines": work.lines}, indent=2)
            host.write_atomic(RECORD, (text + "\n").encode(), 0o600)
        urgent = sorted({item["id"] for item in work.document["findings"] if item["severity"] in _URGENT})
        nothing = f"nothing changed; look at: {', '.join(urgent)}" if urgent else "nodes and rules are right"
        return "; ".join(work.said or [nothing])


def _wait_for_quorum(host: Host, name: str) -> None:
    """Wait where a config of Proxmox has to be written, and only there: the containers wait for us."""
    if host.exists(units.MEMBERS) and units.pve_ready(host) is not None:
        planned = devices.reconcile_host(host, name, "at-boot", devices.UNATTENDED, True)
        if any(diff["before_header"].startswith("/etc/pve/") for diff in planned.diffs):
            units.prove_pve(host, QUORUM_S)


def healed(host: Host) -> dict[str, Any] | None:
    """The document of the last boot at which the host had to rewrite a config; None where it never had."""
    try:
        found = json.loads(host.read(RECORD) or "null")
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("lines"), list) else None
