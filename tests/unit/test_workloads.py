"""Containers: found, remembered before the first stop, held off, handed back."""

from __future__ import annotations

import base64
import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.plugins.action import ActionBase
from fake_host import FakeHost, Killed
from fake_roll import REPOSITORY, debian_host, power_cycle, prepared, roll_of, step
from fake_tree import CONTAINER, NEW, PLAIN, booted

from gpuhost import check_runner, return_service, workloads
from gpuhost.errors import Stop
from gpuhost.rollfile import save
from gpuhost.workloads import HOLD_DROP_INS, HOLD_FILE


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return debian_host(tmp_path)


def drain(host: FakeHost, **given: object) -> dict[str, object]:
    return step(host, "gpuhost_workload", state="drained", **given)


def promoted(host: FakeHost) -> None:
    """As after a trial that was good: the new kernel runs and boots by itself."""
    booted(host, NEW)
    save(host, replace(roll_of(host), promoted_at="2026-11-30T02:00:00Z"))


def hand_back(host: FakeHost, **given: object) -> dict[str, object]:
    if "stage" not in given:
        promoted(host)
    return step(host, "gpuhost_workload", state="handed_back", sentence="passed", **given)


def test_survey(host: FakeHost) -> None:
    found = {item["name"]: item for item in workloads.survey(host)}
    gpu = found[CONTAINER]
    assert (gpu["running"], gpu["autostart"], gpu["order"], gpu["gpu"]) == (True, True, 2, True)
    assert gpu["config_path"] == f"/var/lib/lxc/{CONTAINER}/config"
    assert (found[PLAIN]["autostart"], found[PLAIN]["gpu"]) == (False, False)


@pytest.mark.parametrize("source", ["/dev/net/tun", "/dev/fuse", "/dev/kvm", "/dev/dri"])
def test_another_device_does_not_make_a_gpu_container(host: FakeHost, source: str) -> None:
    host.put(f"/var/lib/lxc/{PLAIN}/config", f"lxc.mount.entry = {source} {source[1:]} none bind,create=file\n")
    assert [item["name"] for item in workloads.survey(host) if item["gpu"]] == [CONTAINER]


def test_without_lxc_nothing_runs(host: FakeHost) -> None:
    host.programs["lxc-ls",] = (127, "", "lxc-ls: No such file or directory")
    assert workloads.running_containers(host) == set()


@pytest.mark.parametrize("rc", [1, 124])
def test_lxc_that_does_not_answer_is_never_nothing_runs(host: FakeHost, rc: int) -> None:
    host.programs["lxc-ls",] = (rc, "", "lxc-ls: killed after 60 s")
    with pytest.raises(Stop) as caught:
        workloads.running_containers(host)
    assert "killed after" in caught.value.blocker.observed


# --- what is in the way


def _process(host: FakeHost, pid: int, name: str, cgroup: str, node: str = "/dev/nvidia0") -> None:
    host.put(f"/proc/{pid}/comm", name + "\n")
    host.put(f"/proc/{pid}/cgroup", f"0::{cgroup}\n")
    host.path(f"/proc/{pid}/fd").mkdir(parents=True)
    host.path(f"/proc/{pid}/fd/5").symlink_to(node)


@pytest.mark.parametrize(
    ("name", "cgroup", "blocks"),
    [
        ("python3", f"/lxc.payload.{CONTAINER}/system.slice", False),
        ("python3", f"/lxc/{CONTAINER}", False),
        ("vllm", "/user.slice/user-0.slice/session-1.scope", True),
        ("dockerd-child", "/system.slice/docker-0123.scope", True),
        ("nvidia-persiste", "/system.slice/nvidia-persistenced.service", False),
        ("nv-fabricmanage", "/system.slice/nvidia-fabricmanager.service", False),
        ("nv-hostengine", "/system.slice/nvidia-dcgm.service", False),
        ("server", "/system.slice/lxc.service", True),
        ("server", "/system.slice/lxcfs.service", True),
    ],
)
def test_a_gpu_process_outside_of_any_container_blocks(host: FakeHost, name: str, cgroup: str, blocks: bool) -> None:
    _process(host, 4242, name, cgroup)
    found = workloads.in_the_way(host)
    assert [item.cause for item in found] == (["workload.blocks"] if blocks else [])
    if blocks:
        assert found[0].object == f"process 4242 ({name})"


@pytest.mark.parametrize(
    ("name", "cgroup", "blocks"),
    [
        ("qemu-system-x86", "/machine.slice/machine-qemu.scope", True),
        ("kvm", "/qemu.slice/100.scope", True),
        ("containerd-shim", "/system.slice/containerd.service", True),
        ("conmon", "/machine.slice/libpod-conmon-0123.scope", True),
        ("containerd-shim", f"/lxc.payload.{CONTAINER}/system.slice/containerd.service", False),
        ("containerd", "/system.slice/containerd.service", False),
    ],
)
def test_guests_of_another_kind_block_also_without_a_gpu(host: FakeHost, name: str, cgroup: str, blocks: bool) -> None:
    _process(host, 4242, name, cgroup, "/dev/null")
    assert [item.cause for item in workloads.in_the_way(host)] == (["workload.blocks"] if blocks else [])


