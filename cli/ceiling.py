"""``gpuhost ceiling``: how fast a model can decode on a machine, on paper. No GPU, no host is asked."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from gpuhost.causes import FINDINGS, GOOD
from gpuhost.documents import utc_now
from gpuhost_cli import ceiling_options, ceiling_text
from gpuhost_cli.ceiling_config import Config, load, model_of, preset_path, presets, title_of
from gpuhost_cli.ceiling_formats import FORMATS, VALUE_BYTES
from gpuhost_cli.ceiling_hardware import Given, hardware_of, modes, sheets
from gpuhost_cli.ceiling_measured import Measured, measured_of
from gpuhost_cli.ceiling_model import Model
from gpuhost_cli.ceiling_notes import assumptions, readings
from gpuhost_cli.ceiling_parallel import Layout, check, notes
from gpuhost_cli.ceiling_parts import Precision, narrow, parts_of
from gpuhost_cli.ceiling_quant import scheme_of
from gpuhost_cli.ceiling_report import Ceiling, as_json, ceiling_of
from gpuhost_cli.ceiling_sum import BATCHES, Case, efficiency, step
from gpuhost_cli.run import InputError

add_parser = ceiling_options.add_parser


def run(options: argparse.Namespace) -> int:
    """Sum it up and print it. Raises InputError for a question that can't be answered."""
    found = answer(options, utc_now())
    sys.stdout.write(as_json(found) if options.json else ceiling_text.render(found))
    return FINDINGS if found.above else GOOD


def answer(options: argparse.Namespace, taken_at: str) -> Ceiling:
    """Everything about one model on one machine."""
    config, title, source = _config(options)
    mode, measured = modes()[options.mode], _measured(options)
    model = model_of(config, title, set(options.accept_field))
    given = Given(
        options.gpus, options.gpu_memory_gb_s, options.memory_efficiency, options.allreduce_us, options.transfer,
        options.gpu_memory_gb, options.link_gb_s, dict(options.flops),
    )  # fmt: skip
    sheet = sheets()[options.hardware]
    gpus = options.gpus or (measured.gpus if measured and measured.gpus else int(sheet["gpus"]))
    layout = _layout(options, mode, model, gpus)
    check(model, layout)
    machine = hardware_of(sheet, mode, given, measured, layout.tp, model.hidden)
    precision, words = _precision(options, mode, config, model)
    left_out = frozenset(_chosen(options.leave_out, mode["leave_out"]))
    parts, unmatched = parts_of(model, precision, layout, left_out, options.expert_load)
    kv, kv_note = _kv_format(options, precision, model)
    case = Case(
        model, layout, machine, parts, options.context, kv, _index_bytes(options, model), options.kv_pool_cast_tokens,
        options.extra_allreduces, options.expert_load,
    )  # fmt: skip
    rate = options.measured_tok_s
    measured_rate = None if rate is None else efficiency(case, rate, options.concurrency)
    steps = tuple(step(case, batch) for batch in sorted({*BATCHES, options.concurrency}))
    listed = (
        (f"in the checkpoint's lists, but nothing that is counted here: {', '.join(unmatched)}",) if unmatched else ()
    )
    return ceiling_of(
        case,
        taken_at=taken_at,
        mode=options.mode,
        source=source,
        steps=steps,
        efficiency=measured_rate,
        assumptions=tuple(assumptions(case, mode["says"], words, left_out)),
        readings=tuple(readings(case, steps, measured_rate)),
        notes=(
            *model.notes,
            *precision.scheme.notes,
            *listed,
            *kv_note,
            *notes(model, layout, gpus),
            *narrow(model, precision, layout),
            *machine.notes,
            *_limits(case, [each.batch for each in steps]),
        ),
    )


def _config(options: argparse.Namespace) -> tuple[Config, str, str]:
    """The model's config, its title, and where it is from."""
    if options.preset is None:
        return load(options.config), title_of(options.config), str(options.config)
    known = presets()
    return load(preset_path(options.preset)), known[options.preset]["title"], known[options.preset]["source"]


