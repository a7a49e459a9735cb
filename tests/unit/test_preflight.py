"""The preflight: a clean root passes, and each defect gives exactly its own cause."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_host import FakeHost
from fake_roll import HOST_NAME, RUN_ID, debian_host, plan_of, prepared, roll_of, step
from fake_tree import CMDLINE, DRIVER, ESP, MACHINE, NEW, NEW_ENTRY, OLD, OLD_ENTRY, entry_text, set_variable

from gpuhost import preflight
from gpuhost.boot_config import MODPROBE_FILE
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
    names = [item.name for item in document.proofs]
    assert {"headers", "dkms", "boot entry", "kernel arguments", "initramfs", "fallback unchanged", "packages"} <= set(
        names
    )
    assert names.index("headers") == 0


def _without(*paths: str) -> Callable[[FakeHost], None]:
    def spoil(host: FakeHost) -> None:
        for path in paths:
            host.path(path).unlink()

    return spoil


def _text(path: str, text: str) -> Callable[[FakeHost], None]:
    return lambda host: host.put(path, text)


def _no_headers(host: FakeHost) -> None:
    host.path(f"/lib/modules/{NEW}/build/Makefile").unlink()
    host.path(f"/lib/modules/{NEW}/build").rmdir()


def _old_initrd(host: FakeHost) -> None:
    host.put(MODPROBE_FILE, "options nvidia_uvm uvm_disable_hmm=1\n")
    host.aged(f"/boot/initrd.img-{NEW}", 60)


def _status(line: str) -> Callable[[FakeHost], None]:
    return lambda host: host.programs.update({("dkms",): (0, line + "\n", "")})


def _module(path: str, kernel: str, version: str = DRIVER) -> Callable[[FakeHost], None]:
    return _text(path, f"vermagic={kernel} SMP preempt mod_unload modversions\nversion={version}\n")


def _entry_without_initrd(host: FakeHost) -> None:
    text = host.read(f"{ESP}/loader/entries/{NEW_ENTRY}") or ""
    host.put(
        f"{ESP}/loader/entries/{NEW_ENTRY}", "".join(line for line in text.splitlines(True) if "initrd" not in line)
    )


ESP_INITRD = f"{ESP}/{MACHINE}/{NEW}/initrd.img-{NEW}"
DEFECTS: dict[str, tuple[str, Callable[[FakeHost], None]]] = {
    "no headers": ("dkms.headers_missing", _no_headers),
    "dkms: only added": ("dkms.not_built", _status(f"nvidia/{DRIVER}: added")),
    "dkms: for the old kernel": ("dkms.not_built", _status(f"nvidia/{DRIVER}, {OLD}, x86_64: installed")),
    "dkms fails": ("dkms.not_built", lambda host: host.programs.update({("dkms",): (127, "", "no dkms")})),
    "no nvidia-uvm": ("dkms.module_missing", _without(UVM)),
    "module of the old kernel": ("dkms.vermagic", _module(UVM, OLD)),
    "module of another driver": ("dkms.version_mismatch", _module(UVM, NEW, "550.54.15")),
    "no entry": ("boot.entry_missing", _without(f"{ESP}/loader/entries/{NEW_ENTRY}")),
    "cut initrd on the ESP": ("boot.entry_missing", _text(ESP_INITRD, "cut")),
    "no kernel on the ESP": ("boot.entry_missing", _without(f"{ESP}/{MACHINE}/{NEW}/linux")),
    "entry without initrd": ("boot.entry_missing", _entry_without_initrd),
    "argument missing": (
        "boot.cmdline_missing", _text(f"{ESP}/loader/entries/{NEW_ENTRY}", entry_text(NEW, f"{CMDLINE} panic=30")),
    ),
    "initramfs older than its options": ("boot.initramfs_missing", _old_initrd),
    "fallback's options changed": (
        "boot.fallback_changed", _text(f"{ESP}/loader/entries/{OLD_ENTRY}", entry_text(OLD, CMDLINE + " panic=30")),
    ),
    "fallback's initrd changed": ("boot.fallback_changed", _text(f"{ESP}/{MACHINE}/{OLD}/initrd.img-{OLD}", "x")),
    "fallback's driver gone": ("boot.fallback_changed", _without(f"/lib/modules/{OLD}/updates/dkms/nvidia.ko.xz")),
    "default not held": ("boot.default_not_held", _text(f"{ESP}/loader/loader.conf", "timeout 3\n")),
    "default is the target": ("boot.default_not_held", _text(f"{ESP}/loader/loader.conf", f"default {NEW_ENTRY}\n")),
    "EFI default, harmless today": (
        "boot.efi_default_set", lambda host: set_variable(host, "LoaderEntryDefault", OLD_ENTRY),
    ),
    "one-shot": ("boot.foreign_one_shot", lambda host: set_variable(host, "LoaderEntryOneShot", NEW_ENTRY)),
    "half configured": (
        "apt.half_configured", lambda host: host.packages.update({f"linux-image-{NEW}": ("6.12.117-1", "iF")}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_each_defect_gives_its_cause_and_no_other(host: FakeHost, name: str) -> None:
    expected, spoil = DEFECTS[name]
    spoil(host)
    document = prove(host)
    assert causes(document) == [expected]
    failed = preflight.first_failure(document)
    assert failed is not None
    assert failed.observed
    assert failed.expected
    assert failed.next_step == cause(expected).next_step


def test_a_missing_initramfs_fails_its_own_proof_first(host: FakeHost) -> None:
    host.path(f"/boot/initrd.img-{NEW}").unlink()
    failed = {item.name: item.cause for item in prove(host).proofs if not item.ok}
    assert failed["initramfs"] == "boot.initramfs_missing"


def test_an_empty_initramfs_is_none(host: FakeHost) -> None:
    for path in (f"/boot/initrd.img-{NEW}", ESP_INITRD):
        host.put(path, "")
    assert causes(prove(host)) == ["boot.initramfs_missing"]


def test_a_fallback_that_was_never_recorded_fails(host: FakeHost) -> None:
    document = preflight.prove(host, HOST_NAME, RUN_ID, replace(roll_of(host), fallback=None))
    assert causes(document) == ["boot.fallback_missing"]


def test_a_dangling_build_link_counts_as_no_headers(host: FakeHost) -> None:
    _no_headers(host)
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


def test_user_space_of_another_version_is_found(host: FakeHost) -> None:
    host.put("/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15", "ELF")
    host.put("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15", "ELF")
    assert causes(prove(host)) == ["dkms.version_mismatch"]


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
