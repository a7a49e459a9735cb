"""The check ``decode`` as a whole, run for real by torch on the CPU in small shapes, and its figures by hand."""

from __future__ import annotations

import dataclasses
import re

import pytest
from decode_fake import CONFIGS, GQA, MLA, ONE_RANK, CpuClock, check, torch

from gpu_checks.decode import step as decode_step
from gpu_checks.decode.part import Part, Stack
from gpu_checks.decode.reduce import Reduced
from gpu_checks.measurement import Measurement, Samples
from gpu_checks.parts import NO_DEFECT, Why
from gpu_checks.registry import REGISTRY

PARTS = {
    "tiny": {"embedding", "rms_norm", "qkv", "qk_norm", "rope", "kv_write", "attention", "o", "router", "top_k",
             "permute", "experts_up", "expert_act", "experts_down", "combine", "lm_head", "sampling"},
    "dense": {"embedding", "rms_norm", "qkv", "rope", "kv_write", "attention", "o", "mlp_up", "mlp_act", "mlp_down",
              "lm_head", "sampling"},
}  # fmt: skip
PARTS["half"] = PARTS["tiny"] - {"qk_norm"} | {"shared_up", "shared_act", "shared_down"}
PARTS["latent"] = (
    PARTS["half"] - {"qkv"} | PARTS["dense"] - {"qkv"} | {"qkv_a", "latent_norm", "q_b", "absorb_k", "absorb_v"}
)
PARTS["indexed"] = PARTS["latent"] | {"indexer", "index_top"}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Two cores are shared; and with one thread sums are the same every time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(decode_step, "STEP_COUNT", 3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_part_of_every_kind_of_model(monkeypatch, config):
    seen = check(monkeypatch, config, batch=3, reduced=ONE_RANK)
    whole = seen["decode"]
    assert (whole.status, whole.cause, whole.unit) == ("measured", None, "figures")
    found = {name[len("part.") + 7 :]: each for name, each in seen.items() if name.startswith("decode.part.")}
    assert set(found) == PARTS[config["name"]] | {"all_reduce"}
    measured = {name: each for name, each in found.items() if each.status == "measured"}
    assert set(found) - set(measured) == {"all_reduce"}
    total = sum(each.value for each in measured.values())
    assert seen["decode.sum"].value == pytest.approx(total)
    step = seen["decode.step"].value
    assert seen["decode.unexplained"].value == pytest.approx(step - total)
    assert seen["decode.sum_of_step"].value == pytest.approx(total / step)
    assert whole.detail["missing_of_sum"] == []
    assert sum(row["share_of_sum"] for row in whole.detail["parts"]) == pytest.approx(1, abs=0.01)
    assert [row["us"] for row in whole.detail["parts"]] == sorted(row["us"] for row in whole.detail["parts"])[::-1]
    assert whole.detail["missing"]["part.all_reduce"].startswith("decode.one_rank: ")
    for name in ("lm_head", "o", "attention", "rms_norm"):
        assert 0 <= found[name].detail["relative_error"] < 2**-6, name
    assert found["o"].method == "mm of torch"
    assert seen["decode.step"].detail["tokens_per_s"] == pytest.approx(3e6 / step, rel=1e-3)


def test_bytes_and_places_by_hand(monkeypatch):
    seen = check(monkeypatch, GQA, reduced=ONE_RANK)
    o = seen["decode.part.o"].detail
    # 4 layers x 64 x 64 x 2 bytes, more than 3 x 4096; each place is one product.
    assert (o["read_bytes"], o["places"], o["copies"], o["from_memory"]) == (32768, 4, 1, True)
    up = seen["decode.part.experts_up"].detail
    assert up["read_bytes"] == 4 * 2 * 64 * 64 * 2  # 2 of 8 experts, in each of 4 layers
    assert seen["decode.part.rms_norm"].detail["places"] == 9
    attention = seen["decode.part.attention"].detail
    assert attention["read_bytes"] == 4 * 2 * 2 * 24 * 16 * 2  # layers, keys and values, heads, context, width, bytes
    assert o["us_each"] == pytest.approx(seen["decode.part.o"].value / 4, abs=0.001)
    assert o["share_of_step"] == pytest.approx(seen["decode.part.o"].value / seen["decode.step"].value, abs=1e-4)


def test_all_bytes_of_a_step_by_hand(monkeypatch):
    """Of a context of 24 tokens and 1 sequence: 4 layers, each with 2 of 8 experts, and lm_head."""
    seen = check(monkeypatch, GQA, reduced=ONE_RANK)
    layer = 128 * 64 + 64 * 64 + 8 * 64 + 2 * (64 * 64 + 64 * 32) + 2 * 2 * 24 * 16 + 2 * 16
    norms, head, row = 9 * 64, 96 * 64, 64
    assert seen["decode"].detail["read_bytes"] == 2 * (4 * layer + norms + head + row)


def test_a_step_that_can_not_be_watched(monkeypatch):
    def broken(_stack):
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(Stack, "watch", broken)
    seen = check(monkeypatch, GQA, reduced=ONE_RANK)
    assert (seen["decode"].status, seen["decode"].cause) == ("error", "decode.failed")
    assert seen["decode.step"].status == "measured"


def test_the_names_say_what_was_asked_for(monkeypatch):
    check(monkeypatch, GQA, tp=2, batch=2, reduced=ONE_RANK)
    names = {each.name for each in check.report.made}
    (step,) = (name for name in names if name.startswith("decode.step."))
    assert re.fullmatch(r"decode\.step\.tiny_[0-9a-f]{8}-tp2-b2-c24", step)
    tag = step.removeprefix("decode.step")
    assert all(name == "decode" or name.endswith(tag) for name in names)


def test_all_reduces_of_all_layers_stand_beside_the_step(monkeypatch):
    samples = Samples(9, 12.0, 11.0, 15.0)
    detail = {"mode": "graph"}
    one = Measurement("allreduce.graph.128", 12.0, "us", "x", "measured", None, 0.1, samples=samples, detail=detail)
    seen = check(monkeypatch, GQA, tp=4, reduced=Reduced(one, None, 4, 128, 0.0))
    reduce = seen["decode.part.all_reduce"]
    assert (reduce.value, reduce.samples.p80) == (8 * 12.0, 8 * 15.0)  # two in each of 4 layers
    assert (reduce.detail["in_step"], reduce.detail["mode"]) == (False, "graph")
    assert (reduce.detail["ranks_measured"], reduce.detail["ranks_wanted"]) == (4, 4)
    whole = seen["decode"].detail
    assert whole["step_and_all_reduce_us"] == pytest.approx(seen["decode.step"].value + 96, abs=0.01)
    assert "part.all_reduce" not in whole["missing"]
    assert "all_reduce" not in {row["part"] for row in whole["parts"]}
    whole = check(monkeypatch, GQA, tp=2, reduced=Reduced(one, None, 4, 128, 0.0))["decode"].detail
    assert "step_and_all_reduce_us" not in whole
    assert whole["notes"] == ["all-reduces were measured over 4 GPUs, not 2: not added to the step"]


def test_an_all_reduce_that_hangs_is_an_error(monkeypatch):
    hung = Reduced(None, Why("allreduce.hang", "rank 1"), 2, 128, 0.0)
    seen = check(monkeypatch, GQA, tp=2, reduced=hung)
    assert (seen["decode"].status, seen["decode"].cause) == ("error", "allreduce.hang")
    assert seen["decode.step"].status == "measured"


def test_quick_is_the_step_alone(monkeypatch):
    seen = check(monkeypatch, GQA, quick=True)
    assert set(seen) == {"decode", "decode.step"}
    assert seen["decode"].value == 1


def test_layers_that_do_not_fit_are_scaled_and_said(monkeypatch):
    """Time is made: each part takes 10 us at each place, so that the scaled step has to be exact."""

    class Counted(CpuClock):
        def times(self, launch, count):
            placed.clear()
            launch()
            return [10.0 * max(1, len(placed))] * count

    placed = []
    real = Part.__init__

    def counting(self, name, how, reads, run, *rest, **more):
        def counted(own, values):
            placed.append(name)
            return run(own, values)

        real(self, name, how, reads, counted, *rest, **more)

    monkeypatch.setattr(Part, "__init__", counting)
    whole = check(monkeypatch, MLA, reduced=ONE_RANK, clock=Counted)
    # The dense layer is a little less than what is judged: of fewer layers it would be more.
    own = whole["decode.part.mlp_down"].detail["read_bytes"] / whole["decode"].detail["read_bytes"]
    monkeypatch.setattr(decode_step, "LEAST_SHARE", own * 1.01)
    whole = check(monkeypatch, MLA, reduced=ONE_RANK, clock=Counted)
    assert whole["decode.part.mlp_down"].unit == "us_shown"
    fits = decode_step.fitting

    def fewer(model, batch, context, room):
        return dataclasses.replace(fits(model, batch, context, room), sparse=2)

    monkeypatch.setattr(decode_step, "fitting", fewer)
    seen = check(monkeypatch, MLA, reduced=ONE_RANK, clock=Counted)
    assert seen["decode.step"].detail["layers_built"] == 3
    scaled = seen["decode.step"].detail["scaled"]
    assert (scaled["fewer_layers"], scaled["why"].startswith("not all layers fit")) == (1, True)
    assert seen["decode.step"].value == whole["decode.step"].value
    for name, each in whole.items():
        if name.startswith("decode.part.") and each.status == "measured":
            assert seen[name].value == pytest.approx(each.value, rel=1e-5), name
            same = ("unit", "places", "read_bytes", "share_of_step")
            units = [{"unit": those[name].unit, **those[name].detail} for those in (seen, whole)]
            assert [units[0][key] for key in same] == [units[1][key] for key in same], name
    assert seen["decode.sum_of_step"].value == pytest.approx(1)
    assert seen["decode.unexplained"].value == pytest.approx(0, abs=0.1)


def test_what_hardly_counts_is_not_judged(monkeypatch):
    seen = check(monkeypatch, GQA, reduced=ONE_RANK)
    units = {name.removeprefix("decode.part."): each.unit for name, each in seen.items() if "part." in name}
    judged = {name for name, unit in units.items() if unit == "us" and name != "all_reduce"}
    assert judged == {"qkv", "o", "attention", "experts_up", "experts_down", "router", "lm_head"}
    assert {units[name] for name in ("rms_norm", "rope", "top_k", "permute", "sampling", "embedding")} == {"us_shown"}
    assert decode_step.units_of({"a": 990, "b": 10, "c": 9}) == {"a": "us", "b": "us_shown", "c": "us_shown"}
    assert decode_step.units_of({"a": 990, "b": 10}) == {"a": "us", "b": "us"}


def test_the_check_is_registered_and_only_runs_by_name():
    assert REGISTRY["decode"].by_name
    assert [name for name, each in REGISTRY.items() if each.by_name] == ["decode"]
    assert {"decode.no_room", "decode.unsupported", "decode.one_gpu", "decode.one_rank", "decode.out_of_time",
            "decode.part_missing"} == {each for each in NO_DEFECT if each.startswith("decode.")}  # fmt: skip
