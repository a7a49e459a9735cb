"""Values held against the inventory's word, the host's own baseline, and arithmetic: every way to miss them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_roll import HOST_NAME, RUN_ID
from fake_tree import NEW, OLD

from gpu_checks.p2p.links import Link
from gpuhost import baselines, expectations
from gpuhost.baselines import Baselines, Entry, Origin
from gpuhost.documents import Comparison, GateResult, make_head
from gpuhost.errors import Stop
from gpuhost.expectations import Rules
from gpuhost.gate import judge, update_for
from gpuhost.gate_text import table

ORIGIN = Origin("2026-01-31T12:00:00Z", "run-1", OLD, "570.1", {"host": ["GPU-a", "GPU-b"]})
STATES = {"after": [{"ordinal": 0, "uuid": "GPU-a", "pstate": "P0", "sm_clock_mhz": 1980, "memory_clock_mhz": 3201}]}


def measured(name: str, value: float | None, unit: str = "gb_s", **changes: Any) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "status": "measured", "cause": None, "detail": {}, **changes}


def answer(*found: dict[str, Any]) -> dict[str, Any]:
    checks = list(dict.fromkeys(item["name"].partition(".")[0] for item in found))
    return {"measurements": list(found), "stale": [], "checks": checks}


def base(**entries: Entry) -> Baselines:
    """Baselines of the target host; underscores of a name stand for dots."""
    named = {name.replace("__", "."): entry for name, entry in entries.items()}
    return Baselines(make_head("baselines", HOST_NAME, "run-1"), {ORIGIN.key: ORIGIN}, {"host": named})


def entry(value: float, unit: str = "gb_s", **changes: Any) -> Entry:
    return replace(Entry(value, unit, ORIGIN.key), **changes)


def gate(*found: dict[str, Any], required: str = "memory", **rules: Any) -> GateResult:
    return judge(HOST_NAME, RUN_ID, NEW, [required], {"host": answer(*found)}, Rules(driver="580.2", **rules))


def rows(result: GateResult) -> dict[str, Comparison]:
    return {row.name: row for row in result.comparisons}


MEMORY = (measured("memory", 3900.0), measured("memory.copy.gpu0", 3900.0))


# --- against a baseline


@pytest.mark.parametrize(
    ("now", "unit", "before", "status"),
    [
        (3801.0, "gb_s", 4000.0, "pass"),
        (3799.0, "gb_s", 4000.0, "fail"),  # 5 % of 4000 is 200
        (9000.0, "gb_s", 4000.0, "pass"),  # better is no fault
        (11.4, "us", 10.0, "pass"),
        (11.6, "us", 10.0, "fail"),  # 15 % of 10 is 1.5
        (1.0, "us", 10.0, "pass"),
        (760.0, "tflop_s", 800.0, "pass"),
        (759.0, "tflop_s", 800.0, "fail"),
    ],
)
@pytest.mark.parametrize("check", ["memory", "gemm", "allreduce", "p2p"])
def test_a_value_is_held_against_this_hosts_own_baseline(
    check: str, now: float, unit: str, before: float, status: str
) -> None:
    result = gate(measured(check, now, unit), required=check, baselines=base(**{check: entry(before, unit)}))
    assert result.status == status
    if status == "fail":
        assert result.cause == f"{check}.slow"
        (verdict,) = result.verdicts
        assert f"{now:.4g}" in verdict.observed
        assert f"baseline {before:.4g}" in verdict.observed
        assert OLD in verdict.observed
        assert "driver 570.1" in verdict.observed
        assert "(baseline" in verdict.expected


def test_a_baselines_own_spread_is_allowed_too() -> None:
    noisy = base(allreduce=entry(10.0, "us", p20=8.0, p80=13.0), memory=entry(4000.0, p20=3700.0, p80=4100.0))
    assert gate(measured("allreduce", 12.9, "us"), required="allreduce", baselines=noisy).status == "pass"
    assert gate(measured("allreduce", 13.1, "us"), required="allreduce", baselines=noisy).status == "fail"
    assert gate(measured("memory", 3701.0), baselines=noisy).status == "pass"
    assert gate(measured("memory", 3699.0), baselines=noisy).status == "fail"


def test_a_baselines_own_spread_does_not_excuse_everything() -> None:
    """Twice the tolerance, however restless the host was when it was recorded."""
    wild = base(allreduce=entry(10.0, "us", p20=8.0, p80=90.0), memory=entry(4000.0, p20=500.0, p80=4100.0))
    assert gate(measured("allreduce", 12.9, "us"), required="allreduce", baselines=wild).status == "pass"
    assert gate(measured("allreduce", 13.1, "us"), required="allreduce", baselines=wild).status == "fail"
    assert gate(measured("memory", 3601.0), baselines=wild).status == "pass"
    assert gate(measured("memory", 3599.0), baselines=wild).status == "fail"


def test_a_limit_says_how_far_it_is_from_the_baseline() -> None:
    """Also where it is the baseline's own spread that decides: 3700 is no 5 % below 4000."""
    noisy = base(allreduce=entry(10.0, "us", p80=12.5), memory=entry(4000.0, p20=3700.0))
    assert rows(gate(MEMORY[0], baselines=noisy))["memory"].limit == "at least 3700 GB/s (baseline - 7.5 %)"
    found = gate(measured("allreduce", 10.0, "us"), required="allreduce", baselines=noisy)
    assert rows(found)["allreduce"].limit == "at most 12.5 us (baseline + 25 %)"


