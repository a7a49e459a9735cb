"""A host with two GPUs for the check ``health``: stub libraries, a sysfs, a /proc and a /dev of the test's own."""

from __future__ import annotations

import functools

from cuda_stage import HERE, compile_library
from fake_sysfs import Bus

from gpu_checks.cuda_async import AsyncApi
from gpu_checks.device_access import Roots
from gpu_checks.health import check as health
from gpu_checks.health import link as health_link
from gpu_checks.health import xids as health_xids
from gpu_checks.host_view import Record
from gpu_checks.registry import Options

FIRST, SECOND = "0000:01:00.0", "0000:02:00.0"


def compile_both(folder):
    """The two stub libraries."""
    compile_library(folder / "libnvidia-ml.so.1", HERE / "stub_nvml.c", "libnvidia-ml.so.1")
    compile_library(folder / "libcuda.so.1", HERE / "stub_gpus.c", "libcuda.so.1")
    return folder


def cause(found, name="health"):
    """Status and cause of a measurement."""
    return found[name].status, found[name].cause


class Report:
    def __init__(self):
        self.found, self.said = {}, []

    def add(self, measurement):
        self.found[measurement.name] = measurement

    def doing(self, what, hung=None, died=None):
        self.said.append((what, hung))


class Host:
    """A healthy host with two GPUs, each below a port of its own; ``look`` is one run of the check."""

    def __init__(self, folder, libraries, monkeypatch):
        self.bus, self.monkeypatch = Bus(folder / "sys"), monkeypatch
        self.folder = folder
        for number in (1, 2):
            self.bus.add(f"0000:00:0{number}.0", f"0000:0{number}:00.0")
        for path in ("dev/nvidia0", "dev/nvidia1", "proc/driver/nvidia/version", "proc/2/comm"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text("kthreadd\n")
        for minor, address in enumerate((FIRST, SECOND)):
            self.information(address, f"Device Minor: \t {minor}\nGPU Excluded:\t No\n")
        self.records([Record(0, 0.0, "Linux version 6.12")])
        session, cuda = libraries / "libnvidia-ml.so.1", libraries / "libcuda.so.1"
        monkeypatch.setattr(health.nvml, "session", functools.partial(health.nvml.session, str(session)))
        monkeypatch.setattr(health_link, "AsyncApi", lambda: AsyncApi(str(cuda)))
        monkeypatch.setattr(health_link, "LOAD_SECONDS", 0.02)
        monkeypatch.setattr(health_link, "CHUNK_BYTES", 1 << 16)
        monkeypatch.delenv("STUB_NVML", raising=False)

    def information(self, address, text):
        path = self.folder / f"proc/driver/nvidia/gpus/{address}/information"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def records(self, records):
        self.monkeypatch.setattr(health_xids.host_view, "kernel_records", lambda _: records)

    def look(self, answers="", **options):
        self.monkeypatch.setenv("STUB_NVML", answers)
        report = Report()
        roots = Roots(*(str(self.folder / name) for name in ("dev", "proc", "sys")))
        health.check(Options(**options), report, roots)
        return report.found
