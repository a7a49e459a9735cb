"""One decode step as a sum of terms, and what follows from it: tokens/s by batch, efficiency. Pure.

Everything is one rank's work: all ranks do the same at the same time, so nothing is multiplied by their number again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from gpuhost_cli.ceiling_formats import VALUE_BYTES
from gpuhost_cli.ceiling_hardware import Hardware, at_size
from gpuhost_cli.ceiling_model import Model
from gpuhost_cli.ceiling_parallel import Layout, cache_share
from gpuhost_cli.ceiling_parts import Load, Part, routed_share

Resource = Literal["memory", "latency", "link", "arithmetic"]
"""What a term keeps busy. If all of them worked at the same time, the busiest would be the step."""

ACTIVATION_BYTES = 2
"""Hidden states travel as BF16."""

PER_LAYER = 2
"""All-reduces: after attention, and after the MLP or the experts; in dense layers too."""

CAST_BYTES = 3
"""Of a value of an FP8 pool that is cast to BF16: one read, two written."""

BATCHES = (*(1 << power for power in range(4)), 10, *(1 << power for power in range(4, 11)))
"""Powers of two, and what serve-check asks for."""


@dataclass(frozen=True)
class Case:
    """A model on a machine. ``context``: tokens in the cache of each stream; ``pool_tokens``: tokens of a KV pool that
    is cast to BF16 in each step; ``index_bytes``: of an indexer's key; ``extra_allreduces``: beside two a layer."""

    model: Model
    layout: Layout
    hardware: Hardware
    parts: tuple[Part, ...]
    context: int
    kv_format: str
    index_bytes: float
    pool_tokens: int
    extra_allreduces: int
    expert_load: Load

    @property
    def allreduces(self) -> int:
        """All-reduces of a step."""
        return PER_LAYER * self.model.layers + self.extra_allreduces if self.layout.tp > 1 else 0

    @property
    def payload_bytes(self) -> int:
        """What one all-reduce sums up for one token."""
        return self.model.hidden * ACTIVATION_BYTES

    @property
    def wire_bytes(self) -> float:
        """What each GPU sends for one token in a step: a ring moves 2(n-1)/n of what is summed up."""
        ranks = self.layout.tp
        return self.allreduces * self.payload_bytes * 2 * (ranks - 1) / ranks

    @property
    def kv_token_bytes(self) -> float:
        """What one token takes in the cache, in all layers, for the whole model (without an indexer's keys)."""
        return self.model.cache.values * self.model.cache.layers * VALUE_BYTES[self.kv_format]

    @property
    def index_token_bytes(self) -> float:
        """What one token takes in the indexer's cache, in all its layers."""
        return self.index_bytes * self.model.cache.index_layers

    @property
    def kv_stream_bytes(self) -> float:
        """What a step reads of one stream's cache on one rank. Sparse attention reads its top tokens only, but the
        indexer looks at the keys of all of them."""
        cache = self.model.cache
        tokens = min(self.context, cache.top) if cache.top else self.context
        share = cache_share(self.model, self.layout).share
        return tokens * self.kv_token_bytes * share + self.context * self.index_token_bytes

    def cache_bytes(self, streams: float) -> float:
        """What the cache of so many streams takes on one GPU, on average over the pipeline's stages."""
        share = cache_share(self.model, self.layout).share
        return streams * self.context * (self.kv_token_bytes * share + self.index_token_bytes) / self.layout.pp

    @property
    def cast_bytes(self) -> float:
        """What casting the pool moves on one rank: it follows the pool's size, whatever the context."""
        cache = self.model.cache
        return self.pool_tokens * cache.values * cache.layers * CAST_BYTES * cache_share(self.model, self.layout).share

    @property
    def token_bytes(self) -> float:
        """Weights that one rank reads for one token."""
        return self.weight_bytes(1)

    @property
    def held_bytes(self) -> float:
        """Weights in one GPU's memory, on average over the pipeline's stages."""
        return sum(part.held_bytes for part in self.parts) / self.layout.pp

    def weight_bytes(self, tokens: float) -> float:
        """Weights that one rank reads for a step of so many tokens: more tokens hit more experts."""
        share, _ = routed_share(self.model.experts, self.layout, tokens, self.expert_load)
        return sum(part.read_bytes(share) for part in self.parts)

    def flops_seconds(self, tokens: float) -> float:
        """Multiplying alone, each format at its own rate."""
        return sum(part.flops * tokens / (self.hardware.peak(part.peak).value * 1e12) for part in self.parts)


@dataclass(frozen=True)
class Term:
    """One part of a step's time. ``counted`` is what it adds to the sum: of arithmetic only what is longer than the
    reading of the weights, which goes on in the same kernels."""

    key: str
    title: str
    resource: Resource
    seconds: float
    counted: float
    how: str