@pytest.mark.parametrize(
    ("tolerance", "status"),
    [({}, "fail"), ({"gb_s": 10}, "pass"), ({"memory": 10}, "pass"), ({"memory*": 10, "gb_s": 1}, "pass"),
     ({"gb_s": 10, "memory": 1}, "fail"), ({"us": 50}, "fail")],
)  # fmt: skip
def test_the_tolerance_is_the_inventorys(tolerance: dict[str, float], status: str) -> None:
    rules = expectations.checked_tolerance(tolerance)
    assert gate(measured("memory", 3700.0), baselines=base(memory=entry(4000.0)), tolerance=rules).status == status


def test_one_slow_part_fails_and_the_worst_is_named_first() -> None:
    found = base(memory=entry(3900.0), memory__copy__gpu0=entry(4000.0), memory__copy__gpu1=entry(4000.0))
    result = gate(
        *(measured("memory", 3900.0), measured("memory.copy.gpu0", 3700.0), measured("memory.copy.gpu1", 2000.0)),
        baselines=found,
    )
    assert (result.status, result.cause) == ("fail", "memory.slow")
    (verdict,) = result.verdicts
    assert verdict.observed.startswith("memory.copy.gpu1 is 2000 GB/s, -50.0 % against the baseline 4000 GB/s")
    assert verdict.observed.endswith("; and 1 more of memory")
    assert verdict.expected == "at least 3800 GB/s (baseline - 5 %)"
    assert {name: row.verdict for name, row in rows(result).items()} == {
        "memory": "pass", "memory.copy.gpu0": "fail", "memory.copy.gpu1": "fail",
    }  # fmt: skip


def test_a_part_that_was_measured_before_is_missed() -> None:
    """A metric that is not there any more must not pass for want of a number."""
    found = base(memory=entry(3900.0), memory__copy__gpu0=entry(3900.0), memory__copy__gpu1=entry(3900.0))
    result = gate(*MEMORY, baselines=found)
    assert (result.status, result.cause) == ("not_measured", "gate.part_missing")
    assert "memory.copy.gpu1 was not measured (baseline 3900 GB/s)" in result.verdicts[0].observed
    assert gate(*MEMORY, baselines=found, quick=True).status == "pass"  # measures less, and that is known
    quick = base(memory=entry(3900.0), memory__copy__gpu1=entry(3900.0, quick=True))
    assert gate(*MEMORY, baselines=quick, quick=True).cause == "gate.part_missing"


