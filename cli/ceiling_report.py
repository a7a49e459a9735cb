"""The whole answer of ``gpuhost ceiling`` as a document, and its JSON. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from gpuhost.documents import SCHEMA_PREFIX
from gpuhost_cli.ceiling_hardware import Input
from gpuhost_cli.ceiling_notes import Assumption
from gpuhost_cli.ceiling_parallel import cache_share
from gpuhost_cli.ceiling_parts import Part
from gpuhost_cli.ceiling_sum import Case, Efficiency, Step, Term, overlapped, terms, total

SCHEMA = SCHEMA_PREFIX + "ceiling"


@dataclass(frozen=True)
class Shape:
    """The model in numbers."""

    title: str
    architecture: str
    source: str
    hidden: int
    layers: int
    dense_layers: int
    experts: int
    experts_used: int
    vocabulary: int
    parameters: int
    active: float


@dataclass(frozen=True)
class Traffic:
    """What a step of one token moves on one GPU."""

    held_bytes: float
    token_bytes: float
    allreduces: int
    allreduce_bytes: int
    payload_bytes: float
    wire_bytes: float
    kv_token_bytes: float
    index_token_bytes: float
    kv_place: str
    kv_stream_bytes: float
    kv_cast_bytes: float


@dataclass(frozen=True)
class Ceiling:
    """Everything. Times and rates of ``terms`` are of one stream; ``steps`` has those of the batches."""

    taken_at: str
    mode: str
    shape: Shape
    tp: int
    ep: int
    pp: int
    machine: str
    link: str
    context: int
    parts: tuple[Part, ...]
    traffic: Traffic
    terms: tuple[Term, ...]
    sum_s: float
    overlap_s: float
    steps: tuple[Step, ...]
    efficiency: Efficiency | None
    inputs: tuple[Input, ...]
    assumptions: tuple[Assumption, ...]
    readings: tuple[str, ...]
    notes: tuple[str, ...]
    """What was not understood, not used, or is particular to this model, machine or layout."""

    @property
    def tok_s(self) -> float:
        return 1 / self.sum_s

    @property
    def above(self) -> bool:
        """A measured rate above the ceiling: one of the inputs is wrong."""
        return self.efficiency is not None and self.efficiency.share > 1


def traffic_of(case: Case) -> Traffic:
    """The bytes of a case."""
    return Traffic(
        held_bytes=case.held_bytes,
        token_bytes=case.token_bytes,
        allreduces=case.allreduces,
        allreduce_bytes=case.payload_bytes,
        payload_bytes=float(case.allreduces * case.payload_bytes),
        wire_bytes=case.wire_bytes,
        kv_token_bytes=case.kv_token_bytes,
        index_token_bytes=case.index_token_bytes,
        kv_place=cache_share(case.model, case.layout).words,
        kv_stream_bytes=case.kv_stream_bytes,
        kv_cast_bytes=case.cast_bytes,
    )


def ceiling_of(
    case: Case,
    *,
    taken_at: str,
    mode: str,
    source: str,
    steps: tuple[Step, ...],
    efficiency: Efficiency | None,
    assumptions: tuple[Assumption, ...],
    readings: tuple[str, ...],
    notes: tuple[str, ...],
) -> Ceiling:
    """Put a case and the sentences on it together."""
    model, found = case.model, terms(case)
    peaks = dict.fromkeys(part.peak for part in case.parts if part.flops)
    return Ceiling(
        taken_at=taken_at,
        mode=mode,
        shape=Shape(
            model.title, model.architecture, source, model.hidden, model.layers, model.dense_layers,
            model.experts.total if model.experts else 0, model.experts.used if model.experts else 0,
            model.vocabulary, model.parameters, model.active,
        ),
        tp=case.layout.tp,
        ep=case.layout.ep,
        pp=case.layout.pp,
        machine=case.hardware.title,
        link=case.hardware.link,
        context=case.context,
        parts=case.parts,
        traffic=traffic_of(case),
        terms=found,
        sum_s=total(found),
        overlap_s=overlapped(found),
        steps=steps,
        efficiency=efficiency,
        inputs=case.hardware.inputs(peaks, case.layout.tp, case.layout.pp),
        assumptions=assumptions,
        readings=readings,
        notes=notes,
    )  # fmt: skip


def as_json(found: Ceiling) -> str:
    """The one writer. NaN and infinity are refused: they are not JSON."""
    data: dict[str, Any] = asdict(found)
    data["tok_s"], data["overlap_tok_s"] = found.tok_s, 1 / found.overlap_s
    for row, step in zip(data["steps"], found.steps, strict=True):
        row["stream_tok_s"] = step.stream_tok_s
    if found.efficiency is not None:
        data["efficiency"].update(share=found.efficiency.share, ms_per_token=found.efficiency.ms_per_token)
    head = {"schema": SCHEMA, "schema_version": 1, "taken_at": data.pop("taken_at")}
    return json.dumps({**head, **data}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
