"""The core of every measuring check, through ctypes, on a libcuda of host memory: real calls, real data, no GPU."""

from __future__ import annotations

import ctypes
import shutil
import struct
from pathlib import Path

import pytest
from cuda_stage import compile_library

from gpu_checks.cuda_api import CudaError
from gpu_checks.cuda_async import L2_CACHE_BYTES, AsyncApi
from gpu_checks.kernels import Kernels, Wrong, pattern_word
from gpu_checks.timing import Timer, summary

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) for the stub library")
SIZE = 1 << 16


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpus") / "libcuda.so.1"
    compile_library(path, Path(__file__).with_name("stub_gpus.c"), "libcuda.so.1")
    return str(path)


@pytest.fixture
def api(library):
    made = AsyncApi(library)
    made.init()
    made.retain(1)
    made.retain(0)
    return made


@pytest.fixture
def kernels(api):
    return Kernels(api, 0)


def test_launches_never_wait_for_their_end(library, monkeypatch):
    """With CUDA_LAUNCH_BLOCKING=1 of the workload's, a kernel that holds a stream would hold us as well."""
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("CUDA_CACHE_DISABLE", "0")
    AsyncApi(library)
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    assert (getenv(b"CUDA_LAUNCH_BLOCKING"), getenv(b"CUDA_CACHE_DISABLE")) == (b"0", b"1")


def test_who_is_there(api):
    assert api.count() == 2
    assert [api.identity(each).pci_bus_id for each in (0, 1)] == ["0000:01:00.0", "0000:02:00.0"]
    assert api.attribute(0, L2_CACHE_BYTES) == 1 << 20


def test_a_copy_and_its_proof(api, kernels):
    stream, first, second = api.stream(), api.allocate(SIZE), api.allocate(SIZE)
    kernels.pattern(first, SIZE, 5, stream)
    api.fill(second, 0xA5, SIZE, stream)
    assert kernels.verify(second, SIZE, 5, stream) == Wrong(SIZE // 4, 0, 0)
    kernels.copy(second, first, SIZE, stream)
    assert kernels.verify(second, SIZE, 5, stream) is None
    place = 77
    assert struct.unpack("<I", api.download(second + 4 * place, 4))[0] == pattern_word(place, 5)
    api.upload(second + 4 * place, b"\0\0\0\0")
    assert kernels.verify(second, SIZE, 5, stream) == Wrong(1, 1, place)


@pytest.mark.parametrize(
    ("fault", "wrong"), [("zeros:0-1", Wrong(SIZE // 4, SIZE // 4, 0)), ("flip:0-1", Wrong(1, 0, SIZE // 8))]
)
def test_what_a_link_does_to_data(api, monkeypatch, fault, wrong):
    monkeypatch.setenv("STUB_FAULT", fault)
    here, there = Kernels(api, 0), Kernels(api, 1)
    api.use(0)
    stream, first = api.stream(), api.allocate(SIZE)
    api.use(1)
    second = api.allocate(SIZE)
    here.pattern(first, SIZE, 5, stream)
    api.copy(second, first, SIZE, stream)
    assert there.verify(second, SIZE, 5, stream) == wrong
    api.copy(first, second, SIZE, stream)  # the other way round is another copy, and works
    there.pattern(second, SIZE, 6, stream)
    api.copy(first, second, SIZE, stream)
    assert here.verify(first, SIZE, 6, stream) is None


def test_time_is_that_of_each_iteration(api, kernels):
    stream, first, second = api.stream(), api.allocate(SIZE), api.allocate(SIZE)
    timer = Timer(api, kernels, 0)
    times = timer.each(stream, lambda _: api.copy(second, first, SIZE, stream), 5)
    # 1 us for itself, and 65,536 bytes at 2,000 GB/s
    assert summary(times).median == pytest.approx(1 + SIZE / 2_000_000, rel=1e-3)
    timer.close()


def test_a_graph_is_run_and_not_recorded_again(api, kernels):
    stream, first, second = api.stream(), api.allocate(SIZE), api.allocate(SIZE)
    kernels.pattern(first, SIZE, 9, stream)
    api.synchronize(stream)
    api.begin_capture(stream)
    kernels.copy(second, first, SIZE, stream)
    graph = api.end_capture(stream)
    api.fill(second, 0, SIZE, stream)
    assert kernels.verify(second, SIZE, 9, stream) == Wrong(SIZE // 4, SIZE // 4, 0)
    api.launch_graph(graph, stream)
    assert kernels.verify(second, SIZE, 9, stream) is None


def test_a_peer_that_can_not_be_reached(api, monkeypatch):
    assert api.can_access_peer(0, 1)
    api.enable_peer(0, 1)
    monkeypatch.setenv("STUB_FAULT", "nopeer:0-1")
    assert not api.can_access_peer(0, 1)
    with pytest.raises(CudaError, match="cuCtxEnablePeerAccess gave 217"):
        api.enable_peer(0, 1)


def test_no_memory_has_a_number(api, monkeypatch):
    monkeypatch.setenv("STUB_FREE_MIB", "1")
    with pytest.raises(CudaError, match="cuMemAlloc_v2 gave 2"):
        api.allocate(2 << 20)


def test_a_kernel_that_the_driver_does_not_have(api):
    with pytest.raises(CudaError, match="cuModuleGetFunction gave 500"):
        api.load_all(b".version 4.0\0", ("nothing",))
