"""Ways in which a gate could pass without having proven anything, or fail a healthy host. None of them may be open."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from pathlib import Path

import pytest
from fake_host import FakeHost
from fake_roll import HOST_NAME, RUN_ID, debian_host, prepared, roll_of, step
from fake_tree import NEW, booted
from test_gate_values import MEMORY, ORIGIN, WHOLE, answer, base, entry, gate, measured, pair, rows
from test_gate_values import link as link_of_kind

from gpuhost import baselines, check_runner, deadman
from gpuhost.errors import Stop
from gpuhost.expectations import Rules
from gpuhost.gate import judge, update_for
from gpuhost.rollfile import LOCK_FILE


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return debian_host(tmp_path)


# --- figures that are none


@pytest.mark.parametrize(("check", "unit"), [("allreduce", "us"), ("memory", "gb_s"), ("gemm", "tflop_s")])
@pytest.mark.parametrize("value", [0, -3.0])
def test_a_rate_or_a_time_of_nothing_does_not_pass(check: str, unit: str, value: float) -> None:
    """A broken clock gives 0 us, which is below every limit."""
    found = gate(measured(check, value, unit), required=check, baselines=base(**{check: entry(10.0, unit)}))
    assert (found.status, found.cause) == ("error", "gate.not_measured")
    assert f"{value!r}" in found.sentence


def test_a_start_that_took_no_time_is_no_fault() -> None:
    """Rounded to 0.1 ms, and judged by whether it computes right."""
    assert gate(measured("cuda", 1, "gpus"), measured("cuda.gpu0", 0.0, "ms"), required="cuda").status == "pass"


@pytest.mark.parametrize("unit", ["us", "gb_s", "share"])
def test_a_figure_of_nothing_becomes_no_baseline(unit: str) -> None:
    """Against a baseline of 0 every later rate would pass."""
    rules = Rules(record=True)
    targets = {"host": answer(measured("p2p", 2, "pairs"), measured("p2p.x.0-1", 0.0, unit))}
    assert update_for(judge(HOST_NAME, RUN_ID, NEW, ["p2p"], targets, rules), targets, rules).entries == {"host": {}}


def test_a_part_in_another_unit_than_its_baseline_is_not_compared_and_does_not_pass() -> None:
    """A later version may measure in other units: without this its other rows would open the gate."""
    found = base(memory=entry(8.0, "gpus"), memory__copy__gpu0=entry(3900.0))
    whole, part = measured("memory", 8, "gpus"), measured("memory.copy.gpu0", 1.0, "share")
    result = gate(whole, part, baselines=found)
    assert (result.status, result.cause) == ("not_measured", "gate.no_expectation")
    assert "memory.copy.gpu0 is 100 %, its baseline is in GB/s" in result.sentence
    assert gate(whole, part, baselines=found, record=True).status == "pass"
    assert gate(whole, part, baselines=found, replace=True).status == "pass"
    assert gate(whole, part, baselines=found, expect={"memory.copy.*": {"min_share": 0.9}}).status == "pass"


def test_a_floor_does_not_replace_a_baseline_of_another_unit() -> None:
    item = {**pair("0-1", 0.052, link_of_kind("same_switch", "PIX")), "unit": "tb_s"}
    found = replace(base(), targets={"host": {"p2p.ce.0-1": entry(52.0)}})
    assert gate(WHOLE, item, required="p2p", baselines=found).cause == "gate.no_expectation"


# --- what becomes a baseline


def test_how_long_a_start_took_once_is_no_baseline() -> None:
    """One sample of a context's creation, of an open or of a first matmul is half or twice that the next time."""
    rules = Rules(record=True)
    targets = {"host": answer(
        measured("device_access", 1, "gpus"), measured("device_access.nvidia0", 21.0, "us"),
        measured("cuda", 1, "gpus"), measured("cuda.gpu0", 310.4, "ms"),
        measured("torch", 1, "gpus"), measured("torch.gpu0", 41.0, "ms"),
        measured("health", 1, "gpus"), measured("allreduce", 10.0, "us"), measured("memory.copy.gpu0", 1.0),
        measured("memory", 1, "gpus"),
    )}  # fmt: skip
    result = judge(HOST_NAME, RUN_ID, NEW, ["cuda", "memory"], targets, rules)
    assert result.status == "pass"
    kept = update_for(result, targets, rules).entries["host"]
    counts = {"device_access", "cuda", "torch", "health", "memory"}
    assert set(kept) == counts | {"allreduce", "memory.copy.gpu0"}


