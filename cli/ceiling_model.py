"""A model as its matrices: what a decode step reads. Pure; ``ceiling_config`` makes it out of a config.json."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Split = Literal["heads", "kv_heads", "width", "expert_width", "vocabulary", "none"]
"""What tensor parallelism cuts a matrix along; none: every rank has all of it."""

COMPONENTS = {
    "attention": "attention",
    "attention_a": "attention q_a, kv_a",
    "indexer": "indexer",
    "dense_mlp": "dense MLP",
    "routed_experts": "routed experts",
    "shared_experts": "shared experts",
    "router": "router",
    "lm_head": "lm_head",
    "embedding": "embedding",
}
"""Components by the names that options take, in the order of the table."""

NEVER_READ = ("embedding",)
"""A token looks one row of it up: some KB."""

MATRICES = 3
"""Of a gated MLP: gate, up, down."""


@dataclass(frozen=True)
class Matrix:
    """One matrix of weights, the same in ``layers``. ``module`` has {layer} and {expert} in it where there are several.

    ``copies``: how many there are in a layer (experts); ``used``: how many of them one token uses.
    """

    component: str
    module: str
    rows: int
    columns: int
    layers: tuple[int, ...]
    split: Split = "none"
    copies: int = 1
    used: float = 1

    @property
    def one(self) -> int:
        """Weights of one copy in one layer."""
        return self.rows * self.columns

    @property
    def parameters(self) -> int:
        return self.one * self.copies * len(self.layers)

    @property
    def active(self) -> float:
        """Weights that one token uses."""
        return self.one * self.used * len(self.layers)


@dataclass(frozen=True)
class Experts:
    """The routed experts of a model."""

    total: int
    used: int
    width: int
    layers: int


@dataclass(frozen=True)
class Cache:
    """What a token leaves in the KV cache in each layer.

    ``values``: of keys and values, or of MLA's latent. ``heads``: over how many heads it can be split (1: each rank has
    all of it). ``index_values``: width of a sparse indexer's key; ``top``: so many tokens its attention reads at most.
    """

    values: int
    layers: int
    heads: int = 1
    index_values: int = 0
    index_layers: int = 0
    top: int = 0


@dataclass(frozen=True)
class Model:
    """All that the arithmetic needs of a model."""

    title: str
    architecture: str
    hidden: int
    layers: int
    dense_layers: int
    vocabulary: int
    heads: int
    kv_heads: int
    dense_width: int
    dtype: str
    matrices: tuple[Matrix, ...]
    cache: Cache
    experts: Experts | None
    latent: bool
    """Multi-head latent attention: the cache is one vector for all heads."""
    vectors: int
    """Weights of norms, which are not counted elsewhere."""
    mtp_layers: int
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """All weights but norms, biases and layers for speculation."""
        return sum(item.parameters for item in self.matrices)

    @property
    def active(self) -> float:
        """Weights that one token uses; of the embedding that is one row, which is not counted."""
        return active(self.matrices)

    @property
    def mtp_parameters(self) -> int:
        """Weights of the layers for speculation: each as the last layer, and a matrix that joins two hidden states."""
        last = sum(item.one * item.copies for item in self.matrices if self.layers - 1 in item.layers)
        return self.mtp_layers * (last + 2 * self.hidden * self.hidden)


def active(matrices: Iterable[Matrix]) -> float:
    """Weights that one token uses."""
    return sum(item.active for item in matrices)


def distinct_experts(experts: Experts, tokens: float) -> float:
    """Experts of a layer that a step with so many tokens reads, where each token chooses evenly and by itself.

    >>> glm = Experts(total=256, used=8, width=2048, layers=75)
    >>> [round(distinct_experts(glm, tokens), 1) for tokens in (1, 10, 256)]
    [8.0, 69.6, 255.9]
    """
    if experts.used >= experts.total:
        return float(experts.total)
    return experts.total * (1 - (1 - experts.used / experts.total) ** tokens)
