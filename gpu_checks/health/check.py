"""The check ``health``: what the driver, the kernel and the bus say of the GPUs, without torch.

It works on the host and in a container, and says what it can't see there. What was not seen is never reported as zero.
"""

from __future__ import annotations

import dataclasses
import os
import time
from dataclasses import dataclass, field
from typing import Any

from gpu_checks import nvml
from gpu_checks.device_access import Roots
from gpu_checks.device_nodes import Reason
from gpu_checks.health import count, link, nvlink, xids
from gpu_checks.health import gpu as one_gpu
from gpu_checks.health.count import Here
from gpu_checks.health.nvlink import NvLinks
from gpu_checks.health.xids import Log
from gpu_checks.measurement import ERROR, MEASURED, NOT_MEASURED, Measurement
from gpu_checks.nvml import Session
from gpu_checks.nvml_api import Library
from gpu_checks.registry import Options, Report
from gpu_checks.triage import HUNG

NAME = "health"
HERE = Roots()


@dataclass
class State:
    """The check as it goes on. ``faults``: by the GPU's address; ``unseen``: what could not be looked at, in words."""

    report: Report
    roots: Roots
    begin: float
    faults: dict[str, list[Reason]] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)

    def add(self, where: str, address: str, faults: list[Reason], begin: float, **more: Any) -> None:
        """Report one part of one GPU; its faults count for the whole."""
        self.faults.setdefault(address, []).extend(faults)
        more.setdefault("status", ERROR if faults else MEASURED)
        more.setdefault("cause", faults[0].cause if faults else None)
        if faults:
            rows = [dataclasses.asdict(each) for each in faults]
            message = "; ".join(f"{address}: {each.message}" for each in faults)
            more["detail"] = {**more["detail"], "faults": rows, "message": message}
        self.report.add(Measurement(f"{NAME}.{where}", seconds=round(time.monotonic() - begin, 6), **more))


def no_nvml(session: Session, roots: Roots) -> Reason | None:
    """Why NVML does not answer; None where it does."""
    if session.library is not None:
        return None
    if not os.path.exists(os.path.join(roots.proc, "driver/nvidia/version")):
        return Reason("driver.not_loaded", "there is no /proc/driver/nvidia/version: no NVIDIA driver is loaded")
    if session.number is None:
        return Reason("nvml.missing", "libnvidia-ml.so.1 can't be loaded here")
    return Reason("nvml.failed", f"nvmlInit gave {session.number} ({session.error_text(session.number)})")


def _state(state: State, session: Session, gpu: Here, log: Log | None) -> None:
    """Memory, recovery, clocks and XIDs of one GPU."""
    begin = time.monotonic()
    nvml_library, device = session.library, gpu.device
    if nvml_library is None or device is None:
        return
    state.report.doing(f"ask NVML for the health of GPU {gpu.index} ({gpu.address})", hung=HUNG)
    facts, now = one_gpu.ask(nvml_library, device), session.state(gpu.address)
    xids = [] if log is None else log.of(gpu.address)
    faults = one_gpu.judge(facts, xids, now.throttle_reasons or [])
    detail = {
        "pci_bus_id": gpu.address,
        "uuid": nvml_library.text("nvmlDeviceGetUUID", device),
        "name": nvml_library.text("nvmlDeviceGetName", device),
        **dataclasses.asdict(facts),
        "recovery": None if facts.recovery_action is None else one_gpu.action_text(facts.recovery_action),
        "xids": None if log is None else [dataclasses.asdict(each) for each in xids],
        "state": dataclasses.asdict(now),
        "others": [vars(each) for each in session.others(gpu.address)],
    }
    method = "NVML: memory errors, row remapping, recovery action, throttle reasons; XIDs in the kernel's log"
    state.add(f"gpu{gpu.index}", gpu.address, faults, begin, value=len(faults), unit="faults", method=method,
              detail=detail)  # fmt: skip


