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
from fake_host import Answer, FakeHost, Killed
from fake_pct import FakePct, make_proxmox
from fake_roll import REPOSITORY, debian_host, plan_of, power_cycle, prepared, roll_of, step
from fake_tree import CONTAINER, NEW, PLAIN, booted

from gpuhost import check_runner, containers, return_service, workloads
from gpuhost.errors import Stop
from gpuhost.rollfile import parse, render, save
from gpuhost.workloads import HOLD_DROP_INS, HOLD_FILE, PVE_GUESTS, PVE_HOLD_DROP_IN, activate_drop_in


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
    assert containers.running(host) == set()


@pytest.mark.parametrize("rc", [1, 124])
def test_lxc_that_does_not_answer_is_never_nothing_runs(host: FakeHost, rc: int) -> None:
    host.programs["lxc-ls",] = (rc, "", "lxc-ls: killed after 60 s")
    with pytest.raises(Stop) as caught:
        containers.running(host)
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
        instances = path.endswith("/lxc@.service.d/50-gpuhost-hold.conf")
        assert f"ConditionPathExists={'|' if instances else ''}!/var/lib/gpuhost/hold" in (host.read(path) or "")
    assert not host.exists(PVE_HOLD_DROP_IN)
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
        assert result.stderr.startswith("usage: gpuhost.pyz status [--json] | return")


# --- started by lxc@NAME.service


def with_unit(host: FakeHost) -> None:
    """PLAIN runs as its unit, which is not enabled; the drop-in is obeyed as systemd does it."""
    host.put("/lib/systemd/system/lxc@.service", "[Service]\n")
    unit = f"lxc@{PLAIN}.service"

    def systemctl(there: FakeHost, argv: list[str]) -> Answer:
        if argv[1] == "list-units":
            return 0, f"{unit} loaded active running LXC Container: {PLAIN}\n" if PLAIN in there.running else "", ""
        flag = there.exists(f"/run/gpuhost/start/{PLAIN}")
        if argv[1:] == ["start", unit] and (flag or not there.exists(HOLD_FILE)):
            there.running.add(PLAIN)
        return 0, "running\n" if argv[1] == "is-system-running" else "", ""

    host.programs[("systemctl",)] = systemctl


def test_what_its_unit_ran_is_its_units_again(host: FakeHost) -> None:
    with_unit(host)
    prepared(host)
    drain(host)
    assert {item.name: item.kind for item in roll_of(host).workloads} == {PLAIN: "lxc@", CONTAINER: "lxc"}
    assert {item["name"]: item["engine"] for item in workloads.survey(host)}[PLAIN] == "lxc"  # stopped, not enabled
    host.calls = []
    assert workloads.start_container(host, PLAIN)  # the gate, under the hold
    assert host.ran("systemctl", "start") == [["systemctl", "start", f"lxc@{PLAIN}.service"]]
    host.running = set()
    host.calls = []
    hand_back(host)
    assert ["systemctl", "start", f"lxc@{PLAIN}.service"] in host.calls
    assert [call[2] for call in host.ran("lxc-start")] == [CONTAINER]
    assert host.running == {CONTAINER, PLAIN}


def test_a_roll_file_of_an_older_version_has_one_kind(host: FakeHost) -> None:
    prepared(host)
    drain(host)
    data = render(roll_of(host))
    assert {item.kind for item in parse(data).workloads} == {"lxc"}
    save(host, parse(data))
    hand_back(host)
    assert host.running == {CONTAINER, PLAIN}


# --- Proxmox


@pytest.fixture
def pve(host: FakeHost) -> FakePct:
    """Three containers of Proxmox beside the plain ones, which nobody has there; 104 does not run."""
    pct = make_proxmox(host)
    pct.add(host, 101)
    pct.add(host, 102, "onboot: 1\nstartup: order=1,up=20\n")
    pct.add(host, 103, "startup: order=2,up=10\n")
    pct.add(host, 104, "onboot: 1\n", running=False)
    return pct


