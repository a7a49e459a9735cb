"""What is measured beside the step: casts of a KV pool, quantisation, products in FP8 and NVFP4, launches.

None of these counts in the sum: a BF16 step has none of them. They say what this host gives to a model that does.
"""

from __future__ import annotations

from typing import Any

from gpu_checks.decode.casts import casts
from gpu_checks.decode.graph import COUNT, host_us, in_graph
from gpu_checks.decode.products import products
from gpu_checks.decode.proof import error_of
from gpu_checks.decode.run import SHOWN, Run
from gpu_checks.parts import Why
from gpu_checks.timing import summary

E4M3_LARGEST = 448.0
E4M3_ROUNDING = 2.0**-4
"""An E4M3 number has three bits behind the leading one: it is rounded by at most this share of itself."""

TINY_LAUNCHES = 300
"""Of a kernel that does nothing much: below what a driver's queue takes (about a thousand)."""

TINY_NODES = 1000
"""Of a graph that does nothing else."""

# Quantisation. ----------------------------------------------------------------------------------------------------


def quantisation(run: Run) -> None:
    """Activations to FP8 with a scale for each token, and back."""
    torch = run.torch

    def work(begin: float) -> None:
        x = torch.randn(run.options.batch, run.model.hidden, dtype=torch.bfloat16, device=run.bench.device)
        kept: dict[str, Any] = {}

        def once() -> None:
            scale = x.abs().amax(-1, keepdim=True).to(torch.float32) / E4M3_LARGEST
            quantised = (x / scale).to(torch.float8_e4m3fn)
            kept["back"] = (quantised.to(torch.float32) * scale).to(torch.bfloat16)

        samples = in_graph(run.clock, [once])
        error = error_of(kept["back"], x.cpu().double())
        if not error <= E4M3_ROUNDING:
            why = Why("decode.wrong_result", f"{run.bench.where}: FP8 and back differs by {error:.3g}")
            run.refuse("probe.quantise", QUANTISE, why, begin)
            return
        detail = {"tokens": run.options.batch, "hidden": run.model.hidden, "relative_error": error}
        run.add("probe.quantise", "us", QUANTISE, samples, begin, detail)

    run.attempt("probe.quantise", QUANTISE, work)


QUANTISE = "torch abs, amax, div, to, mul: BF16 to FP8 with a scale a token, and back"


# Launches. --------------------------------------------------------------------------------------------------------


def dispatch(run: Run) -> None:
    """What a launch takes: of the host, one by one; and of the GPU, in a graph."""
    torch = run.torch
    one = torch.zeros(1, device=run.bench.device)

    def eager(begin: float) -> None:
        taken = [host_us(lambda: one.add_(1), TINY_LAUNCHES, run.clock.wait) for _ in range(COUNT)]
        run.add("probe.dispatch.eager", SHOWN, "host time of a launch through torch", summary(taken), begin, {})

    def graph(begin: float) -> None:
        launch = run.clock.record(lambda: [one.add_(1) for _ in range(TINY_NODES)])
        times = [each / TINY_NODES for each in run.clock.times(launch, COUNT)]
        detail = {"nodes": TINY_NODES}
        run.add("probe.dispatch.graph", "us", "GPU time of a tiny kernel in a graph", summary(times), begin, detail)

    run.attempt("probe.dispatch.eager", "time.perf_counter", eager)
    run.attempt("probe.dispatch.graph", "events", graph)


def all_probes(run: Run) -> None:
    """All of them, the most telling first."""
    casts(run)
    dispatch(run)
    quantisation(run)
    products(run)
