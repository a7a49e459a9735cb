"""A decode step's products in FP8 and NVFP4, at the model's own shapes, beside the step, which is of BF16."""

from __future__ import annotations

import math
import time
from functools import partial

from gpu_checks.decode.graph import in_graph
from gpu_checks.decode.proof import LIMIT, error_of
from gpu_checks.decode.run import Run
from gpu_checks.decode.stack import shapes_of_attention, shapes_of_mlp
from gpu_checks.gemm.formats import FORMATS, Format, unsupported
from gpu_checks.gemm.proof import compare, reference
from gpu_checks.gemm.shapes import sets_of
from gpu_checks.gpus import MEMORY_SHARE
from gpu_checks.measurement import Samples
from gpu_checks.parts import Why
from gpu_checks.timing import L2_MULTIPLE


def products(run: Run) -> None:
    """The model's own matrices in FP8 and NVFP4, through torch._scaled_mm; experts through _scaled_grouped_mm."""
    shapes = shapes_of_attention(run.model)
    for wanted in FORMATS[1:]:
        refused = unsupported(run.torch, wanted, run.capability)
        for weight in ("qkv" if "qkv" in shapes else "q_b", "o"):
            what = f"probe.{wanted.name}.{weight}"
            if refused is not None:
                run.refuse(what, wanted.call, Why("decode.unsupported", refused), time.monotonic())
                continue
            rows, depth = shapes[weight]
            run.attempt(what, wanted.call, partial(_linear, run, wanted, rows, depth, what))
    if run.model.experts:
        for weight in ("expert_up", "expert_down"):
            what = f"probe.fp8_rows.{weight}"
            run.attempt(what, SCALED_GROUPED, partial(_experts, run, weight, what))
        text = "torch has no product of many experts in NVFP4; kernels of engines are not measured"
        run.refuse("probe.nvfp4.experts", "none", Why("decode.unsupported", text), time.monotonic())


def _linear(run: Run, wanted: Format, rows: int, depth: int, what: str, begin: float) -> None:
    torch, bench = run.torch, run.bench
    generator = torch.Generator(device=bench.device)
    generator.manual_seed(0)
    left = wanted.random(torch, run.options.batch, depth, False, generator)
    right = wanted.random(torch, rows, depth, True, generator)
    copies = sets_of(right.stored_bytes, run.clock.l2_bytes, True)
    rights = [right, *(right.copy() for _ in range(copies - 1))]
    outs = [torch.empty(run.options.batch, rows, dtype=torch.bfloat16, device=bench.device) for _ in rights]
    works = [wanted.bind(torch, left, each, out) for each, out in zip(rights, outs)]
    samples = in_graph(run.clock, works)
    proof = compare(torch, outs[-1], reference(torch, wanted, left, right, slice(0, run.options.batch)), wanted.slack)
    if proof.message is not None:
        why = Why("decode.wrong_result", f"{bench.where}, {wanted.name}: {proof.message}")
        run.refuse(what, wanted.call, why, begin)
        return
    _add_product(run, what, wanted.call, samples, begin, right.stored_bytes, copies)


SCALED_GROUPED = "torch._scaled_grouped_mm, a scale a row"


def _experts(run: Run, weight: str, what: str, begin: float) -> None:
    """Rows of one expert after another, other experts at each place."""
    torch, model, bench, device = run.torch, run.model, run.bench, run.bench.device
    if not hasattr(torch, "_scaled_grouped_mm"):
        why = Why("decode.unsupported", f"torch {torch.__version__} has no _scaled_grouped_mm")
        run.refuse(what, SCALED_GROUPED, why, begin)
        return
    count, rows, depth = shapes_of_mlp(model, True)[weight]
    # In BF16 first, then in FP8 as well.
    needed, free = 3 * count * rows * depth, bench.gpus.api.free_bytes()
    if needed > free * MEMORY_SHARE:
        text = f"{bench.where}: {free} bytes are free, the experts of a layer need {needed}, more than half of that"
        run.refuse(what, SCALED_GROUPED, Why("decode.no_room", text), begin)
        return
    tokens = run.options.batch * model.used
    hit = min(tokens, count)
    weights = torch.randn(count, rows, depth, dtype=torch.bfloat16, device=device).to(torch.float8_e4m3fn)
    of_weights = torch.rand(count, rows, device=device) + 0.5
    x = torch.randn(tokens, depth, device=device).to(torch.float8_e4m3fn)
    of_rows = torch.rand(tokens, device=device) + 0.5
    read = hit * rows * depth
    places = max(1, min(math.ceil(L2_MULTIPLE * run.clock.l2_bytes / read), count // hit))
    works, kept = [], []
    for place in range(places):
        numbers = (torch.arange(tokens, device=device) + place * hit) % count
        ordered = numbers.sort().values
        kept.append(ordered)
        ends = torch.searchsorted(ordered, torch.arange(count, device=device), right=True, out_int32=True)
        works.append(lambda ends=ends: torch._scaled_grouped_mm(
            x, weights.transpose(1, 2), of_rows, of_weights, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=True
        ))  # fmt: skip
    out = works[-1]()
    first = int(kept[-1][0])
    exact = (weights[first].cpu().float().double() * of_weights[first].cpu().double().unsqueeze(1)) @ (
        x[0].cpu().float().double() * float(of_rows[0])
    )
    error = error_of(out[0], exact)
    if not error <= 2 * LIMIT:  # this way round NaN is wrong; FP8 keeps fewer bits while it sums
        why = Why("decode.wrong_result", f"{bench.where}: {SCALED_GROUPED} differs by {error:.3g}")
        run.refuse(what, SCALED_GROUPED, why, begin)
        return
    _add_product(run, what, SCALED_GROUPED, in_graph(run.clock, works), begin, read, places)


def _add_product(run: Run, what: str, how: str, samples: Samples, begin: float, read_bytes: int, places: int) -> None:
    cold = read_bytes * places > L2_MULTIPLE * run.clock.l2_bytes
    detail = {
        "tokens": run.options.batch,
        **run.rates(read_bytes, samples.median, cold),
        "copies": places,
        "in_step": False,
    }
    run.add(what, "us", how, samples, begin, detail)
