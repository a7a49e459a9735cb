"""The step as one CUDA graph, its parts as graphs of their own, and what is left between them."""

from __future__ import annotations

import importlib
import time
from functools import partial
from typing import Any, Callable

from gpu_checks.decode.attention import Attend
from gpu_checks.decode.graph import Timed, host_us, time_part
from gpu_checks.decode.mlp import has_grouped
from gpu_checks.decode.part import Seen, Stack
from gpu_checks.decode.proof import error_of, not_finite, wrong
from gpu_checks.decode.run import SHOWN, US, Built, Run
from gpu_checks.decode.stack import Maker, build, counts, fewer, fitting, scratch_bytes
from gpu_checks.gpus import MEMORY_SHARE
from gpu_checks.measurement import Samples
from gpu_checks.parts import Why
from gpu_checks.timing import summary

BACKENDS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
"""torch's own implementations of attention; the fastest that takes these shapes is used. cuDNN's is left out: it plans
anew for each shape, and a plan that fails in a graph leaves torch's memory in disorder."""

STEP = "the whole step as one CUDA graph, an event between launches"
STEP_COUNT, EAGER_COUNT, FEW = 40, 3, 5
"""Steps in a graph (a quarter of a second on an H200: its clocks are up then), steps without one, and other samples."""

LEAST_SHARE = 0.01
"""Of the bytes that a step reads. A part below it may double without anybody noticing."""

SAME_LIMIT = 2.0**-6
"""By how much the graph's logits may differ from the eager step's: both are the same kernels."""


class Wrong(Exception):
    """A result is wrong; the message says which."""


def attention_of(run: Run, batch: int, context: int) -> tuple[Attend, str]:
    """The fastest of torch's attentions for the rank's shapes. Raises RuntimeError where none works."""
    torch, model, device = run.torch, run.model, run.bench.device
    module = importlib.import_module("torch.nn.attention")
    call = torch.nn.functional.scaled_dot_product_attention

    def with_backend(name: str) -> Attend:
        backend = getattr(module.SDPBackend, name)

        def attend(queries: Any, keys: Any, values: Any) -> Any:
            # Heads that share keys are handed over as several queries of one head: the same sums, without enable_gqa,
            # which torch 2.4 does not have, the memory-efficient kernel does not take, and MATH copies all keys for.
            together = queries.reshape(batch, model.kv_heads, -1, model.head)
            with module.sdpa_kernel(backend):
                return call(together, keys, values)

        return attend

    queries = torch.randn(batch, model.heads, 1, model.head, dtype=torch.bfloat16, device=device)
    keys = torch.randn(batch, model.kv_heads, context, model.head, dtype=torch.bfloat16, device=device)
    tried: dict[str, float] = {}
    for name in (each for each in BACKENDS if hasattr(module.SDPBackend, each)):
        try:
            attend = with_backend(name)
            launch = run.clock.record(partial(attend, queries, keys, keys))
            tried[name] = summary(run.clock.times(launch, FEW)).median
        except RuntimeError as error:
            run.known.setdefault("attention_refused", {})[name] = str(error).splitlines()[0][:200]
    if not tried:
        raise RuntimeError("no attention of torch's takes these shapes")
    run.known["attention_us"] = {name: round(value, 3) for name, value in tried.items()}
    best = min(tried, key=lambda name: tried[name])
    return with_backend(best), f"torch scaled_dot_product_attention, {best}"


