"""How a model is cut over GPUs: which sizes are possible, what each rank holds. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from gpuhost_cli.ceiling_model import COMPONENTS, Matrix, Model
from gpuhost_cli.run import InputError

LARGEST = 1024
"""Sizes up to this are tried when possible ones are named."""

PADDED = 64
"""vLLM and SGLang fill the vocabulary up to a multiple of this before they cut it (DEFAULT_VOCAB_PADDING_SIZE): one
token more, as fine-tuned models have, is no hindrance."""


@dataclass(frozen=True)
class Layout:
    """``tp`` ranks share each layer, ``ep`` of them hold whole experts (1: every rank has a slice of each), and ``pp``
    stages have some layers each. ``replicate`` and ``shard``: components that are laid out otherwise than engines do.
    """

    tp: int
    ep: int = 1
    pp: int = 1
    replicate: frozenset[str] = frozenset()
    shard: frozenset[str] = frozenset()

    @property
    def gpus(self) -> int:
        return self.tp * self.pp


def reasons_against(model: Model, layout: Layout) -> Iterator[str]:
    """Why a model can't be cut like this."""
    tp = layout.tp
    if model.heads % tp:
        yield f"{model.heads} attention heads"
    if not model.latent and model.kv_heads % tp and tp % model.kv_heads:
        yield f"{model.kv_heads} key and value heads (nor is it a multiple of them)"
    for component, name in (("dense_mlp", "the dense MLP's"), ("shared_experts", "the shared experts'")):
        for width in _widths(model, component):
            if width % tp:
                yield f"{name} width {width}"
    if model.experts is not None and tp % layout.ep == 0 and model.experts.width % (tp // layout.ep):
        yield f"the experts' width {model.experts.width}"
    if math.ceil(model.vocabulary / PADDED) * PADDED % tp:
        yield f"the vocabulary of {model.vocabulary}"


def _widths(model: Model, component: str) -> set[int]:
    return {item.rows for item in model.matrices if item.component == component and item.module.endswith("gate_proj")}


def possible(model: Model, ep: int = 1) -> list[int]:
    """Sizes of tensor parallelism that work."""
    sizes = range(ep, LARGEST + 1, ep)
    return [tp for tp in sizes if not any(reasons_against(model, Layout(tp, ep)))]


def check(model: Model, layout: Layout) -> None:
    """Raise InputError for a layout that no engine can do, with the sizes that it can."""
    if layout.ep > 1 and model.experts is None:
        raise InputError(f"--ep {layout.ep}: {model.title} has no experts")
    if layout.tp % layout.ep:
        raise InputError(f"--ep {layout.ep}: does not divide the {layout.tp} ranks of --tp: the experts are on those")
    if model.experts is not None and model.experts.total % layout.ep:
        fits = [size for size in range(1, layout.tp + 1) if not (model.experts.total % size or layout.tp % size)]
        raise InputError(
            f"--ep {layout.ep}: {model.experts.total} experts can't be shared out evenly; possible: {_list(fits)}"
        )
    against = list(reasons_against(model, layout))
    if against:
        raise InputError(
            f"--tp {layout.tp}: does not divide {', nor '.join(against)}; possible for {model.title}: "
            f"{_list(possible(model, layout.ep))}"
        )
    if layout.pp > model.layers:
        raise InputError(f"--pp {layout.pp}: {model.title} has {model.layers} layers, and a stage needs one")


def _list(sizes: list[int]) -> str:
    return ", ".join(str(size) for size in sizes) or "none"


@dataclass(frozen=True)
class Place:
    """What one rank has of a matrix: a share, and the words for it."""

    share: float
    words: str


def place_of(matrix: Matrix, model: Model, layout: Layout) -> Place:
    """Where a matrix lies. Replicated is what engines replicate: low-rank parts of MLA, indexer, router."""
    tp = layout.tp
    if tp == 1:
        return Place(1, "whole")
    if matrix.component in layout.replicate:
        return Place(1, "replicated")
    if matrix.component in layout.shard or "all" in layout.shard:
        return Place(1 / tp, f"1/{tp}")
    if matrix.split == "none":
        return Place(1, "replicated")
    if matrix.split == "kv_heads" and tp > model.kv_heads:
        return Place(1 / model.kv_heads, f"1/{model.kv_heads}, {tp // model.kv_heads} copies")
    if matrix.split == "expert_width" and layout.ep > 1:
        rest = tp // layout.ep
        return Place(1 / tp, f"1/{layout.ep} of experts" + (f", 1/{rest} wide" if rest > 1 else ""))
    return Place(1 / tp, f"1/{tp}")


def cache_share(model: Model, layout: Layout) -> Place:
    """What one rank holds of the KV cache: MLA's latent is for all heads, so every rank has all of it."""
    if layout.tp == 1:
        return Place(1, "all of it on the GPU")
    if model.latent:
        return Place(1, "all of it on every rank (MLA has one latent for all heads)")
    if layout.tp > model.kv_heads:
        copies = layout.tp // model.kv_heads
        return Place(1 / model.kv_heads, f"1/{model.kv_heads} on each rank (each head on {copies} ranks)")
    return Place(1 / layout.tp, f"1/{layout.tp} on each rank (by heads)")


def notes(model: Model, layout: Layout, gpus: int) -> list[str]:
    """What the reader must know of this layout."""
    found = []
    if not model.latent and layout.tp > model.kv_heads:
        copies = layout.tp // model.kv_heads
        found.append(
            f"tp {layout.tp} is more than the {model.kv_heads} key and value heads: each is on {copies} ranks, with "
            "its cache: more ranks make keys and values no faster"
        )
    if layout.gpus < gpus:
        found.append(f"{layout.gpus} of {gpus} GPUs are used: the figures are for one replica")
    strange = (layout.replicate | layout.shard) - {"all"}
    if strange:
        found.append(f"laid out otherwise than engines do: {', '.join(COMPONENTS[name] for name in sorted(strange))}")
    return found


# --- expert parallelism: the step waits for the rank with the most experts to read


@lru_cache(maxsize=8)
def _ways(each: int, ranks: int) -> list[list[int]]:
    """For every limit m, and number d: how many ways there are to choose d experts of ``ranks`` ranks with ``each``
    experts, such that no rank has more than m of them."""
    table = []
    for limit in range(each + 1):
        one = [math.comb(each, count) for count in range(limit + 1)]
        whole, power, left = [1], one, ranks
        while left:
            if left & 1:
                whole = _product(whole, power)
            left >>= 1
            power = _product(power, power) if left else power
        table.append(whole)
    return table


def _product(left: list[int], right: list[int]) -> list[int]:
    found = [0] * (len(left) + len(right) - 1)
    for i, one in enumerate(left):
        for j, other in enumerate(right):
            found[i + j] += one * other
    return found


def _fullest(total: int, ranks: int, chosen: int) -> float:
    table, ways = _ways(total // ranks, ranks), math.comb(total, chosen)
    at_most = [row[chosen] / ways if chosen < len(row) else 0.0 for row in table]
    return sum(1 - share for share in at_most)


def fullest_rank(total: int, ranks: int, chosen: float) -> float:
    """Experts that the fullest rank reads, on average, where a step reads ``chosen`` of ``total``, any as likely.

    8 of 256 over 8 ranks: one each if they were spread evenly; but the fullest has 2.56 on average.

    >>> round(fullest_rank(256, 8, 8), 2), fullest_rank(256, 8, 256), fullest_rank(256, 1, 8)
    (2.56, 32.0, 8.0)
    """
    low = min(math.floor(chosen), total)
    high = min(low + 1, total)
    at_low = _fullest(total, ranks, low)
    return at_low + (chosen - low) * (_fullest(total, ranks, high) - at_low) if high > low else at_low
