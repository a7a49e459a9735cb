"""Why CUDA does not start, or shows another number of GPUs: a pure decision on facts that others gather.

CUDA's own numbers say too little (999 is one of six things), so each is read together with what ``open`` said, the
versions, the environment and the host. ``nvidia-smi`` is no witness: it works in nearly all of these cases.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_checks.device_nodes import CONTROL, GPU, UVM, Node, NodeFacts, Reason, reason, reason_before_open
from gpu_checks.visible import shown

# CUresult, from cuda.h.
NOT_INITIALIZED, NO_DEVICE, INVALID_DEVICE = 3, 100, 101
SYSTEM_NOT_READY, DRIVER_MISMATCH, COMPAT_NOT_SUPPORTED, UNKNOWN = 802, 803, 804, 999

NVML_MISMATCH = 18
"""NVML_ERROR_LIB_RM_VERSION_MISMATCH: what nvidia-smi calls a driver/library version mismatch."""

HUNG = "cuda.driver_hang"
"""Also given by the runner, which is the one to see that a call does not return."""


@dataclass(frozen=True)
class Facts:
    """What was seen around the start of CUDA. None, or empty: not known, or not reached."""

    nodes: tuple[tuple[Node, NodeFacts], ...] = ()
    load_error: str | None = None
    library_path: str | None = None
    library_version: str | None = None
    module_version: str | None = None
    open_module: bool | None = None
    init: int | None = None
    init_name: str = ""
    hung: str | None = None
    """The state of the process where a call did not return in time (``D (disk sleep)``)."""
    count: int | None = None
    expected: int | None = None
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES; None where it is not set."""
    uvm_disable_hmm: str | None = None
    nvswitch: bool | None = None
    fabric_manager: bool | None = None
    """Whether its process was seen; None where other processes can't be seen, as from inside a container."""
    euid: int = 0
    works_as_root: bool | None = None
    nvml: int | None = None
    kernel_log: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """How many GPU nodes have nothing against them."""
        return sum(1 for node, facts in self.nodes if node.kind == GPU and node_reason(facts) is None)

    @property
    def said(self) -> str:
        """CUDA's own words about its start: evidence, no diagnosis."""
        name = f" ({self.init_name})" if self.init_name else ""
        return f"cuInit gave {self.init}{name}"


def node_reason(facts: NodeFacts) -> Reason | None:
    """What is wrong with a node, as far as it was looked at."""
    return reason_before_open(facts) if facts.opened is None else reason(facts)


def blocked(facts: Facts) -> Reason | None:
    """The first node without which CUDA can't start, in the order in which CUDA opens them.

    Of the GPUs one that works is enough to start. One with a stranger's number blocks all the same: CUDA would open
    that stranger's device.
    """
    reasons = [(node, node_reason(seen)) for node, seen in facts.nodes if node.required]
    gpus = [why for node, why in reasons if node.kind == GPU and why is not None]
    foreign = [why for why in gpus if why.cause == "device.node_wrong_major"]
    for kind in (CONTROL, GPU, UVM):
        of_kind = [why for node, why in reasons if node.kind == kind]
        if kind == GPU and foreign:
            return foreign[0]
        if of_kind and all(why is not None for why in of_kind):
            return of_kind[0]
    return None


def diagnose(facts: Facts) -> Reason | None:
    """The first rung that blocks: nodes, library, start, number of GPUs. None where CUDA runs as it should."""
    if facts.hung is not None:
        return Reason(HUNG, f"a call of the driver did not return; the process is in state {facts.hung}")
    if facts.init != 0:
        found = blocked(facts)
        if found is not None:
            return found
    if facts.load_error is not None:
        where = f"; there is {facts.library_path}" if facts.library_path else ""
        return Reason("cuda.library_missing", f"libcuda.so.1 can't be loaded: {facts.load_error}{where}")
    if facts.init is None:
        return Reason("cuda.init_failed", "cuInit was not called")
    return _count(facts) if facts.init == 0 else _start(facts)


