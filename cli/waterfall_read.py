"""What a waterfall is made from, read out of documents: a ceiling, and decode measurements. Pure.

What is absent or of another form is left out, never guessed: a text editor, or another version, may have been at work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuhost_cli import ceiling_report
from gpuhost_cli import report_read as read
from gpuhost_cli.waterfall_host import ALL_REDUCE
from gpuhost_cli.waterfall_numbers import finite, positive, whole
from gpuhost_cli.waterfall_rows import Measured, PartTime, Term

CEILING, MEASUREMENTS = ceiling_report.SCHEMA, "gpuhost.measurements"
BF16_BYTES = 2
ONE_RANK = "decode.one_rank"
"""The cause of the check ``decode`` where there is nothing to reduce: that is no missing measurement."""

_TAG = re.compile(r"decode\.(?P<what>.+)\.(?P<model>[^.]+)-tp(?P<tp>\d+)-b(?P<batch>\d+)-c(?P<context>\d+)")
_WHERE = re.compile(r"measured: on (?P<host>.+) at \S+")

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Paper:
    """A ceiling. ``rates``: tok/s of all streams, as a sum, by their number. ``host``: whose parts it was made from;
    ``measured``: whether it was made from any.

    ``bf16_ms``: what reading the weights would take if all of them were BF16; ``narrow``: formats that are not.
    """

    file: str
    taken_at: str
    title: str
    layers: int
    machine: str
    mode: str
    tp: int
    ep: int
    pp: int
    context: int
    terms: tuple[Term, ...]
    rates: Mapping[int, float]
    host: str
    measured: bool
    weights_ms: float
    bf16_ms: float
    narrow: tuple[str, ...]


@dataclass(frozen=True)
class Decode:
    """Decode measurements of one target. ``host`` is empty where it may be a container's own name."""

    file: str
    taken_at: str
    host: str
    target: str
    model: str
    tp: int
    batch: int
    context: int
    layers: int | None
    tag: str
    """The last part of the names of its measurements."""
    measured: Measured
    notes: tuple[str, ...]


def is_decode(document: Document) -> bool:
    """Measurements, and some of them of the check ``decode``."""
    answers = _answers(document).values() if document.get("schema") == MEASUREMENTS else ()
    names = [read.text(row.get("name")) for answer in answers for row in read.rows(answer, "measurements")]
    return any(name == "decode" or name.startswith("decode.") for name in names)


def _answers(document: Document) -> dict[str, Any]:
    """Answers by target; what ``gpu_checks --json`` gives is one by itself, and names the place where it ran."""
    return read.sub(document, "targets") if "targets" in document else {read.text(document.get("host")): document}


def paper_of(document: Document, file: str) -> Paper | None:
    """A ceiling; None for one that has no sum."""
    shape = read.sub(document, "shape")
    rows = read.rows(document, "terms")
    terms = [
        Term(read.text(row.get("title")), 1e3 * (finite(row.get("counted")) or 0.0), read.text(row.get("how")))
        for row in rows
    ]
    steps = {whole(row.get("batch")): positive(row.get("tok_s")) for row in read.rows(document, "steps")}
    if not any(term.ms for term in terms):
        return None
    parts = [part for part in read.rows(document, "parts") if positive(part.get("token_bytes"))]
    weights = next((term.ms for row, term in zip(rows, terms, strict=True) if row.get("key") == "weights"), 0.0)
    own = sum(finite(part.get("token_bytes")) or 0.0 for part in parts)
    bf16 = sum(
        (finite(part.get("token_bytes")) or 0.0) * BF16_BYTES / each
        for part in parts
        if (each := positive(part.get("bytes_per_weight")))
    )
    said = read.texts(document, "notes")
    notes = [_WHERE.fullmatch(note) for note in said]
    return Paper(
        file=file,
        taken_at=read.text(document.get("taken_at")),
        title=read.text(shape.get("title")),
        layers=whole(shape.get("layers")),
        machine=read.text(document.get("machine")),
        mode=read.text(document.get("mode")),
        tp=whole(document.get("tp")),
        ep=whole(document.get("ep")),
        pp=whole(document.get("pp")),
        context=whole(document.get("context")),
        terms=tuple(terms),
        rates={batch: rate for batch, rate in steps.items() if rate is not None},
        host=next((found["host"] for found in notes if found), ""),
        measured=any(note.startswith("measured: ") for note in said),
        weights_ms=weights,
        bf16_ms=weights * bf16 / own if own else weights,
        narrow=tuple(sorted({read.text(part.get("format")) for part in parts} - {"BF16", "FP16"})),
    )


