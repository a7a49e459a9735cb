"""What a host's own measurements say of its parts: the gate's measurements.json, or the answer of gpu_checks. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuhost.documents import SCHEMA_PREFIX
from gpuhost_cli.run import InputError

SCHEMA = SCHEMA_PREFIX + "measurements"
READ = re.compile(r"memory\.read\.gpu(\d+)")
REDUCE = re.compile(r"allreduce\.graph\.(\d+)")
COPY = re.compile(r"p2p\.ce\.(\d+-\d+)")
SQUARE = re.compile(r"gemm\.(bf16|fp8|nvfp4)\.gpu(\d+)\.square")
PEAKS = {"bf16": "bf16", "fp8": "fp8", "nvfp4": "fp4"}


@dataclass(frozen=True)
class Measured:
    """A host's parts. ``read_gb_s`` and ``tflop_s`` are those of its slowest GPU, on which the others wait;
    ``copy_gb_s`` that of its slowest pair. ``reduce_us`` has microseconds by bytes, over ``ranks`` GPUs."""

    host: str
    taken_at: str
    gpus: int
    read_gb_s: float | None
    read_from: str
    copy_gb_s: float | None
    copy_from: str
    reduce_us: tuple[tuple[int, float], ...]
    ranks: int | None
    tflop_s: Mapping[str, float]
    inside: bool = False
    """The name may be a container's own: it is the answer of gpu_checks itself."""
    notes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        return f"{'in' if self.inside else 'on'} {self.host} at {self.taken_at}"


def measured_of(document: Any, where: str, target: str | None = None) -> Measured:
    """Read a document. Raises InputError for one of another schema, or with several targets of which none is named."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"{where}: not a document of measurements (schema {SCHEMA}): gpuhost gate writes one per host")
    if document.get("schema_version") != 1:
        raise InputError(f"{where}: schema_version {document.get('schema_version')}, 1 is understood: update gpuhost")
    rows, named = _rows(document, where, target)
    good = {row["name"]: row for row in rows if row.get("status") == "measured" and _is_number(row.get("value"))}
    refused = sorted(row["name"] for row in rows if row.get("status") != "measured" and _is_ours(row["name"]))
    reads, copies = _values(good, READ), _values(good, COPY)
    reduces = {int(size): value for size, value in _values(good, REDUCE).items()}
    ranks = {(row.get("detail") or {}).get("ranks") for name, row in good.items() if REDUCE.fullmatch(name)}
    slow_gpu = min(reads, key=lambda key: reads[key], default="")
    slow_pair = min(copies, key=lambda key: copies[key], default="")
    rates: dict[str, float] = {}
    for name, row in good.items():
        if match := SQUARE.fullmatch(name):
            peak = PEAKS[match[1]]
            rates[peak] = min(rates.get(peak, float("inf")), float(row["value"]))
    notes = [f"not measured, so not used: {', '.join(refused)}"] if refused else []
    if not (reads or reduces or copies or rates):
        raise InputError(
            f"{where}{named}: none of memory.read.gpuN, allreduce.graph.N, p2p.ce.I-J, gemm.FORMAT.gpuN.square is "
            "measured in it: gpuhost gate with the checks memory, p2p, allreduce and gemm measures them"
        )
    return Measured(
        host=str(document.get("host", "")) or "a host without a name",
        taken_at=str(document.get("taken_at", "")),
        gpus=len({row["name"] for row in rows if READ.fullmatch(row["name"])}),
        read_gb_s=reads.get(slow_gpu),
        read_from=f"memory.read.gpu{slow_gpu}, the slowest of {len(reads)}",
        copy_gb_s=copies.get(slow_pair),
        copy_from=f"p2p.ce.{slow_pair}, the slowest of {len(copies)} pairs",
        reduce_us=tuple(sorted(reduces.items())),
        ranks=next(iter(ranks)) if len(ranks) == 1 else None,
        tflop_s=rates,
        inside="targets" not in document,
        notes=tuple(notes),
    )


def _rows(document: Mapping[str, Any], where: str, target: str | None) -> tuple[list[dict[str, Any]], str]:
    targets = document.get("targets")
    if targets is None:
        return _list(document.get("measurements"), where), ""
    if not isinstance(targets, dict):
        raise InputError(f"{where}: its targets are no object")
    found = {name: _list(each.get("measurements"), where) for name, each in targets.items() if isinstance(each, dict)}
    if target is not None and target not in found:
        raise InputError(f"{where}: no target {target}; it has {', '.join(found) or 'none'}")
    useful = [name for name, rows in found.items() if any(_is_ours(row["name"]) for row in rows)]
    if target is None and len(useful) > 1:
        raise InputError(f"{where}: measured in {', '.join(useful)}: say which with --measured-target")
    chosen = target or (useful[0] if useful else next(iter(found), ""))
    return found.get(chosen, []), f" ({chosen})"


def _list(rows: Any, where: str) -> list[dict[str, Any]]:
    named = isinstance(rows, list) and all(isinstance(row, dict) and isinstance(row.get("name"), str) for row in rows)
    if not named:
        raise InputError(f"{where}: its measurements are no list of named measurements")
    return list(rows)


def _is_ours(name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in (READ, REDUCE, COPY, SQUARE))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def _values(good: Mapping[str, dict[str, Any]], pattern: re.Pattern[str]) -> dict[str, float]:
    return {match[1]: float(row["value"]) for name, row in good.items() if (match := pattern.fullmatch(name))}
