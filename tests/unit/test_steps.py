"""The frame of every step: logged in the roll file, also when it stops; check mode leaves the tree byte for byte."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost
from fake_roll import HOST_NAME, RUN_ID, debian_host, library, plan_of, power_cycle, prepared, roll_of, step
from fake_tree import NEW, OLD

from gpuhost import rollfile, steps
from gpuhost.errors import Stop, stop
from gpuhost.rollfile import ROLL_FILE, Roll, closed, save

PARAMS: dict[str, Any] = {"host_name": HOST_NAME, "run_id": RUN_ID, "plan": None}


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    made = debian_host(tmp_path)
    step(made, "gpuhost_boot_trial", action="hold", plan=plan_of(made))
    return made


def run(host: FakeHost, action: steps.Action, *, check: bool = False, **changes: Any) -> dict[str, Any]:
    return steps.run_step(host, {**PARAMS, **changes}, check, "gate", "measure", action)


def test_a_step_is_logged_with_its_lines(host: FakeHost) -> None:
    answer = run(host, lambda roll: steps.Done(roll, ("one", "two")))
    last = roll_of(host).steps[-1]
    assert (last.stage, last.step, last.run_id, last.changed, last.lines) == (
        "gate",
        "measure",
        RUN_ID,
        True,
        ("one", "two"),
    )
    assert last.seconds > 0
    assert (answer["changed"], answer["lines"]) == (True, ["one", "two"])
    assert answer["gpuhost_documents"][-1]["steps"][-1]["lines"] == ["one", "two"]


@pytest.mark.parametrize(
    ("done", "changed"),
    [
        ({}, False),
        ({"lines": ("x",)}, True),
        ({"diffs": ({"before": "a", "after": "b"},)}, True),
        ({"lines": ("x",), "changed": False}, False),
    ],
)
def test_changed_means_that_something_differed(host: FakeHost, done: dict[str, Any], changed: bool) -> None:
    assert run(host, lambda roll: steps.Done(roll, **done))["changed"] is changed
    assert roll_of(host).steps[-1].changed is changed


def test_what_the_step_makes_of_the_roll_is_saved(host: FakeHost) -> None:
    run(host, lambda roll: steps.Done(closed(roll, "good", None, "passed")))
    assert roll_of(host).result == "good"


def test_a_stop_is_logged_and_raised_with_all_documents(host: FakeHost) -> None:
    def action(roll: Roll) -> steps.Done:
        found = stop("device.open_failed", "/dev/nvidia0", "EIO")
        raise Stop(found.blocker, ({"schema": "gpuhost.measurements"},))

    with pytest.raises(Stop) as caught:
        run(host, action)
    assert caught.value.blocker.cause == "device.open_failed"
    last = roll_of(host).steps[-1]
    assert not last.changed
    assert last.lines == (f"stopped: device.open_failed: {caught.value.blocker.sentence}",)
    assert [item["schema"] for item in caught.value.documents] == ["gpuhost.measurements", "gpuhost.roll"]
    assert caught.value.documents[-1]["steps"][-1]["lines"] == list(last.lines)


@pytest.mark.parametrize(
    "error", [ValueError("odd"), KeyError("x"), OSError(28, "No space left on device"), TypeError()]
)
def test_a_defect_is_logged_and_becomes_a_stop(host: FakeHost, error: Exception) -> None:
    def action(roll: Roll) -> steps.Done:
        raise error

    with pytest.raises(Stop) as caught:
        run(host, action)
    assert caught.value.blocker.cause == "host.module_failed"
    assert caught.value.blocker.object == type(error).__name__
    assert roll_of(host).steps[-1].lines[0].startswith("stopped: host.module_failed: ")


def test_what_a_stopping_step_has_saved_is_kept(host: FakeHost) -> None:
    def action(roll: Roll) -> steps.Done:
        save(host, replace(roll, sentence="half way"))
        raise stop("device.open_failed", "x", "y")

    with pytest.raises(Stop):
        run(host, action)
    assert roll_of(host).sentence == "half way"


def test_no_open_roll_no_step(tmp_path: Path) -> None:
    host = debian_host(tmp_path)
    for path, cause in ((None, "roll.not_open"), (b"{}", "roll.file_unreadable")):
        if path is not None:
            host.put(ROLL_FILE, path)
        with pytest.raises(Stop) as caught:
            run(host, steps.Done)
        assert caught.value.blocker.cause == cause


def test_a_plan_opens_a_roll_only_where_the_step_may(tmp_path: Path) -> None:
    host = debian_host(tmp_path)
    plan = plan_of(host)
    with pytest.raises(Stop):
        run(host, steps.Done, plan=plan)
    assert not host.exists(ROLL_FILE)
    answer = run(host, lambda roll: steps.Done(roll, (roll.target, roll.running_before)), check=True, plan=plan)
    assert answer["lines"] == [NEW, OLD]
    assert not host.exists(ROLL_FILE)


def test_an_open_roll_beats_the_plan(host: FakeHost) -> None:
    other = {**plan_of(host), "target": {"release": "9.9.9-amd64"}}
    assert run(host, lambda roll: steps.Done(roll, (roll.target,)), plan=other)["lines"] == [NEW]


def test_two_steps_at_once_are_refused_and_the_roll_is_read_inside_the_lock(host: FakeHost) -> None:
    with host.path(rollfile.LOCK_FILE).open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Stop) as caught:
            run(host, steps.Done)
    assert caught.value.blocker.cause == "roll.busy"
    seen: list[str] = []
    run(host, lambda roll: (seen.append(roll.state), steps.Done(roll))[1])
    assert seen == ["open"]


# --- check mode, all modules

CHECKS: list[tuple[str, dict[str, Any]]] = [
    ("gpuhost_facts", {"apt_max_age_s": 0}),
    ("gpuhost_boot_trial", {"action": "hold"}),
    ("gpuhost_kernel_upgrade", {}),
    ("gpuhost_boot_config", {"rebuild": False}),
    ("gpuhost_boot_config", {}),
    ("gpuhost_preflight", {}),
    ("gpuhost_workload", {"state": "drained"}),
    ("gpuhost_boot_trial", {"action": "boot", "allowed": True}),
    ("gpuhost_lxc_devices", {}),
    ("gpuhost_gpu_checks", {"archive": "", "checks": ["device_access"]}),
    ("gpuhost_boot_trial", {"action": "promote", "verdict": {"status": "pass", "kernel": NEW}}),
    ("gpuhost_boot_trial", {"action": "boot_fallback", "allowed": True}),
    ("gpuhost_workload", {"state": "handed_back"}),
    ("gpuhost_boot_trial", {"action": "come_back", "failed": True, "cause": "apt.failed"}),
]
WRITERS = {
    "systemctl",
    "systemd-run",
    "bootctl",
    "kernel-install",
    "update-initramfs",
    "lxc-start",
    "lxc-stop",
    "modprobe",
}


def _ids() -> list[str]:
    return [f"{name.removeprefix('gpuhost_')} {' '.join(map(str, given.values()))[:20]}" for name, given in CHECKS]


@pytest.mark.parametrize(("name", "given"), CHECKS, ids=_ids())
@pytest.mark.parametrize("stage", ["before the roll", "installed", "prepared", "on trial"])
def test_check_mode_leaves_the_tree_byte_for_byte(tmp_path: Path, stage: str, name: str, given: dict[str, Any]) -> None:
    host = debian_host(tmp_path, installed=stage == "installed")
    plan = plan_of(host)
    if stage in ("prepared", "on trial"):
        prepared(host)
    if stage == "on trial":
        step(host, "gpuhost_workload", state="drained")
        step(host, "gpuhost_boot_trial", action="boot", allowed=True)
        power_cycle(host)
    _, spec = library(name)
    before, running, host.calls, host.effects = host.snapshot(), set(host.running), [], []
    extra = {"plan": plan} if "plan" in spec else {}
    try:
        step(host, name, check=True, **given, **extra)
    except Stop:
        assert stage != "prepared"  # a Stop is an answer too, but a prepared host is good
    assert host.snapshot() == before
    assert host.running == running
    assert not [effect for effect in host.effects if effect.startswith(("write", "remove", "node"))]
    assert not host.rebooting
    asks = ("is-enabled", "is-active", "--version", "is-system-running", "list-units")
    for call in host.calls:
        assert call[0] not in WRITERS or call[1] in asks, call
        assert call[0] != "apt-get" or "-s" in call, call
        assert call[0] != "dpkg", call
