"""Whether a knob has an effect: no false alarms from noise or drift, real effects found, harm named as harm."""

from __future__ import annotations

import json
import math
import random
from itertools import product

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuhost import tune_effects, tune_effects_text
from gpuhost.causes import CAUSES
from gpuhost.documents import as_dict, json_schema, make_head
from gpuhost.tune_effects import Benchmark, Effect, Effects, KnobEffect, interval, judge

LATENCY, RATE = Benchmark("wakeup_us", "us", "lower"), Benchmark("loopback_gb_s", "gb_s", "higher")
FAMILY = 8
SHAPES = {
    "plain": {},
    "drift": {"drift": 0.3},
    "wandering": {"walk": 0.02},
    "a step in the middle": {"step": 0.2},
    "outliers": {"heavy": 1.0},
    "very noisy": {"noise": 0.3},
}


def samples(dice: random.Random, pairs: int = tune_effects.PAIRS, **shape: float) -> tuple[list[float], list[float]]:
    """Old and new values of a benchmark in their turns. ``effect``: ln(new / old); the rest disturbs both alike."""
    letters = tune_effects.order(pairs)
    step_at, level = dice.randrange(len(letters)), 0.0
    found: dict[str, list[float]] = {"A": [], "B": []}
    for place, letter in enumerate(letters):
        level += dice.gauss(0, shape.get("walk", 0))
        noise = dice.gauss(0, shape.get("noise", 0.02))
        noise /= math.sqrt(max(1e-3, dice.gammavariate(1, 1))) if shape.get("heavy") else 1
        total = level + noise + shape.get("drift", 0) * place / len(letters)
        total += shape.get("step", 0) * (place >= step_at) + shape.get("effect", 0) * (letter == "B")
        found[letter].append(100 * math.exp(total))
    return found["A"], found["B"]


def alarms(dice: random.Random, runs: int, **shape: float) -> float:
    """The share of knobs without any effect that are said to have one on some benchmark."""
    count = 0
    for _ in range(runs):
        effects = [judge(LATENCY, *samples(dice, tune_effects.PAIRS, **shape), FAMILY) for _ in range(FAMILY)]
        count += tune_effects.knob_verdict(effects) != "no measurable effect"
    return count / runs


@pytest.mark.parametrize("shape", SHAPES)
def test_without_an_effect_there_is_an_alarm_in_fewer_than_five_of_a_hundred_knobs(shape: str) -> None:
    assert alarms(random.Random(20261130), 400, **SHAPES[shape]) < 0.05


def test_the_intervals_of_a_knob_hold_together_without_the_noise_floor_too() -> None:
    dice, outside, runs = random.Random(7), 0, 600
    for _ in range(runs):
        effects = [judge(LATENCY, *samples(dice), FAMILY) for _ in range(FAMILY)]
        outside += any(not (item.low_percent or 0) <= 0 <= (item.high_percent or 0) for item in effects)
    assert outside / runs < 0.05


@pytest.mark.parametrize("shape", [{}, {"drift": 0.2}, {"walk": 0.005}])
def test_five_percent_are_found_where_the_noise_is_two(shape: dict[str, float]) -> None:
    dice, found, runs = random.Random(3), 0, 300
    for _ in range(runs):
        found += (
            judge(LATENCY, *samples(dice, tune_effects.PAIRS, effect=math.log(1.05), **shape), FAMILY).verdict
            == "harmful"
        )
    assert found / runs > 0.85


@given(st.floats(0.001, 3), st.integers(9, 30), st.booleans())
def test_a_drift_alone_is_no_effect(drift: float, pairs: int, downwards: bool) -> None:
    """However steep: half of the pairs go up by it and half go down."""
    letters = tune_effects.order(pairs)
    values = [math.exp((-drift if downwards else drift) * place) for place in range(len(letters))]
    old = [value for value, letter in zip(values, letters, strict=True) if letter == "A"]
    new = [value for value, letter in zip(values, letters, strict=True) if letter == "B"]
    assert judge(LATENCY, old, new, FAMILY).verdict == "no measurable effect"


