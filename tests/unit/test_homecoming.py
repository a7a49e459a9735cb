"""The way back, walked by the host itself or by a controller: in service, gated, settings as before, nothing left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost
from fake_roll import (
    PASSED,
    act,
    boots_by_itself,
    cause_of,
    debian_host,
    on_trial,
    plan_of,
    power_cycle,
    prepared,
    roll_of,
    step,
)
from fake_tree import CMDLINE, CONTAINER, MACHINE, NEW, OLD, OLD_ENTRY, PLAIN, booted, set_variable

from gpuhost import deadman, devices, homecoming, loaders, return_service, status, steps, trial, workloads
from gpuhost.errors import Stop, stop

HMM = {"nvidia-uvm": {"uvm_disable_hmm": "1"}}


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return debian_host(tmp_path)


def came_back(host: FakeHost) -> None:
    """The trial was booted, nobody was there, and the host runs its old kernel again."""
    plan = plan_of(host, cmdline={"panic": "30", "pcie_aspm": "off"}, modprobe_options=HMM)
    act(host, "hold", plan=plan)
    step(host, "gpuhost_boot_config")
    step(host, "gpuhost_workload", state="drained")
    act(host, "boot", allowed=True)
    assert [power_cycle(host), power_cycle(host)] == [NEW, OLD]


def test_a_host_goes_back_into_service_by_itself(host: FakeHost) -> None:
    came_back(host)
    assert host.running == set()
    homecoming.by_itself(host)
    assert host.running == {CONTAINER, PLAIN}
    roll = roll_of(host)
    assert (roll.state, roll.result, roll.cause) == ("closed", "good_on_old", "trial.expired")
    assert boots_by_itself(host) == OLD
    assert status.as_lines(status.read(host))[1].startswith(f"last roll to {NEW}: good_on_old, trial.expired")


def test_what_the_roll_had_set_is_as_before(host: FakeHost) -> None:
    before = {path: host.read(path) for path in ("/etc/kernel/cmdline", "/etc/modprobe.d/gpuhost.conf")}
    came_back(host)
    assert "pcie_aspm=off" in (host.read("/etc/kernel/cmdline") or "")
    homecoming.by_itself(host)
    assert {path: host.read(path) for path in before} == before
    assert host.held == set()
    assert host.names("/etc/gpuhost") == []
    assert not return_service.is_installed(host)
    assert not host.exists("/var/lib/gpuhost/hold")


def test_systemd_reads_its_units_again_only_while_the_service_has_its_own(host: FakeHost) -> None:
    """Without its file a service that runs loses its time limit, and is killed at 90 s: with the roll still open."""
    came_back(host)
    there: list[bool] = []

    def reload(now: FakeHost, _: list[str]) -> tuple[int, str, str]:
        there.append(return_service.is_installed(now))
        return 0, "", ""

    host.programs["systemctl", "daemon-reload"] = reload
    homecoming.by_itself(host)
    assert there
    assert all(there)
    assert not return_service.is_installed(host)


def test_a_service_that_was_cut_off_at_its_very_end_takes_itself_away(host: FakeHost) -> None:
    came_back(host)
    homecoming.by_itself(host)
    host.put(return_service.UNIT_FILE, return_service.UNIT_TEXT)
    assert homecoming.by_itself(host) == "no roll is open; return service removed"
    assert not return_service.is_installed(host)


def test_a_setting_that_somebody_changed_since_is_left_alone(host: FakeHost) -> None:
    came_back(host)
    host.put("/etc/kernel/cmdline", f"{CMDLINE} mine\n")
    line = homecoming.by_itself(host)
    assert "was changed by somebody else" in line
    assert host.read("/etc/kernel/cmdline") == f"{CMDLINE} mine\n"


@pytest.mark.parametrize("where", ["no roll", "prepared", "drained", "on trial", "closed"])
def test_it_does_nothing_anywhere_else(host: FakeHost, where: str) -> None:
    if where == "prepared":
        prepared(host)
    elif where == "drained":  # in this boot: a controller has the host in hand
        prepared(host)
        step(host, "gpuhost_workload", state="drained")
    elif where == "on trial":
        on_trial(host)
    elif where == "closed":
        came_back(host)
        homecoming.by_itself(host)
    before = host.snapshot()
    homecoming.by_itself(host)
    assert host.snapshot() == before


def test_why_it_came_back_is_the_dead_mans_note(host: FakeHost) -> None:
    came_back(host)
    host.put(
        f"{deadman.FOLDER}/fired-{NEW}", "nobody renewed the deadline of 900 s, rebooted at 901 s, system running\n"
    )
    homecoming.by_itself(host)
    assert "nobody renewed the deadline of 900 s" in roll_of(host).sentence


def test_the_controllers_own_cause_beats_the_guess(host: FakeHost) -> None:
    on_trial(host)
    act(host, "boot_fallback", allowed=True, failed=True, cause="lxc.stale_major", sentence="gpu-ct allows major 504")
    assert power_cycle(host) == OLD
    homecoming.by_itself(host)
    assert (roll_of(host).cause, roll_of(host).sentence) == ("lxc.stale_major", "gpu-ct allows major 504")


def test_a_controller_that_comes_later_reads_what_the_host_did(host: FakeHost) -> None:
    came_back(host)
    plan = roll_of(host).plan
    homecoming.by_itself(host)
    with pytest.raises(Stop) as caught:
        act(host, "prove", plan=plan)
    assert caught.value.blocker.cause == "trial.expired"
    assert not act(host, "boot_fallback", plan=plan, failed=True)["changed"]
    documents = act(host, "come_back", plan=plan, failed=True)["gpuhost_documents"]
    kinds = [item["schema"] for item in documents]
    assert {"gpuhost.reconcile", "gpuhost.roll", "gpuhost.outcome"} <= set(kinds)
    assert documents[-1]["exit_status"] == 3


def test_a_rollback_by_choice_that_the_host_finishes_is_no_failure(host: FakeHost) -> None:
    on_trial(host)
    found = act(host, "boot_fallback", allowed=True)
    assert power_cycle(host) == OLD
    homecoming.by_itself(host)
    assert (roll_of(host).result, roll_of(host).cause) == ("good_on_old", None)
    answer = act(host, "come_back", roll=found["roll"])
    assert answer["gpuhost_documents"][-1]["exit_status"] == 0


def test_another_runs_closed_roll_is_none_of_its_business(host: FakeHost) -> None:
    came_back(host)
    plan = {**roll_of(host).plan, "run_id": "another"}
    homecoming.by_itself(host)
    assert act(host, "come_back", plan=plan, failed=True).get("gpuhost_documents") is None


def test_a_container_that_does_not_start_leaves_the_roll_open_and_says_so(host: FakeHost) -> None:
    came_back(host)
    host.broken = {CONTAINER}
    with pytest.raises(Stop) as caught:
        homecoming.by_itself(host)
    assert caught.value.blocker.cause == "workload.not_back"
    assert host.running == {PLAIN}
    assert roll_of(host).is_open
    assert json.loads(host.read(homecoming.RECORD) or "[]")[-1]["schema"] == "gpuhost.roll"
    host.broken = set()
    homecoming.by_itself(host)
    assert (roll_of(host).result, host.running) == ("good_on_old", {CONTAINER, PLAIN})


def test_a_boot_configuration_that_needs_a_person_keeps_no_container_down(host: FakeHost) -> None:
    came_back(host)
    set_variable(host, "LoaderEntryDefault", f"{MACHINE}-{NEW}.conf")
    with pytest.raises(Stop) as caught:
        homecoming.by_itself(host)
    assert caught.value.blocker.cause == "boot.default_not_held"
    assert host.running == {CONTAINER, PLAIN}
    assert roll_of(host).is_open
    # A person puts it right and goes back by choice: the roll still ends with why it failed.
    set_variable(host, "LoaderEntryDefault", None)
    act(host, "boot_fallback", allowed=True)
    answer = act(host, "come_back")
    assert answer["gpuhost_documents"][-2]["exit_status"] == 3
    assert (roll_of(host).result, roll_of(host).cause) == ("good_on_old", "trial.expired")


def test_the_service_leaves_a_roll_alone_that_a_controller_has_ended(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller had the lock, and ended the roll while the service waited for it."""
    came_back(host)
    opened = roll_of(host)
    act(host, "come_back", failed=True, cause="lxc.stale_major", sentence="x")
    monkeypatch.setattr(homecoming, "load", lambda _: opened)
    assert "a controller has ended" in homecoming.by_itself(host)
    assert not host.exists(homecoming.RECORD)
    assert roll_of(host).cause == "lxc.stale_major"


