"""Every way in which the check ``decode`` can fail, run for real by torch on the CPU in small shapes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from decode_fake import GQA, MLA, ONE_RANK, CpuBench, CpuClock, a_run, check, options, torch
from measuring import Kept

from gpu_checks import torch_gpu
from gpu_checks.cuda_api import CudaError
from gpu_checks.decode import check as decode
from gpu_checks.decode import run as decode_run
from gpu_checks.decode import step as decode_step
from gpu_checks.decode.part import Part


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Two cores are shared; and with one thread sums are the same every time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(decode_step, "STEP_COUNT", 3)
    yield
    torch.set_num_threads(before)


def test_no_room(monkeypatch):
    seen = check(monkeypatch, GQA, free=100_000)
    assert set(seen) == {"decode"}
    assert (seen["decode"].status, seen["decode"].cause) == ("not_measured", "decode.no_room")
    assert "100000 bytes are free" in seen["decode"].detail["message"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "llama-9"}, "no preset"),
        ({"tp": 3}, "can't be cut over 3 ranks"),
        ({"batch": 97}, "more than the 96 tokens"),
        ({"context": 0}, "context 0 is below 1"),
    ],
)
def test_a_model_that_can_not_be_is_an_error_before_cuda_starts(monkeypatch, changes, said):
    def opened(*_):
        raise AssertionError("CUDA was started")

    monkeypatch.setattr(decode, "open_gpus", opened)
    report = Kept()
    decode.check(options(GQA, **changes), report)
    (whole,) = report.made
    assert (whole.status, whole.cause) == ("error", "decode.bad_model")
    assert said in whole.detail["message"]


def test_no_torch(monkeypatch):
    monkeypatch.setattr(torch_gpu, "missing", lambda: torch_gpu.Why("torch.missing", "none"))
    report = Kept()
    decode.check(options(), report)
    assert [each.cause for each in report.made] == ["torch.missing"]


def test_somebody_else_at_work(monkeypatch):
    monkeypatch.setattr(decode, "busy_gpus", lambda _: {0: "pid 7"})
    seen = check(monkeypatch, GQA, reduced=ONE_RANK)
    assert (seen["decode"].status, seen["decode"].cause) == ("not_measured", "gpu.in_use")


def breaking(monkeypatch, name, change):
    """Change what the part of this name gives."""
    real = Part.__init__

    def made(self, own_name, how, reads, run, *rest, **more):
        def changed(own, values):
            found = run(own, values)
            return change(found, values) if own_name == name else found

        real(self, own_name, how, reads, changed, *rest, **more)

    monkeypatch.setattr(Part, "__init__", made)


@pytest.mark.parametrize(
    ("part", "target"),
    [
        ("o", "delta"), ("lm_head", "logits"), ("rms_norm", "x"), ("attention", "attended"),
        ("experts_up", "expert_both"), ("experts_down", "expert_rows"), ("qkv", "qkv"), ("qk_norm", "keys"),
        ("rope", "queries"), ("permute", "rows"), ("expert_act", "expert_inner"), ("combine", "delta"),
    ],
)  # fmt: skip
def test_a_wrong_result_is_no_figure(monkeypatch, part, target):
    """An eighth too large on the GPU, which computes in BF16: the step's values are still numbers."""

    def larger(found, _values):
        return {**found, target: found[target] * 1.125} if found[target].dtype == torch.bfloat16 else found

    breaking(monkeypatch, part, larger)
    seen = check(monkeypatch, GQA, reduced=ONE_RANK)
    wrong = seen[f"decode.part.{part}"]
    assert (wrong.status, wrong.cause, wrong.value) == ("error", "decode.wrong_result", None)
    assert f"{part} differs from float64" in wrong.detail["message"]
    assert (seen["decode"].status, seen["decode"].cause) == ("error", "decode.wrong_result")
    assert (seen["decode.sum"].status, seen["decode.sum"].cause) == ("not_measured", "decode.part_missing")
    assert part in seen["decode.sum"].detail["message"]
    assert "decode.unexplained" not in seen
    assert seen["decode"].detail["missing_of_sum"] == [f"part.{part}"]


def test_wrong_experts_are_found(monkeypatch):
    breaking(monkeypatch, "top_k", lambda found, _: {**found, "experts": (found["experts"] + 1) % 8})
    seen = check(monkeypatch, GQA, reduced=ONE_RANK)
    assert seen["decode.part.top_k"].cause == "decode.wrong_result"


@pytest.mark.parametrize("name", ["order", "hit", "ends"])
def test_a_wrong_order_of_experts_is_found(monkeypatch, name):
    breaking(monkeypatch, "permute", lambda found, _: {**found, name: found[name].roll(1)})
    seen = check(monkeypatch, GQA, batch=4, reduced=ONE_RANK)
    assert seen["decode.part.permute"].cause == "decode.wrong_result"


