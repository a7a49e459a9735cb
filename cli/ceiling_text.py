"""A ceiling for a terminal: tables and sentences of at most 100 columns. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from gpuhost_cli.ceiling_hardware import Input
from gpuhost_cli.ceiling_report import Ceiling
from gpuhost_cli.ceiling_sum import Efficiency

WIDTH = 100
GAP = "  "
LEAST = 20
"""Columns of a last cell that goes on below itself."""


def render(found: Ceiling) -> str:
    """The whole text."""
    blocks = [
        list(_head(found)),
        [_weights_head(found), *_table(*_weights(found))],
        ["One step of one stream", *_table(*_terms(found)), *_sums(found)],
        [f"Batches, at a context of {found.context} tokens", *_table(*_batches(found))],
        list(_efficiency(found.efficiency)) if found.efficiency else [],
        ["Where the machine's numbers come from", *_table(*_inputs(found.inputs))],
        ["Taken for granted (and the option that sets it)", *_assumptions(found)],
        ["How to read it", *_bullets(found.readings)],
        ["Notes", *_bullets(found.notes)] if found.notes else [],
    ]
    return "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks if block) + "\n"


def _head(found: Ceiling) -> Iterator[str]:
    shape = found.shape
    experts = f", {shape.experts_used} of {shape.experts} experts" if shape.experts else ""
    yield (
        f"{shape.title}: {shape.parameters / 1e9:.1f} B parameters, {shape.active / 1e9:.2f} B active, "
        f"{shape.layers} layers{experts}"
    )
    yield from textwrap.wrap(f"{found.machine}; tp {found.tp}, ep {found.ep}, pp {found.pp}; mode {found.mode}", WIDTH)
    yield from textwrap.wrap(f"model from: {shape.source}", WIDTH)
    yield (
        f"Ceiling for one stream: {found.tok_s:.1f} tok/s as a sum ({found.sum_s * 1e3:.2f} ms a token), "
        f"{1 / found.overlap_s:.0f} tok/s with full overlap"
    )


Rows = tuple[Sequence[str], list[Sequence[str]], str]
"""Heads, rows, and for each column < or > (how it is set)."""


def _table(heads: Sequence[str], rows: list[Sequence[str]], set_: str) -> Iterator[str]:
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    for row in [heads, *rows]:
        cells = [
            cell.rjust(width) if side == ">" else cell.ljust(width)
            for cell, width, side in zip(row, widths, set_, strict=True)
        ]
        line = "  " + GAP.join(cells).rstrip()
        if len(line) <= WIDTH or set_.endswith(">"):  # a number is never broken
            yield line
            continue
        indent = 2 + sum(widths[:-1]) + len(GAP) * (len(widths) - 1)  # a long last cell goes on below itself
        first, *rest = textwrap.wrap(row[-1], max(LEAST, WIDTH - indent))
        yield line[:indent] + first
        yield from (" " * indent + each for each in rest)


def _weights_head(found: Ceiling) -> str:
    """Held is one GPU's; read is that of all stages, as their times add up."""
    stages = f" (GB read: of one GPU of each of the {found.pp} stages together)" if found.pp > 1 else ""
    return f"Weights, for one token, on one GPU{stages}"


def _weights(found: Ceiling) -> Rows:
    rows: list[Sequence[str]] = [
        (
            part.title,
            f"{part.parameters / 1e9:.3f}",
            f"{part.active / 1e9:.3f}",
            part.format,
            f"{part.bytes_per_weight:.4f}",
            part.place,
            f"{part.held_bytes / 1e9 / found.pp:.3f}",
            f"{part.token_bytes / 1e9:.3f}",
        )
        for part in found.parts
    ]
    whole, shape = found.traffic, found.shape
    rows.append(
        ("sum", f"{shape.parameters / 1e9:.3f}", f"{shape.active / 1e9:.3f}", "", "", "",
         f"{whole.held_bytes / 1e9:.3f}", f"{whole.token_bytes / 1e9:.3f}")
    )  # fmt: skip
    return ("component", "B", "active B", "as", "B/weight", "a rank has", "GB held", "GB read"), rows, "<>><><>>"


