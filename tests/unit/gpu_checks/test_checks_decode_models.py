"""The models of the check ``decode``: presets as ``gpuhost ceiling`` has them, shapes by hand, and every refusal."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from gpu_checks import registry
from gpu_checks.decode import models as decode_models
from gpu_checks.decode.check import tag_of
from gpu_checks.decode.models import BadModel, for_rank, load, model_of
from gpu_checks.decode.presets import PRESETS
from gpu_checks.decode.stack import (
    ELEMENT,
    cache_shapes,
    fitting,
    head_bytes,
    layer_bytes,
    shapes_of_attention,
    shapes_of_mlp,
)

REPOSITORY = Path(__file__).resolve().parents[3]
CEILING = REPOSITORY / "cli/ceiling_data/presets"


def config_of(name):
    return json.loads((CEILING / name / "config.json").read_text())


def test_the_presets_are_those_of_ceiling():
    assert set(PRESETS) == {path.name for path in CEILING.iterdir()}
    assert registry.Options().model == decode_models.DEFAULT


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_what_its_config_has(name):
    """The same fields; and the whole config gives the same shapes, so that none is left out that decides one."""
    config = config_of(name)
    assert {field: config.get(field) for field in PRESETS[name]} == PRESETS[name]
    ours, whole = load(name), model_of(config, name)
    assert {**vars(whole), "notes": ()} == {**vars(ours), "notes": ()}


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("name", PRESETS)
def test_a_rank_reads_what_ceiling_says(name, tp):
    """Weights of one rank, matrix by matrix, against the arithmetic of another program."""
    config = pytest.importorskip("gpuhost_cli.ceiling_config")
    parallel = pytest.importorskip("gpuhost_cli.ceiling_parallel")
    theirs = config.model_of(config.load(config.preset_path(name)), name, set())
    layout = parallel.Layout(tp)
    expected = {}
    for matrix in theirs.matrices:
        share = parallel.place_of(matrix, theirs, layout).share
        expected[matrix.component] = expected.get(matrix.component, 0) + matrix.parameters * share
    ours = for_rank(load(name), tp)
    attention = {key: math.prod(shape) for key, shape in shapes_of_attention(ours).items()}
    indexer = sum(size for key, size in attention.items() if key.startswith("index_"))
    all_attention = sum(attention.values()) * ours.layers
    assert all_attention == sum(expected.get(each, 0) for each in ("attention", "attention_a", "indexer"))
    assert indexer * ours.layers == expected.get("indexer", 0)
    sparse = shapes_of_mlp(ours, True) if ours.sparse else {}
    dense = shapes_of_mlp(ours, False) if ours.dense else {}
    of = {key: math.prod(shape) * ours.sparse for key, shape in sparse.items()}
    assert of.get("expert_up", 0) + of.get("expert_down", 0) == expected.get("routed_experts", 0)
    assert of.get("shared_up", 0) + of.get("shared_down", 0) == expected.get("shared_experts", 0)
    assert of.get("router", 0) == expected.get("router", 0)
    assert sum(math.prod(shape) for shape in dense.values()) * ours.dense == expected.get("dense_mlp", 0)
    assert head_bytes(ours) // ELEMENT == expected["lm_head"] + expected.get("embedding", 0)
    share = parallel.cache_share(theirs, layout).share
    assert ours.kv_values * ours.layers == theirs.cache.values * theirs.layers * share


def test_shapes_by_hand():
    qwen = for_rank(load("qwen3-30b-a3b"), 1)
    assert shapes_of_attention(qwen) == {"qkv": (5120, 2048), "o": (2048, 4096)}
    assert shapes_of_mlp(qwen, True) == {
        "router": (128, 2048), "expert_up": (128, 1536, 2048), "expert_down": (128, 2048, 768),
    }  # fmt: skip
    assert cache_shapes(qwen, 2, 4096) == {"key_cache": (2, 4, 4096, 128), "value_cache": (2, 4, 4096, 128)}
    # 48 layers of 1,254,621,184 bytes, 402 MB of them cache in all, and 1.245 GB of embedding and lm_head.
    assert 48 * layer_bytes(qwen, True, 1, 4096) + head_bytes(qwen) == 61_466_476_544
    glm = for_rank(load("glm-5"), 8)
    assert shapes_of_attention(glm) == {
        "qkv_a": (2624, 6144), "q_b": (2048, 2048), "k_up": (8, 192, 512), "v_up": (8, 512, 256), "o": (6144, 2048),
        "index_q": (4096, 2048), "index_k": (128, 6144), "index_weights": (32, 6144),
    }  # fmt: skip
    assert shapes_of_mlp(glm, True)["expert_up"] == (256, 512, 6144)
    assert cache_shapes(glm, 1, 4096) == {"latent_cache": (1, 4096, 576), "index_cache": (1, 4096, 128)}
    assert (load("llama-3-8b").layers, load("llama-3-8b").sparse, load("llama-3-8b").norm_heads) == (32, 0, False)
    assert (load("glm-4.5").turned, load("deepseek-v3").turned, load("qwen3-30b-a3b").turned) == (64, 64, 128)


@pytest.mark.parametrize(
    ("name", "tp", "said"),
    [
        ("glm-5", 3, "glm-5 can't be cut over 3 ranks: 64 heads; "),
        ("qwen3-30b-a3b", 3, "4 heads of keys and values; the vocabulary of 151936; possible: 1, 2, 4, 8, 16, 32"),
        ("glm-4.5-air", 32, "the width of dense layers, 10944; the width of experts, 1408"),
    ],
)
def test_a_size_that_does_not_fit_is_refused_with_those_that_do(name, tp, said):
    with pytest.raises(BadModel, match="possible: 1, 2") as caught:
        for_rank(load(name), tp)
    assert said in str(caught.value)


def test_a_key_head_is_on_several_ranks():
    assert for_rank(load("qwen3-30b-a3b"), 8).kv_heads == 1


GOOD = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96, "intermediate_size": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("llama-9", "llama-9 is no preset (glm-5, "),
        ("{broken", "not JSON"),
        ("{}", "hidden_size is missing"),
        (json.dumps({**GOOD, "hidden_size": "64"}), "hidden_size = '64' is no size"),
        (json.dumps({**GOOD, "num_attention_heads": 0}), "without hidden size, heads or layers"),
        (json.dumps({**GOOD, "n_routed_experts": 8}), "num_experts_per_tok is missing"),
        (json.dumps({**GOOD, "kv_lora_rank": 32}), "qk_nope_head_dim is missing"),
        (json.dumps({**GOOD, "num_experts": 8, "decoder_sparse_step": 0}), "no layer has experts"),
        (json.dumps({**GOOD, "vocab_size": None}), "vocab_size is missing"),
        (json.dumps({**GOOD, "num_local_experts": 8, "num_experts_per_tok": 2}), "moe_intermediate_size is missing"),
        (json.dumps({**GOOD, "linear_num_key_heads": 16}), "linear_num_key_heads: a kind of model"),
        (json.dumps({**GOOD, "layer_types": ["linear_attention", "full_attention"]}), "linear_attention: a kind"),
        (json.dumps({**GOOD, "num_key_value_heads": 3}), "4 heads can't share 3 heads of keys and values"),
        (json.dumps({**GOOD, "num_key_value_heads": 0}), "4 heads can't share 0 heads"),
        (json.dumps({**GOOD, "layer_types": 3}), "layer_types = 3 is no list"),
        (json.dumps({**GOOD, "num_experts": 8, "num_experts_per_tok": 9}), "9 of 8 experts"),
        (json.dumps({**GOOD, "num_experts": 8, "mlp_only_layers": 1}), "mlp_only_layers = 1 is no list"),
        (json.dumps({**GOOD, "num_experts": 8, "mlp_layer_types": ["sparse"]}), "for each of 2 layers"),
        (json.dumps({**GOOD, "partial_rotary_factor": "half"}), "partial_rotary_factor = 'half' is no share"),
    ],
)
def test_what_is_no_model_is_refused(text, said):
    with pytest.raises(BadModel) as caught:
        load(text)
    assert said in str(caught.value)


def test_what_says_nothing_is_no_other_kind_of_model():
    """Fields that a configuration class writes without using them."""
    unused = {"num_local_experts": None, "shared_expert_intermediate_size": 0, "layer_types": ["full_attention"] * 2}
    assert load(json.dumps({**GOOD, **unused})) == load(json.dumps(GOOD))


def test_experts_as_transformers_5_counts_them():
    config = config_of("qwen3-30b-a3b")
    config["num_local_experts"] = config.pop("num_experts")
    assert (load(json.dumps(config)).experts, load(json.dumps(config)).sparse) == (128, 48)


def test_layers_with_experts_are_named_one_by_one():
    moe = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    found = load(json.dumps({**GOOD, **moe, "mlp_layer_types": ["dense", "sparse"]}))
    assert (found.dense, found.sparse) == (1, 1)


@pytest.mark.parametrize("window", [{"sliding_window": 4096}, {"layer_types": ["sliding_attention", "full_attention"]}])
def test_a_sliding_window_is_said(window):
    assert "sliding windows are left out" in load(json.dumps({**GOOD, **window})).notes[0]
    assert load(json.dumps({**GOOD, "sliding_window": 4096, "use_sliding_window": False})).notes == ()


def test_two_configs_without_a_name_have_names_of_their_own():
    """Else the second model would be held against the first one's baseline."""

    def tag(**changes):
        text = json.dumps({**GOOD, **changes})
        return tag_of(for_rank(load(text), 2), registry.Options(model=text, tp=2))

    assert tag() == tag(rope_theta=5e5, torch_dtype="bfloat16")
    assert re.fullmatch(r"config_[0-9a-f]{8}-tp2-b1-c4096", tag())
    others = [tag(), tag(hidden_size=128), tag(num_hidden_layers=3), tag(intermediate_size=256), tag(vocab_size=98)]
    assert len(set(others)) == len(others)
    preset = for_rank(load("glm-5"), 8)
    assert tag_of(preset, registry.Options(model="glm-5", tp=8)) == "glm-5-tp8-b1-c4096"