def test_a_part_that_gives_no_number_any_more_does_not_pass() -> None:
    part = measured("memory.copy.gpu0", None, status="not_measured", cause="gpu.in_use", detail={"message": "pid 7"})
    result = gate(MEMORY[0], part, baselines=base(memory=entry(3900.0), memory__copy__gpu0=entry(3900.0)))
    assert (result.status, result.cause) == ("not_measured", "gpu.in_use")
    assert "pid 7" in result.sentence


def test_what_a_gpu_does_not_have_is_shown_and_fails_nothing() -> None:
    part = measured("gemm.nvfp4.gpu0", None, "tflop_s", status="not_measured", cause="gemm.unsupported")
    result = gate(
        measured("gemm", 700.0, "tflop_s"), part, required="gemm", baselines=base(gemm=entry(700.0, "tflop_s"))
    )
    assert result.status == "pass"
    assert rows(result)["gemm.nvfp4.gpu0"].verdict == "shown"


@pytest.mark.parametrize("cause", ["memory.wrong_data", "memory.failed", "nobody.knows"])
def test_a_part_in_error_fails_whatever_the_numbers_say(cause: str) -> None:
    part = measured("memory.copy.gpu0", None, status="error", cause=cause, detail={"message": "odd"})
    result = gate(MEMORY[0], part, baselines=base(memory=entry(1.0)))
    assert result.status == ("error" if cause == "nobody.knows" else "fail")
    assert result.cause == ("gate.not_measured" if cause == "nobody.knows" else cause)
    assert "memory.copy.gpu0: odd" in result.sentence


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), True, "3900"])
def test_a_value_that_is_no_number_does_not_pass(value: Any) -> None:
    result = gate(measured("memory", value), baselines=base(memory=entry(3900.0)))
    assert (result.status, result.cause) == ("error", "gate.not_measured")


def test_a_baseline_of_another_unit_is_none() -> None:
    result = gate(measured("memory", 0.88, "share"), baselines=base(memory=entry(3900.0)))
    assert (result.status, result.cause) == ("not_measured", "gate.no_expectation")


def test_a_gpu_less_than_the_baseline_has() -> None:
    """Outside a roll nothing else says how many there have to be, once the node is gone too."""
    found = base(cuda=entry(8.0, "gpus"))
    result = gate(measured("cuda", 7, "gpus", detail={"expected_gpus": 7}), required="cuda", baselines=found)
    assert (result.status, result.cause) == ("fail", "cuda.gpu_count")
    assert "baseline 8 GPUs" in result.sentence


# --- against the inventory


@pytest.mark.parametrize(
    ("expect", "status"),
    [
        ({"memory": {"min": 3900}}, "pass"),
        ({"memory": {"min": 3901}}, "fail"),
        ({"memory": {"max": 3899}}, "fail"),
        ({"memory": {"min": 1, "max": 5000}}, "pass"),
        ({"memory*": {"min": 5000}, "memory": {"min": 1}, "memory.copy.*": {"min": 1}}, "pass"),  # the longer one wins
        ({"memory.copy.*": {"min": 3950}}, "fail"),
        ({"memory.copy.*": {"min_share": 0.8}}, "pass"),
        ({"memory.copy.*": {"min_share": 0.9}}, "fail"),
        ({"memory": {"min": "3900"}}, "pass"),  # a template gives text
    ],
)
def test_the_inventorys_word(expect: dict[str, Any], status: str) -> None:
    part = measured("memory.copy.gpu0", 3900.0, detail={"share": 0.85})
    result = gate(MEMORY[0], part, expect=expectations.checked_expect(expect))
    assert result.status == status
    assert result.cause == (None if status == "pass" else "memory.slow")