@given(st.lists(st.floats(-1, 1), min_size=9, max_size=25), st.floats(-2, 2))
def test_an_interval_moves_with_what_it_is_about(differences: list[float], shift: float) -> None:
    plain, moved = interval(differences, 0.00625), interval([item + shift for item in differences], 0.00625)
    assert plain is not None
    assert moved is not None
    assert plain[1] <= plain[0] <= plain[2]
    assert all(math.isclose(one + shift, other, abs_tol=1e-9) for one, other in zip(plain, moved, strict=True))


@pytest.mark.parametrize("count", [5, 8, 11])
def test_the_exact_distribution_is_that_of_counting(count: int) -> None:
    sums = [sum(rank for rank, sign in enumerate(signs, 1) if sign) for signs in product((0, 1), repeat=count)]
    ways = tune_effects._rank_sums(count)
    assert [sums.count(total) for total in range(len(ways))] == list(ways)


def test_known_limits_of_the_signed_rank_test() -> None:
    """Tables for two sides: n = 12 rejects from 13 on at 5 %, and from 7 on at 1 %; n = 5 never does at 5 %."""
    assert tune_effects._left_out(12, 0.05) == 13
    assert tune_effects._left_out(12, 0.01) == 7
    assert tune_effects._left_out(5, 0.05) == -1
    assert interval([1.0] * 5, 0.05) is None


@pytest.mark.parametrize("benchmarks", [1, 2, 5, 8, 11, 40, 100])
def test_as_many_pairs_as_are_needed_find_something_and_one_less_nothing(benchmarks: int) -> None:
    needed = tune_effects.pairs_needed(benchmarks)
    alpha = tune_effects.ALPHA / benchmarks
    assert interval([1.0] * needed, alpha) == (1.0, 1.0, 1.0)
    assert needed == tune_effects.FEWEST_PAIRS or interval([1.0] * (needed - 1), alpha) is None
    assert needed <= tune_effects.PAIRS


@pytest.mark.parametrize(
    ("benchmark", "factor", "verdict"),
    [(LATENCY, 1.2, "harmful"), (LATENCY, 0.8, "improves"), (RATE, 1.2, "improves"), (RATE, 0.8, "harmful")],
)
def test_which_way_is_better_decides(benchmark: Benchmark, factor: float, verdict: str) -> None:
    old, new = samples(random.Random(1), effect=math.log(factor))
    found = judge(benchmark, old, new, FAMILY)
    assert found.verdict == verdict
    assert found.effect_percent == pytest.approx(100 * (factor - 1), abs=3)


def test_an_effect_below_what_anybody_cares_for_is_none() -> None:
    old, new = samples(random.Random(1), noise=0.0001, effect=0.005)
    found = judge(LATENCY, old, new, FAMILY)
    assert (found.low_percent or 0) > 0
    assert found.verdict == "no measurable effect"
    assert judge(LATENCY, old, new, FAMILY, smallest_percent=0.1).verdict == "harmful"


def test_an_effect_below_the_noise_of_one_value_is_none() -> None:
    old, new = samples(random.Random(1), pairs=200, noise=0.05, effect=0.02)
    found = judge(LATENCY, old, new, FAMILY)
    assert (found.low_percent or 0) > 0
    assert found.verdict == "no measurable effect"


def test_too_few_pairs_and_samples_that_are_none() -> None:
    assert judge(LATENCY, [1.0] * 8, [2.0] * 8, FAMILY).verdict == "not measured"
    assert judge(LATENCY, [], [], FAMILY).verdict == "not measured"
    assert judge(LATENCY, [0.0] * 12, [2.0] * 12, FAMILY).old_samples == ()


