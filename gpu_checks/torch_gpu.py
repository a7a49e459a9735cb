"""torch, found and imported only once CUDA itself is known to work, and the reasons why it can't be used.

Whether it is there is asked before it is imported: an import takes seconds, and a wrong interpreter is to be named at
once. torch is never imported for typing either: this package has to start without it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import sys
import time
from dataclasses import dataclass
from typing import Any

from gpu_checks.gpus import Gpus
from gpu_checks.parts import Why
from gpu_checks.registry import Report

NAME = "torch"

WAY_OUT = "set gpu_gate_python to the Python of the workload's venv"


@dataclass(frozen=True)
class Torch:
    """torch, imported. ``module`` is the package itself; ``seconds``: how long the import took."""

    module: Any
    seconds: float

    @property
    def versions(self) -> dict[str, Any]:
        """For the record."""
        module = self.module
        return {
            "torch": str(module.__version__),
            "cuda": module.version.cuda,
            "python": sys.executable,
            "import_seconds": round(self.seconds, 3),
        }


class NoTorch(Exception):
    """torch can't be used; ``why`` says it with a cause."""

    def __init__(self, why: Why) -> None:
        """Keep the cause."""
        super().__init__(why.message)
        self.why = why


def missing() -> Why | None:
    """Whether this interpreter has no torch; nothing of it is run. About a millisecond."""
    if NAME in sys.modules:
        return None
    try:
        found = importlib.util.find_spec(NAME)
    except (ImportError, ValueError):
        found = None
    # A leftover folder without code in it would be found as well, and imported as an empty package.
    if found is None or found.origin is None:
        return Why("torch.missing", f"{sys.executable} has no torch: {WAY_OUT}")
    return None


@functools.cache
def _imported(name: str) -> Torch | Exception:
    """torch, with the seconds of the import that really loaded it; or why it failed: halfway it can't try again.

    An import runs everything: a library that is missing, a version that does not fit.
    """
    begin = time.monotonic()
    try:
        module = importlib.import_module(name)
    except Exception as error:
        return error
    return Torch(module, time.monotonic() - begin)


def _announce(report: Report) -> None:
    report.doing(f"import torch in {sys.executable}", died="torch.broken")


def load(report: Report) -> Torch:
    """Import torch. Raises NoTorch."""
    absent = missing()
    if absent is not None:
        raise NoTorch(absent)
    _announce(report)
    found = _imported(NAME)
    if isinstance(found, Torch):
        return found
    lines = [line.strip() for line in f"{type(found).__name__}: {found}".splitlines() if line.strip()]
    raise NoTorch(Why("torch.broken", f"import torch in {sys.executable}: {lines[-1]}")) from found


def import_ahead(report: Report) -> None:
    """Import torch before it is needed. Where there is none, or it fails, that is for ``load`` to say."""
    if missing() is None:
        _announce(report)
        _imported(NAME)


def covers(architectures: list[str], major: int, minor: int) -> bool:
    """Whether code for one of these architectures runs on a GPU of this compute capability.

    Machine code (sm_) runs on its own major version from its minor one on; with an ``a`` only on exactly that GPU.
    PTX (compute_) is compiled for everything newer, unless it has a letter.

    >>> covers(["sm_80", "sm_90"], 8, 6), covers(["sm_80", "sm_90a"], 12, 0), covers(["sm_80", "compute_90"], 12, 0)
    (True, False, True)
    """
    for text in architectures:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", text)
        if match is None:
            continue
        kind, letter = match.group(1), match.group(4)
        have, of_gpu = (int(match.group(2)), int(match.group(3))), (major, minor)
        same_family = have[0] == major and have <= of_gpu
        if have == of_gpu or (letter != "a" and same_family) or (kind == "compute" and not letter and have <= of_gpu):
            return True
    return False


def too_old(built_for: str, driver: int) -> bool:
    """Whether a driver that offers CUDA ``driver`` (12080 for 12.8) is too old for a torch built for this version.

    Within one major version an older driver will do (minor version compatibility, since CUDA 11).

    >>> too_old("13.0", 12080), too_old("12.8", 12040), too_old("12.8", 13000)
    (True, False, False)
    """
    return int(built_for.partition(".")[0]) > driver // 1000


def unfit(torch: Torch, gpus: Gpus) -> Why | None:
    """Why this torch can't use these GPUs, on which CUDA works; None where it can."""
    module = torch.module
    which = f"torch {module.__version__} of {sys.executable}"
    if module.version.cuda is None:
        return Why("torch.no_cuda", f"{which} is built without CUDA: {WAY_OUT}")
    driver = gpus.api.driver_version()
    if too_old(module.version.cuda, driver):
        offered = f"{driver // 1000}.{driver % 1000 // 10}"
        return Why("torch.driver_too_old", f"{which} is built for CUDA {module.version.cuda}; driver: CUDA {offered}")
    gpus.report.doing("count the GPUs through torch", hung="cuda.driver_hang")
    try:
        module.cuda.init()
        count = module.cuda.device_count()
        architectures = list(module.cuda.get_arch_list())
        capabilities = [tuple(module.cuda.get_device_capability(ordinal)) for ordinal in range(count)]
    except (RuntimeError, AssertionError) as error:
        return Why("torch.failed", f"{which}: {first_line(error)}")
    if count != len(gpus.gpus):
        return Why("torch.gpu_count", f"{which} sees {count} GPUs, CUDA {len(gpus.gpus)}")
    for ordinal, (major, minor) in enumerate(capabilities):
        if not covers(architectures, major, minor):
            text = f"{which} has code for {' '.join(architectures)}, GPU {ordinal} is sm_{major}{minor}"
            return Why("torch.arch_missing", text)
    return None


def first_line(error: BaseException) -> str:
    """The first line of an error of torch's, which says what it is; hints and a traceback in C++ follow it.

    >>> first_line(RuntimeError("CUDA error: out of memory\\nCompile with TORCH_USE_CUDA_DSA"))
    'RuntimeError: CUDA error: out of memory'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


FULL = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""How CUDA and cuBLAS say it themselves where torch only passes it on: no room for a context, a graph, a workspace."""


def is_out_of_memory(module: Any, error: BaseException) -> bool:
    """Whether torch says that a GPU's memory is full."""
    return isinstance(error, module.cuda.OutOfMemoryError) or any(words in str(error) for words in FULL)
