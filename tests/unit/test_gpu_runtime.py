"""gpu_runtime: what it finds, what it sets, that a second run sets nothing, and what a reboot loses.

The machine is tests/unit/fake_gpus.py: captured values, synthetic programs.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_gpus import FIRST, FIXTURES, SECOND, Machine
from fake_host import FakeHost
from fake_roll import step
from fake_tree import CONTAINER

from gpuhost import gpu_runtime, gpu_state_boot, gpu_state_unit, memlock, persistenced, tuning, unit_state
from gpuhost.errors import Stop
from gpuhost.gpu_runtime import Hmm
from gpuhost.persistenced import DROP_IN, UNIT
from gpuhost.return_service import PROGRAM
from gpuhost.return_service import UNIT as RETURN_UNIT

MODULE = "gpuhost_gpu_runtime"
TWO = ["3g.71gb", "3g.71gb"]
DECLARED: dict[str, Any] = {
    "power_limit_w": 500.0,
    "lock_clocks_mhz": [900, 1500],
    "application_clocks_mhz": [3201, 1500],
}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Debian's unit, enabled and running; the mode on; nothing declared."""
    made = Machine(FakeHost(tmp_path))
    made.unit("debian", enabled=True, active=True)
    return made


def tune(machine: Machine, *, check: bool = False, **given: Any) -> dict[str, Any]:
    machine.host.calls.clear()
    return step(machine.host, MODULE, check=check, **given)


