"""Which settings can be measured, with which two values, and the variables that leave one out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost

from gpuhost import concerns, cpu_tuning, gpu_kinds, pcie_register, sysctl, tune_knobs, tuning, unit_state
from gpuhost.tuning import FILE, LIVE, Record, Wanted, Write

SWAPPINESS, WATCHDOG = "/proc/sys/vm/swappiness", "/proc/sys/kernel/nmi_watchdog"
GOVERNOR = "/sys/devices/system/cpu/cpufreq/policy{}/scaling_governor"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    made = FakeHost(tmp_path)
    made.put(SWAPPINESS, "60\n")
    made.put(WATCHDOG, "0\n")
    for number, governor in enumerate(("powersave", "performance")):
        made.put(GOVERNOR.format(number), f"{governor}\n")
    return made


def looks(*writes: Write, concern: str = "cpu") -> list[Any]:
    return [(concern, "kernel_runtime", lambda _: Wanted((), writes))]


def governors() -> list[Write]:
    return [Write(LIVE, GOVERNOR.format(number), "performance\n", "governor") for number in (0, 1)]


def test_what_one_variable_decides_is_one_knob(host: FakeHost) -> None:
    (knob,) = tune_knobs.read(host, looks(*governors()), [])
    # The second policy has the value already, and no older one is on record.
    assert [(item.object, item.old, item.new, item.start) for item in knob.changes] == [
        (GOVERNOR.format(0), "powersave\n", "performance\n", "powersave\n")
    ]
    assert (knob.name, knob.old, knob.new, knob.in_force) == ("governor", "powersave", "performance", False)


def test_on_a_tuned_host_the_old_value_is_that_from_before_the_first_tune(host: FakeHost) -> None:
    tuning.apply(host, governors(), False)
    (knob,) = tune_knobs.read(host, looks(*governors()), [])
    assert (knob.old, knob.new, knob.in_force) == ("powersave", "performance", True)


def test_a_kernel_setting_that_is_right_is_known_from_the_record(host: FakeHost) -> None:
    tuning.apply(host, [Write(LIVE, SWAPPINESS, "10\n"), Write(FILE, "/etc/sysctl.d/x.conf", "x")], False)
    (knob,) = tune_knobs.read(host, looks(concern="sysctl"), [])
    assert (knob.name, knob.key, knob.old, knob.new) == ("vm.swappiness", "vm/swappiness", "60", "10")
    assert tune_knobs.read(host, looks(concern="cpu"), []) == ()


def test_what_is_no_runtime_setting_is_none(host: FakeHost) -> None:
    writes = [
        Write(FILE, "/etc/x", "y", "kept over a boot"),
        Write(unit_state.ENABLED, "x.service", "enabled", "at boot"),
        Write(unit_state.MODULE, "nvidia_peermem", "now", "x"),
        Write(gpu_kinds.PERSISTENCE, "0000:01:00.0 persistence mode", "on", "x"),
        Write(gpu_kinds.MIG, "0000:01:00.0 MIG layout", "3g.71gb", "x"),
        Write(LIVE, "/proc/sys/kernel/not_there", "1", "kernel.not_there"),
    ]
    assert tune_knobs.read(host, looks(*writes), []) == ()
    assert not host.calls


def test_only_some(host: FakeHost) -> None:
    writes = [*governors(), Write(LIVE, SWAPPINESS, "10\n", "vm.swappiness")]
    assert [item.name for item in tune_knobs.read(host, looks(*writes), ["vm.*"])] == ["vm.swappiness"]
    assert len(tune_knobs.read(host, looks(*writes), ["*"])) == 2


@pytest.mark.parametrize(
    ("write", "name", "variables"),
    [
        (
            Write(LIVE, SWAPPINESS, "1", "vm.swappiness"),
            "vm.swappiness",
            {"sysctl_tuning_keys": {"vm.swappiness": None}},
        ),
        (
            Write(sysctl.RIVAL, "/proc/sys/vm/dirty_ratio|dirty_bytes", "dirty_ratio 10", "vm.dirty_ratio"),
            "vm.dirty_ratio",
            {"sysctl_tuning_keys": {"vm.dirty_ratio": None}},
        ),
        (Write(LIVE, GOVERNOR, "x", "governor"), "governor", {"cpu_tuning_governor": "keep"}),
        (Write(LIVE, "/sys/x", "x", "energy preference"), "energy preference", {"cpu_tuning_epp": "keep"}),
        (Write(LIVE, "/sys/x", "1", "boost on"), "boost", {"cpu_tuning_boost": "keep"}),
        (
            Write(LIVE, "/sys/x", "1", "idle state C2 (100 us) off"),
            "idle states",
            {"cpu_tuning_max_idle_latency_us": -1},
        ),
        (
            Write(cpu_tuning.CHOICE, "/sys/x", "never", "transparent huge pages"),
            "transparent huge pages",
            {"cpu_tuning_huge_pages": "keep"},
        ),
        (
            Write(pcie_register.KIND, "0000:01:00.0", "4096", "MaxReadReq of 0000:01:00.0 in bytes"),
            "MaxReadReq",
            {"pcie_tuning_max_read_request_bytes": 0},
        ),
        (gpu_kinds.write_of(gpu_kinds.POWER, "a", "300", "x"), "power limit", {"gpu_runtime_power_limit_w": 0}),
        (gpu_kinds.write_of(gpu_kinds.LOCKED, "a", "1,2", "x"), "locked clocks", {"gpu_runtime_lock_clocks_mhz": []}),
        (
            gpu_kinds.write_of(gpu_kinds.APPLICATION, "a", "1,2", "x"),
            "application clocks",
            {"gpu_runtime_application_clocks_mhz": []},
        ),
    ],
)
def test_a_knob_is_left_out_by_its_own_variable(write: Write, name: str, variables: dict[str, Any]) -> None:
    value = write.value or ""
    seen = {(write.kind, write.object): value.replace("1", "9").replace("never", "always")[::1] + "0"}
    (knob,) = tune_knobs.of_concern("x", "pcie", [write], seen, Record())
    assert knob.name == name
    assert tune_knobs.variables_without([knob], {}) == variables


def test_the_kernel_settings_of_the_inventory_stay() -> None:
    write = Write(LIVE, "/proc/sys/net/ipv4/tcp_rmem", "1 2 3", "x")
    (knob,) = tune_knobs.of_concern("sysctl", "x", [write], {(LIVE, write.object): "1 2 2"}, Record())
    keys = {"net/ipv4/tcp_rmem": "1 2 3", "vm.swappiness": 1, "vm.dirty_ratio": None}
    assert tune_knobs.variables_without([knob], keys)["sysctl_tuning_keys"] == {
        "vm.swappiness": 1, "vm.dirty_ratio": None, "net.ipv4.tcp_rmem": None,
    }  # fmt: skip


def test_every_variable_is_one_of_a_tuning_role() -> None:
    roles = Path(concerns.__file__).parents[2] / "roles"
    known = "".join(path.read_text() for path in roles.glob("*/defaults/main.yml"))
    names = [name for found in tune_knobs._LEFT_OUT.values() for name in found]
    assert len(names) == 9
    for name in [*names, "sysctl_tuning_keys"]:
        assert f"\n{name}:" in known
        # The stage that leaves out what does harm names each of them.
        assert f"\n    {name}:" in (roles.parent / "playbooks/stages/tune_measure.yml").read_text()
