"""Measuring on a host: in turns, put back whatever happens, refused under load, harm taken back."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fake_host import FakeHost
from fake_roll import library

from gpuhost import tune_deadline, tune_knobs, tune_load, tune_measure, tune_sampler, tune_verify, tuning
from gpuhost.documents import json_schema
from gpuhost.errors import Stop, stop
from gpuhost.tune_effects import Effects, KnobEffect
from gpuhost.tune_knobs import Knob
from gpuhost.tune_measure import Order
from gpuhost.tune_sampler import Sampler
from gpuhost.tuning import LIVE, Wanted, Write

GOOD, BAD, NONE = "/proc/sys/vm/good", "/proc/sys/vm/bad", "/proc/sys/vm/none"
WRITES = [Write(LIVE, path, "1\n", path.rpartition("/")[2]) for path in (GOOD, BAD, NONE)]
QUICK = Order(pairs=10)


class Machine(FakeHost):
    """A host whose one latency really hangs on its files. ``seen``: the files' values at each round."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.dice = random.Random(20261130)
        self.seen: list[str] = []
        self.hook: Callable[[], None] = lambda: None
        for path in (GOOD, BAD, NONE):
            self.put(path, "0\n")
        self.put("/proc/loadavg", "0.10 0.10 0.10 1/100 4242\n")
        self.put("/proc/stat", "cpu  1 2\ncpu0 1 2\ncpu1 1 2\n")
        self.put("/proc/sys/kernel/osrelease", "6.12.0\n")
        self.programs[(sys.executable,)] = lambda *_: self.bench()
        self.programs[("systemctl",)] = (0, "", "")

    def values(self) -> str:
        return "".join(self.read_line(path) for path in (GOOD, BAD, NONE))

    def bench(self) -> tuple[int, str, str]:
        self.hook()
        values = self.values()
        self.seen.append(values)
        factor = (0.7 if values[0] == "1" else 1) * (1.2 if values[1] == "1" else 1)
        rows = [("wakeup_us", 50 * factor), ("loopback_gb_s", 3.0)]
        found = [
            {
                "name": name, "value": value * self.dice.gauss(1, 0.02), "unit": name.partition("_")[2],
                "status": "measured", "detail": {"better": "lower" if name == "wakeup_us" else "higher"},
            }
            for name, value in rows
        ]  # fmt: skip
        nowhere = {"better": "higher", "message": "one NUMA node only"}
        found.append(
            {"name": "remote_copy_gb_s", "value": None, "unit": "gb_s", "status": "not_measured", "detail": nowhere}
        )
        return 0, json.dumps(found), ""


