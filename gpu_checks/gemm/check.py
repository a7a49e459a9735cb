"""The check ``gemm``: how fast each GPU multiplies matrices as an engine has it done, through torch, and whether right.

Two kinds of shapes in each number format: a large square one, whose rate arithmetic limits; and 1 to 64 rows of
activations with weights of 302 MB, as one step of decoding has, which is limited by how fast memory gives the weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any

from gpu_checks import torch_gpu
from gpu_checks.cuda_api import CudaError
from gpu_checks.gemm.formats import FORMATS, Format, unsupported
from gpu_checks.gemm.run import Bench, Operands, prepare, run, why_torch
from gpu_checks.gemm.shapes import WEIGHT_BYTES, Shape, needed_bytes, sets_of, shapes, tflop_s
from gpu_checks.gpus import MEMORY_SHARE, Gpus, open_gpus
from gpu_checks.parts import Parts, Why, busy_gpus, gb_s, good_gpus, lowest, share
from gpu_checks.registry import Options, Report
from gpu_checks.timing import summary
from gpu_checks.torch_gpu import NoTorch, Torch
from gpu_checks.triage import HUNG

NAME, UNIT = "gemm", "tflop_s"
METHOD = "matrix products through torch, one GPU after the other; compared with float64"

COUNT_FEW, COUNT_SQUARE, COUNT_QUICK = 60, 20, 8
"""Products for each figure: 5 ms, 30 ms and 12 ms of work on an H200. Rates are those of a GPU that is not yet hot."""

LAYOUT = "x is M x K, w is N x K (a linear layer's weights), both row by row; the product x w^T is M x N in BF16"


def unit(shape: Shape) -> str:
    """What a product is measured in: what limits it."""
    return "gb_s" if shape.few else UNIT


def name(bench: Bench, wanted: Format, shape: Shape) -> str:
    """The figure's name: ``gemm.bf16.gpu0.m1``."""
    return f"{NAME}.{wanted.name}.gpu{bench.identity.ordinal}.{shape.name}"


def moved_bytes(operands: Operands, shape: Shape) -> int:
    """What a product reads (activations, weights, scales) and writes (two bytes for each element)."""
    left = operands.left.take(slice(0, shape.rows))
    return left.stored_bytes + operands.rights[0].stored_bytes + 2 * shape.rows * shape.columns


def _measure(bench: Bench, operands: Operands, shape: Shape, options: Options, parts: Parts) -> None:
    """One figure."""
    wanted, begin = operands.format, time.monotonic()
    named, method = name(bench, wanted, shape), f"{wanted.call}, an event after each product"
    bench.gpus.report.doing(f"multiply {wanted.name} {shape.name} on {bench.where}", hung=HUNG)
    count = COUNT_FEW if shape.few else COUNT_QUICK if options.quick else COUNT_SQUARE
    try:
        times, proof = run(bench, operands, shape, count)
    except (RuntimeError, TypeError, CudaError) as error:
        parts.refuse(named, unit(shape), method, why_torch(bench, wanted, error), begin)
        return
    moved = moved_bytes(operands, shape)
    samples = summary(gb_s(moved, times) if shape.few else tflop_s(shape.flops, times))
    detail: dict[str, Any] = {
        "shape": {"m": shape.rows, "n": shape.columns, "k": shape.depth},
        "layout": LAYOUT,
        "torch": str(bench.torch.__version__),
        "cuda": bench.torch.version.cuda,
        "bytes_moved": moved,
        "weight_bytes": operands.rights[0].stored_bytes,
        "weight_copies": len(operands.rights),
        "l2_bytes": bench.l2_bytes,
        "time_us": round(summary(times).median, 3),
        "proof": dataclasses.asdict(proof),
        "state": dataclasses.asdict(bench.gpus.session.state(bench.identity.pci_bus_id)),
    }
    if shape.few:
        detail.update(share(samples.median, bench.gpus.peak_gb_s(bench.identity.ordinal)))
    if proof.message is not None:
        why = Why("gemm.wrong_result", f"{bench.where}, {wanted.name} {shape.name}: {proof.message}")
        parts.refuse(named, unit(shape), method, why, begin, detail)
        return
    parts.add(named, unit(shape), method, samples, begin, detail)


