"""After a boot: has systemd started everything, and has anything failed that this host's GPU work rests on?

A host answers ssh long before its last unit has started, and almost every host has some failed unit that has nothing
to do with its GPUs: ``degraded`` alone says nothing (case roll-01).

Sources: systemctl(1) (``is-system-running``, ``list-units``, ``list-jobs``); Proxmox's pmxcfs, src/pmxcfs/status.c,
``cfs_create_memberlist_msg`` for /etc/pve/.members.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from .documents import Proof
from .errors import Stop, stop
from .host_io import Host

BLOCKING = (
    "gpuhost-*",
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
    "nvidia-imex.service",
    "nvidia-mig-manager.service",
    "pve-cluster.service",
    "pve-guests.service",
    "lxc-net.service",
    "lxcfs.service",
)
"""Units that GPU work or its containers rest on.

Not among them: nvidia-powerd (Dynamic Boost of notebooks; it fails on every other machine that has it installed),
lxc.service and lxc@.service (one broken container that nobody asks about fails them; the hand back proves each
container that ran before), monitoring such as nvidia-dcgm.
"""
CAUSE = "reboot.unit_failed"
PVE_CAUSE = "reboot.pve_not_ready"
STARTED_LIMIT_S = 300.0
LIST_FAILED = ["systemctl", "list-units", "--failed", "--plain", "--no-legend", "--no-pager", "--full"]
LIST_JOBS = ["systemctl", "list-jobs", "--plain", "--no-legend", "--no-pager", "--full"]
MEMBERS = "/etc/pve/.members"
INHIBITORS = "/run/systemd/inhibit"
"""One file a lock, in the form KEY=value: WHAT is a list with colons, MODE is block, block-weak or delay."""

_TYPES = "service|socket|target|mount|automount|swap|timer|path|slice|scope|device"
_UNIT = re.compile(rf"\S+\.(?:{_TYPES})")
_BEGINNING = ("initializing", "starting")
_GOOD = ("running", "degraded")
_POLL_S = 1.0


@dataclass(frozen=True)
class Job:
    """A line of ``systemctl list-jobs``: type is start, stop, restart, ...; state is running or waiting."""

    unit: str
    type: str
    state: str


def failed_units(text: str) -> tuple[str, ...]:
    """Names in the output of LIST_FAILED. Without --plain a dot stands in front of each: that is no name."""
    words = [[word for word in line.split() if _UNIT.fullmatch(word)] for line in text.splitlines()]
    return tuple(found[0] for found in words if found)


def blocking(units: tuple[str, ...]) -> tuple[str, ...]:
    """Those that must not have failed."""
    return tuple(unit for unit in units if any(fnmatch.fnmatchcase(unit, pattern) for pattern in BLOCKING))


def jobs(text: str) -> tuple[Job, ...]:
    """The jobs in the output of LIST_JOBS."""
    found = (re.match(r"\s*\d+\s+(\S+)\s+(\S+)\s+(running|waiting)\s*$", line) for line in text.splitlines())
    return tuple(Job(match[1], match[2], match[3]) for match in found if match)


def what_hangs(found: tuple[Job, ...]) -> str:
    """What a shutdown waits for: the jobs that run; those that wait only wait for them."""
    running = [f"{job.type} of {job.unit}" for job in found if job.state == "running"]
    if running:
        return f"waits for {', '.join(running)}"
    if found:
        return f"{len(found)} jobs wait, none runs (first: {found[0].type} of {found[0].unit})"
    return "no job is queued: the reboot was never begun, or was called off"


def system_state(host: Host) -> str:
    """``running``, ``degraded``, ``starting``, ...: systemctl says it on stdout whatever its exit status is."""
    result = host.run(["systemctl", "is-system-running"])
    return result.stdout.strip() or result.last_line


def wait_until_started(host: Host, limit_s: float = STARTED_LIMIT_S) -> str:
    """Wait until systemd has started what it starts at boot, or the limit; the state then."""
    return _wait(host, lambda: system_state(host), lambda state: state not in _BEGINNING, limit_s)


def prove_units(host: Host, limit_s: float = STARTED_LIMIT_S) -> list[Proof]:
    """Proofs about the units, after they have started. One that is not ok has cause, observation and way out.

    A boot that is not over at the limit is no failure by itself (some unit may start for ever that nobody asks
    about): it fails where a unit that blocks is among those that have not started. With a limit of 0 nothing is
    waited for, and only what has failed already counts.
    """
    state = wait_until_started(host, limit_s)
    result = host.run(LIST_FAILED)
    if result.rc != 0 or state not in (*_GOOD, *_BEGINNING):
        observed = f"systemd is {state}" if result.rc == 0 else result.last_line
        return [_proof("systemd", observed, "running or degraded", "Look at: systemctl status; journalctl -b -p err")]
    failed = failed_units(result.stdout)
    proofs = [
        _proof(unit, "failed", "active", f"Look at: systemctl status {unit}; journalctl -b -u {unit}")
        for unit in blocking(failed)
    ]
    if state in _BEGINNING and limit_s > 0:
        late = tuple(job.unit for job in jobs(host.run(LIST_JOBS).stdout) if job.type in ("start", "restart"))
        proofs += [
            _proof(unit, f"has not started within {limit_s:.0f} s", "active", f"Look at: systemctl status {unit}")
            for unit in blocking(late)
        ]
    if proofs:
        return proofs
    aside = f" ({', '.join(failed)} failed: not ours)" if failed else ""
    return [Proof("units", True, None, f"systemd is {state}{aside}", "none of ours failed")]


def _proof(unit: str, observed: str, expected: str, next_step: str) -> Proof:
    return Proof(f"unit {unit}", False, CAUSE, observed, expected, next_step)


def _wait(host: Host, look: Callable[[], str], done: Callable[[str], bool], limit_s: float) -> str:
    began = host.clock()
    found = look()
    while not done(found) and host.clock() - began < limit_s:
        host.sleep(_POLL_S)
        found = look()
    return found


# --- Proxmox's cluster file system


def pve_ready(host: Host) -> str | None:
    """Why the containers' files in /etc/pve can't be trusted yet; None where they can, or this is no Proxmox host.

    Without pmxcfs /etc/pve is an empty folder of the root file system; without quorum it is read-only and may be old.
    A node that is no member of a cluster has no ``cluster`` in its .members, and is always quorate.
    """
    if not host.exists("/usr/bin/pmxcfs"):
        return None
    try:
        text = host.read(MEMBERS)
    except Stop as error:  # of a pmxcfs that has died the mount is left, and answers nothing (ENOTCONN)
        return f"/etc/pve does not answer: {error.blocker.observed}"
    if text is None:
        return "/etc/pve is not mounted"
    try:
        members = json.loads(text)
    except ValueError:
        return f"{MEMBERS} is not readable"
    cluster = members.get("cluster") if isinstance(members, dict) else None
    if isinstance(cluster, dict):
        return None if cluster.get("quorate") == 1 else "/etc/pve is not quorate"
    # pmxcfs has no ``cluster`` either before it has found corosync.
    return "/etc/pve has not joined its cluster" if host.exists("/etc/pve/corosync.conf") else None


def prove_pve(host: Host, limit_s: float = STARTED_LIMIT_S) -> list[Proof]:
    """Wait until /etc/pve is mounted and quorate, or the limit. Empty where Proxmox is not installed."""
    if not host.exists("/usr/bin/pmxcfs"):
        return []
    reason = _wait(host, lambda: pve_ready(host) or "", lambda text: not text, limit_s)
    expected = "mounted and quorate"
    if reason:
        step = "Look at: systemctl status pve-cluster corosync; pvecm status"
        return [Proof("/etc/pve", False, PVE_CAUSE, f"{reason} after {limit_s:.0f} s", expected, step)]
    return [Proof("/etc/pve", True, None, expected, expected)]


def inhibitors(host: Host) -> list[str]:
    """Who asks that this machine is not shut down, and why; a lock that only delays is none. Source: logind's files."""
    found = []
    for name in host.names(INHIBITORS):
        text = host.read(f"{INHIBITORS}/{name}") if name.isdecimal() else None
        fields = dict(line.split("=", 1) for line in (text or "").splitlines() if "=" in line)
        if "shutdown" in fields.get("WHAT", "").split(":") and fields.get("MODE", "").startswith("block"):
            found.append(f"{fields.get('WHO', 'somebody')}: {fields.get('WHY', 'no reason given')}")
    return found


def prove_no_inhibitor(host: Host) -> None:
    """Raises Stop(reboot.inhibited) while somebody holds a lock against a shutdown, such as a firmware update."""
    found = inhibitors(host)
    if found:
        raise stop("reboot.inhibited", "systemd-inhibit", "; ".join(found), "no lock against a shutdown")