@pytest.mark.parametrize("rules", [{"record": True}, {"replace": True}])
def test_nothing_is_recorded_while_health_sees_a_fault(rules: dict[str, bool]) -> None:
    """Not required, so the gate passes with it; but figures of a link at half its width are no baseline."""
    ill = measured("health", 1, "gpus", status="error", cause="health.link_width", detail={"message": "x8 of x16"})
    blind = measured("health", None, "gpus", status="error", cause="nvml.missing", detail={"message": "no library"})
    assert gate(*MEMORY, measured("health", 1, "gpus"), **rules).status == "pass"
    found = gate(*MEMORY, ill, **rules)
    assert (found.status, found.cause) == ("fail", "health.link_width")
    assert "x8 of x16" in found.sentence
    assert gate(*MEMORY, blind, **rules).status == "pass"  # it has seen nothing, and is not required
    known = base(memory=entry(3900.0), memory__copy__gpu0=entry(3900.0))
    assert gate(*MEMORY, ill, baselines=known).status == "pass"
    assert gate(*MEMORY, ill, baselines=known, record=True).status == "pass"  # nothing is recorded: all have one


# --- what nobody measured


def test_a_place_that_has_a_baseline_and_was_not_measured_is_named() -> None:
    """A container that did not start again is not measured, and what it had is not proven."""
    found = replace(base(memory=entry(3900.0)), targets={"host": {"memory": entry(3900.0)}, "ct-b": {"memory": ENTRY}})
    notes = gate(*MEMORY, baselines=found).notes
    assert "ct-b has a baseline and was not measured now" in notes
    assert not [line for line in notes if line.startswith("host has")]


ENTRY = entry(3900.0)


def test_figures_that_nothing_is_expected_of_are_counted() -> None:
    """A quick run was recorded, and the full one passes with most of its figures held against nothing."""
    parts = [measured(f"memory.read.gpu{number}", 100.0) for number in range(3)]
    notes = gate(MEMORY[0], *parts, measured("memory.x.gpu0", 5, "links"), baselines=base(memory=entry(3900.0))).notes
    text = "nothing is expected of 3 values (gpu_gate_first_run: record makes them the baseline)"
    assert f"host memory: {text}" in notes
    assert gate(measured("cuda", 1, "gpus"), measured("cuda.gpu0", 31.0, "ms"), required="cuda").notes == ()


def test_expectations_of_a_check_that_was_not_run_are_named() -> None:
    notes = gate(*MEMORY, record=True, expect={"p2p.ce.*": {"min": 380.0}}, require_p2p=True).notes
    assert "gpu_gate_expect: p2p.ce.*: held against nothing, p2p was not run" in notes
    assert "gpu_gate_require_p2p: not proven, p2p was not run" in notes
    assert gate(*MEMORY, record=True).notes == ()


def test_a_tolerance_for_speeds_is_none_for_the_number_of_gpus() -> None:
    found = {"baselines": base(memory=entry(8.0, "gpus")), "tolerance": {"memory*": 15.0}}
    assert gate(measured("memory", 8, "gpus"), **found).status == "pass"
    assert gate(measured("memory", 7, "gpus"), **found).cause == "cuda.gpu_count"


def test_the_inventory_may_say_how_many_gpus_there_are() -> None:
    """Outside a roll, a GPU that is gone with its node is expected by nobody else."""
    found = measured("cuda", 7, "gpus", detail={"expected_gpus": 7})
    assert gate(found, required="cuda").status == "pass"
    assert gate(found, required="cuda", expect={"cuda": {"min": 8.0}}).cause == "cuda.gpu_count"


