"""NVML through the real ctypes code, on a library whose answers the test chooses."""

from __future__ import annotations

import shutil

import pytest
from cuda_stage import HERE, compile_library

from gpu_checks import nvml, nvml_gpm
from gpu_checks.nvml_api import FieldValue, Library, PciInfo, ProcessInfo, ProcessSample, address_of

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) for the stub library")
FIRST, SECOND = "0000:01:00.0", "0000:02:00.0"

OLD = """
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **gpu) { *gpu = (void *)bus; return 0; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    compile_library(path, HERE / "stub_nvml.c", "libnvidia-ml.so.1")
    return str(path)


@pytest.fixture(scope="module")
def old_library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    (folder / "old.c").write_text(OLD)
    compile_library(folder / "old.so", folder / "old.c", "old.so")
    return str(folder / "old.so")


@pytest.fixture
def answers(monkeypatch):
    def set_to(text):
        monkeypatch.setenv("STUB_NVML", text)

    set_to("")
    return set_to


def test_the_sizes_of_the_structures_are_those_of_the_header():
    """x86_64: computed by hand from nvml.h, each member at a multiple of its own size."""
    from ctypes import sizeof  # noqa: PLC0415 - only here

    sizes = {each: sizeof(each) for each in (FieldValue, PciInfo, ProcessInfo, ProcessSample, nvml_gpm._Metric)}
    assert sizes == {FieldValue: 40, PciInfo: 68, ProcessInfo: 24, ProcessSample: 32, nvml_gpm._Metric: 40}
    assert nvml_gpm._Request.metrics.offset == 24


@pytest.mark.parametrize(
    ("said", "address"),
    [("00000000:C1:00.0", "0000:c1:00.0"), ("0000:01:00.0", "0000:01:00.0"), ("00010000:01:00.0", "10000:01:00.0")],
)
def test_addresses(said, address):
    assert address_of(said) == address


def test_the_state_of_a_gpu(library, answers):
    answers("power@1=699500 clock1@1=1980 utilisation@1=97 memory_utilisation@1=41 reasons@1=4 pstate@1=2")
    with nvml.session(library) as session:
        first, second = session.state(FIRST), session.state(SECOND)
    assert first == nvml.GpuState(
        FIRST, 420, 3201, 38, 113.0, "P0", ["gpu_idle"], 0, 0, memory_used_bytes=(143771 - 143156) << 20
    )
    assert (second.sm_clock_mhz, second.power_w, second.pstate) == (1980, 699.5, "P2")
    assert (second.utilisation, second.memory_utilisation, second.throttle_reasons) == (97, 41, ["sw_power_cap"])


def test_what_a_gpu_does_not_tell_is_not_zero(library, answers):
    answers("power=!3 clock1=!3 temperature0=!3 utilisation=!3 pstate=32 reasons=!3")
    with nvml.session(library) as session:
        state = session.state(FIRST)
    told = (state.power_w, state.sm_clock_mhz, state.temperature_c, state.utilisation, state.pstate)
    assert told == (None,) * 5
    assert state.throttle_reasons is None


def test_an_older_driver_that_has_none_of_the_functions(old_library):
    with nvml.session(old_library) as session:
        assert session.number == 0
        assert session.state(FIRST) == nvml.GpuState(FIRST)
        assert session.peak_gb_s(FIRST) is None
        assert session.others_active([FIRST]) is None
        assert session.others(FIRST) == ()
    assert nvml.free_bytes(FIRST, old_library) is None


def test_without_a_library_everything_is_unknown():
    with nvml.session("libnvidia-no.so.1") as session:
        assert (session.number, session.library) == (None, None)
        assert session.state(FIRST) == nvml.GpuState(FIRST)
        assert session.others_active([FIRST, SECOND]) is None


def test_a_library_that_does_not_start(library, answers):
    answers("init=18")
    assert nvml.init(library) == 18
    with nvml.session(library) as session:
        assert (session.number, session.library, session.error_text(18)) == (18, None, "mismatch")
        assert session.peak_gb_s(FIRST) is None


def test_free_memory(library, answers):
    answers("free_mib@1=7")
    assert nvml.free_bytes(SECOND, library) == 7 << 20
    assert nvml.free_bytes("0000:09:00.0", library) is None


@pytest.mark.parametrize(
    ("clock_mhz", "width_bits", "gb_s"),
    [
        (3201, 6144, 4916.7),  # H200, HBM3e
        (14001, 512, 1792.1),  # RTX PRO 6000 Blackwell, GDDR7
        (9751, 384, 936.1),  # RTX 3090, GDDR6X
        (1593, 5120, 2039.0),  # A100 80 GB, HBM2e
    ],
)
def test_peaks_as_their_data_sheets_say(library, answers, clock_mhz, width_bits, gb_s):
    answers(f"max_clock2={clock_mhz} bus_width={width_bits}")
    with nvml.session(library) as session:
        assert session.peak_gb_s(FIRST) == pytest.approx(gb_s, abs=0.1)


@pytest.mark.parametrize("missing", ["max_clock2=!3", "bus_width=!3", "bus_width=0"])
def test_no_peak_from_half_the_numbers(library, answers, missing):
    answers(missing)
    with nvml.session(library) as session:
        assert session.peak_gb_s(FIRST) is None


def test_reasons_by_name():
    assert nvml.reason_names(0) == []
    assert nvml.reason_names(0x88) == ["hw_slowdown", "hw_power_brake_slowdown"]
    assert nvml.reason_names(0x400) == ["0x400"]


def test_field_values_are_read_by_their_kind_and_unknown_ones_are_none(library, answers):
    answers("field230=2 field29=!3")
    with nvml.session(library) as session:
        assert session.library.fields(session.handle(FIRST), [(230, 0), (29, 0)]) == [2, None]


def test_a_function_that_is_not_there(old_library):
    assert Library(old_library).ask("nvmlNoSuchFunction") == 13


def test_an_instance_of_mig_has_no_peak_of_its_own(library, answers):
    """NVML's clock and bus width are the whole GPU's: a 1g instance would seem to reach an eighth of its peak."""
    answers("mig@0=1")
    with nvml.session(library) as session:
        assert session.peak_gb_s(FIRST) is None
        assert session.peak_gb_s(SECOND) is not None
