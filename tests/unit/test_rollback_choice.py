"""Back to a named older kernel by choice: which one a name means, the whole roll there, and the upgrade after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost, Killed
from fake_roll import (
    CONTROLLER,
    PASSED,
    RUN_ID,
    act,
    boots_by_itself,
    cause_of,
    debian_host,
    facts_of,
    one_shot,
    plan_of,
    power_cycle,
    roll_of,
    step,
    wishes,
)
from fake_tree import (
    CONTAINER,
    DRIVER,
    ESP,
    MACHINE,
    NEW,
    NEW_ENTRY,
    OLD,
    OLD_ENTRY,
    PLAIN,
    VERSIONS,
    add_archive,
    add_kernel,
    set_variable,
)

from gpuhost import homecoming, loaders
from gpuhost.documents import Plan, as_dict
from gpuhost.errors import Stop
from gpuhost.kernel import Candidate, choose, is_older, ways_back
from gpuhost.plan import make_plan

CONF = f"{ESP}/loader/loader.conf"
PASSED_ON_OLD = {"status": "pass", "kernel": OLD}
OLDER = "6.1.0-50-cloud-amd64"
BETWEEN = "6.1.0-60-cloud-amd64"
NEWEST = "6.12.120+deb12-cloud-amd64"


def planned(host: FakeHost, to: str = "6.1", **changes: Any) -> Plan:
    """The plan for a way back."""
    return make_plan(facts_of(host), wishes(target=to, **changes), RUN_ID, CONTROLLER, back=True)


def back_to(host: FakeHost, to: str = "6.1", **changes: Any) -> dict[str, Any]:
    """The same, as the modules get it; nothing may be in the way."""
    made = planned(host, to, **changes)
    assert made.blockers == ()
    return as_dict(made)


def prepare(host: FakeHost, plan: dict[str, Any]) -> None:
    act(host, "hold", plan=plan)
    step(host, "gpuhost_boot_config", rebuild=False)
    step(host, "gpuhost_kernel_upgrade")
    step(host, "gpuhost_boot_config")
    step(host, "gpuhost_preflight")


def finish(host: FakeHost, plan: dict[str, Any], verdict: dict[str, str]) -> None:
    """The whole roll, or what an earlier command has left of it."""
    prepare(host, plan)
    step(host, "gpuhost_workload", state="drained")
    act(host, "boot", allowed=True)
    if host.rebooting:
        power_cycle(host)
    act(host, "prove")
    step(host, "gpuhost_lxc_devices")
    act(host, "promote", verdict=verdict)
    step(host, "gpuhost_workload", state="handed_back", sentence="passed")


def upgraded(folder: Path, policy: str | None = None) -> FakeHost:
    """A host that was rolled from 6.1 to 6.12, good on paper."""
    host = debian_host(folder)
    if policy is not None:
        host.put(CONF, f"default {policy}\n")
    finish(host, plan_of(host), PASSED)
    return host


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return upgraded(tmp_path)


# --- the whole way


def test_back_to_the_older_kernel(host: FakeHost) -> None:
    asked = len(host.ran("apt-get"))
    finish(host, back_to(host), PASSED_ON_OLD)
    roll = roll_of(host)
    assert (roll.state, roll.result, roll.running_before, roll.target) == ("closed", "good", NEW, OLD)
    assert host.boots == [OLD, NEW, OLD]
    assert (boots_by_itself(host), one_shot(host)) == (OLD, None)
    assert loaders.of(host).read().policy == OLD_ENTRY
    assert host.running == {CONTAINER, PLAIN}
    config = host.read(f"/var/lib/lxc/{CONTAINER}/config") or ""
    assert "c 504:* rwm" in config
    assert "c 509:* rwm" not in config
    for left in ("/etc/gpuhost", "/var/lib/gpuhost/hold", "/etc/systemd/system/gpuhost-return.service"):
        assert not host.exists(left)
    # apt was asked what it would do, and has done nothing
    assert all("-s" in call for call in host.ran("apt-get")[asked:])
    assert "linux-image-" + OLD in " ".join(" ".join(call) for call in host.ran("apt-get")[asked:])


def test_the_same_command_again_goes_no_further_back(host: FakeHost) -> None:
    host.packages[f"linux-image-{OLDER}"] = host.packages[f"linux-headers-{OLDER}"] = ("6.1.150-1", "ii")
    finish(host, back_to(host), PASSED_ON_OLD)
    again = planned(host)
    assert again.nothing_to_do
    assert f"{OLD} is 6.1 already; to go back to {OLDER}, give its whole name" in again.notes
    assert planned(host, OLD).nothing_to_do


def test_plan_and_report_say_that_it_stays_by_name_and_how_to_end_that(host: FakeHost) -> None:
    note = next(line for line in planned(host).notes if "by name" in line)
    assert OLD in note
    assert "the next gpuhost upgrade ends that" in note
    assert "runbook.md, Back to an older kernel" in note
    runbook = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text()
    assert "\n## Back to an older kernel\n" in runbook
    assert not [line for line in planned(host, NEW).notes if "by name" in line]
    host.put(CONF, f"default {OLD_ENTRY}\n")  # what boots by itself leads there already
    assert not [line for line in planned(host).notes if "by name" in line]


def test_nothing_is_to_be_installed(host: FakeHost) -> None:
    texts = [item.text for item in planned(host).steps]
    assert "install nothing: kernel and headers are there" in texts
    assert f"hold {NEW} as the explicit boot default" in texts
    assert f"reboot once into {OLD}" in texts


def test_both_kernels_are_kept(host: FakeHost) -> None:
    """The holds of the upgrade have ended: the older kernel is what apt's autoremove would take first."""
    host.held = {f"linux-headers-{NEW}"}  # the operator's own
    for kind in ("timer", "service"):
        host.remove(f"/etc/systemd/system/gpuhost-unhold.{kind}")
    prepare(host, back_to(host))
    ours = {f"linux-image-{NEW}", f"linux-image-{OLD}", f"linux-headers-{OLD}"}
    assert set(roll_of(host).kept_packages) == ours
    assert host.held == {*ours, f"linux-headers-{NEW}"}
    act(host, "boot", allowed=True)
    power_cycle(host)
    act(host, "promote", verdict=PASSED_ON_OLD)
    service = host.read("/etc/systemd/system/gpuhost-unhold.service") or ""
    assert all(name in service for name in ours)
    assert f"linux-headers-{NEW}" not in service


