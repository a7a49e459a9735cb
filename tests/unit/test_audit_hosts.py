"""The whole audit on whole hosts: every finding that is not good is named, and the good ones that matter."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost
from fake_snapshot import HOSTS, lay, snapshot

from gpuhost import audit, cpu_tuning, devices_unit
from gpuhost.documents import Finding
from gpuhost_cli.capture import wishes

WISHES = wishes()
"""The roles' defaults: what tune would set is what the audit expects."""
PROGRAMS = {"nvidia-smi", "systemctl", "modinfo", "dpkg-query", "apt-cache", "journalctl", "dmesg", "lxc-ls"}
ABOUT_EVERY_HOST = {
    *{("info", f"firmware.{name}") for name in ("version", "smt", "numa", "secure_boot", "lockdown")},
    ("info", "containers.gpus"),
    ("info", "serving.servers"),
}
ABOUT_GPUS = {
    *{("info", f"driver.{name}") for name in ("version", "parameters")},
    *{("info", f"interconnect.{name}") for name in ("nvlink", "numa", "lookalike")},
    *{("info", f"pcie.{name}") for name in ("left_alone", "acs", "aer")},
    ("info", "gpu.uvm_hmm"),
    ("info", "gpu.retired_pages"),
}


def audited(host: FakeHost, flags: Any = (), **changed: Any) -> list[Finding]:
    wishes = {name: {**given, **changed.get(name, {})} for name, given in WISHES.items()}
    made = audit.collect(host, "host", "run", audit.parts_of(wishes, list(flags)))
    assert all(part.complete for part in made.parts)
    return list(made.findings)


def short(found: list[Finding]) -> set[tuple[str, str]]:
    """All but the good ones."""
    return {(item.severity, item.id) for item in found if item.severity != "good"}


def good(found: list[Finding]) -> dict[str, str]:
    return {item.id: item.observed for item in found if item.severity == "good"}


def one(found: list[Finding], code: str, severity: str = "") -> Finding:
    (item,) = (item for item in found if item.id == code and severity in ("", item.severity))
    return item


@pytest.fixture(name="incident")
def incident_host(tmp_path: Path) -> FakeHost:
    return lay(FakeHost(tmp_path), snapshot("pve-amd-8gpu"))


def test_the_incident_host_gives_exactly_its_findings(incident: FakeHost) -> None:
    found = audited(incident, gpu_runtime={"peermem": "load"})
    assert short(found) == {
        *ABOUT_EVERY_HOST,
        *ABOUT_GPUS,
        ("p0_runtime", "gpu.peermem"),
        ("p0_runtime", "pcie.max_read_request"),
        ("p0_runtime", "sysctl.value"),
        ("p0_runtime", "cpu.idle_states"),
        ("p0_runtime", "containers.memlock"),
        ("p1_reboot", "cpu.scaling_driver"),
        ("p1_reboot", "kernel.old"),
        ("info", "sysctl.by_hand"),
        ("info", "containers.boot_unit"),
        ("unknown", "gpu.state_lost"),
    }
    assert "not loaded" in one(found, "gpu.peermem").observed
    assert all(item.observed.startswith("512 bytes") for item in found if item.id == "pcie.max_read_request")
    assert "numa_balancing reads 1" in one(found, "sysctl.value", "p0_runtime").observed
    assert one(found, "cpu.idle_states").observed == "C2 with 100 us latency on 128 CPUs"
    assert one(found, "containers.memlock").observed == "/etc/pve/lxc/101.conf says nothing, runs with 8 MiB"
    assert one(found, "cpu.scaling_driver").observed == "acpi-cpufreq instead of amd_pstate"
    assert one(found, "kernel.old").observed == "old kernel: 6.8.12-4-pve runs, 6.14.11-5-bpo12-pve is installed"


def test_the_incident_host_is_confirmed_good_where_it_was(incident: FakeHost) -> None:
    found = audited(incident)
    right = good(found)
    assert right["firmware.iommu"] == "passthrough (amd_iommu=on iommu=pt)"
    assert right["firmware.resizable_bar"] == "128 GiB: all 8"
    assert right["pcie.link_speed"].startswith("32.0 GT/s (Gen5)")
    assert right["pcie.link_width"].startswith("x16: 0000:01:00.0")
    assert right["pcie.relaxed_ordering"].startswith("on: 0000:01:00.0")
    assert {"driver.reboot_pending", "containers.device_rules", "containers.autostart", "device.node_missing"} <= set(
        right
    )
    assert one(found, "interconnect.nvlink").observed.startswith("no NVLink: ")
    lookalike = one(found, "interconnect.lookalike").observed
    assert lookalike == "0000:52:00.0 is ASPEED BMC graphics, no part of any interconnect"


def test_by_default_peermem_is_not_needed_where_dma_buf_is(incident: FakeHost) -> None:
    assert ("info", "gpu.peermem") in short(audited(incident))


def test_a_server_without_its_declared_flag_is_named_with_its_command_line(incident: FakeHost) -> None:
    found = audited(incident, [{"match": "sglang", "flags": ["--ep-size 8", "--tp 8"]}])
    item = one(found, "serving.flags")
    assert item.severity == "p0_runtime"
    assert "pid 4211 in container 101 runs without --ep-size 8: " in item.observed
    assert "--tp-size 8" in item.observed
    assert "example-not-a-secret" not in "".join(item.observed for item in found)


