"""Tensor, expert and pipeline parallelism: what is possible, what a rank holds and reads, what waits for what."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from ceiling_cases import DENSE, EXPERTS, ask, batch, glm, of_config, term
from hypothesis import given
from hypothesis import strategies as st

from gpuhost_cli import ceiling_text
from gpuhost_cli.ceiling_model import Experts, distinct_experts
from gpuhost_cli.ceiling_parallel import fullest_rank
from gpuhost_cli.ceiling_report import as_json
from gpuhost_cli.run import InputError


def refusal(*argv: str) -> str:
    with pytest.raises(InputError) as caught:
        ask(*argv)
    return str(caught.value)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (("--preset", "glm-5", "--gpus", "12"), "--tp 12: does not divide 64 attention heads, nor the shared experts'"),
        (("--preset", "glm-4.5", "--gpus", "12"), "8 key and value heads (nor is it a multiple of them)"),
        (("--preset", "glm-4.5-air", "--gpus", "3"), "possible for GLM-4.5-Air: 1, 2, 4, 8, 16, 32"),
        (("--preset", "glm-4.5-air", "--gpus", "5"), "the dense MLP's width 10944"),
        (("--preset", "qwen3-30b-a3b", "--gpus", "3"), "does not divide 32 attention heads"),
        (("--preset", "qwen3-235b-a22b", "--gpus", "5"), "the experts' width 1536, nor the vocabulary of 151936"),
        (("--preset", "llama-3-8b", "--ep", "2"), "--ep 2: Llama-3 8B has no experts"),
        (("--preset", "glm-5", "--ep", "3"), "--ep 3: does not divide the 8 ranks of --tp"),
        (("--preset", "glm-5", "--tp", "16"), "--tp 16 x --pp 1 are 16 GPUs, the machine has 8"),
        (("--preset", "glm-5", "--pp", "3"), "--pp 3: does not divide the 8 GPUs"),
        (("--preset", "llama-3-8b", "--pp", "64", "--tp", "1", "--gpus", "64"), "has 32 layers, and a stage needs one"),
    ],
)  # fmt: skip
def test_what_is_not_possible_is_refused_with_what_is(argv: tuple[str, ...], text: str) -> None:
    assert text in refusal(*argv)


def test_possible_sizes_are_possible() -> None:
    text = refusal("--preset", "glm-4.5", "--tp", "7")
    sizes = text.rpartition(": ")[2].split(", ")
    for size in sizes:
        assert ask("--preset", "glm-4.5", "--tp", size, "--gpus", size).tp == int(size)


def test_experts_that_cant_be_shared_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--ep 3: 16 experts can't be shared out evenly; possible: 1"):
        of_config(tmp_path, {**EXPERTS, "num_attention_heads": 12, "num_key_value_heads": 12, "vocab_size": 30000},
                  "--tp", "3", "--ep", "3")  # fmt: skip


def test_the_vocabulary_is_filled_up_before_it_is_cut(tmp_path: Path) -> None:
    """A token that was added for padding: 32001 are 32064 to the engines, which 2 and 4 divide, but 64 x 501 not 5."""
    for tp in ("2", "4"):
        assert of_config(tmp_path, {**DENSE, "vocab_size": 32001}, "--tp", tp).tp == int(tp)
    heads = {"num_attention_heads": 20, "num_key_value_heads": 20, "hidden_size": 1280, "intermediate_size": 5120}
    with pytest.raises(InputError, match="--tp 5: does not divide the vocabulary of 32001"):
        of_config(tmp_path, {**DENSE, **heads, "vocab_size": 32001}, "--tp", "5")


def test_more_ranks_than_key_and_value_heads_copy_them() -> None:
    four, eight = ask("--preset", "qwen3-30b-a3b", "--gpus", "4"), ask("--preset", "qwen3-30b-a3b", "--context", "1000")
    keys = next(part for part in eight.parts if "2 copies" in part.place)
    assert keys.token_bytes == pytest.approx(keys.parameters * 2 / 4)
    assert eight.traffic.kv_stream_bytes == pytest.approx(98304 * 1000 / 4)
    assert eight.traffic.kv_place == "1/4 on each rank (each head on 2 ranks)"
    assert any("tp 8 is more than the 4 key and value heads: each is on 2 ranks" in note for note in eight.notes)
    assert not any("key and value heads" in note for note in four.notes)


def test_latents_cache_is_on_every_rank() -> None:
    found = ask("--preset", "deepseek-v3", "--context", "1000", "--kv-cache-dtype", "bf16")
    assert found.traffic.kv_stream_bytes == 70272 * 1000


def test_sparse_attention_reads_its_top_but_all_keys() -> None:
    found = glm("--context", "100000", "--kv-cache-dtype", "bf16")
    assert found.traffic.kv_stream_bytes == 2048 * 89856 + 100000 * 78 * 132
    few = glm("--context", "1000", "--kv-cache-dtype", "bf16", "--index-key-bytes", "100")
    assert few.traffic.kv_stream_bytes == 1000 * 89856 + 1000 * 78 * 100


def test_what_is_laid_out_otherwise_is_said() -> None:
    found = glm("--replicate", "lm_head", "--shard", "indexer")
    place = {part.component: part.place for part in found.parts}
    assert (place["lm_head"], place["indexer"], place["router"]) == ("replicated", "1/8", "replicated")
    assert "laid out otherwise than engines do: indexer, lm_head" in found.notes


def test_one_gpu_has_no_all_reduces() -> None:
    found = ask("--preset", "qwen3-30b-a3b", "--gpus", "1")
    assert found.traffic.allreduces == 0
    assert {each.key for each in found.terms} == {"weights", "arithmetic"}
    assert not any("all-reduce" in item.name for item in found.inputs)


def test_slices_that_end_within_a_group_of_scales_are_said() -> None:
    found = ask("--preset", "glm-4.5-air", "--weights", "fp8-block")
    expected = "routed experts: a rank's slice is 176 wide, no multiple of the 128 weights that share a scale in FP8"
    assert any(note.startswith(expected) for note in found.notes)
    whole = ask("--preset", "glm-4.5-air", "--weights", "fp8-block", "--ep", "8")
    assert not any(note.startswith("routed experts") for note in whole.notes)


def test_gpus_that_are_not_used_are_said() -> None:
    assert "4 of 8 GPUs are used: the figures are for one replica" in glm("--tp", "4").notes


# --- expert parallelism


def by_counting(total: int, ranks: int, chosen: int) -> float:
    """The average over all choices there are."""
    each = total // ranks
    fullest = [
        max(Counter(one // each for one in choice).values()) for choice in itertools.combinations(range(total), chosen)
    ]
    return sum(fullest) / len(fullest)


@pytest.mark.parametrize(("total", "ranks", "chosen"), [(8, 2, 3), (8, 4, 4), (12, 3, 5), (9, 9, 4), (10, 1, 4)])
def test_the_fullest_rank_by_counting(total: int, ranks: int, chosen: int) -> None:
    assert fullest_rank(total, ranks, chosen) == pytest.approx(by_counting(total, ranks, chosen))


@given(st.sampled_from([(64, 8), (128, 16), (256, 8)]), st.floats(1, 64))
def test_the_fullest_rank_is_between_even_and_all(shape: tuple[int, int], chosen: float) -> None:
    total, ranks = shape
    found = fullest_rank(total, ranks, chosen)
    assert chosen / ranks - 1e-9 <= found <= min(chosen, total / ranks) + 1e-9
    assert found <= fullest_rank(total, ranks, min(chosen + 1, total)) + 1e-9


@given(st.integers(1, 512), st.integers(1, 32), st.integers(1, 2048))
def test_distinct_experts(total: int, used: int, tokens: int) -> None:
    used = min(used, total)
    found = distinct_experts(Experts(total, used, 1, 1), tokens)
    assert used - 1e-9 <= found <= min(total, used * tokens) + 1e-9


def test_whole_experts_wait_for_the_fullest_rank() -> None:
    sliced, whole, even = glm(), glm("--ep", "8"), glm("--ep", "8", "--expert-load", "even")
    assert even.traffic.token_bytes == pytest.approx(sliced.traffic.token_bytes)
    routed = next(part.token_bytes for part in sliced.parts if part.component == "routed_experts")
    more = (fullest_rank(256, 8, 8) - 1) * routed
    assert whole.traffic.token_bytes == pytest.approx(sliced.traffic.token_bytes + more)
    assert sum(part.token_bytes for part in whole.parts) == pytest.approx(whole.traffic.token_bytes)
    assert whole.traffic.held_bytes == pytest.approx(sliced.traffic.held_bytes)
    assert batch(whole, 1024).weight_bytes == pytest.approx(batch(sliced, 1024).weight_bytes, rel=1e-6)


def test_experts_may_be_whole_on_some_ranks_and_sliced_within() -> None:
    found = glm("--ep", "4")
    assert next(part.place for part in found.parts if part.component == "routed_experts") == "1/4 of experts, 1/2 wide"


# --- pipeline parallelism


def test_a_token_passes_all_stages() -> None:
    flat, staged = ask("--preset", "llama-3-70b", "--tp", "4"), ask("--preset", "llama-3-70b", "--pp", "2")
    assert (staged.tp, staged.pp) == (4, 2)
    assert staged.traffic.token_bytes == flat.traffic.token_bytes
    assert staged.traffic.held_bytes == flat.traffic.held_bytes / 2
    assert term(staged, "stages").seconds == pytest.approx(16384 / 40e9)
    assert staged.sum_s == pytest.approx(flat.sum_s + 16384 / 40e9)


def test_stages_work_on_different_streams() -> None:
    staged = ask("--preset", "llama-3-70b", "--pp", "2")
    assert batch(staged, 2).tok_s == pytest.approx(2 * batch(staged, 1).tok_s)


def test_the_longest_stage_sets_the_pace() -> None:
    even, uneven = ask("--preset", "qwen3-235b-a22b", "--pp", "2"), ask("--preset", "qwen3-235b-a22b", "--pp", "4")
    assert batch(even, 1).seconds < batch(uneven, 1).seconds
    once = batch(uneven, 1).seconds
    assert batch(uneven, 4).seconds == pytest.approx(once * 24 * 4 / 94)


def test_with_stages_what_one_gpu_reads_is_told_from_what_all_of_them_read() -> None:
    flat, staged = glm("--tp", "4"), glm("--tp", "4", "--pp", "2")
    read = flat.traffic.token_bytes / 1e9
    assert any(f"reads {read:.3f} GB for a token. Both are one GPU's" in text for text in flat.readings)
    assert any(f"reads {read / 2:.3f} GB for a token. Both are one GPU's" in text for text in staged.readings)
    assert any(f"each of the 2 stages, one after the other: {read:.3f} GB in all" in text for text in staged.readings)
    assert "(GB read: of one GPU of each of the 2 stages together)" in ceiling_text.render(staged)
    assert "stages" not in ceiling_text.render(flat)


@pytest.mark.parametrize("option", ["--context", "--concurrency", "--extra-allreduces", "--kv-pool-cast-tokens"])
def test_counts_that_nothing_has_are_refused(capsys: pytest.CaptureFixture[str], option: str) -> None:
    with pytest.raises(SystemExit):
        glm(option, "1" + 400 * "0")
    assert "is more than anything has" in capsys.readouterr().err
    found = glm(option, "999999999999", "--gpu-memory-gb-s", "1e-12", "--measured-tok-s", "1e12")
    assert json.loads(as_json(found))["sum_s"] == found.sum_s
    rows = ceiling_text.render(found).partition("Batches")[2].partition("\n\n")[0].splitlines()
    assert len(rows) == 2 + len(found.steps), "each batch has one line"


@pytest.mark.parametrize("value", ["1e-305", "1e300"])
def test_rates_that_nothing_has_are_refused(capsys: pytest.CaptureFixture[str], value: str) -> None:
    with pytest.raises(SystemExit):
        glm("--gpu-memory-gb-s", value)
    assert f"'{value}' is no size that anything has" in capsys.readouterr().err
