"""RLIMIT_MEMLOCK of what uses GPUs: in the configs of containers, in the drop-ins of services, and as it really is.

What counts against it: RDMA registrations (libibverbs), mlock, io_uring and GPUDirect Storage buffers. What does not:
cudaHostAlloc, whose pages the driver pins itself; and nothing counts for a process with CAP_IPC_LOCK in the host's own
user namespace. systemd's default is 8 MiB, that of liblxc the limit of whoever starts the container. Where root has no
CAP_SYS_RESOURCE (a host that is itself a container), a limit that is raised keeps the container or the service from
starting (seen with lxc 5.0.2: "Failed to set limit memlock").
Sources: setrlimit(2), lxc.container.conf(5), systemd.exec(5).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from . import config_file, containers, lxc_config, tuning, unit_state
from .containers import Container
from .documents import Finding, Severity
from .foreign_workloads import GPU_SERVICES
from .host_io import Host
from .lxc_lines import MAIN, SpanEdit, Style, display
from .tuning import Wanted, Write

Wish = Literal["report", "apply"]
_Way = Literal["report", "apply", "impossible"]
KEY, UNLIMITED = "lxc.prlimit.memlock", "unlimited"
CONTAINERS, SERVICES = "containers.memlock", "gpu.service_memlock"
CONFIG_KIND = "container_memlock"
"""Object is the path of a container's config; the value is that of its line, None for no line."""
DROP_IN_NAME = "50-gpuhost-memlock.conf"
DROP_IN = "# Managed by gpuhost (gpu_runtime): this service uses GPUs.\n[Service]\nLimitMEMLOCK=infinity\n"

_LIMIT = re.compile(r"^Max locked memory\s+(\S+)\s+(\S+)", re.MULTILINE)
_PAYLOAD = re.compile(r"/lxc(?:\.payload\.|/)([^/\n]+)")
_SERVICE = re.compile(r"^\d+:[^:\n]*:/system\.slice/(?:[^/\n]+\.slice/)*([^/\n]+\.service)(?:/|$)", re.MULTILINE)
_OTHER = re.compile(r"/(?:docker[-/]|libpod-|cri-containerd-)([0-9a-f]{12})")
_CAP_SYS_RESOURCE = 24  # linux/capability.h
# Container engines and their monitors hold no GPU of their own.
_ENGINES = re.compile(r"(?:lxc@.*|lxc|pve-container@.*|docker|containerd|user@.*)\.service")
_WHY = "RDMA registrations and mlock fail at the limit, with 'Cannot allocate memory'; cudaHostAlloc does not count."


@dataclass(frozen=True)
class InContainer:
    """A container that gets GPUs. ``running``: the soft limit that its init really has; None where it does not run."""

    name: str
    path: str
    style: Style
    value: str | None
    running: str | None = None

    @property
    def line(self) -> str:
        """The line that its config should have."""
        return f"{KEY}: {UNLIMITED}" if self.style == "pve" else f"{KEY} = {UNLIMITED}"


@dataclass(frozen=True)
class Process:
    """A process that has a GPU open. ``unit``: its system service on the host; ``lxc``: the container is LXC's."""

    pid: int
    name: str
    limit: str
    unit: str = ""
    container: str = ""
    lxc: bool = False


@dataclass(frozen=True)
class Facts:
    """``unknown`` says why nothing is known."""

    containers: tuple[InContainer, ...] = ()
    processes: tuple[Process, ...] = ()
    drop_ins: tuple[str, ...] = ()
    """Services that have our drop-in already."""
    may_raise: bool = True
    """Whether root may raise limits here."""
    unknown: str = ""


def read(host: Host) -> Facts:
    """Configs, and one walk through /proc: needs root."""
    if not host.is_root():
        return Facts(unknown="needs root")
    inits: dict[str, str] = {}
    processes = []
    for pid in host.names("/proc"):
        if not pid.isdigit():
            continue
        cgroup = host.read(f"/proc/{pid}/cgroup") or ""
        found, inside = _process(host, int(pid), cgroup), _PAYLOAD.search(cgroup)
        processes += [found] if found else []
        if inside and inside[1] not in inits and _is_init(host.read(f"/proc/{pid}/status") or ""):
            inits[inside[1]] = _limit(host, int(pid))
    with_gpu = tuple(_in_container(item, inits) for item in containers.containers(host) if item.gpu_paths)
    units = {item.unit for item in processes if item.unit}
    ours = tuple(sorted(unit for unit in units if host.read(drop_in_of(unit)) == DROP_IN))
    return Facts(with_gpu, tuple(processes), ours, _may_raise(host.read("/proc/self/status") or ""))


