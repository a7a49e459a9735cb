"""DKMS's answer from its own tree: the states of dkms 2.8 to 3.4 and the notes that it adds to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_host import FakeHost
from fake_tree import NEW, OLD, dkms_build, link_to, module_text

from gpuhost.dkms import NVIDIA_MODULES, DkmsLine, is_ready
from gpuhost.dkms_tree import TREE, built_modules, failed_build, read_status

VERSION = "570.124.06"
INSTALLED = f"/lib/modules/{NEW}/updates/dkms"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """The driver built and installed for both kernels."""
    made = FakeHost(tmp_path)
    for release in (OLD, NEW):
        for name in NVIDIA_MODULES:
            made.put(f"/lib/modules/{release}/updates/dkms/{name}.ko.xz", module_text(release, version=VERSION))
        dkms_build(made, release)
    made.put(f"{TREE}/mok.key", "key")
    made.put(f"{TREE}/dkms_dbversion", "2")
    return made


def line(kernel: str | None, state: str, note: str | None = None, module: str = "nvidia") -> DkmsLine:
    return DkmsLine(module, VERSION, kernel, "x86_64" if kernel else None, state, note)


def status(host: FakeHost) -> list[DkmsLine]:
    return read_status(host, host.files_below(f"/lib/modules/{NEW}"), NEW)


def test_installed_for_two_kernels(host: FakeHost) -> None:
    assert sorted(status(host), key=str) == sorted([line(OLD, "installed"), line(NEW, "installed")], key=str)
    assert status(host) == read_status(host)
    assert all(is_ready(item) for item in status(host))


def test_no_dkms(tmp_path: Path) -> None:
    assert read_status(FakeHost(tmp_path)) == []


def test_only_added(host: FakeHost) -> None:
    for release in (OLD, NEW):
        host.path(f"{TREE}/nvidia/kernel-{release}-x86_64").unlink()
        for name in NVIDIA_MODULES:
            host.path(f"{TREE}/nvidia/{VERSION}/{release}/x86_64/module/{name}.ko.xz").unlink()
    assert status(host) == [line(None, "added")]


def test_a_folder_without_source_is_not_added(host: FakeHost) -> None:
    host.path(f"{TREE}/nvidia/{VERSION}/source").rmdir()
    assert status(host) == []


def test_a_source_that_is_gone_still_counts(host: FakeHost) -> None:
    host.path(f"{TREE}/nvidia/{VERSION}/source").rmdir()
    host.path(f"{TREE}/nvidia/{VERSION}/source").symlink_to("/usr/src/nvidia-gone")
    assert len(status(host)) == 2


def test_built_and_not_installed(host: FakeHost) -> None:
    host.path(f"{TREE}/nvidia/kernel-{NEW}-x86_64").unlink()
    assert line(NEW, "built") in status(host)
    assert line(OLD, "installed") in status(host)


def test_the_link_leads_to_another_version(host: FakeHost) -> None:
    """After an upgrade: the older version's build is still in the tree, and no longer what is installed."""
    host.path(f"{TREE}/nvidia/580.95.05/source").mkdir(parents=True)
    host.put(f"{TREE}/nvidia/580.95.05/{NEW}/x86_64/module/nvidia.ko.xz", "")
    host.path(f"{TREE}/nvidia/kernel-{NEW}-x86_64").unlink()
    link_to(host, f"{TREE}/nvidia/kernel-{NEW}-x86_64", f"{TREE}/nvidia/580.95.05/{NEW}/x86_64")
    found = {(item.version, item.kernel): item.state for item in read_status(host)}
    assert found[(VERSION, NEW)] == "built"
    assert found[("580.95.05", NEW)] == "installed"


def test_an_absolute_link(host: FakeHost) -> None:
    place = host.path(f"{TREE}/nvidia/kernel-{NEW}-x86_64")
    place.unlink()
    place.symlink_to(host.path(f"{TREE}/nvidia/{VERSION}/{NEW}/x86_64"))
    assert line(NEW, "installed") in status(host)


def test_a_file_that_is_not_what_was_built(host: FakeHost) -> None:
    host.put(f"{INSTALLED}/nvidia-uvm.ko.xz", "another")
    assert line(NEW, "installed", "differs") in status(host)
    host.path(f"{INSTALLED}/nvidia-uvm.ko.xz").unlink()
    assert line(NEW, "installed", "missing") in status(host)


def test_a_module_of_the_distribution_that_was_put_aside(host: FakeHost) -> None:
    host.put(f"{TREE}/nvidia/original_module/{NEW}/x86_64/nvidia.ko", "")
    (found,) = [item for item in status(host) if item.kernel == NEW]
    assert found.warning == "original"
    assert is_ready(found)


def test_what_a_module_brings(host: FakeHost) -> None:
    assert built_modules(host, f"nvidia/{VERSION}", OLD) == set(NVIDIA_MODULES)
    assert built_modules(host, "zfs/2.3.4", OLD) == set()


def test_the_log_of_a_failed_build(host: FakeHost) -> None:
    assert failed_build(host, "nvidia", VERSION) is None
    host.put(f"{TREE}/nvidia/{VERSION}/build/make.log", "error")
    assert failed_build(host, "nvidia", VERSION) == (f"{TREE}/nvidia/{VERSION}/build/make.log", "error")