def test_a_file_is_called_by_its_folder(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(GOOD))
    assert load(str(folder / "config.json")).name == "my-model"
    (folder / "config.json").write_text("[]")
    with pytest.raises(BadModel, match="not an object"):
        load(str(folder / "config.json"))


def test_a_model_that_also_sees():
    assert load(json.dumps({"text_config": GOOD, "vision_config": {}})).hidden == 64


def test_layers_that_fit():
    qwen = for_rank(load("qwen3-30b-a3b"), 1)
    whole = fitting(qwen, 1, 4096, 62 << 30)
    assert (whole.layers, whole.sparse) == (48, 48)
    # 20 GB less 1.245 GB for embedding and lm_head, by 1.2546 GB a layer.
    assert fitting(qwen, 1, 4096, 20_000_000_000).layers == 14
    assert fitting(qwen, 1, 4096, 3_000_000_000) is None
    deepseek = for_rank(load("deepseek-v3"), 8)
    part = fitting(deepseek, 1, 4096, 100 << 30)
    assert (part.dense, part.layers < deepseek.layers) == (3, True)
    # 64.4 GB less 4.2 GB, by 1.711 GB of weights and 17 MB of cache.
    assert fitting(for_rank(load("llama-3-70b"), 1), 1, 4096, 60 << 30).dense == 34