# --- between drain and trial, and between promote and hand back


def test_a_host_that_was_drained_again_since_the_boot_is_left_to_its_controller(host: FakeHost) -> None:
    """The service is late, and waits for the lock: the controller's drain has it."""
    prepared(host)
    step(host, "gpuhost_workload", state="drained")
    assert power_cycle(host) == OLD
    step(host, "gpuhost_workload", state="drained")
    assert "nothing to bring back" in homecoming.by_itself(host)
    assert host.running == set()


def test_a_drain_for_another_trial_is_left_alone_until_the_next_boot(host: FakeHost) -> None:
    came_back(host)
    host.broken = {CONTAINER}
    with pytest.raises(Stop):
        homecoming.by_itself(host)  # the roll stays open, with its trial used up
    host.broken = set()
    step(host, "gpuhost_workload", state="drained")
    assert "nothing to bring back" in homecoming.by_itself(host)
    assert host.running == set()
    assert power_cycle(host) == OLD
    homecoming.by_itself(host)
    assert (roll_of(host).result, host.running) == ("good_on_old", {CONTAINER, PLAIN})


def test_the_drain_that_the_service_had_to_wait_for_counts(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(host)
    step(host, "gpuhost_workload", state="drained")
    assert power_cycle(host) == OLD
    run_step = steps.run_step

    def drained_meanwhile(*given: Any, **named: Any) -> dict[str, Any]:
        monkeypatch.setattr(steps, "run_step", run_step)
        step(host, "gpuhost_workload", state="drained")
        return run_step(*given, **named)

    monkeypatch.setattr(steps, "run_step", drained_meanwhile)
    assert homecoming.by_itself(host) == "a controller has the roll in hand"
    assert host.running == set()
    assert workloads.is_held(host)


def test_an_interrupted_drain_is_undone_and_can_be_given_up(host: FakeHost) -> None:
    prepared(host)
    step(host, "gpuhost_workload", state="drained")
    assert power_cycle(host) == OLD
    homecoming.by_itself(host)
    assert host.running == {CONTAINER, PLAIN}
    act(host, "boot_fallback")
    act(host, "come_back")
    assert (roll_of(host).result, host.held, host.running) == ("rolled_back", set(), {CONTAINER, PLAIN})


def promoted(host: FakeHost) -> None:
    """The gate has passed and the new kernel boots by itself; the power goes before the hand back."""
    prepared(host)
    step(host, "gpuhost_workload", state="drained")
    act(host, "boot", allowed=True)
    assert power_cycle(host) == NEW
    step(host, "gpuhost_lxc_devices")
    act(host, "promote", verdict=PASSED)
    assert "only the hand back is left" in status.as_text(status.read(host))
    assert power_cycle(host) == NEW
    assert host.running == set()


def test_a_promoted_host_hands_itself_back_with_the_majors_of_this_boot(host: FakeHost) -> None:
    promoted(host)
    moved = (host.read("/proc/devices") or "").replace("509 nvidia-uvm", "511 nvidia-uvm")
    host.put("/proc/devices", moved)
    homecoming.by_itself(host)
    assert host.running == {CONTAINER, PLAIN}
    assert "c 511:* rwm" in (host.read(f"/var/lib/lxc/{CONTAINER}/config") or "")
    assert (roll_of(host).state, roll_of(host).result) == ("closed", "good")
    assert not return_service.is_installed(host)


def test_a_controller_that_comes_to_hand_back_reads_that_the_host_has(host: FakeHost) -> None:
    promoted(host)
    plan = roll_of(host).plan
    homecoming.by_itself(host)
    answer = step(host, "gpuhost_workload", state="handed_back", sentence="passed", plan=plan)
    assert not answer["changed"]
    assert "by itself" in answer["lines"][0]
    kinds = [item["schema"] for item in answer["gpuhost_documents"]]
    assert {"gpuhost.reconcile", "gpuhost.roll", "gpuhost.outcome"} <= set(kinds)
    assert (answer["gpuhost_documents"][-1]["state"], answer["gpuhost_documents"][-1]["exit_status"]) == ("good", 0)
    with pytest.raises(Stop) as caught:
        step(host, "gpuhost_workload", state="handed_back", plan={**plan, "run_id": "another"})
    assert caught.value.blocker.cause == "roll.not_open"


def test_a_plan_to_finish_a_roll_opens_none_where_the_host_has_finished_it(host: FakeHost) -> None:
    promoted(host)
    plan = roll_of(host).plan
    homecoming.by_itself(host)
    before = host.snapshot()
    assert cause_of(host, "hold", plan=plan) == "roll.not_open"
    assert host.snapshot() == before


def test_a_lock_that_somebody_took_by_hand_is_no_promotion(host: FakeHost) -> None:
    """The runbook's way to look around on a trial kernel: the default is still the old one."""
    on_trial(host)
    host.rename(f"{deadman.FOLDER}/armed-{NEW}", f"{deadman.FOLDER}/taken-{NEW}")
    assert "nothing to bring back" in homecoming.by_itself(host)
    assert roll_of(host).promoted_at is None


@pytest.mark.parametrize("what", ["container", "default", "rules"])
def test_what_fails_behind_the_promotion_leaves_the_roll_open_and_containers_up(
    host: FakeHost, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    promoted(host)
    if what == "container":
        host.broken = {CONTAINER}
    elif what == "default":
        set_variable(host, "LoaderEntryDefault", OLD_ENTRY)
    else:
        monkeypatch.setattr(devices, "reconcile_host", broken)
    with pytest.raises(Stop) as caught:
        homecoming.by_itself(host)
    cause = {"container": "workload.not_back", "default": "boot.default_not_held", "rules": "host.module_failed"}
    assert caught.value.blocker.cause == cause[what]
    assert host.running == ({PLAIN} if what == "container" else {CONTAINER, PLAIN})
    assert roll_of(host).is_open
    assert roll_of(host).promoted_at is not None
    assert return_service.is_installed(host)
    monkeypatch.undo()
    host.broken = set()
    set_variable(host, "LoaderEntryDefault", None)
    homecoming.by_itself(host)
    assert (roll_of(host).result, host.running) == ("good", {CONTAINER, PLAIN})


# --- what breaks on the way


def broken(*_: object) -> None:
    raise KeyError("a text that nobody has seen before")


@pytest.mark.parametrize("where", ["undo", "loader", "reconcile"])
def test_a_defect_on_the_way_keeps_no_container_down(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    came_back(host)
    place, name = {  # every one of these was outside of any guard, or guarded against a Stop only
        "undo": (trial, "undo"),
        "loader": (loaders, "of"),
        "reconcile": (devices, "reconcile_host"),
    }[where]
    monkeypatch.setattr(place, name, broken)
    with pytest.raises(Stop) as caught:
        homecoming.by_itself(host)
    assert (caught.value.blocker.cause, caught.value.blocker.object) == ("host.module_failed", "KeyError")
    assert host.running == {CONTAINER, PLAIN}
    assert not workloads.is_held(host)
    assert roll_of(host).is_open
    monkeypatch.undo()
    homecoming.by_itself(host)
    assert roll_of(host).result == "good_on_old"


def test_the_first_of_two_problems_is_the_one_that_is_named(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    came_back(host)
    set_variable(host, "LoaderEntryDefault", f"{MACHINE}-{NEW}.conf")
    monkeypatch.setattr(devices, "reconcile_host", broken)
    with pytest.raises(Stop) as caught:
        homecoming.by_itself(host)
    assert caught.value.blocker.cause == "boot.default_not_held"
    assert host.running == {CONTAINER, PLAIN}


def test_a_hold_on_packages_that_stays_ends_the_roll_with_the_command(host: FakeHost) -> None:
    came_back(host)
    host.programs["apt-mark", "unhold"] = (1, "", "dpkg: error: dpkg frontend lock was locked by another process")
    line = homecoming.by_itself(host)
    assert f"apt-mark unhold linux-headers-{OLD} linux-image-{OLD}" in line
    assert (roll_of(host).state, host.running) == ("closed", {CONTAINER, PLAIN})


def test_packages_are_let_go_while_the_hold_keeps_apts_daily_runs_away(host: FakeHost) -> None:
    came_back(host)
    host.effects = []
    homecoming.by_itself(host)
    started, unheld = f"lxc-start -n {CONTAINER}", f"apt-mark unhold linux-headers-{OLD} linux-image-{OLD}"
    lifted = f"remove {workloads.HOLD_FILE}"
    assert host.effects.index(started) < host.effects.index(unheld) < host.effects.index(lifted)


def test_status_says_what_is_armed(host: FakeHost) -> None:
    assert "no roll on record" in status.as_text(status.read(host))
    prepared(host)
    act(host, "boot", allowed=True)
    text = status.as_text(status.read(host))
    for part in ("one-shot armed", f"dead-man armed for {NEW}, deadline at 900 s", "return service", "is open"):
        assert part in text


def test_a_trial_that_never_left_the_loader_is_the_same(host: FakeHost) -> None:
    prepared(host)
    act(host, "boot", allowed=True)
    set_variable(host, "LoaderEntryOneShot", None)
    power_cycle(host)
    assert cause_of(host, "prove") == "trial.expired"
    assert loaders.of(host).read().one_shot is None


def test_a_config_that_cant_be_read_leaves_no_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The power goes between drain and trial, and a config that nobody asked about has a bad block."""
    host = debian_host(tmp_path)
    step(host, "gpuhost_boot_trial", action="hold", plan=plan_of(host))
    host.running = {CONTAINER}
    step(host, "gpuhost_workload", state="drained")
    booted(host, OLD)
    real, bad = host.read_bytes, "/var/lib/lxc/broken/config"

    def read_bytes(path: str) -> bytes | None:
        if path == bad:
            raise stop("host.module_failed", path, "Input/output error")
        return real(path)

    host.put(bad)
    monkeypatch.setattr(host, "read_bytes", read_bytes)
    with pytest.raises(Stop) as caught:
        homecoming.by_itself(host)
    assert caught.value.blocker.object == bad
    assert host.running == {CONTAINER}
    assert not workloads.is_held(host)
    assert {item.name: item.state for item in roll_of(host).workloads}[CONTAINER] == "back"
