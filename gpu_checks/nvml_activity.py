"""Who else uses a GPU at this moment: what its counters say over a short time in which we do nothing ourselves.

An idle context, as of a server that is loaded and waits, disturbs no measurement and is no activity.
What shows a load, from the surest on:
- GPM (``nvml_gpm``): computing, the memory's bandwidth, links; within this time and nothing before. Hopper and newer.
- Byte counters of PCIe and NVLink. A copy between GPUs, or from the host, shows there only: it is no utilisation.
- Samples of single processes, which name the one; they may be up to 1 s old.
- Utilisation, where there is no GPM. It reaches up to 1 s back, into the work of our own check before this one.
A copy within one GPU without GPM shows as utilisation of the memory, as far as the GPU counts that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from ctypes import c_int, c_void_p
from dataclasses import dataclass, field
from typing import Any

from gpu_checks import nvml_gpm, processes
from gpu_checks.host_view import read
from gpu_checks.nvml_api import NOT_AVAILABLE, Library

WINDOW_SECONDS = 0.11
"""GPM's counters are refreshed every 100 ms: two samples have to lie further apart."""

GPU_IDLE = 0x1
"""nvmlClocksEventReasonGpuIdle. A copy engine may work all the same."""

SETTLE_SECONDS = 3.0
"""How long a load has to last to count. After a process's end the driver clears the memory that it had (on an H200,
just after one that had held nearly all of it: 9 % of the bandwidth), and utilisation reaches up to 1 s back."""

QUIET_LOOKS = 2
"""A server that computes token by token pauses; it does not do so twice in a row for as long as we look."""

BUSY_PERCENT = 2.0
"""Of computing time. An idle GPU shows 0; what takes 2 % takes as much from a figure that is to be right to 2 %."""

BUSY_DRAM_PERCENT = 1.0
"""Of the memory's peak: an idle GPU shows 0.0, a copy by one copy engine 40 and more."""

BUSY_GB_S = 0.25
"""A hundredth of PCIe generation 4 x16; NVML's own questions make 1 to 2 MB/s."""

# nvmlFieldValue ids, with their scope: all links together (UINT_MAX), in KiB; PCIe in bytes.
ALL_LINKS = 0xFFFFFFFF
COUNTERS = (
    *((138, ALL_LINKS, "nvlink_tx", 1024), (139, ALL_LINKS, "nvlink_rx", 1024)),
    *((197, 0, "pcie_tx", 1), (198, 0, "pcie_rx", 1)),
)

PCIE_DIRECTIONS = (("pcie_tx", 0), ("pcie_rx", 1))
"""nvmlPcieUtilCounter_t."""

WORDS = {
    "nvlink_tx": "NVLink out",
    "nvlink_rx": "NVLink in",
    "pcie_tx": "PCIe out",
    "pcie_rx": "PCIe in",
    "computing": "computing",
    "sm": "multiprocessors",
    "dram": "memory bandwidth",
    "utilisation": "computing",
    "memory_utilisation": "memory",
}

GPM_NAMES = {
    nvml_gpm.GRAPHICS_UTIL: "computing",
    nvml_gpm.SM_UTIL: "sm",
    nvml_gpm.DRAM_BW_UTIL: "dram",
    nvml_gpm.PCIE_TX: "pcie_tx",
    nvml_gpm.PCIE_RX: "pcie_rx",
    nvml_gpm.NVLINK_RX: "nvlink_rx",
    nvml_gpm.NVLINK_TX: "nvlink_tx",
}


@dataclass(frozen=True)
class Process:
    """Another process with a context on a GPU. ``command``: its beginning; empty where it may not be read."""

    pid: int
    command: str
    used_bytes: int | None


