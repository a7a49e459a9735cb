"""What boots, read from a tree and from EFI variables in their own bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_host import FakeHost
from fake_roll import debian_host
from fake_tree import EFIVARS, ESP, GUID, MACHINE, NEW, NEW_ENTRY, OLD, OLD_ENTRY, set_variable

from gpuhost import boot
from gpuhost.dkms import NVIDIA_MODULES
from gpuhost.errors import Stop


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return debian_host(tmp_path)


def test_the_state_of_a_debian_host(host: FakeHost) -> None:
    state = boot.read(host)
    assert state.loader == "systemd-boot"
    assert state.esp == ESP
    assert state.default is None
    assert (state.one_shot, state.efi_default) == (None, None)
    assert [entry.filename for entry in state.entries] == [NEW_ENTRY, OLD_ENTRY]


def test_without_a_default_the_newest_boots(host: FakeHost) -> None:
    entry = boot.read(host).next_boot()
    assert entry is not None
    assert entry.version == NEW


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
    entry = boot.read(host).next_boot()
    assert entry is not None
    assert entry.version == release


def test_the_variables_are_read_in_the_firmwares_bytes(host: FakeHost) -> None:
    raw = b"\x07\0\0\0" + "old.conf".encode("utf-16-le") + b"\0\0"
    host.put(f"{EFIVARS}/LoaderEntryOneShot-{GUID}", raw)
    assert boot.read(host).one_shot == "old.conf"


def test_a_broken_variable_is_a_stop(host: FakeHost) -> None:
    host.put(f"{EFIVARS}/LoaderEntryOneShot-{GUID}", b"\x07\0\0\0a")
    with pytest.raises(Stop):
        boot.read(host)


def test_no_esp_and_no_uefi_give_an_empty_state(tmp_path: Path) -> None:
    state = boot.read(FakeHost(tmp_path))
    assert (state.esp, state.entries, state.loader, state.next_boot()) == (None, (), "unknown", None)


def test_another_loader_is_named(host: FakeHost) -> None:
    set_variable(host, "LoaderInfo", "rEFInd 0.13")
    assert boot.read(host).loader == "rEFInd 0.13"
    set_variable(host, "LoaderInfo", None)
    assert boot.read(host).loader == "unknown"


def test_only_conf_files_are_entries(host: FakeHost) -> None:
    host.put(f"{ESP}/loader/entries/.gpuhost-x", "linux /x\n")
    host.put(f"{ESP}/loader/entries/old.conf~", "linux /x\n")
    assert len(boot.read(host).entries) == 2


def test_the_esp_may_be_mounted_elsewhere(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.put("/efi/loader/entries/a.conf", "version 6.1.0-1-amd64\nlinux /a\n")
    assert boot.read(host).esp == "/efi"


def test_survey_says_what_boots(host: FakeHost) -> None:
    facts = boot.survey(host, OLD)
    assert facts["default"] is None
    assert facts["default_entry"] == NEW_ENTRY
    assert {entry["version"] for entry in facts["entries"]} == {OLD, NEW}
    assert facts["cmdline_file"].endswith("panic=30\n")


def test_room_is_twice_the_running_kernels_files(host: FakeHost) -> None:
    size = host.size_bytes(f"/boot/vmlinuz-{OLD}") + host.size_bytes(f"/boot/initrd.img-{OLD}")
    host.free = {"/boot": 5, ESP: 7}
    assert boot.room(host, boot.read(host), OLD) == [
        {"path": "/boot", "free_bytes": 5, "needed_bytes": 2 * size},
        {"path": ESP, "free_bytes": 7, "needed_bytes": 2 * size},
    ]


def test_module_files(host: FakeHost) -> None:
    files = boot.module_files(host, NEW)
    assert list(files) == list(NVIDIA_MODULES)
    assert files["nvidia-uvm"] == f"/lib/modules/{NEW}/updates/dkms/nvidia-uvm.ko.xz"
    assert set(boot.module_files(host, "6.9.0-1-amd64").values()) == {None}


def test_the_hashes_cover_everything_that_boots_the_fallback(host: FakeHost) -> None:
    hashes = boot.fallback_hashes(host, boot.read(host), OLD)
    assert set(hashes) == {
        f"{ESP}/loader/entries/{OLD_ENTRY}",
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
        boot.fallback_hashes(host, boot.read(host), OLD)
    assert caught.value.blocker.cause == "boot.fallback_missing"


def test_a_saved_default_is_not_guessed(host: FakeHost) -> None:
    host.put(f"{ESP}/loader/loader.conf", "default @saved\n")
    set_variable(host, "LoaderEntryLastBooted", OLD_ENTRY)
    assert boot.survey(host, OLD)["default_entry"] != NEW_ENTRY
