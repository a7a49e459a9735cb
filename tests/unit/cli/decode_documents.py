"""Documents about one decode step (synthetic, but for the ceiling, which is summed up): GLM-5 over 8 GPUs."""

from __future__ import annotations

import argparse
import copy
import json
import random
from pathlib import Path
from typing import Any

from gpuhost.baselines import Baselines, Entry, Origin
from gpuhost.documents import Head, as_dict, make_head
from gpuhost.expectations import Rules
from gpuhost.gate import judge
from gpuhost_cli import ceiling, serve_compare
from gpuhost_cli.ceiling_report import as_json
from gpuhost_cli.main import parser
from gpuhost_cli.serve_documents import (
    Answer,
    ClientLoad,
    Dialect,
    Level,
    Parameters,
    Percentiles,
    ServeCheck,
)

HOST, RUN_ID = "gpu-host-1", "20261130T173000Z-7a10"
BEFORE, AFTER = "2026-11-30T17:02:00Z", "2026-11-30T18:20:00Z"
TAG = "glm-5-tp8-b1-c4096"

PARTS = {
    "embedding": 3.1, "rms_norm": 431.0, "qkv_a": 1822.0, "latent_norm": 260.0, "q_b": 742.0, "absorb_k": 301.0,
    "rope": 388.0, "kv_write": 167.0, "indexer": 1210.0, "index_top": 905.0, "attention": 2410.0, "absorb_v": 342.0,
    "o": 1110.0, "mlp_up": 66.0, "mlp_act": 6.9, "mlp_down": 35.0, "router": 322.0, "top_k": 640.0, "permute": 980.0,
    "experts_up": 3105.0, "expert_act": 212.0, "experts_down": 1702.0, "shared_up": 402.0, "shared_act": 155.0,
    "shared_down": 231.0, "combine": 702.0, "lm_head": 181.0, "sampling": 58.0,
}  # fmt: skip
"""Microseconds (synthetic)."""
SUM_US = 18889.0
STEP_US, REDUCE_US = 20115.0, 6600.0


def ceiling_document(*arguments: str) -> dict[str, Any]:
    """What ``gpuhost ceiling`` writes."""
    wanted = arguments or ("--preset", "glm-5", "--context", "4096", "--concurrency", "10")
    options: argparse.Namespace = parser().parse_args(["ceiling", *wanted])
    return dict(json.loads(as_json(ceiling.answer(options, "2026-11-30T17:00:00Z"))))


def item(name: str, unit: str, value: float | None, cause: str | None = None, **detail: Any) -> dict[str, Any]:
    status = "measured" if value is not None else "not_measured"
    if cause:
        detail.setdefault("message", f"GPU 0: {cause} (synthetic)")
    return {
        "name": name, "value": value, "unit": unit, "method": "synthetic", "status": status, "cause": cause,
        "seconds": 0.3, "clock": "CUDA events", "samples": None, "detail": detail,
    }  # fmt: skip


def decode_document(
    taken_at: str = AFTER,
    *,
    parts: dict[str, float | str] | None = None,
    step: float | str | None = STEP_US,
    reduce: float | str | None = REDUCE_US,
    host: str = HOST,
    tag: str = TAG,
    model: str = "glm-5",
    layers: int = 78,
) -> dict[str, Any]:
    """Measurements of the check ``decode``. A text stands for the cause why there is no figure."""
    rows = []

    def add(what: str, value: float | str | None, **detail: Any) -> None:
        if value is not None:
            cause = value if isinstance(value, str) else None
            unit = "us_shown" if what in ("part.embedding", "part.mlp_act") else "us"
            rows.append(item(f"decode.{what}.{tag}", unit, None if cause else float(value), cause, **detail))

    add("step", step, layers=layers, layers_built=layers)
    for name, value in (PARTS if parts is None else parts).items():
        add(f"part.{name}", value)
    add("part.all_reduce", reduce, ranks_measured=8, ranks_wanted=8)
    rows.append(item(f"decode.probe.dispatch.eager.{tag}", "us_shown", 3.9))
    rows.append(item("decode", "parts", float(len(rows)), model=model, tp=8, batch=1, context=4096))
    head = {"schema": "gpuhost.measurements", "schema_version": 1, "host": host, "run_id": RUN_ID}
    answer = {"measurements": rows, "stale": [], "checks": ["decode"]}
    return {**head, "taken_at": taken_at, "concern": "decode", "targets": {"llm-a": answer}}