def test_the_inventory_comes_before_the_baseline() -> None:
    wanted = expectations.checked_expect({"memory": {"min": 2000}})
    result = gate(measured("memory", 2100.0), expect=wanted, baselines=base(memory=entry(4000.0)))
    assert result.status == "pass"
    assert rows(result)["memory"].change_percent == -47.5  # shown all the same


def test_an_expectation_of_what_nobody_measures_is_a_mistake() -> None:
    result = gate(*MEMORY, expect=expectations.checked_expect({"memory": {"min": 1}, "memory.cpy.*": {"min": 1}}))
    assert (result.status, result.cause) == ("not_measured", "gate.expectation_unmatched")
    assert "memory.cpy.*" in result.sentence


def test_a_share_that_is_not_known_does_not_pass() -> None:
    result = gate(measured("memory", 3900.0), expect=expectations.checked_expect({"memory": {"min_share": 0.8}}))
    assert (result.status, result.cause) == ("not_measured", "gate.no_expectation")


def test_a_check_that_has_no_cause_of_its_own_for_a_missed_limit() -> None:
    start = measured("cuda.context.gpu0", 900.0, "ms")
    cuda = measured("cuda", 1, "gpus", detail={"expected_gpus": 1})
    result = gate(cuda, start, required="cuda", expect=expectations.checked_expect({"cuda.context.*": {"max": 500}}))
    assert (result.status, result.cause) == ("fail", "gate.limit_missed")


@pytest.mark.parametrize(
    "expect",
    [{"nonsense": {"min": 1}}, {"*": {"min": 1}}, {"memory": {}}, {"memory": {"least": 1}}, {"memory": 5},
     {"memory": {"min": True}}, {"memory": {"min": "much"}}, {"memory": {"min": float("nan")}},
     {"memory": {"min": 1, "min_share": 0.5}}],
)  # fmt: skip
def test_an_expectation_that_makes_no_sense_is_refused(expect: dict[str, Any]) -> None:
    with pytest.raises(Stop) as caught:
        expectations.checked_expect(expect)
    assert caught.value.blocker.cause == "input.invalid"
    assert "gpu_gate_expect" in caught.value.blocker.object


@pytest.mark.parametrize("tolerance", [{"furlongs": 1}, {"gb_s": -1}, {"gb_s": 100}, {"gb_s": "lots"}, {"gb_s": None}])
def test_a_tolerance_that_makes_no_sense_is_refused(tolerance: dict[str, Any]) -> None:
    with pytest.raises(Stop) as caught:
        expectations.checked_tolerance(tolerance)
    assert caught.value.blocker.cause == "input.invalid"


# --- without either


def test_a_value_without_any_expectation_does_not_pass_and_the_way_out_is_said() -> None:
    result = gate(*MEMORY)
    assert (result.status, result.cause) == ("not_measured", "gate.no_expectation")
    assert "gpu_gate_first_run: record" in result.sentence
    assert {row.verdict for row in result.comparisons} == {"shown"}


def test_the_first_run_is_recorded_and_says_so() -> None:
    result = gate(*MEMORY, record=True)
    assert result.status == "pass"
    assert "2 recorded as the baseline" in result.sentence
    assert {row.verdict for row in result.comparisons} == {"recorded"}
    assert "gpu_gate_first_run" in result.verdicts[0].expected


def test_recording_forgives_no_slow_part() -> None:
    result = gate(*MEMORY, measured("memory.read.gpu0", 4000.0), record=True, baselines=base(memory=entry(9000.0)))
    assert (result.status, result.cause) == ("fail", "memory.slow")
    assert rows(result)["memory.read.gpu0"].verdict == "recorded"


