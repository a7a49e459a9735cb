"""The check ``cuda``: start CUDA as the workload does, count the GPUs, compute on each, compare the results.

The healthy way is kept short: nodes are looked at but not opened, and nothing else of the host is read. Only once CUDA
refuses, or shows another number of GPUs, everything that can explain it is gathered.
"""

from __future__ import annotations

import dataclasses
import os
import time
from dataclasses import dataclass, field
from typing import Any, Callable

from gpu_checks import cuda_work, host_view, libcuda, nvml
from gpu_checks.cuda_api import Api, CudaError, loaded_path
from gpu_checks.device_access import Roots, excluded_minors, inspect, look, parse_driver_version
from gpu_checks.device_nodes import Node, NodeFacts, Reason, parse_proc_devices, plan_nodes
from gpu_checks.measurement import ERROR, MEASURED, NOT_MEASURED, Measurement
from gpu_checks.registry import Options, Report
from gpu_checks.triage import HUNG, Facts, blocked, diagnose
from gpu_checks.visible import VARIABLE

NAME = "cuda"
HERE = Roots()
ENVIRONMENT = (VARIABLE, "CUDA_DEVICE_ORDER", "CUDA_MPS_PIPE_DIRECTORY", "LD_LIBRARY_PATH", "CUDA_LAUNCH_BLOCKING")
"""What of the environment decides which GPUs and which libcuda a workload gets; and what makes it slow everywhere."""


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}


@dataclass
class State:
    """The check as it goes on. ``error``: what CUDA answered, as evidence. ``environment``: before ours is set."""

    roots: Roots
    report: Report
    facts: Facts
    devices: dict[str, tuple[int, ...]]
    api: Api | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    cuda_version: int | None = None
    error: CudaError | None = None
    environment: dict[str, str] = field(default_factory=_environment)


def look_at_nodes(options: Options, report: Report, roots: Roots) -> State:
    """The nodes by name and number, none of them opened."""
    report.doing("look at the device nodes")
    # No guess where this file can't be read: the check then ends with the error, which its caller reports.
    with open(os.path.join(roots.proc, "devices"), encoding="utf-8", errors="replace") as file:
        devices = parse_proc_devices(file.read())
    caps = _names(os.path.join(roots.dev, "nvidia-caps"))
    nodes = plan_nodes(_names(roots.dev), caps, options.expect_gpus)
    facts = Facts(
        nodes=tuple((node, look(node, roots, devices)) for node in nodes),
        expected=options.expect_gpus,
        visible=os.environ.get(VARIABLE),
        euid=os.geteuid(),
    )
    return State(roots, report, facts, devices)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def start(state: State, load: Callable[[], Api] = Api) -> None:
    """Load libcuda, call cuInit, count."""
    state.report.doing("load libcuda.so.1")
    begin = time.monotonic()
    try:
        state.api = load()
    except OSError as error:
        state.facts = dataclasses.replace(state.facts, load_error=str(error))
        return
    finally:
        state.seconds["load"] = round(time.monotonic() - begin, 6)
    state.report.doing("call cuInit", hung=HUNG)
    begin = time.monotonic()
    number, count = 0, None
    try:
        state.api.init()
    except CudaError as error:
        number, state.error = error.number, error
    state.seconds["init"] = round(time.monotonic() - begin, 6)
    try:
        state.cuda_version = state.api.driver_version()
        count = state.api.count() if number == 0 else None
    except CudaError as error:
        state.error = state.error or error
        number = number or error.number
    path = loaded_path(host_view.read("/proc/self/maps") or "")
    state.facts = dataclasses.replace(
        state.facts,
        init=number,
        init_name=state.error.name if state.error else "",
        count=count,
        library_path=path,
        library_version=libcuda.version_of(os.path.basename(path or "")),
    )


def gather(state: State) -> None:
    """Everything that can tell why: the nodes opened, versions, settings, the fabric, the kernel's log."""
    roots, facts = state.roots, state.facts
    state.report.doing("open and query the device nodes", hung=HUNG)
    excluded = excluded_minors(roots)
    nodes: tuple[tuple[Node, NodeFacts], ...] = tuple(
        (node, inspect(node, roots, state.devices, excluded).facts) for node, _ in facts.nodes
    )
    state.report.doing("ask libnvidia-ml", hung=HUNG)
    said = nvml.init()
    state.report.doing("read what the kernel says")
    version = host_view.read(os.path.join(roots.proc, "driver/nvidia/version")) or ""
    library = facts.library_path
    if facts.load_error is not None:
        found = libcuda.find(libcuda.search_folders(os.environ.get("LD_LIBRARY_PATH", "")))
        library = found[0].path if found else None
    state.facts = dataclasses.replace(
        facts,
        nodes=nodes,
        library_path=library,
        nvml=said,
        module_version=parse_driver_version(version),
        open_module=host_view.is_open_module(version),
        uvm_disable_hmm=host_view.read(os.path.join(roots.sys, "module/nvidia_uvm/parameters/uvm_disable_hmm")),
        nvswitch=host_view.has_nvswitch(roots.sys),
        fabric_manager=host_view.runs_fabric_manager(roots.proc),
        kernel_log=host_view.kernel_log(roots.dev),
    )