def test_a_roll_of_proxmox_containers(host: FakeHost, pve: FakePct, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(host)
    drain(host)
    assert (pve.running, host.running) == (set(), set())
    assert pve.stopped == ["101", "103", "102"]  # last started first
    assert [(item.kind, item.name) for item in roll_of(host).workloads][2:] == [
        ("pve", "102"), ("pve", "103"), ("pve", "101"), ("pve", "104"),
    ]  # fmt: skip
    assert "ConditionPathExists=!/var/lib/gpuhost/hold" in (host.read(PVE_HOLD_DROP_IN) or "")
    assert workloads.start_container(host, "103")  # the gate
    waited: list[float] = []
    monkeypatch.setattr(host, "sleep", waited.append)
    host.programs["lxc-info",] = (0, "1000\n", "")
    pve.started = []
    answer = hand_back(host)
    assert pve.started == ["102", "101"]
    assert pve.running == {"101", "102", "103"}
    assert [seconds for seconds in waited if seconds] == [20]  # none after the last, none for what runs already
    assert "container 102 started" in answer["lines"]  # type: ignore[operator]
    assert not host.exists(PVE_HOLD_DROP_IN)
    assert not workloads.is_held(host)
    assert not roll_of(host).is_open


def test_one_of_proxmox_that_does_not_start_keeps_none_down(host: FakeHost, pve: FakePct) -> None:
    prepared(host)
    drain(host)
    pve.broken = {"102"}
    with pytest.raises(Stop) as caught:
        hand_back(host)
    assert (caught.value.blocker.cause, caught.value.blocker.object) == ("workload.not_back", "container 102")
    assert (pve.running, host.running) == ({"101", "103"}, {CONTAINER, PLAIN})
    assert roll_of(host).is_open


@pytest.mark.parametrize("effect", range(1, 14))
def test_a_kill_during_the_drain_of_proxmox_forgets_nothing(tmp_path: Path, effect: int) -> None:
    host = debian_host(tmp_path)
    pct = make_proxmox(host)
    pct.add(host, 101)
    pct.add(host, 102)
    prepared(host)
    host.effects, host.die_after = [], effect
    with pytest.raises(Killed):
        drain(host)
    host.die_after = None
    drain(host)
    assert (pct.running, host.running) == (set(), set())
    hand_back(host)
    assert (pct.running, host.running) == ({"101", "102"}, {CONTAINER, PLAIN})


def test_a_node_without_quorum_keeps_the_plain_ones_not_down(host: FakeHost, pve: FakePct) -> None:
    prepared(host)
    drain(host)
    host.remove("/etc/pve/.members")  # at boot, before pve-cluster.service
    with pytest.raises(Stop) as caught:
        hand_back(host)
    assert caught.value.blocker.observed
    assert host.running == {CONTAINER, PLAIN}
    assert pve.running == set()
    make_proxmox(host).running = pve.running
    hand_back(host)
    assert not roll_of(host).is_open


def test_pve_guests_becomes_active_without_starting_a_guest(host: FakeHost, pve: FakePct) -> None:
    seen: list[str] = []

    def systemctl(there: FakeHost, argv: list[str]) -> Answer:
        if argv[1:] == ["start", "pve-guests.service"]:
            seen.append(there.read(activate_drop_in(PVE_GUESTS)) or "")
        return (3 if argv[1] == "is-active" else 0), "running\n" if argv[1] == "is-system-running" else "", ""

    host.programs[("systemctl",)] = systemctl
    prepared(host)
    drain(host)
    host.calls = []
    hand_back(host)
    (text,) = seen
    assert "RefuseManualStart=no\n" in text
    assert "ExecStart=\nExecStart=/bin/true\n" in text
    assert "ExecStop" not in text  # it is what a shutdown needs
    assert not host.exists(activate_drop_in(PVE_GUESTS))
    assert host.ran("systemctl")[-1] == ["systemctl", "daemon-reload"]
    assert "104" not in pve.running  # onboot, and stopped before the roll


def test_lxc_service_becomes_active_without_starting_a_container(host: FakeHost) -> None:
    """Autostart would start those too that were stopped before the roll."""
    seen: list[str] = []

    def systemctl(there: FakeHost, argv: list[str]) -> Answer:
        if argv[1:] == ["start", "lxc.service"]:
            seen.append(there.read(activate_drop_in("lxc.service")) or "")
        return (3 if argv[1] == "is-active" else 0), "running\n" if argv[1] == "is-system-running" else "", ""

    host.programs[("systemctl",)] = systemctl
    prepared(host)
    drain(host)
    hand_back(host)
    (text,) = seen
    assert text.endswith("[Service]\nExecStart=\nExecStart=/bin/true\n")
    assert not host.exists(activate_drop_in("lxc.service"))


@pytest.mark.parametrize("verb", ["is-enabled", "is-active"])
def test_pve_guests_is_left_alone_where_there_is_nothing_to_do(host: FakeHost, pve: FakePct, verb: str) -> None:
    unit = "pve-guests.service"
    host.programs[("systemctl", verb, unit)] = (1, "disabled\n", "") if verb == "is-enabled" else (0, "active\n", "")
    prepared(host)
    drain(host)
    hand_back(host)
    assert host.ran("systemctl", "start", "pve-guests.service") == []


def test_a_failed_drain_of_proxmox_starts_again(host: FakeHost, pve: FakePct) -> None:
    prepared(host)
    pve.stubborn = {"102"}  # stopped last of Proxmox's
    with pytest.raises(Stop) as caught:
        drain(host, timeout_s=7)
    assert caught.value.blocker.object == "container 102"
    assert (pve.running, host.running) == ({"101", "102", "103"}, {CONTAINER, PLAIN})
    assert not workloads.is_held(host)


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


def test_what_a_failed_drain_cant_start_again_is_said_and_not_forgotten(tmp_path: Path) -> None:
    host = debian_host(tmp_path)
    for name, order in (("first", 1), ("last", 9)):
        host.put(f"/var/lib/lxc/{name}/config", f"lxc.uts.name = {name}\nlxc.start.order = {order}\n")
    host.running = {"first", "last"}
    host.stubborn, host.broken = {"first"}, {"last"}
    step(host, "gpuhost_boot_trial", action="hold", plan=plan_of(host))
    with pytest.raises(Stop) as caught:
        step(host, "gpuhost_workload", state="drained")
    assert caught.value.blocker.cause == "workload.not_stopped"
    assert "does not run again: last" in caught.value.blocker.observed
    host.stubborn, host.broken = set(), set()
    step(host, "gpuhost_workload", state="drained")
    assert {item.name for item in roll_of(host).workloads if item.was_running} == {"first", "last"}
