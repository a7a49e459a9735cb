"""Models out of config.json files: presets, shapes, fields that nobody knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ceiling_cases import DENSE, EXPERTS, ask, of_config, read_gb

from gpuhost_cli.ceiling_config import load, model_of, preset_path, presets
from gpuhost_cli.run import InputError

PUBLISHED = {
    # billions of parameters, and of active ones; all-reduces of a step, their bytes; KV bytes of a token in BF16
    "glm-5": (743.9, 40.83, 156, 12288, 89856),
    "deepseek-v3": (671.0, 36.62, 122, 14336, 70272),
    "kimi-k2": (1026, 31.69, 122, 14336, 70272),
    "glm-4.5": (352.8, 32.85, 184, 10240, 376832),
    "glm-4.5-air": (106.9, 12.80, 92, 8192, 188416),
    "qwen3-235b-a22b": (235.1, 21.57, 188, 8192, 192512),
    "qwen3-30b-a3b": (30.5, 3.04, 96, 4096, 98304),
    "llama-3-8b": (8.03, 7.50, 64, 8192, 131072),
    "llama-3-70b": (70.55, 69.50, 160, 16384, 327680),
}


def test_all_presets_are_compared() -> None:
    assert set(PUBLISHED) == set(presets())
    assert all(each["source"] and each["title"] for each in presets().values())


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_agree_with_what_is_published(name: str) -> None:
    total, active, reduces, size, kv = PUBLISHED[name]
    found = ask("--preset", name, "--kv-cache-dtype", "bf16")
    assert found.shape.parameters / 1e9 == pytest.approx(total, rel=0.005)
    assert found.shape.active / 1e9 == pytest.approx(active, rel=0.005)
    assert (found.traffic.allreduces, found.traffic.allreduce_bytes) == (reduces, size)
    assert found.traffic.kv_token_bytes == kv
    assert not any("not understood" in note for note in found.notes)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_is_a_config_like_a_users(name: str) -> None:
    preset, config = ask("--preset", name), ask("--config", str(preset_path(name)))
    assert config.parts == preset.parts
    assert config.terms == preset.terms


def model(tmp_path: Path, config: dict[str, Any], *accepted: str) -> Any:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return model_of(load(tmp_path / "config.json"), "a model", set(accepted))


def test_dense_shapes_by_hand(tmp_path: Path) -> None:
    found = model(tmp_path, DENSE)
    attention = 1024 * 1024 * 2 + 2 * 256 * 1024
    assert found.parameters == 4 * (attention + 3 * 4096 * 1024) + 2 * 32000 * 1024
    assert found.active == found.parameters - 32000 * 1024
    assert found.cache.values == 2 * 4 * 64


def test_tied_embedding_is_one_matrix(tmp_path: Path) -> None:
    found = model(tmp_path, {**DENSE, "tie_word_embeddings": True})
    assert found.parameters == model(tmp_path, DENSE).parameters - 32000 * 1024
    assert found.active == found.parameters


@pytest.mark.parametrize(
    ("fields", "sparse"),
    [
        ({}, 4),
        ({"mlp_only_layers": [1]}, 3),
        ({"decoder_sparse_step": 2}, 2),
        ({"first_k_dense_replace": 3}, 1),
        ({"moe_layer_freq": 2}, 2),
        ({"mlp_layer_types": ["dense", "sparse", "sparse", "dense"]}, 2),
    ],
)
def test_layers_with_experts(tmp_path: Path, fields: dict[str, Any], sparse: int) -> None:
    found = model(tmp_path, {**EXPERTS, "intermediate_size": 2048, **fields})
    assert found.experts is not None
    assert (found.experts.layers, found.dense_layers) == (sparse, 4 - sparse)
    router = next(item for item in found.matrices if item.component == "router")
    assert router.parameters == sparse * 16 * 1024


def test_indexers_are_shared_between_layers(tmp_path: Path) -> None:
    config = dict(load(preset_path("glm-5")).text)
    whole = model(tmp_path, config)
    kinds = ["full" if layer % 2 == 0 else "shared" for layer in range(78)]
    half = model(tmp_path, {**config, "indexer_types": kinds})
    assert (whole.parameters - half.parameters) / 1e6 == pytest.approx(9.37 * 39, rel=1e-3)
    assert (whole.cache.index_layers, half.cache.index_layers) == (78, 39)


def test_only_the_language_model_of_a_wrapper_counts(tmp_path: Path) -> None:
    text = dict(load(preset_path("kimi-k2")).text)
    wrapped = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": text, "vision_config": {"depth": 9}}
    found = model(tmp_path, wrapped)
    assert found.parameters == model(tmp_path, text).parameters
    assert any("only its language model" in note for note in found.notes)


def refusal(tmp_path: Path, config: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        model(tmp_path, config)
    return str(caught.value)


def test_an_unknown_architecture_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    text = refusal(tmp_path, {**DENSE, "architectures": ["MambaForCausalLM"]})
    assert "architecture MambaForCausalLM is not understood: known are LlamaForCausalLM" in text
    assert "(none)" in refusal(tmp_path, {"hidden_size": 1})


def test_an_unknown_field_that_may_change_the_shape_is_refused_by_name(tmp_path: Path) -> None:
    text = refusal(tmp_path, {**DENSE, "num_memory_experts": 4, "kv_share_layers": [1, 2]})
    assert "kv_share_layers = [1, 2], num_memory_experts = 4" in text
    assert "--accept-field kv_share_layers --accept-field num_memory_experts" in text
    found = model(tmp_path, {**DENSE, "num_memory_experts": 4}, "num_memory_experts")
    assert found.notes == ("not understood, taken as changing nothing: num_memory_experts = 4",)


def test_other_unknown_fields_are_listed(tmp_path: Path) -> None:
    found = model(tmp_path, {**DENSE, "logit_scale": 0.5, "num_memory_experts": 0, "mamba_config": None})
    assert found.notes == (
        "not understood, taken as changing nothing: logit_scale = 0.5",
        "not understood, but switched off: mamba_config, num_memory_experts",
    )


def test_experts_in_a_model_that_has_none_are_not_overlooked(tmp_path: Path) -> None:
    assert "num_experts = 8" in refusal(tmp_path, {**DENSE, "num_experts": 8})


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({**DENSE, "hidden_size": None}, "hidden_size is missing"),
        ({**DENSE, "hidden_size": "1024"}, "hidden_size is '1024', expected a positive whole number"),
        ({**DENSE, "num_hidden_layers": 0}, "num_hidden_layers is '0'"),
        ({**DENSE, "torch_dtype": "int3"}, "dtype 'int3' is not understood"),
        ({**DENSE, "layer_types": ["linear_attention"] * 4}, "layer_types has linear_attention, of which only"),
        ({**DENSE, "layer_types": ["full_attention"]}, "layer_types has 1 entries for 4 layers"),
        ({**EXPERTS, "num_experts_per_tok": 17}, "17 experts for a token, of 16"),
        ({**EXPERTS, "num_local_experts": 8}, "num_experts = 16, num_local_experts = 8: they name the same number"),
        ({**EXPERTS, "decoder_sparse_step": 0}, "decoder_sparse_step is '0'"),
        ({**EXPERTS, "moe_layer_freq": [0, 1, 1, 1]}, "moe_layer_freq is '[0, 1, 1, 1]'"),
        ({**EXPERTS, "mlp_only_layers": 3}, "mlp_only_layers is '3', expected a list of layers' numbers"),
        ({**EXPERTS, "head_dim": 0}, "head_dim is '0'"),
        ({**DENSE, "num_key_value_heads": 0}, "num_key_value_heads is '0'"),
        ({**DENSE, "torch_dtype": {"text_config": "bfloat16"}}, "is not understood: bfloat16"),
        ({"architectures": ["KimiK25ForConditionalGeneration"]}, "without text_config"),
    ],
)
def test_configs_that_make_no_sense(tmp_path: Path, config: dict[str, Any], text: str) -> None:
    assert text in refusal(tmp_path, config)


def test_what_is_missing_and_guessed_is_named(tmp_path: Path) -> None:
    """The model's own code takes something else there: 3 dense layers, a shared expert, heads of 128."""
    deepseek = dict(load(preset_path("deepseek-v3")).text)
    for name in ("first_k_dense_replace", "n_shared_experts", "q_lora_rank"):
        lacking = {key: value for key, value in deepseek.items() if key != name}
        assert f"{name} is missing in the config: taken as 0" in model(tmp_path, lacking).notes
    assert model(tmp_path, {**deepseek, "q_lora_rank": None}).notes == ()
    heads = {key: value for key, value in EXPERTS.items() if key not in ("head_dim", "num_key_value_heads")}
    assert model(tmp_path, heads).notes == (
        "head_dim is missing in the config: taken as 64",
        "num_key_value_heads is missing in the config: taken as 16",
    )


