"""The PCIe links of the GPUs while data runs over them: an idle link saves power at the lowest speed, proving nothing.

The load is a copy loop from page-locked memory to every GPU at once, through the driver's own library.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from ctypes import c_void_p
from dataclasses import dataclass, field
from typing import Any

from gpu_checks.cuda_api import CudaError
from gpu_checks.cuda_async import AsyncApi
from gpu_checks.device_nodes import Reason
from gpu_checks.health import pci
from gpu_checks.health.pci import Link, Speed
from gpu_checks.nvml_api import Library, address_of
from gpu_checks.registry import Report
from gpu_checks.triage import HUNG

LOAD_SECONDS = 0.3
"""A link takes some tens of milliseconds to train upwards."""

CHUNK_BYTES = 8 << 20
COPIES = 4
"""32 MiB at a time: 0.6 ms over generation 5 x16, 0.15 s over a link that has fallen to generation 1 x1."""

NOTHING = "no link speed is told here"


@dataclass
class Seen:
    """One GPU's links: at rest, and the best of each while data ran over them. ``why``: why no data did."""

    address: str
    links: list[Link]
    source: str
    rest: list[Speed] = field(default_factory=list)
    best: list[Speed] = field(default_factory=list)
    looks: int = 0
    gb_s: float | None = None
    why: str = ""


class Reader:
    """Where the links are read: sysfs; from NVML where sysfs is hidden."""

    def __init__(self, sys: str, nvml: Library, device: c_void_p, address: str) -> None:
        """The links of one GPU."""
        self._sys, self._nvml, self._device, self._address = sys, nvml, device, address
        self._hidden = pci.now(sys, address) == Speed()

    def begin(self) -> Seen:
        """What the links can do, and what they do at rest."""
        if self._hidden:
            can = self._ask("nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkWidth")
            seen = Seen(self._address, [Link(self._address, None, can, whole=False)], "NVML")
        else:
            seen = Seen(self._address, pci.links(self._sys, self._address), "sysfs")
        seen.rest = self.now(seen)
        seen.best = list(seen.rest)
        return seen

    def now(self, seen: Seen) -> list[Speed]:
        """What every link does now."""
        if self._hidden:
            return [self._ask("nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth")]
        return [pci.now(self._sys, link.device) for link in seen.links]

    def _ask(self, generation: str, width: str) -> Speed:
        number = self._nvml.number(generation, self._device) or 0
        lanes = self._nvml.number(width, self._device)
        return Speed(pci.GENERATIONS.get(number), pci.parse_lanes(str(lanes)))


def better(one: Speed, other: Speed) -> Speed:
    """The best of both, each number for itself."""
    return Speed(max(one.gt_s or 0, other.gt_s or 0) or None, max(one.lanes or 0, other.lanes or 0) or None)


@dataclass(frozen=True)
class _Load:
    ordinal: int
    stream: c_void_p
    target: int
    reader: Reader
    seen: Seen


def _start(api: AsyncApi, readers: dict[str, Reader], found: dict[str, Seen], report: Report) -> list[_Load]:
    """A context and memory on each GPU that CUDA shows; one that has no room is left out, with the reason."""
    loads = []
    for ordinal in range(api.count()):
        report.doing(f"make a context on GPU {ordinal} for the load on its link", hung=HUNG)
        address = address_of(api.identity(ordinal).pci_bus_id)
        if address in found:
            try:
                api.retain(ordinal)
                loads.append(_Load(ordinal, api.stream(), api.allocate(CHUNK_BYTES), readers[address], found[address]))
            except CudaError as error:
                found[address].why = str(error)
    for address, seen in found.items():
        if not seen.why and all(load.seen.address != address for load in loads):
            seen.why = "CUDA does not show this GPU to this process"
    return loads


def _round(api: AsyncApi, loads: Sequence[_Load], source: int) -> None:
    """Queue copies to every GPU, read all links while they run, wait."""
    for load in loads:
        api.use(load.ordinal)
        for _ in range(COPIES):
            api.copy(load.target, source, CHUNK_BYTES, load.stream)
    for load in loads:
        current = load.reader.now(load.seen)
        load.seen.best = [better(one, other) for one, other in zip(load.seen.best, current)]
        load.seen.looks += 1
    for load in loads:
        api.use(load.ordinal)
        api.synchronize(load.stream)


def _copy(api: AsyncApi, loads: Sequence[_Load]) -> None:
    """Copy for a while; the copies of one GPU after the other, those of all at once."""
    api.use(loads[0].ordinal)
    memory = api.host_memory(CHUNK_BYTES)
    begin, rounds = time.monotonic(), 0
    while time.monotonic() - begin < LOAD_SECONDS:
        _round(api, loads, memory.address)
        rounds += 1
    seconds = time.monotonic() - begin
    for load in loads:
        load.seen.gb_s = round(rounds * COPIES * CHUNK_BYTES / seconds / 1e9, 2)
    api.free_host(memory)


def put_load_on(readers: dict[str, Reader], found: dict[str, Seen], report: Report) -> None:
    """Copy to every GPU at once and keep the best that each link shows. What keeps it from that is left in ``why``."""
    with contextlib.ExitStack() as stack:
        try:
            report.doing("start CUDA for the load on the links", hung=HUNG)
            api = AsyncApi()
            api.init()
            stack.callback(_release, api)
            loads = _start(api, readers, found, report)
            report.doing("copy to every GPU and read its links", hung=HUNG)
            if loads:
                _copy(api, loads)
        except (OSError, CudaError) as error:
            for seen in found.values():
                seen.why = seen.why or str(error)


def _release(api: AsyncApi) -> None:
    with contextlib.suppress(CudaError):  # what failed before fails again here
        api.release_all()


def judge(seen: Seen) -> tuple[list[Reason], str]:
    """What is wrong with the links of a GPU, and why one can't be judged (empty: all can).

    A link that runs at what both its ends can do is right, loaded or not. Below that it is wrong only where data ran
    over it and both ends are known: a virtual machine does not show the port above.
    """
    faults, unknown = [], []
    for link, best in zip(seen.links, seen.best):
        name = f"{link.device} below {link.port}" if link.port else link.device
        can, text = link.can, f"{name} runs at {best.text}"
        if best.gt_s is None or best.lanes is None or can.gt_s is None or can.lanes is None:
            unknown.append(f"{name}: {NOTHING}")
        elif best.gt_s >= can.gt_s and best.lanes >= can.lanes:
            continue
        elif not link.whole:
            unknown.append(f"{text}, could do {can.text}; what the port above it can do is not known here")
        elif seen.why or not seen.looks:
            unknown.append(f"{text} at rest, could do {can.text}; no load: {seen.why or 'not asked for'}")
        else:
            cause = "health.link_width" if best.lanes < can.lanes else "health.link_speed"
            faults.append(Reason(cause, f"{text} under load, both ends can do {can.text}"))
    return faults, "; ".join(unknown) or ("" if seen.links else NOTHING)


def plain(seen: Seen) -> dict[str, Any]:
    """For the record. ``load_gb_s``: all GPUs at once, from the clock of the host; no benchmark."""
    rows = zip(seen.links, seen.rest, seen.best)
    return {
        "source": seen.source,
        "links": [
            {"device": link.device, "port": link.port, "can": link.can.text, "rest": rest.text, "best": best.text}
            for link, rest, best in rows
        ],
        "looks_under_load": seen.looks,
        "load_gb_s": seen.gb_s,
        "no_load": seen.why,
    }
