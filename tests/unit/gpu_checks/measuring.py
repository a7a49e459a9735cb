"""What tests of a measuring check need: a report that keeps, and GPUs as ``open_gpus`` gives them, without a driver."""

from __future__ import annotations

import contextlib
from functools import partial
from types import SimpleNamespace

from gpu_checks import nvml
from gpu_checks.cuda_api import Identity
from gpu_checks.gpus import Gpus
from gpu_checks.measurement import from_dict, to_dict

MIB = 1 << 20


class Kept:
    """A report in a list; each measurement goes through its plain form, as through the pipe."""

    def __init__(self):
        self.made, self.said = [], []

    def add(self, measurement):
        self.made.append(from_dict(to_dict(measurement)))

    def doing(self, what, hung=None, died=None):
        self.said.append((what, hung, died))

    @property
    def by_name(self):
        return {each.name: each for each in self.made}


class Session(nvml.Session):
    """An NVML that knows the memory of an H200, and what a test says about others."""

    def __init__(self, busy=None, peak=4916.736):
        super().__init__(None, None)
        self.busy, self.peak = busy or {}, peak

    def peak_gb_s(self, pci_bus_id):
        return self.peak

    def activity(self, pci_bus_ids):
        return [SimpleNamespace(pci_bus_id=each, sentence=partial(self.busy.get, each)) for each in pci_bus_ids]


def identity(ordinal):
    return Identity(ordinal, "GPU", f"GPU-{ordinal}", f"0000:0{ordinal + 1}:00.0", 1 << 33, True)


def some_gpus(report, api=None, count=2, session=None):
    """``api``: an AsyncApi on a stub, or nothing but what a test asks for."""
    api = api or SimpleNamespace(driver_version=lambda: 13000, free_bytes=lambda: 100 << 30, attribute=lambda *_: 9)
    gpus = [identity(ordinal) for ordinal in range(count)]
    return Gpus(api, gpus, session or Session(), report, contextlib.ExitStack())
