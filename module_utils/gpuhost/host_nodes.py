"""The host's NVIDIA device nodes, made before any container starts: some appear only at the driver's first use.

Numbers and modes are the driver's own: /proc/devices, /proc/driver/nvidia/params and .../capabilities (the same files
that nvidia-modprobe reads). A host whose params say ``ModifyDeviceFiles: 0`` makes its nodes itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .host_io import Host
from .proc_devices import CharacterMajors, nvidia_node

PARAMS = "/proc/driver/nvidia/params"
CAPABILITIES = "/proc/driver/nvidia/capabilities"
GPUS = "/proc/driver/nvidia/gpus"
CAPABILITY_NODES = "/dev/nvidia-caps/"
ALWAYS = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
MIG = ("mig/config", "mig/monitor")
"""The capabilities that exist without any MIG instance; nvidia-smi and container tools want their nodes."""

_MODULES = {"nvidia": [], "nvidiactl": [], "nvidia-uvm": ["-u"], "nvidia-modeset": ["-m"]}
"""Driver -> what nvidia-modprobe is asked for to load it. It knows the distribution's names of the modules."""
_MODE_DEFAULT = 0o666
_ROOT_ONLY, _READABLE = 0o400, 0o444


@dataclass(frozen=True)
class Owner:
    """Mode and owner that the driver's parameters give its nodes. ``modify`` false: nodes are somebody else's work."""

    mode: int = _MODE_DEFAULT
    uid: int = 0
    gid: int = 0
    modify: bool = True


@dataclass(frozen=True)
class Node:
    """A character device node as it should be."""

    path: str
    major: int
    minor: int
    owner: Owner

    @property
    def line(self) -> str:
        """For people."""
        return f"node {self.path} made with {self.major}:{self.minor}"


def not_loaded(majors: CharacterMajors, wanted: Iterable[str]) -> list[str]:
    """The parts of the driver that are wanted and are not there: nvidia-uvm comes only at first use."""
    known = set(wanted)
    return [driver for driver in _MODULES if driver in known and majors.major_of(driver) is None]


def load_drivers(host: Host, majors: CharacterMajors, wanted: Iterable[str]) -> list[str]:
    """Load the parts of the driver that are wanted and are not there."""
    lines = []
    for driver in not_loaded(majors, wanted):
        option, module = _MODULES[driver], "nvidia" if driver == "nvidiactl" else driver
        done = host.run(["nvidia-modprobe", *option])
        if done.rc == 127:
            done = host.run(["modprobe", module])
        if done.rc == 0:
            lines.append(f"module {module} loaded")
    return list(dict.fromkeys(lines))


def fields(text: str) -> dict[str, str]:
    """``Name: value`` lines of the driver's /proc files."""
    return dict(re.findall(r"^([A-Za-z ]+):\s*(\S+)\s*$", text, re.MULTILINE))


def owner_of_nodes(params: str) -> Owner:
    """Mode and owner from /proc/driver/nvidia/params; the driver's defaults where it says nothing."""
    found = fields(params)

    def number(name: str, default: int) -> int:
        return int(found[name]) if found.get(name, "").isdecimal() else default

    return Owner(
        number("DeviceFileMode", _MODE_DEFAULT) & 0o7777,
        number("DeviceFileUID", 0),
        number("DeviceFileGID", 0),
        number("ModifyDeviceFiles", 1) != 0,
    )


def gpu_minors(host: Host) -> list[int]:
    """The minors of the GPUs that the driver has taken, from its own /proc files."""
    found = (fields(host.read(f"{GPUS}/{address}/information") or "") for address in host.names(GPUS))
    return sorted(int(item["Device Minor"]) for item in found if item.get("Device Minor", "").isdecimal())


def capability_modes(host: Host) -> dict[int, int | None]:
    """Minor -> mode of the nodes of MIG's capabilities; None where the driver leaves the node to others."""
    modes: dict[int, int | None] = {}
    for path in host.files_below(CAPABILITIES):
        found = fields(host.read(path) or "")
        minor, mode = found.get("DeviceFileMinor", ""), found.get("DeviceFileMode", "")
        if minor.isdecimal() and mode.isdecimal():
            modes[int(minor)] = int(mode) & 0o7777 if found.get("DeviceFileModify", "1") != "0" else None
    return modes


def has_mig_instances(host: Host) -> bool:
    """Whether some GPU is cut into MIG instances: each has a folder giN below its GPU's capabilities."""
    gpus = [f"{CAPABILITIES}/{name}/mig" for name in host.names(CAPABILITIES) if name.startswith("gpu")]
    return any(name.startswith("gi") for gpu in gpus for name in host.names(gpu))


def mig_minors(host: Host) -> list[int]:
    """The minors of the two capabilities that are there without any MIG instance."""
    found = (fields(host.read(f"{CAPABILITIES}/{name}") or "").get("DeviceFileMinor", "") for name in MIG)
    return [int(minor) for minor in found if minor.isdecimal()]


def missing(host: Host, majors: CharacterMajors, mounted: Iterable[str] = ()) -> list[Node]:
    """Every node whose driver is loaded and that is missing or has an old major.

    Wanted are the nodes that CUDA needs, those that are there, and those that containers mount (``mounted``).
    """
    common = owner_of_nodes(host.read(PARAMS) or "")
    modes = capability_modes(host)
    minors = [*mig_minors(host), *(int(name[10:]) for name in host.names(CAPABILITY_NODES) if _is_capability(name))]
    caps = [f"{CAPABILITY_NODES}nvidia-cap{minor}" for minor in minors]
    gpus = [f"/dev/nvidia{minor}" for minor in gpu_minors(host)]
    wanted = dict.fromkeys([*ALWAYS, *gpus, *caps, *mounted, "/dev/nvidia-modeset"])
    found = []
    for path in wanted:
        node = nvidia_node(path)
        major = majors.driver_major(node.driver) if node else None
        if node is None or node.minor is None or major is None or not majors.names_of(major):
            continue
        if not _has_device(host, path, node.driver, node.minor, gpus):
            continue
        owner = _capability_owner(node.minor, modes) if node.driver == "nvidia-caps" else common
        if owner.modify and host.device_numbers(path) != (major, node.minor):
            found.append(Node(node.path, major, node.minor, owner))
    return found


def make(host: Host, nodes: Iterable[Node]) -> None:
    """Make the nodes."""
    for node in nodes:
        host.make_node(node.path, node.major, node.minor, node.owner.mode, (node.owner.uid, node.owner.gid))


def _has_device(host: Host, path: str, driver: str, minor: int, gpus: list[str]) -> bool:
    """Whether there is a device behind the number: a node of a GPU that is not there would only mislead.

    The number 195 belongs to nvidia-modeset, too, but nobody answers there before its module is loaded.
    """
    if driver == "nvidia-modeset":
        return host.exists("/sys/module/nvidia_modeset")
    if driver == "nvidia" and minor != 255:
        return path in gpus
    return driver in ("nvidia", "nvidiactl", "nvidia-uvm", "nvidia-caps")


def _capability_owner(minor: int, modes: dict[int, int | None]) -> Owner:
    """The driver's own mode; where it has no file: the MIG configuration is root's, the rest is read by everybody."""
    mode = modes.get(minor, _ROOT_ONLY if minor == 1 else _READABLE)
    return Owner(_ROOT_ONLY, modify=False) if mode is None else Owner(mode)


def _is_capability(name: str) -> bool:
    return re.fullmatch(r"nvidia-cap[0-9]{1,7}", name) is not None
