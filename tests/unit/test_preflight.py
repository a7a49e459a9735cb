"""The preflight as a whole, and its module. What each proof finds: test_preflight_defects.py."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fake_host import FakeHost
from fake_roll import HOST_NAME, RUN_ID, debian_host, plan_of, prepared, roll_of, step
from fake_tree import DRIVER, NEW, OLD

from gpuhost import preflight
from gpuhost.causes import cause
from gpuhost.documents import Preflight
from gpuhost.errors import Stop

FLAG = "nomodeset"
UVM = f"/lib/modules/{NEW}/updates/dkms/nvidia-uvm.ko.xz"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    made = debian_host(tmp_path)
    prepared(made, cmdline={"panic": "30", FLAG: ""})
    return made


def prove(host: FakeHost) -> Preflight:
    return preflight.prove(host, HOST_NAME, RUN_ID, roll_of(host))


def causes(document: Preflight) -> list[str]:
    return list(dict.fromkeys(item.cause or "" for item in document.proofs if not item.ok))


def test_a_clean_root_passes(host: FakeHost) -> None:
    document = prove(host)
    assert causes(document) == []
    assert preflight.first_failure(document) is None
    assert preflight.warnings(document) == ()
    names = {item.name for item in document.proofs}
    assert {"headers", "dkms", "boot entry", "kernel arguments", "initramfs", "fallback unchanged", "packages"} <= names


def test_the_first_failure_is_the_first_that_blocks(host: FakeHost) -> None:
    host.put("/sys/module/nvidia/version", "550.54.15\n")
    host.put(f"/usr/lib/x86_64-linux-gnu/libcuda.so.{DRIVER}", "ELF")
    document = prove(host)
    assert causes(document) == ["driver.reboot_pending"]
    assert preflight.first_failure(document) is None
    assert [item.cause for item in preflight.warnings(document)] == ["driver.reboot_pending"]
    host.path(UVM).unlink()
    failed = preflight.first_failure(prove(host))
    assert failed is not None
    assert failed.cause == "dkms.module_missing"
    assert failed.next_step == cause("dkms.module_missing").next_step


def test_the_driver_comes_first_and_the_services_last(host: FakeHost) -> None:
    names = [item.name for item in prove(host).proofs]
    assert names[:3] == ["driver source", "headers", "dkms"]
    assert names[-4:] == ["packages", "holds", "apt", "units"]


def test_a_missing_initramfs_fails_its_own_proof_first(host: FakeHost) -> None:
    host.path(f"/boot/initrd.img-{NEW}").unlink()
    failed = {item.name: item.cause for item in prove(host).proofs if not item.ok}
    assert failed["initramfs"] == "boot.initramfs_missing"


def test_on_the_trial_kernel_nobody_is_waited_for(host: FakeHost) -> None:
    host.programs["systemctl", "is-active"] = (0, "active\nactive\n", "")
    assert causes(prove(host)) == ["apt.locked"]
    assert host.seconds > 100
    host.put("/proc/sys/kernel/osrelease", NEW + "\n")
    host.seconds = 0
    assert causes(prove(host)) == []
    assert host.seconds < 10


def test_a_fallback_that_was_never_recorded_fails(host: FakeHost) -> None:
    document = preflight.prove(host, HOST_NAME, RUN_ID, replace(roll_of(host), fallback=None))
    assert causes(document) == ["boot.fallback_missing"]


def test_a_dangling_build_link_counts_as_no_headers(host: FakeHost) -> None:
    shutil.rmtree(host.path(f"/lib/modules/{NEW}/build"))
    os.symlink(f"../../../usr/src/linux-headers-{NEW}", host.path(f"/lib/modules/{NEW}/build"))
    assert causes(prove(host)) == ["dkms.headers_missing"]


def test_dpkg_that_does_not_answer_is_no_proof(host: FakeHost) -> None:
    host.programs["dpkg-query",] = (124, "", "killed after 60 s")
    with pytest.raises(Stop) as caught:
        prove(host)
    assert caught.value.blocker.cause == "apt.failed"


@pytest.mark.parametrize("value", [None, "0"])
def test_a_trial_that_would_stay_dead_is_not_ready(tmp_path: Path, value: str | None) -> None:
    host = debian_host(tmp_path, installed=False)
    with pytest.raises(Stop) as caught:
        prepared(host, cmdline={"panic": value})
    assert caught.value.blocker.cause == "boot.no_panic_reboot"


# --- the module


def test_the_module_stops_with_the_first_cause_and_keeps_the_document(host: FakeHost) -> None:
    host.path(UVM).unlink()
    with pytest.raises(Stop) as caught:
        step(host, "gpuhost_preflight")
    assert caught.value.blocker.cause == "dkms.module_missing"
    document, roll = caught.value.documents
    assert (document["schema"], roll["schema"]) == ("gpuhost.preflight", "gpuhost.roll")
    assert [item["name"] for item in document["proofs"] if not item["ok"]] == ["module nvidia-uvm"]
    assert roll_of(host).steps[-1].lines[0].startswith("stopped: dkms.module_missing: ")


def test_the_module_says_its_warnings(host: FakeHost) -> None:
    host.put("/sys/module/nvidia/version", "550.54.15\n")
    host.put(f"/usr/lib/x86_64-linux-gnu/libcuda.so.{DRIVER}", "ELF")
    answer = step(host, "gpuhost_preflight")
    assert answer["lines"][1].startswith(
        "warning: driver.reboot_pending: loaded driver: the loaded module is 550.54.15"
    )
    assert not answer["changed"]
    (proof,) = [item for item in answer["gpuhost_documents"][0]["proofs"] if not item["ok"]]
    assert proof["blocks"] is False


def test_check_mode_skips_a_kernel_that_is_not_there_yet(tmp_path: Path) -> None:
    host = debian_host(tmp_path, installed=False)
    answer = step(host, "gpuhost_preflight", check=True, plan=plan_of(host))
    assert answer["skipped_because"] == f"{NEW} is not installed yet"
    assert not answer["changed"]


def test_check_mode_of_a_good_host_shows_no_failure(tmp_path: Path) -> None:
    host = debian_host(tmp_path)
    answer = step(host, "gpuhost_preflight", check=True, plan=plan_of(host))
    assert [line for line in answer["lines"] if "would stop" in line] == []


def test_the_fallback_is_not_touched_by_prepare(tmp_path: Path) -> None:
    host = debian_host(tmp_path, installed=False)
    before = {path: data for path, data in host.snapshot().items() if OLD in path and "loader.conf" not in path}
    prepared(host)
    after = host.snapshot()
    assert {path: after[path] for path in before} == before
