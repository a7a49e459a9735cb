"""After the trial: promoted into the policy that was found, or taken back and proven to be back."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_host import FakeHost
from fake_roll import (
    PASSED,
    act,
    boots_by_itself,
    cause_of,
    debian_host,
    on_trial,
    one_shot,
    plan_of,
    power_cycle,
    prepared,
    roll_of,
)
from fake_tree import ESP, MACHINE, NEW, NEW_ENTRY, OLD, OLD_ENTRY, set_variable

from gpuhost import loaders
from gpuhost.errors import Stop

CONF = f"{ESP}/loader/loader.conf"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return debian_host(tmp_path)


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
def test_promote_restores_the_policy_where_it_boots_the_target(
    host: FakeHost, before: str | None, after: str | None
) -> None:
    text = "timeout 3\n" + (f"default {before}\n" if before else "")
    host.put(CONF, text)
    on_trial(host)
    act(host, "promote", verdict=PASSED)
    assert boots_by_itself(host) == NEW
    assert loaders.of(host).read().policy == after
    if before == after:
        assert host.read(CONF) == text


@pytest.mark.parametrize(
    "verdict",
    [
        None,
        {},
        {"status": "fail", "kernel": NEW},
        {"status": "not_measured", "kernel": NEW},
        {"status": "pass", "kernel": OLD},
    ],
)
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
    assert loaders.of(host).read().policy == OLD_ENTRY


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
    assert (answer["rebooting"], host.rebooting) == (False, False)
    act(host, "boot", allowed=True)
    power_cycle(host)
    answer = act(host, "boot_fallback", allowed=True)
    assert (answer["rebooting"], host.rebooting) == (True, True)
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
    assert not act(host, "boot_fallback")["changed"]
    assert not act(host, "come_back")["changed"]
    assert host.snapshot() == before


def test_no_reboot_where_the_fallback_would_not_boot(host: FakeHost) -> None:
    on_trial(host)
    set_variable(host, "LoaderEntryDefault", NEW_ENTRY)
    assert cause_of(host, "boot_fallback", allowed=True) == "boot.default_not_held"
    assert not host.rebooting


def test_a_host_that_still_runs_the_trial_kernel_is_not_good_on_old(host: FakeHost) -> None:
    on_trial(host)
    with pytest.raises(Stop) as caught:
        act(host, "come_back", failed=True, cause="gate.not_measured", sentence="x")
    assert caught.value.blocker.cause == "trial.wrong_kernel"
    assert roll_of(host).is_open


def test_check_mode_of_the_way_back_says_what_it_would_do(host: FakeHost) -> None:
    on_trial(host)
    assert act(host, "boot_fallback", check=True)["changed"]


def test_the_policy_survives_a_roll_that_came_back(host: FakeHost) -> None:
    on_trial(host)
    act(host, "boot_fallback", allowed=True)
    power_cycle(host)
    act(host, "come_back", failed=True, cause="gate.not_measured", sentence="x")
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


def test_a_promoted_host_that_runs_the_old_kernel_again_is_handed_back(host: FakeHost) -> None:
    on_trial(host)
    act(host, "promote", verdict=PASSED)
    set_variable(host, "LoaderEntryOneShot", OLD_ENTRY)  # somebody at the menu
    power_cycle(host)
    assert not act(host, "boot_fallback", allowed=True)["rebooting"]
    act(host, "come_back")
    assert not roll_of(host).is_open


def test_a_rerun_after_promote_keeps_the_promotion(host: FakeHost) -> None:
    on_trial(host)
    act(host, "promote", verdict=PASSED)
    act(host, "hold")
    assert boots_by_itself(host) == NEW
