"""The check ``decode``: one decode step of a model at its own shapes, what its parts take, and what is left between.

The step is of one rank: with tensor parallelism over n its matrices are those that one of n GPUs has, and runs on the
first GPU. Weights are random, of BF16, each layer's at its own addresses. See ``graph`` for how parts are timed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import time
import zlib

from gpu_checks import torch_gpu
from gpu_checks.cuda_api import CudaError
from gpu_checks.decode import probes
from gpu_checks.decode import reduce as all_reduce
from gpu_checks.decode.graph import GraphClock
from gpu_checks.decode.models import BadModel, Model, for_rank, load
from gpu_checks.decode.presets import PRESETS
from gpu_checks.decode.reduce import PER_LAYER, WHAT, Reduced
from gpu_checks.decode.run import NAME, UNIT, Run, why_of
from gpu_checks.decode.stack import head_bytes, layer_bytes
from gpu_checks.decode.step import Wrong, built_step, measured_parts, measured_step, summed
from gpu_checks.gemm.run import Bench
from gpu_checks.gpus import Gpus, open_gpus
from gpu_checks.measurement import MEASURED, Samples
from gpu_checks.parts import Parts, Why, busy_gpus
from gpu_checks.registry import Options, Report
from gpu_checks.torch_gpu import NoTorch, Torch

METHOD = "a decode step of one rank as a CUDA graph through torch, random weights; each part alone in the same way"

OTHER_KERNELS = ("flashinfer", "vllm", "sgl_kernel", "flash_attn", "deep_gemm")
"""Libraries of kernels that engines use. Where they are installed that is said; what is measured is torch's."""

FINE = ("decode.one_rank", "decode.one_gpu", "decode.unsupported", "decode.out_of_time", "decode.no_room")
"""Probes and all-reduces that were not measured for these do not keep the whole from being measured: the step was. Of a
part of the step that is lost there is no sum, for ``decode.part_missing``, and that does."""


def tag_of(model: Model, options: Options) -> str:
    """What was asked for, as the last part of every name: baselines of other orders are never compared.

    A config.json is mostly called nothing, or as another one: its name has a sum of its shapes.

    >>> from gpu_checks.decode.models import load
    >>> tag_of(load("glm-4.5"), Options(tp=8, batch=4, context=1024))
    'glm-4_5-tp8-b4-c1024'
    """
    name = re.sub(r"[^A-Za-z0-9-]+", "_", model.name).strip("_").lower() or "model"
    if options.model not in PRESETS:
        layer = [layer_bytes(model, is_sparse, 1, 1) if count else 0
                 for is_sparse, count in ((False, model.dense), (True, model.sparse))]  # fmt: skip
        sizes = (model.hidden, model.heads, model.dense, model.sparse, model.used, head_bytes(model), *layer)
        name += f"_{zlib.crc32(repr(sizes).encode()):08x}"
    return f"{name}-tp{options.tp}-b{options.batch}-c{options.context}"


def _checked(options: Options) -> Model:
    """The rank's shapes. Raises BadModel."""
    model = for_rank(load(options.model), options.tp)
    for name, value in (("batch", options.batch), ("context", options.context)):
        if value < 1:
            raise BadModel(f"{name} {value} is below 1")
    if options.batch > model.vocabulary:
        raise BadModel(f"batch {options.batch} is more than the {model.vocabulary} tokens of a rank's vocabulary")
    return model


def _reduced(run: Run, found: Reduced) -> Samples | None:
    """Hand over the all-reduces of a step; what they take together."""
    count = PER_LAYER * run.model.layers
    how = "all-reduces of float32 over all GPUs, as the check allreduce has them"
    if found.measurement is None or found.measurement.samples is None:
        if found.why is not None:
            run.refuse(WHAT, how, found.why, found.begin)
        return None
    each = found.measurement.samples
    samples = Samples(each.n, each.median * count, each.p20 * count, each.p80 * count)
    detail = {
        "in_step": False,
        "places": count,
        "bytes": found.size,
        "mode": found.measurement.detail.get("mode"),
        "us_each": each.median,
        "ranks_measured": found.ranks,
        "ranks_wanted": run.options.tp,
    }
    run.add(WHAT, "us", how, samples, found.begin, detail)
    return samples


