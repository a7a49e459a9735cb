"""What the check ``decode`` measures beside the step: casts, products, the all-reduce; arithmetic by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from decode_fake import GQA, CpuClock, a_run, named, options, torch
from measuring import Kept

from gpu_checks.allreduce.ranks import Broken
from gpu_checks.cuda_api import CudaError
from gpu_checks.decode import casts as decode_casts
from gpu_checks.decode import probes as decode_probes
from gpu_checks.decode import products as decode_products
from gpu_checks.decode import reduce as decode_reduce
from gpu_checks.decode.cast import FACTOR, NOT_NUMBERS, cast_word, module
from gpu_checks.decode.models import for_rank, model_of
from gpu_checks.measurement import Measurement

MIB = 1 << 20


# Casts. -----------------------------------------------------------------------------------------------------------


def test_the_kernels_arithmetic_for_every_number():
    """What the words are before the multiplication, times 2^120, is what torch's cast gives: all 254 of them."""
    codes = torch.tensor([each for each in range(256) if each not in NOT_NUMBERS], dtype=torch.uint8)
    expected = codes.view(torch.float8_e4m3fn).to(torch.float64)
    factor = float(torch.tensor([FACTOR & 0xFFFF], dtype=torch.int32).to(torch.int16).view(torch.bfloat16)[0])
    assert factor == 2.0**120
    got = []
    for code in codes.tolist():
        words = cast_word(code | code << 8 | code << 16 | code << 24)
        halves = {word >> shift & 0xFFFF for word in words for shift in (0, 16)}
        (bits,) = halves
        got.append(float(torch.tensor([bits - (bits >> 15 << 16)], dtype=torch.int16).view(torch.bfloat16)[0]) * factor)
    assert got == expected.tolist()


def test_the_order_of_numbers_in_a_word():
    assert cast_word(0x38 | 0xB8 << 8 | 0x40 << 16 | 0x00 << 24) == (0x83800380, 0x00000400)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120"])
