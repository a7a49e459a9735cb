"""NVML's GPU performance monitoring (Hopper and newer, driver 520 and newer): what a GPU did between two samples.

The only source that shows a copy within one GPU's memory: such a copy runs on a copy engine, which counts neither as
utilisation nor as traffic of a link, but the memory's bandwidth is counted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, byref, c_char_p, c_double, c_uint, c_void_p

from gpu_checks.nvml_api import SUCCESS, Library

# nvmlGpmMetricId_t: percent of the time, of the multiprocessors, of the memory's peak; then MiB/s.
GRAPHICS_UTIL, SM_UTIL, DRAM_BW_UTIL = 1, 2, 10
PCIE_TX, PCIE_RX, NVLINK_RX, NVLINK_TX = 20, 21, 60, 61
METRICS = (GRAPHICS_UTIL, SM_UTIL, DRAM_BW_UTIL, PCIE_TX, PCIE_RX, NVLINK_RX, NVLINK_TX)

VERSION = 1
"""NVML_GPM_SUPPORT_VERSION and NVML_GPM_METRICS_GET_VERSION."""

ROOM = 512
"""Elements of the array: NVML_GPM_METRIC_MAX is 98 in the first header, 210 in that of driver 580, and still grows.

The library fills as many as are asked for; the rest is room, in case a release looks at all of its own.
"""

MIB = 1024 * 1024


class _Support(Structure):
    """nvmlGpmSupport_t."""

    _fields_ = (("version", c_uint), ("supported", c_uint))


class _Metric(Structure):
    """nvmlGpmMetric_t with its nvmlGpmMetricInfo."""

    _fields_ = (
        *(("number", c_uint), ("result", c_uint), ("value", c_double)),
        *(("short_name", c_char_p), ("long_name", c_char_p), ("unit", c_char_p)),
    )


class _Request(Structure):
    """nvmlGpmMetricsGet_t."""

    _fields_ = (
        *(("version", c_uint), ("count", c_uint), ("first", c_void_p), ("second", c_void_p)),
        ("metrics", _Metric * ROOM),
    )


def supported(nvml: Library, device: c_void_p) -> bool:
    """Whether this GPU counts. Not asked where MIG is on: there driver 535 loses other functions by such a call."""
    if nvml.mig_on(device):
        return False
    answer = _Support(VERSION, 0)
    return nvml.ask("nvmlGpmQueryDeviceSupport", device, byref(answer)) == SUCCESS and answer.supported != 0


def take(nvml: Library, device: c_void_p) -> c_void_p | None:
    """A sample of the counters now; to be given back with ``free``. None where that is refused."""
    sample = c_void_p()
    if nvml.ask("nvmlGpmSampleAlloc", byref(sample)) != SUCCESS:
        return None
    if nvml.ask("nvmlGpmSampleGet", device, sample) != SUCCESS:
        free(nvml, sample)
        return None
    return sample


def free(nvml: Library, sample: c_void_p) -> None:
    """Give a sample back."""
    nvml.ask("nvmlGpmSampleFree", sample)


def between(nvml: Library, first: c_void_p, second: c_void_p, metrics: Sequence[int] = METRICS) -> dict[int, float]:
    """The metrics between two samples of one GPU; those that it has, traffic in GB/s (decimal)."""
    request = _Request(VERSION, len(metrics), first, second)
    for row, number in zip(request.metrics, metrics):
        row.number, row.result = number, 1
    if nvml.ask("nvmlGpmMetricsGet", byref(request)) != SUCCESS:
        return {}
    rows = [row for row in request.metrics[: len(metrics)] if row.result == SUCCESS]
    traffic = MIB / 1e9
    return {int(row.number): row.value * (traffic if row.number >= PCIE_TX else 1.0) for row in rows}