def test_the_hold_of_the_upgrade_is_prolonged(host: FakeHost) -> None:
    assert f"linux-image-{OLD}" in (host.read("/etc/systemd/system/gpuhost-unhold.service") or "")
    finish(host, back_to(host), PASSED_ON_OLD)
    service = host.read("/etc/systemd/system/gpuhost-unhold.service") or ""
    assert f"linux-image-{OLD}" in service
    assert f"linux-image-{NEW}" in service
    assert {f"linux-image-{OLD}", f"linux-image-{NEW}"} <= host.held


def test_a_way_back_that_does_not_hold_ends_on_the_newer_kernel(host: FakeHost) -> None:
    prepare(host, back_to(host))
    step(host, "gpuhost_workload", state="drained")
    act(host, "boot", allowed=True)
    assert [power_cycle(host), power_cycle(host)] == [OLD, NEW]  # panic=30 ends the first
    homecoming.by_itself(host)
    assert (roll_of(host).result, roll_of(host).cause) == ("good_on_old", "trial.expired")
    assert (boots_by_itself(host), host.running) == (NEW, {CONTAINER, PLAIN})
    assert "c 509:* rwm" in (host.read(f"/var/lib/lxc/{CONTAINER}/config") or "")
    assert [item.cause for item in planned(host).blockers] == ["trial.expired"]
    finish(host, back_to(host, retry_trial=True), PASSED_ON_OLD)
    assert boots_by_itself(host) == OLD


# --- the policy, there and back again

FOUND = (None, f"{MACHINE}-*", OLD_ENTRY, NEW_ENTRY, f"{MACHINE}-6.1.*", "@saved")


@pytest.mark.parametrize("found", FOUND)
def test_the_next_upgrade_ends_with_the_policy_from_before_the_way_back(tmp_path: Path, found: str | None) -> None:
    host = upgraded(tmp_path, found)
    before = loaders.of(host).read().policy
    finish(host, back_to(host), PASSED_ON_OLD)
    assert boots_by_itself(host) == OLD
    finish(host, plan_of(host), PASSED)
    assert (loaders.of(host).read().policy, boots_by_itself(host)) == (before, NEW)


