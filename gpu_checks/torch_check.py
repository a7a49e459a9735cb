"""The check ``torch``: what ``cuda`` has shown of each GPU, once more through the torch that the workload uses.

Functional, and small (some megabytes): it runs beside a server that computes on the same GPU.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from gpu_checks import torch_gpu
from gpu_checks.cuda_api import Identity
from gpu_checks.gemm.formats import FORMATS, Matrix
from gpu_checks.gemm.proof import POISON, Reference, compare, reference
from gpu_checks.gpus import Gpus, open_gpus
from gpu_checks.measurement import MEASURED
from gpu_checks.parts import Parts, Why
from gpu_checks.registry import Options, Report
from gpu_checks.timing import summary
from gpu_checks.torch_gpu import NoTorch
from gpu_checks.triage import HUNG

NAME, UNIT = "torch", "gpus"
METHOD = "device count, memory, copies from and to the host and a BF16 product through torch; all compared"
PART_METHOD = "memory, copies from and to the host, a BF16 product compared with float64"

SIZE = 1024
"""Rows, columns and depth of the product: 64 tiles of 128 x 128, some milliseconds on the CPU in float64."""


@dataclass(frozen=True)
class Task:
    """The product that every GPU has to compute: on the CPU, with its exact result."""

    left: Any
    right: Any
    expected: Reference


def make_task(torch: Any) -> Task:
    """Once for all GPUs, and the same in every run."""
    bf16 = FORMATS[0]
    generator = torch.Generator(device="cpu")
    generator.manual_seed(0)
    left = bf16.random(torch, SIZE, SIZE, False, generator)
    right = bf16.random(torch, SIZE, SIZE, True, generator)
    return Task(left.data, right.data, reference(torch, bf16, left, right, slice(0, SIZE)))


def wrong(torch: Any, task: Task, device: str) -> str | None:
    """Copy, multiply, copy back. What is wrong, in words; None where nothing is. Raises RuntimeError as torch does."""
    left, right = task.left.to(device), task.right.to(device)
    pinned = torch.empty_like(task.left).pin_memory()
    out = torch.full((SIZE, SIZE), POISON, dtype=torch.bfloat16, device=device)
    FORMATS[0].bind(torch, Matrix(left), Matrix(right), out)()
    # Without waiting in between: torch's default stream keeps the order.
    pinned.copy_(left, non_blocking=True)
    got = out.cpu()
    if not torch.equal(pinned, task.left) or not torch.equal(right.cpu(), task.right):
        return "what comes back from the GPU is not what was copied there"
    return compare(torch, got, task.expected, FORMATS[0].slack).message


def _on_gpu(torch: Any, gpus: Gpus, gpu: Identity, task: Task, parts: Parts) -> None:
    """One GPU."""
    name, where, begin = f"{NAME}.gpu{gpu.ordinal}", f"GPU {gpu.ordinal} ({gpu.pci_bus_id})", time.monotonic()
    gpus.report.doing(f"compute through torch on {where}", hung=HUNG)
    try:
        found = wrong(torch, task, f"cuda:{gpu.ordinal}")
    except RuntimeError as error:
        full = torch_gpu.is_out_of_memory(torch, error)
        cause = "cuda.out_of_memory" if full else "torch.failed"
        parts.refuse(name, "ms", PART_METHOD, Why(cause, f"{where}: {torch_gpu.first_line(error)}"), begin)
        return
    if found is not None:
        parts.refuse(name, "ms", PART_METHOD, Why("torch.wrong_result", f"{where}: {found}"), begin)
        return
    took = round((time.monotonic() - begin) * 1000, 1)
    parts.add(name, "ms", PART_METHOD, summary([took]), begin, {"uuid": gpu.uuid, "pci_bus_id": gpu.pci_bus_id})


def check(options: Options, report: Report) -> None:
    """Compute on every GPU, one after the other."""
    parts = Parts(report, NAME, UNIT, METHOD)
    gpus = open_gpus(options, report, NAME, UNIT)
    if gpus is None:
        return
    try:
        torch = torch_gpu.load(report)
    except NoTorch as error:
        parts.whole(None, {"expected_gpus": options.expect_gpus, "gpus_seen": len(gpus.gpus)}, error.why)
        return
    before = gpus.states()
    why = torch_gpu.unfit(torch, gpus)
    if why is None:
        report.doing("compute on the CPU what the GPUs have to compute")
        torch.module.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False  # see gemm
        task = make_task(torch.module)
        for gpu in gpus.gpus:
            _on_gpu(torch.module, gpus, gpu, task, parts)
    detail = {
        "expected_gpus": options.expect_gpus,
        "gpus_seen": len(gpus.gpus),
        "versions": torch.versions,
        "gpus": {"before": before, "after": gpus.states()},
    }
    parts.whole(sum(each.status == MEASURED for each in parts.made), detail, why)
