"""The driver and kernel domains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_host import FakeHost
from fake_snapshot import lay, snapshot

from gpuhost import audit_driver, audit_kernel
from gpuhost.audit_driver import Facts
from gpuhost.documents import Finding

GOOD = Facts(
    gpus=8, loaded="580.95.05", flavour="open", on_disk="580.95.05", on_disk_flavour="open",
    path="/lib/modules/nvidia.ko", release="6.8.12-4-pve", libraries="580.95.05", cuda="13.0",
)  # fmt: skip


def pending(facts: Facts) -> Finding:
    return next(item for item in audit_driver.findings(facts) if item.id == "driver.reboot_pending")


def test_one_version_everywhere_is_good() -> None:
    assert pending(GOOD).severity == "good"
    assert pending(replace(GOOD, libraries="")).severity == "good"


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"on_disk": "580.105.08"}, "loaded: 580.95.05; on disk for 6.8.12-4-pve: 580.105.08"),
        ({"libraries": "580.105.08"}, "loaded: 580.95.05; libraries: 580.105.08"),
        ({"on_disk_flavour": "proprietary"},
         "loaded: 580.95.05; on disk are the proprietary modules, loaded the open ones"),
    ],
)  # fmt: skip
def test_another_version_on_disk_waits_for_a_reboot(changed: dict[str, str], text: str) -> None:
    item = pending(replace(GOOD, **changed))  # type: ignore[arg-type]
    assert (item.severity, item.observed) == ("p1_reboot", text)
    assert item.fix


def test_what_is_not_known_is_said() -> None:
    assert pending(replace(GOOD, on_disk="", unknown="modinfo: killed")).observed == "unknown: modinfo: killed"
    assert pending(replace(GOOD, on_disk="", path="")).severity == "info"


def test_without_a_driver() -> None:
    assert audit_driver.findings(Facts())[0].observed == "not applicable: no NVIDIA GPU, no driver"
    observed = audit_driver.findings(Facts(gpus=2, release="6.1.0"))[0].observed
    assert observed == "not loaded; no module for 6.1.0"


def test_parameters_that_are_not_at_their_default_are_shown(tmp_path: Path) -> None:
    host = lay(FakeHost(tmp_path), snapshot("vm-intel-2gpu"))
    assert audit_driver.read(host).parameters == {"RmProfilingAdminOnly": "0"}
    host.put("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "Y\n")
    host.put(audit_driver.PARAMETERS, 'EnableStreamMemOPs: 1\nRegistryDwords: "PeerMappingOverride=1;"\nOther: 5\n')
    assert audit_driver.read(host).parameters == {
        "EnableStreamMemOPs": "1", "RegistryDwords": "PeerMappingOverride=1;", "uvm_disable_hmm": "Y",
    }  # fmt: skip


def test_modinfo_is_asked_once_for_the_running_kernels_module(tmp_path: Path) -> None:
    host = lay(FakeHost(tmp_path), snapshot("pve-amd-8gpu"))
    facts = audit_driver.read(host)
    assert host.ran("modinfo") == [["modinfo", "/lib/modules/6.8.12-4-pve/updates/dkms/nvidia.ko"]]
    assert (facts.on_disk, facts.on_disk_flavour, facts.cuda) == ("580.95.05", "open", "13.0")
    host.programs["modinfo",] = (1, "", "modinfo: ERROR: Module not found.")
    assert pending(audit_driver.read(host)).severity == "unknown"


# --- the kernel


KERNEL = audit_kernel.Facts(
    running="6.1.0-57-amd64", flavour="amd64", installed=("6.1.0-57-amd64", "6.1.0-47-amd64"),
    candidate="6.1.0-57-amd64", candidate_suite="bookworm-security", lists_age_s=90000,
)  # fmt: skip


def of_kernel(facts: audit_kernel.Facts) -> dict[str, tuple[str, str]]:
    return {item.id: (item.severity, item.observed) for item in audit_kernel.findings(facts)}


def test_the_newest_kernel_runs() -> None:
    assert of_kernel(KERNEL) == {
        "kernel.old": ("good", "6.1.0-57-amd64, of 2 installed"),
        "kernel.update_available": ("good", "apt has nothing newer"),
    }


def test_an_older_kernel_than_the_installed_one_runs() -> None:
    found = of_kernel(replace(KERNEL, running="6.1.0-47-amd64"))
    assert found["kernel.old"] == ("p1_reboot", "old kernel: 6.1.0-47-amd64 runs, 6.1.0-57-amd64 is installed")


def test_a_kernel_that_was_rebuilt_under_the_same_name() -> None:
    found = of_kernel(replace(KERNEL, build="6.1.172-1", build_installed="6.1.174-1"))
    assert found["kernel.old"][0] == "p1_reboot"
    assert "as built in 6.1.172-1, 6.1.174-1 is installed" in found["kernel.old"][1]


def test_a_newer_kernel_that_was_removed_counts_for_nothing() -> None:
    assert of_kernel(replace(KERNEL, running="6.12.117+deb12-amd64"))["kernel.old"][0] == "good"


def test_what_apt_has() -> None:
    found = of_kernel(replace(KERNEL, candidate="6.12.117+deb12-amd64", candidate_suite="bookworm-backports"))
    expected = ("info", "apt has 6.12.117+deb12-amd64 from bookworm-backports")
    assert found["kernel.update_available"] == expected
    assert of_kernel(replace(KERNEL, unknown="dpkg-query: not found"))["kernel.update_available"][0] == "unknown"


def test_a_host_without_a_kernel_of_its_own() -> None:
    assert of_kernel(replace(KERNEL, installed=()))["kernel.old"][0] == "unknown"


def test_the_debian_build_is_read_from_the_kernels_own_text(tmp_path: Path) -> None:
    host = lay(FakeHost(tmp_path), snapshot("debian-no-gpu"))
    host.put("/proc/sys/kernel/osrelease", "6.1.0-57-amd64\n")
    host.put("/proc/sys/kernel/version", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.172-1 (2026-05-12)\n")
    host.put("/boot/vmlinuz-6.1.0-57-amd64")
    host.put("/boot/vmlinuz-6.1.0-58-amd64")  # its modules are gone
    host.put("/lib/modules/6.1.0-57-amd64/modules.dep")
    host.programs = {("dpkg-query",): (0, "linux-image-6.1.0-57-amd64\t6.1.174-1\tii \n", "")}
    facts = audit_kernel.read(host)
    assert (facts.build, facts.build_installed) == ("6.1.172-1", "6.1.174-1")
    assert facts.installed == ("6.1.0-57-amd64",)


def test_releases_are_sorted_as_versions() -> None:
    names = ["6.8.0-9-generic", "6.8.0-60-generic", "none", "6.14.0-1-generic"]
    assert audit_kernel.newest_first(names) == ("6.14.0-1-generic", "6.8.0-60-generic", "6.8.0-9-generic")