def _may_raise(status: str) -> bool:
    found = re.search(r"^CapEff:\s+([0-9a-fA-F]+)$", status, re.MULTILINE)
    return found is None or bool(int(found[1], 16) >> _CAP_SYS_RESOURCE & 1)


def drop_in_of(unit: str) -> str:
    """Where a service's drop-in lies."""
    return f"{unit_state.UNIT_FOLDERS[0]}/{unit}.d/{DROP_IN_NAME}"


def _is_init(status: str) -> bool:
    """Process 1 of the container itself, and not of one inside it."""
    found = re.search(r"^NSpid:\s+(.*)$", status, re.MULTILINE)
    numbers = found[1].split() if found else []
    return len(numbers) == 2 and numbers[1] == "1"


def _limit(host: Host, pid: int) -> str:
    found = _LIMIT.search(host.read(f"/proc/{pid}/limits") or "")
    return found[1] if found else ""


def _process(host: Host, pid: int, cgroup: str) -> Process | None:
    if not host.holds_open(pid, "/dev/nvidia"):
        return None
    name = host.read_line(f"/proc/{pid}/comm")
    if name in GPU_SERVICES:
        return None
    inside, service, other = _PAYLOAD.search(cgroup), _SERVICE.search(cgroup), _OTHER.search(cgroup)
    if inside:
        return Process(pid, name, _limit(host, pid), container=inside[1], lxc=True)
    unit = service[1] if service and not other and not _ENGINES.fullmatch(service[1]) else ""
    return Process(pid, name, _limit(host, pid), unit, other[1] if other else "")


def _in_container(item: Container, inits: dict[str, str]) -> InContainer:
    return InContainer(item.name, item.config_path, item.style, config_value(item.document), inits.get(item.name))


def config_value(document: lxc_config.LxcDocument) -> str | None:
    """What a config says; liblxc takes the last line of a key."""
    found = [display(line.value).strip() for line in document.entries(MAIN) if line.key == KEY]
    return found[-1] if found else None


def with_value(config: bytes, style: Style, value: str | None) -> bytes:
    """A config that says this. One line is added, changed or removed; every other byte stays."""
    document = lxc_config.parse(config, style)
    lines = [line for line in document.entries(MAIN) if line.key == KEY]
    if config_value(document) == value:
        return config
    if value is None:
        return document.rewrite(removals=[lines[-1].number])
    if lines:
        last = lines[-1]
        return document.rewrite([SpanEdit(last.number, last.value_start, last.value_end, value.encode())])
    # After the last entry that has a line end: so that taking the line out again gives the same bytes back.
    anchor = max([line.number for line in document.entries(MAIN) if line.eol], default=0)
    separator = ": " if style == "pve" else " = "
    return document.rewrite(insertions={anchor: [f"{KEY}{separator}{value}".encode()]})


def style_of(path: str) -> Style:
    """The style of the config at a path."""
    return "pve" if path.startswith(config_file.PVE_FOLDER) else "lxc"


def _read_config(host: Host, path: str) -> str | None:
    return config_value(lxc_config.parse(host.read_bytes(path) or b"", style_of(path)))


def _write_config(host: Host, path: str, value: str | None) -> None:
    config_file.update(host, path, lambda config: with_value(config, style_of(path), value))


tuning.KINDS[CONFIG_KIND] = tuning.Kind(_read_config, _write_config)


def is_unlimited(value: str | None) -> bool:
    """``unlimited``, or soft and hard apart (``unlimited:unlimited``): the soft one counts, up to the hard one."""
    return value is not None and all(part in (UNLIMITED, "infinity", "-1") for part in value.split(":"))


_WAYS: dict[_Way, str] = {
    "report": "gpu_runtime_memlock: apply, or by hand",
    "apply": "gpuhost tune",
    "impossible": "Not here: root may not raise limits (no CAP_SYS_RESOURCE), and what asks for it does not start",
}