def built_step(run: Run) -> Built | Why:
    """Make weights and caches, run the step once, see that its values are numbers; or why that can't be."""
    options, torch, model = run.options, run.torch, run.model
    free = run.bench.gpus.api.free_bytes()
    grouped = has_grouped(torch, run.bench.device, run.capability)
    scratch = scratch_bytes(model, options.batch, grouped)
    order = fitting(model, options.batch, options.context, int(free * MEMORY_SHARE) - scratch)
    if order is None:
        text = f"{free} bytes are free, two layers of {model.name} for batch {options.batch} are more than half of that"
        return Why("decode.no_room", f"{run.bench.where}: {text}")
    attend, how = (None, "") if model.latent else attention_of(run, options.batch, options.context)
    generator = torch.Generator(device=run.bench.device)
    generator.manual_seed(0)
    stack = build(Maker(torch, run.bench.device, generator), order, attend, how, grouped)
    values = stack.run()
    message = not_finite(torch, values)
    if message is not None:
        return Why("decode.wrong_result", f"{run.bench.where}: {message}")
    return Built(stack, order, counts(stack, order), values["logits"])


def measured_step(run: Run, built: Built) -> None:
    """``decode.step``, and what launching costs beside it. Raises Wrong, or as torch does."""
    begin, clock, order = time.monotonic(), run.clock, built.order
    kept: dict[str, Any] = {}
    launch = clock.record(lambda: kept.update(built.stack.run()))
    samples = summary(clock.times(launch, STEP_COUNT))
    message = not_finite(run.torch, kept)
    if message is None:
        error = error_of(kept["logits"], built.logits.detach().cpu().double())
        message = None if error <= SAME_LIMIT else f"the graph's logits differ from the eager step's by {error:.3g}"
    if message is not None:
        raise Wrong(message)
    detail: dict[str, Any] = {"layers": run.model.layers, "layers_built": order.layers}
    run.known.update(detail, step_measured_us=samples.median)
    if order.layers < run.model.layers:
        samples, detail["scaled"] = _scaled(run, built, samples)
    run.step_us = samples.median
    run.known["step_us"] = samples.median
    detail["tokens_per_s"] = round(run.options.batch / samples.median * 1e6, 3)
    run.add("step", US, STEP, samples, begin, detail)
    if not run.options.quick:
        _launching(run, built.stack, launch)


def _scaled(run: Run, built: Built, samples: Samples) -> tuple[Samples, dict[str, Any]]:
    """The step of all layers: what a layer takes is the difference to a step with fewer of them."""
    small, gone = fewer(built.stack, built.order)
    shorter = summary(run.clock.times(run.clock.record(small.run), STEP_COUNT))
    each = (samples.median - shorter.median) / gone
    more = each * (run.model.layers - built.order.layers)
    said = {
        "measured_us": samples.median,
        "measured_with_fewer_us": shorter.median,
        "fewer_layers": gone,
        "layer_us": round(each, 3),
        "why": "not all layers fit in the free memory: the others are taken to be like these",
    }
    return Samples(samples.n, samples.median + more, samples.p20 + more, samples.p80 + more), said


def _launching(run: Run, stack: Stack, launch: Callable[[], Any]) -> None:
    """What the host takes to launch the step's graph, and what the step takes without one."""
    clock = run.clock

    def replay(begin: float) -> None:
        taken = [host_us(launch, 1, clock.wait) for _ in range(FEW)]
        run.add(
            "probe.dispatch.replay", SHOWN, "host time of one launch of the step's graph", summary(taken), begin, {}
        )

    def eager(begin: float) -> None:
        taken = summary(clock.times(stack.run, EAGER_COUNT))
        of_graph = None if not run.step_us else round(taken.median / run.known["step_measured_us"], 3)
        run.add("probe.eager_step", SHOWN, "the same step without a graph, an event between", taken, begin,
                {"of_graph_step": of_graph, "layers_built": run.known["layers_built"]})  # fmt: skip

    run.attempt("probe.dispatch.replay", "time.perf_counter", replay)
    run.attempt("probe.eager_step", "events", eager)


def units_of(read_bytes: dict[str, int]) -> dict[str, str]:
    """Which parts a gate holds against a baseline: those that read a share of the step's bytes that is worth it.

    The others are a few launches each, which the step and ``dispatch.graph`` are judged for. It is told by the bytes,
    which are the same in every run: by the time a part near the limit would be judged once, and once not.

    >>> units_of({"qkv": 500, "router": 5, "rope": 0, "experts": 1500})
    {'qkv': 'us', 'router': 'us_shown', 'rope': 'us_shown', 'experts': 'us'}
    """
    least = LEAST_SHARE * sum(read_bytes.values())
    return {name: US if size >= least and size else SHOWN for name, size in read_bytes.items()}


