"""The trial boot: held and read back, once, promoted into the old policy, taken back. Power cuts: test_power_cut.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_host import FakeHost
from fake_roll import (
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
from fake_tree import CMDLINE, ESP, MACHINE, NEW, NEW_ENTRY, OLD, OLD_ENTRY, booted, set_variable

from gpuhost import return_service, systemd_boot
from gpuhost.errors import Stop
from gpuhost.rollfile import Trial, save

CONF = f"{ESP}/loader/loader.conf"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return debian_host(tmp_path)


# --- hold


def test_the_fallback_is_held_and_read_back(host: FakeHost) -> None:
    answer = act(host, "hold", plan=plan_of(host))
    assert answer["changed"]
    assert host.read(CONF) == f"timeout 3\nconsole-mode keep\ndefault {OLD_ENTRY}\n"
    assert boots_by_itself(host) == OLD
    fallback = roll_of(host).fallback
    assert fallback is not None
    assert (fallback.entry, fallback.release, fallback.policy_before) == (OLD_ENTRY, OLD, None)
    (diff,) = answer["diff"]
    assert (diff["before"], diff["after"]) == ("timeout 3\nconsole-mode keep\n", host.read(CONF))
    assert roll_of(host).kept_packages == (f"linux-headers-{OLD}", f"linux-image-{OLD}")
    assert host.held == set(roll_of(host).kept_packages)


def test_check_mode_shows_what_holding_would_write(host: FakeHost) -> None:
    answer = act(host, "hold", plan=plan_of(host), check=True)
    (diff,) = answer["diff"]
    assert diff["after_header"] == CONF
    assert diff["after"] == f"timeout 3\nconsole-mode keep\ndefault {OLD_ENTRY}\n"
    assert host.read(CONF) == "timeout 3\nconsole-mode keep\n"


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


@pytest.mark.parametrize("action", ["hold", "boot"])
@pytest.mark.parametrize("seconds", [{"deadline_s": 0}, {"deadline_s": 20000}, {"force_after_s": 0}])
def test_seconds_that_the_dead_man_could_not_work_with_are_refused_first(
    host: FakeHost, action: str, seconds: dict[str, int]
) -> None:
    plan = prepared(host) if action == "boot" else plan_of(host)
    assert cause_of(host, action, plan=plan, allowed=True, **seconds) == "input.invalid"
    assert one_shot(host) is None
    assert action == "hold" or roll_of(host).trial.boots == 0


def test_a_default_that_does_not_take_is_noticed(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(host)
    monkeypatch.setattr(systemd_boot, "with_default", lambda text, entry: text + "# lost\n")
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
    assert host.effects[0] == "write /var/lib/gpuhost/roll.json"
    # dead-man and return service are there before the one-shot is
    assert host.effects.index(f"write /etc/gpuhost/armed-{NEW}") < words.index("bootctl") < words.index("systemd-run")
    assert host.exists(f"{return_service.LINK}") or host.path(return_service.LINK).is_symlink()


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


def test_a_second_trial_does_not_inherit_the_cause_of_the_first(host: FakeHost) -> None:
    on_trial(host)
    act(host, "boot_fallback", allowed=True, failed=True, cause="lxc.stale_major", sentence="x")
    assert power_cycle(host) == OLD
    act(host, "boot", allowed=True, retry_trial=True)
    assert (roll_of(host).trial.cause, roll_of(host).trial.sentence) == (None, "")


def test_no_reboot_under_somebodys_apt(host: FakeHost) -> None:
    prepared(host)
    path = "/var/lib/dpkg/lock-frontend"
    host.put(path)
    host.put("/proc/1234/comm", "apt-get\n")
    host.put("/proc/locks", f"1: POSIX  ADVISORY  WRITE 1234 08:01:{host.inode(path)} 0 EOF\n")
    before = host.seconds
    assert cause_of(host, "boot", allowed=True) == "apt.locked"
    assert host.seconds - before >= 120
    assert (one_shot(host), host.rebooting, roll_of(host).trial.boots) == (None, False, 0)
    host.put("/proc/locks", "")
    assert act(host, "boot", allowed=True)["rebooting"]


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        (f"{ESP}/{MACHINE}/{OLD}/linux", "boot.fallback_changed"),
        (f"{ESP}/{MACHINE}/{OLD}/initrd.img-{OLD}", "boot.fallback_changed"),
        (f"/lib/modules/{OLD}/updates/dkms/nvidia.ko.xz", "boot.fallback_changed"),
        (CONF, "boot.default_not_held"),
    ],
)
def test_no_reboot_where_the_way_back_is_not_what_it_was(host: FakeHost, path: str, cause: str) -> None:
    prepared(host)
    host.put(path, "another\n")
    assert cause_of(host, "boot", allowed=True) == cause
    assert (one_shot(host), host.rebooting, roll_of(host).trial.boots) == (None, False, 0)


def test_no_entry_no_one_shot(host: FakeHost) -> None:
    prepared(host)
    host.path(f"{ESP}/loader/entries/{NEW_ENTRY}").unlink()
    assert cause_of(host, "boot", allowed=True) == "boot.entry_missing"
    assert (one_shot(host), host.rebooting, roll_of(host).trial.boots) == (None, False, 0)


@pytest.mark.parametrize("answer", [(0, "", ""), (1, "", "Not booted with UEFI")])
def test_a_one_shot_that_does_not_take_reboots_nothing(host: FakeHost, answer: tuple[int, str, str]) -> None:
    prepared(host)
    host.programs["bootctl",] = answer
    cause_of(host, "boot", allowed=True)
    assert (one_shot(host), host.rebooting) == (None, False)


def test_without_bootctl_the_variable_is_written_directly(host: FakeHost) -> None:
    prepared(host)
    host.programs["bootctl",] = (127, "", "bootctl: not found")
    act(host, "boot", allowed=True)
    assert (one_shot(host), host.rebooting) == (NEW_ENTRY, True)


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
    assert cause_of(host, "prove") == "trial.expired"


def test_a_third_kernel_is_no_proof(host: FakeHost) -> None:
    prepared(host)
    act(host, "boot", allowed=True)
    booted(host, NEW)
    host.put("/proc/sys/kernel/osrelease", "6.5.0-1-cloud-amd64\n")
    assert cause_of(host, "prove") == "trial.wrong_kernel"


def test_the_same_boot_is_no_proof(host: FakeHost) -> None:
    on_trial(host)
    boot_id = host.read_line("/proc/sys/kernel/random/boot_id")
    save(host, replace(roll_of(host), trial=Trial(1, "x", boot_id)))
    assert cause_of(host, "prove") == "trial.wrong_kernel"


def test_a_unit_of_ours_that_failed_is_no_proof_and_any_other_is_none(host: FakeHost) -> None:
    on_trial(host)
    host.programs["systemctl", "is-system-running"] = (1, "degraded\n", "")
    host.programs["systemctl", "list-units"] = (0, "getty@tty7.service loaded failed failed Getty\n", "")
    assert "degraded" in " ".join(act(host, "prove")["lines"])
    host.programs["systemctl", "list-units"] = (0, "nvidia-persistenced.service loaded failed failed NVIDIA\n", "")
    assert cause_of(host, "prove") == "reboot.unit_failed"


def test_a_command_line_without_our_argument_is_no_proof(host: FakeHost) -> None:
    prepared(host)
    act(host, "boot", allowed=True)
    booted(host, NEW, CMDLINE)
    assert cause_of(host, "prove") == "trial.cmdline"