@dataclass(frozen=True)
class Activity:
    """What a GPU did while we did nothing: percent and GB/s by name (``WORDS``), and who else has a context on it.

    ``signs``: what of it says that somebody uses the GPU; empty where nothing does. ``busy``: the pids that NVML names.
    """

    pci_bus_id: str
    percent: Mapping[str, float] = field(default_factory=dict)
    gb_s: Mapping[str, float] = field(default_factory=dict)
    others: tuple[Process, ...] = ()
    busy: tuple[int, ...] = ()
    gpm: bool = False

    @property
    def signs(self) -> tuple[str, ...]:
        """What says that somebody uses the GPU, in words."""
        found = [
            f"{WORDS[name]} {value:.0f} %"
            for name, value in self.percent.items()
            if value > (BUSY_DRAM_PERCENT if name == "dram" else BUSY_PERCENT)
        ]
        return (*found, *(f"{WORDS[name]} {value:.1f} GB/s" for name, value in self.gb_s.items() if value > BUSY_GB_S))

    @property
    def active(self) -> bool:
        """Whether anything says that somebody uses the GPU."""
        return bool(self.signs or self.busy)

    def sentence(self) -> str | None:
        """Who uses the GPU, and how that shows; None where nobody does."""
        if not self.active:
            return None
        named = [each for each in self.others if each.pid in self.busy] or list(self.others)
        who = ", ".join(f"pid {each.pid}{f' ({each.command})' if each.command else ''}" for each in named)
        unseen = "a process that can't be seen from here"
        how = ", ".join(self.signs) or "NVML's sample of that process"
        return f"GPU {self.pci_bus_id} is in use by {who or unseen}: {how}"


def command_of(arguments: str) -> str:
    """What a process is, from the text of its /proc/PID/cmdline: up to its first long option, behind which keys stand.

    >>> command_of("python3\\0-m\\0vllm.entrypoints\\0--api-key\\0secret\\0")
    'python3 -m vllm.entrypoints'
    """
    words = []
    for word in arguments.strip("\0").split("\0")[:4]:
        if word.startswith("--"):
            break
        words.append(word)
    return " ".join(words)[:120]


def family(pid: int) -> set[int]:
    """A process's own ones: its ancestors, and everything below the leader of its session (each check has its own)."""
    chain = [pid]
    while chain[-1] > 1:
        stat = read(f"/proc/{chain[-1]}/stat")
        if stat is None:
            break
        chain.append(int(stat.rpartition(")")[2].split()[1]))
    leader = os.getsid(pid)
    return {*chain, *processes.descendants(leader if leader in chain else pid)}


def others(nvml: Library, device: c_void_p, own: set[int]) -> tuple[Process, ...]:
    """Who else has a context on a GPU, as far as it can be seen: a container sees its own processes only."""
    found = {int(row.pid): int(row.used) for row in nvml.processes(device) or [] if row.pid not in own}
    return tuple(
        Process(pid, command_of(read(f"/proc/{pid}/cmdline") or ""), None if used == NOT_AVAILABLE else used)
        for pid, used in sorted(found.items())
    )


@dataclass
class _Watch:
    """One GPU while it is watched."""

    pci_bus_id: str
    device: c_void_p
    sample: c_void_p | None = None
    counts: dict[str, float] = field(default_factory=dict)
    begin: float = 0.0
    percent: dict[str, float] = field(default_factory=dict)
    gb_s: dict[str, float] = field(default_factory=dict)
    gpm: bool = False


def _count(nvml: Library, watch: _Watch) -> dict[str, float]:
    """The byte counters that the GPU has."""
    values = nvml.fields(watch.device, [(number, scope) for number, scope, _, _ in COUNTERS])
    return {name: value * unit for value, (_, _, name, unit) in zip(values, COUNTERS) if value is not None}


def _open(nvml: Library, watch: _Watch) -> None:
    watch.begin = time.monotonic()
    watch.counts = _count(nvml, watch)
    watch.sample = nvml_gpm.take(nvml, watch.device) if nvml_gpm.supported(nvml, watch.device) else None


def _throughput(nvml: Library, watch: _Watch) -> None:
    """PCIe's traffic where there is no counter of bytes: NVML measures 20 ms for each direction, while we wait.

    Of many such GPUs that takes longer than the window; left out, a copy to one of the last would show nowhere.
    """
    for name, number in PCIE_DIRECTIONS:
        if name not in watch.counts and watch.sample is None:
            kilobytes = nvml.number("nvmlDeviceGetPcieThroughput", watch.device, c_int(number))
            if kilobytes is not None:
                watch.gb_s[name] = kilobytes / 1e6