def _terms(found: Ceiling) -> Rows:
    rows: list[Sequence[str]] = []
    for term in found.terms:
        share = f"{term.counted / found.sum_s:.1%}"
        rows.append((term.title, term.resource, f"{term.seconds * 1e3:.4f}", share, term.how))
    return ("term", "keeps busy", "ms", "of the sum", "how"), rows, "<<>><"


def _sums(found: Ceiling) -> Iterator[str]:
    traffic = found.traffic
    yield ""
    yield f"  sum      {found.sum_s * 1e3:7.3f} ms  {_rate(found.tok_s):>7} tok/s  one term after the other"
    most = 1 / found.overlap_s
    yield f"  overlap  {found.overlap_s * 1e3:7.3f} ms  {_rate(most):>7} tok/s  the busiest resource alone"
    yield ""
    if traffic.allreduces:
        sums = f"{traffic.allreduces} of {traffic.allreduce_bytes} B, {traffic.payload_bytes / 1e6:.3f} MB"
        yield from _bullets([f"all-reduces: {sums}; {traffic.wire_bytes / 1e6:.3f} MB from each GPU ({found.link})"])
    index = f" + {traffic.index_token_bytes:,.0f} B of indexer keys" if traffic.index_token_bytes else ""
    yield from _bullets([f"KV cache: {traffic.kv_token_bytes:,.0f} B a token{index}, {traffic.kv_place}"])


def _batches(found: Ceiling) -> Rows:
    moe = bool(found.shape.experts)
    heads = ["batch", "GB weights", "GB KV", "ms", "tok/s", "a stream", "overlap"]
    if moe:
        heads = ["batch", "experts hit", *heads[1:], "weights of 1*"]
    rows: list[Sequence[str]] = []
    for step in found.steps:
        row = [
            str(step.batch), f"{step.weight_bytes / 1e9:.2f}", f"{step.kv_bytes / 1e9:.2f}",
            f"{step.seconds * 1e3:.2f}", _rate(step.tok_s), _rate(step.stream_tok_s), _rate(step.overlap_tok_s),
        ]  # fmt: skip
        if moe:
            row = [row[0], f"{step.experts_hit:.1f}", *row[1:], _rate(step.held_tok_s)]
        rows.append(row)
    return heads, rows, ">" * len(heads)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10_000 else f"{value:,.1f}"


def _efficiency(measured: Efficiency) -> Iterator[str]:
    streams = "1 stream" if measured.concurrency == 1 else f"{measured.concurrency} streams"
    yield f"Measured: {measured.measured_tok_s:g} tok/s with {streams}"
    yield f"  {measured.share:.2%} of the ceiling at that concurrency ({_rate(measured.ceiling_tok_s)} tok/s as a sum)"
    share = measured.measured_tok_s / measured.overlap_tok_s
    yield f"  {share:.2%} of it with full overlap ({_rate(measured.overlap_tok_s)} tok/s)"
    yield (f"  {measured.ms_per_token:.1f} ms per output token of a stream; this is not the time to the first token")
    if measured.share > 1:
        yield "  ABOVE the ceiling: one of the inputs is wrong (rates, precision, speculation, or the measured rate)"


def _inputs(inputs: Sequence[Input]) -> Rows:
    rows: list[Sequence[str]] = [
        (item.name, f"{item.value:,.6g} {item.unit}".strip(), item.source, item.why) for item in inputs
    ]
    return ("", "value", "source", "why, or from where"), rows, "<><<"


def _assumptions(found: Ceiling) -> Iterator[str]:
    texts = [item.text + (f" [{item.option}]" if item.option else "") for item in found.assumptions]
    yield from _bullets(texts)


def _bullets(texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        yield from textwrap.wrap(
            text, WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
        )
