"""NVML and the check ``health`` on real GPUs: no false alarm, and every way in which another process uses a GPU."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_checks.build_zipapp import build

REPOSITORY = Path(__file__).resolve().parents[2]
VERSION_FILE = Path("/proc/driver/nvidia/version")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not VERSION_FILE.exists(), reason=f"no NVIDIA driver: {VERSION_FILE} does not exist"),
]
GPUS = len([name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)])
RUNS = 20

LOOK = """
import json, sys, time
from gpu_checks import nvml
from gpu_checks.health import count as health_count
from gpu_checks.nvml_activity import plain
with nvml.session() as session:
    gpus = [gpu.address for gpu in health_count.here(session.library)]
    begin = time.monotonic()
    found = session.activity(gpus)
    seconds = time.monotonic() - begin
    peaks = [session.peak_gb_s(gpu) for gpu in gpus]
    states = [vars(session.state(gpu)) for gpu in gpus]
print(json.dumps({"seconds": seconds, "gpus": [plain(each) for each in found], "peaks": peaks, "states": states}))
"""

LOAD = """
import sys, time
from gpu_checks.cuda_async import AsyncApi
from gpu_checks.kernels import Kernels
kind, size = sys.argv[1], 256 << 20
api = AsyncApi()
api.init()
if kind == "peer":
    api.retain(1)
    there = api.allocate(size)
api.retain(0)
stream, here, also = api.stream(), api.allocate(size), api.allocate(size)
if kind == "peer":
    api.enable_peer(0, 1)
kernels = Kernels(api, 0)
host = api.host_memory(size)
api.synchronize(stream)
print("ready", flush=True)
until = time.monotonic() + 60
while time.monotonic() < until:
    if kind == "idle":
        time.sleep(0.1)
        continue
    for _ in range(4):
        if kind == "local":
            api.copy(also, here, size, stream)
        elif kind == "peer":
            api.copy(there, here, size, stream)
        elif kind == "host":
            api.copy(here, host.address, size, stream)
        else:
            kernels.read(here, size, stream)
    api.synchronize(stream)
"""


def python(script, *arguments, **more):
    """A process in a session of its own, so that what the test starts besides is no process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True, **more,
    )  # fmt: skip


def look():
    """What is seen of the GPUs now."""
    said, _ = python(LOOK).communicate(timeout=60)
    return json.loads(said)


def active(seen):
    return [each["active"] for each in seen["gpus"] if each["active"]]


