"""Reconciliation beyond the public cases: the incident, properties over generated tables, and every finding."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpuhost.lxc_config import MAIN, parse
from gpuhost.lxc_reconcile import Reconciliation, StaleRule, declared_nodes, reconcile, stale_rules
from gpuhost.proc_devices import CharacterMajors, ProcDevicesError

UVM_NODES = ("nvidia-uvm", "nvidia-uvm-tools")


def table(nvidia: Mapping[str, int], others: Mapping[int, str] | None = None) -> CharacterMajors:
    entries = [(1, "mem"), (10, "misc"), (195, "nvidia"), (195, "nvidiactl")]
    entries += [(major, name) for name, major in nvidia.items()]
    entries += list((others or {}).items())
    return CharacterMajors(tuple(entries))


def rules(*values: str, mounts: tuple[str, ...] = ()) -> bytes:
    lines = ["arch: amd64", *(f"lxc.cgroup2.devices.allow: {value}" for value in values)]
    lines += [f"lxc.mount.entry: /dev/{node} dev/{node} none bind,optional,create=file" for node in mounts]
    return ("\n".join(lines) + "\n").encode()


def allowed(content: bytes) -> list[tuple[int | None, int | None]]:
    return [(rule.major, rule.minor) for rule in parse(content).rules if rule.section == MAIN]


def ids(outcome: Reconciliation) -> list[str]:
    return [finding.id for finding in outcome.findings]


UVM = UVM_NODES[:1]
INCIDENT_BEFORE = {"nvidia-uvm": 504, "nvidia-caps": 507}
INCIDENT_NOW = {"nvidia-uvm": 509, "nvidia-caps": 237}


def test_incident_with_a_record() -> None:
    now = table(INCIDENT_NOW, {504: "gpiochip"})
    outcome = reconcile(rules("c 195:* rwm", "c 504:* rwm", "c 507:* rwm", mounts=UVM), now, INCIDENT_BEFORE)
    assert allowed(outcome.content) == [(195, None), (509, None), (237, None)]
    assert [(c.leaks_to, c.severity) for c in outcome.changes] == [("gpiochip", "security"), (None, "p0_runtime")]
    assert ids(outcome) == ["lxc.leaked_major", "lxc.stale_major"]


def test_overlapping_move_is_not_a_chain() -> None:
    before, now = {"nvidia-uvm": 504, "nvidia-caps": 507}, table({"nvidia-uvm": 507, "nvidia-caps": 509})
    data = rules("c 504:* rwm", "c 507:* rwm")
    outcome = reconcile(data, now, before)
    assert allowed(outcome.content) == [(507, None), (509, None)]
    assert not reconcile(outcome.content, now, before).changed


def test_swap_without_mounts_is_reported_not_guessed() -> None:
    outcome = reconcile(rules("c 507:0 rwm", "c 509:1 r"), table({"nvidia-uvm": 509, "nvidia-caps": 507}),
                        {"nvidia-uvm": 507, "nvidia-caps": 509})  # fmt: skip
    assert not outcome.changed
    assert ids(outcome) == ["lxc.swap_undecided"]


def test_plain_lxc_with_deny_all_first() -> None:
    data = (
        b"lxc.include = /usr/share/lxc/config/common.conf\nlxc.cgroup2.devices.deny = a\n"
        b"lxc.cgroup2.devices.allow = c 195:* rwm\nlxc.cgroup2.devices.allow = c 244:* rwm\n"
        b"lxc.mount.entry = /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file 0 0\n"
    )
    now = table({"nvidia-uvm": 240}, {244: "slot_taker"})
    outcome = reconcile(data, now, {"nvidia-uvm": 244}, style="lxc", presumed="report")
    assert outcome.content == data.replace(b"244", b"240")
    assert [change.leaks_to for change in outcome.changes] == ["slot_taker"]


def test_new_rule_follows_the_manner_of_the_file() -> None:
    now = table({"nvidia-uvm": 240})
    plain = b"lxc.include = /x\nlxc.mount.entry = /dev/nvidia-uvm dev/nvidia-uvm none bind"
    outcome = reconcile(plain, now, {}, style="lxc")
    assert outcome.content == plain + b"\nlxc.cgroup2.devices.allow = c 240:* rwm"
    by_minor = rules("c 195:0 rw", "c 195:255 rw", mounts=UVM_NODES)
    assert allowed(reconcile(by_minor, now, {}).content)[2:] == [(240, 0), (240, 1)]


def test_rule_that_a_later_deny_all_takes_back_is_missing() -> None:
    data = b"lxc.cgroup2.devices.allow: c 240:* rwm\nlxc.cgroup2.devices.deny: a\n" + rules(mounts=UVM)
    outcome = reconcile(data, table({"nvidia-uvm": 240}), {})
    assert outcome.content.startswith(data[: data.index(b"arch")] + b"lxc.cgroup2.devices.allow: c 240:* rwm\n")


def test_more_candidates_than_drivers_are_left_alone() -> None:
    data = rules("c 504:* rwm", "c 507:* rwm", mounts=UVM)
    outcome = reconcile(data, table({"nvidia-uvm": 509}), {})
    assert allowed(outcome.content) == [(504, None), (507, None), (509, None)]
    assert [change.kind for change in outcome.changes] == ["add"]
    assert reconcile(data, table({"nvidia-uvm": 509}), {}, presumed="report").content == outcome.content


def test_unattended_run_adds_the_rule_where_the_record_rules_the_guess_out() -> None:
    data, now = rules("c 507:* rwm", mounts=UVM), table({"nvidia-uvm": 509})
    unknown = reconcile(data, now, {}, presumed="report")
    assert (unknown.changed, [held.held for held in unknown.held]) == (False, ["presumed"])
    known = reconcile(data, now, {"nvidia-uvm": 504}, presumed="report")
    assert (allowed(known.content), known.held) == ([(507, None), (509, None)], ())


def test_too_few_rights_do_not_decide_old_or_new() -> None:
    before = {"nvidia-uvm": 236, "nvidia-caps": 235, "nvidia-caps-imex-channels": 240}
    now = table({"nvidia-uvm": 237, "nvidia-caps": 235, "nvidia-caps-imex-channels": 236})
    first = reconcile(rules("c 240:* rwm", "c 236:* r", mounts=UVM), now, before)
    assert allowed(first.content) == [(236, None), (237, None)]
    assert not reconcile(first.content, now, before).changed


def test_fixed_number_has_no_stale_rule() -> None:
    outcome = reconcile(rules("c 504:* rwm", mounts=("nvidia0",)), table({}), {})
    assert allowed(outcome.content) == [(504, None), (195, None)]


def test_path_rule_and_wildcard_cover() -> None:
    now = table({"nvidia-uvm": 509})
    for value in ("/dev/nvidia-uvm rwm", "c *:* rwm", "a"):
        assert not reconcile(rules(value, mounts=UVM), now, {}).changed
    # The default policy's mknod rule opens nothing.
    assert reconcile(rules("c *:* m", mounts=UVM), now, {}).changed


def test_rights_are_not_widened() -> None:
    outcome = reconcile(rules("c 509:0 r", mounts=UVM), table({"nvidia-uvm": 509}), {})
    assert not outcome.changed
    assert ids(outcome) == ["lxc.rule_access"]


def test_without_any_rule_nothing_is_blocked() -> None:
    """liblxc attaches no program for an empty list; the first rule would close everything else."""
    mount = b"lxc.mount.entry = /dev/nvidia-uvm dev/nvidia-uvm none bind\n"
    now = table({"nvidia-uvm": 240})
    for text in (mount, b"lxc.cgroup2.devices.deny = a\n" + mount):
        outcome = reconcile(text, now, {}, style="lxc")
        assert (outcome.changed, ids(outcome)) == (False, [])
    # On v1 the kernel keeps `deny a`, and Proxmox's own rules stand before those of its files.
    v1 = reconcile(b"lxc.cgroup.devices.deny = a\n" + mount, now, {}, style="lxc", hierarchy="legacy")
    assert b"lxc.cgroup.devices.allow = c 240:* rwm\n" in v1.content
    assert reconcile(mount, now, {}).changed


def test_a_deny_rule_denies_what_the_kernel_denies() -> None:
    data = b"lxc.cgroup2.devices.allow: a\nlxc.cgroup2.devices.deny: c 509:* m\n" + rules(mounts=UVM)
    assert ids(reconcile(data, table({"nvidia-uvm": 509}), {})) == ["lxc.allow_all"]
    v1 = data.replace(b"cgroup2", b"cgroup").replace(b"509:* m", b"509:* w")
    assert "lxc.rule_denied" in ids(reconcile(v1, table({"nvidia-uvm": 509}), {}, hierarchy="legacy"))


def test_a_stale_deny_rule_follows_its_driver() -> None:
    data = b"lxc.cgroup2.devices.allow: a\nlxc.cgroup2.devices.deny: c 504:* rwm\n"
    outcome = reconcile(data, table({"nvidia-uvm": 509}, {504: "gpiochip"}), {"nvidia-uvm": 504})
    assert outcome.content == data.replace(b"504", b"509")
    assert [change.leaks_to for change in outcome.changes] == [None]
    assert [f.observed for f in outcome.findings if f.id == "lxc.stale_major"] == ["denies major 504 for nvidia-uvm"]
    gone = reconcile(data, table({}, {504: "gpiochip"}), {"nvidia-uvm": 504})
    assert "lxc.leaked_major" not in ids(gone)


def test_deny_takes_back_an_equal_rule_only() -> None:
    now = table({"nvidia-uvm": 509})
    back = rules("c 509:* rwm", mounts=UVM) + b"lxc.cgroup2.devices.deny: c 509:* rwm\n"
    assert reconcile(back, now, {}).content == back + b"lxc.cgroup2.devices.allow: c 509:* rwm\n"
    # liblxc compares the letters as they are written.
    assert not reconcile(back.replace(b"deny: c 509:* rwm", b"deny: c 509:* mrw"), now, {}).changed


def test_unconfined_says_nothing_about_devices() -> None:
    data = rules("c 504:* rwm", mounts=UVM) + b"lxc.apparmor.profile: unconfined\nlxc.cap.drop:\n"
    outcome = reconcile(data, table({"nvidia-uvm": 509}), {"nvidia-uvm": 504}, presumed="report")
    assert outcome.content == data.replace(b"504", b"509")


def test_quotes_stay() -> None:
    data = b"lxc.cgroup2.devices.allow = \"c 504:* rwm\"\nlxc.cgroup2.devices.allow = 'c 10:200 rwm'\n"
    outcome = reconcile(data, table({"nvidia-uvm": 509}), {"nvidia-uvm": 504}, style="lxc")
    assert outcome.content == data.replace(b"504", b"509")
    half = b"lxc.cgroup2.devices.allow = 'c 504:* rwm\n"
    refused = reconcile(half, table({"nvidia-uvm": 509}), {"nvidia-uvm": 504}, style="lxc")
    assert (refused.changed, ids(refused)) == (False, ["lxc.rule_malformed"])


def test_a_new_rule_comes_after_every_include() -> None:
    """What stands above an include with `deny = a` would be taken back by it."""
    data = (
        b"lxc.cgroup2.devices.allow = c 10:200 rwm\nlxc.include = /usr/share/lxc/config/common.conf\n# end\n"
        b"lxc.mount.entry = /dev/nvidia-uvm dev/nvidia-uvm none bind\n"
    )
    outcome = reconcile(data, table({"nvidia-uvm": 509}), {}, style="lxc")
    added = b"lxc.cgroup2.devices.allow = c 509:* rwm\n"
    assert outcome.content == data.replace(b"common.conf\n", b"common.conf\n" + added)
    assert not reconcile(outcome.content, table({"nvidia-uvm": 509}), {}, style="lxc").changed


def test_denied_node_is_left_denied() -> None:
    data = b"lxc.cgroup2.devices.allow: a\nlxc.cgroup2.devices.deny: c 509:* rwm\n" + rules(mounts=UVM)
    outcome = reconcile(data, table({"nvidia-uvm": 509}), {})
    assert not outcome.changed
    assert "lxc.rule_denied" in ids(outcome)


def test_driver_that_is_not_loaded_changes_nothing() -> None:
    data = rules("c 504:* rwm", mounts=UVM)
    outcome = reconcile(data, table({}, {504: "gpiochip"}), {"nvidia-uvm": 504})
    assert not outcome.changed
    assert ids(outcome) == ["lxc.driver_not_registered", "lxc.leaked_major"]
    (stale,) = stale_rules(data, table({}, {504: "gpiochip"}), {"nvidia-uvm": 504})
    assert stale.sentence("a") == (
        "a allows major 504 for nvidia-uvm, this kernel does not have that driver loaded; 504 now opens gpiochip"
    )


def test_text_that_is_no_rule_is_reported() -> None:
    data = b" lxc.cgroup2.devices.allow: c 195:* rwm\n" + rules("c 509:* rw # uvm") + b"lxc.include: /etc/own.conf\n"
    outcome = reconcile(data, table({"nvidia-uvm": 509}), {}, declared=("/dev/nvidia-uvm",))
    assert {"lxc.rule_malformed", "lxc.rule_ignored", "lxc.rule_missing", "lxc.include"} <= set(ids(outcome))
    assert b"c 509:* rw # uvm\n" in outcome.content


def test_rule_of_a_mounted_foreign_device_is_no_leak() -> None:
    data = rules("c 254:* rwm", "c 195:* rwm", mounts=("gpiochip0", "nvidia0"))
    assert ids(reconcile(data, table({}, {254: "gpiochip"}), {})) == []


def test_a_recorded_number_that_the_config_now_has_for_another_device_stays() -> None:
    now, before = table({"nvidia-uvm": 509}, {504: "gpiochip"}), {"nvidia-uvm": 504}
    data = rules("c 504:* rwm", mounts=("gpiochip0",))
    outcome = reconcile(data, now, before)
    assert (outcome.changed, ids(outcome)) == (False, [])
    assert stale_rules(data, now, before) == ()
    # With uvm mounted beside it the rule is what the record says it is.
    assert allowed(reconcile(rules("c 504:* rwm", mounts=("gpiochip0", *UVM)), now, before).content) == [(509, None)]


def test_container_without_a_gpu_is_none_of_our_business() -> None:
    outcome = reconcile(rules("c 254:* rwm", "c 60:* rwm"), table({}, {254: "gpiochip"}), {})
    assert (outcome.changed, outcome.findings) == (False, ())


def test_kept_dead_lines_are_named() -> None:
    data = b"lxc.cgroup.devices.allow: c 195:* rwm\n" + rules("c 195:* rwm", mounts=("nvidia0",))
    outcome = reconcile(data, table({}), {})
    assert not outcome.changed
    assert "kept" in next(f.observed for f in outcome.findings if f.id == "lxc.dead_cgroup_key")


def test_a_converted_rule_that_a_later_line_clears_is_added() -> None:
    data = b"lxc.cgroup.devices.allow: c 504:* rwm\nlxc.cgroup2.devices.allow:\n" + rules(mounts=UVM)
    now = table({"nvidia-uvm": 509})
    outcome = reconcile(data, now, INCIDENT_BEFORE)
    assert [change.kind for change in outcome.changes] == ["convert", "add"]
    assert not reconcile(outcome.content, now, INCIDENT_BEFORE).changed


def test_judge_names_old_and_new_number_without_a_record() -> None:
    data = rules("c 195:* rwm", "c 244:* rwm", mounts=UVM)
    free = stale_rules(data, table({"nvidia-uvm": 240}), {})
    assert free == (StaleRule(3, "nvidia-uvm", 244, 240, "presumed", None),)
    assert free[0].sentence("gpu-ct") == "gpu-ct allows major 244 for nvidia-uvm (presumed), this kernel uses 240"
    taken = stale_rules(data, table({"nvidia-uvm": 240}, {244: "slot_taker"}), {})
    assert taken == (StaleRule(3, "nvidia-uvm", 244, 240, "presumed", "slot_taker"),)
    recorded = stale_rules(data, table({"nvidia-uvm": 240}), {"nvidia-uvm": 244})
    assert recorded[0].sentence("gpu-ct") == "gpu-ct allows major 244 for nvidia-uvm, this kernel uses 240"


def test_declared_nodes() -> None:
    assert declared_nodes([]) == ()
    assert declared_nodes([2], uvm_tools=True, modeset=True) == (
        "/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset",
    )  # fmt: skip


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ProcDevicesError):
        reconcile(b"", CharacterMajors(), {})
    with pytest.raises(ValueError, match="/dev/null: not an NVIDIA device node"):
        reconcile(b"", table({}), {}, declared=("/dev/null",))
