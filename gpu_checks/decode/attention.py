"""The parts of a decode step's attention: with heads of keys and values (GQA), and latent (MLA). Calls of torch alone.

``torch`` is handed in. Weights are stored as a linear layer has them, output x input. Values: ``x`` is the input,
normalised, tokens x hidden; ``delta`` is what is added to the residual next.
"""

from __future__ import annotations

import math
from typing import Any, Callable

from gpu_checks.decode.models import Latent, Model
from gpu_checks.decode.part import Part, Tensors, Values

MM, BMM = "mm of torch", "bmm of torch"
RMS_NORM = "torch.nn.functional.rms_norm"
ROPE = "torch.cat, mul, addcmul"
EPSILON = 1e-6


def linear(torch: Any, name: str, weight: str, source: str, target: str) -> Part:
    """A matrix product with weights of their own: values[target] = values[source] x weight^T."""

    def run(own: Tensors, values: Values) -> Tensors:
        return {target: torch.mm(values[source], own[weight].t())}

    return Part(name, MM, (weight,), run, source=source, target=target)


def norm(torch: Any) -> Part:
    """The residual's sum, then RMSNorm of it."""
    rms_norm = torch.nn.functional.rms_norm

    def run(own: Tensors, values: Values) -> Tensors:
        residual = torch.add(values["residual"], values["delta"])
        return {"residual": residual, "x": rms_norm(residual, (residual.shape[-1],), own["norm"], EPSILON)}

    return Part("rms_norm", f"torch.add, {RMS_NORM}", ("norm",), run)


def turn(torch: Any, whole: Any, cos: Any, sin: Any) -> Any:
    """RoPE on the first elements of each head (tokens x heads x width); what is behind them stays."""
    half = cos.shape[-1]
    out = torch.empty_like(whole)
    low, high = whole[..., :half], whole[..., half : 2 * half]
    torch.mul(low, cos, out=out[..., :half]).addcmul_(high, sin, value=-1)
    torch.mul(high, cos, out=out[..., half : 2 * half]).addcmul_(low, sin)
    if 2 * half < whole.shape[-1]:
        out[..., 2 * half :].copy_(whole[..., 2 * half :])
    return out


def angles(torch: Any, width: int, position: int, device: str) -> tuple[Any, Any]:
    """Cosine and sine of a position for so many turned elements, BF16, for all tokens and heads alike."""
    half = width // 2
    turns = position / torch.pow(1e4, torch.arange(half, dtype=torch.float64, device=device) / half)
    return torch.cos(turns).to(torch.bfloat16), torch.sin(turns).to(torch.bfloat16)


# Heads of keys and values. ----------------------------------------------------------------------------------------

Attend = Callable[[Any, Any, Any], Any]
"""Queries (tokens x heads x 1 x width), keys and values (tokens x kv heads x context x width) to the result."""


def grouped(torch: Any, model: Model, attend: Attend, how: str) -> list[Part]:
    """All parts of attention with heads of keys and values, in order."""
    rms_norm = torch.nn.functional.rms_norm
    heads, kv, width = model.heads, model.kv_heads, model.head

    def norm_heads(own: Tensors, values: Values) -> Tensors:
        qkv = values["qkv"].view(-1, heads + 2 * kv, width)
        queries = rms_norm(qkv[:, :heads], (width,), own["q_norm"], EPSILON)
        keys = rms_norm(qkv[:, heads : heads + kv], (width,), own["k_norm"], EPSILON)
        return {"queries": queries, "keys": keys}

    def rope(own: Tensors, values: Values) -> Tensors:
        if model.norm_heads:
            both = torch.cat((values["queries"], values["keys"]), 1)
        else:
            both = values["qkv"].view(-1, heads + 2 * kv, width)[:, : heads + kv]
        both = turn(torch, both, values["cos"], values["sin"])
        return {"queries": both[:, :heads], "keys": both[:, heads:]}

    def write(own: Tensors, values: Values) -> Tensors:
        new = values["qkv"].view(-1, heads + 2 * kv, width)[:, heads + kv :]
        own["key_cache"][:, :, -1].copy_(values["keys"])
        own["value_cache"][:, :, -1].copy_(new)
        return {}

    def attention(own: Tensors, values: Values) -> Tensors:
        queries = values["queries"].unsqueeze(2)
        return {"attended": attend(queries, own["key_cache"], own["value_cache"]).reshape(-1, heads * width)}

    parts = [linear(torch, "qkv", "qkv", "x", "qkv")]
    if model.norm_heads:
        parts.append(Part("qk_norm", RMS_NORM, ("q_norm", "k_norm"), norm_heads))
    return [
        *parts,
        Part("rope", ROPE, (), rope),
        Part("kv_write", "Tensor.copy_", (), write),
        Part("attention", how, ("key_cache", "value_cache"), attention),
        linear(torch, "o", "o", "attended", "delta"),
    ]


# Latent. ----------------------------------------------------------------------------------------------------------