def decodes_of(document: Document, file: str) -> list[Decode]:
    """Each target's decode step, and each order of one (model, TP, batch, context) by itself."""
    found = []
    for target, answer in _answers(document).items():
        items = read.rows(answer, "measurements")
        whole_of: dict[str, Any] = next((item for item in items if item.get("name") == "decode"), {})
        orders: dict[tuple[str, int, int, int], dict[str, dict[str, Any]]] = {}
        for item in items:
            match = _TAG.fullmatch(read.text(item.get("name")))
            if match:
                key = (match["model"], int(match["tp"]), int(match["batch"]), int(match["context"]))
                orders.setdefault(key, {})[match["what"]] = item
        detail = read.sub(whole_of, "detail")
        if not orders and whole_of:
            key = (read.text(detail.get("model")), *(whole(detail.get(name)) for name in ("tp", "batch", "context")))
            orders[key] = {}
        for order, named in orders.items():
            found.append(_decode(document, file, target, order, named, whole_of))
    return found


def _decode(
    document: Document,
    file: str,
    target: str,
    order: tuple[str, int, int, int],
    named: Mapping[str, dict[str, Any]],
    whole_of: Mapping[str, Any],
) -> Decode:
    detail, step = read.sub(whole_of, "detail"), named.get("step", {})
    said = read.sub(step, "detail")
    taken_at = read.text(document.get("taken_at"))
    parts = [
        _part(name.removeprefix("part."), item)
        for name, item in named.items()
        if name.startswith("part.") and name != f"part.{ALL_REDUCE}"
    ]
    reduce = named.get(f"part.{ALL_REDUCE}")
    none_needed = order[1] <= 1 or (reduce is not None and reduce.get("cause") == ONE_RANK)
    made = _part(ALL_REDUCE, reduce or {})
    notes = []
    built, layers = whole(said.get("layers_built")), whole(said.get("layers"))
    if 0 < built < layers:
        notes.append(f"{built} of {layers} layers fitted in the free memory: the others are taken to be like these")
    if reduce is not None and not none_needed and made.us is not None:
        ranks, wanted = (whole(read.sub(reduce, "detail").get(name)) for name in ("ranks_measured", "ranks_wanted"))
        if ranks and wanted and ranks != wanted:
            notes.append(f"the all-reduces were measured over {ranks} GPUs, not {wanted}")
    return Decode(
        file=file,
        taken_at=taken_at,
        host=read.text(document.get("host")) if "targets" in document else "",
        target=target,
        model=read.text(detail.get("model")) or order[0],
        tp=order[1],
        batch=order[2],
        context=order[3],
        layers=layers or None,
        tag="{}-tp{}-b{}-c{}".format(*order),
        measured=Measured(tuple(parts), _us(step), _why(step or whole_of), None if none_needed else made),
        notes=tuple(notes),
    )


def _us(item: Mapping[str, Any]) -> float | None:
    unit = read.text(item.get("unit"))
    return positive(item.get("value")) if item.get("status") == "measured" and unit.startswith("us") else None


def _why(item: Mapping[str, Any]) -> str:
    if not item:
        return "not in the measurements"
    cause, message = read.text(item.get("cause")), read.text(read.sub(item, "detail").get("message"))
    return ": ".join(part for part in (cause, message or read.sentence_of(cause)) if part) or "no value"


def _part(name: str, item: Mapping[str, Any]) -> PartTime:
    us = _us(item)
    return PartTime(name, us, read.text(item.get("method")), "" if us is not None else _why(item))
