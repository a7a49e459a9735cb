"""A kill or a power cut after every single effect of a step: what the host boots, what it knows, how it ends."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_host import FakeHost, Killed
from fake_roll import (
    PASSED,
    boots_by_itself,
    debian_host,
    one_shot,
    plan_of,
    power_cycle,
    prepared,
    roll_of,
    step,
)
from fake_tree import CONTAINER, MAJORS, NEW, NEW_ENTRY, OLD, PLAIN

from gpuhost import homecoming, return_service, workloads
from gpuhost.rollfile import ROLL_FILE, load

BOTH = {CONTAINER, PLAIN}


def hold(host: FakeHost) -> None:
    step(host, "gpuhost_boot_trial", action="hold", plan=plan_of(host))


def drain(host: FakeHost) -> None:
    step(host, "gpuhost_workload", state="drained")


def boot(host: FakeHost) -> None:
    step(host, "gpuhost_boot_trial", action="boot", allowed=True)


def finish(host: FakeHost) -> None:
    """The rest of the command: from whatever the host stands at to the end."""
    hold(host)
    step(host, "gpuhost_boot_config", rebuild=False)
    step(host, "gpuhost_kernel_upgrade")
    step(host, "gpuhost_boot_config")
    step(host, "gpuhost_preflight")
    drain(host)
    boot(host)
    if host.rebooting:
        power_cycle(host)
    step(host, "gpuhost_boot_trial", action="prove")
    step(host, "gpuhost_lxc_devices")
    step(host, "gpuhost_boot_trial", action="promote", verdict=PASSED)
    step(host, "gpuhost_workload", state="handed_back", sentence="passed")


STEPS: dict[str, tuple[Callable[[FakeHost], object], Callable[[FakeHost], None]]] = {
    "hold": (lambda host: None, hold),
    "drain": (prepared, drain),
    "boot": (lambda host: (prepared(host), drain(host)), boot),
}


def killed_after(folder: Path, name: str, effect: int) -> tuple[FakeHost, bool]:
    """The host as it stands after the n-th effect of a step; False where the step had ended before."""
    before, action = STEPS[name]
    host = debian_host(folder)
    before(host)
    host.effects, host.die_after = [], effect
    try:
        action(host)
    except Killed:
        host.die_after = None
        return host, True
    host.die_after = None
    return host, False


def effects_of(folder: Path, name: str) -> int:
    host, _ = killed_after(folder, name, 10**6)
    return len(host.effects)


CUTS = [(name, effect) for name, most in (("hold", 6), ("drain", 12), ("boot", 15)) for effect in range(1, most + 1)]


@pytest.mark.parametrize("name", STEPS)
def test_every_effect_is_cut(tmp_path: Path, name: str) -> None:
    assert effects_of(tmp_path, name) == max(effect for known, effect in CUTS if known == name)


@pytest.mark.parametrize(("name", "effect"), CUTS)
def test_invariants(tmp_path: Path, name: str, effect: int) -> None:
    host, _ = killed_after(tmp_path, name, effect)
    # The roll file is readable, and there from the first write on.
    roll = load(host)
    assert roll is not None
    assert roll.is_open
    # Only a one-shot leads to the new kernel, and the roll file has counted it before.
    if one_shot(host) is not None:
        assert one_shot(host) == NEW_ENTRY
        assert roll.trial.boots == 1
    # What ran is remembered and held before the first stop.
    if host.running != BOTH:
        assert {item.name for item in roll.workloads if item.was_running} == BOTH
        assert host.exists("/var/lib/gpuhost/hold")
    # After a power cut it boots the old kernel, or one counted trial and then the old kernel.
    if boots_by_itself(host) != OLD:
        # Nothing is installed or changed yet: the host boots what it would have booted without us.
        assert name == "hold"
        assert effect <= 3
        return
    boots = [power_cycle(host), power_cycle(host), power_cycle(host)]
    assert boots[1:] == [OLD, OLD]
    assert boots[0] == OLD or roll_of(host).trial.boots == 1


@pytest.mark.parametrize(("name", "effect"), CUTS)
def test_the_same_command_again_finishes_after_a_killed_controller(tmp_path: Path, name: str, effect: int) -> None:
    host, _ = killed_after(tmp_path, name, effect)
    if host.rebooting:
        power_cycle(host)
    finish(host)
    assert host.boots.count(NEW) == 1  # never booted into a trial twice
    roll = roll_of(host)
    assert (roll.state, roll.result, roll.trial.boots) == ("closed", "good", 1)
    assert boots_by_itself(host) == NEW
    assert host.running == BOTH
    assert not host.exists("/var/lib/gpuhost/hold")


def boots_alone(host: FakeHost) -> str:
    """The power comes back, and nobody is there: what boots, and what its return service does, where it has one."""
    release = power_cycle(host)
    if host.path(return_service.LINK).is_symlink():
        homecoming.by_itself(host)
    return release


@pytest.mark.parametrize("effect", [effect for name, effect in CUTS if name == "drain"])
def test_after_a_power_cut_in_the_drain_the_host_alone_starts_what_ran(tmp_path: Path, effect: int) -> None:
    host, _ = killed_after(tmp_path, "drain", effect)
    held = workloads.is_held(host)
    assert boots_alone(host) == OLD
    # Before the hold nothing was stopped or kept from starting: as after any power cut.
    assert host.running == (BOTH if held else {CONTAINER})
    assert not workloads.is_held(host)
    roll = roll_of(host)
    assert (roll.is_open, roll.trial.boots, boots_by_itself(host)) == (True, 0, OLD)
    if held:
        assert not return_service.is_installed(host)
        assert json.loads(host.read(homecoming.RECORD) or "")[-2]["state"] == "stopped"
    # The controller comes later: the drain stops them again.
    host.running = set(BOTH)
    finish(host)
    assert (roll_of(host).result, host.running, host.boots.count(NEW)) == ("good", BOTH, 1)


@pytest.mark.parametrize("effect", [effect for name, effect in CUTS if name == "boot"])
def test_after_a_power_cut_in_the_reboots_call_the_host_alone_starts_what_ran(tmp_path: Path, effect: int) -> None:
    host, _ = killed_after(tmp_path, "boot", effect)
    if boots_alone(host) == NEW:
        assert host.running == set()  # on trial: no service before the gate
        assert boots_alone(host) == OLD  # the dead-man
    assert host.running == BOTH
    assert not workloads.is_held(host)
    assert roll_of(host).is_open == (roll_of(host).trial.boots == 0)


LATE = {"lxc_devices": 5, "promote": 22, "handed_back": 14}  # and how many effects each has at most


def on_trial_until(folder: Path, late: str) -> tuple[FakeHost, Callable[[], object]]:
    """The trial runs, and every step before ``late`` is done; and that step."""
    host = debian_host(folder)
    prepared(host)
    drain(host)
    boot(host)
    power_cycle(host)
    after: dict[str, Callable[[], object]] = {
        "lxc_devices": lambda: step(host, "gpuhost_lxc_devices"),
        "promote": lambda: step(host, "gpuhost_boot_trial", action="promote", verdict=PASSED),
        "handed_back": lambda: step(host, "gpuhost_workload", state="handed_back", sentence="passed"),
    }
    for name in list(LATE)[: list(LATE).index(late)]:
        after[name]()
    return host, after[late]


@pytest.mark.parametrize("late", LATE)
def test_every_late_effect_is_cut(tmp_path: Path, late: str) -> None:
    host, action = on_trial_until(tmp_path, late)
    host.effects = []
    action()
    assert len(host.effects) == LATE[late]


@pytest.mark.parametrize(
    ("late", "effect"), [(name, effect) for name, most in LATE.items() for effect in range(1, most + 1)]
)
def test_after_a_power_cut_behind_the_trial_the_host_alone_goes_into_service(
    tmp_path: Path, late: str, effect: int
) -> None:
    host, action = on_trial_until(tmp_path, late)
    host.effects, host.die_after = [], effect
    with contextlib.suppress(Killed):
        action()
    host.die_after = None
    handed_back = not roll_of(host).is_open
    release = boots_alone(host)
    assert host.running == ({CONTAINER} if handed_back else BOTH)  # in service already: as after any power cut
    assert not workloads.is_held(host)
    assert not host.path(return_service.LINK).is_symlink()  # it never starts again; its file may be cut off
    roll = roll_of(host)
    assert (roll.state, release, boots_by_itself(host)) == ("closed", release, release)
    assert roll.result == {NEW: "good", OLD: "good_on_old"}[release]
    config = host.read(f"/var/lib/lxc/{CONTAINER}/config") or ""
    assert f"c {MAJORS[release]['nvidia-uvm']}:* rwm" in config
    if late == "handed_back":
        assert release == NEW
    if release == NEW:
        assert roll.promoted_at is not None
        assert plan_of(host)["nothing_to_do"]
        assert host.names("/etc/gpuhost") == []


@pytest.mark.parametrize(
    ("late", "effect"), [(name, effect) for name, most in LATE.items() for effect in range(1, most + 1)]
)
def test_a_kill_after_the_trial_is_finished_too(tmp_path: Path, late: str, effect: int) -> None:
    host, action = on_trial_until(tmp_path, late)
    host.effects, host.die_after = [], effect
    try:
        action()
    except Killed:
        assert load(host) is not None
    host.die_after = None
    if roll_of(host).is_open:
        finish(host)
    assert host.boots.count(NEW) == 1
    assert (roll_of(host).result, host.running, boots_by_itself(host)) == ("good", BOTH, NEW)
    config = host.read(f"/var/lib/lxc/{CONTAINER}/config") or ""
    assert "c 509:* rwm" in config
    assert "c 504:* rwm" not in config


def test_a_panicking_kernel_comes_back_and_is_not_tried_again(tmp_path: Path) -> None:
    host = debian_host(tmp_path)
    prepared(host)
    drain(host)
    boot(host)
    assert [power_cycle(host), power_cycle(host)] == [NEW, OLD]  # panic=30 ends the first
    assert host.running == set()  # held off: no service before the gate
    homecoming.by_itself(host)  # nobody is there
    assert host.running == BOTH
    assert (roll_of(host).result, roll_of(host).cause) == ("good_on_old", "trial.expired")
    assert [item["cause"] for item in plan_of(host)["blockers"]] == ["trial.expired"]


def test_the_roll_file_is_never_half_a_file(tmp_path: Path) -> None:
    host = debian_host(tmp_path)
    hold(host)
    names = host.names("/var/lib/gpuhost")
    assert host.exists(ROLL_FILE)
    assert [name for name in names if name.startswith(".")] == []
