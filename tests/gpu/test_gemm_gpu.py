"""The checks ``torch`` and ``gemm`` on real GPUs, and their figures beside triton's do_bench on the same calls."""

import dataclasses
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_checks.build_zipapp import build
from gpu_checks.gemm.check import COUNT_FEW, moved_bytes
from gpu_checks.gemm.formats import FORMATS, unsupported
from gpu_checks.gemm.run import Bench, prepare, run
from gpu_checks.gemm.shapes import FEW_ROWS, WEIGHT_ROWS, Shape, weights_depth
from gpu_checks.gpus import open_gpus
from gpu_checks.registry import Options
from gpu_checks.timing import summary

VERSION_FILE = Path("/proc/driver/nvidia/version")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not VERSION_FILE.exists(), reason=f"no NVIDIA driver: {VERSION_FILE} does not exist"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason=f"{sys.executable} has no torch"),
]
GPUS = len([name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)])


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("build") / "gpu_checks.pyz"
    build(path)
    return path


def measure(archive, *arguments):
    begin = time.monotonic()
    command = [sys.executable, str(archive), *arguments, "--json", "--expect-gpus", str(GPUS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    seconds = time.monotonic() - begin
    return {each["name"]: each for each in json.loads(done.stdout)["measurements"]}, seconds


def test_torch_on_every_gpu(archive):
    seen, wall = measure(archive, "torch")
    whole = seen["torch"]
    print(json.dumps(whole, indent=1), f"{wall:.2f} s")
    assert (whole["status"], whole["value"], whole["cause"]) == ("measured", GPUS, None)


def test_figures_of_every_gpu(archive):
    seen, wall = measure(archive, "gemm")
    for name, each in seen.items():
        detail, samples = each["detail"], each["samples"] or {}
        print(
            f"{name}: {each['status']} {each['cause'] or ''} {each['value']} {each['unit']}, "
            f"share {detail.get('share')}, p20 {samples.get('p20')}, p80 {samples.get('p80')}, "
            f"{detail.get('time_us')} us, error {detail.get('proof', {}).get('relative_error')}, "
            f"{each['seconds']:.2f} s {detail.get('message', '')}"
        )
    whole = seen["gemm"]
    print(f"check {whole['seconds']:.2f} s, command {wall:.2f} s, {whole['detail']['versions']}")
    assert (whole["status"], whole["value"], whole["cause"]) == ("measured", GPUS, None)
    for name, each in seen.items():
        assert each["status"] == "measured" or each["cause"] == "gemm.unsupported", name
    for ordinal in range(GPUS):
        assert seen[f"gemm.bf16.gpu{ordinal}.m1"]["detail"]["share"] >= 0.82


def test_healthy_again_and_again(archive):
    """No false alarm in 20 runs of the quick set's part."""
    for _ in range(20):
        seen, _ = measure(archive, "gemm", "--quick")
        assert (seen["gemm"]["status"], seen["gemm"]["value"]) == ("measured", GPUS), seen["gemm"]


class Printed:
    """A report for a person."""

    def add(self, measurement):
        print(measurement)

    def doing(self, what, hung=None, died=None):
        pass


@pytest.fixture(scope="module")
def bench():
    torch = importlib.import_module("torch")
    gpus = open_gpus(Options(), Printed(), "gemm", "gpus")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    made = Bench(torch, gpus, gpus.gpus[0])
    made.open()
    with torch.cuda.stream(made.stream):
        yield made
    torch.cuda.empty_cache()


@pytest.mark.parametrize("wanted", FORMATS, ids=lambda each: each.name)
def test_beside_do_bench(bench, wanted, monkeypatch):
    """The same call, timed by us and by triton's do_bench in turn: A B A B.

    do_bench writes zeros over 256 MB of its own before each call: the weights are not in the L2 then, but the L2 is
    full of lines that have to be written back while the call runs. So it is also run with a flush that reads the same
    256 MB, which leaves nothing to write back; everything else of it stays.
    """
    if importlib.util.find_spec("triton") is None:
        pytest.skip("no triton here")
    testing = importlib.import_module("triton.testing")
    active = type(importlib.import_module("triton.runtime").driver.active)
    refused = unsupported(bench.torch, wanted, bench.capability)
    if refused is not None:
        pytest.skip(refused)
    shape = Shape("m64", 64, WEIGHT_ROWS, weights_depth(wanted.bits))
    operands = prepare(bench, wanted, shape)
    peak = bench.gpus.peak_gb_s(0)
    for rows in FEW_ROWS:
        few = dataclasses.replace(shape, name=f"m{rows}", rows=rows)
        left, moved = operands.left.take(slice(0, rows)), moved_bytes(operands, few)
        out = bench.torch.empty(rows, WEIGHT_ROWS, dtype=bench.torch.bfloat16, device="cuda:0")
        call = wanted.bind(bench.torch, left, operands.rights[0], out)
        ours, written, clean = [], [], []
        for _ in range(2):
            times, proof = run(bench, operands, few, COUNT_FEW)
            assert proof.message is None, proof
            ours.append(summary(times).median)
            written.append(testing.do_bench(call, warmup=10, rep=50, return_mode="median") * 1000)
            with monkeypatch.context() as patch:
                patch.setattr(active, "clear_cache", lambda _self, cache: cache.sum())
                clean.append(testing.do_bench(call, warmup=10, rep=50, return_mode="median") * 1000)
        mine, theirs, read = (statistics.median(each) for each in (ours, written, clean))
        share = "" if peak is None else f", share {moved / mine / 1000 / peak:.3f}"
        print(
            f"{wanted.name} m{rows}: ours {mine:.2f} us = {moved / mine / 1000:.0f} GB/s{share}; "
            f"do_bench {theirs:.2f} us ({mine / theirs:.3f}), with a flush that reads {read:.2f} us "
            f"({mine / read:.3f}); error {proof.relative_error:.5f}"
        )
        if wanted.name == "bf16" and rows == 1:
            assert mine / read == pytest.approx(1, abs=0.03)


def test_a_wrong_weight_is_found(bench):
    """In the memory of the GPU, behind the reference's back."""
    for wanted in FORMATS:
        if unsupported(bench.torch, wanted, bench.capability) is not None:
            continue
        shape = Shape("m16", 16, WEIGHT_ROWS, weights_depth(wanted.bits))
        operands = prepare(bench, wanted, shape)
        assert run(bench, operands, shape, 4)[1].message is None
        data = operands.rights[1].data
        # A large one: deep products hide a small one behind what FP8 and FP4 round away.
        place = int(wanted.exact(bench.torch, operands.rights[1].take(slice(5, 6))).abs()[0].argmax())
        if wanted.bits == 16:
            data.view(bench.torch.int16)[5, place] ^= -(1 << 15)
        else:
            data[5, place * wanted.bits // 8] ^= (0x80 if place % 2 else 0x08) if wanted.bits == 4 else 0x80
        proof = run(bench, operands, shape, 4)[1]
        print(wanted.name, proof)
        assert 0 < proof.wrong <= 16