def test_replacing_holds_nothing_against_the_old_baseline() -> None:
    found = base(memory=entry(9000.0), memory__gone=entry(1.0))
    result = gate(*MEMORY, replace=True, baselines=found)
    assert result.status == "pass"
    assert rows(result)["memory"].baseline == 9000.0
    assert rows(result)["memory"].verdict == "recorded"
    limited = gate(*MEMORY, replace=True, baselines=found, expect={"memory": {"min": 9000.0}})
    assert limited.cause == "memory.slow"  # the inventory's word holds


# --- the case cuda-02: transfers between GPUs


def link(kind: str, word: str) -> dict[str, Any]:
    return Link(kind, word, generation=5, width=16).plain()


EXPECTED = 57.613  # PCIe 5 x16, of data
PIX, PHB, SYS = link("same_switch", "PIX"), link("host_bridge", "PHB"), link("across_sockets", "SYS")


def pair(name: str, gb_s: float | None, way: dict[str, Any], cause: str | None = None, **more: Any) -> dict[str, Any]:
    detail = {"link": way, "expected_gb_s": EXPECTED, "peer_access": True,
              "share": None if gb_s is None else gb_s / EXPECTED, **more}  # fmt: skip
    return measured(f"p2p.ce.{name}", gb_s, status="error" if cause else "measured", cause=cause, detail=detail)


STAGED = {"peer_access": False, "expected_gb_s": None, "share": None}
CASE = [
    (pair("0-1", 52, PIX), "pass", None),
    (pair("0-2", None, PHB, "p2p.hang"), "fail", "p2p.hang"),
    (pair("0-3", 55, PHB, "p2p.wrong_data"), "fail", "p2p.wrong_data"),
    (pair("0-4", 37, SYS), "pass", None),
    (pair("0-5", 4, PIX), "fail", "p2p.slow"),
    (pair("0-6", 20, link("staged", "PHB"), **STAGED), "shown", None),
    (pair("1-0", 51, PIX), "pass", None),
    (pair("3-0", 54, PHB, "p2p.wrong_data"), "fail", "p2p.wrong_data"),
]
WHOLE = measured("p2p", 8, "pairs", detail={"expected_pairs": 8})


@pytest.mark.parametrize(
    ("item", "verdict", "cause"), CASE, ids=lambda item: item["name"] if isinstance(item, dict) else ""
)
def test_the_verdict_of_each_pair_of_the_case(item: dict[str, Any], verdict: str, cause: str | None) -> None:
    result = gate(WHOLE, CASE[0][0] if verdict == "shown" else item, item, required="p2p")
    assert (rows(result)[item["name"]].verdict, rows(result)[item["name"]].cause) == (verdict, cause)
    assert (result.status, result.cause) == ("fail" if verdict == "fail" else "pass", cause)


def test_one_failing_pair_fails_the_gate() -> None:
    good = [pair(f"{number}-{number + 1}", 52, PIX) for number in range(7)]
    assert gate(WHOLE, *good, required="p2p").status == "pass"
    assert gate(WHOLE, *good, pair("7-0", 4, PIX), required="p2p").status == "fail"


def test_a_pair_without_peer_access_fails_only_where_that_is_demanded() -> None:
    items = (WHOLE, CASE[0][0], CASE[5][0])
    assert gate(*items, required="p2p").status == "pass"
    result = gate(*items, required="p2p", require_p2p=True)
    assert (result.status, result.cause) == ("fail", "p2p.no_peer_access")
    assert "p2p.ce.0-6" in result.sentence


def test_p2p_that_the_environment_forbids_fails_only_where_it_is_demanded() -> None:
    off = measured("p2p.environment", 0, "allowed", status="not_measured", cause="p2p.disabled_by_environment")
    assert gate(WHOLE, CASE[0][0], off, required="p2p").status == "pass"
    assert gate(WHOLE, CASE[0][0], off, required="p2p", require_p2p=True).cause == "p2p.disabled_by_environment"