def test_a_tuned_host_is_good(tmp_path: Path) -> None:
    host = lay(FakeHost(tmp_path), snapshot("ubuntu-amd-8gpu"))
    wish = cpu_tuning.wishes(WISHES["cpu"]).boot
    for path, text in cpu_tuning.boot_files(wish).items():
        host.put(path, text or "")
    host.put(cpu_tuning.LINK)  # a file does: a real link would lead out of the test's folder
    host.put(devices_unit.UNIT_FILE, devices_unit.unit_text("reconcile"))
    host.put(devices_unit.LINK)
    found = audited(host, [{"match": "inference", "flags": ["--ep-size 8"]}])
    assert short(found) == {*ABOUT_EVERY_HOST, *ABOUT_GPUS, ("info", "gpu.peermem")}
    right = good(found)
    assert right["kernel.old"] == "6.14.0-33-generic, of 2 installed"
    assert right["containers.memlock"] == "unlimited: inference"
    assert right["cpu.scaling_driver"] == "amd-pstate-epp"
    assert right["pcie.max_read_request"].startswith("4096 bytes")
    assert "gpuhost-devices.service" in right["containers.boot_unit"]
    assert right["serving.flags"].endswith("has --ep-size 8")
    assert right["gpu.state_lost"] == "nothing"


def test_the_captured_virtual_machine(tmp_path: Path) -> None:
    found = audited(lay(FakeHost(tmp_path), snapshot("vm-intel-2gpu")))
    assert short(found) == {
        *ABOUT_EVERY_HOST - {("info", "firmware.lockdown")},
        *ABOUT_GPUS - {("info", f"interconnect.{name}") for name in ("nvlink", "lookalike")}
        - {("info", f"pcie.{name}") for name in ("left_alone", "acs")},
        ("info", "firmware.iommu"), ("unknown", "firmware.lockdown"),
        ("p0_runtime", "sysctl.value"), ("info", "sysctl.after_boot"),
        ("info", "cpu.scaling_driver"), ("info", "cpu.idle_states"), ("info", "cpu.after_boot"),
        ("unknown", "gpu.persistence_daemon"), ("unknown", "gpu.state_lost"), ("info", "gpu.peermem"),
        ("info", "containers.memlock"), ("info", "gpu.service_memlock"),
        ("info", "pcie.no_snoop"), ("info", "pcie.bridges"),
        ("info", "driver.reboot_pending"), ("unknown", "kernel.old"), ("unknown", "kernel.update_available"),
    }  # fmt: skip
    right = good(found)
    assert right["interconnect.nvlink"] == "NVLink between all 2 GPUs (NV18)"
    assert right["interconnect.p2p"] == "allowed between all 2 GPUs"
    assert right["firmware.resizable_bar"] == "256 GiB: all 2"
    assert right["pcie.max_read_request"].startswith("4096 bytes")
    assert one(found, "driver.version").observed == "580.159.04, open modules, CUDA up to 13.0"
    assert one(found, "firmware.lockdown").observed == "unknown: /sys/kernel/security is not mounted"


def test_a_host_without_a_gpu(tmp_path: Path) -> None:
    found = audited(lay(FakeHost(tmp_path), snapshot("debian-no-gpu")))
    assert short(found) == {
        *ABOUT_EVERY_HOST - {("info", "firmware.lockdown")}, ("unknown", "firmware.lockdown"),
        ("info", "firmware.iommu"), ("info", "firmware.resizable_bar"),
        ("p0_runtime", "sysctl.value"), ("info", "sysctl.after_boot"),
        ("info", "cpu.scaling_driver"), ("info", "cpu.idle_states"), ("info", "cpu.after_boot"),
        ("info", "gpu.not_answering"), ("info", "pcie.max_read_request"), ("info", "driver.version"),
        ("info", "interconnect.nvlink"), ("unknown", "kernel.old"), ("unknown", "kernel.update_available"),
    }  # fmt: skip
    assert all(
        item.observed.startswith("not applicable")
        for item in found
        if item.domain in ("driver", "interconnect", "pcie")
    )


@pytest.mark.parametrize("name", ["pve-amd-8gpu", "ubuntu-amd-8gpu", "vm-intel-2gpu", "debian-no-gpu"])
def test_an_audit_changes_nothing_and_runs_no_program_per_device(name: str, tmp_path: Path) -> None:
    host = lay(FakeHost(tmp_path), snapshot(name))
    before = host.snapshot()
    begun = time.monotonic()
    audited(host)
    assert time.monotonic() - begun < 20
    assert host.snapshot() == before
    assert {call[0] for call in host.calls} <= PROGRAMS
    assert len(host.calls) <= 14
    assert not [call for call in host.calls if "-i" in call]


@pytest.mark.parametrize("name", ["pve-amd-8gpu", "vm-intel-2gpu", "debian-no-gpu"])
def test_without_root_what_needs_it_is_said(name: str, tmp_path: Path) -> None:
    host = lay(FakeHost(tmp_path), snapshot(name))
    host.root_user = False
    found = audited(host)
    unknown = {item.id: item.observed for item in found if item.severity == "unknown"}
    assert unknown["containers.gpus"] == "unknown: needs root"


def test_each_host_says_where_it_is_from() -> None:
    for folder in HOSTS.iterdir():
        if folder.is_dir():
            text = (folder / "README.md").read_text()
            assert ("(synthetic)" in text) != ("(captured)" in text), folder.name