def _count(facts: Facts) -> Reason | None:
    """CUDA runs: does it show what the inventory says?"""
    if facts.count is None or facts.count == facts.expected or (facts.expected is None and facts.count > 0):
        return None
    text = f"CUDA sees {facts.count} GPUs, expected {facts.expected or 'at least 1'}"
    listed = shown(facts.visible, facts.gpus)
    if listed is not None and listed.count == facts.count and (facts.expected or 1) > facts.count:
        return Reason("cuda.device_hidden", f"{text}: {listed.text}")
    blocking = next(
        (why for node, seen in facts.nodes if node.kind == GPU and (why := node_reason(seen)) is not None), None
    )
    if blocking is not None and facts.count < (facts.expected or 1):
        return Reason(blocking.cause, f"{text}: {blocking.message}")
    return Reason("cuda.gpu_count", text)


def _start(facts: Facts) -> Reason:
    """CUDA refuses to start although its nodes open and its library is there."""
    said, number = facts.said, facts.init
    versions = f"module {facts.module_version}, libcuda {facts.library_version} ({facts.library_path})"
    differ = None not in (facts.module_version, facts.library_version) and (
        facts.module_version != facts.library_version
    )
    if number == COMPAT_NOT_SUPPORTED:
        return Reason("cuda.compat_library", f"{said}: compatibility libraries on a GPU that takes none: {versions}")
    if number == DRIVER_MISMATCH:
        return Reason("cuda.version_mismatch", f"{said}: {versions}")
    listed = shown(facts.visible, facts.gpus)
    if number in (NO_DEVICE, INVALID_DEVICE) and listed is not None and (listed.bad or listed.count == 0):
        return Reason("cuda.device_hidden", f"{said}: {listed.text}")
    if differ or facts.nvml == NVML_MISMATCH:
        return Reason("cuda.version_mismatch", f"{said}: {versions}")
    if number == SYSTEM_NOT_READY:
        return _not_ready(facts)
    if number == NOT_INITIALIZED and facts.open_module is not False and facts.uvm_disable_hmm == "N":
        return Reason("cuda.hmm_failed", f"{said}: open kernel modules, uvm_disable_hmm is N")
    if facts.euid != 0 and facts.works_as_root:
        return Reason("cuda.permission", f"{said} as uid {facts.euid}, and CUDA starts as root")
    if number == NO_DEVICE:
        log = next((line for line in reversed(facts.kernel_log) if "RmInitAdapter failed" in line), None)
        if log is not None:
            return Reason("driver.gpu_not_started", f"{said}; the kernel log has: {log}")
        return Reason("cuda.no_device", f"{said}, although its device nodes open")
    return Reason("cuda.init_failed", f"{said}{_ruled_out(facts)}")


def _not_ready(facts: Facts) -> Reason:
    """802, "system not yet initialized": a fabric manager that is missing, but only where there is a fabric."""
    if facts.nvswitch:
        state = {True: "runs", False: "does not run", None: "can't be seen from here"}[facts.fabric_manager]
        return Reason("cuda.fabric_manager", f"{facts.said}: there is an NVSwitch, nvidia-fabricmanager {state}")
    why = "no NVSwitch on this host, so no fabric manager is missing" if facts.nvswitch is False else "reason unknown"
    return Reason("cuda.system_not_ready", f"{facts.said}: {why}")


def _ruled_out(facts: Facts) -> str:
    """What it is not, for who goes on searching."""
    parts = []
    if facts.init == NOT_INITIALIZED and facts.uvm_disable_hmm == "Y":
        parts.append("HMM is switched off already (uvm_disable_hmm is Y), so it is not that")
    if facts.euid != 0 and facts.works_as_root is None:
        parts.append(f"ran as uid {facts.euid}; whether root can was not tried")
    return "".join(f"; {part}" for part in parts)
