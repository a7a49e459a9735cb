"""The check ``gemm``: shapes and bytes by hand, and what each kind of failure becomes; torch is not needed here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from measuring import Kept, Session, some_gpus
from test_checks_torch import FullError, fake

from gpu_checks import torch_gpu
from gpu_checks.cuda_api import CudaError
from gpu_checks.gemm import check as gemm
from gpu_checks.gemm.formats import FORMATS, unsupported
from gpu_checks.gemm.proof import Proof
from gpu_checks.gemm.run import Bench
from gpu_checks.gemm.shapes import FEW_ROWS, WEIGHT_BYTES, Shape, needed_bytes, sets_of, shapes, tflop_s
from gpu_checks.registry import Options
from gpu_checks.torch_gpu import Torch

BF16, FP8, ROWS, FP4 = FORMATS
GOOD = Proof(compared=64, wrong=0, not_numbers=0, zeros=0, relative_error=0.0016)
BAD = Proof(compared=64, wrong=3, not_numbers=3, zeros=0, relative_error=None)


def test_shapes():
    square, few = shapes(16, quick=False)
    assert square == [Shape("square", 8192, 8192, 8192)]
    assert [each.name for each in few] == ["m1", "m2", "m4", "m8", "m16", "m32", "m64"]
    assert few[0] == Shape("m1", 1, 24576, 6144)
    assert [shapes(bits, quick=False)[1][0].depth for bits in (16, 8, 4)] == [6144, 12288, 24576]
    assert shapes(16, quick=True) == (square, [])
    assert WEIGHT_BYTES == 301_989_888
    for wanted in FORMATS:
        depth = shapes(wanted.bits, quick=False)[1][0].depth
        assert 24576 * depth * wanted.bits // 8 == WEIGHT_BYTES


def test_rates_by_hand():
    square = shapes(16, quick=False)[0][0]
    assert square.flops == 1_099_511_627_776
    assert tflop_s(square.flops, [1395.3]) == [pytest.approx(788.0, abs=0.05)]  # 8192^3 in 1.3953 ms


@pytest.mark.parametrize(
    ("stored", "l2_mib", "few", "sets"),
    [
        (WEIGHT_BYTES, 60, True, 2),  # larger than 3 x L2 alone, and still two
        (WEIGHT_BYTES, 126, True, 2),
        (8192 * 8192 * 2, 40, False, 1),
        (8192 * 8192, 60, False, 3),  # 64 MiB each, more than 180 MiB together
        (WEIGHT_BYTES, 6, True, 2),
    ],
)
def test_how_many_weights_go_round(stored, l2_mib, few, sets):
    assert sets_of(stored, l2_mib << 20, few) == sets


def test_memory_that_is_needed():
    # 64 x 6144 x 2 + 2 x 302 MB, a eighth more, two results of 3 MB, 1 GiB
    assert needed_bytes(Shape("m64", 64, 24576, 6144), 16, 2) == (786432 + 603979776) * 9 // 8 + 6291456 + (1 << 30)


@pytest.mark.parametrize(
    ("wanted", "capability", "said"),
    [
        (FP4, (9, 0), "unsupported on SM90: FP8 was measured instead"),
        (FP4, (8, 0), "unsupported on SM80: BF16 was measured instead"),
        (FP8, (8, 6), "unsupported on SM86: BF16 was measured instead"),
        (BF16, (7, 5), "unsupported on SM75"),
        (FP8, (8, 9), None),
        (FP4, (10, 0), None),
        (FP4, (12, 0), None),
    ],
)
def test_what_the_hardware_does_not_have(wanted, capability, said):
    torch = SimpleNamespace(float8_e4m3fn=1, float4_e2m1fn_x2=1, _scaled_mm=1)
    assert unsupported(torch, wanted, capability) == said


def test_what_an_old_torch_does_not_have():
    torch = SimpleNamespace(__version__="2.5.1", float8_e4m3fn=1, _scaled_mm=1)
    assert unsupported(torch, FP4, (10, 0)) == "torch 2.5.1 has no float4_e2m1fn_x2"
    assert unsupported(torch, FP8, (10, 0)) is None


class Weights:
    """As much of a matrix as the arithmetic needs."""

    stored_bytes = WEIGHT_BYTES

    def take(self, rows):
        return SimpleNamespace(stored_bytes=rows.stop * 6144 * 2)


@pytest.fixture
def check(monkeypatch):
    """Run the check; ``outcome(format, shape, gpu)`` is what a product gives: times and a proof, or an error."""

    def go(outcome, *, quick=False, session=None, prepared=None, capability=(9, 0), free=100 << 30, torch=None):
        report, torch = Kept(), torch or fake()
        torch.cuda.stream = lambda _: FakeStream()
        torch.cuda.empty_cache = lambda: None
        for each in ("float8_e4m3fn", "float4_e2m1fn_x2", "_scaled_mm"):
            setattr(torch, each, each)

        def opened(bench):
            bench.stream, bench.handle, bench.l2_bytes, bench.capability = None, None, 60 << 20, capability

        def prepare(bench, wanted, shape):
            if prepared is not None:
                raise prepared
            return SimpleNamespace(format=wanted, left=Weights(), rights=[Weights(), Weights()])

        def run(bench, operands, shape, count):
            found = outcome(operands.format, shape, bench.identity.ordinal)
            if isinstance(found, Exception):
                raise found
            return found

        gpus = some_gpus(report, session=session)
        gpus.api.free_bytes = lambda: free
        monkeypatch.setattr(gemm, "open_gpus", lambda *_: gpus)
        monkeypatch.setattr(torch_gpu, "load", lambda _: Torch(torch, 3.0))
        monkeypatch.setattr(Bench, "open", opened)
        monkeypatch.setattr(gemm, "prepare", prepare)
        monkeypatch.setattr(gemm, "run", run)
        gemm.check(Options(quick=quick), report)
        go.torch = torch
        return report.by_name

    return go


class FakeStream:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def healthy(_wanted, shape, _gpu):
    return [75.0 if shape.few else 1395.3] * 5, GOOD


def test_healthy(check):
    seen = check(healthy)
    whole = seen["gemm"]
    assert (whole.status, whole.value, whole.unit, whole.cause) == ("measured", 2, "gpus", None)
    assert whole.detail["versions"]["torch"] == "2.11.0"
    assert whole.detail["slowest_bf16_tflop_s"] == pytest.approx(788.0, abs=0.05)
    assert len(whole.detail["gpus"]["before"]) == 2
    assert check.torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction is False
    one = seen["gemm.bf16.gpu0.m1"]
    moved = WEIGHT_BYTES + 6144 * 2 + 24576 * 2
    assert (one.unit, one.value) == ("gb_s", pytest.approx(moved / 75e-6 / 1e9))
    assert one.detail["shape"] == {"m": 1, "n": 24576, "k": 6144}
    assert one.detail["bytes_moved"] == moved
    assert one.detail["share"] == round(moved / 75e-6 / 4916.736e9, 4)
    assert one.detail["proof"]["wrong"] == 0
    assert seen["gemm.fp8.gpu1.square"].unit == "tflop_s"
    assert {name.rpartition(".")[2] for name in seen if name.startswith("gemm.fp8_rows.gpu0.")} == {
        "square",
        *(f"m{rows}" for rows in FEW_ROWS),
    }


def test_fp4_on_hopper_is_no_zero_and_no_failure(check):
    seen = check(healthy)
    fp4 = seen["gemm.nvfp4.gpu0"]
    assert (fp4.status, fp4.cause, fp4.value) == ("not_measured", "gemm.unsupported", None)
    assert fp4.detail["message"] == "unsupported on SM90: FP8 was measured instead"
    assert "gemm.nvfp4.gpu0.m1" in check(healthy, capability=(10, 0))


def test_quick_is_one_product_for_each_gpu(check):
    seen = check(healthy, quick=True)
    assert set(seen) == {"gemm", "gemm.bf16.gpu0.square", "gemm.bf16.gpu1.square"}
    assert seen["gemm"].value == 2


def test_a_wrong_result_is_no_figure(check):
    def outcome(wanted, shape, gpu):
        return healthy(wanted, shape, gpu)[0], BAD if (wanted, shape.name, gpu) == (FP8, "m4", 1) else GOOD

    seen = check(outcome)
    wrong = seen["gemm.fp8.gpu1.m4"]
    assert (wrong.status, wrong.cause, wrong.value) == ("error", "gemm.wrong_result", None)
    assert "3 of 64 elements are not the float64 product, 3 of them no number" in wrong.detail["message"]
    assert (seen["gemm"].status, seen["gemm"].cause, seen["gemm"].value) == ("error", "gemm.wrong_result", 1)
    assert seen["gemm.fp8.gpu1.m8"].status == "measured"


@pytest.mark.parametrize(
    ("error", "wanted", "status", "cause"),
    [
        (FullError("CUDA out of memory. Tried to allocate"), BF16, "not_measured", "gemm.no_room"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), BF16, "error", "gemm.failed"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling"), BF16, "error", "gemm.failed"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling"), FP8, "not_measured", "gemm.unsupported"),
        (NotImplementedError("no kernel"), ROWS, "not_measured", "gemm.unsupported"),
        (TypeError("_scaled_mm() got an unexpected keyword argument"), FP8, "error", "gemm.failed"),
        (CudaError("cuEventRecord", 700, "CUDA_ERROR_ILLEGAL_ADDRESS"), FP8, "error", "gemm.failed"),
        (CudaError("cuEventCreate", 2, "CUDA_ERROR_OUT_OF_MEMORY"), FP8, "not_measured", "gemm.no_room"),
    ],
)
def test_errors(check, error, wanted, status, cause):
    seen = check(lambda each, shape, gpu: error if each is wanted else healthy(each, shape, gpu))
    part = seen[f"gemm.{wanted.name}.gpu0.square"]
    assert (part.status, part.cause) == (status, cause)
    assert part.detail["message"].startswith("GPU 0 (0000:01:00.0), ")
    fine = cause == "gemm.unsupported"
    assert (seen["gemm"].status, seen["gemm"].cause) == (("measured", None) if fine else (status, cause))


def test_matrices_that_can_not_be_made(check):
    seen = check(healthy, prepared=FullError("CUDA out of memory."))
    assert (seen["gemm"].status, seen["gemm"].cause, seen["gemm"].value) == ("not_measured", "gemm.no_room", 0)
    assert seen["gemm.bf16.gpu1.m64"].cause == "gemm.no_room"


def test_no_room_is_said_with_numbers(check):
    seen = check(healthy, free=1 << 30)
    assert "more than half of that" in seen["gemm.bf16.gpu0.m1"].detail["message"]
    assert (seen["gemm"].status, seen["gemm"].cause) == ("not_measured", "gemm.no_room")
    assert "1073741824 bytes are free" in seen["gemm.bf16.gpu0.m1"].detail["message"]


def test_somebody_else_at_work(check):
    seen = check(healthy, session=Session(busy={"0000:01:00.0": "GPU 0000:01:00.0 is in use by pid 7"}))
    assert (seen["gemm"].status, seen["gemm"].cause, seen["gemm"].value) == ("not_measured", "gpu.in_use", 1)
    assert seen["gemm.gpu0"].cause == "gpu.in_use"
    assert "gemm.bf16.gpu0.m1" not in seen
    assert seen["gemm.bf16.gpu1.m1"].status == "measured"


def test_a_torch_that_does_not_fit(check):
    seen = check(healthy, torch=fake(capability=(12, 0)))
    assert list(seen) == ["gemm"]
    assert (seen["gemm"].status, seen["gemm"].cause) == ("error", "torch.arch_missing")


def test_a_gpu_without_a_context(check, monkeypatch):
    def opened(bench):
        raise CudaError("cuDevicePrimaryCtxRetain", 46, "CUDA_ERROR_DEVICE_UNAVAILABLE")

    monkeypatch.setattr(gemm, "Bench", type("Broken", (Bench,), {"open": opened}))
    assert check(healthy)["gemm"].cause == "cuda.device_busy"


@pytest.mark.parametrize("quick", [False, True])
def test_gpus_that_have_none_of_the_formats_were_not_measured(check, quick):
    seen = check(healthy, capability=(7, 5), quick=quick)
    assert (seen["gemm"].status, seen["gemm"].cause, seen["gemm"].value) == ("not_measured", "gemm.unsupported", 0)
    assert "unsupported on SM75" in seen["gemm"].detail["message"]