def _prepared(bench: Bench, wanted: Format, shape: Shape) -> Operands | Why:
    """The operands for a product, or why there are none."""
    bench.gpus.report.doing(f"prepare {wanted.name} matrices on {bench.where}", hung=HUNG)
    needed = needed_bytes(shape, wanted.bits, sets_of(WEIGHT_BYTES, bench.l2_bytes, shape.few))
    try:
        free = bench.gpus.api.free_bytes()
        if free * MEMORY_SHARE < needed:
            text = f"{free} bytes are free, the matrices need {needed}, more than half of that"
            return Why("gemm.no_room", f"{bench.where}: {text}")
        return prepare(bench, wanted, shape)
    except (RuntimeError, TypeError, CudaError) as error:
        return why_torch(bench, wanted, error)


def _format(bench: Bench, wanted: Format, options: Options, parts: Parts) -> None:
    """All products of one format. Those with few rows share their weights; the last of them has the most rows."""
    for group in shapes(wanted.bits, options.quick):
        if not group:
            continue
        begin = time.monotonic()
        operands = _prepared(bench, wanted, group[-1])
        for shape in group:
            if isinstance(operands, Why):
                parts.refuse(name(bench, wanted, shape), unit(shape), wanted.call, operands, begin)
            else:
                _measure(bench, operands, shape, options, parts)
        del operands
        with contextlib.suppress(RuntimeError):  # after a failed kernel every call fails, and that was reported
            bench.torch.cuda.empty_cache()


def _on_gpu(torch: Torch, gpus: Gpus, ordinal: int, options: Options, parts: Parts) -> None:
    """Every format on one GPU."""
    module, begin = torch.module, time.monotonic()
    identity = gpus.gpus[ordinal]
    bench = Bench(module, gpus, identity)
    try:
        bench.open()
    except (RuntimeError, CudaError) as error:
        parts.refuse(f"{NAME}.gpu{ordinal}", UNIT, METHOD, why_torch(bench, FORMATS[0], error), begin)
        return
    with module.cuda.stream(bench.stream):
        for wanted in FORMATS[:1] if options.quick else FORMATS:
            refused = unsupported(module, wanted, bench.capability)
            if refused is None:
                _format(bench, wanted, options, parts)
            else:
                why = Why("gemm.unsupported", refused)
                parts.refuse(f"{NAME}.{wanted.name}.gpu{ordinal}", UNIT, wanted.call, why, time.monotonic())


def check(options: Options, report: Report) -> None:
    """Measure every GPU, one after the other."""
    parts = Parts(report, NAME, "gpus", METHOD)
    gpus = open_gpus(options, report, NAME, "gpus")
    if gpus is None:
        return
    try:
        torch = torch_gpu.load(report)
    except NoTorch as error:
        parts.whole(None, {}, error.why)
        return
    unfit = torch_gpu.unfit(torch, gpus)
    if unfit is not None:
        parts.whole(None, {"versions": torch.versions}, unfit)
        return
    # Parts of a split sum may be kept in BF16 otherwise, and the error would depend on how cuBLAS splits.
    torch.module.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    before, busy = gpus.states(), busy_gpus(gpus)
    for gpu in gpus.gpus:
        if gpu.ordinal in busy:
            why = Why("gpu.in_use", busy[gpu.ordinal])
            parts.refuse(f"{NAME}.gpu{gpu.ordinal}", UNIT, METHOD, why, time.monotonic())
        else:
            _on_gpu(torch, gpus, gpu.ordinal, options, parts)
    detail = {
        "versions": torch.versions,
        "bf16_reduced_precision_reduction": False,
        "gpus": {"before": before, "after": gpus.states()},
        "slowest_bf16_tflop_s": lowest(parts.made, f"{NAME}.bf16.", ".square"),
    }
    fine = ("gemm.unsupported",)
    parts.whole(good_gpus(parts.made, [gpu.ordinal for gpu in gpus.gpus], fine), detail, fine=fine)
