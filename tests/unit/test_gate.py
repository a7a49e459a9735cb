"""The judge: only a pass of every required check on every target opens the gate."""

from __future__ import annotations

from typing import Any

import pytest
from fake_roll import HOST_NAME, RUN_ID, library
from fake_tree import NEW
from hypothesis import given
from hypothesis import strategies as st

from gpuhost.causes import CAUSES, cause
from gpuhost.documents import GateResult
from gpuhost.errors import Stop
from gpuhost.gate import judge, judge_check

REQUIRED = ["device_access"]


def measurement(name: str = "device_access", **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": name, "value": 1, "unit": "gpus", "status": "measured", "cause": None, "detail": {},
    }  # fmt: skip
    return {**values, **changes}


def answer(*found: dict[str, Any], stale: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"measurements": list(found), "stale": list(stale)}


def defaults(name: str) -> dict[str, Any]:
    """A module's arguments as Ansible fills them in."""
    return {key: item.get("default") for key, item in library(name)[1].items()}


def gate(targets: dict[str, Any], required: list[str] | None = None) -> GateResult:
    return judge(HOST_NAME, RUN_ID, NEW, REQUIRED if required is None else required, targets)


def test_a_measured_check_passes() -> None:
    result = gate({"gpu-ct": answer(measurement())})
    assert (result.status, result.cause) == ("pass", None)
    assert result.sentence == f"passed on {NEW}: gpu-ct device_access (1 GPU usable)"
    assert [(item.check, item.status) for item in result.verdicts if item.required] == [("device_access", "pass")]


def test_what_is_not_required_is_shown_and_does_not_block() -> None:
    cuda = measurement("cuda", status="not_measured", value=None, cause="check.crashed")
    result = gate({"gpu-ct": answer(measurement(), cuda)})
    assert result.status == "pass"
    assert ("cuda", "not_measured", "check.crashed") in [
        (item.check, item.status, item.cause) for item in result.verdicts
    ]


@pytest.mark.parametrize("required", [[], None])
def test_nothing_required_is_an_error(required: list[str] | None) -> None:
    with pytest.raises(Stop) as caught:
        judge(HOST_NAME, RUN_ID, NEW, required or [], {"gpu-ct": answer(measurement())})
    assert caught.value.blocker.cause == "gate.nothing_required"


def test_no_target_is_not_measured() -> None:
    result = gate({})
    assert (result.status, result.cause) == ("not_measured", "gate.no_target")


@pytest.mark.parametrize(
    ("found", "status", "code"),
    [
        ((), "not_measured", "gate.not_measured"),
        ((measurement("device_access.nvidia0"),), "not_measured", "gate.not_measured"),
        ((measurement(status="not_measured", value=None, cause="check.crashed"),), "not_measured",
         "check.crashed"),
        ((measurement(status="not_measured", value=None, cause=None),), "not_measured", "gate.not_measured"),
        ((measurement(status="error", cause="device.denied_cgroup"),), "fail", "device.denied_cgroup"),
        ((measurement(status="error", cause="driver.not_loaded"),), "fail", "driver.not_loaded"),
        ((measurement(status="error", cause="check.timeout", value=None),), "error", "check.timeout"),
        ((measurement(status="error", cause="check.crashed", value=None),), "error", "check.crashed"),
        ((measurement(status="error", cause="nobody.knows", value=None),), "error", "gate.not_measured"),
        ((measurement(status="error", cause=None, value=None),), "error", "gate.not_measured"),
        ((measurement(value=0),), "fail", "device.gpu_count"),
        ((measurement(value=None),), "fail", "device.gpu_count"),
        ((measurement(), measurement(status="error", cause="check.timeout", value=None)), "error", "check.timeout"),
        ((measurement(), measurement("device_access.nvidia3", status="error", cause="device.open_failed")), "fail",
         "device.open_failed"),
    ],
)  # fmt: skip
def test_everything_else_does_not(found: tuple[dict[str, Any], ...], status: str, code: str) -> None:
    result = gate({"gpu-ct": answer(*found)})
    assert (result.status, result.cause) == (status, code)
    verdict = next(item for item in result.verdicts if item.required)
    assert verdict.observed
    assert verdict.next_step == cause(code).next_step
    assert result.sentence.startswith("gpu-ct: ")


def test_one_bad_target_closes_the_gate() -> None:
    result = gate({"a": answer(measurement()), "b": answer(measurement(status="error", cause="device.open_failed"))})
    assert (result.status, result.cause) == ("fail", "device.open_failed")
    assert result.sentence.startswith("b: ")


def test_an_unknown_required_check_does_not_pass() -> None:
    result = gate({"gpu-ct": answer(measurement())}, ["device_access", "nonsense"])
    assert (result.status, result.cause) == ("not_measured", "gate.unknown_check")


def test_a_stale_rule_is_named_with_both_numbers() -> None:
    denied = measurement(status="error", value=0, cause="device.denied_cgroup", detail={"message": "EPERM"})
    stale = {"container": "gpu-ct", "driver": "nvidia-uvm", "allowed": 504, "now": 509}
    result = gate({"gpu-ct": answer(denied, stale=(stale,))})
    assert (result.status, result.cause) == ("fail", "lxc.stale_major")
    verdict = next(item for item in result.verdicts if item.required)
    assert verdict.observed == "gpu-ct allows major 504 for nvidia-uvm, this kernel uses 509"
    assert verdict.expected == "a rule for nvidia-uvm major 509"
    assert "reconcile" in verdict.next_step


def cuda(**changes: Any) -> dict[str, Any]:
    return measurement("cuda", **{"value": 8, "detail": {"expected_gpus": 8}, **changes})


