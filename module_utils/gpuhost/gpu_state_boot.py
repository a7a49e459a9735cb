"""What ``gpuhost-gpu-state.service`` does at every boot: set what GPUs have forgotten, and record their state."""

from __future__ import annotations

from . import gpu_lost, gpu_query, gpu_state, gpu_state_unit, persistenced, tuning
from .driver_facts import read_gpus
from .errors import stop
from .host_io import Host
from .rollfile import LOCK_FILE
from .workloads import BOOT_ID

LOCK_S = 60.0


def at_boot(host: Host) -> str:
    """A line for the journal. Raises Stop only where there is a GPU and none answers.

    A value that a card refuses is a finding of every audit and no failure here: a failed unit of ours keeps a kernel
    upgrade from its trial, and takes a good one back.
    """
    declared, persistence = gpu_state_unit.settings(host)
    with host.lock(LOCK_FILE, LOCK_S):
        report = gpu_query.ask(host)
        if not report.gpus and not read_gpus(host):
            return "no NVIDIA GPU on the bus"
        if not report.gpus:
            raise stop("gpu.not_answering", "nvidia-smi", report.problem or "no GPU answers", "GPUs")
        seen = gpu_state.read(host, report.gpus)
        refused = gpu_state.refusals(report.gpus, declared, seen)
        modes = persistenced.modes(report.gpus).writes if persistence else ()
        results = tuning.apply(host, [*modes, *gpu_state.declared_findings(report.gpus, declared, seen)[1]], False)
        _record(host)
    said = [f"not set: {item.sentence}" for item in refused]
    said += [
        f"{item.write.object}: refused: {item.reason}" if item.status == "refused" else item.line
        for item in results
        if item.status != "same"
    ]
    return "; ".join(said) or "every GPU is as declared"


def _record(host: Host) -> None:
    gpus = gpu_query.ask(host).gpus
    gpu_lost.remember(host, gpus, gpu_state.read(host, gpus), host.read_line(BOOT_ID))
