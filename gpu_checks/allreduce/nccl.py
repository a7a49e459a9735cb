"""libnccl, called directly on streams of our own, as inference engines do it in their CUDA graphs: no torch.

Names, values and signatures are those of nccl.h, unchanged since NCCL 2.4 (ncclGetLastError: since 2.13).
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterable, Mapping
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

from gpu_checks import libcuda

LIBRARY = "libnccl.so.2"
WHEEL = os.path.join("nvidia", "nccl", "lib", LIBRARY)
"""Where the wheels nvidia-nccl-cu12 and -cu13, which torch and vLLM load, put it below site-packages."""

CHOSEN = "VLLM_NCCL_SO_PATH"
"""The variable by which an inference engine is told which libnccl to load."""

SHARED_MEMORY = "/dev/shm/nccl-"  # noqa: S108 - NCCL's choice; nothing is written there by us
"""How its files in shared memory begin. The last rank that opens one removes its name; where ranks are killed before,
it stays, and soon fills the 64 MB that a container has."""

UNIQUE_ID_BYTES = 128
FLOAT32, SUM = 7, 0
REMOTE_ERROR = 6
NVLS = "NCCL_NVLS_ENABLE"

EXPLAINED = (
    ("driver version is insufficient", "nccl.driver_too_old"),
    ("No space left on device", "nccl.shm_full"),
    ("failed to extend", "nccl.shm_full"),
    ("no socket interface found", "nccl.no_interface"),
    ("out of memory", "cuda.out_of_memory"),
)
"""What NCCL's last error says, and the cause that is meant: each has its own way out."""


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which ncclCommInitRank takes by value."""

    _fields_ = (("internal", ctypes.c_ubyte * UNIQUE_ID_BYTES),)


class NcclError(Exception):
    """A call that did not give ncclSuccess: its number, NCCL's words for it, and NCCL's last error."""

    def __init__(self, call: str, number: int, name: str, last: str) -> None:
        """Keep all of them."""
        super().__init__(f"{call} gave {number} ({name}){f': {last}' if last else ''}")
        self.call, self.number, self.name, self.last = call, number, name, last

    @property
    def cause(self) -> str:
        """The registered cause, as exact as the text allows."""
        return next((cause for part, cause in EXPLAINED if part in self.last), "nccl.failed")


def candidates(environment: Mapping[str, str], paths: Iterable[str], prefix: str) -> list[str]:
    """Where a libnccl is, in the order in which a workload's program would take it.

    What the engine is told; then LD_LIBRARY_PATH; the wheel beside torch; the environment's own lib (conda); the
    loader's folders. ``paths``: Python's own (sys.path); ``prefix``: of this interpreter's environment.
    """
    loader_path = environment.get("LD_LIBRARY_PATH", "")
    named = [folder for folder in re.split("[:;]", loader_path) if folder.startswith("/")]
    every = [environment.get(CHOSEN, "")]
    every += [os.path.join(folder, LIBRARY) for folder in named]
    every += [os.path.join(folder, WHEEL) for folder in paths if folder]
    every += [os.path.join(folder, LIBRARY) for folder in (os.path.join(prefix, "lib"), *libcuda.search_folders(""))]
    return list(dict.fromkeys(path for path in every if path and os.path.isfile(path)))


def find() -> list[str]:
    """Every libnccl that a workload of this interpreter and environment could load; the first is the one it takes."""
    return candidates(os.environ, sys.path, sys.prefix)


def configured(texts: Iterable[str]) -> dict[str, str]:
    """The variables in texts of NCCL's configuration; of one that is there twice the first counts.

    >>> configured(["# NCCL_NVLS_ENABLE=1\\n NCCL_DEBUG = INFO", "NCCL_DEBUG=WARN"])
    {'NCCL_DEBUG': 'INFO'}
    """
    found: dict[str, str] = {}
    for text in texts:
        for name, value in re.findall(r"^\s*(NCCL_\w+)[ \t]*=[ \t]*(.*?)\s*$", text, re.MULTILINE):
            found.setdefault(name, value)
    return found


def is_asked(variable: str, environment: Mapping[str, str], texts: Iterable[str]) -> bool:
    """Whether the user sets a variable of NCCL's: in the environment, or in a text of NCCL's configuration."""
    return variable in environment or variable in configured(texts)


def configuration_files(environment: Mapping[str, str]) -> list[str]:
    """The files in which NCCL looks for variables that the environment does not set."""
    home = environment.get("HOME", "")
    named = environment.get("NCCL_CONF_FILE") or (os.path.join(home, ".nccl.conf") if home else "")
    return [path for path in (named, "/etc/nccl.conf") if path and os.path.isfile(path)]


def additions(environment: Mapping[str, str], texts: Iterable[str], shared: int | None = None) -> dict[str, str]:
    """What the check sets for NCCL beside what the user sets, whose word goes first: the workload has that too.

    NVLS stays off unless asked for; INFO is what says how the ranks are connected. ``shared``: the number of a process
    that shares its GPU with others, for tests: NCCL takes it for one of another host, and uses the loopback.
    """
    known = list(texts)
    wanted = {NVLS: "0"}
    if not is_asked("NCCL_DEBUG", environment, known):
        wanted.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT")
    if shared is not None:
        wanted.update(NCCL_HOSTID=f"gpuhost-{shared}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    return {name: text for name, text in wanted.items() if not is_asked(name, environment, known)}


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """NCCL's variables in an environment."""
    return {name: value for name, value in sorted(environment.items()) if name.startswith("NCCL_")}