@given(st.lists(st.sampled_from(["improves", "no measurable effect", "harmful", "not measured"]), max_size=6))
@settings(max_examples=60)
def test_a_knobs_verdict(verdicts: list[str]) -> None:
    effects = [Effect("x", "us", "lower", 1, 1, 0, 0, 0, 0, item) for item in verdicts]  # type: ignore[arg-type]
    found = tune_effects.knob_verdict(effects)
    assert (found == "mixed") == ({"improves", "harmful"} <= set(verdicts))
    assert (found == "not measured") == (set(verdicts) <= {"not measured"})


def test_what_becomes_of_a_knob() -> None:
    assert tune_effects.decision("harmful", False)[0] == "left out"
    assert tune_effects.decision("harmful", True)[0] == "kept"
    assert "neither good nor harm was seen" in tune_effects.decision("no measurable effect", False)[1]
    assert tune_effects.decision("mixed", False)[0] == "kept"
    assert tune_effects.decision("not measured", False)[0] == "as it was"


def knob(verdict: str, effects: tuple[Effect, ...], **more: object) -> KnobEffect:
    values = {
        "knob": "governor", "concern": "cpu", "old": "powersave", "new": "performance", "objects": 2,
        "verdict": verdict, "decision": "kept", "in_force": True, "reason": "", "seconds": 1.0, "benchmarks": effects,
    }  # fmt: skip
    return KnobEffect(**{**values, **more})  # type: ignore[arg-type]


def effects_document(mode: str, *knobs: KnobEffect, **more: object) -> Effects:
    found = tune_effects_text.findings(knobs, {"governor": "kernel_runtime"})
    values = {
        "head": make_head("effects", "gpu-1", "run"), "mode": mode, "pairs": 12, "family_error_percent": 5.0,
        "smallest_percent": 1.0, "method": tune_effects.METHOD, "kernel": "6.12.0", "load": (), "timer": True,
        "seconds": 1.0, "knobs": knobs, "findings": found,
    }  # fmt: skip
    return Effects(**{**values, **more})  # type: ignore[arg-type]


def test_the_document_fits_its_schema() -> None:
    old, new = samples(random.Random(1), effect=0.2)
    found = effects_document("measure", knob("harmful", (judge(LATENCY, old, new, 1),)), knob("not measured", ()))
    plain = as_dict(found)
    jsonschema.validate(plain, json_schema(Effects))
    assert list(plain)[:5] == ["schema", "schema_version", "host", "run_id", "taken_at"]
    assert plain["schema"] == "gpuhost.effects"
    assert {item["id"] for item in plain["findings"]} <= set(CAUSES)
    assert [item["severity"] for item in plain["findings"]] == ["p0_runtime", "unknown"]


def test_the_table_says_plainly_that_there_is_no_effect() -> None:
    none, harm = (judge(LATENCY, *samples(random.Random(5), effect=item), 2) for item in (0.0, 0.2))
    plain = as_dict(
        effects_document("measure", knob("harmful", (none, harm), decision="left out", reason="it does harm here"))
    )
    text = tune_effects_text.table(plain)
    assert "governor: powersave -> performance (2 objects): HARMFUL, left out; it does harm here\n" in text
    assert "no measurable effect\n" in text
    assert max(map(len, text.splitlines()[:-1])) < 110
    assert tune_effects_text.lines(plain)[0].startswith("governor powersave -> performance: harmful (wakeup_us +")


def test_the_three_columns_of_a_verification() -> None:
    old, new = samples(random.Random(5))
    same = tune_effects.with_before(judge(LATENCY, old, new, 1), old)
    moved = tune_effects.with_before(judge(RATE, old, new, 1), [item / 1.3 for item in old])
    found = effects_document(
        "verify", knob("no measurable effect", (same, moved)), timer=False, load=("load average 9",)
    )
    text = tune_effects_text.table(json.loads(json.dumps(as_dict(found))))
    assert "before" in text
    assert "after" in text
    assert "loopback_gb_s: the old values, measured again, lie +30.0 % from before" in text
    assert "wakeup_us: the old values" not in text
    assert "under load" in text
    assert "No timer" in text


def test_an_empty_document() -> None:
    assert "nothing to measure" in tune_effects_text.table(as_dict(effects_document("measure")))