def test_a_second_way_back_and_one_that_failed_keep_the_policy(host: FakeHost) -> None:
    """6.12 to 6.1, an upgrade that comes back, a good one: still no pin, as at the beginning."""
    finish(host, back_to(host), PASSED_ON_OLD)
    prepare(host, plan_of(host))
    act(host, "boot", allowed=True)
    assert [power_cycle(host), power_cycle(host)] == [NEW, OLD]
    act(host, "boot_fallback", failed=True, cause="trial.expired", sentence="x")
    act(host, "come_back", failed=True, cause="trial.expired", sentence="x")
    assert loaders.of(host).read().policy == OLD_ENTRY
    finish(host, plan_of(host, retry_trial=True), PASSED)
    assert (loaders.of(host).read().policy, boots_by_itself(host)) == (None, NEW)


def test_a_pin_that_was_taken_out_by_hand_does_not_come_back(host: FakeHost) -> None:
    finish(host, back_to(host), PASSED_ON_OLD)
    host.put(CONF, f"default {MACHINE}-6.12*\n")
    act(host, "hold", plan=plan_of(host))
    fallback = roll_of(host).fallback
    assert fallback is not None
    assert fallback.policy_before == f"{MACHINE}-6.12*"


def test_the_operators_own_pin_after_an_upgrade_is_the_operators(host: FakeHost) -> None:
    """The upgrade has left no pin. The one that is there now keeps the newer kernel, unproven, from booting."""
    host.put(CONF, f"default {NEW_ENTRY}\n")
    add_kernel(host, NEWEST)
    act(host, "hold", plan=back_to(host))
    fallback = roll_of(host).fallback
    assert fallback is not None
    assert fallback.policy_before == NEW_ENTRY


def test_a_kernel_that_was_picked_in_the_menu_is_not_gone_back_to_in_place(host: FakeHost) -> None:
    """It would be target and fallback at once, and the fallback must not be changed."""
    set_variable(host, "LoaderEntryOneShot", OLD_ENTRY)
    assert power_cycle(host) == OLD
    found = planned(host).blockers
    assert [item.cause for item in found] == ["target.not_older"]
    assert f"{OLD} runs already, but {NEW} boots by itself" in found[0].observed
    assert f"Reboot the host into {NEW}" in found[0].next_step
    assert power_cycle(host) == NEW
    assert planned(host).blockers == ()


# --- what is in the way


def _without_headers(host: FakeHost, archive: bool) -> None:
    del host.packages[f"linux-headers-{OLD}"]
    (host.path(f"/lib/modules/{OLD}/build") / "Makefile").unlink()
    host.path(f"/lib/modules/{OLD}/build").rmdir()
    if not archive:
        host.archive = [row for row in host.archive if row[0] != f"linux-headers-{OLD}"]


def test_headers_that_autoremove_took_are_installed_again(host: FakeHost) -> None:
    _without_headers(host, archive=True)
    plan = back_to(host)
    assert f"install linux-headers-{OLD}={VERSIONS[OLD]} (bookworm-security)" in [
        item["text"] for item in plan["steps"]
    ]
    finish(host, plan, PASSED_ON_OLD)
    assert boots_by_itself(host) == OLD


def test_headers_that_no_archive_has_stop_the_plan(host: FakeHost) -> None:
    _without_headers(host, archive=False)
    found = planned(host).blockers
    assert [item.cause for item in found] == ["dkms.headers_missing"]
    assert f"linux-headers-{OLD}" in found[0].sentence
    assert "apt-cache policy" in found[0].sentence


def _no_modules(host: FakeHost) -> None:
    for path in host.files_below(f"/lib/modules/{OLD}/updates/dkms"):
        host.path(path).unlink()


def _another_driver(host: FakeHost) -> None:
    """The driver was upgraded on 6.12; the older kernel still has modules of the version before."""
    for path in host.files_below(f"/lib/modules/{OLD}/updates/dkms"):
        host.put(path, (host.read(path) or "").replace(DRIVER, "550.1.1"))


def _no_image(host: FakeHost) -> None:
    host.path(f"/boot/vmlinuz-{OLD}").unlink()


