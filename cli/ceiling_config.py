"""From a Hugging Face config.json to a model's matrices. Pure but for ``load``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuhost_cli import ceiling_fields
from gpuhost_cli.ceiling_fields import INDEXER, MLA, MOE, Reader, shortened
from gpuhost_cli.ceiling_model import MATRICES, Cache, Experts, Matrix, Model
from gpuhost_cli.run import InputError

DATA = Path(__file__).parent / "ceiling_data"
LAYER = "model.layers.{layer}."


@dataclass(frozen=True)
class Family:
    """Architectures whose decode step reads the same kinds of matrices."""

    latent: bool
    moe: bool
    indexer: bool = False
    taken: tuple[str, ...] = ()
    """Fields that may be missing, but whose value in the model's own code is then not what is taken here."""

    @property
    def fields(self) -> set[str]:
        return (MLA if self.latent else set()) | (MOE if self.moe else set()) | (INDEXER if self.indexer else set())


EXPERTS, LATENT = ("first_k_dense_replace", "n_shared_experts"), ("q_lora_rank",)
DENSE, OWN_HEADS = Family(False, False), Family(False, False, taken=("head_dim",))
MLA_MOE, DSA = Family(True, True, taken=(*EXPERTS, *LATENT)), Family(True, True, True, taken=(*EXPERTS, *LATENT))
ARCHITECTURES = {
    "LlamaForCausalLM": DENSE,
    "MistralForCausalLM": DENSE,
    "Qwen2ForCausalLM": DENSE,
    "Qwen3ForCausalLM": OWN_HEADS,
    "Qwen3MoeForCausalLM": Family(False, True, taken=("head_dim",)),
    "Glm4MoeForCausalLM": Family(False, True, taken=(*EXPERTS, "head_dim")),
    "DeepseekV2ForCausalLM": MLA_MOE,
    "DeepseekV3ForCausalLM": MLA_MOE,
    "DeepseekV32ForCausalLM": DSA,
    "GlmMoeDsaForCausalLM": DSA,
}
WRAPPERS = {"KimiK25ForConditionalGeneration"}
"""Models that also see: their language model is in ``text_config``, and is all that a decode step reads."""


@dataclass(frozen=True)
class Config:
    """A config.json as it was read. ``quantization``: from it, or from hf_quant_config.json beside it."""

    where: str
    text: Mapping[str, Any]
    quantization: Mapping[str, Any] | None
    quantization_from: str
    notes: tuple[str, ...]


def presets() -> dict[str, dict[str, str]]:
    """The models that are known by name: title and source."""
    found: dict[str, dict[str, str]] = json.loads((DATA / "presets.json").read_text(encoding="utf-8"))
    return found


def preset_path(name: str) -> Path:
    """The config.json of a preset."""
    return DATA / "presets" / name / "config.json"


def title_of(path: Path) -> str:
    """What a model's folder is called; in the cache of the Hugging Face hub, where files are links into ``blobs``, the
    model.

    >>> title_of(Path("/hub/models--org--GLM-5-FP8/snapshots/6f3c/config.json")), title_of(Path("/GLM-5/config.json"))
    ('GLM-5-FP8', 'GLM-5')
    """
    folders = path.absolute().parts[:-1]
    cached = next((name for name in folders if name.startswith("models--")), None)
    return cached.rpartition("--")[2] if cached else folders[-1]


def load(path: Path) -> Config:
    """Read a config.json, and hf_quant_config.json beside it where it has no quantization_config itself.

    Raises InputError.
    """
    whole = _object(path)
    named = _architecture(whole)
    text = whole.get("text_config") if named in WRAPPERS else whole
    if not isinstance(text, dict):
        raise InputError(f"{path}: {named} without text_config: is this the model's config.json?")
    notes = [f"{named}: only its language model is counted, not what sees or hears"] if text is not whole else []
    quantization = text.get("quantization_config") or whole.get("quantization_config")
    beside = path.with_name("hf_quant_config.json")
    read_from = "its quantization_config"
    if quantization is None and beside.is_file():
        quantization, read_from = _object(beside), f"{beside.name} beside it"
    return Config(str(path), text, quantization, read_from, tuple(notes))


def _object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}: name the model's config.json, or a preset (--preset)") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: not an object of JSON: name the model's config.json")
    return data


def _architecture(config: Mapping[str, Any]) -> str:
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def model_of(config: Config, title: str, accepted: set[str]) -> Model:
    """The model that a config describes. Raises InputError for what is not understood."""
    named = _architecture(config.text)
    family = ARCHITECTURES.get(named)
    if family is None:
        raise InputError(
            f"{config.where}: architecture {named or '(none)'} is not understood: known are {', '.join(ARCHITECTURES)}"
        )
    notes = ceiling_fields.check(config.text, ceiling_fields.known(family.fields), accepted)
    return _Builder(Reader(config.text, config.where), family).build(title, named, (*config.notes, *notes))


