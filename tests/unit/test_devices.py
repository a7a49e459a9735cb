"""Nodes, rules by driver name, and the record of majors: 504 becomes 509 and back, and nothing else changes."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost, Killed
from fake_roll import HOST_NAME, RUN_ID, debian_host, plan_of, roll_of, step
from fake_tree import CONFIG, CONTAINER, NEW, OLD, PLAIN, booted, proc_devices

from gpuhost import config_file, devices, devices_boot, devices_unit, host_nodes, majors_record, restarts
from gpuhost.devices import Wishes
from gpuhost.errors import Stop, stop
from gpuhost.rollfile import LOCK_FILE

CONFIG_PATH = f"/var/lib/lxc/{CONTAINER}/config"
BEFORE = {"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 504, "nvidia-caps": 507}
RECORD = {name: (major,) for name, major in BEFORE.items()}


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """On the new kernel, with the old kernel's rules in the container and on record."""
    made = debian_host(tmp_path)
    booted(made, NEW)
    majors_record.write(made, RECORD)
    return made


def reconcile(host: FakeHost, *, check: bool = False, presumed: Any = "report") -> devices.Work:
    return devices.reconcile_host(host, HOST_NAME, RUN_ID, Wishes(presumed), check)


def test_rules_follow_the_driver_and_everything_else_stays(host: FakeHost) -> None:
    work = reconcile(host)
    expected = CONFIG.replace("c 504:* rwm", "c 509:* rwm").replace("c 507:* rwm", "c 237:* rwm")
    assert host.read(CONFIG_PATH) == expected
    assert work.changed
    assert work.lines == (
        f"{CONFIG_PATH}:5 nvidia-uvm 504 -> 509 (504 belongs to aux now: closed)",
        f"{CONFIG_PATH}:6 nvidia-caps 507 -> 237",
    )
    (diff,) = work.diffs
    assert (diff["before"], diff["after"]) == (CONFIG, expected)
    assert work.document["majors_before"] == BEFORE
    assert work.document["majors_now"]["nvidia-uvm"] == 509


def test_a_second_run_changes_nothing(host: FakeHost) -> None:
    reconcile(host)
    before = host.snapshot()
    work = reconcile(host)
    assert (work.changed, work.lines, work.diffs) == (False, (), ())
    assert host.snapshot() == before


def test_and_back_again(host: FakeHost) -> None:
    reconcile(host)
    booted(host, OLD)
    reconcile(host)
    assert host.read(CONFIG_PATH) == CONFIG


def test_check_mode_says_the_same_and_writes_nothing(host: FakeHost) -> None:
    before, host.effects = host.snapshot(), []
    first = reconcile(host, check=True)
    assert host.snapshot() == before
    assert host.effects == []
    second = reconcile(host)
    assert (first.lines, first.diffs) == (second.lines, second.diffs)


def test_without_a_record_nothing_is_touched_that_is_only_presumed(host: FakeHost) -> None:
    host.remove(majors_record.RECORD)
    reconcile(host)
    assert "c 504:* rwm" in (host.read(CONFIG_PATH) or "")


def test_what_somebody_else_writes_meanwhile_is_kept_and_the_rules_follow(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, theirs = config_file.update, CONFIG + "# by hand\n"

    def late(to: FakeHost, path: str, change: Any) -> Any:
        if path == CONFIG_PATH:
            to.put(path, theirs)  # between our reading and our writing
        return real(to, path, change)

    monkeypatch.setattr(config_file, "update", late)
    work = reconcile(host)
    assert host.read(CONFIG_PATH) == theirs.replace("c 504:", "c 509:").replace("c 507:", "c 237:")
    assert work.diffs[0]["before"] == theirs


def test_the_configs_mode_stays(host: FakeHost) -> None:
    host.path(CONFIG_PATH).chmod(0o640)
    reconcile(host)
    assert host.mode(CONFIG_PATH) == 0o640


def test_a_container_without_nvidia_rules_is_not_written(host: FakeHost) -> None:
    reconcile(host)
    assert [effect for effect in host.effects if PLAIN in effect] == []


@pytest.mark.parametrize("effect", range(1, 5))
def test_a_kill_between_two_writes_is_finished_by_the_next_run(host: FakeHost, effect: int) -> None:
    host.put(f"/var/lib/lxc/{PLAIN}/config", CONFIG)
    host.effects, host.die_after = [], effect
    with contextlib.suppress(Killed):
        reconcile(host)
    host.die_after = None
    reconcile(host)
    for name in (CONTAINER, PLAIN):
        text = host.read(f"/var/lib/lxc/{name}/config") or ""
        assert "c 509:* rwm" in text
        assert "c 504:* rwm" not in text


# --- the record


def test_the_record_is_written_and_read(host: FakeHost) -> None:
    assert majors_record.read(host) == RECORD
    assert json.loads(host.read(majors_record.RECORD) or "")["majors"]["nvidia-uvm"] == [504]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"majors": 5}', '{"majors": {"nvidia-uvm": "x"}}'])
