"""The models whose decode step is measured: their shapes by name, or from a config.json; and what one rank has of them.

Pure.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_checks.decode.presets import PRESETS

DEFAULT = "qwen3-30b-a3b"

ALIGNMENT_BYTES = 16
"""Rows of a matrix begin at multiples of this for tensor cores: 8 elements of BF16."""

OTHER_SHAPES = re.compile(
    r"moe_num_experts|shared_expert_intermediate_size|interleave_moe_layer_step|block_configs"
    r"|full_attention_interval|attn_type_list|cross_attention_layers|(hybrid|linear|mamba|ssm)_\w+"
)
"""Fields of models that are built otherwise (Llama 4, Qwen3-Next, Nemotron-H): with them left out, one with
experts would be taken for a dense one, and linear attention for one with a cache."""

EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
"""How many there are. The last is what transformers 5 writes for Qwen3; Mixtral and others, whose experts have no width
of their own beside it, are refused for that."""

SLIDING = "sliding_attention"
ATTENTIONS = ("full_attention", SLIDING, "deepseek_sparse_attention")
"""Kinds of layers by their attention that are understood."""

LARGEST_TP = 64
"""Sizes of tensor parallelism up to this are tried when the possible ones are named."""


class BadModel(ValueError):
    """A model that can't be read, or can't be cut like this; the message says why."""


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: ranks of the two low-rank parts and widths of a head (DeepSeek's names).

    ``index_heads``, ``index_width``, ``top``: of the indexer of sparse attention; 0: there is none.
    """

    query: int
    kv: int
    plain: int
    turned: int
    value: int
    index_heads: int = 0
    index_width: int = 0
    top: int = 0


@dataclass(frozen=True)
class Model:
    """The shapes of a model, or of the part that one rank has of it: see ``for_rank``.

    ``dense`` and ``sparse``: how many layers of each kind. Widths are those of one expert, of all shared experts
    together, and of a dense layer. ``norm_heads``: queries and keys are normalised head by head. ``turned``: how many
    elements of a head RoPE turns.
    """

    name: str
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head: int
    turned: int
    norm_heads: bool
    latent: Latent | None
    dense: int
    sparse: int
    dense_width: int
    experts: int
    used: int
    expert_width: int
    shared_width: int
    sigmoid: bool
    normalised: bool
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        """All of them."""
        return self.dense + self.sparse

    @property
    def kv_values(self) -> int:
        """Elements that a token leaves in the cache of a layer."""
        return 2 * self.kv_heads * self.head if self.latent is None else self.latent.kv + self.latent.turned


def load(text: str) -> Model:
    """A preset's name, the path of a config.json, or such a file's text. Raises BadModel."""
    if text in PRESETS:
        return model_of(PRESETS[text], text)
    if text.lstrip().startswith("{"):
        return model_of(_object(text, "the model's JSON"), "config")
    try:
        with open(text, encoding="utf-8") as file:
            content = file.read()
    except OSError as error:
        raise BadModel(f"{text} is no preset ({', '.join(PRESETS)}) and can't be read as a file: {error}") from error
    folder = os.path.basename(os.path.dirname(os.path.abspath(text)))
    return model_of(_object(content, text), folder or "config")