def test_a_tolerance_that_fits_nothing_is_named() -> None:
    notes = gate(*MEMORY, record=True, tolerance={"memory.cpy.*": 3.0, "memory.copy.*": 3.0, "us": 9.0}).notes
    assert notes == ("gpu_gate_tolerance: memory.cpy.*: fits no measurement",)


def test_a_check_that_nobody_knows_is_not_left_out_silently(host: FakeHost) -> None:
    with pytest.raises(Stop) as caught:
        step(host, "gpuhost_gpu_checks", archive="", checks=["cuda", "heatlh"])
    assert (caught.value.blocker.cause, caught.value.blocker.object) == ("gate.unknown_check", "gpu_gate_checks")
    assert caught.value.blocker.observed == "heatlh"


@pytest.mark.parametrize("check", [True, False])
def test_a_gate_that_requires_nothing_is_refused_before_it_takes_the_gpus(host: FakeHost, check: bool) -> None:
    """In check mode nothing is judged, so that nobody else would say it."""
    with pytest.raises(Stop) as caught:
        step(host, "gpuhost_gpu_checks", check=check, archive="", checks=["cuda"], required=[])
    assert caught.value.blocker.cause == "gate.nothing_required"
    assert host.ran("lxc-attach") == []


# --- the dead-man, and what goes over the wire


def on_trial(host: FakeHost) -> None:
    """The new kernel runs since 100 s, the dead-man is armed; checks give no measurements."""
    prepared(host)
    step(host, "gpuhost_workload", state="drained")
    deadman.arm(host, NEW, 900, 14400, 120)
    booted(host, NEW, roll_of(host).running_before)
    host.put("/proc/uptime", "100.00 0.00\n")
    host.programs["lxc-attach",] = (0, '{"measurements": []}', "")


def test_the_deadman_waits_for_the_longest_gate(host: FakeHost) -> None:
    """Another measurement may have the GPUs for ten minutes first; and every check may take its whole limit."""
    on_trial(host)
    step(host, "gpuhost_gpu_checks", archive="", checks=["cuda"], required=["memory"], user="llm", timeout_s=200)
    # The container and the host; cuda, memory, cuda again as root, and memory again where it is slow.
    longest = 2 * (4 * 200 + 180) + check_runner.LOCK_WAIT_S
    assert deadman.state(host).deadline_s == 100 + longest


def test_a_run_again_waits_for_the_gate_that_a_killed_controller_has_left(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """roll.busy is a failure like any other to the play's rescue: it would boot the old kernel again."""
    prepared(host)
    held = host.path(LOCK_FILE).open("a")
    fcntl.flock(held, fcntl.LOCK_EX)
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 100:
            held.close()

    monkeypatch.setattr(host, "sleep", sleep)
    assert not step(host, "gpuhost_boot_trial", action="hold")["changed"]
    assert len(waited) == 100


def test_the_history_stays_on_the_host(host: FakeHost) -> None:
    """The judge does not read it, and of 16 GPUs it has some megabytes."""
    past = baselines.Past(ORIGIN, {"host": {"memory": 3900.0}})
    baselines.write(host, replace(base(memory=ENTRY), history=(past,) * 3))
    host.programs["lxc-attach",] = (0, '{"measurements": []}', "")
    sent = step(host, "gpuhost_gpu_checks", archive="", checks=["cuda"])["baselines"]
    assert sent["history"] == []
    assert baselines.from_dict(sent).entry("host", "memory") == ENTRY
    assert len(baselines.from_dict(baselines.read(host)).history) == 3


def test_rows_of_a_gate_that_passes_have_no_cause() -> None:
    assert {row.cause for row in rows(gate(*MEMORY, record=True)).values()} == {None}


def test_the_deadman_waits_for_what_is_measured_by_hand(host: FakeHost) -> None:
    """``gate --tags decode`` while a trial is armed: the step may be measured twice, after another measurement."""
    on_trial(host)
    step(host, "gpuhost_decode_check", archive="", targets=["host"], timeout_s=500, fail_on_error=False)
    assert deadman.state(host).deadline_s == 100 + check_runner.LOCK_WAIT_S + 2 * (2 * 500 + 180)