def compute(state: State) -> list[Measurement]:
    """Work on every GPU that CUDA shows, one after the other: a measurement each."""
    found = []
    if state.facts.count:
        cuda_work.pattern()  # once, and in nobody's time
    for ordinal in range(state.facts.count or 0):
        api = state.api
        if api is None:
            break
        begin = time.monotonic()
        state.report.doing(f"ask who GPU {ordinal} is", hung=HUNG)
        try:
            work = cuda_work.work_on(api, api.identity(ordinal), state.report)
            detail: dict[str, Any] = {**dataclasses.asdict(work.gpu), **work.evidence, "seconds": work.seconds}
            why, full = work.why, work.full
        except CudaError as error:
            why, full, detail = Reason("cuda.context_failed", f"GPU {ordinal}: {error}"), False, {"ordinal": ordinal}
        seconds = time.monotonic() - begin
        found.append(_gpu(ordinal, why, full, detail, seconds))
        state.report.add(found[-1])
    return found


def _gpu(ordinal: int, why: Reason | None, full: bool, detail: dict[str, Any], seconds: float) -> Measurement:
    """The measurement of one GPU. One that is full was not measured, and is not broken."""
    status = MEASURED if why is None else NOT_MEASURED if full else ERROR
    return Measurement(
        name=f"{NAME}.gpu{ordinal}",
        value=round(seconds * 1000, 1) if why is None else None,
        unit="ms",
        method="context, memory, kernel with its result compared, managed memory, all released",
        status=status,
        cause=None if why is None else why.cause,
        seconds=round(seconds, 6),
        detail=detail if why is None else {**detail, "message": why.message},
    )


def evidence(state: State) -> dict[str, Any]:
    """What was gathered once CUDA refused, for the record."""
    facts = state.facts
    return {
        "module_version": facts.module_version,
        "open_module": facts.open_module,
        "uvm_disable_hmm": facts.uvm_disable_hmm,
        "nvswitch": facts.nvswitch,
        "fabric_manager": facts.fabric_manager,
        "nvml_init": facts.nvml,
        "kernel_log": list(facts.kernel_log),
    }


def overall(state: State, why: Reason | None, gpus: list[Measurement], begin: float) -> Measurement:
    """The verdict-like sum: GPUs that computed right, and the first rung that blocks."""
    facts, seconds = state.facts, time.monotonic() - begin
    bad = next((each for each in gpus if each.status != MEASURED), None)
    cause, message, status = None, None, MEASURED
    if why is not None:
        cause, message, status = why.cause, why.message, ERROR
    elif bad is not None:
        # A GPU that fails comes before one that was only full.
        bad = next((each for each in gpus if each.status == ERROR), bad)
        cause, message, status = bad.cause, bad.detail["message"], bad.status
    working = sum(each.seconds for each in gpus)
    detail: dict[str, Any] = {
        "expected_gpus": facts.expected,
        "gpus_seen": facts.count,
        "euid": facts.euid,
        "environment": state.environment,
        "libcuda": {"path": facts.library_path, "version": facts.library_version, "cuda": state.cuda_version},
        "cuda_error": None if state.error is None else {"number": state.error.number, "name": state.error.name},
        "seconds": {
            **state.seconds,
            "gpus": round(working, 6),
            "ours": round(seconds - working - state.seconds.get("init", 0.0), 6),
        },
    }
    if why is not None:
        detail["found"] = evidence(state)
    if message is not None:
        detail["message"] = message
    value = sum(1 for each in gpus if each.status == MEASURED)
    method = "cuInit in a fresh process; on every GPU a context, memory, a kernel, managed memory; results compared"
    return Measurement(NAME, value, "gpus", method, status, cause, round(seconds, 6), detail=detail)


def climb(
    options: Options, report: Report, roots: Roots = HERE, load: Callable[[], Api] = Api
) -> tuple[State, Reason | None]:
    """CUDA's own rungs up to a count of GPUs; the reason where one of them does not hold."""
    state = look_at_nodes(options, report, roots)
    why = blocked(state.facts)
    if why is None:
        start(state, load)
        why = diagnose(state.facts)
        if why is not None:
            gather(state)
            # What was gathered explains it better; where it explains nothing, the first word stands.
            why = diagnose(state.facts) or why
    return state, why


def check(options: Options, report: Report, roots: Roots = HERE) -> None:
    """Climb CUDA's own rungs; measure every GPU, then the whole."""
    begin = time.monotonic()
    state, why = climb(options, report, roots)
    gpus = compute(state)
    report.add(overall(state, why, gpus, begin))