def latent(torch: Any, model: Model, form: Latent) -> list[Part]:
    """All parts of multi-head latent attention, in order, with the projections of keys and values absorbed.

    Of queries and cache the turned elements come first, so that RoPE has them together.
    """
    rms_norm, heads = torch.nn.functional.rms_norm, model.heads
    wide = form.turned + form.plain
    scale = 1 / math.sqrt(wide)
    low = form.query > 0

    def norms(own: Tensors, values: Values) -> Tensors:
        together = values["qkv_a"]
        kv = together[:, form.query + form.turned :]
        found = {"latent": rms_norm(kv, (form.kv,), own["kv_norm"], EPSILON)}
        if low:
            found["low"] = rms_norm(together[:, : form.query], (form.query,), own["q_norm"], EPSILON)
        return found

    def absorb_keys(own: Tensors, values: Values) -> Tensors:
        plain = values["wide_queries"].view(-1, heads, wide)[..., form.turned :].transpose(0, 1)
        return {"absorbed": torch.bmm(plain, own["k_up"])}  # heads x tokens x latent

    def rope(own: Tensors, values: Values) -> Tensors:
        queries = values["wide_queries"].view(-1, heads, wide)[..., : form.turned]
        key = values["qkv_a"][:, form.query : form.query + form.turned].unsqueeze(1)
        return {"turned": turn(torch, torch.cat((queries, key), 1), values["cos"], values["sin"])}

    def write(own: Tensors, values: Values) -> Tensors:
        own["latent_cache"][:, -1, : form.turned].copy_(values["turned"][:, heads])
        own["latent_cache"][:, -1, form.turned :].copy_(values["latent"])
        return {}

    def attention(own: Tensors, values: Values) -> Tensors:
        cache = own["latent_cache"]
        if form.top:
            place = values["chosen"].unsqueeze(-1).expand(-1, -1, cache.shape[-1])
            cache = torch.gather(cache, 1, place)
        queries = torch.cat((values["turned"][:, :heads], values["absorbed"].transpose(0, 1)), 2)
        shares = torch.softmax(torch.bmm(queries, cache.transpose(1, 2)) * scale, -1, dtype=torch.float32)
        return {"mixed": torch.bmm(shares.to(cache.dtype), cache[..., form.turned :])}  # tokens x heads x latent

    def absorb_values(own: Tensors, values: Values) -> Tensors:
        found = torch.bmm(values["mixed"].transpose(0, 1), own["v_up"])
        return {"attended": found.transpose(0, 1).reshape(-1, heads * form.value)}

    gather = "torch.gather of the chosen rows, " if form.top else ""
    return [
        linear(torch, "qkv_a", "qkv_a", "x", "qkv_a"),
        Part("latent_norm", RMS_NORM, ("kv_norm", *(("q_norm",) if low else ())), norms),
        linear(torch, "q_b", "q_b", "low" if low else "x", "wide_queries"),
        Part("absorb_k", BMM, ("k_up",), absorb_keys),
        Part("rope", ROPE, (), rope),
        Part("kv_write", "Tensor.copy_", (), write),
        *(indexer(torch, form, low) if form.top else []),
        Part("attention", f"{gather}torch.bmm, softmax, torch.bmm: torch has no kernel for it", ("latent_cache",),
             attention, _chosen_bytes),
        Part("absorb_v", BMM, ("v_up",), absorb_values),
        linear(torch, "o", "o", "attended", "delta"),
    ]  # fmt: skip


def _chosen_bytes(part: Part, own: Tensors, values: Values) -> int:
    cache = own["latent_cache"]
    rows = values["chosen"].shape[1] if "chosen" in values else cache.shape[1]
    return int(cache.shape[0] * rows * cache.shape[2] * cache.element_size())


def indexer(torch: Any, form: Latent, low: bool) -> list[Part]:
    """The parts that choose which rows of the cache sparse attention reads."""
    source = "low" if low else "x"

    def project(own: Tensors, values: Values) -> Tensors:
        queries = torch.mm(values[source], own["index_q"].t()).view(-1, form.index_heads, form.index_width)
        weights = torch.mm(values["x"], own["index_weights"].t())
        own["index_cache"][:, -1].copy_(torch.mm(values["x"], own["index_k"].t()))
        return {"index_queries": queries, "index_weights": weights}

    def choose(own: Tensors, values: Values) -> Tensors:
        scores = torch.bmm(values["index_queries"], own["index_cache"].transpose(1, 2)).relu_()
        total = torch.bmm(values["index_weights"].unsqueeze(1), scores).squeeze(1)
        return {"chosen": torch.topk(total, min(form.top, total.shape[1]), sorted=False).indices}

    return [
        Part("indexer", "torch.mm three times, Tensor.copy_", ("index_q", "index_k", "index_weights"), project),
        Part("index_top", "torch.bmm, relu, torch.bmm, torch.topk", ("index_cache",), choose),
    ]
