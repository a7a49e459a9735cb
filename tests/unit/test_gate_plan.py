"""What would make a roll's gate fail for certain is said by the plan, before anything is stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost
from fake_roll import CONTROLLER, RUN_ID, debian_host, facts_of, library, plan_of, prepared, step, wishes
from fake_tree import CONTAINER, NEW
from test_gate_values import ORIGIN, base, entry

from gpuhost import baselines, check_runner
from gpuhost.errors import Stop
from gpuhost.plan import make_plan

ENTRY = entry(3900.0)


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return debian_host(tmp_path)


def planned(host: FakeHost, **changes: Any) -> list[tuple[str, str]]:
    made = make_plan(facts_of(host), wishes(**changes), RUN_ID, CONTROLLER)
    return [(item.cause, item.object) for item in made.blockers]


@pytest.mark.parametrize(
    ("changes", "cause", "about"),
    [
        ({"gate_expect": {"p2p.ce.*": {"least": 1}}}, "input.invalid", "gpu_gate_expect: p2p.ce.*"),
        ({"gate_expect": {"nonsense": {"min": 1}}}, "input.invalid", "gpu_gate_expect: nonsense"),
        ({"gate_tolerance": {"furlongs": 5}}, "input.invalid", "gpu_gate_tolerance: furlongs"),
        ({"gate_checks": ("cuda", "heatlh")}, "gate.unknown_check", "gpu_gate_checks"),
        ({"gate_required": ("memory",)}, "gate.nothing_recorded", "gpu_gate_required: memory"),
    ],
)
def test_what_would_fail_after_the_reboot_is_said_before_it(
    host: FakeHost, changes: dict[str, Any], cause: str, about: str
) -> None:
    assert planned(host) == []
    assert planned(host, **changes) == [(cause, about)]


def recorded(host: FakeHost, **targets: Any) -> None:
    baselines.write(host, replace(base(), targets=targets, origins={ORIGIN.key: ORIGIN}))


def test_a_required_figure_needs_a_baseline_where_it_will_be_measured(host: FakeHost) -> None:
    recorded(host, **{CONTAINER: {"memory.copy.gpu0": ENTRY}})
    assert planned(host, gate_required=("memory",)) == []
    assert planned(host, gate_required=("memory", "gemm")) == [("gate.nothing_recorded", "gpu_gate_required: gemm")]
    assert planned(host, gate_required=("memory",), gate_targets=("host",)) == [
        ("gate.nothing_recorded", "gpu_gate_required: memory")
    ]


@pytest.mark.parametrize(
    "changes", [{"gate_records": True}, {"gate_expect": {"memory.copy.*": {"min": "3000"}}}, {"needs_reboot": False}]
)
def test_no_baseline_is_needed_where_something_else_decides(host: FakeHost, changes: dict[str, Any]) -> None:
    assert planned(host, gate_required=("memory",), **changes) == []


def test_a_roll_that_goes_on_asks_for_what_it_has_drained(host: FakeHost) -> None:
    prepared(host)
    step(host, "gpuhost_workload", state="drained")
    recorded(host, **{CONTAINER: {"memory": ENTRY}})
    assert planned(host, gate_required=("memory",)) == []
    assert planned(host, gate_required=("gemm",)) == [("gate.nothing_recorded", "gpu_gate_required: gemm")]


def test_baselines_that_cannot_be_read_are_known_before_the_downtime(host: FakeHost) -> None:
    host.put(baselines.FILE, "{")
    assert planned(host) == [("gate.baseline_unreadable", baselines.FILE)]


def test_a_host_with_nothing_to_do_needs_no_baseline(host: FakeHost) -> None:
    plan = plan_of(host, gate_records=True)
    facts = facts_of(host)
    facts["kernel"]["release"] = NEW
    made = make_plan(facts, wishes(gate_required=("memory",)), RUN_ID, "x")
    assert [item.cause for item in made.blockers] == ([] if made.nothing_to_do else ["gate.nothing_recorded"])
    assert plan["target"]["release"] == NEW


def test_the_module_hands_the_settings_of_the_gate_on(host: FakeHost) -> None:
    given = {"facts": facts_of(host), "target": "6.12", "reboot_allowed": True, "gate_required": ["memory"]}
    enough: list[dict[str, Any]] = [
        {"gate_first_run": "record"}, {"gate_baseline": "replace"}, {"gate_expect": {"memory": {"min": 1}}},
    ]  # fmt: skip
    refused: list[dict[str, Any]] = [
        {}, {"gate_first_run": "record", "gate_checks": ["x"]}, {"gate_tolerance": {"x": 1}},
    ]  # fmt: skip
    for more in enough:
        assert step_plan(host, **given, **more)["plan"]["blockers"] == []
    for more in refused:
        with pytest.raises(Stop):
            step_plan(host, **given, **more)


def step_plan(host: FakeHost, **given: Any) -> dict[str, Any]:
    """The planner as Ansible calls it, on another machine than the host."""
    module, spec = library("gpuhost_plan")
    params = {key: given.get(key, item.get("default")) for key, item in spec.items()} | {"run_id": RUN_ID}
    controller = FakeHost(host.path("/tmp/controller"))
    controller.put("/proc/sys/kernel/random/boot_id", "x\n")
    answer: dict[str, Any] = module.work(controller, params, False)
    return answer


def test_a_container_that_is_called_host_is_not_taken_for_the_host(host: FakeHost) -> None:
    config = host.read_bytes(f"/var/lib/lxc/{CONTAINER}/config") or b""
    host.put("/var/lib/lxc/host/config", config)
    host.running.add("host")
    assert ("gate.no_target", "container host") in planned(host)
    with pytest.raises(Stop) as caught:
        check_runner.targets(host, [])
    assert caught.value.blocker.cause == "gate.no_target"
    host.running.remove("host")
    assert check_runner.targets(host, []) == [CONTAINER]
