"""The trial boot: held and read back, once, promoted into the old policy, taken back. Power cuts: test_power_cut.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_host import FakeHost
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
from fake_tree import CMDLINE, ESP, MACHINE, NEW, NEW_ENTRY, OLD, OLD_ENTRY, booted, set_variable
from gpuhost import boot, trial
from gpuhost.errors import Stop
from gpuhost.rollfile import Trial, save

CONF = f"{ESP}/loader/loader.conf"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return debian_host(tmp_path)


def act(host: FakeHost, action: str, **given: object) -> dict[str, object]:
    return step(host, "gpuhost_boot_trial", action=action, **given)


def cause_of(host: FakeHost, action: str, **given: object) -> str:
    with pytest.raises(Stop) as caught:
        act(host, action, **given)
    return caught.value.blocker.cause


def on_trial(host: FakeHost) -> None:
    prepared(host)
    act(host, "boot", allowed=True)
    assert power_cycle(host) == NEW


# --- hold


def test_the_fallback_is_held_and_read_back(host: FakeHost) -> None:
    answer = act(host, "hold", plan=plan_of(host))
    assert answer["changed"]
    assert host.read(CONF) == f"timeout 3\nconsole-mode keep\ndefault {OLD_ENTRY}\n"
    assert boots_by_itself(host) == OLD
    fallback = roll_of(host).fallback
    assert fallback is not None
    assert (fallback.entry, fallback.release, fallback.policy_before) == (OLD_ENTRY, OLD, None)
    assert (answer["diff"][0]["before"], answer["diff"][0]["after"]) == (  # type: ignore[index]
        "timeout 3\nconsole-mode keep\n",
        host.read(CONF),
    )


def test_holding_twice_changes_nothing_and_keeps_the_policy_that_was_found(host: FakeHost) -> None:
    host.put(CONF, f"default {MACHINE}-*\n")
    plan = plan_of(host)
    act(host, "hold", plan=plan)
    before = host.read_bytes(CONF)
    assert not act(host, "hold", plan=plan)["changed"]
    assert host.read_bytes(CONF) == before
    fallback = roll_of(host).fallback
    assert fallback is not None
    assert fallback.policy_before == f"{MACHINE}-*"


def test_an_efi_default_refuses_even_where_it_names_the_fallback(host: FakeHost) -> None:
    plan = plan_of(host)
    set_variable(host, "LoaderEntryDefault", OLD_ENTRY)
    assert cause_of(host, "hold", plan=plan) == "boot.efi_default_set"


def test_a_foreign_one_shot_refuses(host: FakeHost) -> None:
    plan = plan_of(host)
    set_variable(host, "LoaderEntryOneShot", NEW_ENTRY)
    assert cause_of(host, "hold", plan=plan) == "boot.foreign_one_shot"
    assert one_shot(host) == NEW_ENTRY  # not ours, not touched


def test_no_entry_for_the_running_kernel_refuses_before_anything_is_written(host: FakeHost) -> None:
    plan = plan_of(host)
    host.path(f"{ESP}/loader/entries/{OLD_ENTRY}").unlink()
    before = host.read_bytes(CONF)
    assert cause_of(host, "hold", plan=plan) == "boot.fallback_missing"
    assert host.read_bytes(CONF) == before
    assert not host.exists("/var/lib/gpuhost/roll.json")


def test_a_default_that_does_not_take_is_noticed(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(host)
    monkeypatch.setattr(trial.systemd_boot, "with_default", lambda text, entry: text + "# lost\n")
    assert cause_of(host, "hold", plan=plan) == "boot.default_not_held"


def test_an_esp_that_is_gone_is_a_stop_and_no_new_folder(host: FakeHost) -> None:
    prepared(host)
    host.path(ESP).rename(host.path("/elsewhere"))
    for action in ("hold", "boot_fallback"):
        with pytest.raises(Stop):
            act(host, action, allowed=True)
    assert not host.exists("/None")
    assert not host.rebooting


# --- boot


def test_nothing_reboots_without_consent(host: FakeHost) -> None:
    prepared(host)
    assert cause_of(host, "boot") == "roll.reboot_not_allowed"
    assert (host.rebooting, one_shot(host), roll_of(host).trial.boots) == (False, None, 0)


def test_the_trial_is_one_boot(host: FakeHost) -> None:
    prepared(host)
    before = host.read_line("/proc/sys/kernel/random/boot_id")
    answer = act(host, "boot", allowed=True)
    assert (answer["rebooting"], answer["boot_id"]) == (True, before)
    assert host.rebooting
    assert one_shot(host) == NEW_ENTRY
    made = roll_of(host).trial
    assert (made.boots, made.boot_id_before) == (1, before)
    assert [power_cycle(host), power_cycle(host)] == [NEW, OLD]


def test_the_roll_file_knows_before_the_one_shot_is_set(host: FakeHost) -> None:
    prepared(host)
    host.effects = []
    act(host, "boot", allowed=True)
    words = [effect.split()[0] for effect in host.effects]
    assert words[:3] == ["write", "bootctl", "systemd-run"]


def test_on_the_target_there_is_nothing_to_boot(host: FakeHost) -> None:
    on_trial(host)
    answer = act(host, "boot", allowed=True)
    assert (answer["changed"], answer["rebooting"], host.rebooting) == (False, False, False)


def test_a_trial_that_came_back_is_used_up(host: FakeHost) -> None:
    on_trial(host)
    assert power_cycle(host) == OLD
    assert cause_of(host, "boot", allowed=True) == "trial.expired"
    assert (one_shot(host), host.rebooting) == (None, False)
    assert act(host, "boot", allowed=True, retry_trial=True)["rebooting"]
    assert roll_of(host).trial.boots == 2


def test_no_entry_no_one_shot(host: FakeHost) -> None:
    prepared(host)
    host.path(f"{ESP}/loader/entries/{NEW_ENTRY}").unlink()
    assert cause_of(host, "boot", allowed=True) == "boot.entry_missing"
    assert (one_shot(host), host.rebooting, roll_of(host).trial.boots) == (None, False, 0)


@pytest.mark.parametrize("answer", [(0, "", ""), (1, "", "Not booted with UEFI"), (127, "", "bootctl: not found")])
def test_a_one_shot_that_does_not_take_reboots_nothing(host: FakeHost, answer: tuple[int, str, str]) -> None:
    prepared(host)
    host.programs["bootctl",] = answer
    cause_of(host, "boot", allowed=True)
    assert (one_shot(host), host.rebooting) == (None, False)


def test_a_reboot_that_systemd_refuses_takes_the_one_shot_back(host: FakeHost) -> None:
    prepared(host)
    host.programs["systemd-run",] = (1, "", "Failed to connect to bus")
    with pytest.raises(Stop) as caught:
        act(host, "boot", allowed=True)
    assert "Failed to connect to bus" in caught.value.blocker.observed
    assert one_shot(host) is None


def test_check_mode_of_boot_checks_but_boots_nothing(host: FakeHost) -> None:
    prepared(host)
    before = host.snapshot()
    answer = act(host, "boot", allowed=True, check=True)
    assert answer["lines"] == [f"would reboot once into {NEW}"]
    assert (answer["rebooting"], host.rebooting) == (False, False)
    assert host.snapshot() == before


# --- prove


def test_what_booted_is_proven(host: FakeHost) -> None:
    on_trial(host)
    answer = act(host, "prove")
    assert not answer["changed"]
    assert f"booted {NEW}" in answer["lines"][0]  # type: ignore[index]


def test_the_old_kernel_is_no_proof(host: FakeHost) -> None:
    prepared(host)
    act(host, "boot", allowed=True)
    set_variable(host, "LoaderEntryOneShot", None)
    assert power_cycle(host) == OLD
    assert cause_of(host, "prove") == "trial.wrong_kernel"


def test_the_same_boot_is_no_proof(host: FakeHost) -> None:
    on_trial(host)
    boot_id = host.read_line("/proc/sys/kernel/random/boot_id")
    save(host, replace(roll_of(host), trial=Trial(1, "x", boot_id)))
    assert cause_of(host, "prove") == "trial.wrong_kernel"


def test_a_command_line_without_our_argument_is_no_proof(host: FakeHost) -> None:
    prepared(host)
    act(host, "boot", allowed=True)
    booted(host, NEW, CMDLINE)
    assert cause_of(host, "prove") == "trial.cmdline"


# --- promote


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, None),
        (f"{MACHINE}-*", f"{MACHINE}-*"),
        (NEW_ENTRY, NEW_ENTRY),
        (OLD_ENTRY, NEW_ENTRY),
        (f"{MACHINE}-6.1.*", NEW_ENTRY),
        ("gone.conf", "gone.conf"),
        ("@saved", NEW_ENTRY),
    ],
)
def test_promote_restores_the_policy_where_it_boots_the_target(host: FakeHost, before: str | None, after: str | None) -> None:
    text = "timeout 3\n" + (f"default {before}\n" if before else "")
    host.put(CONF, text)
    on_trial(host)
    act(host, "promote", verdict=PASSED)
    assert boots_by_itself(host) == NEW
    assert boot.read(host).default == after
    if before == after:
        assert host.read(CONF) == text


@pytest.mark.parametrize("verdict", [None, {}, {"status": "fail", "kernel": NEW}, {"status": "not_measured", "kernel": NEW},
                                     {"status": "pass", "kernel": OLD}])  # fmt: skip
def test_only_a_passed_gate_on_this_kernel_promotes(host: FakeHost, verdict: dict[str, str] | None) -> None:
    on_trial(host)
    assert cause_of(host, "promote", verdict=verdict) == "gate.not_measured"
    assert boots_by_itself(host) == OLD


def test_promote_twice_is_once(host: FakeHost) -> None:
    on_trial(host)
    assert act(host, "promote", verdict=PASSED)["changed"]
    assert not act(host, "promote", verdict=PASSED)["changed"]


def test_a_promotion_that_an_efi_variable_beats_is_taken_back(host: FakeHost) -> None:
    on_trial(host)
    set_variable(host, "LoaderEntryDefault", OLD_ENTRY)
    assert cause_of(host, "promote", verdict=PASSED) == "boot.default_not_held"
    assert boot.read(host).default == OLD_ENTRY


# --- back


def test_the_way_back_clears_the_one_shot_and_holds_the_fallback(host: FakeHost) -> None:
    prepared(host)
    act(host, "boot", allowed=True)
    host.rebooting = False
    host.put(CONF, f"default {NEW_ENTRY}\n")
    answer = act(host, "boot_fallback")
    assert answer["lines"] == ["one-shot boot entry cleared", f"default set to {OLD_ENTRY}"]
    assert (one_shot(host), boots_by_itself(host), host.rebooting) == (None, OLD, False)
    assert not act(host, "boot_fallback")["changed"]


def test_boot_fallback_reboots_only_out_of_the_trial(host: FakeHost) -> None:
    prepared(host)
    answer = act(host, "boot_fallback")
    assert (answer["rebooting"], answer["trial_booted"], host.rebooting) == (False, False, False)
    act(host, "boot", allowed=True)
    power_cycle(host)
    answer = act(host, "boot_fallback", allowed=True)
    assert (answer["rebooting"], answer["trial_booted"], host.rebooting) == (True, True, True)
    assert power_cycle(host) == OLD


@pytest.mark.parametrize("action", ["boot", "boot_fallback"])
def test_neither_way_reboots_the_controller_or_without_consent(host: FakeHost, action: str) -> None:
    if action == "boot":
        prepared(host)
    else:
        on_trial(host)
    boot_id = host.read_line("/proc/sys/kernel/random/boot_id")
    host.rebooting = False
    assert cause_of(host, action, allowed=False) == "roll.reboot_not_allowed"
    assert cause_of(host, action, allowed=True, controller_boot_id=boot_id + "\n") == "roll.controller_on_target"
    assert not host.rebooting


def test_boot_fallback_without_a_roll_takes_nothing_back(host: FakeHost) -> None:
    before = host.snapshot()
    assert not act(host, "boot_fallback")["roll_open"]
    assert host.snapshot() == before


def test_no_reboot_where_the_fallback_would_not_boot(host: FakeHost) -> None:
    on_trial(host)
    set_variable(host, "LoaderEntryDefault", NEW_ENTRY)
    assert cause_of(host, "boot_fallback", allowed=True) == "boot.default_not_held"
    assert not host.rebooting


def test_a_host_that_still_runs_the_trial_kernel_is_not_good_on_old(host: FakeHost) -> None:
    on_trial(host)
    with pytest.raises(Stop) as caught:
        step(host, "gpuhost_workload", state="handed_back", stage="rollback", cause="gate.not_measured", sentence="x")
    assert caught.value.blocker.cause == "trial.wrong_kernel"
    assert roll_of(host).is_open


def test_check_mode_of_the_way_back_says_what_it_would_do(host: FakeHost) -> None:
    on_trial(host)
    assert act(host, "boot_fallback", check=True)["changed"]


def test_the_policy_survives_a_roll_that_came_back(host: FakeHost) -> None:
    on_trial(host)
    act(host, "boot_fallback", allowed=True)
    power_cycle(host)
    step(host, "gpuhost_workload", state="handed_back", stage="rollback", cause="gate.not_measured", sentence="x")
    prepared_again = plan_of(host, retry_trial=True)
    act(host, "hold", plan=prepared_again)
    fallback = roll_of(host).fallback
    assert fallback is not None
    assert fallback.policy_before is None


def test_what_fails_after_promote_does_not_reboot_into_the_old_kernel(host: FakeHost) -> None:
    on_trial(host)
    act(host, "promote", verdict=PASSED)
    assert not act(host, "boot_fallback", allowed=True)["rebooting"]
    assert boots_by_itself(host) == NEW


def test_a_rerun_after_promote_keeps_the_promotion(host: FakeHost) -> None:
    on_trial(host)
    act(host, "promote", verdict=PASSED)
    act(host, "hold")
    assert boots_by_itself(host) == NEW
