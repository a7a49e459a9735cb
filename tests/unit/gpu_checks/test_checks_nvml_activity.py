"""Who else uses a GPU: every sign of it, on a library that shows it; and what is no sign of use."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time

import pytest
from cuda_stage import HERE, compile_library
from measuring import Kept, some_gpus

from gpu_checks import nvml, nvml_activity
from gpu_checks.nvml_activity import Activity, command_of, family
from gpu_checks.parts import busy_gpus

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) for the stub library")
FIRST, SECOND = "0000:01:00.0", "0000:02:00.0"
BOTH = [FIRST, SECOND]
NO_GPM = "gpm=!3"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    compile_library(path, HERE / "stub_nvml.c", "libnvidia-ml.so.1")
    return str(path)


@pytest.fixture
def stranger():
    """A process that is none of ours: not below us, and in a session of its own."""
    script = "sleep 60 >/dev/null 2>&1 & echo $!"
    done = subprocess.run(["setsid", "sh", "-c", script], capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    yield pid
    os.kill(pid, 9)


def active(library, monkeypatch, answers, gpus=BOTH):
    """What is said, and how long that took."""
    monkeypatch.setenv("STUB_NVML", answers)
    with nvml.session(library) as session:
        begin = time.monotonic()
        said = session.others_active(gpus)
        return said, time.monotonic() - begin


@pytest.mark.parametrize("answers", ["", NO_GPM, f"{NO_GPM} field197=!3 field198=!3", "gpm=!4", "gpm_sample=!19"])
def test_an_idle_machine_is_quiet_and_that_is_known_soon(library, monkeypatch, answers):
    said, seconds = active(library, monkeypatch, answers)
    assert said is None
    assert seconds < 0.4  # 0.12 on a machine that does nothing else


@pytest.mark.parametrize(
    ("answers", "sign"),
    [
        ("gpm10@1=38.2", "memory bandwidth 38 %"),  # a copy within one GPU
        ("gpm2@1=55", "multiprocessors 55 %"),
        ("gpm1@1=99.6", "computing 100 %"),  # one block that spins
        ("gpm61@1=120000", "NVLink out 125.8 GB/s"),  # MiB/s
        ("gpm21@1=1000", "PCIe in 1.0 GB/s"),
        (f"{NO_GPM} field138@1=100000000", "NVLink out 102.4 GB/s"),  # KiB each second
        (f"{NO_GPM} field198@1=25000000000", "PCIe in 25.0 GB/s"),
        (f"{NO_GPM} field197=!3 field198=!3 throughput1@1=12000000", "PCIe in 12.0 GB/s"),  # KB/s
        (f"{NO_GPM} memory_utilisation@1=60", "memory 60 %"),
        (f"{NO_GPM} utilisation@1=98 reasons@1=0", "computing 98 %"),
    ],
)
def test_every_sign_of_use(library, monkeypatch, answers, sign):
    said, seconds = active(library, monkeypatch, answers)
    assert said is not None
    assert sign in said
    assert SECOND in said
    assert FIRST not in said
    assert "a process that can't be seen" in said
    assert seconds > nvml_activity.SETTLE_SECONDS  # it lasts


def test_what_ends_while_we_look_is_no_sign(library, monkeypatch):
    """NVML's utilisation is up to 1 s old, and a driver clears memory after a process: we wait until it goes."""
    said, seconds = active(library, monkeypatch, f"{NO_GPM} utilisation=90~0.4 reasons=0")
    assert said is None
    assert 0.3 < seconds < nvml_activity.SETTLE_SECONDS


def test_many_busy_gpus_cost_no_more_than_one(library, monkeypatch):
    """16 GPUs asked one after the other would take 50 s, for each check that measures."""
    monkeypatch.setenv("STUB_NVML", "gpm10=38.2")
    report = Kept()
    with nvml.session(library) as session:
        gpus = some_gpus(report, session=session)
        begin = time.monotonic()
        found = busy_gpus(gpus)
    assert [*found] == [0, 1]
    assert all("memory bandwidth 38 %" in text for text in found.values())
    assert time.monotonic() - begin < 1.5 * nvml_activity.SETTLE_SECONDS


def test_a_gpu_that_pauses_in_the_last_look_is_in_use(monkeypatch):
    busy, quiet = (Activity(FIRST, {"sm": value}) for value in (50.0, 0.0))
    other = Activity(SECOND, {"sm": 50.0})
    looks = iter([[busy, other], [busy, other], [quiet, other]])
    times = iter([0.0, 0.1, 2.9, 3.0, 3.1])
    monkeypatch.setattr(nvml_activity, "look", lambda *_: next(looks))
    monkeypatch.setattr(nvml_activity.time, "monotonic", lambda: next(times))
    assert [each.active for each in nvml_activity.sure(None, {})] == [True, True]


