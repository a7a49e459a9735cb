"""What CUDA needs of a host at run time: persistence, peermem, memlock, HMM, what is declared for GPUs, their health.

``read`` costs one nvidia-smi, one systemctl and one journalctl, whatever the number of GPUs; MIG mode costs two more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import gpu_health, gpu_lost, gpu_query, gpu_state, gpu_state_unit, memlock, peermem, persistenced, xids
from .documents import Blocker, Finding, Severity
from .driver_facts import OPEN_LICENSE, loaded_license, read_gpus
from .gpu_query import Report
from .gpu_state import Declared, Seen
from .host_io import Host
from .pcie_tree import DEVICES
from .tune_step import Concern
from .tuning import Wanted
from .workloads import BOOT_ID

__all__ = ["CONCERN", "Facts", "Wishes", "read", "refusals", "remember", "wanted", "wishes"]

CONCERN = Concern("gpu_runtime", "gpu_state", "gpu.refused")
HMM_PARAMETER = "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm"
NOT_INITIALIZED = 3
"""CUDA_ERROR_NOT_INITIALIZED: what cuInit says where HMM could not start (case cuda-01, row f)."""


@dataclass(frozen=True)
class Hmm:
    """HMM of nvidia-uvm, which only the open modules have. ``disabled``: Y, N, or None for a driver without it."""

    disabled: str | None = None
    open_modules: bool = False
    cu_init: int | None = None
    """What cuInit said, where it was called; None where nobody has."""


@dataclass(frozen=True)
class Facts:
    """Everything that is looked at."""

    on_the_bus: tuple[str, ...] = ()
    """NVIDIA's GPUs by PCI address, whether or not a driver has them; without those of virtual machines."""
    given_away: int = 0
    """GPUs of virtual machines, where there are no others."""
    driver: bool = False
    report: Report = field(default_factory=Report)
    seen: Seen = field(default_factory=Seen)
    persistenced: persistenced.Facts = field(default_factory=persistenced.Facts)
    peermem: peermem.Facts = field(default_factory=peermem.Facts)
    memlock: memlock.Facts = field(default_factory=memlock.Facts)
    hmm: Hmm = field(default_factory=Hmm)
    unit: gpu_state_unit.Facts = field(default_factory=gpu_state_unit.Facts)
    log: xids.Log = field(default_factory=xids.Log)
    before_boot: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    boot_id: str = ""


@dataclass(frozen=True)
class Wishes:
    """The role's variables."""

    persistence: bool = True
    peermem: peermem.Wish = "auto"
    memlock: memlock.Wish = "report"
    uvm_disable_hmm: bool = False
    declared: Declared = field(default_factory=Declared)


def wishes(params: Mapping[str, Any]) -> Wishes:
    """From the module's parameters. Raises ValueError where a number is none."""
    return Wishes(
        persistence=params["persistence"],
        peermem=params["peermem"],
        memlock=params["memlock"],
        uvm_disable_hmm=params["uvm_disable_hmm"],
        declared=gpu_state_unit.declared_of(dict(params)),
    )


def read(host: Host, cu_init: int | None = None) -> Facts:
    """The facts; without a GPU next to nothing is looked at. ``cu_init``: what cuInit gave, where a caller asked it."""
    found = [item["address"] for item in read_gpus(host)]
    bus = tuple(address for address in found if not _is_given_away(host, address))
    if not bus:
        return Facts(given_away=len(found))
    driver = host.exists("/sys/module/nvidia")
    report = gpu_query.ask(host) if driver else Report()
    boot_id = host.read_line(BOOT_ID)
    # Only root may read the record; without it nothing can be said of a loss.
    record = gpu_lost.load(host) if host.is_root() else {}
    return Facts(
        on_the_bus=bus,
        driver=driver,
        report=report,
        seen=gpu_state.read(host, report.gpus),
        persistenced=persistenced.read(host),
        peermem=peermem.read(host),
        memlock=memlock.read(host),
        hmm=Hmm(host.read_line(HMM_PARAMETER) or None, loaded_license(host) == OPEN_LICENSE, cu_init),
        unit=gpu_state_unit.read(host),
        log=xids.read(host),
        before_boot=gpu_lost.before_boot(record, boot_id),
        boot_id=boot_id,
    )


def _is_given_away(host: Host, address: str) -> bool:
    """Whether vfio-pci has it: it belongs to a virtual machine, and no driver of the host is to answer for it."""
    return (host.resolved(f"{DEVICES}/{address}/driver") or "").rpartition("/")[2] == "vfio-pci"


