"""The planner: every blocker with its cause, nothing to do, resuming, notes. Facts come from a fake host."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost
from fake_roll import CONTROLLER, RUN_ID, debian_host, facts_of, plan_of, prepared, step, wishes
from fake_tree import CONTAINER, ESP, NEW, NEW_ENTRY, OLD, OLD_ENTRY, add_archive, booted

from gpuhost.documents import Plan
from gpuhost.errors import blocker
from gpuhost.plan import idle_outcome, make_plan

Facts = dict[str, Any]


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    """A host that runs 6.1 and could install 6.12 with its headers."""
    return facts_of(debian_host(tmp_path, installed=False))


def plan(facts: Facts, **changes: Any) -> Plan:
    return make_plan(facts, wishes(**changes), RUN_ID, CONTROLLER)


def causes(made: Plan) -> list[str]:
    return [item.cause for item in made.blockers]


def test_a_good_host_gets_a_plan_without_blockers(facts: Facts) -> None:
    made = plan(facts)
    assert causes(made) == []
    assert made.target is not None
    assert (made.target.release, made.target.image_version, made.target.image_suite) == (
        NEW,
        "6.12.117-1",
        "bookworm-security",
    )
    assert made.target.headers_package == f"linux-headers-{NEW}"
    assert not made.nothing_to_do
    assert not made.resumes
    assert [item.stage for item in made.steps if not item.downtime] == ["prepare"] * 4
    assert [item.stage for item in made.steps if item.downtime] == [
        "drain", "trial", "reconcile", "gate", "promote", "hand_back",
    ]  # fmt: skip
    assert any(NEW in line and "bookworm-security" in line for line in made.candidates)
    assert CONTAINER in next(item.text for item in made.steps if item.stage == "drain")


def test_the_same_input_gives_the_same_plan_and_changes_no_input(facts: Facts) -> None:
    before = copy.deepcopy(facts)
    first, second = plan(facts), plan(facts)
    assert first.steps == second.steps
    assert first.candidates == second.candidates
    assert facts == before


def _headers_gone(facts: Facts) -> None:
    for item in facts["candidates"]:
        if item["release"] == NEW:
            item.update(headers_package=None, headers_version=None, headers_suite=None)


def _roll(facts: Facts, **changes: Any) -> None:
    made = plan(facts)
    facts["roll"] = {
        "state": "open", "result": None, "cause": None, "sentence": "", "target": NEW,
        "running_before": OLD, "run_id": "earlier",
        "closed_at": None, "steps": [], "workloads": [], "promoted_at": None,
        "trial": {"boots": 0, "armed_at": None, "boot_id_before": None},
        "plan": {"target": vars(made.target), "cmdline": {"panic": "10"}, "modprobe_options": {}},
        **changes,
    }  # fmt: skip


def _expired(facts: Facts) -> None:
    trial = {"boots": 1, "armed_at": "2026-11-30T00:00:00Z", "boot_id_before": "x"}
    _roll(
        facts,
        state="closed",
        result="good_on_old",
        sentence="gate failed",
        closed_at="2026-11-30T01:00:00Z",
        trial=trial,
    )


def _no_space(facts: Facts) -> None:
    facts["boot"]["room"][0]["free_bytes"] = 1


BLOCKERS: list[tuple[str, Callable[[Facts], None], dict[str, Any]]] = [
    ("target.unknown", lambda f: None, {"target": "7.1"}),
    ("input.invalid", lambda f: None, {"target": ""}),
    ("target.not_newer", lambda f: f["kernel"].update(release=NEW), {"target": "6.1"}),
    ("dkms.headers_missing", _headers_gone, {}),
    ("boot.no_space", _no_space, {}),
    ("roll.controller_on_target", lambda f: f["kernel"].update(boot_id=CONTROLLER), {}),
    ("roll.reboot_not_allowed", lambda f: None, {"reboot_allowed": False}),
    ("gate.nothing_required", lambda f: None, {"gate_required": ()}),
    ("gate.unknown_check", lambda f: None, {"gate_required": ("device_access", "nonsense")}),
    ("apt.half_configured", lambda f: f["packages"].update(half_configured=["linux-image-x (iF)"]), {}),
    ("trial.expired", _expired, {}),
    ("roll.other_target", _roll, {"target": "6.1"}),
    ("roll.file_unreadable", lambda f: f.update(roll_error="not a roll file"), {}),
    (
        "loader.unsupported",
        lambda f: f["boot"].update(problems=[asdict(blocker("loader.unsupported", "x", "GRUB"))]),
        {},
    ),
    ("boot.efi_default_set", lambda f: f["boot"].update(efi_default=OLD_ENTRY), {}),
    ("boot.foreign_one_shot", lambda f: f["boot"].update(one_shot=NEW_ENTRY), {}),
]


@pytest.mark.parametrize(("cause", "spoil", "changes"), BLOCKERS, ids=[item[0] for item in BLOCKERS])
def test_each_blocker_is_the_only_one(
    facts: Facts, cause: str, spoil: Callable[[Facts], None], changes: dict[str, Any]
) -> None:
    spoil(facts)
    made = plan(facts, **changes)
    assert causes(made) == [cause]
    blocker = made.blockers[0]
    assert blocker.object
    assert blocker.observed
    assert blocker.next_step
    assert not made.nothing_to_do


def test_missing_headers_name_the_package_and_the_kernel(facts: Facts) -> None:
    _headers_gone(facts)
    sentence = plan(facts).blockers[0].sentence
    assert f"linux-headers-{NEW}" in sentence
    assert f"kernel {NEW}" in sentence
    assert "apt-cache policy" in sentence


def test_an_unknown_target_lists_what_there_is(facts: Facts) -> None:
    assert "6.12" in plan(facts, target="7.1").blockers[0].expected


def test_all_blockers_come_at_once(facts: Facts) -> None:
    _no_space(facts)
    facts["boot"]["efi_default"] = OLD_ENTRY
    found = causes(plan(facts, reboot_allowed=False, gate_required=()))
    assert found == ["roll.reboot_not_allowed", "gate.nothing_required", "boot.efi_default_set", "boot.no_space"]


def test_prepare_alone_needs_no_consent_and_no_checks(facts: Facts) -> None:
    assert causes(plan(facts, reboot_allowed=False, gate_required=(), needs_reboot=False)) == []


def test_a_newer_kernel_without_headers_is_noted(tmp_path: Path) -> None:
    host = debian_host(tmp_path, installed=False)
    add_archive(host, "6.12.120+deb12-cloud-amd64", headers=False)
    made = make_plan(facts_of(host), wishes(), RUN_ID, CONTROLLER)
    assert made.target is not None
    assert made.target.release == NEW
    assert "6.12.120+deb12-cloud-amd64 is newer, but has no headers" in made.notes


def test_kernels_of_another_flavour_are_no_candidates(tmp_path: Path) -> None:
    host = debian_host(tmp_path, installed=False)
    add_archive(host, "6.12.121+deb12-amd64", "6.12.122+deb12-rt-amd64")
    assert {item["release"] for item in facts_of(host)["candidates"]} == {OLD, NEW}


def _on_new(folder: Path) -> FakeHost:
    host = debian_host(folder)
    booted(host, NEW, "root=x panic=30")
    return host


def test_nothing_to_do_where_the_target_runs_and_boots_by_itself(tmp_path: Path) -> None:
    made = make_plan(facts_of(_on_new(tmp_path)), wishes(), RUN_ID, CONTROLLER)
    assert made.nothing_to_do
    assert (made.blockers, made.steps) == ((), ())
    outcome = idle_outcome(made)
    assert (outcome.state, outcome.exit_status, outcome.head.schema) == ("nothing_to_do", 0, "gpuhost.outcome")


def test_an_argument_that_is_not_in_effect_is_noted_where_nothing_is_to_do(tmp_path: Path) -> None:
    made = make_plan(facts_of(_on_new(tmp_path)), wishes(cmdline={"pcie_aspm": "off"}), RUN_ID, CONTROLLER)
    assert made.nothing_to_do
    assert "the running kernel lacks pcie_aspm=off: it takes effect with the next roll" in made.notes


def test_a_target_that_runs_but_does_not_boot_by_itself_is_work(tmp_path: Path) -> None:
    host = _on_new(tmp_path)
    host.put(f"{ESP}/loader/loader.conf", f"default {OLD_ENTRY}\n")
    assert not make_plan(facts_of(host), wishes(), RUN_ID, CONTROLLER).nothing_to_do


def test_old_package_lists_are_noted(facts: Facts) -> None:
    facts["packages"]["lists_age_s"] = 9 * 86400
    assert "apt's package lists are 9 days old: newer kernels may exist" in plan(facts).notes


# --- resuming


def test_an_open_roll_is_resumed_with_its_own_versions_and_arguments(facts: Facts) -> None:
    _roll(facts)
    facts["candidates"] = [item for item in facts["candidates"] if item["release"] != NEW]  # the archive moved on
    made = plan(facts, cmdline={"panic": "99"})
    assert made.resumes
    assert made.target is not None
    assert made.target.release == NEW
    assert made.cmdline == {"panic": "10"}
    assert made.blockers == ()


def test_a_roll_is_resumed_without_a_target(facts: Facts) -> None:
    _roll(facts)
    assert plan(facts, target="").blockers == ()


def test_a_resumed_roll_passes_half_configured_packages_and_its_own_one_shot(facts: Facts) -> None:
    _roll(facts)
    facts["packages"]["half_configured"] = ["linux-image-x (iU)"]
    facts["boot"]["one_shot"] = NEW_ENTRY
    assert causes(plan(facts)) == []


def test_a_roll_on_the_target_is_resumed_and_not_nothing_to_do(tmp_path: Path) -> None:
    host = debian_host(tmp_path)
    prepared(host)
    booted(host, NEW)
    made = make_plan(facts_of(host), wishes(), RUN_ID, CONTROLLER)
    assert made.resumes
    assert not made.nothing_to_do


def test_retry_trial_lifts_an_expired_trial(facts: Facts) -> None:
    _expired(facts)
    assert causes(plan(facts, retry_trial=True)) == []


def test_an_expired_trial_of_another_kernel_does_not_matter(facts: Facts) -> None:
    _expired(facts)
    facts["roll"]["target"] = "6.12.100+deb12-cloud-amd64"
    assert causes(plan(facts)) == []


def test_an_unreadable_roll_file_is_never_no_roll(tmp_path: Path) -> None:
    host = debian_host(tmp_path)
    host.put("/var/lib/gpuhost/roll.json", '{"schema": "gpuhost.roll"')
    assert [item["cause"] for item in plan_of(host)["blockers"]] == ["roll.file_unreadable"]


# --- defects


@pytest.mark.parametrize(
    ("check", "gpus", "nodes", "found"),
    [
        ("p2p", 1, ["/dev/nvidia0"], ["gate.one_gpu"]),
        ("allreduce", 2, ["/dev/nvidia1"], ["gate.one_gpu"]),  # the container gets one of two
        ("p2p", 2, ["/dev/nvidia0", "/dev/nvidia1"], []),
        ("p2p", 1, ["/dev/nvidia0", "/dev/nvidia1"], ["gate.one_gpu"]),  # a template for larger hosts
        ("p2p", 2, [], []),  # by a hook: not known here
        ("memory", 1, ["/dev/nvidia0"], []),
    ],
)
def test_a_check_between_gpus_needs_several(
    facts: Facts, check: str, gpus: int, nodes: list[str], found: list[str]
) -> None:
    facts["gpus"] = [facts["gpus"][0]] * gpus
    for item in facts["containers"]:
        item["gpu_nodes"] = nodes if item["gpu"] else []
    assert causes(plan(facts, gate_required=("device_access", check), gate_records=True)) == found


def test_a_gate_without_a_target_stops_before_the_downtime(facts: Facts) -> None:
    for item in facts["containers"]:
        item["running"] = False
    assert "gate.no_target" in causes(plan(facts))


def test_a_rollback_before_any_trial_boot_expires_nothing(tmp_path: Path) -> None:
    host = debian_host(tmp_path)
    prepared(host)
    step(host, "gpuhost_boot_trial", action="boot_fallback")
    step(host, "gpuhost_boot_trial", action="come_back")
    assert "trial.expired" not in [item["cause"] for item in plan_of(host)["blockers"]]


def test_a_later_build_of_proxmox_is_newer(facts: Facts) -> None:
    running, target = "6.14.11-5-bpo12-pve", "6.14.11-10-pve"
    facts["kernel"]["release"] = running
    facts["candidates"] = [
        {
            **facts["candidates"][0],
            "release": target,
            "headers_package": f"proxmox-headers-{target}",
            "installed": False,
        }
    ]
    assert "target.not_newer" not in causes(plan(facts, target="6.14"))


def test_a_failed_drain_of_last_week_is_not_downtime(facts: Facts) -> None:
    def done(stage: str, day: int, changed: bool) -> dict[str, Any]:
        return {
            "stage": stage, "started_at": f"2026-11-{day:02d}T01:00:00Z",
            "finished_at": f"2026-11-{day:02d}T01:10:00Z", "changed": changed,
        }  # fmt: skip

    steps = [done("drain", 20, False), done("drain", 27, True), done("hand_back", 27, True)]
    _roll(facts, state="closed", result="good", steps=steps)
    assert plan(facts).downtime_estimate_s == 600
