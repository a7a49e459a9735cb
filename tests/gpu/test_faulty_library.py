"""The library that injects faults, before a stand-in for the real one: so that it works at once where GPUs are."""

import ctypes
import subprocess
import sys
from ctypes import c_size_t, c_uint64, c_void_p

import pytest
from faulty import NEEDS_COMPILER, build_faulty

pytestmark = NEEDS_COMPILER

STAND_IN = """
#include <string.h>
int cuInit(unsigned flags) { return (int)flags; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuMemcpyAsync(unsigned long long to, unsigned long long from, unsigned long size, void *stream)
{ (void)stream; memcpy((void *)to, (void *)from, size); return 0; }
int cuMemcpyDtoH_v2(void *to, unsigned long long from, unsigned long size)
{ memcpy(to, (void *)from, size); return 0; }
int cuMemsetD8Async(unsigned long long to, unsigned char value, unsigned long size, void *stream)
{ (void)stream; memset((void *)to, value, size); return 0; }
int ncclAllReduce(const void *from, void *to, unsigned long count, int type, int op, void *comm, void *stream)
{ (void)type; (void)op; (void)comm; (void)stream; memcpy(to, from, 4 * count); return 0; }
"""
SIZE = 8192


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faulty")
    (folder / "real.c").write_text(STAND_IN)
    real = folder / "real" / "libcuda.so.1"
    real.parent.mkdir()
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(folder / "real.c"), "-o", str(real)], check=True
    )
    return ctypes.CDLL(str(build_faulty(folder, real, "libcuda.so.1")))


@pytest.fixture
def buffers():
    source, target = ctypes.create_string_buffer(bytes(range(256)) * (SIZE // 256), SIZE), (ctypes.c_char * SIZE)()
    return source, target


def place(buffer):
    return c_uint64(ctypes.addressof(buffer))


def test_what_is_not_faulty_is_the_real_librarys(library, buffers, monkeypatch):
    monkeypatch.delenv("GPUHOST_FAULT", raising=False)
    source, target = buffers
    version = ctypes.c_int()
    assert library.cuDriverGetVersion(ctypes.byref(version)) == 0
    assert (version.value, library.cuInit(0), library.cuInit(7)) == (13000, 0, 7)
    assert library.cuMemcpyAsync(place(target), place(source), c_size_t(SIZE), c_void_p()) == 0
    assert target.raw == source.raw


@pytest.mark.parametrize("number", [999, 802, 803])
def test_a_number(library, monkeypatch, number):
    monkeypatch.setenv("GPUHOST_FAULT", f"cuInit={number}")
    assert library.cuInit(0) == number


def test_wrong_data_on_the_gpu_and_on_the_way_back(library, buffers, monkeypatch):
    source, target = buffers
    monkeypatch.setenv("GPUHOST_FAULT", "cuMemcpyAsync=wrong")
    library.cuMemcpyAsync(place(target), place(source), c_size_t(SIZE), c_void_p())
    wrong = [place for place in range(SIZE) if target.raw[place] != source.raw[place]]
    assert set(wrong) <= set(range(SIZE // 2, SIZE // 2 + 64))
    assert len(wrong) >= 60
    monkeypatch.setenv("GPUHOST_FAULT", "cuMemcpyDtoH_v2=wrong")
    library.cuMemcpyDtoH_v2(target, place(source), c_size_t(SIZE))
    assert [place for place in range(SIZE) if target.raw[place] != source.raw[place]] == [SIZE // 2]
    library.cuMemcpyDtoH_v2(target, place(source), c_size_t(16))
    assert target.raw[:16] == source.raw[:16]


def test_the_nth_call_hangs(tmp_path, library):
    code = "import ctypes, sys\nlibrary = ctypes.CDLL(sys.argv[1])\nwhile True: print(library.cuInit(0), flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", code, library._name], stdout=subprocess.PIPE, text=True,
        env={"GPUHOST_FAULT": "cuInit=hang@3"},
    )  # fmt: skip
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    process.kill()
    assert process.communicate()[0] == "0\n0\n"


SUM = """
import ctypes, sys
from ctypes import addressof, c_size_t, c_void_p
driver, nccl = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
source = ctypes.create_string_buffer(bytes(range(256)), 256)
target = (ctypes.c_char * 256)()
where = c_void_p(addressof(source)), c_void_p(addressof(target)), c_size_t(64)
assert nccl.ncclAllReduce(*where, 7, 0, c_void_p(), c_void_p()) == 0
print(target.raw.hex())
"""


def test_a_sum_is_wrong(tmp_path, library):
    """The collective's library finds the driver's by its name, as it is loaded already."""
    real = tmp_path / "libnccl.so.2"
    (tmp_path / "real.c").write_text(STAND_IN)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", str(tmp_path / "real.c"), "-o", str(real)], check=True
    )
    folder = tmp_path / "faulty"
    folder.mkdir()
    faulty = build_faulty(folder, real, "libnccl.so.2", "-DFOR_NCCL")
    done = subprocess.run(
        [sys.executable, "-c", SUM, library._name, str(faulty)], capture_output=True, text=True, check=True,
        env={"GPUHOST_FAULT": "ncclAllReduce=wrong"},
    )  # fmt: skip
    assert bytes.fromhex(done.stdout) == b"\x5e" * 4 + bytes(range(4, 256))
