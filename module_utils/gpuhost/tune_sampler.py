"""One round of measuring a host: the microbenchmarks, and the GPU checks that measure; each in a child with a limit."""

from __future__ import annotations

import inspect
import json
import re
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import check_runner, microbench
from .errors import DEFECTS, stop
from .host_io import Host
from .tune_effects import Benchmark
from .workloads import gpu_nodes

Round = dict[str, float]
"""Benchmark to value. What was not measured in a round is not in it."""
_MARGIN_S = 20.0


@dataclass(frozen=True)
class GpuValue:
    """A number that a GPU check measures: ``measurement`` is a pattern of names, ``path`` leads to it.

    Of several GPUs the median counts.
    """

    check: str
    measurement: str
    path: tuple[str, ...]
    benchmark: Benchmark


GPU_VALUES = (
    GpuValue("cuda", r"cuda", ("detail", "seconds", "init"), Benchmark("cuda_init_s", "s", "lower")),
    GpuValue("cuda", r"cuda\.gpu\d+", ("detail", "seconds", "context"), Benchmark("cuda_context_s", "s", "lower")),
    GpuValue("cuda", r"cuda\.gpu\d+", ("detail", "seconds", "kernel"), Benchmark("cuda_kernel_s", "s", "lower")),
    GpuValue("p2p", r"p2p\..+", ("value",), Benchmark("p2p_gb_s", "gb_s", "higher")),
    GpuValue("allreduce", r"allreduce(\..+)?", ("value",), Benchmark("allreduce_us", "us", "lower")),
)
"""A check that comes later gets a line here. One that this version knows and does not carry yet measures nothing."""


@dataclass
class Sampler:
    """What is measured in every round. ``catalog``: the benchmarks that gave a value in the first one."""

    host: Host
    seconds: float = 0.15
    gpu_checks: tuple[str, ...] = ("cuda",)
    archive: bytes = b""
    gpu_timeout_s: int = 120
    program: str = field(default_factory=lambda: inspect.getsource(microbench))
    catalog: dict[str, Benchmark] = field(default_factory=dict)
    not_measured: dict[str, str] = field(default_factory=dict)
    round_s: float = 0.0

    def first(self) -> None:
        """Find out what can be measured here, and how long a round takes. Raises Stop where nothing can."""
        begun = self.host.clock()
        found = self._host_measurements()
        for item in found:
            if item["status"] == "measured" and item["value"] > 0:
                better = str(item["detail"]["better"])
                self.catalog[item["name"]] = Benchmark(str(item["name"]), str(item["unit"]), better)
            else:
                self.not_measured[item["name"]] = str(item["detail"].get("message", item["status"]))
        measured = self._gpu_measurements()
        values = gpu_round(measured)
        self.catalog |= {item.benchmark.name: item.benchmark for item in GPU_VALUES if item.benchmark.name in values}
        self.not_measured |= {
            item["name"]: str(item["detail"].get("message", item["cause"]))
            for item in measured
            if item["status"] != "measured"
        }
        # Checks that measure nothing here are not asked again.
        used = {item.check for item in GPU_VALUES if item.benchmark.name in values}
        self.gpu_checks = tuple(name for name in self.gpu_checks if name in used)
        self.round_s = self.host.clock() - begun
        if not self.catalog:
            text = "; ".join(f"{name}: {reason}" for name, reason in self.not_measured.items())
            raise stop("tune.not_measured", "every benchmark", text or "nothing was measured", "a value")

    def round(self) -> Round:
        """Measure once."""
        found = {item["name"]: item["value"] for item in self._host_measurements() if item["status"] == "measured"}
        return {name: value for name, value in {**found, **self._gpu_round()}.items() if name in self.catalog}

    def _host_measurements(self) -> list[dict[str, Any]]:
        """By the host's own Python; the program comes on stdin, so that no file has to be there."""
        limit = _MARGIN_S + 20 * len(microbench.ALL) * (self.seconds + 1)
        argv = [sys.executable, "-I", "-", "--seconds", str(self.seconds)]
        result = self.host.run(argv, timeout_s=limit, stdin=self.program.encode())
        try:
            found: list[dict[str, Any]] = json.loads(result.stdout)
            for item in found:
                item["name"], item["status"], item["value"], item["unit"], item["detail"]["better"]
        except DEFECTS as error:
            text = f"exit status {result.rc}, {result.last_line or error}"
            raise stop("tune.not_measured", "the microbenchmarks", text, "a list of measurements") from error
        return found

    def _gpu_round(self) -> Round:
        return gpu_round(self._gpu_measurements())

    def _gpu_measurements(self) -> list[dict[str, Any]]:
        if not (self.gpu_checks and self.archive and gpu_nodes(self.host)):
            return []
        order = check_runner.Order(self.archive, list(self.gpu_checks), sys.executable, self.gpu_timeout_s)
        answer = check_runner.measure(self.host, check_runner.HOST_TARGET, order, None)
        found: list[dict[str, Any]] = answer["measurements"]
        return found


def gpu_round(measurements: list[dict[str, Any]]) -> Round:
    """The values of GPU_VALUES among the measurements of the checks."""
    found = {}
    for item in GPU_VALUES:
        values = [
            number
            for measured in measurements
            if measured["status"] == "measured" and re.fullmatch(item.measurement, measured["name"])
            and (number := _at(measured, item.path)) is not None
        ]  # fmt: skip
        if values:
            found[item.benchmark.name] = statistics.median(values)
    return found


def _at(measured: Mapping[str, Any], path: tuple[str, ...]) -> float | None:
    value: Any = measured
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, (int, float)) and value > 0 else None
