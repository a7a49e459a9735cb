"""What ``gpuhost-gpu-state.service`` does at every boot: set what GPUs have forgotten, and record their state."""

from __future__ import annotations

from . import gpu_lost, gpu_query, gpu_state, gpu_state_unit, persistenced, tuning
from .errors import Stop, stop
from .host_io import Host
from .rollfile import LOCK_FILE
from .workloads import BOOT_ID

LOCK_S = 60.0


def at_boot(host: Host) -> str:
    """A line for the journal. Raises Stop where a value is refused; the state is recorded all the same."""
    declared, persistence = gpu_state_unit.settings(host)
    with host.lock(LOCK_FILE, LOCK_S):
        report = gpu_query.ask(host)
        if not report.gpus:
            raise stop("gpu.not_answering", "nvidia-smi", report.problem or "no GPU answers", "GPUs")
        seen = gpu_state.read(host, report.gpus)
        refused = gpu_state.refusals(report.gpus, declared, seen)
        modes = persistenced.modes(report.gpus).writes if persistence else ()
        results = tuning.apply(host, [*modes, *gpu_state.declared_findings(report.gpus, declared, seen)[1]], False)
        _record(host)
    if refused:
        raise Stop(refused[0])
    failed = [f"{item.write.object}: {item.reason}" for item in results if item.status == "refused"]
    if failed:
        raise stop("gpu.refused", "nvidia-smi", "; ".join(failed), "as declared")
    return "; ".join(item.line for item in results) or "every GPU is as declared"


def _record(host: Host) -> None:
    gpus = gpu_query.ask(host).gpus
    gpu_lost.remember(host, gpus, gpu_state.read(host, gpus), host.read_line(BOOT_ID))
