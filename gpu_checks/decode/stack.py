"""A model's whole decode step on one rank, with random weights in BF16: its tensors, its places, what it needs.

Weights are normal with a deviation of 1/sqrt(inputs), so that values keep their size through all layers. Every layer
has weights and a cache of its own, at their own addresses, as in a server.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gpu_checks.decode.attention import Attend, angles, grouped, latent, linear, norm
from gpu_checks.decode.mlp import dense, sparse
from gpu_checks.decode.models import Model
from gpu_checks.decode.part import Part, Place, Stack, Tensors, Values

ELEMENT = 2
"""Bytes of BF16."""

LEAST_LAYERS = 2
"""Fewer can't be scaled up: with two, what a layer takes is a difference of two steps."""

DENSE, SPARSE = "dense", "sparse"
"""Kinds of layers; a place outside of layers has none."""


@dataclass(frozen=True)
class Order:
    """What to build: the rank's shapes, sequences decoded together, and tokens in the cache of each."""

    model: Model
    batch: int
    context: int
    dense: int
    sparse: int

    @property
    def layers(self) -> int:
        """How many are built, which may be fewer than the model has."""
        return self.dense + self.sparse


def shapes_of_attention(model: Model) -> dict[str, tuple[int, ...]]:
    """Weights of a layer's attention, as they are stored: output x input."""
    form, hidden = model.latent, model.hidden
    if form is None:
        outer = model.heads * model.head
        found: dict[str, tuple[int, ...]] = {"qkv": (outer + 2 * model.kv_heads * model.head, hidden)}
        return {**found, "o": (hidden, outer)}
    found = {
        "qkv_a": (form.query + form.turned + form.kv, hidden),
        "q_b": (model.heads * (form.plain + form.turned), form.query or hidden),
        "k_up": (model.heads, form.plain, form.kv),
        "v_up": (model.heads, form.kv, form.value),
        "o": (hidden, model.heads * form.value),
    }
    if form.top:
        found["index_q"] = (form.index_heads * form.index_width, form.query or hidden)
        found["index_k"] = (form.index_width, hidden)
        found["index_weights"] = (form.index_heads, hidden)
    return found


def shapes_of_mlp(model: Model, is_sparse: bool) -> dict[str, tuple[int, ...]]:
    """Weights of a layer behind attention; gate and up are one matrix."""
    hidden = model.hidden
    if not is_sparse:
        return {"mlp_up": (2 * model.dense_width, hidden), "mlp_down": (hidden, model.dense_width)}
    found: dict[str, tuple[int, ...]] = {
        "router": (model.experts, hidden),
        "expert_up": (model.experts, 2 * model.expert_width, hidden),
        "expert_down": (model.experts, hidden, model.expert_width),
    }
    if model.shared_width:
        found["shared_up"] = (2 * model.shared_width, hidden)
        found["shared_down"] = (hidden, model.shared_width)
    return found


def cache_shapes(model: Model, batch: int, context: int) -> dict[str, tuple[int, ...]]:
    """A layer's cache, of BF16."""
    form = model.latent
    if form is None:
        one = (batch, model.kv_heads, context, model.head)
        return {"key_cache": one, "value_cache": one}
    found: dict[str, tuple[int, ...]] = {"latent_cache": (batch, context, form.turned + form.kv)}
    return {**found, "index_cache": (batch, context, form.index_width)} if form.top else found


def layer_bytes(model: Model, is_sparse: bool, batch: int, context: int) -> int:
    """What a layer needs: weights and cache.

    >>> from gpu_checks.decode.models import load
    >>> layer_bytes(load("qwen3-30b-a3b"), True, 1, 4096)
    1254621184
    """
    shapes = {**shapes_of_attention(model), **shapes_of_mlp(model, is_sparse), **cache_shapes(model, batch, context)}
    return ELEMENT * sum(math.prod(shape) for shape in shapes.values())


def head_bytes(model: Model) -> int:
    """Embedding and lm_head."""
    return 2 * ELEMENT * model.vocabulary * model.hidden


def scratch_bytes(model: Model, batch: int, grouped: bool) -> int:
    """What a step needs beside weights and caches: the rows' own copies of experts where they are not ``grouped``.

    And of each token all logits in BF16, and shares and draws in float32.

    >>> from gpu_checks.decode.models import load
    >>> scratch_bytes(load("qwen3-30b-a3b"), 64, True), scratch_bytes(load("qwen3-30b-a3b"), 64, False)
    (97239040, 3318464512)
    """
    copies = 0 if grouped else batch * model.used * 2 * model.expert_width * model.hidden * ELEMENT
    return copies + batch * model.vocabulary * (ELEMENT + 4 + 4)


