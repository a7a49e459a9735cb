"""The known checks by name. A check measures through a ``Report`` and returns nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Protocol

from gpu_checks.measurement import Measurement

DEFAULT_TIMEOUT_SECONDS = 120.0
"""For each check. An assumption, to be replaced by a measured number: without persistence a driver starts each GPU at
its open, and 16 of them at some seconds each must fit."""


@dataclass(frozen=True)
class Options:
    """What the caller knows and wants. ``expect_gpus``: how many GPUs the workload should see, None if unsaid.

    ``quick``: only what shows within seconds that a GPU, a link or a collective is broken; no full set of figures.
    For the check ``decode``: ``model`` is a preset, a config.json's path or its text; ``tp``: over how many GPUs it is
    cut; ``context``: tokens in the cache of each of the ``batch`` sequences that are decoded together.
    ``timeout_s``: after so long the check is killed; one that can leave out something ends before, with what it has.
    """

    expect_gpus: int | None = None
    quick: bool = False
    model: str = "qwen3-30b-a3b"
    tp: int = 1
    context: int = 4096
    batch: int = 1
    timeout_s: float = DEFAULT_TIMEOUT_SECONDS


class Report(Protocol):
    """Where a check puts what it measures, at once, so that a later hang or crash loses nothing."""

    def add(self, measurement: Measurement) -> None:
        """Hand over one finished measurement."""

    def doing(self, what: str, hung: str | None = None, died: str | None = None) -> None:
        """Say what comes next: it is named when the check hangs or dies there.

        ``hung`` and ``died`` are causes for these two ends, where the general ones say too little.
        """


@dataclass(frozen=True)
class Check:
    """A check that users can name. ``by_name``: it only runs where it is named, and is no part of ``all``.

    ``uses_torch``: it imports torch, which takes seconds.
    """

    name: str
    summary: str
    unit: str
    run: Callable[[Options, Report], None]
    by_name: bool = False
    uses_torch: bool = False


def _device_access(options: Options, report: Report) -> None:
    from gpu_checks.device_access import check  # noqa: PLC0415 - a check is loaded in the child that runs it

    check(options, report)


def _cuda(options: Options, report: Report) -> None:
    from gpu_checks.cuda import check  # noqa: PLC0415 - see above

    check(options, report)


def _p2p(options: Options, report: Report) -> None:
    from gpu_checks.p2p.check import check  # noqa: PLC0415 - see above

    check(options, report)


def _health(options: Options, report: Report) -> None:
    from gpu_checks.health.check import check  # noqa: PLC0415 - see above

    check(options, report)


def _torch(options: Options, report: Report) -> None:
    from gpu_checks.torch_check import check  # noqa: PLC0415 - see above

    check(options, report)


def _memory(options: Options, report: Report) -> None:
    from gpu_checks.memory import check  # noqa: PLC0415 - see above

    check(options, report)


def _gemm(options: Options, report: Report) -> None:
    from gpu_checks.gemm.check import check  # noqa: PLC0415 - see above

    check(options, report)


def _allreduce(options: Options, report: Report) -> None:
    from gpu_checks.allreduce.check import check  # noqa: PLC0415 - see above

    check(options, report)


def _decode(options: Options, report: Report) -> None:
    from gpu_checks.decode.check import check  # noqa: PLC0415 - see above

    check(options, report)


_ALL = (
    Check("device_access", "open and query the device nodes as CUDA does", "gpus", _device_access),
    Check("cuda", "start CUDA and compute on every GPU", "gpus", _cuda),
    Check("health", "ask the driver, the kernel and the bus for faults of the GPUs", "gpus", _health),
    Check("p2p", "move data between every pair of GPUs, and compare it", "pairs", _p2p),
    Check("allreduce", "latency of a collective over all GPUs", "us", _allreduce),
    Check("torch", "compute on every GPU through torch", "gpus", _torch, uses_torch=True),
    Check("memory", "copy, read and write each GPU's own memory", "gpus", _memory),
    Check("gemm", "multiply matrices through torch in each number format", "gpus", _gemm, uses_torch=True),
    Check(
        "decode",
        "one decode step of a model at its own shapes, and its parts",
        "parts",
        _decode,
        by_name=True,
        uses_torch=True,
    ),
)
REGISTRY: dict[str, Check] = {check.name: check for check in _ALL}
