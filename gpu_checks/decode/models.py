"""The models whose decode step is measured: their shapes by name, or from a config.json; and what one rank has of them.

A preset has the fields of the model's config.json on Hugging Face that decide shapes, by their names there; a test
compares them with those that ``gpuhost ceiling`` knows. Pure.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT = "qwen3-30b-a3b"

_MLA = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_MOE = {"num_experts_per_tok": 8, "norm_topk_prob": True}

PRESETS: dict[str, dict[str, Any]] = {
    "glm-5": {
        "hidden_size": 6144, "num_hidden_layers": 78, "num_attention_heads": 64, "vocab_size": 154880,
        "intermediate_size": 12288, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
        "first_k_dense_replace": 3, "scoring_func": "sigmoid", **_MOE,
        "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
        "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048,
    },
    "deepseek-v3": {
        "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "vocab_size": 129280,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
        "first_k_dense_replace": 3, "scoring_func": "sigmoid", "n_group": 8, "topk_group": 4, **_MOE, **_MLA,
    },
    "kimi-k2": {
        "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 64, "vocab_size": 163840,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 384, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "scoring_func": "sigmoid", **_MOE, **_MLA,
    },
    "glm-4.5": {
        "hidden_size": 5120, "num_hidden_layers": 92, "num_attention_heads": 96, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151552, "intermediate_size": 12288, "moe_intermediate_size": 1536,
        "n_routed_experts": 160, "n_shared_experts": 1, "first_k_dense_replace": 3, "use_qk_norm": True,
        "partial_rotary_factor": 0.5, **_MOE,
    },
    "glm-4.5-air": {
        "hidden_size": 4096, "num_hidden_layers": 46, "num_attention_heads": 96, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151552, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "n_routed_experts": 128, "n_shared_experts": 1, "first_k_dense_replace": 1, "use_qk_norm": False,
        "partial_rotary_factor": 0.5, **_MOE,
    },
    "qwen3-235b-a22b": {
        "model_type": "qwen3_moe", "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "intermediate_size": 12288,
        "moe_intermediate_size": 1536, "num_experts": 128, **_MOE,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "intermediate_size": 6144,
        "moe_intermediate_size": 768, "num_experts": 128, **_MOE,
    },
    "llama-3-8b": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 128256, "intermediate_size": 14336,
    },
    "llama-3-70b": {
        "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
        "vocab_size": 128256, "intermediate_size": 28672,
    },
}  # fmt: skip

ALIGNMENT_BYTES = 16
"""Rows of a matrix begin at multiples of this for tensor cores: 8 elements of BF16."""

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
    """Fields of a config as whole numbers."""

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


def model_of(config: Mapping[str, Any], name: str) -> Model:
    """The shapes that a config describes. Raises BadModel."""
    name = str(config.get("name") or name)
    read = _Fields(config, name)
    hidden, heads, layers = (read.whole(f"{each}") for each in ("hidden_size", "num_attention_heads",
                                                                 "num_hidden_layers"))  # fmt: skip
    if not (hidden and heads and layers):
        raise BadModel(f"{name}: a model without hidden size, heads or layers")
    sparse = _sparse_layers(read, layers)
    latent, head = _latent(read), read.whole("head_dim", default=hidden // heads)
    factor = config.get("partial_rotary_factor") or 1.0
    notes = []
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
        kv_heads=1 if latent else read.whole("num_key_value_heads", default=heads),
        head=0 if latent else head,
        turned=latent.turned if latent else int(head * factor) // 2 * 2,
        norm_heads=bool(config.get("use_qk_norm")) or "qwen3" in kind,
        latent=latent,
        dense=layers - sparse,
        sparse=sparse,
        dense_width=read.whole("intermediate_size") if layers > sparse else 0,
        experts=read.whole("n_routed_experts", "num_experts") if sparse else 0,
        used=read.whole("num_experts_per_tok") if sparse else 0,
        expert_width=read.whole("moe_intermediate_size") if sparse else 0,
        shared_width=read.whole("n_shared_experts", default=0) * read.whole("moe_intermediate_size", default=0),
        sigmoid=config.get("scoring_func", "softmax") == "sigmoid",
        normalised=bool(config.get("norm_topk_prob", True)),
        notes=tuple(notes),
    )


def _sparse_layers(read: _Fields, layers: int) -> int:
    """How many layers have experts."""
    if not read.whole("n_routed_experts", "num_experts", default=0):
        return 0
    first, every = read.whole("first_k_dense_replace", default=0), read.whole("moe_layer_freq", default=1)
    step, dense = read.whole("decoder_sparse_step", default=1), set(read.config.get("mlp_only_layers") or ())
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