def test_cuda_passes_without_a_baseline_when_every_expected_gpu_computes() -> None:
    result = gate({"gpu-ct": answer(cuda())}, ["cuda"])
    assert result.status == "pass"
    assert result.sentence == f"passed on {NEW}: gpu-ct cuda (8 GPUs computing)"
    assert gate({"gpu-ct": answer(cuda(detail={"expected_gpus": None}))}, ["cuda"]).status == "pass"
    assert gate({"gpu-ct": answer(cuda(detail=None))}, ["cuda"]).status == "pass"


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"value": 7}, "fail", "cuda.gpu_count"),
        ({"value": 9}, "fail", "cuda.gpu_count"),
        ({"value": 0, "detail": {}}, "fail", "cuda.gpu_count"),
        ({"status": "error", "cause": "cuda.wrong_result"}, "fail", "cuda.wrong_result"),
        ({"status": "error", "cause": "cuda.driver_hang", "value": None}, "fail", "cuda.driver_hang"),
        ({"status": "error", "cause": "device.denied_cgroup"}, "fail", "device.denied_cgroup"),
        ({"status": "not_measured", "cause": "cuda.out_of_memory"}, "not_measured", "cuda.out_of_memory"),
        ({"status": "error", "cause": "check.no_such_user", "value": None}, "error", "check.no_such_user"),
    ],
)
def test_cuda_that_does_not_pass(changes: dict[str, Any], status: str, code: str) -> None:
    result = gate({"gpu-ct": answer(cuda(**changes))}, ["cuda"])
    assert (result.status, result.cause) == (status, code)


def test_a_stale_rule_explains_cuda_too() -> None:
    """Row b of the case cuda-01: 999, EPERM on nvidia-uvm, the rule says 504, the host has 509."""
    denied = cuda(status="error", value=0, cause="device.denied_cgroup")
    stale = {"container": "gpu-ct", "driver": "nvidia-uvm", "allowed": 504, "now": 509}
    result = gate({"gpu-ct": answer(denied, stale=(stale,))}, ["cuda"])
    assert (result.status, result.cause) == ("fail", "lxc.stale_major")
    assert "allows major 504 for nvidia-uvm, this kernel uses 509" in result.sentence


@pytest.mark.parametrize(
    ("as_root", "code"), [("measured", "cuda.permission"), ("error", "cuda.init_failed"), (None, "cuda.init_failed")]
)
def test_what_works_for_root_alone_is_a_matter_of_permissions(as_root: str | None, code: str) -> None:
    """Row n of the case cuda-01."""
    failed = cuda(status="error", value=0, cause="cuda.init_failed", detail={"message": "cuInit gave 999"})
    given = {**answer(failed), **({} if as_root is None else {"cuda_as_root": as_root})}
    result = gate({"gpu-ct": given}, ["cuda"])
    assert (result.status, result.cause) == ("fail", code)
    assert ("as root it works" in result.sentence) == (as_root == "measured")


def test_a_stale_rule_explains_no_other_failure() -> None:
    stale = {"container": "gpu-ct", "driver": "nvidia-uvm", "allowed": 504, "now": 509}
    missing = measurement(status="error", value=0, cause="device.node_missing", detail={"message": "no /dev/nvidia0"})
    result = gate({"gpu-ct": answer(missing, stale=(stale,))})
    assert result.cause == "device.node_missing"
    assert "no /dev/nvidia0" in result.sentence


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "name": st.sampled_from(["device_access", "cuda", "x"]),
                "value": st.one_of(st.none(), st.integers(0, 8)),
                "unit": st.just("gpus"),
                "status": st.sampled_from(["measured", "not_measured", "error"]),
                "cause": st.one_of(st.none(), st.sampled_from(sorted(CAUSES)), st.just("nobody.knows")),
                "detail": st.one_of(st.none(), st.just({}), st.just({"message": "m"})),
            }
        ),
        max_size=4,
    )
)
def test_no_answer_breaks_the_judge_and_only_a_measured_one_passes(found: list[dict[str, Any]]) -> None:
    result = gate({"gpu-ct": answer(*found)})
    own = [item for item in found if item["name"] == "device_access"]
    good = bool(own) and all(item["status"] == "measured" and bool(item["value"]) for item in own)
    assert (result.status == "pass") == good
    assert all(item.cause in CAUSES for item in result.verdicts if item.status != "pass")


# --- the module


def test_the_module_fails_with_the_first_required_check_and_keeps_the_verdict() -> None:
    module, _ = library("gpuhost_gate")
    params = {**defaults("gpuhost_gate"), "host_name": HOST_NAME, "run_id": RUN_ID, "kernel": NEW, "required": REQUIRED}
    good = module.work(None, {**params, "targets": {"gpu-ct": answer(measurement())}}, False)
    assert (good["verdict"]["status"], good["verdict"]["kernel"], good["changed"]) == ("pass", NEW, False)
    bad = answer(measurement(status="error", cause="device.denied_cgroup", detail={"message": "EPERM"}))
    with pytest.raises(Stop) as caught:
        module.work(None, {**params, "targets": {"gpu-ct": bad}}, False)
    assert caught.value.blocker.object == "gate device_access on gpu-ct"
    assert caught.value.documents[0]["status"] == "fail"


def test_a_number_without_an_expectation_does_not_pass() -> None:
    """What nobody has said how good it must be, cannot have been good enough."""
    item = {"name": "p2p", "status": "measured", "cause": None, "value": 393.3, "unit": "gb_s", "detail": {}}
    verdict = judge_check("p2p", "host", {"measurements": [item], "stale": []}, True).verdict
    assert (verdict.status, verdict.cause) == ("not_measured", "gate.no_expectation")
    assert "gpu_gate_first_run: record" in verdict.next_step
