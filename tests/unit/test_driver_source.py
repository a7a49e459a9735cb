"""Where the driver comes from, and which of its modules must exist for the target."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhost.dkms import NVIDIA_MODULES, parse_status
from gpuhost.driver_source import DriverSource, loaded_modules, needed_modules, precompiled_package, source

RUNNING, TARGET = "6.8.0-60-generic", "6.14.0-36-generic"
TREE = f"/lib/modules/{RUNNING}"
DKMS_FILES = [f"{TREE}/updates/dkms/{name}.ko.zst" for name in NVIDIA_MODULES]
RUN_FILES = [f"{TREE}/kernel/drivers/video/{name}.ko" for name in NVIDIA_MODULES]
PRECOMPILED = f"linux-modules-nvidia-580-server-open-{RUNNING}"
PRECOMPILED_FILES = [f"{TREE}/kernel/nvidia-580srv-open/{name}.ko" for name in NVIDIA_MODULES]
BUILT = f"nvidia/580.95.05, {RUNNING}, x86_64: installed\n"


def found(
    packages: dict[str, str], status: str = "", files: list[str] | None = None, traces: bool = False
) -> DriverSource:
    return source(packages | {"bash": "5.2"}, parse_status(status), files or [], RUNNING, traces)


@pytest.mark.parametrize(
    "name",
    [
        "nvidia-kernel-dkms",
        "nvidia-open-kernel-dkms",
        "nvidia-kernel-open-dkms",
        "nvidia-tesla-470-kernel-dkms",
        "nvidia-legacy-390xx-kernel-dkms",
        "nvidia-dkms-580",
        "nvidia-dkms-580-open",
        "nvidia-dkms-580-server",
        "nvidia-dkms-580-server-open",
        "nvidia-dkms-open",
        "nvidia-open-dkms",
        "nvidia-dkms",
        "nvidia-kernel-dkms:amd64",
    ],
)
def test_dkms_packages(name: str) -> None:
    driver = found({name: "580.95.05-1"}, BUILT, DKMS_FILES)
    assert (driver.kind, driver.packages, driver.needs_dkms, driver.cause) == ("dkms", (name,), True, None)


@pytest.mark.parametrize("name", ["nvidia-fs-dkms", "nvidia-peer-memory-dkms", "zfs-dkms", "nvidia-kernel-common-580"])
def test_other_packages(name: str) -> None:
    assert found({name: "1"}).kind == "none"


@pytest.mark.parametrize(
    ("package", "version", "status", "own"),
    [
        ("nvidia-open-kernel-dkms", "550.163.01-2", "nvidia-current-open/550.163.01: added", "550.163.01-2"),
        ("nvidia-kernel-dkms", "580.95.05-1", BUILT, ""),  # NVIDIA's repository for Debian
        ("nvidia-dkms-535-server", "535.288.01-0ubuntu0.24.04.1", "", "535.288.01-0ubuntu0.24.04.1"),
        ("nvidia-dkms-580", "580.95.05-0ubuntu1", BUILT, ""),  # NVIDIA's repository for Ubuntu
    ],
)
def test_who_maintains_the_package(package: str, version: str, status: str, own: str) -> None:
    assert found({package: version}, status).package_version == own


def test_precompiled() -> None:
    driver = found(
        {PRECOMPILED: "6.8.0-60.63", "linux-modules-nvidia-580-server-open-generic": "6"}, "", PRECOMPILED_FILES
    )
    assert driver == DriverSource("precompiled", (PRECOMPILED,), f"precompiled, package {PRECOMPILED}")
    assert not driver.needs_dkms
    assert driver.cause is None


def test_precompiled_package_for_the_target() -> None:
    names = [PRECOMPILED, "linux-modules-nvidia-550-6.8.0-59-generic", "linux-modules-nvidia-580-server-open-generic"]
    assert precompiled_package(names, RUNNING, TARGET) == f"linux-modules-nvidia-580-server-open-{TARGET}"
    plain = [f"linux-modules-nvidia-550-{RUNNING}", f"linux-modules-nvidia-580-{RUNNING}"]
    assert precompiled_package(plain, RUNNING, TARGET) == f"linux-modules-nvidia-580-{TARGET}"
    assert precompiled_package(names, "6.8.0-61-generic", TARGET) is None
    assert precompiled_package([], RUNNING, TARGET) is None


def test_dkms_wins_over_precompiled() -> None:
    """depmod searches updates/ first."""
    packages = {"nvidia-dkms-580": "580.95.05-0ubuntu1", PRECOMPILED: "6.8.0-60.63"}
    assert found(packages, BUILT, DKMS_FILES + PRECOMPILED_FILES).kind == "dkms"
    assert found({PRECOMPILED: "1"}, BUILT, DKMS_FILES).kind == "run_dkms"
    left_over = "nvidia/550.54.14: added\n"
    assert found({PRECOMPILED: "1"}, left_over, PRECOMPILED_FILES).kind == "precompiled"


def test_installer_with_dkms() -> None:
    driver = found({}, BUILT + f"zfs/2.2.7, {RUNNING}, x86_64: installed\n", DKMS_FILES, traces=True)
    assert (driver.kind, driver.packages, driver.needs_dkms, driver.cause) == ("run_dkms", (), True, None)
    assert driver.detail == "NVIDIA's installer, with DKMS (nvidia/580.95.05)"


@pytest.mark.parametrize("traces", [True, False])
def test_installer_without_dkms_is_refused(traces: bool) -> None:
    driver = found({}, f"zfs/2.2.7, {RUNNING}, x86_64: installed\n", RUN_FILES, traces)
    assert (driver.kind, driver.needs_dkms, driver.cause) == ("run", False, "driver.run_without_dkms")
    assert driver.detail.startswith(f"{RUN_FILES[0]}, put there by NVIDIA's installer without DKMS")


def test_built_by_hand_is_refused_too() -> None:
    driver = found({}, "", [f"{TREE}/updates/nvidia.ko"])
    assert driver.cause == "driver.run_without_dkms"
    assert "by hand" in driver.detail


def test_none() -> None:
    """The log of an installer that was uninstalled is no driver."""
    assert found({}, "", [f"{TREE}/kernel/drivers/i2c/i2c-nvidia-gpu.ko"], traces=True).kind == "none"
    assert found({}, "nvidia-fs/2.24.3: added\n").kind == "none"


def test_needed_modules() -> None:
    assert needed_modules(DKMS_FILES, []) == NVIDIA_MODULES
    assert needed_modules([], []) == ("nvidia", "nvidia-uvm")


def test_peermem_that_was_never_built_does_not_block() -> None:
    files = [f"{TREE}/updates/dkms/nvidia-current{rest}.ko" for rest in ("", "-uvm", "-modeset", "-drm")]
    assert needed_modules(files, ["nvidia", "nvidia_uvm"]) == ("nvidia", "nvidia-modeset", "nvidia-uvm", "nvidia-drm")


def test_loaded_modules_count() -> None:
    proc_modules = """\
