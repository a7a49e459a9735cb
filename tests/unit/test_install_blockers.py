"""What is known before anything is installed is a blocker of the plan, by the same functions as in the preflight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from defects_boot import a_kernel_that_kexec_has_loaded, apt_at_work, kexec_at_every_reboot
from defects_driver import run_file_without_dkms
from fake_host import FakeHost
from fake_ready import DEBIAN, PROXMOX, UBUNTU, Distribution, Root, ready
from fake_roll import CONTROLLER, RUN_ID, debian_host, facts_of, plan_of, step, wishes
from fake_tree import DRIVER, add_archive

from gpuhost import packages
from gpuhost.documents import Plan
from gpuhost.plan import make_plan


def not_yet_installed(folder: Path, kind: Distribution, archive: tuple[str, ...] | None = None) -> Root:
    """A clean root whose new kernel is only in the archive: all its packages, or those that are named."""
    root = ready(folder, kind)
    for name in kind.packages(kind.new):
        del root.host.packages[name]
    root.drop(f"/lib/modules/{kind.new}", f"/boot/vmlinuz-{kind.new}", root.image, root.entry(kind.new))
    for path in (f"/var/lib/dkms/nvidia/{DRIVER}/{kind.new}", f"/var/lib/dkms/nvidia/kernel-{kind.new}-x86_64"):
        if not kind.precompiled:
            root.drop(path)
    names = kind.packages(kind.new) if archive is None else archive
    root.host.archive = [(name, "1.0", "stable") for name in names]
    return root


def planned(root: Root) -> Plan:
    return make_plan(facts_of(root.host), wishes(target=root.new), RUN_ID, CONTROLLER)


def causes(made: Plan) -> list[str]:
    return [item.cause for item in made.blockers]


@pytest.mark.parametrize("kind", [DEBIAN, UBUNTU, PROXMOX], ids=lambda kind: kind.name)
def test_a_clean_host_has_no_blocker(tmp_path: Path, kind: Distribution) -> None:
    root = not_yet_installed(tmp_path, kind)
    root.host.calls = []
    made = planned(root)
    assert causes(made) == []
    assert made.target is not None
    assert made.target.headers_package == f"{kind.headers}{kind.new}"
    # dkms status takes seconds for each kernel: the survey reads its tree instead.
    assert {call[0] for call in root.host.calls} <= {"lxc-ls", "dpkg-query", "apt-cache"}


def driver_of(root: Root, version: str) -> None:
    root.host.path(f"/var/lib/dkms/nvidia/{DRIVER}").rename(root.host.path(f"/var/lib/dkms/nvidia/{version}"))


def too_old(root: Root) -> str:
    driver_of(root, "470.256.02")
    return "driver.too_old"


def of_the_wrong_flavour(root: Root) -> str:
    root.host.put("/sys/bus/pci/devices/0000:01:00.0/device", "0x2bb5\n")
    root.host.put("/sys/module/nvidia/taint", "POE\n")
    return "driver.wrong_flavour"


def held_headers(root: Root) -> str:
    root.host.packages[f"{root.kind.headers}{root.new}"] = ("", "hn")
    return "apt.held"


def without_dkms(root: Root) -> str:
    root.host.path(f"/lib/modules/{root.new}/updates").mkdir(parents=True)
    return run_file_without_dkms(root)


@pytest.mark.parametrize(
    "spoil",
    [
        apt_at_work, a_kernel_that_kexec_has_loaded, kexec_at_every_reboot, held_headers, without_dkms, too_old,
        of_the_wrong_flavour,
    ],
)  # fmt: skip
def test_each_is_named_before_anything_is_installed(tmp_path: Path, spoil: Callable[[Root], str]) -> None:
    root = not_yet_installed(tmp_path, DEBIAN)
    code = spoil(root)
    made = planned(root)
    assert causes(made) == [code]
    assert made.blockers[0].object
    assert made.blockers[0].observed
    assert made.blockers[0].next_step


def test_a_driver_that_is_too_old_is_named_with_the_way_out(tmp_path: Path) -> None:
    root = not_yet_installed(tmp_path, DEBIAN)
    too_old(root)
    sentence = planned(root).blockers[0].sentence
    assert "NVIDIA driver 470.256.02" in sentence
    assert "Linux 6.12 and later" in sentence
    assert "535.247.01" in sentence


def test_a_driver_that_is_built_already_is_not_too_old(tmp_path: Path) -> None:
    root = ready(tmp_path)
    driver_of(root, "470.256.02")
    root.drop(f"/var/lib/dkms/nvidia/kernel-{root.new}-x86_64")
    root.host.path(f"/var/lib/dkms/nvidia/kernel-{root.new}-x86_64").symlink_to(f"470.256.02/{root.new}/x86_64")
    assert causes(planned(root)) == []


@pytest.mark.parametrize(
    ("stem", "code"),
    [
        ("linux-modules-nvidia-570-server-open-", "driver.precompiled_missing"),
        ("linux-modules-extra-", "boot.modules_extra_missing"),
    ],
)
def test_a_package_of_ubuntu_that_no_archive_has(tmp_path: Path, stem: str, code: str) -> None:
    names = tuple(name for name in UBUNTU.packages(UBUNTU.new) if not name.startswith(stem))
    made = planned(not_yet_installed(tmp_path, UBUNTU, names))
    assert causes(made) == [code]
    assert made.blockers[0].object == f"{stem}{UBUNTU.new}"


def test_packages_of_ubuntu_come_along_with_the_kernel(tmp_path: Path) -> None:
    made = planned(not_yet_installed(tmp_path, UBUNTU))
    assert made.target is not None
    names = {f"linux-modules-nvidia-570-server-open-{UBUNTU.new}", f"linux-modules-extra-{UBUNTU.new}"}
    assert set(made.target.companions) == names
    assert all(name in made.steps[1].text for name in names)
    assert names <= set(packages.arguments(made.target))


def test_case_roll_03_holds_and_replaced_libraries_are_noted(tmp_path: Path) -> None:
    root = not_yet_installed(tmp_path, UBUNTU)
    held = {"nvidia-driver-590-open": ("590.48.01", "hi"), "linux-image-generic-hwe-24.04": ("6.14", "hi")}
    root.host.packages.update(held)
    root.host.put("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.590.48.01", "ELF")
    made = planned(root)
    assert causes(made) == []
    assert any(all(name in line for name in held) for line in made.notes)
    assert any(DRIVER in line and "590.48.01" in line for line in made.notes)
    assert not root.host.ran("apt-mark")


def test_case_roll_03_an_apt_that_ends_is_waited_for(tmp_path: Path) -> None:
    root = not_yet_installed(tmp_path, DEBIAN)
    apt_at_work(root)
    sleep, began = root.host.sleep, root.host.seconds

    def finish(seconds: float) -> None:
        sleep(seconds)
        if root.host.seconds > began + 40:
            root.host.put("/proc/locks", "")

    root.host.sleep = finish  # type: ignore[method-assign]
    assert causes(planned(root)) == []
    assert root.host.seconds > began + 40


def test_a_roll_that_goes_on_leaves_them_to_its_preflight(tmp_path: Path) -> None:
    host = debian_host(tmp_path, installed=False)
    step(host, "gpuhost_boot_trial", action="hold", plan=plan_of(host))
    host.put("/sys/kernel/kexec_loaded", "1\n")
    assert plan_of(host)["blockers"] == []


def test_two_versions_of_the_driver(tmp_path: Path) -> None:
    """DKMS would build the newest one that it knows."""
    root = not_yet_installed(tmp_path, DEBIAN)
    root.host.path("/var/lib/dkms/nvidia/470.256.02/source").mkdir(parents=True)
    facts: dict[str, Any] = facts_of(root.host)
    assert facts["driver"]["dkms_version"] == DRIVER
    assert causes(planned(root)) == []


def test_libraries_where_debian_keeps_them(tmp_path: Path) -> None:
    host: FakeHost = debian_host(tmp_path)
    add_archive(host, "6.12.120+deb12-cloud-amd64")
    host.put("/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.570.124.06", "ELF")
    assert facts_of(host)["driver"]["library_version"] == "570.124.06"
