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

from gpuhost import devices
from gpuhost.errors import Stop

CONFIG_PATH = f"/var/lib/lxc/{CONTAINER}/config"
BEFORE = {"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 504, "nvidia-caps": 507}


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """On the new kernel, with the old kernel's rules in the container and on record."""
    made = debian_host(tmp_path)
    booted(made, NEW)
    devices.write_record(made, BEFORE)
    return made


def reconcile(host: FakeHost, *, check: bool = False, presumed: Any = "report") -> devices.Work:
    return devices.reconcile_host(host, HOST_NAME, RUN_ID, presumed, check)


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
    host.remove(devices.RECORD)
    reconcile(host)
    assert "c 504:* rwm" in (host.read(CONFIG_PATH) or "")


def test_a_config_that_somebody_else_changes_meanwhile_is_not_overwritten(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = devices.reconcile

    def slow(*args: Any, **options: Any) -> Any:
        found = real(*args, **options)
        if args[0] == CONFIG.encode():
            host.put(CONFIG_PATH, CONFIG + "# by hand\n")
        return found

    monkeypatch.setattr(devices, "reconcile", slow)
    with pytest.raises(Stop) as caught:
        reconcile(host)
    assert caught.value.blocker.cause == "lxc.config_changed"
    assert host.read(CONFIG_PATH) == CONFIG + "# by hand\n"
    assert devices.read_record(host) == BEFORE  # the record still knows the old numbers


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
    assert devices.read_record(host) == BEFORE
    assert json.loads(host.read(devices.RECORD) or "")["majors"] == BEFORE


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"majors": 5}', '{"majors": {"nvidia-uvm": "x"}}'])
def test_a_broken_record_is_a_stop_and_never_empty(host: FakeHost, text: str) -> None:
    host.put(devices.RECORD, text)
    with pytest.raises(Stop) as caught:
        reconcile(host)
    assert caught.value.blocker.object == devices.RECORD


def test_no_majors_are_not_recorded(host: FakeHost) -> None:
    devices.write_record(host, {})
    assert devices.read_record(host) == BEFORE


def test_a_driver_that_is_not_loaded_now_keeps_its_old_number(host: FakeHost) -> None:
    text = "".join(line for line in proc_devices(NEW).splitlines(True) if "nvidia-uvm" not in line)
    host.put("/proc/devices", text)
    reconcile(host)
    assert devices.read_record(host)["nvidia-uvm"] == 504
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