@pytest.mark.parametrize("config", [GQA, MLA], ids=lambda each: each["name"])
def test_a_cache_that_is_not_written_is_found(monkeypatch, config):
    real = Part.__init__

    def made(self, name, how, reads, run, *rest, **more):
        real(self, name, how, reads, (lambda own, values: {}) if name == "kv_write" else run, *rest, **more)

    monkeypatch.setattr(Part, "__init__", made)
    assert check(monkeypatch, config, reduced=ONE_RANK)["decode.part.kv_write"].cause == "decode.wrong_result"


def test_what_is_no_number(monkeypatch):
    breaking(monkeypatch, "o", lambda found, _: {"delta": found["delta"] * float("nan")})
    seen = check(monkeypatch, GQA)
    assert set(seen) == {"decode"}
    assert (seen["decode"].status, seen["decode"].cause) == ("error", "decode.wrong_result")
    assert "not a number" in seen["decode"].detail["message"]


def test_a_graph_that_computes_something_else(monkeypatch):
    class Other(CpuClock):
        def record(self, work):
            launch = super().record(work)
            if self.recorded == 1:  # after the attentions have been tried, there is none in this model
                kept["logits"].mul_(2)
            return launch

    kept = {}
    real = decode_step.not_finite

    def keep(module, values):
        kept.update(values)
        return real(module, values)

    monkeypatch.setattr(decode_step, "not_finite", keep)
    seen = check(monkeypatch, MLA, clock=Other, quick=True)
    assert (seen["decode"].status, seen["decode"].cause) == ("error", "decode.wrong_result")
    assert "the graph's logits differ" in seen["decode"].detail["message"]


class FullError(RuntimeError):
    """What torch raises where a GPU is full."""


@pytest.mark.parametrize(
    ("error", "status", "cause"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered\nhint"), "error", "decode.failed"),
        (RuntimeError("no kernel"), "error", "decode.failed"),
        (CudaError("cuEventRecord", 700, "CUDA_ERROR_ILLEGAL_ADDRESS"), "error", "decode.failed"),
        (CudaError("cuEventCreate", 2, "CUDA_ERROR_OUT_OF_MEMORY"), "not_measured", "decode.no_room"),
    ],
)
def test_a_part_that_fails_is_missing_and_not_zero(monkeypatch, error, status, cause):
    def failing(found, values):
        if failing.on:
            raise error
        return found

    failing.on = False
    breaking(monkeypatch, "combine", failing)
    real = decode_step.summed
    watch = decode_step.measured_parts

    def parts(run, built):
        stack = built.stack
        seen = stack.watch()
        monkeypatch.setattr(stack.__class__, "watch", lambda _self: seen)
        failing.on = True
        return watch(run, built)

    monkeypatch.setattr(decode, "measured_parts", parts)
    monkeypatch.setattr(decode, "summed", real)
    seen = check(monkeypatch, GQA, reduced=ONE_RANK)
    part = seen["decode.part.combine"]
    assert (part.status, part.cause) == (status, cause)
    assert "hint" not in part.detail["message"]
    assert seen["decode.sum"].cause == "decode.part_missing"
    assert seen["decode"].status == ("error" if status == "error" else "not_measured")


def test_a_step_that_fails(monkeypatch):
    def failing(_found, _values):
        raise RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED")

    breaking(monkeypatch, "o", failing)
    seen = check(monkeypatch, GQA)
    assert (seen["decode"].status, seen["decode"].cause) == ("error", "decode.failed")


def test_out_of_memory_of_torch_is_no_fault():
    run, _ = a_run()
    run.bench.torch = SimpleNamespace(cuda=SimpleNamespace(OutOfMemoryError=FullError))
    assert run.why(FullError("CUDA out of memory"), "x").cause == "decode.no_room"
    for text in ("CUDA error: out of memory\nCompile with", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"):
        assert run.why(RuntimeError(text), "x").cause == "decode.no_room"


def test_what_takes_too_long_is_not_begun(monkeypatch):
    monkeypatch.setattr(decode_run, "budget", lambda _timeout_s: -1.0)
    seen = check(monkeypatch, GQA, reduced=ONE_RANK)
    assert seen["decode.step"].status == "measured"
    assert {each.cause for name, each in seen.items() if name.startswith("decode.part.")} == {
        "decode.out_of_time", "decode.one_rank",
    }  # fmt: skip
    assert (seen["decode"].status, seen["decode"].cause) == ("not_measured", "decode.part_missing")


def test_a_gpu_without_a_context(monkeypatch):
    def opened(_bench):
        raise CudaError("cuDevicePrimaryCtxRetain", 46, "CUDA_ERROR_DEVICE_UNAVAILABLE")

    monkeypatch.setattr(CpuBench, "open", opened)
    assert check(monkeypatch, GQA)["decode"].cause == "cuda.device_busy"
