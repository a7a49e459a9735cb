"""Which module of a checkpoint has which precision: every writer's own way of saying it, and lists of exceptions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ceiling_cases import DENSE, EXPERTS, ask, glm, of_config, read_gb
from hypothesis import given
from hypothesis import strategies as st

from gpuhost_cli.ceiling_formats import FORMATS, WHOLE, Format, fp8, integers, mxfp, nvfp4
from gpuhost_cli.ceiling_match import Entries, variants
from gpuhost_cli.ceiling_quant import Scheme, scheme_of
from gpuhost_cli.run import InputError


def scheme(**config: Any) -> Scheme:
    return scheme_of(config, "bf16")


def format_of(found: Scheme, module: str, component: str = "attention") -> Format:
    return found.format_of(component, module)[0]


Q, GATE, ROUTER = "model.layers.3.self_attn.q_proj", "model.layers.3.mlp.gate_proj", "model.layers.3.mlp.gate"
EXPERT = "model.layers.3.mlp.experts.0.up_proj"
TENSORS = "compressed-tensors"


@pytest.mark.parametrize(
    ("made", "rows", "columns", "stored"),
    [
        (FORMATS["bf16"], 8, 16, 256),
        (nvfp4(), 4, 32, 4 * 32 / 2 + 4 * 2),  # one FP8 scale for each 16
        (nvfp4(), 1, 17, 17 / 2 + 2),  # a group that is not full has a scale too
        (mxfp(4), 4, 64, 4 * 64 / 2 + 4 * 2),
        (fp8(), 4, 64, 4 * 64 + 4),
        (fp8((1, WHOLE)), 4, 64, 4 * 64 + 4 * 4),
        (fp8((128, 128)), 256, 130, 256 * 130 + 2 * 2 * 4),
        (integers(4, 128, zero_point=False), 2, 256, 2 * 128 + 2 * 2 * 2),
        (integers(4, 128, zero_point=True), 2, 256, 2 * 128 + 2 * 2 * 2.5),
        (integers(4, -1, zero_point=False), 2, 256, 2 * 128 + 2 * 2),
        (integers(8, WHOLE, zero_point=False), 2, 256, 2 * 256 + 2 * 2),
    ],
)
def test_bytes_with_scales(made: Format, rows: int, columns: int, stored: float) -> None:
    assert made.stored_bytes(rows, columns) == stored


@given(st.sampled_from(sorted(FORMATS)), st.integers(1, 3000), st.integers(1, 3000))
def test_scales_only_add(name: str, rows: int, columns: int) -> None:
    made = FORMATS[name]
    assert made.stored_bytes(rows, columns) >= rows * columns * made.bits / 8
    assert (
        made.stored_bytes(rows, columns) <= rows * (columns + 128) * made.bits / 8 + 3 * rows * (columns / 16 + 1) + 4
    )


@pytest.mark.parametrize(
    ("entry", "module", "covers"),
    [
        ("model.layers.3.mlp.gate", ROUTER, True),
        ("model.layers.3.mlp.gate", GATE, False),  # the famous one: gate is not gate_proj
        ("mlp.gate", ROUTER, True),
        ("model.layers.3.self_attn", Q, True),  # a parent covers what is below it
        ("model.layers.3.self_attn*", Q, True),
        ("model.layers.*.self_attn.q_proj", Q, True),
        ("model.layers.30*", Q, False),
        ("model.layers.3*", "model.layers.30.self_attn.q_proj", True),  # * is any text, as for engines
        ("model.layers.3.*", "model.layers.30.self_attn.q_proj", False),
        ("*.mlp.shared_experts.*", "model.layers.3.mlp.shared_experts.up_proj", True),
        (r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", GATE, True),
        (r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", EXPERT, False),
        ("re:self_attn", Q, False),  # from the beginning, as re.match does
        ("self_attn.qkv_proj", Q, True),
        ("model.layers.3.mlp.gate_up_proj", GATE, True),
        ("language_model.model.layers.3.self_attn*", Q, True),
        ("model.language_model.layers.3.self_attn*", Q, True),
        ("lm_head", "lm_head", True),
        ("head", "lm_head", False),
        ("model.layers.3.self_attn.indexers_proj", "model.layers.3.self_attn.indexer.weights_proj", True),
    ],
)
def test_entries_of_lists(entry: str, module: str, covers: bool) -> None:
    assert bool(Entries((entry,)).covering(module)) is covers


@given(st.lists(st.sampled_from(["a", "b", "gate", "gate_proj"]), min_size=1, max_size=5), st.data())
def test_a_literal_entry_covers_whole_names_only(parts: list[str], data: st.DataObject) -> None:
    name = ".".join(parts)
    entry = ".".join(data.draw(st.lists(st.sampled_from(["a", "b", "gate"]), min_size=1, max_size=3)))
    assert bool(Entries((entry,)).covering(name)) == (f".{entry}." in f".{name}.")


def test_modelopt_nvfp4() -> None:
    found = scheme(quant_algo="NVFP4", group_size=16, exclude_modules=["model.layers.*.self_attn*"])
    assert format_of(found, Q) == FORMATS["bf16"]
    assert format_of(found, EXPERT, "routed_experts") == nvfp4()
    assert format_of(found, ROUTER, "router") == FORMATS["bf16"]
    assert format_of(found, "lm_head", "lm_head") == FORMATS["bf16"]


def test_modelopt_mixed_has_a_format_for_each_module() -> None:
    layers = {Q: {"quant_algo": "FP8"}, EXPERT: {"quant_algo": "NVFP4", "group_size": 16}}
    found = scheme(quant_method="modelopt", quant_algo="MIXED_PRECISION", quantized_layers=layers)
    assert (format_of(found, Q), format_of(found, EXPERT, "routed_experts")) == (fp8(), nvfp4())
    assert format_of(found, GATE, "dense_mlp") == FORMATS["bf16"]


def test_blocks_of_fp8_leave_head_and_router() -> None:
    found = scheme(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128])
    assert format_of(found, Q) == fp8((128, 128))
    assert format_of(found, "lm_head", "lm_head") == FORMATS["bf16"]
    assert found.notes == ()
    listed = scheme(quant_method="fp8", modules_to_not_convert=["model.layers.3.self_attn.q_proj"])
    assert (format_of(listed, Q), format_of(listed, GATE)) == (FORMATS["bf16"], fp8())


@pytest.mark.parametrize(
    ("weights", "made"),
    [
        ({"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}, nvfp4()),
        ({"num_bits": 4, "type": "float", "group_size": 32}, mxfp(4)),
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, fp8((1, WHOLE))),
        ({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}, fp8((128, 128))),
        ({"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
         integers(8, WHOLE, zero_point=False, activations=True)),
    ],
)  # fmt: skip
def test_compressed_tensors(weights: dict[str, Any], made: Format) -> None:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": {"num_bits": 8}}}
    found = scheme(quant_method=TENSORS, config_groups=groups, ignore=["lm_head", "re:.*self_attn.*"])
    assert format_of(found, GATE, "dense_mlp") == made
    assert format_of(found, Q) == FORMATS["bf16"]


def test_weights_only_are_multiplied_as_bf16() -> None:
    weights = {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": True, "strategy": "group"}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    found = format_of(scheme(quant_method=TENSORS, config_groups=groups), Q)
    assert (found.peak, found.stored_bytes(1, 32)) == ("bf16", 18)


def test_groups_with_targets_of_their_own() -> None:
    groups = {
        "all": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}},
        "experts": {"targets": [r"re:.*experts\..*"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}},
    }
    found = scheme(quant_method=TENSORS, config_groups=groups)
    assert format_of(found, Q).name == "FP8"
    assert format_of(found, EXPERT, "routed_experts").name == "NVFP4"


def test_awq_and_gptq() -> None:
    awq = scheme(quant_method="awq", bits=4, group_size=128, zero_point=True, modules_to_not_convert=["self_attn"])
    assert (format_of(awq, Q).name, format_of(awq, GATE).zero_bytes) == ("BF16", 0.5)
    gptq = scheme(quant_method="gptq", bits=4, group_size=128, sym=True, desc_act=True, lm_head=True)
    assert format_of(gptq, Q).zero_bytes == 0
    assert format_of(gptq, "lm_head", "lm_head").name == "INT4"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"quant_method": "exl3"}, "quant_method exl3 is not understood: known are awq"),
        ({}, "quant_method (none)"),
        ({"quant_algo": "W3A5"}, "quant_algo W3A5 is not understood"),
        ({"quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}, "KV cache format NVFP4"),
        ({"quant_algo": "MIXED_PRECISION"}, "MIXED_PRECISION without quantized_layers"),
        ({"quant_method": "gptq", "bits": 5, "group_size": 128}, "5 bits in groups of 128"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:x": {}}}, "dynamic"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size 128"),
        ({"quant_method": TENSORS, "config_groups": {}}, "config_groups without weights"),
        ({"quant_method": TENSORS, "config_groups": {"a": {"weights": {"num_bits": 2}}}}, "weights of 2 bit int"),
        ({"quant_method": TENSORS, "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        ({"quant_algo": "NVFP4", "exclude_modules": ["re:("]}, r"re:(: no regular expression"),
        ("fp8", "'fp8' is not understood: an object is expected"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method bitsandbytes is not understood"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size [0, 128]"),
        ({"quant_method": "fp8", "ignored_layers": "lm_head"}, "ignored_layers lm_head is not understood: a list"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "4 bits in groups of 0"),
        ({"quant_method": "awq", "bits": [4]}, "quantization_config: int() argument"),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": "FP8"}}, "a FP8 is not understood: an object"),
        ({"quant_method": TENSORS, "config_groups": ["a"]}, "config_groups ['a'] is not understood: an object"),
        ({"quant_method": TENSORS, "config_groups": {"a": [1]}}, "a [1] is not understood: an object"),
        (
            {
                "quant_method": TENSORS,
                "config_groups": {"a": {"weights": {"num_bits": 8, "type": "float", "strategy": "block"}}},
            },
            "block_structure None is not understood: two sizes",
        ),
    ],
)
def test_what_is_not_understood_is_refused(config: Any, text: str) -> None:
    with pytest.raises(InputError) as caught:
        scheme_of(config, "bf16")
    assert text in str(caught.value)


def test_unknown_keys_are_listed() -> None:
    found = scheme(quant_method="fp8", weight_block_size=[128, 128], rotation="hadamard")
    assert found.notes == ("quantization_config: not understood: rotation = hadamard",)


def test_entries_that_name_nothing_are_listed(tmp_path: Path) -> None:
    config = {**DENSE, "quantization_config": {"quant_algo": "FP8", "ignore": ["lm_head", "model.layers.7*", "visual"]}}
    found = of_config(tmp_path, config)
    assert "in the checkpoint's lists, but nothing that is counted here: model.layers.7*, visual" in found.notes


def test_layers_may_differ(tmp_path: Path) -> None:
    quant = {"quant_algo": "NVFP4", "ignore": ["model.layers.0.*", "lm_head"]}
    found = of_config(tmp_path, {**DENSE, "quantization_config": quant}, "--tp", "1", "--gpus", "1")
    read = read_gb(found)
    mlp = 3 * 4096 * 1024 / 1e9
    assert read["dense_mlp", "BF16"] == pytest.approx(2 * mlp)
    assert read["dense_mlp", "NVFP4"] == pytest.approx(3 * 0.5625 * mlp)


def test_experts_may_differ(tmp_path: Path) -> None:
    quant = {"quant_algo": "NVFP4", "ignore": ["model.layers.*.mlp.experts.5.*"]}
    found = of_config(tmp_path, {**EXPERTS, "quantization_config": quant}, "--gpus", "1")
    held = {part.format: part.parameters for part in found.parts if part.component == "routed_experts"}
    assert held["BF16"] * 15 == held["NVFP4"]


def test_the_checkpoints_cache_format_is_used() -> None:
    assert glm().traffic.kv_token_bytes * 2 == glm("--kv-cache-dtype", "bf16").traffic.kv_token_bytes == 89856
    assert "the checkpoint asks for a KV cache in FP8" in glm().notes


def test_one_format_for_all_and_for_single_parts() -> None:
    found = ask("--preset", "llama-3-8b", "--weights", "nvfp4", "--precision", "lm_head=bf16")
    formats = {part.component: part.format for part in found.parts}
    assert formats == {"attention": "NVFP4", "dense_mlp": "NVFP4", "lm_head": "BF16", "embedding": "NVFP4"}
    assert any("all weights NVFP4" in item.text and "lm_head BF16" in item.text for item in found.assumptions)


def test_one_format_for_all_does_without_the_checkpoints_own(tmp_path: Path) -> None:
    config = {**DENSE, "quantization_config": {"quant_method": "exl3"}}
    with pytest.raises(InputError, match="--weights FORMAT sums it up as one format"):
        of_config(tmp_path, config)
    assert {part.format for part in of_config(tmp_path, config, "--weights", "int4").parts} == {"INT4"}


NAMES = [
    "lm_head",
    *(
        f"model.layers.{layer}.{rest}"
        for layer in (3, 33)
        for rest in ("self_attn.q_proj", "mlp.gate", "mlp.gate_proj", "mlp.experts.3.up_proj", "mlp.experts.33.up_proj")
    ),
]
ENTRIES = [
    *NAMES, "mlp.gate", "layers.3", "model.layers.3", "model.layers.3*", "model.layers.3.*", "*layers.3.mlp*", "*.33.*",
    "model.layers.3.mlp.experts.3*", "*self_attn", "re:.*layers.3.mlp", "gate", "model", "experts.3", "*",
    "layers.*.mlp", "model.layers.3*.mlp", "q_proj", "proj", "language_model.model.layers.33.self_attn", "3",
]  # fmt: skip


@given(st.lists(st.sampled_from(ENTRIES), max_size=6, unique=True))
def test_entries_looked_up_by_layer_are_those_of_one_by_one(entries: list[str]) -> None:
    """A list of 45,000 modules took 24 seconds, and globs minutes: each entry was held against each module."""

    def covers(entry: str, name: str) -> bool:
        if entry.startswith("re:"):
            return re.match(entry[3:], name) is not None
        if "*" not in entry:
            return f".{entry}." in f".{name}."
        body = ".*".join(re.escape(part) for part in entry.split("*"))
        return re.match(rf"(?:.*\.)?{body}" + ("" if entry.endswith("*") else r"(?:\.|$)"), name) is not None

    for module in NAMES:
        wanted = {entry for entry in entries if any(covers(entry, name) for name in variants(module))}
        assert set(Entries(tuple(entries)).covering(module)) == wanted
