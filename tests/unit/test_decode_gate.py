"""The decode step as a task after a reboot: what the module asks for, and how the gate judges what comes back."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_host import FakeHost
from fake_roll import HOST_NAME, REPOSITORY, RUN_ID, debian_host, library, step
from fake_tree import CONTAINER, NEW, OLD

from gpuhost import baselines, check_runner
from gpuhost.baselines import Baselines, merged
from gpuhost.documents import GateResult, as_dict
from gpuhost.errors import Stop
from gpuhost.expectations import Rules
from gpuhost.gate import judge, update_for
from gpuhost.gate_text import quantity, table

TAG = "qwen3-30b-a3b-tp1-b1-c4096"
PYZ = b"PK\x03\x04 not really"


def item(name: str, value: float | None, unit: str = "us", **changes: Any) -> dict[str, Any]:
    found = {
        "name": name, "value": value, "unit": unit, "method": "x", "clock": None, "status": "measured", "cause": None,
        "samples": None, "seconds": 0.1, "detail": {},
    }  # fmt: skip
    return {**found, **changes}


def found(step_us: float = 4000.0, attention_us: float = 500.0, **changes: float) -> list[dict[str, Any]]:
    """As much as the gate looks at."""
    return [
        item("decode", 30, "parts"),
        item(f"decode.step.{TAG}", step_us),
        item(f"decode.part.attention.{TAG}", attention_us),
        item(f"decode.part.embedding.{TAG}", changes.get("embedding_us", 2.0), "us_shown"),
        item(f"decode.probe.dispatch.eager.{TAG}", changes.get("eager_us", 4.0), "us_shown"),
        item(f"decode.unexplained.{TAG}", changes.get("unexplained_us", 100.0), "us_difference"),
        item(f"decode.sum_of_step.{TAG}", 0.97, "ratio"),
        item(f"decode.part.all_reduce.{TAG}", None, status="not_measured", cause="decode.one_rank"),
        item(f"decode.probe.nvfp4.o.{TAG}", None, status="not_measured", cause="decode.unsupported"),
    ]


def gate(items: list[dict[str, Any]], kernel: str = NEW, **rules: Any) -> GateResult:
    targets = {"host": {"measurements": items, "stale": [], "checks": ["decode"]}}
    return judge(HOST_NAME, RUN_ID, kernel, ["decode"], targets, Rules(driver="580.2", **rules))


def recorded(items: list[dict[str, Any]]) -> Baselines:
    """What the first good run leaves on a host."""
    rules = Rules(driver="570.1", record=True)
    targets = {"host": {"measurements": items, "stale": [], "checks": ["decode"]}}
    result = judge(HOST_NAME, "first", OLD, ["decode"], targets, rules)
    assert result.status == "pass", result.sentence
    kept = merged(None, update_for(result, targets, rules), HOST_NAME)
    assert kept is not None
    return kept


def test_the_first_run_is_recorded_with_kernel_and_driver() -> None:
    kept = recorded(found())
    entries = kept.targets["host"]
    assert set(entries) == {f"decode.step.{TAG}", f"decode.part.attention.{TAG}"}
    (origin,) = kept.origins.values()
    assert (origin.kernel, origin.driver) == (OLD, "570.1")


def test_a_later_run_is_compared_and_both_kernels_are_named() -> None:
    result = gate(found(step_us=4100.0), baselines=recorded(found()))
    assert result.status == "pass"
    assert any(f"kernel {OLD}, now {NEW}; driver 570.1, now 580.2" in note for note in result.notes)
    lines = table(result.comparisons)
    (row,) = [line for line in lines if line.startswith(f"decode.step.{TAG}")]
    assert row.split()[1:7] == ["4100", "us", "4000", "us", "+2.5", "%"]
    assert any("100 us" in line and "unexplained" in line and line.endswith("shown") for line in lines)


@pytest.mark.parametrize("slow", [{"step_us": 4700.0}, {"attention_us": 800.0}])
def test_a_slower_step_or_part_fails(slow: dict[str, float]) -> None:
    result = gate(found(**slow), baselines=recorded(found()))
    (verdict,) = result.verdicts
    assert (verdict.status, verdict.cause) == ("fail", "decode.slow")
    assert "against the baseline" in verdict.observed


@pytest.mark.parametrize("more", [{"embedding_us": 20.0}, {"eager_us": 40.0}, {"unexplained_us": 900.0}])
def test_what_hardly_counts_fails_nothing(more: dict[str, float]) -> None:
    assert gate(found(**more), baselines=recorded(found())).status == "pass"


def test_another_model_is_not_compared_with_this_one() -> None:
    others = [
        {**each, "name": each["name"].replace("qwen3-30b-a3b", "glm-5")} if TAG in each["name"] else each
        for each in found(step_us=9000.0)
    ]
    result = gate(others, baselines=recorded(found()), record=True)
    assert (result.status, result.cause) == ("not_measured", "gate.part_missing")
    assert gate(others, baselines=recorded(found()), replace=True).status == "pass"


def test_a_wrong_result_fails_before_anything_slow() -> None:
    items = found(step_us=9000.0)
    items[0] = item(
        "decode", None, "parts", status="error", cause="decode.wrong_result", detail={"message": "o differs"}
    )
    result = gate(items, baselines=recorded(found()))
    assert (result.status, result.cause) == ("fail", "decode.wrong_result")


def test_units_that_are_only_shown() -> None:
    assert [quantity(12.5, unit) for unit in ("us_shown", "us_difference", "ratio")] == ["12.5 us", "12.5 us", "12.5"]


# --- the module


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    made = debian_host(tmp_path)
    made.put("/proc/sys/kernel/hostname", "gpu-host\n")
    answer = {"python": "3.11.2", "tool_version": "0.1.0", "measurements": found()}
    made.programs["lxc-attach",] = (0, json.dumps(answer), "")
    return made


def run(host: FakeHost, **given: Any) -> dict[str, Any]:
    return step(host, "gpuhost_decode_check", archive=base64.b64encode(PYZ).decode(), **given)


def asked(host: FakeHost) -> list[str]:
    (call,) = host.ran("lxc-attach")
    return call[call.index("decode") :]


def test_nothing_is_asked_for_that_was_not_given(host: FakeHost) -> None:
    run(host)
    assert asked(host) == ["decode", "--json", "--timeout", "120", "--expect-gpus", "1"]


def test_what_is_given_is_asked_for(host: FakeHost) -> None:
    run(host, model="glm-5", tp=8, context=1024, batch=4)
    assert asked(host)[-8:] == ["--model", "glm-5", "--tp", "8", "--context", "1024", "--batch", "4"]


def test_a_config_goes_as_text() -> None:
    assert check_runner.decode_arguments({"model": {"hidden_size": 64}}) == ["--model", '{"hidden_size": 64}']


def test_it_answers_with_what_the_judge_needs(host: FakeHost) -> None:
    host.put(baselines.FILE, json.dumps(as_dict(recorded(found()))))
    answer = run(host)
    assert answer["kernel"] == host.read_line("/proc/sys/kernel/osrelease")
    assert set(answer["baselines"]["targets"]) == {"host"}
    assert list(answer["targets"]) == [CONTAINER]
    assert f"decode.step.{TAG}: 4000 us" in answer["lines"]


def test_broken_baselines_stop_it_before_anything_is_measured(host: FakeHost) -> None:
    host.put(baselines.FILE, "{broken")
    with pytest.raises(Stop) as caught:
        run(host)
    assert caught.value.blocker.cause == "gate.baseline_unreadable"
    assert host.ran("lxc-attach") == []


def test_the_gate_passes_on_what_is_asked_of_decode(host: FakeHost) -> None:
    module, _ = library("gpuhost_gpu_checks")
    params = {"checks": ["cuda"], "required": ["decode"], "python": "/p", "timeout_s": 9, "user": "", "quick": False,
              "decode": {"model": "glm-5", "tp": 8}}  # fmt: skip
    order = module.order_of(params, b"")
    assert (order.checks, dict(order.decode)) == (["cuda", "decode"], {"model": "glm-5", "tp": 8})


# --- role and playbook


def test_the_playbook_decodes_only_by_its_tag() -> None:
    (play,) = yaml.safe_load((REPOSITORY / "playbooks/gate.yml").read_text())
    tags = {task["name"]: task["tags"] for task in play["tasks"]}
    assert tags["Decode"] == ["never", "decode"]


def test_the_roles_tasks_fit_their_modules() -> None:
    tasks = yaml.safe_load((REPOSITORY / "roles/gpu_gate/tasks/decode.yml").read_text())
    for task in tasks:
        (name,) = [key for key in task if key.startswith("gpuhost_")]
        assert set(task[name]) <= set(library(name)[1]), name
    assert tasks[1]["gpuhost_gate"]["required"] == ["decode"]
    assert tasks[1]["gpuhost_gate"]["first_run"] == "record"
    defaults = yaml.safe_load((REPOSITORY / "roles/gpu_gate/defaults/main.yml").read_text())
    specs = yaml.safe_load((REPOSITORY / "roles/gpu_gate/meta/argument_specs.yml").read_text())["argument_specs"]
    assert defaults["gpu_gate_decode"] == {}
    assert tuple(specs["decode"]["options"]["gpu_gate_decode"]["options"]) == check_runner.DECODE_OPTIONS
