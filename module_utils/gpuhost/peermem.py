"""nvidia-peermem: GPUDirect RDMA the old way. Where there is no RDMA device it has no use.

Its load fails (``Invalid argument``) where ib_core has no peer memory interface: the kernel's own has none, that of
MLNX_OFED / DOCA-OFED has. Open kernel modules on Linux 5.12 and newer give the same by DMA-BUF, which NCCL and UCX
prefer, without any module. Source: driver README chapter "GPUDirect RDMA Peer Memory Client", GPUDirect RDMA docs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from . import boot, unit_state
from .documents import Finding
from .driver_facts import OPEN_LICENSE, loaded_license
from .host_io import Host
from .tuning import Wanted, Write

MODULE = "nvidia_peermem"
CODE = "gpu.peermem"
Wish = Literal["auto", "load", "leave"]

_DMA_BUF_SINCE = (5, 12)
_WHY = "GPUDirect RDMA: a network card reads and writes GPU memory itself, without a copy in the host's."


@dataclass(frozen=True)
class Facts:
    """What RDMA there is, and what the module is to it."""

    stack: bool = False
    """Whether ib_core is there."""
    devices: tuple[str, ...] = ()
    state: str = unit_state.ABSENT
    """Loaded now, at boot: see unit_state.MODULE."""
    on_disk: bool = False
    ours: bool = False
    """Whether it is our own file that loads it at boot."""
    dma_buf: bool = False


def read(host: Host) -> Facts:
    """From /sys, /proc and files."""
    release = host.read_line("/proc/sys/kernel/osrelease")
    number = re.match(r"(\d+)\.(\d+)", release)
    new = number is not None and (int(number[1]), int(number[2])) >= _DMA_BUF_SINCE
    return Facts(
        stack=host.exists("/sys/module/ib_core"),
        devices=tuple(host.names("/sys/class/infiniband")),
        state=unit_state.module_state(host, MODULE),
        on_disk=boot.module_files(host, release).get("nvidia-peermem") is not None,
        ours=host.exists(unit_state.module_drop_in(MODULE)),
        dma_buf=new and loaded_license(host) == OPEN_LICENSE,
    )


def wanted(facts: Facts, wish: Wish) -> Wanted:
    """With ``auto`` it is loaded where there is RDMA and no DMA-BUF; ``load`` wants it wherever there is RDMA."""
    due = bool(facts.devices) and (wish == "load" or (wish == "auto" and not facts.dma_buf))
    loaded = facts.state.startswith(unit_state.NOW)
    possible = loaded or facts.on_disk
    writes: tuple[Write, ...] = ()
    if due and possible and facts.state != unit_state.NOW_AND_AT_BOOT:
        writes = (Write(unit_state.MODULE, MODULE, unit_state.NOW_AND_AT_BOOT, "GPUDirect RDMA"),)
    elif not due and facts.ours:
        # What is loaded stays: somebody may use it.
        writes = (Write(unit_state.MODULE, MODULE, unit_state.NOW if loaded else unit_state.ABSENT, "not wanted"),)
    return Wanted((_judge(facts, wish, due, loaded),), writes)


def _judge(facts: Facts, wish: Wish, due: bool, loaded: bool) -> Finding:
    if not facts.devices:
        why = "no RDMA device" if facts.stack else "no RDMA stack (ib_core is not there)"
        return _finding("info", f"not applicable: {why}", "nothing")
    if loaded:
        if facts.state == unit_state.NOW_AND_AT_BOOT:
            return _finding("good", "loaded, now and at boot", "loaded")
        fix = "gpuhost tune, or a file in /etc/modules-load.d that names it"
        return _finding("p0_runtime" if due else "info", "loaded, but no boot loads it", "loaded", fix if due else "")
    there = f"not loaded, RDMA devices: {', '.join(facts.devices)}"
    if not due:
        text = "left as it is" if wish == "leave" else "DMA-BUF does the same (open modules on Linux 5.12 or newer)"
        return _finding("info", f"{there}; {text}", "loaded, or DMA-BUF", "To have both: gpu_runtime_peermem: load")
    if not facts.on_disk:
        fix = "Install the driver's nvidia-peermem module for this kernel, built against the RDMA stack in use"
        return _finding("p0_runtime", f"{there}; no such module for this kernel", "loaded", fix)
    return _finding("p0_runtime", there, "loaded", "gpuhost tune, or: modprobe nvidia-peermem")


def _finding(severity: str, observed: str, expected: str, fix: str = "") -> Finding:
    return Finding(CODE, "driver", severity, observed, expected, _WHY, fix, f"/sys/module/{MODULE}")  # type: ignore[arg-type]
