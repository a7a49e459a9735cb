"""Proofs on the system that runs: no unit has failed, and no package changes between here and the reboot."""

from __future__ import annotations

from . import apt, apt_guard, survey
from .documents import Proof
from .preflight_evidence import Evidence, proof

UPGRADERS = ("apt-daily.service", "apt-daily-upgrade.service")
"""What apt's timers start."""


def proofs(seen: Evidence) -> list[Proof]:
    """No unit has failed, dpkg has nothing left to do, nothing the target needs is held, and nobody else is at work."""
    broken = apt.half_configured(seen.packages)
    target = seen.roll.plan["target"]
    wanted = {target["image_package"]: target["image_version"], target["headers_package"]: target["headers_version"]}
    held = apt_guard.held_and_due(survey.held_versions(seen.packages), wanted)
    busy = _still_at_work(seen)
    return [
        proof("packages", not broken, "apt.half_configured", ", ".join(broken) or "all configured", "all configured"),
        proof("holds", not held, "apt.held", ", ".join(held) or "none in the way", "none on the target's packages"),
        proof("apt", not busy, "apt.locked", busy or "nobody at work", "nobody at work"),
    ]


def _still_at_work(seen: Evidence) -> str:
    """Who is at work even after a while: an upgrade that has just begun is let finish.

    On the trial kernel itself, where a roll goes on, nothing is waited for: the dead-man's clock runs.
    """
    if seen.running == seen.target:
        return ""
    end = seen.host.clock() + survey.APT_WAIT_S
    while (busy := _at_work(seen)) and seen.host.clock() < end:
        seen.host.sleep(5)
    return busy


def _at_work(seen: Evidence) -> str:
    """Who changes packages now, or fetches them to do so."""
    holder = survey.read_lock_holder(seen.host)
    if holder:
        return holder
    states = seen.host.run(["systemctl", "is-active", *UPGRADERS]).stdout.splitlines()
    running = apt_guard.unattended_state(dict(zip(UPGRADERS, states, strict=False)))
    return f"{', '.join(running)} at work" if running else ""