def fitting(model: Model, batch: int, context: int, room: int) -> Order | None:
    """As many layers as there is room for. Of the rarer kind all are kept, as they can't be scaled; None: no room."""
    of_dense, of_sparse = (layer_bytes(model, kind, batch, context) if count else 0
                           for kind, count in ((False, model.dense), (True, model.sparse)))  # fmt: skip
    room -= head_bytes(model)
    if model.sparse >= model.dense:
        room -= model.dense * of_dense
        layers = min(model.sparse, room // of_sparse)
        order = Order(model, batch, context, model.dense, layers)
    else:
        room -= model.sparse * of_sparse
        layers = min(model.dense, room // of_dense)
        order = Order(model, batch, context, layers, model.sparse)
    whole = model.layers if layers >= LEAST_LAYERS or layers == max(model.dense, model.sparse) else 0
    return order if whole and layers > 0 else None


def counts(stack: Stack, order: Order) -> dict[str, float]:
    """How many places each part has in the whole model, of which the stack may have fewer layers."""
    model = order.model
    factors = {
        "": 1.0,
        DENSE: model.dense / order.dense if order.dense else 1.0,
        SPARSE: model.sparse / order.sparse if order.sparse else 1.0,
    }
    found: dict[str, float] = {}
    for place in stack.places:
        found[place.part.name] = found.get(place.part.name, 0.0) + factors[place.kind]
    return {name: round(count, 6) for name, count in found.items()}


def fewer(stack: Stack, order: Order) -> tuple[Stack, int]:
    """The step without half of its layers of the commoner kind, and how many that are: for what one of them takes."""
    kind = SPARSE if order.model.sparse >= order.model.dense else DENSE
    layers = sorted({place.layer for place in stack.places if place.kind == kind})
    gone = set(layers[len(layers) - len(layers) // 2 :])
    return Stack([place for place in stack.places if place.layer not in gone], stack.start), len(gone)


@dataclass(frozen=True)
class Maker:
    """Makes tensors on a device: random ones, always the same."""

    torch: Any
    device: str
    generator: Any

    def weights(self, shape: tuple[int, ...], inputs: int) -> Any:
        """Normal, with the deviation that keeps values in size for so many inputs."""
        made = self.torch.empty(shape, dtype=self.torch.bfloat16, device=self.device)
        return made.normal_(0, 1 / math.sqrt(inputs), generator=self.generator)

    def layer(self, shapes: dict[str, tuple[int, ...]]) -> Tensors:
        """All weights of these shapes. Of ``k_up`` and ``v_up`` the middle one is the input."""
        return {name: self.weights(shape, shape[1 if name in ("k_up", "v_up") else -1])
                for name, shape in shapes.items()}  # fmt: skip

    def cache(self, shapes: dict[str, tuple[int, ...]]) -> Tensors:
        """As if so many tokens had been there."""
        return {name: self.weights(shape, 1) for name, shape in shapes.items()}

    def ones(self, width: int) -> Any:
        """A norm's weights, near one."""
        return 1 + self.weights((width,), 100)


def build(maker: Maker, order: Order, attend: Attend | None, how: str, grouped_experts: bool) -> Stack:
    """The step. ``attend``, ``how``: the attention of models with heads of keys and values, and its name."""
    torch, model = maker.torch, order.model
    own_norm = norm(torch)
    places: list[Place] = [_embedding(maker, model)]
    attention = _attention_parts(torch, model, attend, how)
    kinds = {False: dense(torch), True: sparse(torch, model, grouped_experts)}
    numbers = torch.arange(max(1, model.experts), device=maker.device)
    for layer in range(order.layers):
        is_sparse = layer >= order.dense
        own = maker.layer({**shapes_of_attention(model), **shapes_of_mlp(model, is_sparse)})
        own.update(maker.cache(cache_shapes(model, order.batch, order.context)), numbers=numbers)
        own.update(_norms(maker, model))
        kind = SPARSE if is_sparse else DENSE
        for parts in (attention, kinds[is_sparse]):
            places.append(Place(own_norm, {"norm": maker.ones(model.hidden)}, kind, layer))
            places += [Place(part, own, kind, layer) for part in parts]
    places += [Place(own_norm, {"norm": maker.ones(model.hidden)}), *_head(maker, model)]
    cos, sin = angles(torch, model.turned, order.context - 1, maker.device)
    tokens = torch.arange(order.batch, device=maker.device) * (model.vocabulary // order.batch)
    residual = torch.zeros(order.batch, model.hidden, dtype=torch.bfloat16, device=maker.device)
    return Stack(places, {"cos": cos, "sin": sin, "tokens": tokens, "residual": residual})


def _norms(maker: Maker, model: Model) -> Tensors:
    form = model.latent
    if form is not None:
        low = {"q_norm": maker.ones(form.query)} if form.query else {}
        return {"kv_norm": maker.ones(form.kv), **low}
    return {"q_norm": maker.ones(model.head), "k_norm": maker.ones(model.head)} if model.norm_heads else {}


def _attention_parts(torch: Any, model: Model, attend: Attend | None, how: str) -> list[Part]:
    if model.latent is not None:
        return latent(torch, model, model.latent)
    if attend is None:
        raise ValueError("no attention is given")  # a defect of ours
    return grouped(torch, model, attend, how)


def _embedding(maker: Maker, model: Model) -> Place:
    torch = maker.torch

    def look_up(own: Tensors, values: Values) -> Tensors:
        return {"delta": torch.index_select(own["embedding"], 0, values["tokens"])}

    def rows(_part: Part, _own: Tensors, values: Values) -> int:
        return int(values["tokens"].numel()) * model.hidden * ELEMENT

    part = Part("embedding", "index_select of torch", ("embedding",), look_up, rows)
    return Place(part, {"embedding": maker.weights((model.vocabulary, model.hidden), 1)})


def _head(maker: Maker, model: Model) -> list[Place]:
    torch = maker.torch

    def sample(own: Tensors, values: Values) -> Tensors:
        # The largest share over an exponentially distributed number: a draw by these shares, as engines do it.
        shares = torch.softmax(values["logits"], -1, dtype=torch.float32)
        return {"next": torch.argmax(shares.div_(torch.empty_like(shares).exponential_()), -1)}

    return [
        Place(linear(torch, "lm_head", "lm_head", "x", "logits"),
              {"lm_head": maker.weights((model.vocabulary, model.hidden), model.hidden)}),
        Place(Part("sampling", "torch.softmax, exponential_, div, argmax", (), sample), {}),
    ]  # fmt: skip