def test_a_process_without_a_gpu_does_not_block(host: FakeHost) -> None:
    _process(host, 4242, "bash", "/user.slice", "/dev/pts/0")
    assert workloads.in_the_way(host) == []


@pytest.mark.parametrize("path", ["/etc/pve/lxc/101.conf", "/etc/pve/qemu-server/100.conf"])
def test_guests_of_proxmox_block(host: FakeHost, path: str) -> None:
    host.put(path, "x")
    assert [item.object for item in workloads.in_the_way(host)] == ["/etc/pve"]


def test_what_blocks_stops_the_drain_before_anything_is_stopped(host: FakeHost) -> None:
    prepared(host)
    _process(host, 4242, "vllm", "/user.slice")
    with pytest.raises(Stop) as caught:
        drain(host)
    assert caught.value.blocker.cause == "workload.blocks"
    assert host.running == {CONTAINER, PLAIN}
    assert not host.exists(HOLD_FILE)


# --- drain


def test_drain_remembers_holds_and_stops_last_started_first(host: FakeHost) -> None:
    prepared(host)
    assert drain(host)["lines"] == [f"container {CONTAINER} stopped", f"container {PLAIN} stopped"]
    assert host.running == set()
    assert {item.name: (item.was_running, item.state) for item in roll_of(host).workloads} == {
        PLAIN: (True, "stopped"),
        CONTAINER: (True, "stopped"),
    }
    assert host.exists(HOLD_FILE)
    for path in HOLD_DROP_INS:
        assert "ConditionPathExists=!/var/lib/gpuhost/hold" in (host.read(path) or "")
    assert host.ran("systemctl", "daemon-reload")
    assert workloads.held_in_this_boot(host)
    assert all("--nokill" in call for call in host.ran("lxc-stop"))


def test_draining_twice_is_once(host: FakeHost) -> None:
    prepared(host)
    drain(host)
    assert not drain(host)["changed"]
    assert {item.was_running for item in roll_of(host).workloads} == {True}


@pytest.mark.parametrize("effect", range(1, 8))
def test_a_kill_during_the_drain_forgets_nothing(tmp_path: Path, effect: int) -> None:
    host = debian_host(tmp_path)
    prepared(host)
    host.effects, host.die_after = [], effect
    with pytest.raises(Killed):
        drain(host)
    host.die_after = None
    if host.running != {CONTAINER, PLAIN}:  # the first stop came after the memory and the hold
        assert {item.name for item in roll_of(host).workloads if item.was_running} == {CONTAINER, PLAIN}
        assert host.exists(HOLD_FILE)
    drain(host)
    assert host.running == set()
    hand_back(host)
    assert host.running == {CONTAINER, PLAIN}
    assert not host.exists(HOLD_FILE)


def test_one_that_does_not_stop_fails_the_drain_and_the_others_run_again(host: FakeHost) -> None:
    prepared(host)
    host.stubborn = {PLAIN}  # stopped last
    with pytest.raises(Stop) as caught:
        drain(host, timeout_s=7)
    blocker = caught.value.blocker
    assert (blocker.cause, blocker.object) == ("workload.not_stopped", f"container {PLAIN}")
    assert "still runs after 7 s" in blocker.observed
    assert host.running == {CONTAINER, PLAIN}
    assert not host.exists(HOLD_FILE)
    assert not return_service.is_installed(host)


def test_what_was_started_since_a_failed_drain_is_remembered_too(host: FakeHost) -> None:
    host.running = {CONTAINER}
    prepared(host)
    host.stubborn = {CONTAINER}
    with pytest.raises(Stop):
        drain(host)
    host.stubborn = set()
    host.running.add(PLAIN)
    host.put("/var/lib/lxc/new/config", "lxc.uts.name = new\n")
    host.running.add("new")
    drain(host)
    assert host.running == set()
    hand_back(host)
    assert host.running == {CONTAINER, PLAIN, "new"}


def test_check_mode_stops_nothing_and_writes_nothing(host: FakeHost) -> None:
    prepared(host)
    before = host.snapshot()
    answer = drain(host, check=True)
    assert answer["lines"] == [f"container {name} would be stopped" for name in (PLAIN, CONTAINER)]
    assert host.running == {CONTAINER, PLAIN}
    assert host.snapshot() == before


# --- hand back


def test_hand_back_starts_in_order_what_ran_and_closes_the_roll(host: FakeHost) -> None:
    host.running = {CONTAINER}
    prepared(host)
    drain(host)
    host.calls = []
    answer = hand_back(host)
    assert host.running == {CONTAINER}  # the one that was stopped before stays stopped
    assert answer["lines"] == [
        f"container {CONTAINER} started",
        "autostart hold lifted",
        "return service removed",
    ]
    roll = roll_of(host)
    assert (roll.state, roll.result, roll.sentence) == ("closed", "good", "passed")
    assert {item.name: item.state for item in roll.workloads} == {PLAIN: "stopped", CONTAINER: "back"}
    outcome = answer["gpuhost_documents"][0]  # type: ignore[index]
    assert (outcome["state"], outcome["exit_status"]) == ("good", 0)