def test_the_kernel_is_assembled(architecture, tmp_path):
    ptxas = next(
        (path / "ptxas" for path in map(Path, os.environ["PATH"].split(":")) if (path / "ptxas").exists()), None
    )
    if ptxas is None:
        pytest.skip("no ptxas here")
    source = tmp_path / "cast.ptx"
    source.write_bytes(module()[:-1])
    command = [ptxas, f"-arch={architecture}", str(source), "-o", str(tmp_path / "cast.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def small_pools(monkeypatch):
    for name in ("POOL_BYTES", "LEAST_POOL_BYTES"):
        monkeypatch.setattr(decode_casts, name, MIB)


class ByBytes(CpuClock):
    """Casts and copies take as long as their bytes do at 1000 bytes a microsecond; ``slower`` where that is said."""

    def __init__(self, moved, slower=1.0):
        super().__init__()
        self.moved, self.slower = moved, slower

    def each(self, work, count):
        del self.moved[:]
        for number in range(count):
            work(number)
        return [bytes_moved / 1000 for bytes_moved in self.moved]


def cast_run(monkeypatch, per_number=3.0):
    run, kept = a_run()
    moved = []
    run.clock = ByBytes(moved)
    run.bench.gpus.api.copy = lambda _target, _source, size, _stream: moved.append(2 * size)
    real = decode_casts._by_torch

    def counted(of_run, pool):
        some = real(of_run, pool)

        def cast(begin, count):
            some(begin, count)
            moved.append(per_number * count)

        return cast

    monkeypatch.setattr(decode_casts, "_by_torch", counted)
    return run, kept


def test_a_cast_at_the_rate_of_a_copy(monkeypatch, small_pools):
    run, kept = cast_run(monkeypatch)
    decode_casts.casts(run)
    seen = named(kept)
    assert seen["decode.probe.cast.torch.of_copy"].value == pytest.approx(1.0)
    ratio = seen["decode.probe.cast.torch.ratio"]
    assert (ratio.value, ratio.unit) == (pytest.approx(2.0), "ratio")
    assert ratio.detail["of_pool_ratio"] == pytest.approx(1.0)
    large = seen["decode.probe.cast.torch.pool_large"]
    assert (large.value, large.unit) == (pytest.approx(3 * MIB / 1000), "us")
    assert (large.detail["pool_bytes"], large.detail["bytes_moved"]) == (MIB, 3 * MIB)
    assert large.detail["pool_tokens"] == MIB // 64  # 2 heads x 16, keys and values
    context = seen["decode.probe.cast.torch.context"]
    assert context.detail["pool_bytes"] == 24 * 64
    assert large.detail["context_tokens"] == context.detail["context_tokens"] == 24
    assert large.detail["gb_s"] == pytest.approx(1.0)


def test_a_slow_cast_is_seen(monkeypatch, small_pools):
    run, kept = cast_run(monkeypatch, per_number=6.0)
    decode_casts.casts(run)
    assert named(kept)["decode.probe.cast.torch.of_copy"].value == pytest.approx(0.5)


def test_a_wrong_cast_is_no_figure(monkeypatch, small_pools):
    run, kept = cast_run(monkeypatch)
    monkeypatch.setattr(decode_casts, "_by_torch", lambda of_run, pool: lambda begin, count: None)
    decode_casts.casts(run)
    seen = named(kept)
    assert set(seen) == {"decode.probe.cast.torch"}
    assert seen["decode.probe.cast.torch"].cause == "decode.wrong_result"


def test_no_room_for_a_pool(small_pools):
    run, kept = a_run()
    run.bench.gpus.api.free_bytes = lambda: 1000
    decode_casts.casts(run)
    assert [each.cause for each in kept.made] == ["decode.no_room"]


def test_half_of_the_free_memory_is_left(small_pools):
    """A server that grows meanwhile. A pool of 1 MiB needs 3.25."""
    run, kept = a_run()
    run.bench.gpus.api.free_bytes = lambda: 6 * MIB
    decode_casts.casts(run)
    assert [each.cause for each in kept.made] == ["decode.no_room"]


def test_experts_need_less_than_half(monkeypatch):
    run, kept = a_run()
    monkeypatch.setattr(torch, "_scaled_grouped_mm", None, raising=False)
    run.bench.gpus.api.free_bytes = lambda: 2 * 3 * 8 * 64 * 64 - 1
    decode_products.products(run)
    assert named(kept)["decode.probe.fp8_rows.expert_up"].cause == "decode.no_room"


def test_a_new_gpu_also_has_our_kernel(monkeypatch, small_pools):
    """The driver's part is replaced; what is asked of it is looked at."""
    run, kept = cast_run(monkeypatch)
    run.capability = (9, 0)
    asked = []

    class Fake:
        def __init__(self, api, ordinal):
            pass

        def queue(self, target, source, count, stream):
            asked.append((target - asked[0][0] if asked else target, source, count))

    monkeypatch.setattr(decode_casts, "Cast", Fake)
    decode_casts.casts(run)
    # It casts nothing here, which has to be noticed.
    assert named(kept)["decode.probe.cast.kernel"].cause == "decode.wrong_result"
    assert asked[0][2] == MIB


# Probes beside the step. ------------------------------------------------------------------------------------------


def test_quantisation_is_compared(monkeypatch):
    run, kept = a_run()
    decode_probes.quantisation(run)
    assert 0.01 < named(kept)["decode.probe.quantise"].detail["relative_error"] < 2**-4
    monkeypatch.setattr(decode_probes, "E4M3_LARGEST", 1e9)
    decode_probes.quantisation(run)
    assert kept.made[-1].cause == "decode.wrong_result"


def test_products_in_fp8(monkeypatch):
    """torch has them on CPUs too; of NVFP4 and of many experts at once it has not, which is said."""
    run, kept = a_run()
    run.capability = (9, 0)
    decode_products.products(run)
    seen = named(kept)
    qkv = seen["decode.probe.fp8.qkv"]
    assert (qkv.status, qkv.detail["read_bytes"], qkv.detail["copies"]) == ("measured", 128 * 64 + 4, 2)
    assert qkv.detail["in_step"] is False
    assert seen["decode.probe.nvfp4.o"].detail["message"].startswith("unsupported on SM90")
    for name in ("fp8_rows.expert_up", "fp8_rows.expert_down", "nvfp4.experts"):
        assert (seen[f"decode.probe.{name}"].status, seen[f"decode.probe.{name}"].cause) == (
            "not_measured", "decode.unsupported",
        )  # fmt: skip
    assert len(seen["decode.probe.fp8_rows.expert_up"].detail["message"]) < 400


def scaled_grouped(x, weights, of_rows, of_weights, offs, out_dtype, use_fast_accum):
    """The same by plain products, for the CPU."""
    out, begin = torch.zeros(x.shape[0], weights.shape[2]), 0
    for expert, end in enumerate(offs.tolist()):
        rows = slice(begin, end)
        product = x[rows].float() @ weights[expert].float()
        out[rows] = product * of_rows[rows].unsqueeze(1) * of_weights[expert]
        begin = end
    return out.to(out_dtype)


def test_experts_in_fp8(monkeypatch):
    run, kept = a_run()
    monkeypatch.setattr(torch, "_scaled_grouped_mm", scaled_grouped)
    decode_products.products(run)
    up = named(kept)["decode.probe.fp8_rows.expert_up"]
    assert (up.status, up.detail["read_bytes"], up.detail["copies"]) == ("measured", 2 * 64 * 64, 2)
    monkeypatch.setattr(torch, "_scaled_grouped_mm", lambda *given, **more: scaled_grouped(*given, **more) * 1.125)
    decode_products.products(run)
    assert named(kept)["decode.probe.fp8_rows.expert_up"].cause == "decode.wrong_result"


def test_a_probe_that_breaks_the_gpu_is_an_error():
    run, _ = a_run()
    assert run.why(RuntimeError("CUDA error: an illegal memory access"), "x", beside=True).cause == "decode.failed"
    assert run.why(RuntimeError("only supported on SM90"), "x", beside=True).cause == "decode.unsupported"
    assert run.why(CudaError("cuX", 700, ""), "x", beside=True).cause == "decode.failed"


# The all-reduce. --------------------------------------------------------------------------------------------------


def test_one_rank_reduces_nothing():
    found = decode_reduce.measure(options(), Kept(), for_rank(model_of(GQA, "x"), 1))
    assert (found.measurement, found.why.cause, found.why.status) == (None, "decode.one_rank", "not_measured")


class Scout:
    """A leader whose scout says something, or whose ranks break."""

    said: object = None

    def __init__(self, options, wishes, report, team, parts):
        self.report, self.world = report, 0

    def run(self):
        if isinstance(self.said, Exception):
            raise self.said
        self.report.add(self.said)
        return False


def scouted(cause):
    return Measurement("allreduce", None, "us", "x", "not_measured", cause, 0.0, detail={"message": "seen"})


@pytest.mark.parametrize(
    ("said", "cause", "status"),
    [
        (scouted("allreduce.one_gpu"), "decode.one_gpu", "not_measured"),
        (scouted("nccl.missing"), "nccl.missing", "not_measured"),
        (Broken("allreduce.hang", "rank 1 hangs", {}), "allreduce.hang", "error"),
    ],
)
def test_why_there_is_no_all_reduce(monkeypatch, said, cause, status):
    monkeypatch.setattr(decode_reduce.allreduce, "Leader", type("Said", (Scout,), {"said": said}))
    report = Kept()
    found = decode_reduce.measure(options(tp=2), report, for_rank(model_of(GQA, "x"), 2))
    assert (found.measurement, found.why.cause, found.why.status, found.size) == (None, cause, status, 128)
    assert report.made == []


REDUCE = """
import json, sys
from gpu_checks.decode import reduce as decode_reduce
from gpu_checks.decode.models import load, for_rank
from gpu_checks.registry import Options
class Report:
    made = []
    def add(self, measurement): self.made.append(measurement)
    def doing(self, what, hung=None, died=None): pass
if __name__ == "__main__":
    options = Options(model="qwen3-30b-a3b", tp=2, batch=2)
    found = decode_reduce.measure(options, Report(), for_rank(load(options.model), 2))
    value = found.measurement and found.measurement.value
    print(json.dumps([value, found.why and found.why.cause, found.ranks, found.size, len(Report.made)]))
"""


@pytest.mark.parametrize(("ranks", "cause"), [(2, None)])
def test_ranks_reduce_the_hidden_state(tmp_path, ranks, cause):
    """Real processes on the CPU, through the code of the check allreduce; nothing of it is reported under its name."""
    script = tmp_path / "reduce.py"
    script.write_text(REDUCE)
    environment = {**os.environ, "GPU_CHECKS_BACKEND": "gloo", "GPU_CHECKS_RANKS": str(ranks),
                   "PYTHONPATH": str(Path(__file__).resolve().parents[3])}  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, env=environment, timeout=120
    )
    value, said, world, size, reported = json.loads(done.stdout.splitlines()[-1])
    assert (said, world, size, reported) == (cause, ranks, 2 * 2048 * 2, 0)
    assert value > 0