def test_access_that_was_there_and_is_gone_is_missed() -> None:
    gone = measured("p2p.sm_write.0-1", None, status="not_measured", cause="p2p.no_peer_access")
    found = base(p2p__sm_write__0_1=entry(370.0))
    found = replace(found, targets={"host": {"p2p.sm_write.0-1": entry(370.0)}})
    result = gate(WHOLE, CASE[0][0], gone, required="p2p", baselines=found)
    assert (result.status, result.cause) == ("not_measured", "p2p.no_peer_access")


def test_reads_by_a_kernel_through_the_host_have_no_floor() -> None:
    """Healthy root complexes forward reads at a tenth of the link's speed."""
    slow = {**pair("0-1", 5, PHB), "name": "p2p.sm_read.0-1"}
    near = {**pair("0-1", 5, PIX), "name": "p2p.sm_read.0-1"}
    assert gate(WHOLE, CASE[0][0], slow, required="p2p").status == "pass"
    assert gate(WHOLE, CASE[0][0], near, required="p2p").cause == "p2p.slow"


def test_a_pair_less_than_there_are() -> None:
    whole = measured("p2p", 7, "pairs", detail={"expected_pairs": 8})
    result = gate(whole, CASE[0][0], required="p2p")
    assert (result.status, result.cause, result.verdicts[0].expected) == ("fail", "gate.limit_missed", "8 pairs")


def pattern(of_expected: float, value: float = 0.3) -> dict[str, Any]:
    flows = [{"source": 0, "target": 1, "of_expected": of_expected}, {"source": 1, "target": 0, "of_expected": 1.0}]
    detail = {"pattern": "all_to_one", "of_expected": of_expected, "flows": flows, "expected_share": 0.5}
    return measured("p2p.together.all_to_one.ce", value, "share", detail=detail)


@pytest.mark.parametrize(
    ("kind", "of_expected", "cause"),
    [("nvlink", 0.9, None), ("nvlink", 0.4, "p2p.collapse"), ("host_bridge", 0.4, None),
     ("host_bridge", 0.1, "p2p.collapse")],
)  # fmt: skip
def test_several_transfers_at_once_that_break_down(kind: str, of_expected: float, cause: str | None) -> None:
    """Pairwise all is well. What lies between PCIe's ports may be shared by many; NVLinks share nothing else."""
    pairs = [pair(name, 50, link(kind, "?")) for name in ("0-1", "1-0")]
    result = gate(WHOLE, *pairs, pattern(of_expected), required="p2p")
    assert result.cause == cause


def test_a_pattern_is_held_against_its_baseline_too() -> None:
    found = replace(base(), targets={"host": {"p2p.together.all_to_one.ce": entry(0.5, "share")}})
    pairs = [pair(name, 50, PHB) for name in ("0-1", "1-0")]
    assert gate(WHOLE, *pairs, pattern(0.9, 0.46), required="p2p", baselines=found).status == "pass"
    assert gate(WHOLE, *pairs, pattern(0.9, 0.4), required="p2p", baselines=found).cause == "p2p.slow"
    assert gate(WHOLE, *pairs, pattern(0.9, 0.2), required="p2p", baselines=found).cause == "p2p.collapse"


def test_one_gpu_alone_is_said_plainly() -> None:
    alone = measured("allreduce", None, "us", status="not_measured", cause="allreduce.one_gpu",
                     detail={"message": "1 GPU is visible, the check needs 2"})  # fmt: skip
    result = gate(alone, required="allreduce", record=True)
    assert (result.status, result.cause) == ("not_measured", "allreduce.one_gpu")
    assert "1 GPU is visible" in result.sentence


# --- what was run where


def test_a_check_is_judged_where_it_was_run() -> None:
    targets = {
        "ct": answer(measured("device_access", 1, "gpus")),
        "host": answer(measured("health", 1, "gpus", detail={"expected_gpus": 1})),
    }
    result = judge(HOST_NAME, RUN_ID, NEW, ["device_access", "health"], targets)
    assert result.status == "pass"
    assert {(item.target, item.check) for item in result.verdicts} == {("ct", "device_access"), ("host", "health")}


