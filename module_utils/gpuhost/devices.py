"""Containers get their devices by driver name: nodes on the host, rules in the configs, and the record of majors.

The one implementation for the module, for ``gpuhost-devices.service`` at boot, and for the return service.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from . import containers, device_rules, host_nodes, majors_record, restarts, units
from .containers import Container
from .device_rules import Gathered, Tables
from .documents import make_head
from .errors import Stop
from .host_io import Host
from .lxc_plan import Presumed
from .proc_devices import CharacterMajors, nvidia_majors, nvidia_node, parse_character_majors

RESTART_TIMEOUT_S = 300


@dataclass(frozen=True)
class Wishes:
    """What the inventory says. ``restart``: consent to restart containers that run with their old rules."""

    presumed: Presumed = "report"
    style: Literal["keep", "native"] = "keep"
    restart: bool = False


UNATTENDED = Wishes()
"""Where nobody watches: certain attributions only, numbers in place, no restart."""


@dataclass(frozen=True)
class Work:
    """What a reconciliation found and did. ``lines`` are for people, ``diffs`` for ``--diff``.

    ``notes``: what people have to know and what did not change in this run.
    """

    document: dict[str, Any]
    lines: tuple[str, ...]
    diffs: tuple[dict[str, str], ...]
    notes: tuple[str, ...] = ()

    def with_lines(self, *more: str) -> Work:
        """The same with more lines, in front."""
        return replace(self, lines=(*more, *self.lines))

    @property
    def said(self) -> tuple[str, ...]:
        """All that people are told."""
        return (*self.lines, *self.notes)

    @property
    def changed(self) -> bool:
        """Whether anything differed."""
        return bool(self.lines)


def current(host: Host) -> CharacterMajors:
    """The character majors of the running kernel."""
    return parse_character_majors(host.read("/proc/devices") or "")


def reconcile_host(host: Host, name: str, run_id: str, wishes: Wishes, check: bool) -> Work:
    """Bring nodes and every container's rules to the running kernel's majors; in check mode only say so."""
    recorded = majors_record.read(host)
    ours = containers.containers(host)
    lines, nodes = _nodes(host, recorded, ours, check)
    majors = current(host)
    now = nvidia_majors(majors)
    tables, found = Tables(majors, recorded, device_rules.hierarchy(host), wishes.presumed), Gathered()
    problems: list[Stop] = []
    for container in ours:
        try:
            device_rules.bring(host, container, tables, wishes.style == "native", check, found)
        except Stop as error:  # one whose config can't be written keeps none of the others on its old rules
            problems.append(error)
    found.is_held = found.is_held or bool(problems)
    if not check:
        # Rules that nobody has seen, as on a Proxmox host whose /etc/pve is not there yet, may name old numbers, too.
        unsettled = found.is_held or units.pve_ready(host) is not None
        record = majors_record.changing if unsettled else majors_record.settled
        majors_record.write(host, record(recorded, found.known(recorded, now)))
    restarted, still = _restarts(host, ours, found.rewritten, wishes.restart, check)
    document = {
        **asdict(make_head("reconcile", name, run_id)),
        "majors_before": majors_record.newest(recorded),
        "majors_now": now,
        "changes": found.changes,
        "findings": found.findings,
        "nodes_created": [node.path for node in nodes],
        "restarted": restarted,
        "with_old_rules": still,
    }
    if problems:
        first, more = problems[0].blocker, len(problems) - 1
        raise Stop(replace(first, observed=f"{first.observed} ({more} more like it)") if more else first, (document,))
    consent = "has its new rules once it is restarted: lxc_devices_restart: true is the consent"
    lines += [*found.lines, *(f"container {item} restarted with its new rules" for item in restarted)]
    notes = [*found.notes, *(f"container {item} {consent}" for item in still)]
    return Work(document, tuple(lines), tuple(found.diffs), tuple(notes))


def make_nodes(host: Host) -> list[str]:
    """The nodes alone, for a boot at which rules are not to be touched."""
    return _nodes(host, majors_record.read(host), containers.containers(host), check=False)[0]


def record_if_right(host: Host) -> None:
    """Record the majors where every rule that is NVIDIA's agrees with them: at every gate, tune and drain.

    Where one does not, the record stays as it is: it is what tells the stale rule's driver.
    """
    now = nvidia_majors(current(host))
    if now and units.pve_ready(host) is None and not any(stale_by_container(host).values()):
        majors_record.write(host, majors_record.settled(majors_record.read(host), now))


def stale_by_container(host: Host) -> dict[str, list[dict[str, Any]]]:
    """For the judge: per container the rules that name an old number of an NVIDIA driver."""
    tables = Tables(current(host), majors_record.read(host), device_rules.hierarchy(host))
    return {
        container.name: [
            {"container": container.name, "driver": rule.driver, "allowed": rule.major_allowed, "now": rule.major_now}
            for rule in device_rules.stale(host, container, tables)
        ]
        for container in containers.containers(host)
    }


def _nodes(
    host: Host, recorded: majors_record.Majors, ours: list[Container], check: bool
) -> tuple[list[str], list[host_nodes.Node]]:
    """Load what is missing of the driver and make its nodes; the lines, and the nodes that were missing."""
    mounted = _mounted_nodes(ours)
    drivers = {*recorded, *mounted.values()}
    lines = []
    if check:
        later = "not loaded, a run loads it: its nodes and rules are judged then"
        lines = [f"module {driver}: {later}" for driver in host_nodes.not_loaded(current(host), drivers)]
    else:
        lines = host_nodes.load_drivers(host, current(host), drivers)
    nodes = host_nodes.missing(host, current(host), mounted)
    if not check:
        host_nodes.make(host, nodes)
    return [*lines, *(node.line for node in nodes)], nodes


def _mounted_nodes(ours: Iterable[Container]) -> dict[str, str]:
    """Path -> driver of the NVIDIA nodes that containers get from the host, by mount or devN entry."""
    nodes = (nvidia_node(path) for container in ours for path in container.gpu_paths)
    return {node.path: node.driver for node in nodes if node is not None and not node.is_dir}


def _restarts(
    host: Host, ours: list[Container], rewritten: list[str], restart: bool, check: bool
) -> tuple[list[str], list[str]]:
    """Who was restarted, and who still runs with rules from before a rewrite."""
    there = {container.name for container in ours}
    still = {name: init for name, init in restarts.due(host, rewritten).items() if name in there}
    if check:
        return [], sorted(still)
    # Before and after every step: one that fails, or a kill, leaves a record that says who is still to be restarted.
    restarts.remember(host, still)
    restarted = []
    for container in ours if restart else ():
        if container.name in still:
            if still[container.name] != restarts.STOPPED:
                containers.stop(host, container, RESTART_TIMEOUT_S)
                still[container.name] = restarts.STOPPED
                restarts.remember(host, still)
            containers.start(host, container)
            del still[container.name]
            restarts.remember(host, still)
            restarted.append(container.name)
    return restarted, sorted(still)
