"""Proofs that no unit has failed before the trial that would have the trial taken back after the downtime."""

from __future__ import annotations

from . import units
from .documents import Proof
from .preflight_evidence import Evidence, proof

CAUSE = "host.unit_failed"


def proofs(seen: Evidence) -> list[Proof]:
    """What the trial will be asked, asked of the old kernel: on the trial kernel the trial itself asks.

    A unit that fails here (nvidia-fabricmanager without NVSwitch, nvidia-mig-manager) fails on any kernel.
    """
    if seen.running == seen.target:
        return []
    return [
        proof(item.name, item.ok, CAUSE, item.observed, item.expected, way_out(item.name))
        for item in units.prove_units(seen.host, limit_s=0)
    ]


def way_out(name: str) -> str:
    """Three ways: it is not needed here, it can be repaired, or it is the reboot that repairs it.

    Empty for what is said of systemd as a whole.
    """
    unit = name.removeprefix("unit ")
    if unit in (name, "systemd"):
        return ""
    return (
        f"Not needed here: systemctl disable {unit}, and systemctl reset-failed {unit}. Needed: repair it "
        f"(journalctl -b -u {unit}), or where only the reboot can: systemctl reset-failed {unit}. "
        "Then run the same command again."
    )
