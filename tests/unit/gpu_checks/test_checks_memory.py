"""The check ``memory`` on GPUs of host memory: its figures are arithmetic, its data is real."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cuda_stage import compile_library
from measuring import MIB, Kept, Session, some_gpus

from gpu_checks import memory
from gpu_checks.cuda_api import CudaError
from gpu_checks.cuda_async import AsyncApi
from gpu_checks.kernels import Kernels
from gpu_checks.memory import BUFFER_BYTES, KINDS, SLICE_BYTES, buffer_bytes, slice_places
from gpu_checks.parts import gb_s, share
from gpu_checks.registry import Options

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) for the stub library")
NAMES = {f"memory.{kind.name}.gpu{ordinal}" for kind in KINDS for ordinal in (0, 1)}


@pytest.mark.parametrize(
    ("free_mib", "l2_mib", "size_mib"),
    [
        (140_000, 60, 2048),  # an H200
        (180_000, 700, 2102),  # a larger L2 wants larger buffers
        (2457, 6, 614),  # a tenth of 24 GiB, what a server leaves: half of it stays free for that server
        (1000, 60, 250),
        (728, 60, 182),  # 364 MiB of room: just enough
        (727, 60, None),
        (0, 60, None),
    ],
)
def test_how_large_the_buffers_are(free_mib, l2_mib, size_mib):
    size = buffer_bytes(free_mib * MIB, l2_mib * MIB)
    assert size == (None if size_mib is None else size_mib * MIB)
    assert size is None or size > 3 * l2_mib * MIB


def test_rates_are_decimal_and_a_copy_counts_both_ways():
    # 2 GiB there and back in 1000 us: 4294967296 bytes / 0.001 s
    assert gb_s(2 * BUFFER_BYTES, [1000.0]) == [4294.967296]
    assert share(4294.967296, 4916.736) == {"peak_gb_s": 4916.736, "share": 0.8735}
    assert share(4294.967296, None)["share"] is None
    assert "NVML" in share(4294.967296, None)["share_unknown"]


def test_the_pieces_that_are_compared_reach_from_end_to_end():
    places = slice_places(BUFFER_BYTES)
    assert (places[0], places[-1], len(places)) == (0, BUFFER_BYTES - SLICE_BYTES, 256)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpus") / "libcuda.so.1"
    compile_library(path, Path(__file__).with_name("stub_gpus.c"), "libcuda.so.1")
    return str(path)


@pytest.fixture
def measure(library, monkeypatch):
    """Run the check; its measurements by name."""
    monkeypatch.setenv("STUB_FREE_MIB", "24")
    api = AsyncApi(library)
    api.init()

    def run(session=None):
        report = Kept()
        monkeypatch.setattr(memory, "open_gpus", lambda *_: some_gpus(report, api, session=session))
        memory.check(Options(), report)
        return report.by_name

    return run


@needs_cc
def test_healthy(measure):
    seen = measure()
    assert set(seen) == {*NAMES, "memory"}
    whole = seen["memory"]
    assert (whole.status, whole.value, whole.unit, whole.cause) == ("measured", 2, "gpus", None)
    assert len(whole.detail["gpus"]["before"]) == len(whole.detail["gpus"]["after"]) == 2
    copy = seen["memory.copy.gpu1"]
    # 12 MiB of room: 6 MiB each. The stub: 1 us, and 2000 GB/s one way, thus twice that.
    size = copy.detail["buffer_bytes"]
    assert size == 6 * MIB
    expected = 2 * size / (1 + size / 2_000_000) / 1000
    assert copy.value == pytest.approx(expected, rel=1e-3)
    assert copy.detail["one_way_gb_s"] == pytest.approx(expected / 2, rel=1e-3)
    assert copy.detail["bytes_moved"] == 2 * size
    assert (copy.unit, copy.samples.n, copy.detail["share"]) == ("gb_s", 40, round(copy.value / 4916.736, 4))
    assert whole.detail["slowest_copy_gb_s"] == pytest.approx(expected, rel=1e-3)
    read = seen["memory.read.gpu0"]
    assert (read.detail["bytes_moved"], "one_way_gb_s" in read.detail) == (size, False)
    assert read.detail["blocks_per_multiprocessor"] in (1, 2, 4)


@needs_cc
def test_no_peak_no_share(measure):
    seen = measure(Session(peak=None))
    assert seen["memory.copy.gpu0"].value > 0
    assert seen["memory.copy.gpu0"].detail["share"] is None


@needs_cc
def test_a_wrong_word(measure, monkeypatch):
    monkeypatch.setenv("STUB_FAULT", "badmem:1")
    seen = measure()
    assert (seen["memory"].status, seen["memory"].cause, seen["memory"].value) == ("error", "memory.wrong_data", 1)
    assert seen["memory.copy.gpu1"].detail["message"].startswith("GPU 1 (0000:02:00.0), copy: of 1572864 words 1")
    assert seen["memory.copy.gpu0"].status == "measured"


@needs_cc
@pytest.mark.parametrize("name", ["copy", "write"])
def test_a_kernel_that_does_nothing_is_not_fast(measure, monkeypatch, name):
    monkeypatch.setattr(Kernels, name, lambda self, *given: self.read(self._result, 0, given[3]))
    part = "copy_sm" if name == "copy" else name
    seen = measure()
    assert seen[f"memory.{part}.gpu0"].cause == "memory.wrong_data"
    assert (seen["memory"].cause, seen["memory"].value) == ("memory.wrong_data", 0)


@needs_cc
def test_no_room(measure, monkeypatch):
    monkeypatch.setenv("STUB_FREE_MIB", "8")  # 4 MiB of room; two buffers of 4 MiB would be larger than 3 x 1 MiB
    seen = measure()
    assert set(seen) == {*NAMES, "memory"}
    assert {(each.status, each.cause) for each in seen.values()} == {("not_measured", "memory.no_room")}
    assert "8388608 bytes are free" in seen["memory"].detail["message"]
    assert "1048576 bytes of L2" in seen["memory"].detail["message"]


@needs_cc
def test_memory_that_is_free_and_not_given(measure, monkeypatch):
    monkeypatch.setattr(AsyncApi, "free_bytes", lambda self: 1 << 30)  # allocations above 24 MiB fail
    assert measure()["memory"].cause == "memory.no_room"


@needs_cc
def test_somebody_else_at_work(measure):
    seen = measure(Session(busy={"0000:02:00.0": "GPU 0000:02:00.0 is in use by pid 7"}))
    assert (seen["memory"].status, seen["memory"].cause, seen["memory"].value) == ("not_measured", "gpu.in_use", 1)
    assert "pid 7" in seen["memory"].detail["message"]
    assert seen["memory.copy.gpu0"].status == "measured"
    assert seen["memory.copy.gpu1"].cause == "gpu.in_use"


@needs_cc
def test_a_call_that_fails(measure, monkeypatch):
    def copy(self, *_):
        raise CudaError("cuMemcpyAsync", 700, "CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(AsyncApi, "copy", copy)
    seen = measure()
    assert (seen["memory"].status, seen["memory"].cause) == ("error", "memory.failed")
    assert "cuMemcpyAsync gave 700" in seen["memory"].detail["message"]
    assert seen["memory.read.gpu1"].status == "measured"


@needs_cc
def test_a_context_that_can_not_be_made(measure, monkeypatch):
    def retain(self, ordinal):
        raise CudaError("cuDevicePrimaryCtxRetain", 46, "CUDA_ERROR_DEVICE_UNAVAILABLE")

    monkeypatch.setattr(AsyncApi, "retain", retain)
    assert measure()["memory"].cause == "cuda.device_busy"