nvidia_peermem 16384 0 - Live 0xffffffffc0a00000 (OE)
nvidia_uvm 2076672 4 - Live 0xffffffffc0900000 (OE)
nvidia 104071168 92 nvidia_peermem,nvidia_uvm, Live 0xffffffffc0100000 (OE)
nvidia_fs 323584 0 - Live 0xffffffffc0080000 (OE)
"""
    assert loaded_modules(proc_modules) == ("nvidia_peermem", "nvidia_uvm", "nvidia", "nvidia_fs")
    assert needed_modules([], loaded_modules(proc_modules)) == ("nvidia", "nvidia-uvm", "nvidia-peermem")


@given(st.dictionaries(st.text(max_size=30), st.text(max_size=10)), st.lists(st.text(max_size=40)))
def test_no_name_breaks_it(packages: dict[str, str], files: list[str]) -> None:
    source(packages, [], files, RUNNING, False)
    precompiled_package(packages, RUNNING, TARGET)
    needed_modules(files, packages)


@given(st.integers(100, 999), st.sampled_from(["", "-server"]), st.sampled_from(["", "-open"]))
def test_every_precompiled_name_has_its_counterpart(branch: int, server: str, flavour: str) -> None:
    stem = f"linux-modules-nvidia-{branch}{server}{flavour}-"
    assert precompiled_package([stem + RUNNING], RUNNING, TARGET) == stem + TARGET