def _on_gpu(run: Run, reduce: Reduced) -> Why | None:
    """Everything on the GPU; why there is no step, or None."""
    begin, found = time.monotonic(), None
    run.doing(f"build {run.model.name} for tensor parallelism over {run.options.tp}")
    try:
        built = built_step(run)
        if isinstance(built, Why):
            return built
        run.doing("measure the step")
        measured_step(run, built)
        if run.options.quick:
            return None
        found = measured_parts(run, built)
    except Wrong as error:
        return Why("decode.wrong_result", f"{run.bench.where}: {error}")
    except (RuntimeError, TypeError, ValueError, CudaError) as error:
        return run.why(error, "the step")
    summed(run, found, begin)
    together = _reduced(run, reduce)
    if together is not None and reduce.ranks != run.options.tp:
        text = f"all-reduces were measured over {reduce.ranks} GPUs, not {run.options.tp}: not added to the step"
        run.known["notes"].append(text)
    elif together is not None and run.step_us:
        run.known["step_and_all_reduce_us"] = round(run.step_us + together.median, 3)
    del built
    with contextlib.suppress(RuntimeError):  # after a failed kernel every call fails, and that was reported
        run.torch.cuda.empty_cache()
    probes.all_probes(run)
    return None


def _measure(options: Options, model: Model, gpus: Gpus, torch: Torch, parts: Parts, reduce: Reduced) -> None:
    """On the first GPU."""
    module, bench = torch.module, Bench(torch.module, gpus, gpus.gpus[0])
    known = {"model": model.name, "tp": options.tp, "batch": options.batch, "context": options.context,
             "weights": "bf16, random", "notes": list(model.notes), "versions": torch.versions,
             "other_kernels": [name for name in OTHER_KERNELS if importlib.util.find_spec(name) is not None],
             "gpu": gpus.gpus[0].uuid}  # fmt: skip
    before = gpus.states()
    try:
        bench.open()
        run = Run(options, model, parts, bench, GraphClock(bench), tag_of(model, options), bench.capability)
    except (RuntimeError, CudaError) as error:
        parts.whole(None, known, why_of(bench, error, "its context"))
        return
    run.known.update(known)
    with module.no_grad(), module.cuda.stream(bench.stream):
        why = _on_gpu(run, reduce)
    run.known["missing"] = run.missing
    run.known["gpus"] = {"before": before, "after": gpus.states()}
    measured = sum(each.status == MEASURED for each in parts.made)
    parts.whole(None if why is not None else measured, run.known, why, fine=FINE)


def check(options: Options, report: Report) -> None:
    """Measure one step, its parts, and what is beside it."""
    parts = Parts(report, NAME, UNIT, METHOD)
    try:
        model = _checked(options)
    except BadModel as error:
        parts.whole(None, {"model": options.model[:200]}, Why("decode.bad_model", str(error)))
        return
    absent = torch_gpu.missing()
    if absent is not None:
        parts.whole(None, {}, absent)
        return
    reduce = all_reduce.measure(options, report, model) if not options.quick else Reduced(None, None, 0, 0, 0.0)
    gpus = open_gpus(options, report, NAME, UNIT)
    if gpus is None:
        return
    try:
        torch = torch_gpu.load(report)
    except NoTorch as error:
        parts.whole(None, {}, error.why)
        return
    unfit = torch_gpu.unfit(torch, gpus)
    busy = busy_gpus(gpus) if unfit is None else {}
    if unfit is None and 0 in busy:
        unfit = Why("gpu.in_use", busy[0])
    if unfit is not None:
        parts.whole(None, {"versions": torch.versions}, unfit)
        return
    _measure(options, model, gpus, torch, parts, reduce)