def measured_parts(run: Run, built: Built) -> dict[str, Samples]:
    """Every part of the step, alone; what was measured of them, for all layers. The others are named as missing."""
    run.doing("run the step and keep what each part is given")
    seen, _ = built.stack.watch()
    # Of all layers, however many are built: that follows the memory that happened to be free.
    read = {name: round(sum(each.touched for each in places) * built.counts[name] / len(places))
            for name, places in seen.items()}  # fmt: skip
    units, whole = units_of(read), sum(read.values())
    run.known.update(read_bytes=whole, read_gb_s=round(whole / run.step_us / 1000, 3) if run.step_us else None)
    found: dict[str, Samples] = {}
    for name, places in seen.items():
        how = places[0].place.part.how
        samples = run.attempt(f"part.{name}", how, partial(_one_part, run, built, places, units[name]), beside=False)
        if samples is not None:
            found[name] = samples
    return found


def _one_part(run: Run, built: Built, places: list[Seen], unit: str, begin: float) -> Samples | None:
    """Whether a part is right, and what it takes in a whole step."""
    name, how = places[0].place.part.name, places[0].place.part.how
    what = f"part.{name}"
    error, message = wrong(run.model, places)
    if message is not None:
        run.refuse(what, how, Why("decode.wrong_result", f"{run.bench.where}: {message}"), begin)
        return None
    timed = time_part(run.clock, places)
    samples = timed.scaled(built.counts[name])
    run.add(what, unit, how, samples, begin, _detail(run, built, name, timed, error))
    return samples


def _detail(run: Run, built: Built, name: str, timed: Timed, error: float | None) -> dict[str, Any]:
    scale = built.counts[name] / timed.places
    return {
        "places": round(built.counts[name], 3),
        "places_built": timed.places,
        "us_each": round(timed.each_us, 3),
        "share_of_step": None if not run.step_us else round(timed.samples.median * scale / run.step_us, 4),
        **run.rates(timed.read_bytes, timed.samples.median, timed.cold),
        "read_bytes": round(timed.read_bytes * scale),
        "copies": timed.copies,
        "repeats_in_graph": timed.repeats,
        "relative_error": error,
    }


def summed(run: Run, found: dict[str, Samples], begin: float) -> None:
    """The sum of the parts beside the step. Without every part there is no sum: what is missing is not zero."""
    lost = sorted(name for name in run.missing if name.startswith("part."))
    total = sum(each.median for each in found.values())
    rows = sorted(((each.median, name) for name, each in found.items()), reverse=True)
    run.known["parts"] = [
        {"part": name, "us": round(value, 3), "share_of_sum": round(value / total, 4)} for value, name in rows
    ]
    run.known.update(sum_us=round(total, 3), missing_of_sum=lost)
    if lost:
        why = Why("decode.part_missing", f"not measured: {', '.join(name[5:] for name in lost)}; the others take"
                                         f" {total:.1f} us")  # fmt: skip
        run.refuse("sum", "sum of the parts", why, begin)
        return
    detail: dict[str, Any] = {"parts": len(found)}
    run.add("sum", US, "sum of the parts, each alone", summary([total]), begin, detail)
    if run.step_us:
        unexplained = run.step_us - total
        run.known.update(unexplained_us=round(unexplained, 3), sum_of_step=round(total / run.step_us, 4))
        said = {"step_us": run.step_us, "sum_us": total}
        run.add("unexplained", "us_difference", "step less sum of parts", summary([unexplained]), begin, said)
        run.add("sum_of_step", "ratio", "sum of parts by step", summary([total / run.step_us]), begin, said)