def _measured(options: argparse.Namespace) -> Measured | None:
    if options.measured is None:
        return None
    try:
        document = json.loads(options.measured.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{options.measured}: {error}: gpuhost gate writes measurements.json for each host") from error
    return measured_of(document, str(options.measured), options.measured_target)


def _layout(options: argparse.Namespace, mode: dict[str, Any], model: Model, gpus: int) -> Layout:
    if options.tp is None and gpus % options.pp:
        raise InputError(f"--pp {options.pp}: does not divide the {gpus} GPUs: say --tp, or another --gpus")
    replicate = _chosen(options.replicate, [])
    layout = Layout(
        tp=options.tp or gpus // options.pp,
        ep=options.ep,
        pp=options.pp,
        replicate=frozenset(replicate),
        shard=frozenset(_chosen(options.shard, mode["shard"])) - frozenset(replicate),
    )
    if layout.gpus > gpus:
        raise InputError(f"--tp {layout.tp} x --pp {layout.pp} are {layout.gpus} GPUs, the machine has {gpus}: --gpus")
    if model.experts is None and layout.ep > 1:
        raise InputError(f"--ep {layout.ep}: {model.title} has no experts")
    return layout


def _chosen(given: Sequence[str], by_mode: Sequence[str]) -> list[str]:
    """What the caller names, or else the mode; ``none`` empties it."""
    return [name for name in (given or by_mode) if name != "none"]


def _precision(
    options: argparse.Namespace, mode: dict[str, Any], config: Config, model: Model
) -> tuple[Precision, str]:
    """The formats, and the words for them."""
    wanted = options.weights or mode["weights"]
    single = dict(options.precision)
    said = "".join(f"; {name} {made.name}" for name, made in single.items())
    if wanted != "checkpoint":
        made = FORMATS[wanted]
        scheme = scheme_of(None, model.dtype)  # of the checkpoint's own one nothing counts
        return Precision(scheme, made, single), f"all weights {made.name}, {made.words}{said}"
    scheme = scheme_of(config.quantization, model.dtype)
    method = (
        f"the checkpoint's ({scheme.method}, from {config.quantization_from})"
        if scheme.rules
        else f"the checkpoint's, all {scheme.base.name}"
    )
    kept = f": {scheme.rules[0].format.words}; what it leaves out is {scheme.base.name}" if scheme.rules else ""
    return Precision(scheme, None, single), f"{method}{kept}{said}"


def _kv_format(options: argparse.Namespace, precision: Precision, model: Model) -> tuple[str, list[str]]:
    if options.kv_cache_dtype != "auto":
        return options.kv_cache_dtype, []
    asked = precision.scheme.kv
    if options.kv_pool_cast_tokens:
        return "fp8", []
    return asked or (model.dtype if model.dtype in VALUE_BYTES else "bf16"), (
        [f"the checkpoint asks for a KV cache in {asked.upper()}"] if asked else []
    )


def _index_bytes(options: argparse.Namespace, model: Model) -> float:
    """A key of an indexer is FP8 with one FP32 scale, as SGLang and vLLM store it."""
    width = model.cache.index_values
    return options.index_key_bytes if options.index_key_bytes is not None else width + 4 if width else 0


def _limits(case: Case, batches: Sequence[int]) -> list[str]:
    """Where the figures end: sizes beyond those measured, batches beyond a GPU's memory."""
    found, curve, size = [], case.hardware.curve, case.hardware.memory_gb
    if curve and curve[-1][0] < max(batches) * case.payload_bytes:
        found.append(f"all-reduces were measured up to {curve[-1][0]} B; beyond, the link's rate is added")
    if size is not None:
        needed = {batch: (case.held_bytes + case.cache_bytes(batch)) / 1e9 for batch in batches}
        over = next((batch for batch in batches if needed[batch] > size.value), None)
        if over is not None:
            needs = f"{needed[over]:.1f} GB on a GPU of {size.value:g} GB"
            found.append(
                f"from batch {over} on weights and cache do not fit ({needs}): "
                "those rates can't be reached at this context"
            )
    return found