@pytest.mark.parametrize("broken", [PLAIN, CONTAINER])
def test_one_that_does_not_start_keeps_none_of_the_others_down(host: FakeHost, broken: str) -> None:
    prepared(host)
    drain(host)
    host.broken = {broken}
    with pytest.raises(Stop) as caught:
        hand_back(host)
    blocker = caught.value.blocker
    assert (blocker.cause, blocker.object) == ("workload.not_back", f"container {broken}")
    assert "failed to start" in blocker.observed
    assert host.running == {CONTAINER, PLAIN} - {broken}
    assert not host.exists(HOLD_FILE)
    assert roll_of(host).is_open
    host.broken = set()
    hand_back(host)
    assert host.running == {CONTAINER, PLAIN}
    assert not roll_of(host).is_open


def test_a_leftover_of_the_hold_is_lifted(host: FakeHost) -> None:
    prepared(host)
    drain(host)
    host.remove(HOLD_FILE)  # the power went between the two
    hand_back(host)
    assert [path for path in HOLD_DROP_INS if host.exists(path)] == []


def test_a_hold_is_known_to_be_of_an_earlier_boot(host: FakeHost) -> None:
    prepared(host)
    drain(host)
    power_cycle(host)
    assert workloads.is_held(host)
    assert not workloads.held_in_this_boot(host)
    assert drain(host)["lines"] == []
    assert workloads.held_in_this_boot(host)


def test_the_return_service_is_there_before_the_hold_and_goes_with_the_roll(host: FakeHost) -> None:
    prepared(host)
    host.effects = []
    drain(host)
    service, held = f"link {return_service.LINK}", f"write {HOLD_DROP_INS[0]}"
    assert host.effects.index(service) < host.effects.index(held)
    promoted(host)
    assert return_service.is_installed(host)
    hand_back(host)
    assert not return_service.is_installed(host)


def test_program_and_checks_travel_with_the_drain(host: FakeHost) -> None:
    prepared(host)
    drain(host, program=base64.b64encode(b"program").decode(), archive=base64.b64encode(b"checks").decode())
    assert host.read(return_service.PROGRAM) == "program"
    assert host.read(check_runner.ARCHIVE) == "checks"


@pytest.mark.parametrize(
    ("name", "given", "sent"),
    [
        ("gpuhost_workload", {"state": "drained"}, True),
        ("gpuhost_workload", {"state": "handed_back"}, False),
        ("gpuhost_boot_trial", {"action": "boot"}, True),
        ("gpuhost_boot_trial", {"action": "promote"}, False),
    ],
)
def test_the_action_plugin_sends_both_along_where_they_are_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, given: dict[str, str], sent: bool
) -> None:
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "action_plugins" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(ActionBase, "run", lambda *_: {})
    action = object.__new__(module.ActionModule)
    action._task = SimpleNamespace(args=given)
    action._execute_module = lambda module_args, task_vars: module_args
    arguments = action.run(None, {})
    assert {"program", "archive"} <= set(arguments) if sent else arguments == given
    if sent:
        program = tmp_path / "gpuhost.pyz"
        program.write_bytes(base64.b64decode(arguments["program"]))
        result = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, cwd="/")
        assert result.stderr == "usage: gpuhost.pyz status [--json] | return\n"


# --- the end of a roll


def test_a_host_that_was_not_promoted_is_not_handed_back_as_good(host: FakeHost) -> None:
    """Drain and hand back without a trial: rollback is the way out, and it is named."""
    prepared(host)
    drain(host)
    with pytest.raises(Stop) as stopped:
        step(host, "gpuhost_workload", state="handed_back", sentence="handed back")
    assert stopped.value.blocker.cause == "roll.not_promoted"
    assert "gpuhost rollback" in stopped.value.blocker.sentence
    assert roll_of(host).is_open


def test_a_failure_before_the_trial_leaves_the_roll_open(host: FakeHost) -> None:
    prepared(host)
    answer = step(host, "gpuhost_boot_trial", action="come_back", failed=True, cause="workload.not_stopped")
    outcome = answer["gpuhost_documents"][0]
    assert (outcome["state"], outcome["cause"], outcome["exit_status"]) == ("stopped", "workload.not_stopped", 5)
    assert roll_of(host).is_open


def test_a_failure_without_a_cause_leaves_it_open_too(host: FakeHost) -> None:
    prepared(host)
    step(host, "gpuhost_boot_trial", action="come_back", failed=True)
    assert roll_of(host).is_open


def test_a_choice_before_the_trial_closes_it(host: FakeHost) -> None:
    prepared(host)
    step(host, "gpuhost_boot_trial", action="come_back")
    assert (roll_of(host).state, roll_of(host).result) == ("closed", "rolled_back")