def test_idle_gpus_are_quiet_and_that_is_known_in_time():
    """Twenty looks; the numbers are printed, the thresholds of nvml_activity stand on them."""
    rows = [look() for _ in range(RUNS)]
    print(json.dumps(rows[-1], indent=1))
    seconds = sorted(row["seconds"] for row in rows)
    print(f"seconds: min {seconds[0]:.3f}, median {seconds[RUNS // 2]:.3f}, max {seconds[-1]:.3f}")
    for name in ("percent", "gb_s"):
        keys = {key for row in rows for gpu in row["gpus"] for key in gpu[name]}
        print(name, {key: max(gpu[name].get(key, 0) for row in rows for gpu in row["gpus"]) for key in sorted(keys)})
    assert [active(row) for row in rows] == [[]] * RUNS
    assert seconds[RUNS // 2] < 0.15


@pytest.mark.parametrize("kind", ["local", "peer", "host", "kernel"])
def test_another_process_that_uses_a_gpu_is_seen_and_named(kind):
    if kind == "peer" and GPUS < 2:
        pytest.skip("one GPU only")
    load = python(LOAD, kind)
    try:
        assert load.stdout.readline() == "ready\n"
        time.sleep(0.5)
        seen = [look() for _ in range(3)]
    finally:
        os.kill(load.pid, signal.SIGKILL)
        load.wait()
    for each in seen:
        print(kind, f"{each['seconds']:.3f} s", active(each), json.dumps([gpu["percent"] for gpu in each["gpus"]]),
              json.dumps([gpu["gb_s"] for gpu in each["gpus"]]))  # fmt: skip
    print(json.dumps(seen[0]["states"]))
    assert all(active(each) for each in seen)
    visible = any(gpu["others"] for gpu in seen[0]["gpus"])
    print("the process is visible to NVML here:", visible)
    if visible:
        assert f"pid {load.pid}" in " ".join(active(seen[0]))


def test_a_loaded_server_that_waits_is_no_activity():
    load = python(LOAD, "idle")
    try:
        assert load.stdout.readline() == "ready\n"
        # Making the context was activity; utilisation shows that for up to a second.
        time.sleep(1.5)
        seen = [look() for _ in range(3)]
    finally:
        os.kill(load.pid, signal.SIGKILL)
        load.wait()
    print(json.dumps(seen[0]["gpus"], indent=1))
    assert [active(each) for each in seen] == [[]] * 3


def test_peaks_are_those_of_the_drivers_own_numbers():
    query = ["nvidia-smi", "--query-gpu=clocks.max.memory", "--format=csv,noheader,nounits"]
    rows = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    peaks = look()["peaks"]
    print(list(zip(rows, peaks, strict=True)))
    assert all(peak is not None and 100 < peak < 20_000 for peak in peaks)
    for clock, peak in zip(rows, peaks, strict=True):
        # Two transfers with each clock; what is left is the width, in whole channels of 64 bits.
        width = peak * 1000 * 8 / 2 / int(clock)
        print(f"{clock} MHz, {width:.1f} bits")
        assert width == pytest.approx(round(width / 64) * 64, abs=0.1)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("build") / "gpu_checks.pyz"
    build(path)
    return path


def measure(archive, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, str(archive), "health", "--json", *arguments],
        capture_output=True, text=True, check=True, timeout=120, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.stderr == ""
    return {each["name"]: each for each in json.loads(done.stdout)["measurements"]}


def test_healthy_gpus_again_and_again(archive):
    """Healthy ones, unless a real fault is here; then it is printed and the numbers of nvidia-smi decide."""
    begin = time.monotonic()
    runs = [measure(archive, "--expect-gpus", str(GPUS)) for _ in range(RUNS)]
    print(f"{(time.monotonic() - begin) / RUNS:.2f} s a run")
    print(json.dumps(runs[-1], indent=1))
    assert [run["health"]["status"] for run in runs] == ["measured"] * RUNS, runs[-1]["health"]["detail"]
    for run in runs:
        assert run["health"]["value"] == GPUS
        for name, each in run.items():
            if name.startswith("health.link."):
                assert each["status"] == "measured" or each["cause"] == "health.link_unknown"
                assert each["detail"]["looks_under_load"] > 0, each
                assert each["detail"]["no_load"] == ""


def test_the_numbers_are_those_of_nvidia_smi(archive):
    query = "uuid,ecc.errors.uncorrected.volatile.total,remapped_rows.pending,pcie.link.width.current"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [row.split(", ") for row in said.splitlines()]
    found = measure(archive)
    for index, (uuid, errors, pending, width) in enumerate(rows):
        detail = found[f"health.gpu{index}"]["detail"]
        assert detail["uuid"] == uuid
        if errors.isdecimal():
            assert detail["uncorrected"] == int(errors)
        if pending in ("Yes", "No", "0", "1"):
            assert detail["remap_pending"] == (pending in ("Yes", "1"))
        link = found[f"health.link.gpu{index}"]
        print(uuid, width, link["value"], link["detail"]["links"], link["detail"]["load_gb_s"])
        if link["status"] == "measured" and width.isdecimal():
            assert link["value"] == int(width)


def test_a_gpu_too_many_is_missed(archive):
    whole = measure(archive, "--expect-gpus", str(GPUS + 1))["health"]
    assert (whole["status"], whole["cause"]) == ("error", "health.gpu_missing")


def test_hidden_gpus_are_still_looked_at(archive):
    """CUDA_VISIBLE_DEVICES does not matter to NVML; only the load on the links does not reach them."""
    whole = measure(archive, "--expect-gpus", str(GPUS), CUDA_VISIBLE_DEVICES="")["health"]
    assert (whole["status"], whole["value"]) == ("measured", GPUS)