class _Builder:
    """One model, field by field."""

    def __init__(self, read: Reader, family: Family) -> None:
        self.read, self.family, self.notes = read, family, list[str]()
        self.hidden = read.whole("hidden_size")
        self.count = read.whole("num_hidden_layers")
        self.heads = read.whole("num_attention_heads")
        self.kv_heads = read.whole("num_key_value_heads", default=self.heads)
        self.vocabulary = read.whole("vocab_size")
        self.layers = tuple(range(self.count))

    def build(self, title: str, named: str, notes: tuple[str, ...]) -> Model:
        sparse = self._sparse_layers()
        dense = tuple(layer for layer in self.layers if layer not in set(sparse))
        experts, expert_matrices = self._experts(sparse)
        dense_width = self.read.whole("intermediate_size") if dense else 0
        attention, cache = self._latent() if self.family.latent else self._grouped()
        head = [Matrix("lm_head", "lm_head", self.vocabulary, self.hidden, (0,), "vocabulary")]
        if not self.read.config.get("tie_word_embeddings"):
            embedding = "model.embed_tokens"
            head.append(Matrix("embedding", embedding, self.vocabulary, self.hidden, (0,), "vocabulary", used=0))
        else:
            self.notes.append("embedding and lm_head are one matrix (tie_word_embeddings)")
        return Model(
            title=title,
            architecture=named,
            hidden=self.hidden,
            layers=self.count,
            dense_layers=len(dense),
            vocabulary=self.vocabulary,
            heads=self.heads,
            kv_heads=1 if self.family.latent else self.kv_heads,
            dense_width=dense_width,
            dtype=self._dtype(),
            matrices=(*attention, *self._mlp("dense_mlp", "mlp.", dense_width, dense), *expert_matrices, *head),
            cache=cache,
            experts=experts,
            latent=self.family.latent,
            vectors=self.hidden * (2 * self.count + 1),
            mtp_layers=self.read.whole("num_nextn_predict_layers", default=0),
            notes=(*notes, *self.notes, *self._missing(), *self._windows()),
        )

    def _dtype(self) -> str:
        stored = self.read.config.get("torch_dtype") or self.read.config.get("dtype")
        stored = stored.removeprefix("torch.") if isinstance(stored, str) else stored
        known = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
        if stored is None:
            self.notes.append("no dtype in the config: taken as BF16")
            return "bf16"
        if str(stored) not in known:
            raise InputError(f"{self.read.where}: dtype {shortened(stored)!r} is not understood: {', '.join(known)}")
        return known[str(stored)]

    def _windows(self) -> list[str]:
        sparse = {"deepseek_sparse_attention"} if self.family.indexer else set()
        kinds = self.read.kinds("layer_types", self.count, {"full_attention", "sliding_attention", *sparse})
        window = self.read.config.get("sliding_window")
        slides = window and self.read.config.get("use_sliding_window") is not False
        if slides or "sliding_attention" in (kinds or ()):
            return [f"sliding window ({window}): the KV cache is counted as if every layer read all of the context"]
        return []

    def _sparse_layers(self) -> tuple[int, ...]:
        """The layers with experts."""
        if not self.family.moe:
            return ()
        read = self.read
        kinds = read.kinds("mlp_layer_types", self.count, {"dense", "sparse"})
        if kinds is not None:
            return tuple(layer for layer, kind in enumerate(kinds) if kind == "sparse")
        first, every = read.whole("first_k_dense_replace", default=0), read.whole("moe_layer_freq", default=1)
        step, dense = read.whole("decoder_sparse_step", default=1), read.layers("mlp_only_layers")
        return tuple(
            layer
            for layer in self.layers
            if layer >= first and layer % every == 0 and (layer + 1) % step == 0 and layer not in dense
        )

    def _mlp(self, component: str, where: str, width: int, layers: tuple[int, ...]) -> list[Matrix]:
        if not layers or not width:
            return []
        sizes = {"gate_proj": (width, self.hidden), "up_proj": (width, self.hidden), "down_proj": (self.hidden, width)}
        assert len(sizes) == MATRICES
        return [Matrix(component, f"{LAYER}{where}{name}", *size, layers, "width") for name, size in sizes.items()]

    def _experts(self, sparse: tuple[int, ...]) -> tuple[Experts | None, list[Matrix]]:
        if not sparse:
            return None, []
        # Transformers 5 writes the number of Qwen3's experts as num_local_experts.
        total = self.read.whole("n_routed_experts", "num_experts", "num_local_experts")
        used = self.read.whole("num_experts_per_tok")
        if used > total:
            raise InputError(f"{self.read.where}: {used} experts for a token, of {total}")
        width, shared = self.read.whole("moe_intermediate_size"), self.read.whole("n_shared_experts", default=0)
        sizes = {"gate_proj": (width, self.hidden), "up_proj": (width, self.hidden), "down_proj": (self.hidden, width)}
        module = LAYER + "mlp.experts.{expert}."
        routed = [
            Matrix("routed_experts", module + name, *size, sparse, "expert_width", total, used)
            for name, size in sizes.items()
        ]
        router = Matrix("router", f"{LAYER}mlp.gate", total, self.hidden, sparse)
        together = self._mlp("shared_experts", "mlp.shared_experts.", width * shared, sparse)
        return Experts(total, used, width, len(sparse)), [*routed, *together, router]

    def _missing(self) -> list[str]:
        """Fields that are not there, and without which a guess is made."""
        config, own = self.read.config, self.family.taken
        listed = {"first_k_dense_replace"} if config.get("mlp_layer_types") is not None else set()
        names = [name for name in own if name not in config and name not in listed]
        if not self.family.latent and config.get("num_key_value_heads") is None:
            names.append("num_key_value_heads")
        taken = {"head_dim": self.hidden // self.heads, "num_key_value_heads": self.heads}
        return [f"{name} is missing in the config: taken as {taken.get(name, 0)}" for name in names]

    def _grouped(self) -> tuple[list[Matrix], Cache]:
        """Attention with keys and values for each group of heads."""
        size = self.read.whole("head_dim", default=self.hidden // self.heads)
        module, queries, keys = f"{LAYER}self_attn.", self.heads * size, self.kv_heads * size
        return [
            Matrix("attention", module + "q_proj", queries, self.hidden, self.layers, "heads"),
            Matrix("attention", module + "k_proj", keys, self.hidden, self.layers, "kv_heads"),
            Matrix("attention", module + "v_proj", keys, self.hidden, self.layers, "kv_heads"),
            Matrix("attention", module + "o_proj", self.hidden, queries, self.layers, "heads"),
        ], Cache(2 * keys, self.count, self.kv_heads)

    def _latent(self) -> tuple[list[Matrix], Cache]:
        """Multi-head latent attention; the indexer of sparse attention where there is one."""
        read, module = self.read, f"{LAYER}self_attn."
        low, latent = read.whole("q_lora_rank", default=0), read.whole("kv_lora_rank")
        plain, turned, value = (
            read.whole("qk_nope_head_dim"),
            read.whole("qk_rope_head_dim"),
            read.whole("v_head_dim"),
        )
        queries, hidden, layers = self.heads * (plain + turned), self.hidden, self.layers
        found = [
            Matrix("attention_a", module + "kv_a_proj_with_mqa", latent + turned, hidden, layers),
            Matrix("attention", module + "kv_b_proj", self.heads * (plain + value), latent, layers, "heads"),
            Matrix("attention", module + "o_proj", hidden, self.heads * value, layers, "heads"),
        ]
        if low:
            found.append(Matrix("attention_a", module + "q_a_proj", low, hidden, layers))
            found.append(Matrix("attention", module + "q_b_proj", queries, low, layers, "heads"))
        else:
            found.append(Matrix("attention", module + "q_proj", queries, hidden, layers, "heads"))
        if not self.family.indexer:
            return found, Cache(latent + turned, self.count)
        heads, size, top = read.whole("index_n_heads"), read.whole("index_head_dim"), read.whole("index_topk")
        full = self._indexer_layers()
        found += [
            Matrix("indexer", module + "indexer.wq_b", heads * size, low or hidden, full),
            Matrix("indexer", module + "indexer.wk", size, hidden, full),
            Matrix("indexer", module + "indexer.weights_proj", heads, hidden, full),
        ]
        return found, Cache(latent + turned, self.count, 1, size, len(full), top)

    def _indexer_layers(self) -> tuple[int, ...]:
        """Layers with an indexer of their own; the others use the choice of one before them."""
        kinds = self.read.kinds("indexer_types", self.count, {"full", "shared"})
        if kinds is None:
            if self.read.config.get("index_topk_freq") not in (None, 1) or self.read.config.get("index_topk_pattern"):
                raise InputError(f"{self.read.where}: index_topk_freq without indexer_types is not understood")
            return self.layers
        return tuple(layer for layer, kind in enumerate(kinds) if kind == "full")
