"""The concerns of tuning in one list: what ``tune`` sets is what ``audit`` expects, and what ``--revert`` puts back.

To import this file is to know every kind of object that a concern may have put on record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import cpu_tuning, gpu_runtime, pcie, sysctl
from .errors import stop
from .host_io import Host
from .tune_step import Concern
from .tuning import Wanted

Look = Callable[[Host], Wanted]


@dataclass(frozen=True)
class Tuning:
    """One concern. ``look_of`` makes of its module's parameters what looks at a host; raises Stop for wrong ones."""

    concern: Concern
    look_of: Callable[[Mapping[str, Any]], Look]

    @property
    def name(self) -> str:
        """As it is called in documents and by ``gpuhost tune --tags``."""
        return self.concern.name


def _sysctl(given: Mapping[str, Any]) -> Look:
    wish = sysctl.wishes(given["keys"], given["target_release"])
    return lambda host: sysctl.wanted(sysctl.read(host, wish), wish)


def _cpu(given: Mapping[str, Any]) -> Look:
    wish = cpu_tuning.wishes(dict(given))
    return lambda host: cpu_tuning.wanted(cpu_tuning.read(host), wish)


def _gpu_runtime(given: Mapping[str, Any]) -> Look:
    try:
        wish = gpu_runtime.wishes(given)
    except (TypeError, ValueError, AttributeError) as error:
        raise stop("input.invalid", "gpu_runtime", str(error)) from error
    return lambda host: gpu_runtime.wanted(gpu_runtime.read(host), wish)


def _pcie(given: Mapping[str, Any]) -> Look:
    wish = pcie.wishes(dict(given))
    return lambda host: pcie.wanted(pcie.read(host), wish)


ALL = (
    Tuning(sysctl.CONCERN, _sysctl),
    Tuning(cpu_tuning.CONCERN, _cpu),
    Tuning(gpu_runtime.CONCERN, _gpu_runtime),
    Tuning(pcie.CONCERN, _pcie),
)
