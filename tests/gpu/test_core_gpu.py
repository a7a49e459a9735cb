"""The core of every measuring check on a real GPU: kernels, the hold, time, graphs. Figures here are only plausible."""

import os
import re
import struct
import time
from ctypes import c_void_p
from pathlib import Path

import pytest

from gpu_checks.cuda_async import L2_CACHE_BYTES, AsyncApi
from gpu_checks.kernels import LOCAL_BLOCKS, Kernels, pattern_word
from gpu_checks.timing import Timer, rotation, summary

VERSION_FILE = Path("/proc/driver/nvidia/version")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not VERSION_FILE.exists(), reason=f"no NVIDIA driver: {VERSION_FILE} does not exist"),
]
MIB = 1 << 20
GPUS = len([name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)])


@pytest.fixture(scope="module")
def api():
    made = AsyncApi()
    made.init()
    made.retain(0)
    yield made
    made.release_all()


@pytest.fixture(scope="module")
def kernels(api):
    made = Kernels(api, 0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def stream(api):
    return api.stream()


@pytest.fixture(scope="module")
def timer(api, kernels):
    made = Timer(api, kernels, 0)
    yield made
    made.close()


@pytest.fixture
def two(api):
    """Two buffers of 64 MiB and some odd elements, which no number of threads divides."""
    size = 64 * MIB + 16 * 77
    buffers = [api.allocate(size) for _ in range(2)]
    yield (*buffers, size)
    for each in buffers:
        api.free(each)


def test_the_pattern_is_the_one_that_python_computes(api, kernels, stream, two):
    first, _, size = two
    kernels.pattern(first, size, 12345, stream)
    api.synchronize(stream)
    for place in (0, 1, 4097, size // 4 - 1):
        got = struct.unpack("<I", api.download(first + 4 * place, 4))[0]
        assert got == pattern_word(place, 12345)


@pytest.mark.parametrize("blocks", [1, LOCAL_BLOCKS])
def test_a_copy_is_whole(api, kernels, stream, two, blocks):
    first, second, size = two
    kernels.pattern(first, size, 7, stream)
    api.fill(second, 0xA5, size, stream)
    assert kernels.verify(second, size, 7, stream).words == size // 4
    kernels.copy(second, first, size, stream, blocks)
    assert kernels.verify(second, size, 7, stream) is None
    assert kernels.verify(second, size, 8, stream) is not None


def test_one_wrong_word_is_found_wherever_it_is(api, kernels, stream, two):
    first, _, size = two
    for place in (0, 5, size // 8, size // 4 - 1):
        kernels.pattern(first, size, 7, stream)
        api.synchronize(stream)
        api.upload(first + 4 * place, struct.pack("<I", 0))
        wrong = kernels.verify(first, size, 7, stream)
        assert (wrong.words, wrong.zeros, wrong.first) == (1, 1, place)


def test_write_fills_and_nothing_behind_it(api, kernels, stream, two):
    first, _, size = two
    api.fill(first, 0x11, size, stream)
    kernels.write(first, size - 16, 0xDEADBEEF, stream)
    api.synchronize(stream)
    assert api.download(first, 8) == struct.pack("<II", 0xDEADBEEF, 0xDEADBEEF)
    assert api.download(first + size - 32, 32) == struct.pack("<I", 0xDEADBEEF) * 4 + b"\x11" * 16


def test_the_hold_holds_and_gives_up(api, kernels, stream, timer):
    event = api.event()
    with timer.held(stream):
        api.record(event, stream)
        time.sleep(0.05)
        assert int(api._cuda.cuEventQuery(event)) == 600  # CUDA_ERROR_NOT_READY
    api.synchronize(stream)
    assert int(api._cuda.cuEventQuery(event)) == 0
    memory = api.host_memory(64)
    begin = time.monotonic()
    kernels.hold(memory.device_address, stream, limit_s=0.3)
    api.synchronize(stream)
    assert 0.25 < time.monotonic() - begin < 1.0


def test_times_are_the_gpus(api, kernels, stream, timer):
    """4.8 TB/s is an H200's data sheet; nothing copies faster, and no modern GPU slower than 100 GB/s."""
    l2 = api.attribute(0, L2_CACHE_BYTES)
    size = 256 * MIB
    count = max(2, rotation(size, l2))
    buffers = [(api.allocate(size), api.allocate(size)) for _ in range(count)]
    moves = {
        "engine": lambda turn: api.copy(*buffers[turn % count], size, stream),
        "kernel 1": lambda turn: kernels.copy(*buffers[turn % count], size, stream, 1),
        "kernel 2": lambda turn: kernels.copy(*buffers[turn % count], size, stream, 2),
        "kernel 4": lambda turn: kernels.copy(*buffers[turn % count], size, stream, 4),
        "kernel 8": lambda turn: kernels.copy(*buffers[turn % count], size, stream, 8),
        "read 1": lambda turn: kernels.read(buffers[turn % count][0], size, stream, 1),
        "read 2": lambda turn: kernels.read(buffers[turn % count][0], size, stream, 2),
        "read 4": lambda turn: kernels.read(buffers[turn % count][0], size, stream, 4),
        "read 8": lambda turn: kernels.read(buffers[turn % count][0], size, stream, 8),
        "write 1": lambda turn: kernels.write(buffers[turn % count][0], size, 3, stream, 1),
        "write 2": lambda turn: kernels.write(buffers[turn % count][0], size, 3, stream, 2),
        "write 4": lambda turn: kernels.write(buffers[turn % count][0], size, 3, stream, 4),
    }
    for name, work in moves.items():
        samples = summary(timer.each(stream, work, 40))
        moved = size if name[0] in "rw" else 2 * size
        print(f"{name}: {moved / samples.median / 1000:.1f} GB/s, p20 {samples.p20:.1f} us, p80 {samples.p80:.1f} us")
        assert 100 < moved / samples.median / 1000 < 16000
    for pair in buffers:
        for each in pair:
            api.free(each)


def test_a_graph_runs_what_was_recorded(api, kernels, stream, two):
    first, second, size = two
    kernels.pattern(first, size, 9, stream)
    api.synchronize(stream)
    api.begin_capture(stream)
    kernels.copy(second, first, size, stream)
    graph = api.end_capture(stream)
    api.fill(second, 0, size, stream)
    assert kernels.verify(second, size, 9, stream) is not None
    api.launch_graph(graph, stream)
    assert kernels.verify(second, size, 9, stream) is None
    api.destroy_graph(graph)


def test_a_chase_follows_every_pointer(api, kernels, stream, timer):
    """A ring of 4096 nodes, 512 bytes apart; the end is where it began after a whole round."""
    nodes, stride = 4096, 512
    base = api.allocate(nodes * stride)
    ring = bytearray(nodes * stride)
    for node in range(nodes):
        struct.pack_into("<Q", ring, node * stride, base + (node + 1) % nodes * stride)
    api.upload(base, bytes(ring))
    kernels.chase(base, 3, 0, stream)
    api.synchronize(stream)
    assert struct.unpack("<Q", api.download(kernels._result + 8, 8))[0] == base + 3 * stride
    [us] = timer.each(stream, lambda _: kernels.chase(base, 2 * nodes, 0, stream), 1)
    print(f"one step: {us / (2 * nodes) * 1000:.1f} ns")
    assert 0.05 < us / (2 * nodes) < 5
    api.free(base)


def test_no_peer_of_a_gpu_that_is_not_there(api):
    assert api.can_access_peer(0, 0) is False
    if GPUS > 1:
        assert isinstance(api.can_access_peer(0, 1), bool)


def test_streams_do_not_wait_for_the_default_one(api, stream, timer):
    with timer.held(stream):
        api.call("cuStreamSynchronize", c_void_p())  # would never return for a blocking stream
    api.synchronize(stream)
