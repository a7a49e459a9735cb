"""Finding torch, and the check ``torch``: with packages of that name that tests write, and the real one on a CPU."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from types import SimpleNamespace

import pytest
from measuring import Kept, some_gpus

from gpu_checks import torch_check, torch_gpu
from gpu_checks.gemm.proof import Proof
from gpu_checks.registry import Options
from gpu_checks.torch_gpu import NoTorch, Torch, covers, load, missing, too_old, unfit

HERE = importlib.util.find_spec("torch")
needs_torch = pytest.mark.skipif(HERE is None, reason=f"{sys.executable} has no torch")


class FullError(RuntimeError):
    """torch's own word for a GPU without room."""


def fake(*, cuda="13.0", count=2, arches=("sm_80", "sm_90"), capability=(9, 0), init=lambda: None):
    """As much of torch as is asked before anything is computed."""
    return SimpleNamespace(
        __version__="2.11.0",
        version=SimpleNamespace(cuda=cuda),
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace())),
        cuda=SimpleNamespace(
            init=init,
            device_count=lambda: count,
            get_arch_list=lambda: list(arches),
            get_device_capability=lambda _: capability,
            OutOfMemoryError=FullError,
        ),
    )


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package torch of this text, or none, and no other."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    def write(text=None):
        others = [each for each in sys.path if not (HERE and each and HERE.origin.startswith(each))]
        monkeypatch.setattr(sys, "path", [str(tmp_path), *others])
        if text is not None:
            (tmp_path / "torch").mkdir()
            (tmp_path / "torch/__init__.py").write_text(text)

    torch_gpu._imported.cache_clear()
    yield write
    sys.modules.pop("torch", None)
    torch_gpu._imported.cache_clear()


def test_no_torch_is_said_at_once(package):
    package()
    begin = time.monotonic()
    with pytest.raises(NoTorch) as caught:
        load(Kept())
    assert time.monotonic() - begin < 0.2
    assert caught.value.why.cause == "torch.missing"
    assert caught.value.why.status == "not_measured"
    assert sys.executable in caught.value.why.message
    assert "gpu_gate_python" in caught.value.why.message


def test_a_folder_that_was_left_over_is_no_torch(package, tmp_path):
    package()
    (tmp_path / "torch").mkdir()
    assert missing().cause == "torch.missing"


def test_torch_is_found_before_it_is_imported(package):
    package("raise SystemExit('imported')")
    assert missing() is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ImportError('libcudart.so.13: cannot open shared object file')", "libcudart.so.13: cannot open"),
        ("raise OSError('first line\\n\\nlast line\\n')", ": last line"),
        ("import no_such_module_at_all", "no_such_module_at_all"),
        ("this is no Python", "SyntaxError: "),
    ],
)
def test_a_torch_that_can_not_be_imported(package, text, said):
    package(text)
    report = Kept()
    with pytest.raises(NoTorch) as caught:
        load(report)
    assert (caught.value.why.cause, caught.value.why.status) == ("torch.broken", "error")
    assert said in caught.value.why.message
    assert "\n" not in caught.value.why.message
    # An import that ends the process (an illegal instruction) has the same cause.
    assert report.said[-1][2] == "torch.broken"


def test_what_was_imported_is_on_record(package):
    package("__version__ = '2.11.0'\nclass version:\n    cuda = '13.0'\n")
    found = load(Kept()).versions
    assert (found["torch"], found["cuda"], found["python"]) == ("2.11.0", "13.0", sys.executable)
    assert found["import_seconds"] >= 0


@pytest.mark.parametrize(
    ("arches", "capability", "runs"),
    [
        (["sm_90"], (9, 0), True),
        (["sm_80"], (8, 9), True),  # machine code runs on later GPUs of its major version
        (["sm_86"], (8, 0), False),
        (["sm_90"], (10, 0), False),
        (["sm_90", "sm_100", "sm_120"], (12, 0), True),
        (["sm_90", "sm_100"], (12, 0), False),
        (["sm_100"], (10, 3), True),
        (["sm_90a"], (9, 0), True),
        (["sm_100a"], (10, 3), False),
        (["sm_100f"], (10, 3), True),
        (["sm_100f"], (12, 0), False),
        (["sm_80", "compute_90"], (12, 0), True),  # PTX, compiled by the driver
        (["compute_90"], (8, 0), False),
        (["compute_90a"], (12, 0), False),
        (["gfx942", ""], (9, 0), False),
        ([], (9, 0), False),
    ],
)
def test_code_for_a_gpu(arches, capability, runs):
    assert covers(arches, *capability) is runs


@pytest.mark.parametrize(
    ("built", "driver", "old"),
    [("12.8", 12080, False), ("12.8", 12020, False), ("13.0", 12090, True), ("12.4", 13000, False)],
)
def test_minor_versions_of_cuda_go_together(built, driver, old):
    assert too_old(built, driver) is old


def broken_init():
    raise RuntimeError("CUDA driver initialization failed\nmore")


