"""The small parts of the check ``cuda``: texts that are read, the kernel's arithmetic, the reports of a hang."""

import os
import signal
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_checks import host_view, nvml, processes
from gpu_checks.child import Heard, hear
from gpu_checks.cuda_api import Api, CudaError, loaded_path
from gpu_checks.cuda_work import COUNT, ENTRY, FACTOR, MASK, PTX, SEED, SIZE, pattern, wrong_elements
from gpu_checks.registry import Check, Options
from gpu_checks.runner import run_check


def test_the_right_output_is_the_kernels_arithmetic():
    given_bytes, mixed = pattern()
    assert len(given_bytes) == len(mixed) == SIZE
    for place in (0, 1, 255, 256, COUNT // 2, COUNT - 1):
        before = int.from_bytes(given_bytes[place * 4 : place * 4 + 4], "little")
        after = int.from_bytes(mixed[place * 4 : place * 4 + 4], "little")
        assert after == before ^ ((place * FACTOR + SEED) & MASK)


def test_no_two_places_of_the_output_carry_the_same_mask():
    """The factor is odd, so data that lands at a wrong place can't look right there."""
    assert FACTOR % 2 == 1
    assert len({(place * FACTOR + SEED) & MASK for place in range(COUNT)}) == COUNT


def test_the_kernel_is_for_old_gpus_and_has_the_numbers_of_the_arithmetic():
    text = PTX.decode("ascii")
    assert ".version 4.0\n.target sm_50\n" in text
    assert f"{FACTOR:#010X}".replace("X", "x") in text
    assert f".entry {ENTRY.decode()}(" in text


@given(st.lists(st.integers(0, MASK), min_size=1, max_size=8), st.data())
def test_one_wrong_element_is_found(values, data):
    right = b"".join(value.to_bytes(4, "little") for value in values)
    assert wrong_elements(right, right) is None
    place = data.draw(st.integers(0, len(values) - 1))
    broken = bytearray(right)
    broken[place * 4] ^= 1 << data.draw(st.integers(0, 7))
    said = wrong_elements(bytes(broken), right)
    assert said.startswith(f"1 of {len(values)} elements are wrong, the first is element {place}: ")


def test_the_library_that_was_loaded():
    maps = (
        "7f0-7f1 r-xp 0 08:01 7    /usr/lib/x86_64-linux-gnu/libc.so.6\n"
        "7f2-7f3 r--p 0 08:01 9    /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05\n"
    )
    assert loaded_path(maps) == "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05"
    assert loaded_path(maps.replace("libcuda", "libcudart")) is None


def test_a_function_that_a_release_has_not(tmp_path):
    api = Api("libc.so.6")
    with pytest.raises(CudaError, match="cuInit gave 500"):
        api.init()
    assert api.error_name(999) == ""


def test_nvml_that_is_not_there_says_nothing():
    assert nvml.init("libnvidia-no.so.1") is None
    assert nvml.free_bytes("0000:01:00.0", "libc.so.6") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build", True),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", False),
        ("", None),
    ],
)
def test_flavour_of_the_module(text, expected):
    assert host_view.is_open_module(text) is expected


def test_fabric_manager(tmp_path):
    def process(pid, name):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")

    process(1, "init")
    assert host_view.runs_fabric_manager(str(tmp_path)) is None  # a container: the host's can't be seen
    process(2, "kthreadd")
    assert host_view.runs_fabric_manager(str(tmp_path)) is False
    process(900, "nv-fabricmanage")
    assert host_view.runs_fabric_manager(str(tmp_path)) is True


def test_pci_that_cannot_be_seen(tmp_path):
    assert host_view.has_nvswitch(str(tmp_path)) is None


def test_kernel_log_records():
    assert host_view.parse_kmsg(b"6,12,345,-;NVRM: Xid (PCI:0000:01:00): 79\n SUBSYSTEM=pci\n") == (
        "NVRM: Xid (PCI:0000:01:00): 79"
    )
    assert host_view.parse_kmsg(b"rubbish") == ""


def test_a_file_in_the_place_of_the_kernel_log_is_not_read(tmp_path):
    (tmp_path / "kmsg").write_text("6,1,1,-;NVRM: no\n")
    assert host_view.kernel_log(str(tmp_path)) == ()
    assert host_view.kernel_log(str(tmp_path / "none")) == ()


def test_the_real_kernel_log_comes_to_an_end():
    begin = time.monotonic()
    host_view.kernel_log("/dev")
    assert time.monotonic() - begin < 10


def test_state_of_a_process():
    assert processes.state(os.getpid()).startswith("R (running)")
    assert processes.state(2**22 + 1) == ""


def run(function, timeout=5.0):
    return run_check(Check("x", "s", "us", function), Options(timeout_s=timeout))


def test_a_hang_has_the_cause_that_was_announced_and_the_state():
    def hang(_options, report):
        report.doing("call cuInit", hung="cuda.driver_hang")
        time.sleep(60)

    (last,) = run(hang, timeout=0.3)
    assert (last.status, last.cause) == ("error", "cuda.driver_hang")
    assert last.detail["process_state"].startswith("S (sleeping)")
    assert "call cuInit; its state was S (sleeping)" in last.detail["message"]


def test_what_comes_next_ends_an_announcement():
    def hang(_options, report):
        report.doing("call cuInit", hung="cuda.driver_hang", died="cuda.uvm_failed")
        report.doing("compare")
        time.sleep(60)

    assert run(hang, timeout=0.3)[0].cause == "check.timeout"


def test_a_death_by_signal_has_the_cause_that_was_announced_and_our_own_error_has_not():
    def die(_options, report):
        report.doing("touch managed memory", died="cuda.uvm_failed")
        os.kill(os.getpid(), signal.SIGKILL)

    def fail(_options, report):
        report.doing("touch managed memory", died="cuda.uvm_failed")
        raise ZeroDivisionError

    assert run(die)[0].cause == "cuda.uvm_failed"
    assert run(fail)[0].cause == "check.crashed"


def test_an_announced_cause_must_be_registered():
    heard = Heard()
    hear(heard, b'{"doing": "x", "hung": "cuda.nobody_knows"}')
    assert "not registered" in heard.nonsense
