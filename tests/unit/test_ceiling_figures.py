"""The figures of the incident, and of the honest sum, from the formulas; and the twelve mistakes made with them.

Each figure stands as it is printed. The published one is the formula's own result, rounded as shown here.
"""

from __future__ import annotations

import math

import pytest
from ceiling_cases import ask, batch, glm, read_gb, term

from gpuhost_cli import ceiling_text
from gpuhost_cli.ceiling_report import Ceiling

INCIDENT = ("--mode", "incident")


@pytest.fixture(scope="module")
def incident() -> Ceiling:
    return glm(*INCIDENT, "--measured-tok-s", "10.36")


@pytest.fixture(scope="module")
def honest() -> Ceiling:
    return glm()


def words(found: Ceiling) -> str:
    """The text on one line, however it was wrapped."""
    return " ".join(ceiling_text.render(found).split())


# --- the incident's own sum


def test_weights_of_a_token(incident: Ceiling) -> None:
    assert f"{incident.traffic.token_bytes / 1e9:.4f}" == "2.8627"
    router = next(part for part in incident.parts if part.component == "router")
    assert incident.traffic.token_bytes == pytest.approx((incident.shape.active - router.active) * 0.5625 / 8)


def test_all_reduces(incident: Ceiling) -> None:
    traffic = incident.traffic
    assert (traffic.allreduces, traffic.allreduce_bytes) == (156, 12288)
    assert f"{traffic.payload_bytes / 1e6:.3f}" == "1.917"
    assert f"{traffic.wire_bytes / 1e6:.3f}" == "3.355"
    assert f"{term(incident, 'allreduce').seconds * 1e3:.3f}" == "1.560"


def test_ceiling_as_a_sum(incident: Ceiling) -> None:
    assert f"{incident.tok_s:.1f}" == "309.2"
    assert incident.sum_s == pytest.approx(2.8627e9 / 1.8e12 + 156 * 10e-6 + 3.355e6 / 40e9, rel=1e-4)


def test_efficiency_and_time_per_token(incident: Ceiling) -> None:
    assert incident.efficiency is not None
    assert f"{incident.efficiency.share:.2%}" == "3.35%"
    assert f"{incident.efficiency.ms_per_token:.1f}" == "96.5"


def test_weights_held_at_batch_1(incident: Ceiling) -> None:
    assert f"{batch(incident, 256).held_tok_s:,.0f}" == "10,398"


def test_distinct_experts(incident: Ceiling) -> None:
    at_256 = batch(incident, 256)
    assert f"{at_256.experts_hit:.1f}" == "255.9"
    assert f"{at_256.weight_bytes / 1e9:.1f}" == "52.2"
    assert f"{at_256.tok_s:,.0f}" == "4,919"
    # 1985.5: the published 1,985 comes from 3.355 MB, rounded
    assert math.floor(batch(incident, 64).tok_s) == 1985
    at_10 = glm(*INCIDENT, "--measured-tok-s", "36", "--concurrency", "10")
    assert f"{batch(at_10, 10).tok_s:.0f}" == "925"


def test_overlap(incident: Ceiling) -> None:
    assert f"{1 / incident.overlap_s:.0f}" == "629"


def test_arithmetic_is_no_bound(incident: Ceiling) -> None:
    assert f"{term(incident, 'arithmetic').seconds * 1e6:.1f}" == "5.5"
    assert term(incident, "arithmetic").counted == 0


def test_kv_pool_cast_follows_the_pool() -> None:
    found = glm(*INCIDENT, "--kv-pool-cast-tokens", "495000")
    assert f"{found.traffic.kv_cast_bytes / 1e9:.1f}" == "66.7"
    assert f"{term(found, 'cast').seconds * 1e3:.0f}" == "37"
    longer = glm(*INCIDENT, "--kv-pool-cast-tokens", "495000", "--context", "100000")
    assert term(longer, "cast") == term(found, "cast")
    double = glm(*INCIDENT, "--kv-pool-cast-tokens", "990000")
    assert term(double, "cast").seconds == pytest.approx(2 * term(found, "cast").seconds)


# --- the honest sum


def test_parts_of_the_mixed_checkpoint(honest: Ceiling) -> None:
    read = read_gb(honest)
    fp4 = sum(value for (_, format_), value in read.items() if format_ == "NVFP4")
    assert f"{fp4:.3f}" == "1.839"
    assert {name: f"{value:.3f}" for (name, format_), value in read.items() if format_ == "BF16"} == {
        "attention": "2.904",  # q_b, kv_b, o: sharded
        "attention_a": "2.515",  # q_a, kv_a: on every rank
        "indexer": "1.462",
        "router": "0.236",
        "lm_head": "0.238",
        "embedding": "0.000",
    }
    assert f"{honest.traffic.token_bytes / 1e9:.2f}" == "9.19"
    copied = {part.component for part in honest.parts if part.place == "replicated"}
    assert copied == {"attention_a", "indexer", "router"}


def test_honest_ceilings(honest: Ceiling) -> None:
    assert f"{term(honest, 'weights').seconds * 1e3:.2f}" == "6.41"
    assert f"{term(honest, 'allreduce').seconds * 1e3:.2f}" == "4.29"
    assert f"{honest.tok_s:.0f}" == "93"
    assert f"{glm('--memory-efficiency', '1').tok_s:.0f}" == "106"
    assert f"{glm('--allreduce-us', '42.3').tok_s:.0f}" == "77"