def wanted(facts: Facts, wish: Wish) -> Wanted:
    """With ``apply`` configs and drop-ins are written; they count from the next start on."""
    if facts.unknown:
        return Wanted((_finding(CONTAINERS, "unknown", f"unknown: {facts.unknown}"),))
    way: _Way = wish if facts.may_raise else "impossible"
    short = [item for item in facts.containers if not is_unlimited(item.value)]
    units = sorted({item.unit for item in facts.processes if item.unit and not is_unlimited(item.limit)})
    writes = [Write(CONFIG_KIND, item.path, UNLIMITED, "for RDMA and mlock") for item in short]
    writes += [Write(unit_state.UNIT_FILE, drop_in_of(unit), DROP_IN, "for RDMA and mlock") for unit in units]
    found = (_of_containers(facts.containers, way), _of_processes(facts, way))
    return Wanted(found, tuple(writes) if way == "apply" else ())


def _of_containers(found: Sequence[InContainer], way: _Way) -> Finding:
    if not found:
        return _finding(CONTAINERS, "info", "not applicable: no container gets a GPU")
    texts, fixes = [], []
    for item in found:
        if not is_unlimited(item.value):
            now = f", runs with {_shown(item.running)}" if item.running is not None else ""
            texts.append(f"{item.path} says {item.value or 'nothing'}{now}")
            fixes.append(f"{_WAYS[way]}: add '{item.line}' to {item.path}, then restart {item.name}")
        elif item.running is not None and not is_unlimited(item.running):
            texts.append(f"{item.name} runs with {_shown(item.running)}, from before its config said {item.value}")
            fixes.append(f"Restart container {item.name}")
    if texts:
        return _finding(CONTAINERS, "p0_runtime", "; ".join(texts), "; ".join(fixes))
    return _finding(CONTAINERS, "good", f"{UNLIMITED}: {', '.join(item.name for item in found)}")


def _of_processes(facts: Facts, way: _Way) -> Finding:
    limited = {item.name for item in facts.containers if item.running is not None and not is_unlimited(item.running)}
    # What a container's init is short of is said of the container.
    low = [p for p in facts.processes if not is_unlimited(p.limit) and not (p.lxc and p.container in limited)]
    if not facts.processes:
        return _finding(SERVICES, "info", "not applicable: no process holds a GPU")
    if not low:
        names = sorted({item.name for item in facts.processes if is_unlimited(item.limit)})
        return _finding(SERVICES, "good", f"{UNLIMITED}: {', '.join(names)}" if names else "as their containers")
    texts, fixes = [], []
    for item in low:
        where = f" in {item.unit}" if item.unit else f" in container {item.container}" if item.container else ""
        texts.append(f"{item.name} ({item.pid}){where} runs with {_shown(item.limit)}")
        if item.unit in facts.drop_ins:
            fixes.append(f"systemctl restart {item.unit}")
        elif item.unit:
            fixes.append(f"{_WAYS[way]}: LimitMEMLOCK=infinity in a drop-in of {item.unit}, then restart it")
        elif item.lxc:
            fixes.append(f"In container {item.container}: LimitMEMLOCK=infinity for the service of {item.name}")
        elif item.container:
            fixes.append("Start that container with: --ulimit memlock=-1:-1")
        else:
            fixes.append(f"{item.name} has its limit from the login that started it: /etc/security/limits.d")
    return _finding(SERVICES, "p0_runtime", "; ".join(texts), "; ".join(dict.fromkeys(fixes)))


def _shown(limit: str | None) -> str:
    if limit is not None and limit.isdecimal():
        return f"{int(limit) / 2**20:.0f} MiB" if int(limit) >= 2**20 else f"{int(limit) // 1024} KiB"
    return limit or "an unknown limit"


def _finding(code: str, severity: Severity, observed: str, fix: str = "") -> Finding:
    domain = "containers" if code == CONTAINERS else "serving"
    source = "config, /proc/PID/limits" if code == CONTAINERS else "/proc/PID/limits"
    return Finding(code, domain, severity, observed, UNLIMITED, _WHY, fix, source)