TPOT_MS = {1: 96.5, 2: 99.0, 10: 131.0, 64: 260.0}
"""Milliseconds (synthetic): the incident's 10.36 tok/s with one stream, the others invented."""


def serve(
    taken_at: str, factor: float = 1.0, *, tpot: dict[int, float] | None = None, answers: int = 16, **more: Any
) -> ServeCheck:
    """A run of serve-check: each token takes ``factor`` times as long."""
    drawn = random.Random(taken_at)
    levels = []
    for concurrency, ms in (TPOT_MS if tpot is None else tpot).items():
        times = [ms * factor * drawn.gauss(1, 0.006) for _ in range(answers)]
        made = tuple(
            Answer(
                n, 0.0, 0.4 + 127 * each / 1e3, 400.0, round(each, 4), 128, "usage", 128, 128, 300, 0, "length"
            )
            for n, each in enumerate(times)
        )  # fmt: skip
        median = ms * factor
        levels.append(
            Level(
                concurrency, True, answers, 30.0, 128 * answers, 1.0, 1.0, "usage", None, 1e3 / median, None,
                Percentiles(answers, median, median, median, median), None, None, 300.0, {}, ClientLoad(3.0, 0.2), made,
            )
        )  # fmt: skip
    fields: dict[str, Any] = {
        "label": "", "url": f"http://{HOST}:8000/v1", "model": "zai-org/GLM-5-FP8", "state": "complete", "cause": None,
        "sentence": "", "parameters": Parameters("chat", 128, 256, "built-in", 1, 0.0, 12, 60.0), "host": HOST, **more,
    }  # fmt: skip
    head = Head("gpuhost.serve_check", 1, fields.pop("host"), RUN_ID, taken_at)
    return ServeCheck(head=head, dialect=Dialect(), waited=(), levels=tuple(levels), **fields)


def serve_document(taken_at: str, factor: float = 1.0, **more: Any) -> dict[str, Any]:
    return as_dict(serve(taken_at, factor, **more))


def compared(before: ServeCheck, after: ServeCheck) -> dict[str, Any]:
    """The later run, with its comparison."""
    found = serve_compare.compare(before, after, "before.json", serve_compare.Tolerance())
    return as_dict(serve_compare.with_comparison(after, found))


def slower(document: dict[str, Any], **factors: float) -> dict[str, Any]:
    """The same measurements with parts, or ``step``, that take so many times as long."""
    changed = copy.deepcopy(document)
    for target in changed["targets"].values():
        for row in target["measurements"]:
            what = row["name"].removeprefix("decode.").removeprefix("part.").partition(".")[0]
            if what in factors and row["value"] is not None:
                row["value"] *= factors[what]
    return changed


def judged(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """``verdict.json`` as the judge makes it, with the measurements of before as this host's baseline."""
    origin = Origin(before["taken_at"], "20261004T030000Z-11c2", "6.8.12-9-pve", "570.172.08", {})
    entries = {
        target: {
            row["name"]: Entry(row["value"], row["unit"], origin.key)
            for row in answer["measurements"]
            if row["status"] == "measured" and row["unit"] == "us"
        }
        for target, answer in before["targets"].items()
    }
    known = Baselines(make_head("baselines", HOST, origin.run_id), {origin.key: origin}, entries)
    rules = Rules(driver="580.159.04", baselines=known)
    return as_dict(judge(HOST, RUN_ID, "6.8.12-11-pve", ["decode"], now["targets"], rules))


def folder(parent: Path, *documents: dict[str, Any], hosts: tuple[str, ...] = (HOST,)) -> Path:
    """A run folder with documents of its first host, under names that say nothing."""
    run_dir = parent / RUN_ID
    (run_dir / hosts[0]).mkdir(parents=True)
    for number, document in enumerate(documents):
        (run_dir / hosts[0] / f"document-{number}.json").write_text(json.dumps(document))
    run = {
        "schema": "gpuhost.run", "schema_version": 1, "run_id": RUN_ID, "command": "gpuhost upgrade -i hosts.yml",
        "target": "", "check_mode": False, "started_at": "2026-11-30T17:30:00Z", "finished_at": "2026-11-30T18:10:46Z",
        "exit_status": 0, "hosts": dict.fromkeys(hosts, "good"), "tasks": [], "failures": [],
    }  # fmt: skip
    (run_dir / "run.json").write_text(json.dumps(run))
    return run_dir
