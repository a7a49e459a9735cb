"""The fields of a config.json: which are understood, which change nothing here, and which are named as unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpuhost_cli.run import InputError

COMMON = {
    "architectures", "model_type", "hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads",
    "num_key_value_heads", "head_dim", "intermediate_size", "tie_word_embeddings", "torch_dtype", "dtype",
    "quantization_config", "layer_types", "sliding_window", "use_sliding_window", "max_window_layers",
    "num_nextn_predict_layers", "attention_bias", "mlp_bias", "use_qk_norm", "text_config", "vision_config",
}  # fmt: skip
"""Read for every model: shapes, or what a note says about them."""

MOE = {
    "n_routed_experts", "num_experts", "num_local_experts", "n_shared_experts", "num_experts_per_tok",
    "moe_intermediate_size", "first_k_dense_replace", "moe_layer_freq", "decoder_sparse_step", "mlp_only_layers",
    "mlp_layer_types",
}  # fmt: skip
MLA = {"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim"}
INDEXER = {"index_n_heads", "index_head_dim", "index_topk", "indexer_types", "index_topk_freq", "index_topk_pattern",
           "index_skip_topk_offset", "index_share_for_mtp_iteration"}  # fmt: skip

HARMLESS = re.compile(
    r"""
      .*_token_id | .*_token_ids | rope_.* | .*rope_interleave | partial_rotary_factor | rotary_.* | .*_dropout
    | attn_pdrop | rms_norm_eps | layer_norm_eps | initializer_.* | hidden_act | max_position_embeddings
    | original_max_position_embeddings | model_max_length | use_cache | transformers_version | auto_map
    | pretraining_tp | ep_size | routed_scaling_factor | scoring_func | topk_group | topk_method | n_group
    | norm_topk_prob | seq_aux | aux_loss_alpha | router_aux_loss_coef | moe_router_dtype | output_router_logits
    | _name_or_path | name_or_path | _attn_implementation | attn_implementation | unsloth_.* | bos_token | eos_token
    | ignore_index | image_token_.* | video_.* | media_.* | use_unified_vision_chunk
    # what every config of transformers 4 has of generation and training
    | add_cross_attention | bad_words_ids | begin_suppress_tokens | chunk_size_feed_forward
    | cross_attention_hidden_size | diversity_penalty | do_sample | early_stopping
    | encoder_no_repeat_ngram_size | finetuning_task | forced_.*
    | id2label | label2id | is_decoder | is_encoder_decoder | length_penalty | max_length | min_length
    | no_repeat_ngram_size | num_beam_groups | num_beams | num_return_sequences | output_attentions
    | output_hidden_states | output_scores | prefix | problem_type | pruned_heads | remove_invalid_values
    | repetition_penalty | return_dict | return_dict_in_generate | suppress_tokens | task_specific_params | temperature
    | tf_legacy_loss | tie_encoder_decoder | tokenizer_class | top_k | top_p | torchscript | typical_p | use_bfloat16
    """,
    re.VERBOSE,
)
"""Fields that change neither what is stored nor what a decode step reads."""

SHAPE = re.compile(
    r"expert|moe|lora|rank|index|head|layer|_dim|dim_|size|width|hidden|linear|mamba|ssm|conv|attn|attention"
    r"|kv_|mlp|ffn|cross|share|window|block|audio|vision"
)
"""An unknown field that is called so may change the model's shape: without knowing it, the sum would be a guess."""


def known(family_fields: set[str]) -> set[str]:
    """All fields that are read for a family."""
    return COMMON | family_fields


def unknown_fields(config: Mapping[str, Any], read: set[str]) -> dict[str, Any]:
    """The fields that nobody here knows."""
    return {
        name: value for name, value in config.items() if name not in read and not HARMLESS.fullmatch(name.lstrip("_"))
    }


def check(config: Mapping[str, Any], read: set[str], accepted: set[str]) -> tuple[str, ...]:
    """Sentences on unknown fields. Raises InputError for one that may change the shape and is not accepted.

    A field that is null, false, 0 or empty is switched off, and changes nothing.
    """
    unknown = unknown_fields(config, read)
    off = sorted(name for name, value in unknown.items() if value in (None, False, 0, "", [], {}))
    on = {name: value for name, value in unknown.items() if name not in off}
    risky = sorted(name for name in on if SHAPE.search(name) and name not in accepted)
    if risky:
        shown = ", ".join(f"{name} = {shortened(on[name])}" for name in risky)
        options = " ".join(f"--accept-field {name}" for name in risky)
        raise InputError(
            f"config.json: not understood, and may change the model's shape: {shown}: if they change nothing of what "
            f"a decode step reads, say {options}"
        )
    listed = sorted(set(on) - set(risky))
    found = [f"not understood, taken as changing nothing: {name} = {shortened(on[name])}" for name in listed]
    if off:
        found.append(f"not understood, but switched off: {', '.join(off)}")
    return tuple(found)


def shortened(value: Any) -> str:
    """A value in at most 40 characters."""
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."


class Reader:
    """Numbers out of a config, each error with field, value and file."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config, self.where = config, where

    def whole(self, *names: str, default: int | None = None) -> int:
        """A positive whole number under one of the names; 0 only where that is the default. Raises InputError."""
        given = {name: self.config[name] for name in names if self.config.get(name) is not None}
        if not given:
            if default is not None:
                return default
            raise InputError(f"{self.where}: {' or '.join(names)} is missing: is this the model's config.json?")
        for name, value in given.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 0 or (value == 0 and default != 0):
                raise InputError(f"{self.where}: {name} is {shortened(value)!r}, expected a positive whole number")
        if len(set(given.values())) > 1:
            said = ", ".join(f"{name} = {value}" for name, value in given.items())
            raise InputError(f"{self.where}: {said}: they name the same number, and differ")
        return next(iter(given.values()))

    def layers(self, name: str) -> set[int]:
        """A list of layers' numbers; empty where there is none. Raises InputError."""
        value = self.config.get(name)
        if value is None:
            return set()
        if not isinstance(value, list) or not all(type(each) is int for each in value):
            raise InputError(f"{self.where}: {name} is {shortened(value)!r}, expected a list of layers' numbers")
        return set(value)

    def kinds(self, name: str, layers: int, allowed: set[str]) -> list[str] | None:
        """A list with one word for each layer, or None. Raises InputError for other words or another length."""
        value = self.config.get(name)
        if value is None:
            return None
        strange = [] if not isinstance(value, list) else sorted({str(each) for each in value} - allowed)
        if not isinstance(value, list) or strange:
            raise InputError(
                f"{self.where}: {name} has {', '.join(strange) or shortened(value)}, of which only "
                f"{', '.join(sorted(allowed))} is understood: this model can't be summed up here"
            )
        if len(value) < layers:
            raise InputError(f"{self.where}: {name} has {len(value)} entries for {layers} layers")
        return [str(each) for each in value[:layers]]
