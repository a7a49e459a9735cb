"""The containers of a host, plain LXC's and Proxmox's, behind one interface: found, started, stopped, ready."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from . import containers_lxc, containers_pve, lxc_config
from .errors import stop as problem
from .host_io import Host
from .lxc_includes import include_paths, main_section, read_includes
from .lxc_lines import MAIN, Style, display, is_distribution
from .proc_devices import NVIDIA_STATIC_MAJOR

LXC, LXC_UNIT, PVE = "lxc", "lxc@", "pve"
"""Engines. ``lxc@`` is plain LXC whose containers are started by lxc@NAME.service."""
LAST = 2**31 - 1
"""The place of a container without one: Proxmox starts it after all others (get_start_stop_list in pve-manager)."""

_BRINGS_DEVICES = ("lxc.hook", "lxc.environment", "lxc.mount", "hookscript")
_UP = re.compile(r"(?:\A|,)up=(\d+)(?:,|\Z)")
# What systemd says inside the container; "degraded" is up with a failed unit.
_UP_STATES = ("running", "degraded")


@dataclass(frozen=True)
class Container:
    """A container of this host. ``name`` is LXC's; on Proxmox it is the VMID as text."""

    name: str
    engine: str
    config_path: str
    style: Style
    config: bytes = field(repr=False)
    included: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    """Files of the user's own that the config includes; the distribution's bring no GPU."""

    @cached_property
    def document(self) -> lxc_config.LxcDocument:
        """The config, parsed."""
        return lxc_config.parse(self.config, self.style)

    @property
    def autostart(self) -> bool:
        """Whether it starts at boot."""
        return bool(self.document.facts.autostart)

    @property
    def order(self) -> int:
        """Its place in the start order, the lowest first."""
        return self.document.facts.order or (LAST if self.style == "pve" and self.document.facts.order is None else 0)

    @property
    def delay_s(self) -> int:
        """Seconds that the next one has to wait after its start, as its owner has set it; a stop has no such rule."""
        if self.style == "pve":
            found = _UP.search(self.document.facts.startup or "")
            return int(found[1]) if found else 0
        value = self._last("lxc.start.delay")
        return int(value) if value.isdecimal() else 0

    @property
    def is_template(self) -> bool:
        """Whether it is one of Proxmox's templates, which never start."""
        return self.style == "pve" and self._last("template") == "1"

    @property
    def gpu_paths(self) -> list[str]:
        """NVIDIA's nodes that it gets, by a mount or a devN: entry."""
        mounted = {item.node.path for item in main_section(self.document, self.included).mounts if item.node}
        return sorted(
            mounted | {item.node.path for item in self.document.dev_entries if item.node and item.section == MAIN}
        )

    @property
    def has_gpu(self) -> bool:
        """Whether it is to have an NVIDIA GPU, in whatever way: nodes, a rule for their number, a hook, a variable.

        One that is missed here would be measured on the host instead, where everything works.
        """
        lines = main_section(self.document, self.included).lines
        named = any(b"nvidia" in line.value.lower() for line in lines if line.key.startswith(_BRINGS_DEVICES))
        front = any(
            rule.allow and rule.major == NVIDIA_STATIC_MAJOR for rule in self.document.rules if not rule.section
        )
        return bool(self.gpu_paths) or named or front

    def _last(self, key: str) -> str:
        values = [display(line.value).strip() for line in self.document.entries() if line.key == key]
        return values[-1] if values else ""


def containers(host: Host) -> list[Container]:
    """All of this node, in start order: plain ones first, as lxc.service comes before pve-guests.service."""
    of_pve = containers_pve.configs(host)
    plain = _plain(host)
    by_unit = containers_lxc.supervised(host) if plain else set()
    found = [
        Container(
            name, LXC_UNIT if name in by_unit else LXC, containers_lxc.config_path(name), "lxc", config,
            _included(host, config, "lxc"),
        )
        for name, config in plain.items()
    ]  # fmt: skip
    found += [
        Container(vmid, PVE, containers_pve.config_path(vmid), "pve", config, _included(host, config, "pve"))
        for vmid, config in of_pve.items()
    ]
    return sorted(found, key=_place)


def _included(host: Host, config: bytes, style: Style) -> dict[str, bytes]:
    """Most containers include the distribution's files and nothing else: then nothing is read."""
    if all(is_distribution(path) for path in include_paths(config, style)):
        return {}
    return read_includes(config, host.read_bytes, host.names, style=style)


def _plain(host: Host) -> dict[str, bytes]:
    return containers_lxc.configs(host, containers_pve.vmids(host) if containers_pve.is_here(host) else None)


def _place(item: Container) -> tuple[bool, int, int, str]:
    return item.engine == PVE, item.order, int(item.name) if item.engine == PVE else 0, item.name


def running(host: Host) -> set[str]:
    """Names of the containers that run. Raises Stop where that can't be known."""
    found = containers_lxc.running(host)
    if not containers_pve.is_here(host):
        return found
    # lxc-ls names Proxmox's containers, too.
    return containers_pve.running(host) | (found & set(_plain(host)))


def runs(host: Host, container: Container) -> bool:
    """Whether one container runs."""
    if container.engine == PVE:
        return containers_pve.runs(host, container.name)
    return container.name in containers_lxc.running(host)


def start(host: Host, container: Container) -> bool:
    """Start a container if it does not run; whether it had to. Raises Stop (workload.not_back, lxc.locked, ...)."""
    if container.is_template:
        raise problem("workload.not_back", f"container {container.name}", "is a template, which never starts")
    if runs(host, container):
        return False
    if container.engine == PVE:
        containers_pve.start(host, container.name)
    else:
        containers_lxc.start(host, container.name, container.engine == LXC_UNIT)
    return True


def stop(host: Host, container: Container, timeout_s: int) -> None:
    """Ask a container to shut down and wait. It is never killed: raises Stop(workload.not_stopped)."""
    if container.engine == PVE:
        said = containers_pve.ask_to_stop(host, container.name, timeout_s)
    else:
        said = containers_lxc.ask_to_stop(host, container.name, container.engine == LXC_UNIT, timeout_s)
    if runs(host, container):
        observed = f"still runs after {timeout_s} s ({said})"
        raise problem("workload.not_stopped", f"container {container.name}", observed, "stopped")


def is_ready(host: Host, container: Container) -> bool:
    """Whether its init is up: it has taken over from liblxc, and where it is systemd, systemd has started everything.

    That a GPU works in it is the gate's to say.
    """
    pid = containers_lxc.init_pid(host, container.name)
    # Until it executes the container's init this process is liblxc's own.
    comm = host.read_line(f"/proc/{pid}/comm") if pid else ""
    if comm in ("", "lxc-start"):
        return False
    if comm != "systemd":
        return True
    attach = ["lxc-attach", "-n", container.name, "--clear-env", "--set-var", "PATH=/usr/local/bin:/usr/bin:/bin", "--"]
    said = host.run([*attach, "systemctl", "is-system-running"], timeout_s=30)
    return said.stdout.strip() in _UP_STATES


def wait_until_ready(host: Host, wanted: list[Container], limit_s: float) -> list[Container]:
    """Wait until all are ready, or the limit; those that are not."""
    end = host.clock() + limit_s
    late = [item for item in wanted if not is_ready(host, item)]
    while late and host.clock() < end:
        host.sleep(1)
        late = [item for item in late if not is_ready(host, item)]
    return late
