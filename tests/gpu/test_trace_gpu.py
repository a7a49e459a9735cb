"""``gpuhost trace`` on real traces: a small decode stack in torch, made here by torch's own profiler.

The truth is not the program's own: torch's sums of kernel times, Python's clock around the steps, CUDA events without
a profiler. Faults are planted one by one; the healthy stack names none. Needs torch and pytest, nothing else: the
command runs in a process of its own, from a folder with links to the sources.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

VERSION_FILE = Path("/proc/driver/nvidia/version")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not VERSION_FILE.exists(), reason=f"no NVIDIA driver: {VERSION_FILE} does not exist"),
]
ROOT = Path(__file__).resolve().parents[2]
POINTS = 2.0
"""How far a share may be from the truth."""
WARM_UP, STEPS = 3, 20
SLEEP_S = 0.004
CAST_SHARE = (30, 90)
"""Of the planted cast, in percent: with less, nothing would be shown."""


class Stack:
    """Layers of a decode step at batch one: norm, projections, attention over a cache; then the vocabulary."""

    def __init__(self, torch, layers, hidden, tokens):
        self.torch, self.layers, self.heads = torch, layers, hidden // 128
        torch.manual_seed(0)

        def weight(rows, columns):
            return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) / columns**0.5

        self.weights = [
            (weight(3 * hidden, hidden), weight(hidden, hidden), weight(hidden, hidden)) for _ in range(layers)
        ]
        cache = (1, self.heads, tokens, 128)
        self.keys = [torch.randn(cache, device="cuda", dtype=torch.bfloat16) for _ in range(layers)]
        self.vocabulary, self.embedding = weight(32_000, hidden), weight(32_000, hidden)
        self.token = torch.zeros(1, dtype=torch.long, device="cuda")
        self.pools, self.cast = [], None

    def add_pools(self, megabytes):
        """An FP8 pool in each layer, and a buffer for its BF16."""
        torch, shape = self.torch, (megabytes * 1_000_000 // 1024, 1024)
        self.pools = [
            torch.zeros(shape, device="cuda", dtype=torch.uint8).view(torch.float8_e4m3fn) for _ in range(self.layers)
        ]
        self.cast = torch.empty(shape, device="cuda", dtype=torch.bfloat16)

    def step(self):
        """One token."""
        functional = self.torch.nn.functional
        x = functional.embedding(self.token, self.embedding)
        for number, (qkv, out, mlp) in enumerate(self.weights):
            y = functional.rms_norm(x, x.shape[-1:])
            q = (y @ qkv.T)[:, : x.shape[-1]].view(1, self.heads, 1, 128)
            if self.pools:
                self.cast.copy_(self.pools[number])  # the whole pool, whatever the context
            y = functional.scaled_dot_product_attention(q, self.keys[number], self.keys[number])
            x = x + y.reshape(x.shape) @ out.T
            x = x + functional.silu(x) @ mlp.T
        self.token.copy_((x @ self.vocabulary.T).argmax(-1))

    def graph(self):
        """The step as a CUDA graph; returns what runs it."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        made = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(made):
            self.step()
        return made.replay


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def path_to_sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    (folder / "gpuhost").symlink_to(ROOT / "module_utils" / "gpuhost")
    (folder / "gpuhost_cli").symlink_to(ROOT / "cli")
    return folder


@contextmanager
def nothing(_):
    yield


def profiled(torch, path, run, between=None, span=nothing):
    """Profile some steps. Milliseconds a step by Python's clock, and torch's own sums by kernel, a step."""
    profiler_of = torch.profiler
    activities = [profiler_of.ProfilerActivity.CPU, profiler_of.ProfilerActivity.CUDA]
    plan = profiler_of.schedule(wait=0, warmup=WARM_UP, active=STEPS, repeat=1)
    began = ended = 0.0
    with torch.no_grad(), profiler_of.profile(activities=activities, schedule=plan) as profiler:
        for number in range(WARM_UP + STEPS):
            if number == WARM_UP:
                torch.cuda.synchronize()
                began = time.perf_counter()
            with span(number):
                run()
            if between:
                between()
            if number == WARM_UP - 1:
                torch.cuda.synchronize()  # what is still queued when the recording begins is recorded too
            if number == WARM_UP + STEPS - 1:
                torch.cuda.synchronize()
                ended = time.perf_counter()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    sums = {}
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith(("ProfilerStep", "step[")):
            sums[event.name] = sums.get(event.name, 0.0) + event.time_range.elapsed_us() / 1000 / STEPS
    return 1000 * (ended - began) / STEPS, sums