def _close(nvml: Library, watch: _Watch) -> None:
    counts = _count(nvml, watch)
    seconds = time.monotonic() - watch.begin
    for name, before in watch.counts.items():
        # A counter that wrapped, or began anew, says nothing.
        if counts.get(name, -1) >= before:
            watch.gb_s[name] = (counts[name] - before) / seconds / 1e9
    if watch.sample is not None:
        last = nvml_gpm.take(nvml, watch.device)
        if last is not None:
            found = {GPM_NAMES[number]: value for number, value in nvml_gpm.between(nvml, watch.sample, last).items()}
            watch.gpm = "dram" in found or "sm" in found
            for name, value in found.items():
                traffic = name.startswith(("pcie", "nvlink"))
                (watch.gb_s if traffic else watch.percent)[name] = value
            nvml_gpm.free(nvml, last)
        nvml_gpm.free(nvml, watch.sample)
    if not watch.gpm:
        rates = nvml.utilization(watch.device)
        if rates is not None:
            idle = (nvml.clock_reasons(watch.device) or 0) & GPU_IDLE
            watch.percent.update(utilisation=0.0 if idle else float(rates.gpu), memory_utilisation=float(rates.memory))


def _busy(nvml: Library, device: c_void_p, visible: tuple[Process, ...]) -> tuple[int, ...]:
    """Who of them kept the GPU busy within the last second.

    Only those that have a context now: a sample may be of a process that is gone, our own check before this one.
    """
    since = int((time.time() - 1.0) * 1e6)
    rows = nvml.process_samples(device, since)
    # Rows that a driver never filled hold nonsense.
    busy = {int(row.pid) for row in rows if row.time >= since and BUSY_PERCENT < max(row.sm, row.memory) <= 100}
    return tuple(each.pid for each in visible if each.pid in busy)


def look(nvml: Library, devices: Mapping[str, c_void_p], window: float = WINDOW_SECONDS) -> list[Activity]:
    """What each GPU does while we do nothing for this many seconds, all of them at once."""
    own = family(os.getpid())
    watches = [_Watch(pci_bus_id, device) for pci_bus_id, device in devices.items()]
    for watch in watches:
        _open(nvml, watch)
    deadline = time.monotonic() + window
    for watch in watches:
        _throughput(nvml, watch)
    time.sleep(max(0.0, deadline - time.monotonic()))
    for watch in watches:
        _close(nvml, watch)
    found = []
    for watch in watches:
        visible = others(nvml, watch.device, own)
        percent = {name: round(value, 2) for name, value in watch.percent.items()}
        gb_s = {name: round(value, 4) for name, value in watch.gb_s.items()}
        busy = _busy(nvml, watch.device, visible)
        found.append(Activity(watch.pci_bus_id, percent, gb_s, visible, busy, watch.gpm))
    return found


def sure(nvml: Library, devices: Mapping[str, c_void_p], settle: float = SETTLE_SECONDS) -> list[Activity]:
    """As ``look``; where somebody seems to use a GPU, again until that is over or has lasted for ``settle`` seconds.

    Over: two quiet looks, one after the other. What is seen at first may be the end of something that is gone.
    """
    begin = time.monotonic()
    before = found = look(nvml, devices)
    quiet = QUIET_LOOKS if not any(each.active for each in found) else 0
    while quiet < QUIET_LOOKS and time.monotonic() - begin < settle:
        before, found = found, look(nvml, devices)
        quiet = quiet + 1 if not any(each.active for each in found) else 0
    # For a GPU by itself the same: one that pauses in the last look only is in use.
    return [last if last.active else former for last, former in zip(found, before)]


def plain(activity: Activity) -> dict[str, Any]:
    """For the record."""
    return {
        "pci_bus_id": activity.pci_bus_id,
        "active": activity.sentence(),
        "percent": dict(activity.percent),
        "gb_s": dict(activity.gb_s),
        "others": [vars(each) for each in activity.others],
        "busy_pids": list(activity.busy),
        "gpm": activity.gpm,
    }