def transports(log: str) -> dict[str, int]:
    """How the ranks are connected, and by how many channels, from what NCCL says of its start (NCCL_DEBUG=INFO).

    >>> transports("x NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\\n")
    {'P2P/CUMEM': 1}
    """
    found: dict[str, int] = {}
    for name in re.findall(r"NCCL INFO Channel .* via ((?:P2P|SHM|NET)/.*?)\s*$", log, re.MULTILINE):
        found[name] = found.get(name, 0) + 1
    return found


def version_text(number: int) -> str:
    """NCCL's version from its number.

    >>> version_text(22809), version_text(2708)
    ('2.28.9', '2.7.8')
    """
    thousand = 10000 if number >= 10000 else 1000
    return f"{number // thousand}.{number % thousand // 100}.{number % 100}"


class Nccl:
    """libnccl, loaded. OSError where it can't be; every call raises NcclError where NCCL refuses."""

    def __init__(self, path: str) -> None:
        """Load it, and say what its functions take."""
        self.path = path
        self._nccl = library = ctypes.CDLL(path)
        library.ncclGetErrorString.restype = c_char_p
        library.ncclGetErrorString.argtypes = (c_int,)
        library.ncclGetUniqueId.argtypes = (POINTER(UniqueId),)
        library.ncclCommInitRank.argtypes = (POINTER(c_void_p), c_int, UniqueId, c_int)
        library.ncclCommInitAll.argtypes = (POINTER(c_void_p), c_int, POINTER(c_int))
        library.ncclAllReduce.argtypes = (c_uint64, c_uint64, c_size_t, c_int, c_int, c_void_p, c_void_p)
        library.ncclCommDestroy.argtypes = (c_void_p,)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that gives an ncclResult_t."""
        number = int(getattr(self._nccl, name)(*arguments))
        if number != 0:
            text = self._nccl.ncclGetErrorString(number) or b""
            raise NcclError(name, number, text.decode("utf-8", "replace"), self.last_error())

    def last_error(self) -> str:
        """NCCL's own last words; empty where it has none, or is too old to give them."""
        function = getattr(self._nccl, "ncclGetLastError", None)
        if function is None:
            return ""
        function.restype, function.argtypes = c_char_p, (c_void_p,)
        return str((function(None) or b"").decode("utf-8", "replace").strip())

    def version(self) -> str:
        """Its version, as in ``2.28.9``."""
        number = c_int()
        self.call("ncclGetVersion", byref(number))
        return version_text(number.value)

    def unique_id(self) -> bytes:
        """What all ranks need to find the one that made it."""
        made = UniqueId()
        self.call("ncclGetUniqueId", byref(made))
        return bytes(made)

    def join(self, world: int, identifier: bytes, rank: int) -> c_void_p:
        """Become a rank, on the current GPU; returns once all ranks have."""
        made = c_void_p()
        self.call("ncclCommInitRank", byref(made), world, UniqueId.from_buffer_copy(identifier), rank)
        return made

    def join_all(self, ordinals: list[int]) -> list[c_void_p]:
        """Become all ranks in this one process, a GPU each."""
        made = (c_void_p * len(ordinals))()
        self.call("ncclCommInitAll", made, len(ordinals), (c_int * len(ordinals))(*ordinals))
        return [c_void_p(each) for each in made]

    def all_reduce(self, source: int, target: int, elements: int, communicator: c_void_p, stream: c_void_p) -> None:
        """Queue a sum of float32 over all ranks."""
        self.call("ncclAllReduce", source, target, elements, FLOAT32, SUM, communicator, stream)

    def group_start(self) -> None:
        """Collect the calls of several ranks of this process, which would wait for each other one by one."""
        self.call("ncclGroupStart")

    def group_end(self) -> None:
        """Queue what was collected."""
        self.call("ncclGroupEnd")

    def leave(self, communicator: c_void_p) -> None:
        """Stop being a rank."""
        self.call("ncclCommDestroy", communicator)


def flush_output() -> None:
    """Write out what NCCL has said so far: to a pipe, C's stdout keeps it until 4 KiB are full."""
    ctypes.CDLL(None).fflush(None)