def _object(text: str, where: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadModel(f"{where}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadModel(f"{where}: not an object of JSON")
    inner = found.get("text_config")
    return {**inner, "name": found.get("name")} if isinstance(inner, dict) else found


class _Fields:
    """Fields of a config as whole numbers, or as lists of what each layer is."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config, self.name = config, name

    def whole(self, *names: str, default: int | None = None) -> int:
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise BadModel(f"{self.name}: {name} = {value!r} is no size")
            return value
        if default is None:
            raise BadModel(f"{self.name}: {' or '.join(names)} is missing")
        return default

    def names(self, name: str) -> list[Any]:
        found = self.config.get(name) or []
        if not isinstance(found, list):
            raise BadModel(f"{self.name}: {name} = {found!r} is no list")
        return found


def model_of(config: Mapping[str, Any], name: str) -> Model:
    """The shapes that a config describes. Raises BadModel."""
    name = str(config.get("name") or name)
    read = _Fields(config, name)
    other = sorted(field for field, value in config.items() if value and OTHER_SHAPES.fullmatch(field))
    other += sorted({str(each) for each in read.names("layer_types")} - set(ATTENTIONS))
    if other:
        raise BadModel(f"{name}: {', '.join(other)}: a kind of model that is not understood here")
    hidden, heads, layers = (read.whole(f"{each}") for each in ("hidden_size", "num_attention_heads",
                                                                 "num_hidden_layers"))  # fmt: skip
    if not (hidden and heads and layers):
        raise BadModel(f"{name}: a model without hidden size, heads or layers")
    sparse = _sparse_layers(read, layers)
    latent, head = _latent(read), read.whole("head_dim", default=hidden // heads)
    kv_heads = 1 if latent else read.whole("num_key_value_heads", default=heads)
    if not kv_heads or heads % kv_heads:
        raise BadModel(f"{name}: {heads} heads can't share {kv_heads} heads of keys and values")
    factor = config.get("partial_rotary_factor") or 1.0
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor <= 1:
        raise BadModel(f"{name}: partial_rotary_factor = {factor!r} is no share")
    experts = read.whole(*EXPERTS) if sparse else 0
    used = read.whole("num_experts_per_tok") if sparse else 0
    if sparse and not 0 < used <= experts:
        raise BadModel(f"{name}: {used} of {experts} experts can't be chosen")
    notes = []
    if SLIDING in read.names("layer_types") or (
        config.get("sliding_window") and config.get("use_sliding_window") is not False
    ):
        notes.append("sliding windows are left out: every layer reads all of the context")
    if config.get("n_group") not in (None, 0, 1):
        notes.append("experts are chosen among all of them, not group by group")
    if config.get("attention_bias"):
        notes.append("biases are left out")
    kind = str(config.get("model_type") or "") + str(config.get("architectures") or "").lower()
    return Model(
        name=name,
        hidden=hidden,
        vocabulary=read.whole("vocab_size"),
        heads=heads,
        kv_heads=kv_heads,
        head=0 if latent else head,
        turned=latent.turned if latent else int(head * factor) // 2 * 2,
        norm_heads=bool(config.get("use_qk_norm")) or "qwen3" in kind,
        latent=latent,
        dense=layers - sparse,
        sparse=sparse,
        dense_width=read.whole("intermediate_size") if layers > sparse else 0,
        experts=experts,
        used=used,
        expert_width=read.whole("moe_intermediate_size") if sparse else 0,
        shared_width=read.whole("n_shared_experts", default=0) * read.whole("moe_intermediate_size", default=0),
        sigmoid=config.get("scoring_func", "softmax") == "sigmoid",
        normalised=bool(config.get("norm_topk_prob", True)),
        notes=tuple(notes),
    )


def _sparse_layers(read: _Fields, layers: int) -> int:
    """How many layers have experts."""
    if not read.whole(*EXPERTS, default=0):
        return 0
    kinds = read.names("mlp_layer_types")
    if kinds:
        if len(kinds) != layers or set(kinds) - {"dense", "sparse"}:
            raise BadModel(f"{read.name}: mlp_layer_types does not say dense or sparse for each of {layers} layers")
        return kinds.count("sparse")
    first, every = read.whole("first_k_dense_replace", default=0), read.whole("moe_layer_freq", default=1)
    step, dense = read.whole("decoder_sparse_step", default=1), read.names("mlp_only_layers")
    if not (every and step):
        raise BadModel(f"{read.name}: no layer has experts")
    return sum(
        layer >= first and layer % every == 0 and (layer + 1) % step == 0 and layer not in dense
        for layer in range(layers)
    )


def _latent(read: _Fields) -> Latent | None:
    if not read.whole("kv_lora_rank", default=0):
        return None
    return Latent(
        query=read.whole("q_lora_rank", default=0),
        kv=read.whole("kv_lora_rank"),
        plain=read.whole("qk_nope_head_dim"),
        turned=read.whole("qk_rope_head_dim"),
        value=read.whole("v_head_dim"),
        index_heads=read.whole("index_n_heads", default=0),
        index_width=read.whole("index_head_dim", default=0),
        top=read.whole("index_topk", default=0),
    )


def reasons_against(model: Model, tp: int) -> list[str]:
    """What can't be cut over so many ranks."""
    found = [f"{model.heads} heads"] if model.heads % tp else []
    if model.latent is None and model.kv_heads % tp and tp % model.kv_heads:
        found.append(f"{model.kv_heads} heads of keys and values")
    widths = {
        "dense layers": model.dense_width, "experts": model.expert_width, "shared experts": model.shared_width,
    }  # fmt: skip
    for what, width in widths.items():
        if width % (tp * ALIGNMENT_BYTES // 2):
            found.append(f"the width of {what}, {width}")
    return [*found, f"the vocabulary of {model.vocabulary}"] if model.vocabulary % tp else found


def for_rank(model: Model, tp: int) -> Model:
    """What one of ``tp`` ranks has. Replicated, as engines do: low-rank parts of MLA, indexer, router.

    Raises BadModel where it can't be cut like this.
    """
    against = reasons_against(model, tp)
    if against:
        fits = [str(size) for size in range(1, LARGEST_TP + 1) if not reasons_against(model, size)]
        possible = ", ".join(fits) or "none"
        raise BadModel(f"{model.name} can't be cut over {tp} ranks: {'; '.join(against)}; possible: {possible}")
    plain: dict[str, Any] = {**vars(model)}
    plain.update(
        heads=model.heads // tp,
        kv_heads=max(1, model.kv_heads // tp),
        vocabulary=model.vocabulary // tp,
        dense_width=model.dense_width // tp,
        expert_width=model.expert_width // tp,
        shared_width=model.shared_width // tp,
    )
    return Model(**plain)