@pytest.fixture
def host(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def knobs_of(host: FakeHost, *writes: Write) -> tuple[Knob, ...]:
    return tune_knobs.read(host, [("sysctl", "kernel_runtime", lambda _: Wanted((), writes or tuple(WRITES)))], [])


def measured(host: Machine, order: Order = QUICK) -> dict[str, KnobEffect]:
    with tune_measure.started(host, order, Sampler(host)) as run:
        return {item.knob: item for item in tune_measure.measure(run, knobs_of(host))}


def test_each_knob_gets_its_own_verdict_and_everything_is_put_back(host: Machine) -> None:
    before = host.snapshot()
    found = measured(host)
    assert {name: (item.verdict, item.decision) for name, item in found.items()} == {
        "vm.good": ("improves", "kept"),
        "vm.bad": ("harmful", "left out"),
        "vm.none": ("no measurable effect", "kept"),
    }
    assert not any(item.in_force for item in found.values())
    assert {key: value for key, value in host.snapshot().items() if "lock" not in key and "var" not in key} == {
        **{key: value for key, value in before.items() if "lock" not in key},
        **{key: value for key, value in host.snapshot().items() if key in ("run", "run/systemd", "run/systemd/system")},
    }
    assert not host.exists(tune_deadline.RECORD)


def test_old_and_new_alternate_and_every_knob_is_alone(host: Machine) -> None:
    measured(host)
    turns = host.seen[1:]  # the first round only finds out what there is
    assert turns[:20] == ["000", "100", "100", "000"] * 5
    assert turns[20:40] == ["000", "010", "010", "000"] * 5
    assert turns[40:] == ["000", "001", "001", "000"] * 5


def test_harm_that_is_in_force_is_taken_back_and_the_rest_stays(host: Machine) -> None:
    tuning.apply(host, WRITES, False)
    found = measured(host)
    assert host.values() == "101"
    assert (found["vm.bad"].in_force, found["vm.good"].in_force) == (False, True)
    assert "the old value is back" in found["vm.bad"].reason


def test_harm_is_kept_where_the_operator_says_so(host: Machine) -> None:
    tuning.apply(host, WRITES, False)
    found = measured(host, Order(pairs=10, keep_harmful=True))
    assert host.values() == "111"
    assert found["vm.bad"].decision == "kept"


def killed_at(host: Machine, values: str) -> None:
    """Measure in a child that is killed by SIGKILL when the host's files read so: no handler and no finally runs."""
    host.hook = lambda: os.kill(os.getpid(), signal.SIGKILL) if host.values() == values else None
    pid = os.fork()
    if pid == 0:
        try:
            measured(host)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    host.hook = lambda: None
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_a_kill_in_the_middle_leaves_a_record_from_which_the_timer_restores(host: Machine) -> None:
    killed_at(host, "010")
    assert host.values() == "010"
    assert host.read(tune_deadline.TIMER_FILE) == tune_deadline.timer(timer_seconds(host))
    assert tune_deadline.at_deadline(host) == f"{BAD}: 1 -> 0, as before a measurement"
    assert host.values() == "000"
    assert not host.exists(tune_deadline.RECORD)
    assert tune_deadline.at_deadline(host) == "nothing to put back"


def timer_seconds(host: Machine) -> int:
    return int((host.read(tune_deadline.TIMER_FILE) or "").partition("OnActiveSec=")[2].split()[0])


def test_a_kill_is_ended_by_the_next_measurement_too(host: Machine) -> None:
    killed_at(host, "010")
    measured(host)
    assert host.seen[0] == "000"
    assert host.values() == "000"
    assert not host.exists(tune_deadline.TIMER_FILE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_polite_signal_puts_back_at_once(host: Machine, number: signal.Signals) -> None:
    host.hook = lambda: signal.raise_signal(number) if host.values() == "010" else None
    handler = signal.getsignal(number)
    with pytest.raises(SystemExit):
        measured(host)
    assert host.values() == "000"
    assert not host.exists(tune_deadline.RECORD)
    assert not host.exists(tune_deadline.TIMER_FILE)
    assert signal.getsignal(number) == handler


def test_after_the_deadline_nothing_is_written_and_the_knob_is_not_measured(host: Machine) -> None:
    def late() -> None:
        if host.values() == "100" and not host.exists("/late"):
            host.put("/late")
            tune_deadline.put_back(host)  # the timer's service

    host.hook = late
    found = measured(host)
    assert found["vm.good"].verdict == "not measured"
    assert "old values are back already" in found["vm.good"].reason
    assert found["vm.bad"].verdict == "harmful"
    assert host.values() == "000"


def test_a_value_that_can_not_be_put_back_stops_everything_and_leaves_the_timer(
    host: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = host.write_live

    def one_way(path: str, value: str) -> None:
        if path == GOOD and value == "0\n" and len(host.seen) > 3:
            raise OSError(16, "Device or resource busy")
        real(path, value)

    monkeypatch.setattr(host, "write_live", one_way)
    host.hook = lambda: None if len(host.seen) < 4 else (_ for _ in ()).throw(stop("tune.not_measured", "x", "y"))
    with pytest.raises(Stop) as caught:
        measured(host)
    assert caught.value.blocker.cause == "tune.not_restored"
    assert "busy" in caught.value.blocker.observed
    assert host.exists(tune_deadline.RECORD)
    assert host.exists(tune_deadline.TIMER_FILE)


def test_an_object_that_does_not_take_the_value_is_left_out_and_said(
    host: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, other = host.write_live, "/sys/devices/system/cpu/cpufreq/policy1/scaling_governor"
    writes = [Write(LIVE, path, "1\n", "governor") for path in (BAD.replace("/proc/sys", "/sys"), other)]
    for write in writes:
        host.put(write.object, "0\n")
    monkeypatch.setattr(host, "write_live", lambda path, value: None if path == other else real(path, value))
    with tune_measure.started(host, QUICK, Sampler(host)) as run:
        (found,) = tune_measure.measure(run, knobs_of(host, *writes))
    assert found.verdict == "no measurable effect"
    assert found.reason.endswith(f"without {other}: reads 0 after it was written")
    monkeypatch.setattr(host, "write_live", lambda path, value: None)
    with tune_measure.started(host, QUICK, Sampler(host)) as run:
        (found,) = tune_measure.measure(run, knobs_of(host, *writes))
    assert (found.verdict, found.decision) == ("not measured", "as it was")


def test_without_systemd_nothing_is_written_unless_told(host: Machine) -> None:
    host.programs[("systemctl",)] = (1, "", "System has not been booted with systemd as init system (PID 1)")
    with pytest.raises(Stop) as caught:
        measured(host)
    assert caught.value.blocker.cause == "tune.no_timer"
    assert not [item for item in host.effects if item.startswith("live")]
    assert not host.exists(tune_deadline.TIMER_FILE)
    assert measured(host, Order(pairs=10, without_timer=True))["vm.bad"].verdict == "harmful"


@pytest.mark.parametrize("pairs", [4, 6, 1001])
def test_pairs_that_could_find_nothing_are_refused(host: Machine, pairs: int) -> None:
    with pytest.raises(Stop) as caught:
        measured(host, Order(pairs=pairs).checked())
    assert (caught.value.blocker.cause, caught.value.blocker.object) == ("input.invalid", "tune_effects_pairs")


def test_a_negative_smallest_effect_is_refused() -> None:
    with pytest.raises(Stop):
        Order(smallest_percent=-1).checked()


# --- live load


def test_a_host_at_work_is_not_measured_unless_told(host: Machine) -> None:
    host.put("/proc/loadavg", "3.50 1 1 1/100 4242\n")
    with pytest.raises(Stop) as caught:
        measured(host)
    assert caught.value.blocker.cause == "tune.live_load"
    assert caught.value.blocker.observed == "load average 3.5 on 2 CPUs (limit 2)"
    assert not host.seen
    with tune_measure.started(host, Order(pairs=10, under_load=True), Sampler(host)) as run:
        assert run.load == ("load average 3.5 on 2 CPUs (limit 2)",)


def test_what_counts_as_work() -> None:
    found = tune_load.Load(31.9, 128, tuple("abcd"), (("0000:01:00.0", 98),), ("llm", "embed"))
    assert tune_load.reasons(found) == (
        "processes with a GPU open: a, b, c and 1 more",
        "GPU 0000:01:00.0 is 98 % busy",
        "containers with GPUs run: llm, embed",
    )
    assert tune_load.reasons(tune_load.Load(32.1, 128)) == ("load average 32.1 on 128 CPUs (limit 32)",)


def test_busy_gpus_are_asked_for_in_one_call(host: Machine) -> None:
    host.put("/sys/module/nvidia/version", "580")
    host.programs[("nvidia-smi",)] = (0, "00000000:01:00.0, 0\n00000000:02:00.0, 73\n00000000:03:00.0, [N/A]\n", "")
    assert tune_load.read(host).busy_gpus == (("00000000:02:00.0", 73),)
    assert len(host.ran("nvidia-smi")) == 1


# --- GPU checks


def test_times_of_gpu_checks_are_benchmarks_like_others() -> None:
    def of(name: str, status: str, **detail: Any) -> dict[str, Any]:
        return {"name": name, "status": status, "value": 1, "unit": "gpus", "cause": None, "detail": detail}

    found = tune_sampler.gpu_round([
        of("cuda", "measured", seconds={"init": 0.5}),
        of("cuda.gpu0", "measured", seconds={"context": 0.2, "kernel": 0.01}),
        of("cuda.gpu1", "measured", seconds={"context": 0.4, "kernel": 0.03}),
        of("cuda.gpu2", "error", seconds={"context": 9.0}),
        of("p2p", "not_measured"),
    ])  # fmt: skip
    assert found == {"cuda_init_s": 0.5, "cuda_context_s": pytest.approx(0.3), "cuda_kernel_s": pytest.approx(0.02)}


def test_a_check_that_measures_nothing_is_not_asked_again(host: Machine) -> None:
    host.put("/dev/nvidia0")
    failed = {
        "name": "cuda",
        "status": "error",
        "cause": "cuda.no_libcuda",
        "value": None,
        "detail": {"message": "none"},
    }
    host.programs[(sys.executable, "/var/lib/gpuhost/gpu_checks.pyz")] = (0, json.dumps({"measurements": [failed]}), "")
    sampler = Sampler(host, gpu_checks=("cuda",), archive=b"x")
    sampler.first()
    sampler.round()
    assert len(host.ran(sys.executable, "/var/lib/gpuhost/gpu_checks.pyz")) == 1
    assert sampler.not_measured == {"remote_copy_gb_s": "one NUMA node only", "cuda": "none"}


@pytest.mark.parametrize("answer", [(124, "", "killed"), (0, "[]", ""), (0, "{", ""), (0, '[{"name": 1}]', "")])
def test_benchmarks_that_do_not_run_are_no_effect(host: Machine, answer: tuple[int, str, str]) -> None:
    host.programs[(sys.executable,)] = answer
    with pytest.raises(Stop) as caught:
        measured(host)
    assert caught.value.blocker.cause == "tune.not_measured"


# --- before, apply, after


def verified(host: Machine, *writes: Write, moves: float = 0.0) -> KnobEffect:
    with tune_measure.started(host, QUICK, Sampler(host)) as run:
        then = json.loads(json.dumps(tune_verify.before(run, knobs_of(host))))
    tuning.apply(host, writes, False)
    if moves:
        host.programs[(sys.executable,)] = lambda *_: moved(host, moves)
    with tune_measure.started(host, QUICK, Sampler(host)) as run:
        return tune_verify.after(run, then)


def moved(host: Machine, factor: float) -> tuple[int, str, str]:
    rc, out, err = host.bench()
    rows = json.loads(out)
    rows[0]["value"] *= factor
    return rc, json.dumps(rows), err


def test_before_apply_after(host: Machine) -> None:
    found = verified(host, *WRITES)
    wakeup, loopback = found.benchmarks
    assert found.verdict == "improves"
    assert wakeup.effect_percent == pytest.approx(100 * (0.7 * 1.2 - 1), abs=3)
    assert loopback.verdict == "no measurable effect"
    assert len(wakeup.before_samples) == 10
    assert host.values() == "111"


def test_what_moves_meanwhile_is_not_taken_for_the_tunes_effect(host: Machine) -> None:
    found = verified(host, WRITES[2], moves=1.5)
    assert found.verdict == "no measurable effect"
    assert found.benchmarks[0].before_percent == pytest.approx(50, abs=5)


@pytest.mark.parametrize("moves", [0.0, 1.5])
def test_a_tune_that_changed_nothing_has_no_effect_whatever_moved(host: Machine, moves: float) -> None:
    found = verified(host, moves=moves)
    assert found.reason == tune_verify.NOTHING_SET
    assert found.verdict == "no measurable effect"
    assert found.benchmarks[0].verdict == ("not measured" if moves else "no measurable effect")


def test_harm_by_the_whole_is_said_and_nothing_taken_back(host: Machine) -> None:
    found = verified(host, WRITES[1])
    assert (found.verdict, found.decision) == ("harmful", "kept")
    assert host.values() == "010"
    assert "--measure" in found.reason


@pytest.mark.parametrize("then", [{}, {"values": [{}], "rounds": []}, {"values": [], "rounds": [1]}, {"values": 1}])
def test_an_answer_that_is_none_is_refused(host: Machine, then: dict[str, Any]) -> None:
    with pytest.raises(Stop) as caught:
        tune_verify.changed_since(host, then)
    assert caught.value.blocker.cause == "input.invalid"


# --- the module


def params(**more: Any) -> dict[str, Any]:
    _, spec = library("gpuhost_tune_measure")
    given = {
        "host_name": "gpu-1", "run_id": "run", "sysctl": {"keys": {}, "target_release": ""}, "cpu": {},
        "gpu_runtime": {}, "pcie": {},
    }  # fmt: skip
    return {**{name: facts.get("default") for name, facts in spec.items()}, **given, **more}


@pytest.fixture
def module(host: Machine, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    found, _ = library("gpuhost_tune_measure")
    looked = ("sysctl", lambda _given: lambda _host: Wanted((), tuple(WRITES)))

    class Tuning:
        name, look_of = looked[0], staticmethod(looked[1])
        concern = type("Concern", (), {"domain": "kernel_runtime"})

    monkeypatch.setattr(found.concerns, "ALL", (Tuning,))
    return lambda check=False, **more: found.work(host, params(**more), check)


def test_the_module_says_what_it_found_and_how_to_leave_it_out(host: Machine, module: Any) -> None:
    tuning.apply(host, WRITES, False)
    answer = module(sysctl={"keys": {"vm.bad": 1, "vm.swappiness": 1}})
    assert answer["changed"] is True
    assert answer["variables"] == {"sysctl_tuning_keys": {"vm.swappiness": 1, "vm.bad": None}}
    (document,) = answer["gpuhost_documents"]
    jsonschema.validate(document, json_schema(Effects))
    assert json.loads(host.read(tune_measure.EFFECTS) or "") == document
    assert [line.split(":")[0] for line in answer["lines"]] == [
        "vm.good 0 -> 1",
        "vm.bad 0 -> 1",
        "vm.none 0 -> 1",
        "in the inventory",
    ]
    assert module()["changed"] is False


def test_check_mode_measures_nothing(host: Machine, module: Any) -> None:
    answer = module(True)
    assert answer["lines"] == ["to be measured, 12 pairs each: vm.good, vm.bad, vm.none"]
    assert not host.effects


def test_the_module_verifies(host: Machine, module: Any) -> None:
    then = module(state="before")
    assert set(then) == {"changed", "lines", "before"}
    tuning.apply(host, WRITES, False)
    answer = module(state="after", before=then["before"])
    assert (answer["changed"], answer["variables"]) == (False, {})
    assert answer["gpuhost_documents"][0]["mode"] == "verify"
