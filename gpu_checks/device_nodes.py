"""Which device nodes CUDA needs, and what is wrong with one: pure decisions on facts that others gather."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass

from gpu_checks.nvidia_ioctl import Query, errno_name

CONTROL, GPU, UVM, UVM_TOOLS, CAPABILITY = "control", "gpu", "uvm", "uvm_tools", "capability"

REQUIRED = frozenset({CONTROL, GPU, UVM})
"""Without these no CUDA call works. The others serve profilers and MIG."""

DRIVER_NAMES: dict[str, tuple[str, ...]] = {
    # Older drivers register one name for both, "nvidia-frontend"; newer ones "nvidia" and "nvidiactl".
    CONTROL: ("nvidiactl", "nvidia", "nvidia-frontend"),
    GPU: ("nvidia", "nvidia-frontend", "nvidiactl"),
    UVM: ("nvidia-uvm",),
    UVM_TOOLS: ("nvidia-uvm",),
    CAPABILITY: ("nvidia-caps",),
}


@dataclass(frozen=True)
class Node:
    """A device node to look at; ``name`` is its path below /dev."""

    name: str
    kind: str

    @property
    def required(self) -> bool:
        """True where CUDA cannot start without it."""
        return self.kind in REQUIRED


@dataclass(frozen=True)
class NodeFacts:
    """What was seen at one node. Fields that were not reached are None."""

    path: str
    stat_errno: int | None = None
    is_char: bool | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    major: int | None = None
    minor: int | None = None
    driver_names: tuple[str, ...] = ()
    driver_majors: tuple[int, ...] = ()
    nodev: bool | None = None
    gpu_excluded: bool = False
    opened: bool | None = None
    open_errno: int | None = None
    open_us: float | None = None
    query: Query | None = None


@dataclass(frozen=True)
class Reason:
    """Why a node can't be used: a registered cause and a sentence with the observed and the expected."""

    cause: str
    message: str


def parse_proc_devices(text: str) -> dict[str, tuple[int, ...]]:
    """Character majors by driver name. A name can have several, and a number several names.

    >>> parse_proc_devices("Character devices:\\n195 nvidia\\n\\nBlock devices:\\n7 loop\\n")
    {'nvidia': (195,)}
    """
    majors: dict[str, tuple[int, ...]] = {}
    character_part = text.partition("Block devices:")[0]
    for number, name in re.findall(r"^\s*(\d+)\s+(\S+)\s*$", character_part, re.MULTILINE):
        majors[name] = (*majors.get(name, ()), int(number))
    return majors


def majors_of(kind: str, devices: dict[str, tuple[int, ...]]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The names that the driver of a kind of node can have, and the majors that these names have now."""
    names = DRIVER_NAMES[kind]
    return names, tuple(sorted({major for name in names for major in devices.get(name, ())}))


def plan_nodes(dev_names: list[str], cap_names: list[str], expect_gpus: int | None) -> list[Node]:
    """The nodes to look at, in the order in which CUDA uses them.

    ``nvidia0`` stands for the GPU nodes where there is none at all, so that their absence is seen, except on a host
    that is said to have no GPU.
    """
    gpus = sorted(int(name[6:]) for name in dev_names if re.fullmatch(r"nvidia\d+", name, re.ASCII))
    if not gpus and expect_gpus != 0:
        gpus = [0]
    nodes = [Node("nvidiactl", CONTROL), *(Node(f"nvidia{minor}", GPU) for minor in gpus), Node("nvidia-uvm", UVM)]
    if "nvidia-uvm-tools" in dev_names:
        nodes.append(Node("nvidia-uvm-tools", UVM_TOOLS))
    caps = sorted(int(name[10:]) for name in cap_names if re.fullmatch(r"nvidia-cap\d+", name, re.ASCII))
    return nodes + [Node(f"nvidia-caps/nvidia-cap{number}", CAPABILITY) for number in caps]


def _reason_stat(path: str, number: int) -> Reason:
    """Why a path could not even be looked at."""
    if number in (errno.ENOENT, errno.ENOTDIR):
        return Reason("device.node_missing", f"{path} does not exist")
    if number == errno.EACCES:
        return Reason("device.denied_mode", f"{path}: its folder may not be searched")
    return Reason("device.open_failed", f"{path} cannot be looked at: {errno_name(number)}")


def reason_before_open(facts: NodeFacts) -> Reason | None:
    """What can be said without opening the node. A node with a reason here must not be opened.

    A stale number may by now belong to a stranger's device, and opening that one can do harm (a watchdog starts to
    count, a FIFO blocks).
    """
    names = "/".join(facts.driver_names)
    if not facts.driver_majors:
        return Reason("driver.not_loaded", f"{facts.path}: /proc/devices has no character device of {names}")
    if facts.stat_errno is not None:
        return _reason_stat(facts.path, facts.stat_errno)
    if not facts.is_char:
        return Reason("device.node_not_char", f"{facts.path} is not a character device")
    if facts.major not in facts.driver_majors:
        now = ", ".join(str(major) for major in facts.driver_majors)
        message = f"{facts.path} has major {facts.major}, {names} has {now} on this kernel"
        return Reason("device.node_wrong_major", message)
    return None


def _reason_open(facts: NodeFacts) -> Reason:
    """Why open() failed. EACCES comes from the mode bits, EPERM from the device rules: asked in this order."""
    name = errno_name(facts.open_errno)
    if facts.open_errno == errno.EPERM and facts.gpu_excluded:
        # NVIDIA's driver gives EPERM of its own accord for a GPU on its exclude list.
        return Reason("device.open_failed", f"{facts.path}: EPERM, the driver's exclude list holds this GPU back")
    if facts.open_errno == errno.EPERM:
        message = f"{facts.path}: EPERM with the right major {facts.major}: no device rule allows {facts.major}:"
        return Reason("device.denied_cgroup", f"{message}{facts.minor}")
    if facts.open_errno == errno.EIO and re.search(r"/nvidia\d+$", facts.path, re.ASCII):
        # The driver's open of a GPU starts its adapter, and gives EIO where that fails (RmInitAdapter in the log).
        return Reason("driver.gpu_not_started", f"{facts.path}: EIO, the driver could not start this GPU")
    if facts.open_errno == errno.EACCES and facts.nodev:
        return Reason("device.denied_mode", f"{facts.path}: EACCES, its file system is mounted nodev")
    if facts.open_errno == errno.EACCES:
        mode = "?" if facts.mode is None else f"{facts.mode & 0o7777:04o}"
        return Reason("device.denied_mode", f"{facts.path}: EACCES, mode {mode} of {facts.uid}:{facts.gid}")
    return Reason("device.open_failed", f"{facts.path}: open gave {name}")


def reason(facts: NodeFacts) -> Reason | None:
    """The first thing that keeps a node from being used, or None where it works."""
    before = reason_before_open(facts)
    if before is not None:
        return before
    if facts.opened is None:
        raise ValueError(f"{facts.path}: nothing is wrong with it, and yet it was not opened")
    if not facts.opened:
        return _reason_open(facts)
    query = facts.query
    if query is not None and query.good is False:
        said = query.answer if query.errno_name is None else f"{query.errno_name} ({query.answer})"
        return Reason("device.query_failed", f"{facts.path}: {query.name} gave {said}")
    return None


def count_reason(found: int, expected: int | None) -> Reason | None:
    """Whether there are as many GPU nodes as the inventory says; without an expectation any number will do."""
    if expected is None or found == expected:
        return None
    return Reason("device.gpu_count", f"{found} GPU device nodes, expected {expected}")