def refusals(facts: Facts, wish: Wishes) -> list[Blocker]:
    """Declared values that a card can't have: with one of them nothing is set."""
    return gpu_state.refusals(facts.report.gpus, wish.declared, facts.seen)


def unit_due(facts: Facts, wish: Wishes) -> bool:
    """Whether the host needs a unit of ours at boot. That no GPU answers today is no reason to take it away."""
    daemon = facts.persistenced
    alone = daemon.asked and daemon.load != "masked" and not persistenced.has_daemon(daemon)
    return wish.declared.anything or (wish.persistence and alone)


def wanted(facts: Facts, wish: Wishes) -> Wanted:
    """Findings and writes. What was refused for its value gives a finding and no write."""
    if not facts.on_the_bus:
        more = f" that the host itself uses ({facts.given_away} bound to vfio-pci)" if facts.given_away else ""
        return Wanted((_plain("gpu.not_answering", "info", f"not applicable: no NVIDIA GPU{more}", ""),))
    if not facts.driver:
        fix = "Load the driver: modprobe nvidia; dmesg | grep NVRM"
        text = f"the nvidia module is not loaded; on the bus: {', '.join(facts.on_the_bus)}"
        return Wanted((_plain("gpu.not_answering", "p0_runtime", text, fix),))
    gpus = facts.report.gpus
    due = unit_due(facts, wish)
    declared, declared_writes = gpu_state.declared_findings(gpus, wish.declared, facts.seen)
    unit, unit_writes = gpu_state_unit.wanted(facts.unit, wish.declared, wish.persistence, due)
    by_unit = due and any(item.severity == "good" for item in unit)
    parts = (
        persistenced.wanted(facts.persistenced, gpus, wish.persistence, by_unit),
        peermem.wanted(facts.peermem, wish.peermem),
        memlock.wanted(facts.memlock, wish.memlock),
    )
    refused = bool(refusals(facts, wish))
    findings = [
        *gpu_health.not_answering(facts.report, facts.on_the_bus),
        *(item for part in parts for item in part.findings),
        hmm(facts.hmm, wish.uvm_disable_hmm),
        *declared,
        *unit,
        gpu_lost.lost(gpus, facts.seen, facts.before_boot),
        *gpu_health.findings(facts.report),
        *xids.findings(facts.log),
    ]
    writes = [*(item for part in parts for item in part.writes), *declared_writes, *unit_writes]
    return Wanted(tuple(findings), () if refused else tuple(writes))


def remember(host: Host, facts: Facts) -> bool:
    """Keep the GPUs' state for after the next reboot: at each tune, each gate and each boot."""
    return gpu_lost.remember(host, facts.report.gpus, facts.seen, facts.boot_id)


def hmm(facts: Hmm, wished: bool) -> Finding:
    """Whether HMM keeps CUDA from starting; the option itself is boot_config's to set."""
    fix = (
        "boot_config_modprobe_options: {nvidia_uvm: {uvm_disable_hmm: '1'}}, then gpuhost prepare and a reboot; "
        "without GPU users at once: rmmod nvidia_uvm && modprobe nvidia_uvm uvm_disable_hmm=1"
    )
    failed = facts.cu_init == NOT_INITIALIZED
    if not facts.open_modules or facts.disabled is None:
        which = "the proprietary modules have no HMM" if not facts.open_modules else "nvidia_uvm has no such option"
        return _hmm("info", f"not applicable: {which}")
    if facts.disabled == "N" and (failed or wished):
        text = "N, and cuInit gives 3 (not initialized)" if failed else "N"
        return _hmm("p1_reboot", text, fix)
    if facts.disabled == "N":
        return _hmm("good", "N, and CUDA starts") if facts.cu_init == 0 else _hmm("info", "N; nothing asks for Y")
    if failed:
        return _hmm("info", "Y already: cuInit gives 3 for another reason")
    return _hmm("good" if wished else "info", "Y")


def _hmm(severity: Severity, observed: str, fix: str = "") -> Finding:
    why = "On some kernels HMM can't start, and then no CUDA program does: cuInit gives 3."
    expected = "Y where it is declared, or where CUDA does not start"
    return Finding("gpu.uvm_hmm", "driver", severity, observed, expected, why, fix, HMM_PARAMETER)


def _plain(code: str, severity: Severity, observed: str, fix: str) -> Finding:
    why = "Everything else here needs a GPU that its driver has taken."
    return Finding(code, "gpu_state", severity, observed, "GPUs with their driver", why, fix, "/sys/bus/pci/devices")