def test_active_parameters_of_each_component(honest: Ceiling) -> None:
    active = {}
    for part in honest.parts:
        active[part.component] = active.get(part.component, 0) + part.active / 1e9
    assert f"{active['attention'] + active['attention_a']:.3f}" == "12.872"
    expected = {"indexer": "0.731", "dense_mlp": "0.679", "routed_experts": "22.649", "shared_experts": "2.831",
                "router": "0.118", "lm_head": "0.952"}  # fmt: skip
    assert {name: f"{active[name]:.3f}" for name in expected} == expected


# --- mistakes not to repeat, by their numbers


def test_1_what_is_held_is_not_what_is_read(honest: Ceiling) -> None:
    assert 56 < honest.traffic.held_bytes / 1e9 < 60
    assert "holds 58.8 GB of weights and reads 9.194 GB for a token. Both are one GPU's" in words(honest)
    # tensor parallelism has divided by 8 already
    assert honest.traffic.held_bytes * 8 > sum(part.parameters for part in honest.parts) * 0.5625


def test_2_sum_and_overlap_are_both_said(incident: Ceiling) -> None:
    assert "309.2 tok/s is a sum, one term after the other. Full overlap" in words(incident)
    assert "would give 628.8 tok/s" in words(incident)


def test_3_weights_and_all_reduces_are_equal(incident: Ceiling) -> None:
    assert f"{term(incident, 'weights').seconds * 1e3:.2f}" == "1.59"
    assert f"{term(incident, 'allreduce').seconds * 1e3:.2f}" == "1.56"
    assert "Multiplying alone would take 5.5 us" in words(incident)


def test_4_shares_of_the_sum(incident: Ceiling) -> None:
    assert "latency is 98% of the weights' time and 48% of the sum" in words(incident)
    assert sum(each.counted for each in incident.terms) == pytest.approx(incident.sum_s)


def test_5_time_per_token_is_not_time_to_first_token(incident: Ceiling) -> None:
    assert "96.5 ms per output token of a stream; this is not the time to the first token" in words(incident)


def test_6_efficiency_at_a_batch_counts_its_experts() -> None:
    found = glm(*INCIDENT, "--measured-tok-s", "730", "--concurrency", "256")
    assert found.efficiency is not None
    assert f"{found.efficiency.share:.0%}" == "15%"
    assert f"{found.efficiency.measured_tok_s / found.efficiency.held_tok_s:.0%}" == "7%"
    assert found.efficiency.ceiling_tok_s == batch(found, 256).tok_s
    assert "With those of one token it would be 10,398." in words(found)


def test_7_an_assumed_latency_is_called_so(incident: Ceiling) -> None:
    assert "10 us for an all-reduce is not measured. The reference machine has 42.3 us" in words(incident)
    assert f"{42.3 * 156 / 1e3:.1f}" == "6.6"
    given = glm("--allreduce-us", "42.3")
    assert "not measured" not in words(given)


def test_8_all_weights_in_bf16(incident: Ceiling) -> None:
    assert "BF16 and cut by tp, it would be 10.21 GB on a GPU, 5.67 ms" in words(incident)
    assert "that is faster has read weights from a cache (L2)" in words(incident)


def test_9_products_of_one_row(incident: Ceiling) -> None:
    assert "A product of one row is bound by its bytes: 1.80 TFLOP/s in BF16 at most" in words(incident)
    assert "products of different size can't all show the same low rate" in words(incident)


def test_10_more_streams_are_no_improvement() -> None:
    ten = glm(*INCIDENT, "--measured-tok-s", "36", "--concurrency", "10")
    assert "36 tok/s at concurrency 10 are 3.60 tok/s for each stream" in words(ten)
    assert "Compare at the same concurrency only" in words(ten)
    assert ten.efficiency is not None
    assert f"{ten.efficiency.share:.1%}" == "3.9%"


def test_11_no_nvlink_and_two_a_layer(incident: Ceiling) -> None:
    assert "no NVLink" in incident.link
    assert "156 all-reduces a step: 2 x 78 layers, dense layers too" in words(incident)


def test_12_scales_belong_to_the_weights(incident: Ceiling) -> None:
    assert {part.bytes_per_weight for part in incident.parts} == {0.5625}
    assert "4 bit + a scale of 1 B for each 1 x 16" in words(incident)


def test_every_figure_follows_its_inputs() -> None:
    """None is a constant: twice the memory is half the time, and so on."""
    one, two = glm(*INCIDENT), glm(*INCIDENT, "--gpu-memory-gb-s", "3600", "--allreduce-us", "5", "--link-gb-s", "80")
    assert two.tok_s == pytest.approx(2 * one.tok_s)
    four = ask("--preset", "glm-5", *INCIDENT, "--gpus", "4")
    assert four.traffic.token_bytes == pytest.approx(2 * one.traffic.token_bytes)
    assert four.traffic.wire_bytes == pytest.approx(one.traffic.wire_bytes * (2 * 3 / 4) / (2 * 7 / 8))
