"""What boots, read from a tree and from EFI variables in their own bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_host import FakeHost
from fake_roll import debian_host
from fake_tree import EFIVARS, ESP, GUID, MACHINE, NEW, NEW_ENTRY, OLD, OLD_ENTRY, set_variable

from gpuhost import boot, fallbacks, loaders
from gpuhost.dkms import NVIDIA_MODULES
from gpuhost.errors import Stop


def hashes_of(host: FakeHost) -> dict[str, str]:
    """The fallback's hashes, by way of the roll's own function."""
    return fallbacks.record(host, loaders.of(host), OLD, None).files


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return debian_host(tmp_path)


def test_the_state_of_a_debian_host(host: FakeHost) -> None:
    state = loaders.of(host).read()
    assert state.loader == "systemd-boot"
    assert state.esps == (ESP,)
    assert state.policy is None
    assert (state.one_shot, state.efi_default) == (None, None)
    assert [entry.id for entry in state.entries] == [NEW_ENTRY, OLD_ENTRY]


def test_without_a_default_the_newest_boots(host: FakeHost) -> None:
    entry = loaders.of(host).read().next_boot()
    assert entry is not None
    assert entry.release == NEW


@pytest.mark.parametrize(
    ("conf", "efi_default", "one_shot", "release"),
    [
        (f"default {OLD_ENTRY}\n", None, None, OLD),
        (f"default {MACHINE}-6.1.*\n", None, None, OLD),
        (f"default {OLD_ENTRY}\n", NEW_ENTRY, None, NEW),
        (f"default {NEW_ENTRY}\n", NEW_ENTRY, OLD_ENTRY, OLD),
        ("default none.conf\n", "none.conf", "none.conf", NEW),
    ],
)
def test_what_beats_what(
    host: FakeHost, conf: str, efi_default: str | None, one_shot: str | None, release: str
) -> None:
    host.put(f"{ESP}/loader/loader.conf", conf)
    set_variable(host, "LoaderEntryDefault", efi_default)
    set_variable(host, "LoaderEntryOneShot", one_shot)
    entry = loaders.of(host).read().next_boot()
    assert entry is not None
    assert entry.release == release


def test_the_variables_are_read_in_the_firmwares_bytes(host: FakeHost) -> None:
    raw = b"\x07\0\0\0" + "old.conf".encode("utf-16-le") + b"\0\0"
    host.put(f"{EFIVARS}/LoaderEntryOneShot-{GUID}", raw)
    assert loaders.of(host).read().one_shot == "old.conf"


def test_a_broken_variable_is_a_stop(host: FakeHost) -> None:
    host.put(f"{EFIVARS}/LoaderEntryOneShot-{GUID}", b"\x07\0\0\0a")
    with pytest.raises(Stop):
        loaders.of(host).read()


def test_no_esp_and_no_uefi_give_an_empty_state(tmp_path: Path) -> None:
    state = loaders.of(FakeHost(tmp_path)).read()
    assert (state.esps, state.entries, state.loader, state.next_boot()) == ((), (), "unknown", None)
    assert state.problems[0].cause == "loader.unsupported"


def test_another_loader_is_named(host: FakeHost) -> None:
    set_variable(host, "LoaderInfo", "rEFInd 0.13")
    assert loaders.of(host).read().loader == "rEFInd 0.13"
    set_variable(host, "LoaderInfo", None)
    assert loaders.of(host).read().loader == "unknown"


@pytest.mark.parametrize(
    ("info", "line", "name"),
    [
        (None, f"BOOT_IMAGE=/boot/vmlinuz-{OLD} root=/dev/vda2 ro\n", "grub"),  # BIOS, or GRUB before 2.12
        ("GRUB 2.12", "root=/dev/vda2 ro\n", "grub"),
        (None, "root=/dev/vda2 ro\n", "unknown"),  # a kernel booted by the firmware, with GRUB still installed
        ("systemd-boot 252.39", f"BOOT_IMAGE=/boot/vmlinuz-{OLD} ro\n", "systemd-boot"),
    ],
)
def test_the_loader_is_known_by_what_it_says(host: FakeHost, info: str | None, line: str, name: str) -> None:
    set_variable(host, "LoaderInfo", info)
    host.put("/boot/grub/grub.cfg", "")
    host.put("/proc/cmdline", line)
    assert loaders.of(host).name == name


def test_the_tool_that_manages_the_esps_comes_before_the_loader_on_them(host: FakeHost) -> None:
    host.put("/etc/kernel/proxmox-boot-uuids", "AAAA-0001\n")
    state = loaders.of(host).read()
    assert (state.loader, state.problems[0].cause) == ("proxmox-boot-tool", "boot.esp_unreachable")


def test_only_conf_files_are_entries(host: FakeHost) -> None:
    host.put(f"{ESP}/loader/entries/.gpuhost-x", "linux /x\n")
    host.put(f"{ESP}/loader/entries/old.conf~", "linux /x\n")
    assert len(loaders.of(host).read().entries) == 2


def test_the_esp_may_be_mounted_elsewhere(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.put("/efi/loader/entries/a.conf", "version 6.1.0-1-amd64\nlinux /a\n")
    set_variable(host, "LoaderInfo", "systemd-boot 252")
    assert loaders.of(host).read().esps == ("/efi",)


def test_survey_says_what_boots(host: FakeHost) -> None:
    facts = boot.survey(loaders.of(host).read(), host, OLD)
    assert facts["policy"] is None
    assert facts["default_entry"] == NEW_ENTRY
    assert {entry["release"] for entry in facts["entries"]} == {OLD, NEW}


def test_room_is_twice_the_running_kernels_files(host: FakeHost) -> None:
    size = host.size_bytes(f"/boot/vmlinuz-{OLD}") + host.size_bytes(f"/boot/initrd.img-{OLD}")
    host.free = {"/boot": 5, ESP: 7}
    assert boot.room(host, loaders.of(host).read(), OLD) == [
        {"path": "/boot", "free_bytes": 5, "needed_bytes": 2 * size},
        {"path": ESP, "free_bytes": 7, "needed_bytes": 2 * size},
    ]


def test_module_files(host: FakeHost) -> None:
    files = boot.module_files(host, NEW)
    assert list(files) == list(NVIDIA_MODULES)
    assert files["nvidia-uvm"] == f"/lib/modules/{NEW}/updates/dkms/nvidia-uvm.ko.xz"
    assert set(boot.module_files(host, "6.9.0-1-amd64").values()) == {None}


def test_the_hashes_cover_everything_that_boots_the_fallback(host: FakeHost) -> None:
    hashes = hashes_of(host)
    assert set(hashes) == {
        f"{ESP}/loader/entries/{OLD_ENTRY}#{OLD_ENTRY}",
        f"{ESP}/{MACHINE}/{OLD}/linux",
        f"{ESP}/{MACHINE}/{OLD}/initrd.img-{OLD}",
        *(f"/lib/modules/{OLD}/updates/dkms/{name}.ko.xz" for name in NVIDIA_MODULES),
    }
    assert all(len(digest) == 64 for digest in hashes.values())


@pytest.mark.parametrize(
    "gone", [f"loader/entries/{OLD_ENTRY}", f"{MACHINE}/{OLD}/linux", f"{MACHINE}/{OLD}/initrd.img-{OLD}"]
)
def test_an_incomplete_fallback_is_none(host: FakeHost, gone: str) -> None:
    host.path(f"{ESP}/{gone}").unlink()
    with pytest.raises(Stop) as caught:
        hashes_of(host)
    assert caught.value.blocker.cause == "boot.fallback_missing"


def test_a_saved_default_is_not_guessed(host: FakeHost) -> None:
    host.put(f"{ESP}/loader/loader.conf", "default @saved\n")
    set_variable(host, "LoaderEntryLastBooted", OLD_ENTRY)
    assert boot.survey(loaders.of(host).read(), host, OLD)["default_entry"] != NEW_ENTRY