def _nvlinks(state: State, nvml_library: Library, gpus: list[Here]) -> None:
    """The NVLinks of every GPU that has some: how many are up."""
    begin = time.monotonic()
    state.report.doing("ask NVML for the NVLinks", hung=HUNG)
    found: dict[str, NvLinks] = {}
    for gpu in gpus:
        links = nvlink.ask(nvml_library, gpu.device) if gpu.device is not None else None
        if links is not None:
            found[gpu.address] = links
    for gpu in gpus:
        own = found.get(gpu.address)
        if own is None:
            continue
        fault = nvlink.judge(own, [each for address, each in found.items() if address != gpu.address])
        detail = {"pci_bus_id": gpu.address, "supported": len(own.up), "down": own.down, "errors": dict(own.errors)}
        state.add(f"nvlink.gpu{gpu.index}", gpu.address, [fault] if fault else [], begin, value=own.active,
                  unit="links", method="NVML: state of every NVLink", detail=detail)  # fmt: skip


def _links(state: State, nvml_library: Library, gpus: list[Here], quick: bool) -> None:
    """The PCIe links, with data running over them; where time is short only if one does not show its best at rest."""
    begin = time.monotonic()
    state.report.doing("read the links of the GPUs")
    readers = {
        gpu.address: link.Reader(state.roots.sys, nvml_library, gpu.device, gpu.address)
        for gpu in gpus
        if gpu.device is not None
    }
    seen = {address: reader.begin() for address, reader in readers.items()}
    if seen and not (quick and not any(link.judge(each)[1] for each in seen.values())):
        link.put_load_on(readers, seen, state.report)
    method = "width and speed of every PCIe link up to the root, while copies from the host run"
    for gpu in gpus:
        if gpu.address not in seen:
            continue
        own = seen[gpu.address]
        faults, unknown = link.judge(own)
        lanes = own.best[0].lanes if own.best else None
        more: dict[str, Any] = {"value": lanes, "unit": "lanes", "method": method, "detail": link.plain(own)}
        if not faults and (unknown or lanes is None):
            state.unseen.append(f"link of {gpu.address}: {unknown}")
            more["detail"]["message"] = unknown
            more.update(value=None, status=NOT_MEASURED, cause="health.link_unknown")
        state.add(f"link.gpu{gpu.index}", gpu.address, faults, begin, **more)


def _whole(state: State, options: Options, gpus: list[Here], missing: list[Reason], detail: dict[str, Any]) -> None:
    """The number of GPUs without a fault; the first cause where there is any."""
    every = [*missing, *(fault for faults in state.faults.values() for fault in faults)]
    good = sum(1 for gpu in gpus if gpu.device is not None and not state.faults.get(gpu.address))
    detail = {**detail, "expected_gpus": options.expect_gpus, "gpus_seen": len(gpus), "not_seen": state.unseen}
    if every:
        texts = [each.message for each in missing]
        texts += [f"{address}: {each.message}" for address, found in state.faults.items() for each in found]
        detail["message"] = "; ".join(texts)
    seconds = round(time.monotonic() - state.begin, 6)
    method = "NVML, the kernel's log, the PCI bus; links under load"
    status, cause = (ERROR, every[0].cause) if every else (MEASURED, None)
    state.report.add(Measurement(NAME, good, "gpus", method, status, cause, seconds, detail=detail))


def check(options: Options, report: Report, roots: Roots = HERE) -> None:
    """Look at every GPU, then at all together."""
    state = State(report, roots, time.monotonic())
    report.doing("read the kernel's log")
    log = xids.read(roots.dev)
    if log is None:
        state.unseen.append("XIDs: the kernel's log may not be read here")
    elif log.since_s:
        state.unseen.append(f"XIDs of the first {log.since_s:.0f} s after boot: the kernel's log has lost them")
    detail: dict[str, Any] = {"xids": None if log is None else [dataclasses.asdict(each) for each in log.xids]}
    report.doing("start NVML", hung=HUNG)
    with nvml.session() as session:
        why = no_nvml(session, roots)
        if why is not None or session.library is None:
            _whole(state, options, [], [why] if why else [], detail)
            return
        report.doing("count the GPUs", hung=HUNG)
        gpus = count.here(session.library)
        bus = count.on_the_bus(roots)
        missing, unseen = count.judge(gpus, bus, options.expect_gpus)
        state.unseen += unseen
        detail["bus"] = None if bus is None else [dataclasses.asdict(each) for each in bus]
        for gpu in gpus:
            _state(state, session, gpu, log)
        _nvlinks(state, session.library, gpus)
        _links(state, session.library, gpus, options.quick)
        _whole(state, options, gpus, missing, detail)
