"""libnccl: which one a workload takes, what it is told, what it says, and what its errors mean."""

import ctypes
from pathlib import Path

import pytest

from gpu_checks.allreduce import nccl
from gpu_checks.allreduce.arithmetic import QUICK, SIZES
from gpu_checks.allreduce.check import Wishes, wishes
from gpu_checks.allreduce.nccl import (
    NcclError,
    UniqueId,
    additions,
    candidates,
    configuration_files,
    settings,
    transports,
)
from gpu_checks.allreduce.place import room
from gpu_checks.registry import Options


def put(folder: Path, name: str = "libnccl.so.2") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("")
    return str(folder / name)


def test_the_order_is_that_of_a_workload(tmp_path):
    told = put(tmp_path / "told", "libnccl-own.so")
    path = put(tmp_path / "path")
    wheel = put(tmp_path / "site-packages/nvidia/nccl/lib")
    conda = put(tmp_path / "env/lib")
    environment = {"VLLM_NCCL_SO_PATH": told, "LD_LIBRARY_PATH": f"/nowhere:{tmp_path / 'path'}:relative"}
    paths = ["", str(tmp_path / "archive.pyz"), str(tmp_path / "site-packages")]
    found = candidates(environment, paths, str(tmp_path / "env"))
    assert found[:4] == [told, path, wheel, conda]
    assert candidates({}, paths, str(tmp_path / "env"))[:2] == [wheel, conda]
    # One that is named and not there is passed over, as the loader would.
    assert candidates({"VLLM_NCCL_SO_PATH": "/nowhere/libnccl.so.2"}, paths, "/nowhere")[0] == wheel


def test_no_library_is_found_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(nccl.libcuda, "STANDARD_FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(nccl.libcuda, "configured_folders", lambda _path: [])
    assert candidates({}, [str(tmp_path)], str(tmp_path)) == []


def test_what_the_check_sets_and_what_it_leaves():
    assert additions({}, []) == {"NCCL_NVLS_ENABLE": "0", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT"}
    asked = {"NCCL_NVLS_ENABLE": "1", "NCCL_DEBUG": "WARN", "NCCL_P2P_DISABLE": "1"}
    assert additions(asked, []) == {}
    assert additions({}, ["NCCL_DEBUG=WARN\n# no\n NCCL_NVLS_ENABLE = 1\n"]) == {}
    shared = additions({"NCCL_SOCKET_IFNAME": "eth0"}, [], 1)
    assert (shared["NCCL_HOSTID"], shared["NCCL_IB_DISABLE"]) == ("gpuhost-1", "1")
    assert "NCCL_SOCKET_IFNAME" not in shared


def test_configuration_files_of_a_user(tmp_path):
    own = put(tmp_path, ".nccl.conf")
    assert configuration_files({"HOME": str(tmp_path)})[0] == own
    other = put(tmp_path, "other.conf")
    assert configuration_files({"HOME": str(tmp_path), "NCCL_CONF_FILE": other})[0] == other


def test_only_ncclss_own_variables_are_recorded():
    assert settings({"NCCL_X": "1", "HOME": "/root", "NCCL_A": "2"}) == {"NCCL_A": "2", "NCCL_X": "1"}


def test_transports_as_nccl_prints_them():
    log = """\
host:31:31 [0] NCCL INFO Channel 00/24 : 0 1
host:31:31 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
host:31:31 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
host:31:31 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
host:31:31 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
host:31:31 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer
host:31:31 [0] NCCL INFO Connected all rings
"""
    assert transports(log) == {
        "P2P/CUMEM": 2, "SHM/direct/direct": 1, "NET/Socket/0": 1, "P2P/direct pointer": 1,
    }  # fmt: skip
    assert transports("") == {}


@pytest.mark.parametrize(
    ("last", "cause"),
    [
        ("Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'", "nccl.driver_too_old"),
        ("Error: failed to extend /dev/shm/nccl-x to 33030532 bytes, error: No space left (28)", "nccl.shm_full"),
        ("Error while creating shared memory segment: No space left on device (28)", "nccl.shm_full"),
        ("Bootstrap : no socket interface found", "nccl.no_interface"),
        ("Cuda failure 2 'out of memory'", "cuda.out_of_memory"),
        ("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 3b000", "nccl.failed"),
        ("", "nccl.failed"),
    ],
)
def test_what_an_error_means(last, cause):
    error = NcclError("ncclCommInitRank", 2, "unhandled system error", last)
    assert error.cause == cause
    assert str(error).startswith("ncclCommInitRank gave 2 (unhandled system error)")
    assert last in str(error)


def test_the_unique_id_is_passed_by_value_and_has_128_bytes():
    assert ctypes.sizeof(UniqueId) == 128
    # A NUL in it is a byte like any other.
    raw = bytes(range(128))
    assert bytes(UniqueId.from_buffer_copy(raw)) == raw


def test_room_leaves_nccl_some_memory():
    mib = 1 << 20
    assert room((1024 + 256) * mib, 512 * mib) == 512 * mib
    assert room((1024 + 256) * mib - 1, 512 * mib) == 256 * mib
    assert room(256 * mib + 16, 512 * mib) == 8
    assert room(256 * mib + 15, 512 * mib) == 0
    assert room(0, 8) == 0


def test_wishes_of_the_environment():
    full = wishes(Options(), {})
    assert isinstance(full, Wishes)
    assert (len(full.pairs), full.layout, full.notes) == (2 * len(SIZES), "process", ())
    assert wishes(Options(quick=True), {}).pairs == QUICK
    assert wishes(Options(), {"GPU_CHECKS_LAYOUT": "single"}).layout == "single"
    # Two ranks on one GPU are two processes, whatever else is asked for.
    shared = wishes(Options(), {"GPU_CHECKS_LAYOUT": "single", "GPU_CHECKS_SHARE_GPU": "1"})
    assert (shared.layout, len(shared.notes)) == ("process", 1)
    assert wishes(Options(), {"NCCL_P2P_DISABLE": "1"}).notes
    for wrong in ({"GPU_CHECKS_LAYOUT": "threads"}, {"GPU_CHECKS_BACKEND": "mpi"}):
        with pytest.raises(ValueError, match="GPU_CHECKS_LAYOUT"):
            wishes(Options(), wrong)