def findings(answer: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Id to severity and what was observed; each id once."""
    (document,) = answer["gpuhost_documents"]
    found = {item["id"]: (item["severity"], item["observed"]) for item in document["findings"]}
    assert len(found) == len(document["findings"])
    assert document["concern"] == "gpu_runtime"
    return found


def severities(answer: dict[str, Any], *wanted: str) -> set[str]:
    return {name for name, (severity, _) in findings(answer).items() if severity in wanted}


def config(machine: Machine, text: str = "") -> str:
    path = f"/var/lib/lxc/{CONTAINER}/config"
    machine.host.put(path, text or "lxc.uts.name = c1\nlxc.mount.entry = /dev/nvidia0 dev/nvidia0 none bind 0 0\n")
    return path


# --- the whole


def test_a_second_run_sets_nothing(machine: Machine) -> None:
    machine.gpus[1]["persistence_mode"] = "Disabled"
    machine.instances[0] = []
    assert tune(machine, **DECLARED)["changed"]
    before = machine.host.snapshot()
    again = tune(machine, **DECLARED)
    assert (again["changed"], again["lines"], again["diff"]) == (False, [], [])
    assert machine.host.snapshot() == before
    program = "gpuhost-gpu-state.service is not there, or not as declared"  # no archive was sent along
    assert findings(again)["gpu.boot_unit"] == ("p0_runtime", program)
    assert severities(again, "p0_runtime", "p1_reboot") == {"gpu.boot_unit"}


def test_check_mode_says_the_same_and_sets_nothing(machine: Machine) -> None:
    machine.host.put("/lib/systemd/system/lxc.service")
    before = machine.host.snapshot()
    shown = tune(machine, check=True, **DECLARED)
    assert machine.host.snapshot() == before
    assert [gpu["power.limit"] for gpu in machine.gpus] == ["700.00", "700.00"]
    assert tune(machine, **DECLARED)["lines"] == shown["lines"]


def test_revert_gives_back_what_was_there(machine: Machine) -> None:
    machine.containers()
    machine.unit("ubuntu")
    machine.enabled.clear()
    machine.active.clear()
    machine.host.put("/sys/class/infiniband/mlx5_0/node_type", "1: CA\n")
    machine.host.put("/sys/module/nvidia/taint", "POE\n")
    machine.host.put("/lib/modules/6.8.12-4-pve/updates/dkms/nvidia-peermem.ko.zst")
    path = config(machine)
    before, gpus = machine.host.snapshot(), [dict(gpu) for gpu in machine.gpus]
    assert tune(machine, memlock="apply", **DECLARED)["changed"]
    assert memlock.KEY in (machine.host.read(path) or "")
    assert all(item.status == "written" for item in tuning.revert(machine.host, False))
    assert machine.gpus == gpus
    assert (machine.locked, machine.enabled, machine.active) == ({}, set(), set())
    for name in ("/run/gpuhost/gpu_locked_clocks.json", "/var/lib/gpuhost/gpu_state.json"):
        machine.host.remove(name)
    after = machine.host.snapshot()
    assert {k: v for k, v in after.items() if k in before or v[1]} == before


def test_without_a_gpu_nothing_is_asked_and_nothing_applies(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.put("/var/lib/gpuhost/lock")
    answer = step(host, MODULE)
    assert findings(answer) == {"gpu.not_answering": ("info", "not applicable: no NVIDIA GPU")}
    assert not answer["changed"]
    assert host.calls == []


def test_a_gpu_without_its_driver(machine: Machine) -> None:
    for name in ("taint",):
        machine.host.remove(f"/sys/module/nvidia/{name}")
    machine.host.remove_empty_folder("/sys/module/nvidia")
    answer = tune(machine)
    assert findings(answer)["gpu.not_answering"][0] == "p0_runtime"
    assert machine.host.ran("nvidia-smi") == []


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("gone", ["/sys/module/nvidia", "/sys/bus/pci/devices"])
def test_without_driver_or_gpu_no_program_is_brought(machine: Machine, gone: str, check: bool) -> None:
    machine.host.remove(f"/lib/systemd/system/{UNIT}")
    shutil.rmtree(machine.host.path(gone))
    answer = tune(machine, check=check, program="cHJvZ3JhbQ==", power_limit_w=500.0)
    assert (answer["changed"], answer["lines"]) == (False, [])
    assert not machine.host.exists(PROGRAM)


def give_away(machine: Machine, *addresses: str) -> None:
    machine.host.path("/sys/bus/pci/drivers/vfio-pci").mkdir(parents=True)
    for address in addresses:
        link = machine.host.path(f"/sys/bus/pci/devices/{address}/driver")
        link.symlink_to(machine.host.path("/sys/bus/pci/drivers/vfio-pci"))


@pytest.mark.parametrize("loaded", [True, False])
def test_gpus_of_virtual_machines_are_nobody_elses(machine: Machine, loaded: bool) -> None:
    give_away(machine, FIRST, SECOND)
    if not loaded:
        shutil.rmtree(machine.host.path("/sys/module/nvidia"))
    text = "not applicable: no NVIDIA GPU that the host itself uses (2 bound to vfio-pci)"
    assert findings(tune(machine)) == {"gpu.not_answering": ("info", text)}


def test_one_of_two_gpus_is_a_virtual_machines(machine: Machine) -> None:
    give_away(machine, SECOND)
    machine.gpus = machine.gpus[:1]
    assert findings(tune(machine))["gpu.not_answering"] == ("good", "1 GPUs")


def test_an_audit_costs_one_call_of_each_program(machine: Machine) -> None:
    gpu_runtime.read(machine.host)
    assert [call[0] for call in machine.host.calls] == ["nvidia-smi", "systemctl", "journalctl"]


def test_an_ordinary_user_gets_unknowns_with_their_reason(machine: Machine) -> None:
    machine.host.root_user = False
    wish = gpu_runtime.wishes({"persistence": True, "peermem": "auto", "memlock": "report", "uvm_disable_hmm": False,
                               "mig_layout": {}, **DECLARED})  # fmt: skip
    wanted = gpu_runtime.wanted(gpu_runtime.read(machine.host), wish)
    found = {item.id: (item.severity, item.observed) for item in wanted.findings}
    needs_root = ("unknown", "unknown: needs root")
    for name in ("containers.memlock", "gpu.xid", "gpu.state_lost", "gpu.locked_clocks"):
        assert found[name] == needs_root
    assert found["gpu.power_limit"][0] == "p0_runtime"


# --- persistence


def test_ubuntus_unit_is_put_right_by_a_drop_in(machine: Machine) -> None:
    machine.containers()
    machine.unit("ubuntu", active=True)
    machine.enabled.clear()
    for gpu in machine.gpus:
        gpu["persistence_mode"] = "Disabled"
    answer = tune(machine)
    assert machine.host.read(DROP_IN) == (
        "# Managed by gpuhost (gpu_runtime): persistence mode on, before any container starts.\n"
        "[Unit]\n"
        "Before=lxc-net.service lxc.service pve-guests.service docker.service containerd.service\n"
        "StopWhenUnneeded=no\n"
        "[Service]\n"
        "ExecStart=\n"
        "ExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --verbose\n"
        "[Install]\n"
        "WantedBy=multi-user.target\n"
    )
    assert UNIT in machine.enabled
    assert [gpu["persistence_mode"] for gpu in machine.gpus] == ["Enabled", "Enabled"]
    assert findings(answer)["gpu.persistence_daemon"][0] == "good"
    assert not tune(machine)["changed"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"active": "inactive"}, "is inactive"),
        ({"enabled": "disabled"}, "is disabled: no boot starts it by itself"),
        ({"enabled": "static"}, "is static: no boot starts it by itself"),
        ({"command": "/usr/bin/nvidia-persistenced --no-persistence-mode"}, "runs with --no-persistence-mode"),
        ({"before": ("shutdown.target",)}, "is not ordered before lxc-net.service"),
        ({"stops_unneeded": True}, "stops as soon as no other unit needs it"),
    ],
)
def test_each_thing_that_is_wrong_with_the_daemon_is_said(machine: Machine, change: dict[str, Any], says: str) -> None:
    machine.containers()
    tune(machine)
    facts = persistenced.read(machine.host)
    assert persistenced.problems(facts) == []
    assert persistenced.problems(replace(facts, **change)) == [says]


def test_a_drop_in_that_is_no_longer_needed_goes(machine: Machine) -> None:
    machine.containers()
    machine.unit("ubuntu")
    tune(machine)
    text = machine.host.read("/lib/systemd/system/" + UNIT) or ""
    clean = text.replace("--no-persistence-mode ", "").replace("StopWhenUnneeded=true\n", "")
    ordered = clean.replace("[Service]", "Before=lxc-net.service\n[Service]")
    machine.host.put(f"/lib/systemd/system/{UNIT}", f"{ordered}\n[Install]\nWantedBy=multi-user.target\n")
    tune(machine)
    assert not machine.host.exists(DROP_IN)
    assert not tune(machine)["changed"]


def test_without_a_daemon_our_own_unit_sets_the_mode(machine: Machine) -> None:
    machine.host.remove(f"/lib/systemd/system/{UNIT}")
    machine.gpus[0]["persistence_mode"] = "Disabled"
    answer = tune(machine, program="cHJvZ3JhbQ==")
    assert machine.gpus[0]["persistence_mode"] == "Enabled"
    assert "gpuhost-gpu-state.service" in machine.enabled
    assert findings(answer)["gpu.persistence_daemon"] == (
        "good", "without a unit; gpuhost-gpu-state.service sets the mode at boot",
    )  # fmt: skip
    machine.boot()
    assert gpu_state_boot.at_boot(machine.host).startswith("0000:00:06.0 persistence mode: off -> on")
    assert [gpu["persistence_mode"] for gpu in machine.gpus] == ["Enabled", "Enabled"]


def test_a_masked_daemon_is_somebodys_wish(machine: Machine) -> None:
    machine.host.programs[("systemctl", "show")] = (0, "LoadState=masked\nUnitFileState=masked\n", "")
    answer = tune(machine)
    assert findings(answer)["gpu.persistence_daemon"] == ("p0_runtime", "masked")
    assert not answer["changed"]


def test_persistence_that_is_not_wished_for_is_left_alone(machine: Machine) -> None:
    machine.gpus[0]["persistence_mode"] = "Disabled"
    machine.active.clear()
    answer = tune(machine, persistence=False)
    assert findings(answer)["gpu.persistence_mode"] == ("info", f"off on {FIRST}")
    assert not answer["changed"]


def test_a_gpu_that_does_not_take_it_is_said_and_the_others_go_on(machine: Machine) -> None:
    machine.deaf = {"-pm"}
    machine.gpus[0]["persistence_mode"] = "Disabled"
    answer = tune(machine, **DECLARED)
    assert findings(answer)["gpu.refused"] == (
        "p0_runtime", f"{FIRST} persistence mode: reads off after it was written",
    )  # fmt: skip
    assert [gpu["power.limit"] for gpu in machine.gpus] == ["500.00", "500.00"]


# --- peermem


def rdma(machine: Machine, *, open_modules: bool = False, on_disk: bool = True) -> None:
    machine.host.put("/sys/module/ib_core/refcnt", "3\n")
    machine.host.put("/sys/class/infiniband/mlx5_0/node_type", "1: CA\n")
    machine.host.put("/sys/module/nvidia/taint", "OE\n" if open_modules else "POE\n")
    if on_disk:
        machine.host.put("/lib/modules/6.8.12-4-pve/updates/dkms/nvidia-peermem.ko.zst")


def test_without_rdma_it_does_not_apply(machine: Machine) -> None:
    none = findings(tune(machine))["gpu.peermem"]
    assert none == ("info", "not applicable: no RDMA stack (ib_core is not there)")
    machine.host.put("/sys/module/ib_core/refcnt", "3\n")
    assert findings(tune(machine))["gpu.peermem"] == ("info", "not applicable: no RDMA device")


def test_with_rdma_it_is_loaded_now_and_at_boot(machine: Machine) -> None:
    rdma(machine)
    before = tune(machine, check=True)
    assert findings(before)["gpu.peermem"] == ("p0_runtime", "not loaded, RDMA devices: mlx5_0")
    answer = tune(machine)
    assert answer["lines"] == ["nvidia_peermem: absent -> now, at boot"]
    assert findings(answer)["gpu.peermem"] == ("good", "loaded, now and at boot")
    path = unit_state.module_drop_in("nvidia_peermem")
    assert machine.host.read(path) == "# Managed by gpuhost.\nnvidia_peermem\n"
    assert not tune(machine)["changed"]


def test_a_module_in_use_stays_loaded_but_no_boot_loads_it_after_a_revert(machine: Machine) -> None:
    host, name = machine.host, "nvidia_peermem"
    host.put(f"/sys/module/{name}/refcnt", "1\n")
    host.put(unit_state.module_drop_in(name), f"{name}\n")
    host.programs[("modprobe",)] = (1, "", "modprobe: FATAL: Module nvidia_peermem is in use.")
    record = tuning.Record()
    record.remember(tuning.Write(unit_state.MODULE, name, unit_state.NOW_AND_AT_BOOT), unit_state.ABSENT)
    tuning.save(host, record)
    (result,) = tuning.revert(host, False)
    assert (result.status, "is in use" in result.reason) == ("refused", True)
    assert not host.exists(unit_state.module_drop_in(name))


def test_a_module_that_the_kernel_refuses_is_not_put_into_the_boot(machine: Machine) -> None:
    rdma(machine)
    machine.modprobe_fails = "Invalid argument"
    answer = tune(machine)
    assert "Invalid argument" in findings(answer)["gpu.refused"][1]
    assert not machine.host.exists(unit_state.module_drop_in("nvidia_peermem"))


def test_with_dma_buf_it_is_only_an_information_until_it_is_asked_for(machine: Machine) -> None:
    rdma(machine, open_modules=True)
    answer = tune(machine)
    severity, observed = findings(answer)["gpu.peermem"]
    assert (severity, observed.startswith("not loaded, RDMA devices: mlx5_0; DMA-BUF")) == ("info", True)
    assert not answer["changed"]
    assert findings(tune(machine, peermem="load"))["gpu.peermem"][0] == "good"


def test_what_is_no_longer_wished_for_leaves_the_boot_and_stays_loaded(machine: Machine) -> None:
    rdma(machine)
    tune(machine)
    assert tune(machine, peermem="leave")["lines"] == ["nvidia_peermem: now, at boot -> now"]
    assert machine.host.exists("/sys/module/nvidia_peermem")


def test_no_such_module_for_this_kernel(machine: Machine) -> None:
    rdma(machine, on_disk=False)
    answer = tune(machine)
    assert "no such module for this kernel" in findings(answer)["gpu.peermem"][1]
    assert not answer["changed"]


# --- HMM (case cuda-01, rows f and g)


@pytest.mark.parametrize(
    ("facts", "wished", "severity", "says"),
    [
        (Hmm("N", True, 3), False, "p1_reboot", "cuInit gives 3"),
        (Hmm("Y", True, 3), False, "info", "for another reason"),
        (Hmm("N", True), False, "info", "nothing asks for Y"),
        (Hmm("N", True, 0), False, "good", "CUDA starts"),
        (Hmm("N", True), True, "p1_reboot", "N"),
        (Hmm("Y", True), True, "good", "Y"),
        (Hmm("N", False, 3), True, "info", "not applicable"),
        (Hmm(None, True, 3), True, "info", "not applicable"),
    ],
)
def test_hmm(facts: Hmm, wished: bool, severity: str, says: str) -> None:
    found = gpu_runtime.hmm(facts, wished)
    assert found.severity == severity
    assert says in found.observed
    assert ("uvm_disable_hmm" in found.fix) is (severity == "p1_reboot")


# --- declared values


def test_what_is_declared_is_set_and_set_again_at_boot(machine: Machine) -> None:
    answer = tune(machine, program="cHJvZ3JhbQ==", **DECLARED)
    good = severities(answer, "good")
    assert {"gpu.power_limit", "gpu.locked_clocks", "gpu.application_clocks", "gpu.boot_unit"} <= good
    assert machine.locked == {0: "900,1500", 1: "900,1500"}
    assert "gpuhost-gpu-state.service" in machine.enabled
    machine.boot()
    lost = tune(machine, check=True, **DECLARED)
    assert {"gpu.power_limit", "gpu.locked_clocks", "gpu.state_lost"} <= severities(lost, "p0_runtime")
    assert "power limit: 700.00 -> 500" in gpu_state_boot.at_boot(machine.host)
    assert [gpu["power.limit"] for gpu in machine.gpus] == ["500.00", "500.00"]
    assert machine.locked == {0: "900,1500", 1: "900,1500"}
    assert findings(tune(machine, check=True, **DECLARED))["gpu.state_lost"] == ("good", "nothing")
    assert gpu_state_boot.at_boot(machine.host) == "every GPU is as declared"


def test_what_is_no_longer_declared_leaves_the_boot_and_is_not_touched(machine: Machine) -> None:
    tune(machine, program="cHJvZ3JhbQ==", **DECLARED)
    answer = tune(machine)
    assert not machine.host.exists(gpu_state_unit.UNIT_FILE)
    assert not machine.host.exists(gpu_state_unit.SETTINGS)
    assert [gpu["power.limit"] for gpu in machine.gpus] == ["500.00", "500.00"]
    assert "gpu.power_limit" not in findings(answer)
    assert not tune(machine)["changed"]


@pytest.mark.parametrize(
    ("declared", "about"),
    [
        ({"power_limit_w": 900.0}, "200 to 700 W"),
        ({"power_limit_w": 100.0}, "200 to 700 W"),
        ({"lock_clocks_mhz": [900, 2500]}, "at most 1980 MHz"),
        ({"lock_clocks_mhz": [1500, 900]}, "the lowest and the highest"),
        ({"lock_clocks_mhz": [1, 2, 3]}, "the lowest and the highest"),
        ({"application_clocks_mhz": [3201]}, "two: memory, graphics"),
        ({"application_clocks_mhz": [9000, 1500]}, "at most 3201 and 1980 MHz"),
    ],
)
def test_what_no_card_can_have_is_refused_before_anything_is_set(
    machine: Machine, declared: dict[str, Any], about: str
) -> None:
    machine.gpus[0]["persistence_mode"] = "Disabled"
    before = machine.host.snapshot()
    with pytest.raises(Stop) as caught:
        tune(machine, **{**DECLARED, **declared})
    assert caught.value.blocker.cause == "gpu.out_of_range"
    assert about in caught.value.blocker.expected
    assert machine.host.snapshot() == before
    assert machine.gpus[0]["persistence_mode"] == "Disabled"
    (document,) = caught.value.documents
    assert "gpu.out_of_range" in {item["id"] for item in document["findings"]}


def test_a_card_without_a_limit_gets_none(machine: Machine) -> None:
    machine.gpus[1] |= {"power.min_limit": "[N/A]", "power.max_limit": "[N/A]"}
    with pytest.raises(Stop) as caught:
        tune(machine, power_limit_w=500.0)
    assert caught.value.blocker.object.startswith(SECOND)


def test_at_boot_a_refused_value_sets_nothing_and_the_state_is_recorded(machine: Machine) -> None:
    tune(machine, **DECLARED)
    machine.boot()
    machine.gpus[1]["power.max_limit"] = "450.00"
    machine.host.remove("/var/lib/gpuhost/gpu_state.json")
    # no failed unit: it would keep a kernel upgrade from its trial, and every audit has the finding
    assert "not set: " in gpu_state_boot.at_boot(machine.host)
    assert machine.gpus[0]["power.limit"] == "700.00"
    assert machine.host.exists("/var/lib/gpuhost/gpu_state.json")


def test_at_boot_without_any_gpu_on_the_bus_nothing_fails(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(machine, **DECLARED)
    machine.boot()
    machine.gpus.clear()
    with pytest.raises(Stop):  # it is on the bus and does not answer
        gpu_state_boot.at_boot(machine.host)
    monkeypatch.setattr(gpu_state_boot, "read_gpus", lambda _: [])
    assert gpu_state_boot.at_boot(machine.host) == "no NVIDIA GPU on the bus"


def test_locked_clocks_are_forgotten_with_the_driver(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(machine, lock_clocks_mhz=[1500])
    assert findings(tune(machine, check=True, lock_clocks_mhz=[1500]))["gpu.locked_clocks"][0] == "good"
    monkeypatch.setattr(machine.host, "inode", lambda _: 4711)  # rmmod, modprobe: another folder in /sys
    assert findings(tune(machine, check=True, lock_clocks_mhz=[1500]))["gpu.locked_clocks"][0] == "p0_runtime"


def test_the_unit_at_boot_is_done_before_the_return_takes_the_lock() -> None:
    (before,) = [line for line in gpu_state_unit.TEXT.splitlines() if line.startswith("Before=")]
    assert RETURN_UNIT in before.split("=")[1].split()


def test_a_warning_with_exit_status_0_is_a_refusal(machine: Machine) -> None:
    said = f"Setting locked GPU clocks is not supported for GPU 0000{FIRST}."
    text = f"{said}\nTreating as warning and moving on.\nAll done.\n"
    machine.host.programs[("nvidia-smi", "-i", FIRST)] = (0, text, "")
    answer = tune(machine, lock_clocks_mhz=[1500])
    assert "is not supported" in findings(answer)["gpu.refused"][1]
    assert machine.locked == {1: "1500,1500"}


# --- MIG


def mig_on(machine: Machine) -> None:
    for gpu in machine.gpus:
        gpu["mig.mode.current"] = gpu["mig.mode.pending"] = "Enabled"


def test_mig_mode_is_never_switched(machine: Machine) -> None:
    answer = tune(machine, mig_layout={"all": TWO})
    assert findings(answer)["gpu.mig_mode"] == ("p1_reboot", f"MIG mode is off on {FIRST}, {SECOND}")
    assert not [call for call in machine.host.ran("nvidia-smi") if "-mig" in call or "-cgi" in call]


def test_instances_are_made_where_there_are_none(machine: Machine) -> None:
    mig_on(machine)
    layout = {"all": TWO, "1": ["7g.141gb"]}
    answer = tune(machine, mig_layout=layout)
    assert machine.instances == {0: TWO, 1: ["7g.141gb"]}
    assert findings(answer)["gpu.mig_layout"] == ("good", "as declared on 2 GPUs")
    assert not tune(machine, mig_layout=layout)["changed"]


def test_no_instance_is_made_under_a_user(machine: Machine) -> None:
    mig_on(machine)
    machine.process(41872, "python3", "/system.slice/vllm.service", limit="unlimited")
    answer = tune(machine, mig_layout={"all": TWO})
    assert machine.instances == {0: [], 1: []}
    (document,) = answer["gpuhost_documents"]
    (fix,) = [item["fix"] for item in document["findings"] if item["id"] == "gpu.mig_layout"]
    assert "in use by 41872 (python3)" in fix


def test_instances_of_others_are_never_removed(machine: Machine) -> None:
    mig_on(machine)
    machine.instances[0] = ["7g.141gb"]
    answer = tune(machine, mig_layout={"0": TWO})
    assert machine.instances[0] == ["7g.141gb"]
    assert severities(answer, "p0_runtime") == {"gpu.mig_layout", "gpu.boot_unit"}


def test_a_layout_that_does_not_fit_is_refused(machine: Machine) -> None:
    mig_on(machine)
    with pytest.raises(Stop) as caught:
        tune(machine, mig_layout={"all": ["3g.71gb"] * 3})
    assert "holds at most 2 of 3g.71gb" in caught.value.blocker.expected


def test_a_layout_for_a_gpu_that_is_not_there_is_refused(machine: Machine) -> None:
    with pytest.raises(Stop) as caught:
        tune(machine, mig_layout={"7": TWO})
    assert (caught.value.blocker.cause, caught.value.blocker.object) == ("gpu.out_of_range", "7")


def test_revert_takes_our_instances_away_and_no_others(machine: Machine) -> None:
    mig_on(machine)
    machine.instances[0] = ["3g.71gb"]
    tune(machine, mig_layout={"0": TWO})
    tuning.revert(machine.host, False)
    assert machine.instances == {0: ["3g.71gb"], 1: []}


# --- what a reboot loses


def test_what_was_set_by_hand_and_is_lost_is_named_with_both_values(machine: Machine) -> None:
    assert findings(tune(machine))["gpu.state_lost"][0] == "unknown"
    machine.gpus[0]["power.limit"] = "450.00"
    machine.gpus[1]["compute_mode"] = "Exclusive_Process"
    tune(machine)
    machine.boot()
    machine.gpus[1]["compute_mode"] = "Default"
    severity, observed = findings(tune(machine, check=True))["gpu.state_lost"]
    assert severity == "p0_runtime"
    assert "0000:00:06.0: persistence was on, is off, power limit was 450 W, is 700 W" in observed
    assert "compute mode was Exclusive_Process, is Default" in observed
    # It stays a finding of this boot, whoever looks.
    tune(machine, persistence=False)
    assert "power limit was 450 W" in findings(tune(machine))["gpu.state_lost"][1]
    machine.gpus[0]["power.limit"] = "450.00"
    assert "power limit" not in findings(tune(machine))["gpu.state_lost"][1]


def test_a_gpu_that_is_gone_is_named(machine: Machine) -> None:
    tune(machine)
    machine.boot()
    del machine.gpus[1]
    observed = findings(tune(machine))
    assert "GPU-00000000-0000-0000-0000-000000000002 is not there any more" in observed["gpu.state_lost"][1]
    assert observed["gpu.not_answering"] == ("p1_reboot", f"{SECOND} on the bus, not in nvidia-smi")


@pytest.mark.parametrize(
    "text", ["", "[]", '{"boot_id": 1}', '{"boot_id": "x", "gpus": []}', '{"before": {"gpus": 3}}']
)
def test_a_broken_record_is_no_record(machine: Machine, text: str) -> None:
    machine.host.put("/var/lib/gpuhost/gpu_state.json", text)
    assert findings(tune(machine))["gpu.state_lost"][0] == "unknown"
    record = json.loads(machine.host.read("/var/lib/gpuhost/gpu_state.json") or "")
    assert set(record["gpus"]) == {f"GPU-00000000-0000-0000-0000-00000000000{n}" for n in (1, 2)}


def test_the_settings_for_the_boot_are_read_as_they_were_written(machine: Machine) -> None:
    tune(machine, mig_layout={"0": TWO}, **DECLARED)
    declared, persistence = gpu_state_unit.settings(machine.host)
    assert persistence
    assert (declared.power_limit_w, declared.lock_clocks_mhz) == (500, (900, 1500))
    assert declared.mig_layout == {"0": tuple(TWO)}
    machine.host.put(gpu_state_unit.SETTINGS, "{}")
    with pytest.raises(Stop):
        gpu_state_unit.settings(machine.host)


@pytest.mark.parametrize("bad", [{"lock_clocks_mhz": ["fast"]}, {"mig_layout": {"0": 3}}])
def test_what_is_no_number_is_input_that_is_invalid(machine: Machine, bad: dict[str, Any]) -> None:
    with pytest.raises(Stop) as caught:
        tune(machine, **bad)
    assert caught.value.blocker.cause == "input.invalid"


def test_a_driver_that_does_not_answer_costs_no_unit(machine: Machine) -> None:
    tune(machine, **DECLARED)
    machine.host.programs[("nvidia-smi",)] = (9, "NVIDIA-SMI has failed\n", "")
    answer = tune(machine, **DECLARED)
    assert machine.host.exists(gpu_state_unit.UNIT_FILE)
    assert (answer["changed"], findings(answer)["gpu.not_answering"][0]) == (False, "p1_reboot")
    with pytest.raises(Stop) as caught:
        gpu_state_boot.at_boot(machine.host)
    assert caught.value.blocker.cause == "gpu.not_answering"


def test_the_unit_runs_a_command_that_is_there() -> None:
    from gpuhost import __main__ as program  # noqa: PLC0415 - nobody else imports it

    assert (gpu_state_unit.COMMAND,) in program.COMMANDS
    assert gpu_state_unit.COMMAND in program.USAGE


def test_the_unit_comes_after_the_daemon_and_before_containers() -> None:
    lines = gpu_state_unit.TEXT.splitlines()
    before = next(line for line in lines if line.startswith("Before=")).partition("=")[2].split()
    assert set(persistenced.CONTAINER_UNITS) < set(before)
    assert "gpuhost-devices.service" in before
    assert any(line.startswith("After=") and UNIT in line for line in lines)
    assert FIXTURES.is_dir()