def test_a_broken_record_is_a_stop_and_never_empty(host: FakeHost, text: str) -> None:
    host.put(majors_record.RECORD, text)
    with pytest.raises(Stop) as caught:
        reconcile(host)
    assert caught.value.blocker.object == majors_record.RECORD


def test_no_majors_are_not_recorded(host: FakeHost) -> None:
    majors_record.write(host, {})
    assert majors_record.read(host) == RECORD


def test_a_driver_that_is_not_loaded_now_keeps_its_old_number(host: FakeHost) -> None:
    text = "".join(line for line in proc_devices(NEW).splitlines(True) if "nvidia-uvm" not in line)
    host.put("/proc/devices", text)
    reconcile(host)
    assert majors_record.read(host)["nvidia-uvm"] == (504,)
    host.put("/proc/devices", proc_devices(NEW))
    reconcile(host)
    assert "c 509:* rwm" in (host.read(CONFIG_PATH) or "")


def test_a_part_of_the_driver_that_was_there_before_is_loaded(host: FakeHost) -> None:
    full = proc_devices(NEW)
    host.put("/proc/devices", "".join(line for line in full.splitlines(True) if "nvidia-uvm" not in line))

    def load(_: FakeHost, argv: list[str]) -> tuple[int, str, str]:
        host.put("/proc/devices", full)
        return 0, "", ""

    host.programs["modprobe",] = load
    work = reconcile(host)
    assert host.ran("modprobe") == [["modprobe", "nvidia-uvm"]]
    assert "c 509:* rwm" in (host.read(CONFIG_PATH) or "")
    assert any("nvidia-uvm loaded" in line for line in work.lines)


def test_an_unreadable_proc_devices_rewrites_nothing(host: FakeHost) -> None:
    host.put("/proc/devices", "")
    with pytest.raises((Stop, ValueError)):
        reconcile(host)
    assert host.read(CONFIG_PATH) == CONFIG


# --- nodes


def test_nodes_that_are_missing_or_have_an_old_major_are_made(host: FakeHost) -> None:
    host.nodes = {"/dev/nvidiactl": (195, 255), "/dev/nvidia0": (195, 0), "/dev/nvidia-uvm": (504, 0)}
    work = reconcile(host)
    assert host.nodes["/dev/nvidia-uvm"] == (509, 0)
    assert host.nodes["/dev/nvidia-uvm-tools"] == (509, 1)
    assert "node /dev/nvidia-uvm made with 509:0" in work.lines
    assert work.document["nodes_created"] == ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert "/dev/nvidia-modeset" not in host.nodes  # its module is not loaded


