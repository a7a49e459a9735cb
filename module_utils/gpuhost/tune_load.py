"""Whether a host is at work: that would move a measurement more than any setting, and the settings would move it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from . import gpu_kinds, workloads
from .errors import Stop, stop
from .host_io import Host

BUSY_SHARE = 0.25
BUSY_LEAST = 2.0
"""Load from which a host counts as busy: a quarter of its CPUs, and two at least (a measurement itself makes one)."""
BUSY_GPU_PERCENT = 5


@dataclass(frozen=True)
class Load:
    """What runs. ``load``: the average of the last minute."""

    load: float = 0.0
    cpus: int = 1
    gpu_processes: tuple[str, ...] = ()
    busy_gpus: tuple[tuple[str, int], ...] = ()
    containers: tuple[str, ...] = ()


def read(host: Host) -> Load:
    """One nvidia-smi where there is a driver; the rest are files."""
    words = host.read_line("/proc/loadavg").split()
    cpus = len(re.findall(r"^cpu\d", host.read("/proc/stat") or "", re.MULTILINE))
    try:
        containers = tuple(item["name"] for item in workloads.survey(host) if item["running"] and item["gpu"])
    except Stop as error:
        containers = (f"unknown: {error.blocker.observed}",)
    busy: list[tuple[str, int]] = []
    if host.exists("/sys/module/nvidia"):
        argv = ["nvidia-smi", "--query-gpu=pci.bus_id,utilization.gpu", "--format=csv,noheader,nounits"]
        rows = [line.split(", ") for line in host.run(argv).stdout.splitlines()]
        busy = [(row[0], int(row[1])) for row in rows if len(row) == 2 and row[1].strip().isdecimal()]
    return Load(
        float(words[0]) if words else 0.0,
        max(1, cpus),
        tuple(gpu_kinds.users(host)),
        tuple(item for item in busy if item[1] >= BUSY_GPU_PERCENT),
        containers,
    )


def reasons(found: Load) -> tuple[str, ...]:
    """What speaks against measuring now; empty where nothing does."""
    limit = max(BUSY_LEAST, BUSY_SHARE * found.cpus)
    seen = []
    if found.load > limit:
        seen.append(f"load average {found.load:g} on {found.cpus} CPUs (limit {limit:g})")
    if found.gpu_processes:
        more = f" and {len(found.gpu_processes) - 3} more" if len(found.gpu_processes) > 3 else ""
        seen.append(f"processes with a GPU open: {', '.join(found.gpu_processes[:3])}{more}")
    seen += [f"GPU {address} is {percent} % busy" for address, percent in found.busy_gpus]
    if found.containers:
        seen.append(f"containers with GPUs run: {', '.join(found.containers)}")
    return tuple(seen)


def prove_idle(found: Load, under_load: bool) -> tuple[str, ...]:
    """What was seen. Raises Stop(tune.live_load) where something runs and nobody has said to measure all the same."""
    seen = reasons(found)
    if seen and not under_load:
        raise stop("tune.live_load", "this host", "; ".join(seen), "an idle host")
    return seen