@pytest.mark.parametrize(
    ("torch", "cause", "said"),
    [
        (fake(), None, ""),
        (fake(cuda=None), "torch.no_cuda", "gpu_gate_python"),
        (fake(cuda="14.0"), "torch.driver_too_old", "CUDA 14.0; driver: CUDA 13.0"),
        (fake(count=1), "torch.gpu_count", "sees 1 GPUs, CUDA 2"),
        (fake(count=0), "torch.gpu_count", "sees 0 GPUs, CUDA 2"),
        (fake(capability=(12, 0)), "torch.arch_missing", "sm_80 sm_90, GPU 0 is sm_120"),
        (fake(init=broken_init), "torch.failed", "RuntimeError: CUDA driver initialization failed"),
    ],
)
def test_a_torch_that_does_not_fit_the_gpus(torch, cause, said):
    why = unfit(Torch(torch, 0.1), some_gpus(Kept()))
    assert (why and why.cause) == cause
    assert why is None or (said in why.message and why.status == "error")


@pytest.fixture
def check(monkeypatch):
    """Run the check with a torch and what each GPU answers: words, None, or an error."""

    def run(torch, answers=None):
        report = Kept()
        monkeypatch.setattr(torch_check, "open_gpus", lambda *_: some_gpus(report))
        monkeypatch.setattr(torch_gpu, "load", lambda _: Torch(torch, 2.0))
        monkeypatch.setattr(torch_check, "make_task", lambda _: None)

        def wrong(_torch, _task, device):
            answer = (answers or {}).get(device)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(torch_check, "wrong", wrong)
        torch_check.check(Options(expect_gpus=2), report)
        return report.by_name

    return run


def test_healthy(check):
    seen = check(fake())
    whole = seen["torch"]
    assert (whole.status, whole.value, whole.unit, whole.cause) == ("measured", 2, "gpus", None)
    assert whole.detail["versions"]["import_seconds"] == 2.0
    assert len(whole.detail["gpus"]["before"]) == 2
    assert seen["torch.gpu1"].status == "measured"


@pytest.mark.parametrize(
    ("answer", "status", "cause"),
    [
        (Proof(4, 1, 0, 1, 0.5).message, "error", "torch.wrong_result"),
        (RuntimeError("CUDA error: an illegal memory access was encountered\nhints"), "error", "torch.failed"),
        (FullError("CUDA out of memory."), "not_measured", "cuda.out_of_memory"),
        (RuntimeError("CUDA error: out of memory\nhints"), "not_measured", "cuda.out_of_memory"),
    ],
)
def test_one_gpu_fails(check, answer, status, cause):
    seen = check(fake(), {"cuda:1": answer})
    assert (seen["torch"].status, seen["torch"].cause, seen["torch"].value) == (status, cause, 1)
    assert seen["torch.gpu0"].status == "measured"
    assert (seen["torch.gpu1"].status, seen["torch.gpu1"].cause) == (status, cause)
    assert seen["torch"].detail["message"].startswith("torch.gpu1: GPU 1 (0000:02:00.0)")


def test_a_torch_without_cuda_computes_nothing(check):
    seen = check(fake(cuda=None))
    assert list(seen) == ["torch"]
    assert (seen["torch"].status, seen["torch"].cause, seen["torch"].value) == ("error", "torch.no_cuda", 0)


def test_no_torch_ends_the_check(monkeypatch, package):
    package()
    report = Kept()
    monkeypatch.setattr(torch_check, "open_gpus", lambda *_: some_gpus(report))
    torch_check.check(Options(), report)
    assert (report.made[0].status, report.made[0].cause) == ("not_measured", "torch.missing")


class TestWithTorch:
    """The task itself, on the CPU."""

    pytestmark = needs_torch

    @pytest.fixture
    def torch(self):
        return importlib.import_module("torch")

    @pytest.fixture
    def task(self, torch, monkeypatch):
        # Only a torch with CUDA can pin memory.
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
        return torch_check.make_task(torch)

    def test_right(self, torch, task):
        assert torch_check.wrong(torch, task, "cpu") is None

    @pytest.mark.parametrize("broken", ["zeros", "unwritten", "one"])
    def test_wrong(self, torch, task, monkeypatch, broken):
        real = torch.mm

        def mm(left, right, *, out):
            if broken == "zeros":
                out.zero_()
            if broken == "one":
                real(left, right, out=out)
                out[700, 3] += 8
            return out

        monkeypatch.setattr(torch, "mm", mm)
        count = {"zeros": "elements are not", "unwritten": "no number", "one": "1 of 1048576 elements"}[broken]
        assert count in torch_check.wrong(torch, task, "cpu")

    def test_a_copy_that_changes_data(self, torch, task, monkeypatch):
        real = torch.Tensor.copy_

        def copy(self, source, non_blocking=False):
            real(self, source)
            self[5, 5] = 1234.0
            return self

        monkeypatch.setattr(torch.Tensor, "copy_", copy)
        assert "what was copied there" in torch_check.wrong(torch, task, "cpu")

    def test_this_one_is_built_without_cuda(self, torch):
        if torch.version.cuda is not None:
            pytest.skip("this torch is built with CUDA")
        assert unfit(Torch(torch, 0.0), some_gpus(Kept())).cause == "torch.no_cuda"