def test_the_nodes_of_every_gpu_are_made(host: FakeHost) -> None:
    for minor in (0, 1):
        host.put(
            f"/proc/driver/nvidia/gpus/0000:0{minor}:00.0/information", f"Model: \tH200\nDevice Minor: \t {minor}\n"
        )
    host.nodes = {}
    reconcile(host)
    assert {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"} <= set(host.nodes)
    assert host.nodes["/dev/nvidia1"] == (195, 1)


def test_a_capability_node_is_no_node_for_everybody(host: FakeHost) -> None:
    for number in (1, 2):
        host.put(f"/dev/nvidia-caps/nvidia-cap{number}")
        host.nodes[f"/dev/nvidia-caps/nvidia-cap{number}"] = (507, number)
    reconcile(host)
    assert host.nodes["/dev/nvidia-caps/nvidia-cap1"] == (237, 1)
    assert host.node_modes["/dev/nvidia-caps/nvidia-cap1"] == 0o400
    assert host.node_modes["/dev/nvidia-caps/nvidia-cap2"] == 0o444


def test_no_driver_no_nodes(host: FakeHost) -> None:
    host.put("/proc/devices", "Character devices:\n  1 mem\n")
    host.nodes = {}
    reconcile(host)
    assert host.nodes == {}


# --- for the judge, and the module


def test_stale_rules_by_container(host: FakeHost) -> None:
    found = devices.stale_by_container(host)
    assert {"container": CONTAINER, "driver": "nvidia-uvm", "allowed": 504, "now": 509} in found[CONTAINER]
    assert found[PLAIN] == []
    reconcile(host)
    assert devices.stale_by_container(host)[CONTAINER] == []


def test_the_module_works_without_a_roll_and_logs_in_one(tmp_path: Path) -> None:
    host = debian_host(tmp_path)
    assert not step(host, "gpuhost_lxc_devices")["changed"]
    assert not host.exists("/var/lib/gpuhost/roll.json")
    step(host, "gpuhost_boot_trial", action="hold", plan=plan_of(host))
    booted(host, NEW)
    answer = step(host, "gpuhost_lxc_devices")
    assert answer["changed"]
    last = roll_of(host).steps[-1]
    assert (last.stage, last.changed) == ("reconcile", True)
    assert any("504 -> 509" in line for line in last.lines)


def test_without_a_roll_it_works_under_the_hosts_lock(tmp_path: Path) -> None:
    """The boot unit, or another controller, may be at the same configs and the same record."""
    host = debian_host(tmp_path)
    with host.lock(LOCK_FILE):
        assert step(host, "gpuhost_lxc_devices", check=True)["gpuhost_documents"]
        with pytest.raises(Stop) as caught:
            step(host, "gpuhost_lxc_devices")
    assert caught.value.blocker.cause == "roll.busy"


# --- the record, while rules are being rewritten


@pytest.mark.parametrize("effect", range(1, 6))
def test_a_kill_and_the_way_back_to_the_old_kernel_leave_nothing_presumed(host: FakeHost, effect: int) -> None:
    """Killed between the rules and the record, and the old kernel boots: its numbers are certain again."""
    host.put(f"/var/lib/lxc/{PLAIN}/config", CONFIG)
    host.effects, host.die_after = [], effect
    with contextlib.suppress(Killed):
        reconcile(host)
    host.die_after = None
    booted(host, OLD)
    reconcile(host)
    for name in (CONTAINER, PLAIN):
        assert host.read(f"/var/lib/lxc/{name}/config") == CONFIG
    assert majors_record.read(host) == RECORD


def test_rules_that_are_right_are_recorded_at_a_gate_or_drain(host: FakeHost) -> None:
    reconcile(host)
    host.remove(majors_record.RECORD)
    devices.record_if_right(host)
    assert majors_record.read(host)["nvidia-uvm"] == (509,)


def test_a_stale_rule_keeps_the_record_that_explains_it(host: FakeHost) -> None:
    devices.record_if_right(host)
    assert majors_record.read(host) == RECORD


def test_what_is_held_stays_explained(host: FakeHost) -> None:
    """A locked config keeps its old numbers, and they stay certain for the run after the lock."""
    host.remove(f"/var/lib/lxc/{CONTAINER}/config")
    path = "/etc/pve/lxc/141.conf"
    rules = "lxc.cgroup2.devices.allow: c 504:* rwm\nlxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind 0 0\n"
    on_proxmox(host, path, f"lock: backup\n{rules}")
    reconcile(host)
    assert "c 504:* rwm" in (host.read(path) or "")
    assert majors_record.read(host)["nvidia-uvm"] == (509, 504)
    host.put(path, rules)
    reconcile(host)
    assert host.read(path) == rules.replace("504", "509")
    assert majors_record.read(host)["nvidia-uvm"] == (509,)


def test_beside_a_presumed_rule_a_driver_without_a_record_stays_without(host: FakeHost) -> None:
    """Recorded, it would count as one whose old number is known: the next run would add a rule beside the stale one."""
    host.remove(majors_record.RECORD)
    first = reconcile(host)
    assert any(item["held"] == "presumed" for item in first.document["changes"])
    assert "nvidia-uvm" not in majors_record.read(host)
    assert not reconcile(host).changed
    assert host.read(CONFIG_PATH) == CONFIG
    reconcile(host, presumed="apply")
    assert majors_record.read(host)["nvidia-uvm"] == (509,)


def test_where_proxmox_shows_no_containers_yet_the_record_keeps_the_old_numbers(host: FakeHost) -> None:
    """pmxcfs came later than the boot unit: the rules that it hides are still certain afterwards."""
    host.remove(f"/var/lib/lxc/{CONTAINER}/config")
    path = "/etc/pve/lxc/141.conf"
    rules = "lxc.cgroup2.devices.allow: c 504:* rwm\nlxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind 0 0\n"
    host.put("/usr/bin/pmxcfs")
    host.programs["pct",] = (255, "", "ipcc_send_rec[1] failed: Connection refused\n")
    devices_boot.at_boot(host, rules=True)
    devices.record_if_right(host)
    assert majors_record.read(host)["nvidia-uvm"] == (509, 504)
    on_proxmox(host, path, rules)
    reconcile(host)
    assert host.read(path) == rules.replace("504", "509")
    assert majors_record.read(host)["nvidia-uvm"] == (509,)


def test_a_config_that_cant_be_written_keeps_no_other_container_on_its_old_rules(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    immutable = "/var/lib/lxc/aaa/config"  # chattr +i, as some people protect theirs
    host.put(immutable, CONFIG)
    real = host.rewrite

    def rewrite(path: str, before: bytes, after: bytes, keep_owner: bool) -> bool:
        if path == immutable:
            raise stop("lxc.config_not_written", path, "can't be written: Operation not permitted")
        return real(path, before, after, keep_owner)

    monkeypatch.setattr(host, "rewrite", rewrite)
    with pytest.raises(Stop) as caught:
        devices_boot.at_boot(host, rules=True)
    assert (caught.value.blocker.cause, caught.value.blocker.object) == ("lxc.config_not_written", immutable)
    assert "c 509:* rwm" in (host.read(CONFIG_PATH) or "")
    assert majors_record.read(host)["nvidia-uvm"] == (509, 504)


# --- Proxmox


def on_proxmox(host: FakeHost, path: str, text: str) -> None:
    """A node with one container."""
    host.put("/usr/bin/pmxcfs")
    host.put("/etc/pve/.members", '{"nodename": "node-a", "version": 0}')
    host.put(path, text)
    host.programs["pct",] = (0, "VMID       Status     Lock         Name\n141        stopped                 llm\n", "")


def test_a_proxmox_config_is_rewritten_in_its_main_section_only(host: FakeHost) -> None:
    path = "/etc/pve/lxc/141.conf"
    text = (
        "arch: amd64\nlxc.cgroup2.devices.allow: c 195:* rwm\nlxc.cgroup2.devices.allow: c 504:* rwm\n"
        "lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file\n"
        "[before]\nlxc.cgroup2.devices.allow: c 504:* rwm\n"
    )
    on_proxmox(host, path, text)
    work = reconcile(host)
    assert host.read(path) == text.replace("504", "509", 1)
    assert f"{path}:3 nvidia-uvm 504 -> 509 (504 belongs to aux now: closed)" in work.lines


def test_native_style_moves_a_proxmox_container_to_devn_after_its_rules_are_right(host: FakeHost) -> None:
    path = "/etc/pve/lxc/141.conf"
    mount = "lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file\n"
    on_proxmox(host, path, f"arch: amd64\nlxc.cgroup2.devices.allow: c 504:* rwm\n{mount}")
    host.programs["dpkg-query", "-W", "-f", "${Version}", "pve-container"] = (0, "6.1.10", "")
    host.node_modes["/dev/nvidia-uvm"] = 0o666
    wishes = Wishes(style="native")
    shown = devices.reconcile_host(host, HOST_NAME, RUN_ID, wishes, True)
    assert "504" in (host.read(path) or "")
    work = devices.reconcile_host(host, HOST_NAME, RUN_ID, wishes, False)
    assert shown.lines == work.lines
    text = host.read(path) or ""
    assert "dev0: /dev/nvidia-uvm,mode=0666\n" in text
    assert "lxc." not in text
    assert not devices.reconcile_host(host, HOST_NAME, RUN_ID, wishes, False).changed


# --- included files


def test_an_included_file_is_rewritten_once_for_all_who_share_it(host: FakeHost) -> None:
    shared = "/etc/lxc/gpu.conf"
    host.put(shared, "lxc.cgroup2.devices.allow = c 504:* rwm\n")
    mount = "lxc.mount.entry = /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file\n"
    for name in (CONTAINER, PLAIN):
        host.put(f"/var/lib/lxc/{name}/config", f"lxc.include = {shared}\n{mount}")
    before = host.snapshot()
    shown = reconcile(host, check=True)
    assert host.snapshot() == before
    work = reconcile(host)
    assert (shown.lines, shown.diffs) == (work.lines, work.diffs)
    assert host.read(shared) == "lxc.cgroup2.devices.allow = c 509:* rwm\n"
    assert [diff["before_header"] for diff in work.diffs] == [shared]
    assert not reconcile(host).changed


# --- restarts


def runs_as(host: FakeHost, pid: int, start: int = 5000) -> None:
    """The container's init as lxc-info and /proc show it."""
    host.programs["lxc-info",] = (0, f"{pid}\n", "")
    host.put(f"/proc/{pid}/stat", f"{pid} (python3 (x)) S 1 {pid} {pid} 0 -1 4194560" + " 0" * 12 + f" {start} 0 0\n")


def test_a_running_container_keeps_its_old_rules_until_somebody_consents(host: FakeHost) -> None:
    runs_as(host, 4711)
    work = reconcile(host)
    assert work.document["with_old_rules"] == [CONTAINER]
    assert any("lxc_devices_restart" in note for note in work.notes)
    again = reconcile(host)  # its config is right by now, its rules are still the old ones
    assert not again.changed
    assert again.document["with_old_rules"] == [CONTAINER]
    stops = host.ran("lxc-stop")
    restarted = devices.reconcile_host(host, HOST_NAME, RUN_ID, Wishes(restart=True), False)
    assert restarted.document["restarted"] == [CONTAINER]
    assert len(host.ran("lxc-stop")) == len(stops) + 1
    assert not host.exists(restarts.RECORD)


def test_a_container_that_was_restarted_since_has_its_new_rules(host: FakeHost) -> None:
    runs_as(host, 4711)
    reconcile(host)
    runs_as(host, 4711, start=9000)  # the same number, another process
    assert reconcile(host).document["with_old_rules"] == []
    assert not host.exists(restarts.RECORD)


def restart(host: FakeHost) -> devices.Work:
    return devices.reconcile_host(host, HOST_NAME, RUN_ID, Wishes(restart=True), False)


def test_a_restart_that_fails_at_its_stop_is_still_due(host: FakeHost) -> None:
    runs_as(host, 4711)
    host.stubborn = {CONTAINER}
    with pytest.raises(Stop):
        restart(host)
    assert reconcile(host).document["with_old_rules"] == [CONTAINER]


def test_a_container_that_a_restart_has_stopped_is_started_by_the_next_run(host: FakeHost) -> None:
    runs_as(host, 4711)
    host.broken = {CONTAINER}
    with pytest.raises(Stop) as caught:
        restart(host)
    assert caught.value.blocker.cause == "workload.not_back"
    assert reconcile(host).document["with_old_rules"] == [CONTAINER]
    assert CONTAINER not in host.running  # without the consent it is only said
    host.broken = set()
    stops = len(host.ran("lxc-stop"))
    assert restart(host).document["restarted"] == [CONTAINER]
    assert CONTAINER in host.running
    assert len(host.ran("lxc-stop")) == stops
    assert not host.exists(restarts.RECORD)


def test_where_nobody_says_who_runs_the_record_stays(host: FakeHost) -> None:
    runs_as(host, 4711)
    reconcile(host)
    host.programs["lxc-ls",] = (1, "", "lxc-ls: no such lxcpath")
    with pytest.raises(Stop):
        reconcile(host)
    assert host.exists(restarts.RECORD)


@pytest.mark.parametrize("check", [True, False])
def test_of_two_that_share_an_include_both_have_old_rules(host: FakeHost, check: bool) -> None:
    host.remove(CONFIG_PATH)
    host.put("/etc/lxc/gpu.conf", CONFIG)
    for name in ("one", "two"):
        host.put(f"/var/lib/lxc/{name}/config", "lxc.include = /etc/lxc/gpu.conf\n")
    host.running |= {"one", "two"}
    runs_as(host, 4711)
    assert reconcile(host, check=check).document["with_old_rules"] == ["one", "two"]


# --- at boot


def test_the_boot_unit_heals_rules_and_says_so(host: FakeHost) -> None:
    said = devices_boot.at_boot(host, rules=True)
    assert "nvidia-uvm 504 -> 509" in said
    assert "c 509:* rwm" in (host.read(CONFIG_PATH) or "")
    healed = devices_boot.healed(host)
    assert healed is not None
    assert healed["changes"][0]["severity"] == "security"
    assert devices_boot.at_boot(host, rules=True) == "nodes and rules are right"


def test_at_boot_quorum_comes_later_than_pmxcfs(host: FakeHost) -> None:
    path, members = "/etc/pve/lxc/141.conf", {"nodename": "node-a", "cluster": {"name": "lab", "quorate": 0}}
    on_proxmox(host, path, "lxc.cgroup2.devices.allow: c 504:* rwm\n")
    host.put("/etc/pve/.members", json.dumps(members))
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        members["cluster"] = {"name": "lab", "quorate": 1}
        host.put("/etc/pve/.members", json.dumps(members))

    host.sleep = sleep  # type: ignore[method-assign]
    assert f"{path}:1 nvidia-uvm 504 -> 509" in devices_boot.at_boot(host, rules=True)
    assert waited
    members["cluster"] = {"name": "lab", "quorate": 0}
    host.put("/etc/pve/.members", json.dumps(members))
    waited.clear()
    assert devices_boot.at_boot(host, rules=True) == "nodes and rules are right"
    assert not waited  # nothing to be written: nobody waits


def test_what_is_left_at_boot_is_said(host: FakeHost) -> None:
    host.remove(majors_record.RECORD)
    assert "507 -> 509: not done, presumed" in devices_boot.at_boot(host, rules=True)


def test_nodes_alone_where_that_is_all_that_is_asked_for(host: FakeHost) -> None:
    host.nodes.pop("/dev/nvidia-uvm")
    assert devices_boot.at_boot(host, rules=False) == "node /dev/nvidia-uvm made with 509:0"
    assert host.read(CONFIG_PATH) == CONFIG


def test_while_a_roll_holds_the_containers_off_the_rules_are_its_business(host: FakeHost) -> None:
    host.put("/var/lib/gpuhost/hold", "x")
    devices_boot.at_boot(host, rules=True)
    assert host.read(CONFIG_PATH) == CONFIG


def test_rules_that_are_only_presumed_are_never_touched_at_boot(host: FakeHost) -> None:
    host.remove(majors_record.RECORD)
    devices_boot.at_boot(host, rules=True)
    assert host.read(CONFIG_PATH) == CONFIG
    assert devices_boot.healed(host) is None


@pytest.mark.parametrize(("at_boot", "command"), [("reconcile", "devices --reconcile"), ("nodes", "devices")])
def test_the_unit_is_installed_once_and_says_what_it_does(host: FakeHost, at_boot: Any, command: str) -> None:
    program = "cHJvZ3JhbQ=="
    answer = step(host, "gpuhost_lxc_devices", at_boot=at_boot, program=program)
    assert f"gpuhost-devices.service installed: {at_boot}" in answer["lines"][0]
    text = host.read(devices_unit.UNIT_FILE) or ""
    assert f"ExecStart=/usr/bin/python3 /var/lib/gpuhost/gpuhost.pyz {command}\n" in text
    assert host.read(devices_unit.PROGRAM) == "program"
    assert devices_unit.installed(host) == at_boot
    assert not step(host, "gpuhost_lxc_devices", at_boot=at_boot, program=program)["changed"]
    newer = step(host, "gpuhost_lxc_devices", at_boot=at_boot, program="bmV3ZXI=")
    assert newer["lines"] == ["/var/lib/gpuhost/gpuhost.pyz brought up to date"]
    assert host.read(devices_unit.PROGRAM) == "newer"


def test_the_unit_goes_where_nothing_is_wanted(host: FakeHost) -> None:
    step(host, "gpuhost_lxc_devices", at_boot="nodes", program="cHJvZ3JhbQ==")
    answer = step(host, "gpuhost_lxc_devices", at_boot="nothing")
    assert answer["lines"] == ["gpuhost-devices.service removed"]
    assert devices_unit.installed(host) == "nothing"
    assert not host.path(devices_unit.LINK).is_symlink()


def test_check_mode_installs_no_unit(host: FakeHost) -> None:
    before = host.snapshot()
    assert step(host, "gpuhost_lxc_devices", check=True, at_boot="reconcile", program="cHJvZ3JhbQ==")["changed"]
    assert host.snapshot() == before


# --- the host's nodes


@pytest.mark.parametrize(
    ("params", "owner"),
    [
        ("", host_nodes.Owner()),
        (
            "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\n",
            host_nodes.Owner(0o660, 0, 44),
        ),
        ("ModifyDeviceFiles: 0\nDeviceFileMode: 438\n", host_nodes.Owner(modify=False)),
        ("DeviceFileMode: x\n", host_nodes.Owner()),
    ],
)
def test_mode_and_owner_of_the_drivers_parameters(params: str, owner: host_nodes.Owner) -> None:
    assert host_nodes.owner_of_nodes(params) == owner


def test_a_host_that_makes_its_nodes_itself_is_left_alone(host: FakeHost) -> None:
    host.put(host_nodes.PARAMS, "ModifyDeviceFiles: 0\n")
    host.nodes = {}
    reconcile(host)
    assert not any("nvidia-uvm" in path for path in host.nodes)


def test_the_mig_capabilities_have_the_drivers_own_modes(host: FakeHost) -> None:
    for name, minor, mode in (("mig/config", 1, 256), ("mig/monitor", 2, 292)):
        text = f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"
        host.put(f"{host_nodes.CAPABILITIES}/{name}", text)
    reconcile(host)
    assert host.nodes["/dev/nvidia-caps/nvidia-cap1"] == (237, 1)
    assert (host.node_modes["/dev/nvidia-caps/nvidia-cap1"], host.node_modes["/dev/nvidia-caps/nvidia-cap2"]) == (
        0o400,
        0o444,
    )


def test_a_mounted_node_of_a_gpu_that_is_not_there_is_not_made(host: FakeHost) -> None:
    mount = "lxc.mount.entry = /dev/nvidia7 dev/nvidia7 none bind,optional,create=file\n"
    host.put(CONFIG_PATH, CONFIG + mount)
    reconcile(host)
    assert "/dev/nvidia7" not in host.nodes


def test_a_driver_that_is_not_loaded_is_named_in_check_mode(host: FakeHost) -> None:
    text = "".join(line for line in proc_devices(NEW).splitlines(True) if "nvidia-uvm" not in line)
    host.put("/proc/devices", text)
    host.calls.clear()
    work = reconcile(host, check=True)
    assert "module nvidia-uvm: not loaded, a run loads it: its nodes and rules are judged then" in work.lines
    assert not host.ran("modprobe")
    assert not host.ran("nvidia-modprobe")


def test_what_a_machine_left_that_died_in_a_rewrite_goes_with_the_next_run(host: FakeHost) -> None:
    reconcile(host)
    left = f"{CONFIG_PATH}.tmp.gpuhost"
    host.put(left, "half a config")
    reconcile(host, check=True)
    assert host.exists(left)
    assert not reconcile(host).changed
    assert not host.exists(left)


def test_mig_instances_are_seen(host: FakeHost) -> None:
    assert not host_nodes.has_mig_instances(host)
    host.put(f"{host_nodes.CAPABILITIES}/gpu0/mig/gi3/access", "DeviceFileMinor: 30\n")
    assert host_nodes.has_mig_instances(host)