def test_what_transformers_5_calls_otherwise(tmp_path: Path) -> None:
    config = {key: value for key, value in EXPERTS.items() if key not in ("num_experts", "torch_dtype")}
    found = model(tmp_path, {**config, "num_local_experts": 16, "dtype": "torch.bfloat16"})
    assert found == model(tmp_path, EXPERTS)


def test_a_sliding_window_is_named(tmp_path: Path) -> None:
    found = model(tmp_path, {**DENSE, "sliding_window": 4096})
    assert "sliding window (4096): the KV cache is counted as if" in found.notes[0]
    assert model(tmp_path, {**DENSE, "sliding_window": 4096, "use_sliding_window": False}).notes == ()


def test_a_model_in_the_cache_of_the_hub_has_its_own_name(tmp_path: Path) -> None:
    blob, link = (tmp_path / "models--org--Small-1B" / name for name in ("blobs/0a1b", "snapshots/6f3c/config.json"))
    for path in (blob, link):
        path.parent.mkdir(parents=True)
    blob.write_text(json.dumps(DENSE))
    link.symlink_to(blob)
    assert ask("--config", str(link)).shape.title == "Small-1B"


def test_files_that_are_no_configs(tmp_path: Path) -> None:
    for content in ("[]", "{", ""):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(InputError, match="config"):
            load(tmp_path / "config.json")
    with pytest.raises(InputError, match="a preset"):
        load(tmp_path / "missing.json")


def test_hf_quant_config_beside_is_read_unless_the_config_says_it(tmp_path: Path) -> None:
    quant = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    beside = of_config(tmp_path, DENSE, quant=quant)
    assert ("attention", "FP8") in read_gb(beside)
    assert any("from hf_quant_config.json beside it" in item.text for item in beside.assumptions)
    own = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
    assert ("attention", "INT4") in read_gb(of_config(tmp_path, {**DENSE, "quantization_config": own}, quant=quant))