def terms(case: Case, tokens: float = 1, *, weights_of: float | None = None) -> tuple[Term, ...]:
    """The terms of a step with so many streams. ``weights_of``: read the weights of a step of this many instead.

    This is what a picture of the step is made of.
    """
    machine, rate = case.hardware, case.hardware.bytes_s
    weights = case.weight_bytes(tokens if weights_of is None else weights_of)
    found = [_term("weights", "read the weights", "memory", weights / rate, f"{_gb(weights)} / {_rate(rate)}")]
    kv, cast = tokens * case.kv_stream_bytes, case.cast_bytes
    if kv:
        how = f"{tokens:g} x {_gb(case.kv_stream_bytes)} at {case.context} tokens"
        found.append(_term("kv", "read the KV cache", "memory", kv / rate, how))
    if cast:
        how = f"{case.pool_tokens} tokens of the pool, {CAST_BYTES} B a value: {_gb(cast)}"
        found.append(_term("cast", "cast the KV pool to BF16", "memory", cast / rate, how))
    if case.allreduces:
        latency, transfer = reduce_seconds(case, tokens)
        count = case.allreduces
        how = f"{count} x {latency / count * 1e6:.1f} us"
        found.append(_term("allreduce", "all-reduces: latency", "latency", latency, how))
        sent = case.wire_bytes * tokens
        how = f"{sent / 1e6:.3f} MB / {machine.link_gb_s.value:g} GB/s"
        if machine.curve or machine.transfer == "included":
            how = "in their latency" if not transfer else f"beyond what their latency includes; {how}"
        found.append(_term("transfer", "all-reduces: transfer", "link", transfer, how))
    handed = (case.layout.pp - 1) * case.payload_bytes * tokens
    if handed:
        how = f"{case.layout.pp - 1} x {case.payload_bytes * tokens / 1e3:.1f} kB; their latency is not counted"
        found.append(_term("stages", "from stage to stage", "link", handed / (machine.link_gb_s.value * 1e9), how))
    flops = case.flops_seconds(tokens)
    beyond = max(0.0, flops - found[0].seconds)
    how = "beyond the reading of the weights" if beyond else "within the reading of the weights: adds nothing"
    found.append(Term("arithmetic", "multiply", "arithmetic", flops, beyond, how))
    return tuple(found)


def _term(key: str, title: str, resource: Resource, seconds: float, how: str) -> Term:
    return Term(key, title, resource, seconds, seconds, how)


def _gb(count: float) -> str:
    return f"{count / 1e9:.4g} GB" if count >= 1e8 else f"{count / 1e6:.4g} MB"


def _rate(bytes_s: float) -> str:
    return f"{bytes_s / 1e9:.6g} GB/s"


def reduce_seconds(case: Case, tokens: float) -> tuple[float, float]:
    """Latency and transfer of a step's all-reduces. A measured time has the transfer of its size in it."""
    machine, count = case.hardware, case.allreduces
    per_token = case.wire_bytes / (machine.link_gb_s.value * 1e9)
    if machine.curve:
        size = tokens * case.payload_bytes
        beyond = max(0.0, size - machine.curve[-1][0]) / case.payload_bytes
        return count * at_size(machine.curve, size) / 1e6, beyond * per_token
    extra = tokens - 1 if machine.transfer == "included" else tokens
    return count * machine.allreduce_us.value / 1e6, extra * per_token


def total(found: tuple[Term, ...]) -> float:
    """One after the other: the sum."""
    return sum(term.counted for term in found)


def overlapped(found: tuple[Term, ...]) -> float:
    """All at the same time: the busiest resource."""
    resources = {term.resource for term in found}
    return max(sum(term.seconds for term in found if term.resource == each) for each in resources)


@dataclass(frozen=True)
class Step:
    """A step with ``batch`` streams. Rates are of all streams together."""

    batch: int
    experts_hit: float
    weight_bytes: float
    kv_bytes: float
    seconds: float
    tok_s: float
    overlap_tok_s: float
    held_tok_s: float
    """The rate if a step read no more weights than one token does: too high wherever there are experts."""

    @property
    def stream_tok_s(self) -> float:
        return self.tok_s / self.batch


def step(case: Case, batch: int) -> Step:
    """A step with so many streams. Over pipeline stages the streams are spread: each stage works on its share, and the
    one with the most layers sets the pace."""
    stages, layers = case.layout.pp, case.model.layers
    tokens = max(1.0, batch / stages)
    pace = math.ceil(layers / stages) * stages / layers if batch >= stages else 1.0
    found = terms(case, tokens)
    seconds = total(found) * pace
    _, hit = routed_share(case.model.experts, case.layout, tokens, case.expert_load)
    return Step(
        batch=batch,
        experts_hit=hit,
        weight_bytes=case.weight_bytes(tokens),
        kv_bytes=tokens * case.kv_stream_bytes,
        seconds=seconds,
        tok_s=batch / seconds,
        overlap_tok_s=batch / (overlapped(found) * pace),
        held_tok_s=batch / (total(terms(case, tokens, weights_of=1)) * pace),
    )


@dataclass(frozen=True)
class Efficiency:
    """A measured rate against the ceiling at the same number of streams."""

    measured_tok_s: float
    concurrency: int
    ceiling_tok_s: float
    overlap_tok_s: float
    held_tok_s: float

    @property
    def share(self) -> float:
        return self.measured_tok_s / self.ceiling_tok_s

    @property
    def ms_per_token(self) -> float:
        """Time per output token of one stream."""
        return 1e3 * self.concurrency / self.measured_tok_s


def efficiency(case: Case, measured_tok_s: float, concurrency: int) -> Efficiency:
    """What share of the ceiling a measured rate is."""
    at = step(case, concurrency)
    return Efficiency(measured_tok_s, concurrency, at.tok_s, at.overlap_tok_s, at.held_tok_s)