def without_profiler(torch, run):
    """Milliseconds a step by CUDA events."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(3):
        run()
    begin.record()
    for _ in range(STEPS):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / STEPS


def ask(sources, path, *options, status):
    """The command's answer, after a look at what a person would see."""
    command = [sys.executable, "-m", "gpuhost_cli.trace", str(path), *options]
    environment = {**os.environ, "PYTHONPATH": str(sources), "PYTHONDONTWRITEBYTECODE": "1"}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    print(shown.stdout, shown.stderr)
    done = subprocess.run(
        [*command, "--json"], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (status, ""), done.stdout[-3000:]
    document = json.loads(done.stdout)
    return document["gpus"][0], {item["code"]: item["percent"] for item in document["findings"]}


def wall(gpu, key):
    return sum(row["wall_percent"] for row in gpu["classes"] if row["key"] == key)


@pytest.fixture(scope="module")
def healthy(torch):
    """Weights far beyond any L2, and kernels of which the profiler's own microsecond is a small part."""
    stack = Stack(torch, layers=4, hidden=16384, tokens=8192)
    return stack.graph(), stack


def test_a_healthy_graph_names_none(torch, healthy, path_to_sources, tmp_path):
    run, _ = healthy
    step_ms, sums = profiled(torch, tmp_path / "healthy.json.gz", run)
    gpu, found = ask(path_to_sources, tmp_path / "healthy.json.gz", status=0)
    assert found == {}
    assert gpu["steps"]["certainty"] == "certain"
    assert gpu["steps"]["count"] in (STEPS - 1, STEPS)
    assert gpu["launches"]["graphs"] == pytest.approx(1)
    assert gpu["launches"]["from_graph_percent"] == pytest.approx(100)
    assert gpu["busy_percent"] == pytest.approx(100 * sum(sums.values()) / step_ms, abs=POINTS)
    assert wall(gpu, "gemm_bf16") > 50
    assert wall(gpu, "attention") > 3
    assert wall(gpu, "other") < 2, [row["name"] for row in gpu["kernels"] if row["key"] == "other"]


def test_a_cast_of_the_pool_in_each_layer(torch, healthy, path_to_sources, tmp_path):
    run, stack = healthy
    sound_ms = without_profiler(torch, run)
    stack.add_pools(1000)
    try:
        run = stack.graph()
        cast_ms = without_profiler(torch, run)
        step_ms, sums = profiled(torch, tmp_path / "cast.json.gz", run)
    finally:
        stack.pools = []
    _, found = ask(path_to_sources, tmp_path / "cast.json.gz", status=1)
    by_events = 100 * (cast_ms - sound_ms) / cast_ms
    by_torch = 100 * sum(length for name, length in sums.items() if "copy_kernel" in name) / step_ms
    print(f"{found}; by CUDA events without a profiler {by_events:.2f} %, by torch's sums {by_torch:.2f} %")
    assert list(found) == ["trace.cast"]
    assert CAST_SHARE[0] < by_events < CAST_SHARE[1]
    assert found["trace.cast"] == pytest.approx(by_torch, abs=POINTS)
    assert found["trace.cast"] == pytest.approx(by_events, abs=POINTS)


def test_a_sleep_between_the_steps(torch, healthy, path_to_sources, tmp_path):
    run, _ = healthy

    def sleep():
        torch.cuda.synchronize()
        time.sleep(SLEEP_S)

    step_ms, sums = profiled(torch, tmp_path / "sleep.json", run, sleep)
    gpu, found = ask(path_to_sources, tmp_path / "sleep.json", status=1)
    assert list(found) == ["trace.host_gap"]
    truth = 100 * (1 - sum(sums.values()) / step_ms)
    print(f"idle: {gpu['idle']['percent']:.2f} %, by torch and the clock {truth:.2f} %; {gpu['idle']}")
    assert gpu["idle"]["percent"] == pytest.approx(truth, abs=POINTS)
    short = gpu["idle"]["short_percent"]
    assert found["trace.host_gap"] == pytest.approx(truth - short, abs=POINTS)
    assert gpu["idle"]["long_count"] == pytest.approx(1, abs=0.3)


def test_eager_dispatch(torch, path_to_sources, tmp_path):
    """Kernels of a few microseconds, launched one by one; steps by the spans that an engine writes."""
    stack = Stack(torch, layers=30, hidden=1024, tokens=256)
    step_ms, sums = profiled(
        torch,
        tmp_path / "eager.json.gz",
        stack.step,
        span=lambda number: torch.profiler.record_function(f"step[DECODE bs={number}]"),
    )
    gpu, found = ask(path_to_sources, tmp_path / "eager.json.gz", status=1)
    truth = 100 * (1 - sum(sums.values()) / step_ms)
    print(f"idle: {gpu['idle']['percent']:.2f} %, by torch and the clock {truth:.2f} %")
    assert "trace.dispatch_bound" in found
    assert set(found) <= {"trace.dispatch_bound", "trace.no_graph"}
    assert gpu["steps"]["method"] == "span"
    assert gpu["launches"]["graphs"] == 0
    assert gpu["idle"]["percent"] == pytest.approx(truth, abs=POINTS)
    assert found["trace.dispatch_bound"] == pytest.approx(truth - gpu["idle"]["long_percent"], abs=POINTS)


def test_the_same_small_step_as_a_graph_is_not_dispatch_bound(torch, path_to_sources, tmp_path):
    run = Stack(torch, layers=30, hidden=1024, tokens=256).graph()
    profiled(torch, tmp_path / "small.json.gz", run)
    command = [sys.executable, "-m", "gpuhost_cli.trace", str(tmp_path / "small.json.gz"), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(path_to_sources)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    found = {item["code"] for item in json.loads(done.stdout)["findings"]}
    print(found)
    assert not found & {"trace.dispatch_bound", "trace.no_graph", "trace.cast"}
