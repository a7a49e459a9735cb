"""Models by name: the fields of each one's config.json on Hugging Face that decide shapes, by their names there.

A test compares them with those that ``gpuhost ceiling`` knows.
"""

from __future__ import annotations

from typing import Any

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
