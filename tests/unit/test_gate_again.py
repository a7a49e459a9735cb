"""What is slow is measured a second time before a gate fails for it; nothing else is."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost
from fake_roll import HOST_NAME, RUN_ID, debian_host, prepared, step
from fake_tree import CONTAINER, NEW
from test_gate_values import answer, base, entry, measured

from gpuhost import baselines, gate_again
from gpuhost.documents import GateResult, as_dict
from gpuhost.errors import Stop
from gpuhost.expectations import Rules
from gpuhost.gate import judge

KNOWN = base(
    memory=entry(2.0, "gpus"),
    memory__copy__gpu0=entry(4000.0),
    memory__copy__gpu1=entry(4000.0),
    allreduce=entry(10.0, "us"),
    gemm__fp8_rows__gpu0__m4=entry(2400.0),
    gemm__fp8__gpu0__m4=entry(2400.0),
)
RULES = Rules(baselines=KNOWN)


def memory(first: float = 4000.0, second: float = 4000.0, **changes: Any) -> list[dict[str, Any]]:
    parts = [measured("memory.copy.gpu0", first), measured("memory.copy.gpu1", second, **changes)]
    return [*parts, measured("memory", 2, "gpus")]


def wanted(*items: dict[str, Any], required: tuple[str, ...] = ("memory",), rules: Rules = RULES) -> dict[str, Any]:
    found = gate_again.wanted(required, {"host": answer(*items)}, rules)
    return {check: [row.name for row in rows] for checks in found.values() for check, rows in checks.items()}


def gate(items: list[dict[str, Any]], rules: Rules = RULES) -> GateResult:
    return judge(HOST_NAME, RUN_ID, NEW, ["memory"], {"host": answer(*items)}, rules)


# --- what is worth measuring again


def test_a_healthy_host_is_measured_once() -> None:
    assert wanted(*memory()) == {}


def test_a_slow_check_is_measured_again_and_only_that() -> None:
    items = [*memory(3000.0), measured("allreduce", 10.0, "us")]
    assert wanted(*items, required=("allreduce", "memory")) == {"memory": ["memory.copy.gpu0"]}
    items = [*memory(), measured("allreduce", 20.0, "us")]
    assert wanted(*items, required=("allreduce", "memory")) == {"allreduce": ["allreduce"]}


def test_what_is_not_required_is_not_measured_again() -> None:
    items = [*memory(), measured("allreduce", 20.0, "us")]
    assert wanted(*items) == {}


@pytest.mark.parametrize(
    "broken",
    [
        {"status": "error", "cause": "memory.wrong_data", "value": None},
        {"status": "not_measured", "cause": "gpu.in_use", "value": None},
        {"value": -1.0},
    ],
)
def test_a_gate_that_fails_for_something_else_is_told_at_once(broken: dict[str, Any]) -> None:
    changes = {"second": broken.get("value"), **{key: item for key, item in broken.items() if key != "value"}}
    items = memory(3000.0, **changes)
    assert wanted(*items) == {}
    assert wanted(*items, measured("allreduce", 20.0, "us"), required=("allreduce", "memory")) == {}


def test_a_missing_gpu_is_no_speed() -> None:
    items = memory()
    items[-1] = measured("memory", 1, "gpus")
    assert wanted(*items) == {}


def test_a_pair_without_p2p_is_no_speed() -> None:
    """Where P2P is required the pair fails for that, and has a figure beside: it is told at once."""
    staged = measured("p2p.ce.0-1", 20.0, detail={"peer_access": False})
    pairs = measured("p2p", 2, "pairs")
    assert wanted(staged, pairs, required=("p2p",), rules=Rules(require_p2p=True)) == {}
    items = [staged, pairs, *memory(3000.0)]
    strict = Rules(baselines=KNOWN, require_p2p=True)
    assert wanted(*items, required=("p2p", "memory"), rules=strict) == {}


def test_what_has_no_expectation_is_not_measured_again() -> None:
    assert wanted(*memory(3000.0), rules=Rules()) == {}


def test_the_inventorys_limit_counts_too() -> None:
    assert wanted(*memory(), rules=Rules({"memory.copy.gpu1": {"min": 4100.0}})) == {"memory": ["memory.copy.gpu1"]}


def test_what_replaces_the_baseline_is_held_against_nothing() -> None:
    assert wanted(*memory(3000.0), rules=Rules(baselines=KNOWN, replace=True)) == {}


def test_it_says_what_and_why() -> None:
    slow = gate_again.wanted(["memory"], {"host": answer(*memory(3000.0, 3100.0))}, RULES)
    (line,) = gate_again.lines(slow)
    assert line == (
        "memory on host is measured again: memory.copy.gpu0 is 3000 GB/s, not at least 3800 GB/s (baseline - 5 %); "
        "and 1 more"
    )


# --- both runs as one


def merged(first: dict[str, Any], *second: dict[str, Any]) -> dict[str, Any]:
    (found,) = gate_again.better_of([first], second, "host", RULES)
    return dict(found)


def test_of_a_speed_the_better_value_counts() -> None:
    fast = merged(measured("a", 3000.0), measured("a", 4000.0))
    assert (fast["value"], fast["detail"]) == (4000.0, {"measured_twice": [3000.0, 4000.0]})
    assert merged(measured("a", 4000.0), measured("a", 3000.0))["value"] == 4000.0
    assert merged(measured("a", 20.0, "us"), measured("a", 10.0, "us"))["value"] == 10.0
    assert merged(measured("a", 10.0, "us"), measured("a", 20.0, "us"))["value"] == 10.0


def test_of_several_transfers_the_better_share_of_what_is_fair_counts() -> None:
    """Its value is the smallest share of all: here that of a flow that shares its port, and is well."""
    detail = {"pattern": "ring", "peer_access": True, "link": {"kind": "nvlink"}}
    collapsed = measured("p2p.together.ce.ring", 0.42, "share", detail={**detail, "of_expected": 0.42})
    well = measured("p2p.together.ce.ring", 0.41, "share", detail={**detail, "of_expected": 0.82})
    for pair in ((collapsed, well), (well, collapsed)):
        (found,) = gate_again.better_of(pair[:1], pair[1:], "host", Rules())
        assert found["detail"]["of_expected"] == 0.82
    known = Rules(baselines=base(p2p__together__ce__ring=entry(0.5, "share")))
    (found,) = gate_again.better_of([well], [collapsed], "host", known)
    assert found["value"] == 0.42  # held against the baseline, it is the value that counts


def test_a_count_is_that_of_the_second_run() -> None:
    assert merged(measured("a", 2, "gpus"), measured("a", 1, "gpus"))["value"] == 1


def test_an_error_of_the_second_run_counts() -> None:
    error = measured("a", None, status="error", cause="memory.wrong_data")
    assert merged(measured("a", 4000.0), error)["cause"] == "memory.wrong_data"


def test_what_the_second_run_did_not_measure_stays_as_it_was() -> None:
    busy = measured("a", None, status="not_measured", cause="gpu.in_use")
    assert merged(measured("a", 3000.0), busy)["value"] == 3000.0
    assert merged(measured("a", 3000.0))["value"] == 3000.0


def test_what_only_the_second_run_has_is_there() -> None:
    error = measured("b", None, status="error")
    both = gate_again.better_of([measured("a", 1.0)], [error], "host", RULES)
    assert [item["name"] for item in both] == ["a", "b"]


def test_a_figure_that_is_slow_twice_fails_with_both_values() -> None:
    result = gate(gate_again.better_of(memory(3000.0), memory(3100.0), "host", RULES))
    assert (result.status, result.cause) == ("fail", "memory.slow")
    assert "memory.copy.gpu0 is 3100 GB/s at best (measured twice: 3000 GB/s and 3100 GB/s), -22.5 %" in result.sentence


def test_a_figure_that_was_slow_once_passes_and_is_told() -> None:
    result = gate(gate_again.better_of(memory(3000.0), memory(second=3990.0), "host", RULES))
    assert result.status == "pass"
    (note,) = [line for line in result.notes if "twice" in line]
    assert note.startswith("host memory: measured twice")


def test_a_figure_that_repeats_badly_has_room() -> None:
    """As on an idle H200: 2580 GB/s, then 2005."""
    items = [measured("gemm", 1, "gpus"), measured("gemm.fp8_rows.gpu0.m4", 1900.0)]
    assert wanted(*items, measured("gemm.fp8.gpu0.m4", 2400.0), required=("gemm",)) == {}
    assert wanted(*items, measured("gemm.fp8.gpu0.m4", 1900.0), required=("gemm",)) == {"gemm": ["gemm.fp8.gpu0.m4"]}
    tight = Rules(baselines=KNOWN, tolerance={"gb_s": 5.0})
    found = wanted(*items, measured("gemm.fp8.gpu0.m4", 2400.0), required=("gemm",), rules=tight)
    assert found == {"gemm": ["gemm.fp8_rows.gpu0.m4"]}


# --- on a host


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    made = debian_host(tmp_path)
    known = as_dict(KNOWN)
    known["targets"] = {CONTAINER: known["targets"]["host"]}
    for name in ("allreduce", "gemm.fp8_rows.gpu0.m4", "gemm.fp8.gpu0.m4"):
        del known["targets"][CONTAINER][name]
    made.put(baselines.FILE, json.dumps(known))
    return made


def answers(host: FakeHost, *runs: list[dict[str, Any]]) -> None:
    """What each run of the archive in the container gives, one after the other."""
    left = [(0, json.dumps({"python": "3", "tool_version": "1", "measurements": items}), "") for items in runs]
    host.programs["lxc-attach",] = lambda *_: left.pop(0)


def measure(host: FakeHost, **given: Any) -> dict[str, Any]:
    archive = base64.b64encode(b"PK").decode()
    return step(host, "gpuhost_gpu_checks", archive=archive, checks=["device_access"], required=["memory"], **given)


def test_the_second_run_has_only_what_was_slow(host: FakeHost) -> None:
    answers(host, [measured("device_access", 2, "gpus"), *memory(3000.0)], memory(3990.0))
    found = measure(host)
    first, second = host.ran("lxc-attach")
    assert (first[-7:-2], second[-6:-2]) == (
        ["device_access", "memory", "--json", "--timeout", "120"],
        ["memory", "--json", "--timeout", "120"],
    )
    by_name = {item["name"]: item["value"] for item in found["targets"][CONTAINER]["measurements"]}
    assert by_name == {"device_access": 2, "memory": 2, "memory.copy.gpu0": 3990.0, "memory.copy.gpu1": 4000.0}
    assert [line for line in found["lines"] if "measured again" in line]
    assert found["targets"][CONTAINER]["checks"] == ["device_access", "memory"]


def test_in_a_roll_a_second_run_is_no_change(host: FakeHost) -> None:
    prepared(host)
    for changed in (True, False):  # the first gate starts the container that the drain has stopped
        if changed:
            step(host, "gpuhost_workload", state="drained")
        answers(host, [measured("device_access", 2, "gpus"), *memory(3000.0)], memory(3990.0))
        found = measure(host)
        assert [line for line in found["lines"] if "measured again" in line]
        assert found["changed"] is changed


def test_where_p2p_is_required_a_gate_without_it_is_told_at_once(host: FakeHost) -> None:
    staged = measured("p2p.ce.0-1", 20.0, detail={"peer_access": False})
    answers(host, [staged, measured("p2p", 2, "pairs"), *memory(3000.0)])
    archive = base64.b64encode(b"PK").decode()
    given = {"archive": archive, "checks": [], "required": ["p2p", "memory"], "require_p2p": True}
    step(host, "gpuhost_gpu_checks", **given)
    assert len(host.ran("lxc-attach")) == 1


def test_a_healthy_host_runs_it_once(host: FakeHost) -> None:
    answers(host, [measured("device_access", 2, "gpus"), *memory()])
    measure(host)
    assert len(host.ran("lxc-attach")) == 1


def test_settings_that_make_no_sense_are_refused_before_anything_is_measured(host: FakeHost) -> None:
    with pytest.raises(Stop) as caught:
        measure(host, tolerance={"nonsense": 5})
    assert caught.value.blocker.cause == "input.invalid"
    assert host.ran("lxc-attach") == []