def test_utilisation_of_a_gpu_that_the_driver_calls_idle_is_old(library, monkeypatch):
    said, seconds = active(library, monkeypatch, f"{NO_GPM} utilisation=90 reasons=1")
    assert (said, seconds < 0.5) == (None, True)


def test_a_loaded_server_that_waits_is_no_activity_but_is_named(library, monkeypatch, stranger):
    monkeypatch.setenv("STUB_NVML", f"process@0={stranger}:1000000")
    with nvml.session(library) as session:
        assert session.others_active(BOTH) is None
        assert [(each.pid, each.command, each.used_bytes) for each in session.others(FIRST)] == [
            (stranger, "sleep 60", 1000000)
        ]
        assert session.others(SECOND) == ()
        (first,) = session.activity([FIRST])
    assert nvml_activity.plain(first)["others"] == [{"pid": stranger, "command": "sleep 60", "used_bytes": 1000000}]


def test_the_process_is_named(library, monkeypatch, stranger):
    said, _ = active(library, monkeypatch, f"process@0={stranger}:1 gpm10@0=50")
    assert said == f"GPU {FIRST} is in use by pid {stranger} (sleep 60): memory bandwidth 50 %"


def test_a_sample_of_a_process_is_enough(library, monkeypatch, stranger):
    said, _ = active(library, monkeypatch, f"sample@0={stranger}:30:2 process@0={stranger}:1")
    assert said is not None
    assert f"pid {stranger} (sleep 60)" in said


@pytest.mark.parametrize(
    "sample", ["{own}:90:90", "{child}:90:90", "999999999:90:90", "{stranger}:1:0", "{stranger}:4000:0"]
)
def test_samples_that_mean_nobody_else(library, monkeypatch, stranger, sample):
    """Ourselves, our children, the dead, the idle, and rows of nonsense."""
    with subprocess.Popen(["sleep", "60"]) as child:
        text = sample.format(own=os.getpid(), child=child.pid, stranger=stranger)
        context = f"process={text.partition(':')[0]}:1" if "999" not in text else ""
        said, _ = active(library, monkeypatch, f"sample={text} {context}")
        child.kill()
    assert said is None


def test_a_process_that_has_left_the_gpu_is_not_using_it(library, monkeypatch, stranger):
    assert active(library, monkeypatch, f"sample={stranger}:90:90")[0] is None


def test_our_own_processes_are_not_others(library, monkeypatch):
    monkeypatch.setenv("STUB_NVML", f"process={os.getpid()}:5")
    with nvml.session(library) as session:
        assert session.others(FIRST) == ()
    assert {os.getpid(), os.getppid()} <= family(os.getpid())


def test_every_sample_is_given_back(library, monkeypatch):
    for answers in ("", "gpm_sample=!19"):
        active(library, monkeypatch, answers)
        assert ctypes.CDLL(library).stub_samples() == 0


def test_no_gpm_where_mig_is_on(library, monkeypatch, tmp_path):
    monkeypatch.setenv("STUB_NVML_CALLS", str(tmp_path / "calls"))
    said, _ = active(library, monkeypatch, "mig=1 gpm10=50")
    assert said is None
    assert "gpm" not in (tmp_path / "calls").read_text()


def test_a_command_without_its_secrets():
    assert command_of("python3\0-m\0server\0--token\0abc\0") == "python3 -m server"
    assert command_of("") == ""
    assert len(command_of("x" * 500)) == 120


def test_thresholds_by_hand():
    quiet = Activity(FIRST, {"dram": 1.0, "sm": 2.0}, {"pcie_tx": 0.25})
    assert (quiet.signs, quiet.sentence(), quiet.active) == ((), None, False)
    busy = Activity(FIRST, {"dram": 1.1}, {"pcie_tx": 0.26})
    assert busy.signs == ("memory bandwidth 1 %", "PCIe out 0.3 GB/s")


class OldLibrary:
    """Neither GPM nor counters of bytes: PCIe's traffic is measured while the caller waits, 20 ms for a direction."""

    def __init__(self, clock):
        self.clock = clock

    def number(self, name, device, which):
        assert name == "nvmlDeviceGetPcieThroughput"
        self.clock[0] += 0.02
        return 12_000_000

    def fields(self, device, wanted):
        return [None] * len(wanted)

    def ask(self, *_):
        return 3

    def mig_on(self, device):
        return False

    def nothing(self, *_):
        return None

    utilization = clock_reasons = processes = nothing

    def process_samples(self, *_):
        return []


def test_traffic_of_the_last_of_many_gpus_is_seen_too(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(nvml_activity.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(nvml_activity.time, "sleep", lambda seconds: None)
    found = nvml_activity.look(OldLibrary(clock), {f"0000:0{each}:00.0": each for each in range(8)})
    assert [each.gb_s for each in found] == [{"pcie_tx": 12.0, "pcie_rx": 12.0}] * 8