@pytest.mark.parametrize(("check", "cause"), [("memory", "gate.not_measured"), ("nonsense", "gate.unknown_check")])
def test_a_required_check_that_ran_nowhere_does_not_pass(check: str, cause: str) -> None:
    result = judge(HOST_NAME, RUN_ID, NEW, [check], {"ct": answer(measured("cuda", 1, "gpus"))})
    assert (result.status, result.cause) == ("not_measured", cause)


# --- what people read, and what is kept


def test_the_table_has_the_bad_ones_first() -> None:
    found = base(memory=entry(3900.0), memory__copy__gpu0=entry(9000.0))
    lines = table(gate(*MEMORY, baselines=found).comparisons)
    assert lines[0].split() == ["measurement", "now", "baseline", "change", "limit", "verdict"]
    assert lines[1].startswith("memory.copy.gpu0  3900 GB/s  9000 GB/s  -56.7 %  at least 8550 GB/s")
    assert lines[1].endswith("fail memory.slow")
    assert lines[2].endswith("pass")
    assert table([]) == []


def test_another_kernel_driver_and_gpu_are_named() -> None:
    item = measured("memory", 3900.0, detail={"gpus": {"after": [
        {"ordinal": 0, "uuid": "GPU-a"}, {"ordinal": 1, "uuid": "GPU-new"},
    ]}})  # fmt: skip
    notes = "\n".join(gate(item, baselines=base(memory=entry(3900.0))).notes)
    assert f"kernel {OLD}, now {NEW}" in notes
    assert "driver 570.1, now 580.2" in notes
    assert "GPU 1 is GPU-new, the baseline was taken on GPU-b" in notes
    assert "GPU 0 " not in notes


def test_only_what_passed_is_kept() -> None:
    """A check that is not required may fail in a gate that passes: its values are no baseline."""
    targets = {"host": answer(
        measured("cuda", 1, "gpus", detail={"gpus": STATES}), measured("memory", 100.0),
        measured("memory.copy.gpu0", None, status="error", cause="memory.failed"),
        measured("health.link.gpu0", 16, "lanes"),
    )}  # fmt: skip
    rules = Rules(record=True, driver="580.2")
    result = judge(HOST_NAME, RUN_ID, NEW, ["cuda"], targets, rules)
    update = update_for(result, targets, rules)
    assert update.values == {"host": {"cuda": 1.0}}
    assert {name: list(own) for name, own in update.entries.items()} == {"host": ["cuda"]}
    assert (update.origin.kernel, update.origin.driver, update.origin.gpus) == (NEW, "580.2", {"host": ["GPU-a"]})
    assert update.origin.clocks["host"]["cuda"] == [
        {"ordinal": 0, "pstate": "P0", "sm_clock_mhz": 1980, "memory_clock_mhz": 3201}
    ]


def test_an_ordinary_gate_moves_no_baseline() -> None:
    rules = Rules(baselines=base(memory=entry(3900.0)))
    targets = {"host": answer(measured("memory", 4000.0))}
    update = update_for(judge(HOST_NAME, RUN_ID, NEW, ["memory"], targets, rules), targets, rules)
    assert not update.changes_baseline
    assert update.values == {"host": {"memory": 4000.0}}


def test_replacing_forgets_what_is_not_measured_any_more() -> None:
    rules = Rules(baselines=base(memory=entry(3900.0), memory__old=entry(1.0), cuda=entry(8.0, "gpus")), replace=True)
    targets = {"host": answer(measured("memory", 4000.0))}
    update = update_for(judge(HOST_NAME, RUN_ID, NEW, ["memory"], targets, rules), targets, rules)
    assert update.dropped == {"host": ["memory.old"]}
    assert baselines.merged(rules.baselines, update, HOST_NAME).targets["host"].keys() == {"memory", "cuda"}  # type: ignore[union-attr]