SPOILT: dict[str, tuple[Callable[[FakeHost], None], set[str], str]] = {
    "modules removed": (_no_modules, {"dkms.not_built", "dkms.module_missing"}, "dkms autoinstall -k"),
    "another driver": (_another_driver, {"dkms.not_built", "dkms.version_mismatch"}, ""),
    "image deleted": (_no_image, {"target.incomplete"}, f"apt-get install --reinstall linux-image-{OLD}="),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_the_older_kernel_lacks_is_found_before_the_downtime(host: FakeHost, name: str) -> None:
    spoil, causes, way_out = SPOILT[name]
    spoil(host)
    with pytest.raises(Stop) as caught:
        prepare(host, back_to(host))
    assert caught.value.blocker.cause in causes
    assert way_out in caught.value.blocker.next_step
    assert host.running == {CONTAINER, PLAIN}
    assert boots_by_itself(host) == NEW
    assert roll_of(host).is_open


BLOCKED = [
    ("6.99", "target.unknown", f"one of: {OLD}"),
    (NEWEST, "target.not_older", "That is an upgrade: gpuhost upgrade --target"),
    ("6.12.120+deb12", "target.not_older", "That is an upgrade: gpuhost upgrade --target"),
]


@pytest.mark.parametrize(("name", "cause", "words"), BLOCKED)
def test_a_name_that_leads_nowhere(host: FakeHost, name: str, cause: str, words: str) -> None:
    add_archive(host, NEWEST)
    found = planned(host, name).blockers
    assert [item.cause for item in found] == [cause]
    assert words in found[0].sentence
    assert f"--to {name}" in found[0].sentence


def test_a_host_without_an_older_kernel_says_so(tmp_path: Path) -> None:
    found = planned(debian_host(tmp_path), "5.10").blockers
    assert [item.cause for item in found] == ["target.unknown"]
    assert "none is installed" in found[0].sentence


def test_an_upgrade_to_an_older_kernel_names_the_way_back(host: FakeHost) -> None:
    found = make_plan(facts_of(host), wishes(target="6.1"), RUN_ID, CONTROLLER).blockers
    assert [item.cause for item in found] == ["target.not_newer"]
    assert "gpuhost rollback --to" in found[0].next_step


# --- a roll is open already


def test_an_open_upgrade_is_ended_first(tmp_path: Path) -> None:
    host = debian_host(tmp_path)
    prepare(host, plan_of(host))
    found = planned(host).blockers
    assert [item.cause for item in found] == ["roll.other_target"]
    assert f"open roll to {NEW}" in found[0].observed
    assert f"end it on {OLD} (gpuhost rollback without --to)" in found[0].next_step


def test_an_open_way_back_is_continued_by_its_own_command_only(host: FakeHost) -> None:
    prepare(host, back_to(host))
    made = planned(host)
    assert (made.resumes, made.blockers) == (True, ())
    assert [line for line in made.notes if "by name" in line]
    found = make_plan(facts_of(host), wishes(), RUN_ID, CONTROLLER).blockers
    assert [item.cause for item in found] == ["roll.other_target"]
    assert f"gpuhost rollback --to {OLD}" in found[0].next_step


def test_a_prefix_of_both_ends_does_not_turn_a_roll_around(host: FakeHost) -> None:
    prepare(host, back_to(host))
    facts = facts_of(host)
    facts["roll"]["running_before"] = BETWEEN
    found = make_plan(facts, wishes(target="6.1"), RUN_ID, CONTROLLER).blockers
    assert [item.cause for item in found] == ["roll.other_target"]
    assert "open roll back to" in found[0].observed
    facts["roll"]["running_before"] = OLDER
    found = make_plan(facts, wishes(target="6.1"), RUN_ID, CONTROLLER, back=True).blockers
    assert [item.cause for item in found] == ["roll.other_target"]


def test_a_promoted_roll_is_finished_first(tmp_path: Path) -> None:
    host = debian_host(tmp_path)
    prepare(host, plan_of(host))
    act(host, "boot", allowed=True)
    power_cycle(host)
    act(host, "promote", verdict=PASSED)
    assert planned(host).blockers[0].next_step == "Finish it first: gpuhost hand_back"


def test_the_plain_rollback_of_an_open_way_back_leads_to_where_it_began(host: FakeHost) -> None:
    prepare(host, back_to(host))
    act(host, "boot", allowed=True)
    assert power_cycle(host) == OLD
    act(host, "boot_fallback", allowed=True)
    assert power_cycle(host) == NEW
    act(host, "come_back")
    assert (roll_of(host).result, boots_by_itself(host)) == ("good_on_old", NEW)


def test_only_a_gate_on_the_older_kernel_promotes_it(host: FakeHost) -> None:
    prepare(host, back_to(host))
    act(host, "boot", allowed=True)
    power_cycle(host)
    assert cause_of(host, "promote", verdict=PASSED) == "gate.not_measured"


@pytest.mark.parametrize("effect", range(1, 19))
def test_a_controller_that_is_killed_anywhere_in_the_reboot(tmp_path: Path, effect: int) -> None:
    host = upgraded(tmp_path)
    plan = back_to(host)
    prepare(host, plan)
    step(host, "gpuhost_workload", state="drained")
    host.effects, host.die_after = [], effect
    try:
        act(host, "boot", allowed=True)
    except Killed:
        assert boots_by_itself(host) == NEW
    host.die_after = None
    if host.rebooting:
        power_cycle(host)
    finish(host, back_to(host), PASSED_ON_OLD)
    assert host.boots == [OLD, NEW, OLD]
    assert (roll_of(host).result, boots_by_itself(host)) == ("good", OLD)


# --- which kernel a name means


def candidate(release: str, *, here: bool = True, headers: str | None = "1", archive: str = "2") -> Candidate:
    """A kernel of which version 2 is in the archive and version 1 may be installed."""
    name = f"linux-headers-{release}"
    return Candidate(
        release=release,
        image_package=f"linux-image-{release}",
        image_version=archive,
        image_suite="stable",
        headers_package=name if headers else None,
        headers_version=archive if headers else None,
        headers_suite="stable" if headers else None,
        installed=False,
        image_here="1" if here else None,
        headers_here=headers if here else None,
    )


def names(found: tuple[Candidate, ...]) -> list[str]:
    return [item.release for item in found]


def test_the_installed_ones_go_before_those_of_the_archive() -> None:
    known = [candidate(NEW), candidate(BETWEEN, here=False), candidate(OLD), candidate(OLDER)]
    found = ways_back(known, "6.1", NEW)
    assert names(found) == [OLD, OLDER]
    assert choose(found, "6.1").candidate == found[0]
    assert names(ways_back(known, BETWEEN, NEW)) == [BETWEEN]
    assert names(ways_back(known, "6.1.0-50", NEW)) == [OLDER]


def test_an_installed_kernel_stays_as_it_is_installed() -> None:
    found = ways_back([candidate(OLD)], "6.1", NEW)[0]
    assert (found.image_version, found.headers_version, found.installed) == ("1", "1", True)
    assert (found.image_suite, found.headers_suite) == (None, None)
    bare = ways_back([replace(candidate(OLD), headers_here=None)], "6.1", NEW)[0]
    assert (bare.image_version, bare.headers_version, bare.headers_suite) == ("1", "2", "stable")


def test_one_without_headers_is_passed_over() -> None:
    known = [candidate(OLD, headers=None), candidate(OLDER)]
    choice = choose(ways_back(known, "6.1", NEW), "6.1")
    assert choice.candidate is not None
    assert choice.candidate.release == OLDER
    assert choice.newest_without_headers is not None
    assert choice.newest_without_headers.release == OLD


def test_the_running_kernel_is_where_its_own_name_leads() -> None:
    known = [candidate(BETWEEN), candidate(OLD), candidate(OLDER)]
    assert names(ways_back(known, "6.1", OLD)) == [OLD]
    assert names(ways_back(known, OLDER, OLD)) == [OLDER]
    assert ways_back(known, BETWEEN, OLD) == ()
    assert ways_back(known, "6.12", OLD) == ()


def test_a_kernel_that_is_only_in_the_archive_is_installed_on_the_same_way(host: FakeHost) -> None:
    add_archive(host, OLDER)
    made = planned(host, OLDER)
    assert made.blockers == ()
    assert f"{OLDER} is not installed any more: it is installed from bookworm-security first" in made.notes
    assert any(item.text.startswith(f"install linux-image-{OLDER}=") for item in made.steps)


def test_a_newer_one_of_the_archive_is_noted(host: FakeHost) -> None:
    add_archive(host, BETWEEN)
    made = planned(host)
    assert made.target is not None
    assert made.target.release == OLD
    assert f"{BETWEEN} is newer, but not installed: to go there, give its whole name" in made.notes


@pytest.mark.parametrize(
    ("release", "other", "older"),
    [(OLD, NEW, True), (NEW, OLD, False), (OLD, OLD, False), ("own", NEW, False), (OLD, "own", False),
     ("6.14.11-5-bpo12-pve", "6.14.11-10-pve", True), ("6.12-rc6-amd64", "6.12.1-amd64", True)],
)  # fmt: skip
def test_older(release: str, other: str, older: bool) -> None:
    assert is_older(release, other) is older
