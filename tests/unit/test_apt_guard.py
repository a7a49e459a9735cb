"""Case roll-03: the lock is held, packages are held, timers may fire, needrestart wants to ask; and kexec."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhost.apt import PackageChange, Transaction, blocked
from gpuhost.apt_guard import (
    LOCK_FILES,
    held,
    held_in_the_way,
    held_meta,
    kexec_armed,
    lock_holder,
    needrestart_environment,
    reboot_pending_libraries,
    unattended_state,
)

IMAGE, HEADERS = "linux-image-6.14.0-36-generic", "linux-headers-6.14.0-36-generic"
SHOWHOLD = "nvidia-driver-590-open\nlinux-image-generic-hwe-24.04\n"


def test_case_roll_03_holds() -> None:
    """Neither hold is in the way of exact versions; either is where the target needs it. Nothing is un-held."""
    assert held(SHOWHOLD) == ("nvidia-driver-590-open", "linux-image-generic-hwe-24.04")
    assert held_in_the_way(SHOWHOLD, [IMAGE, HEADERS]) == ()
    assert held_in_the_way(SHOWHOLD, [IMAGE, "linux-image-generic-hwe-24.04"]) == ("linux-image-generic-hwe-24.04",)
    assert held_in_the_way(f"{SHOWHOLD}{HEADERS}\n", [IMAGE, HEADERS]) == (HEADERS,)
    assert held_in_the_way(f"{IMAGE}:amd64\n", [f"{IMAGE}"]) == (IMAGE,)
    assert held_in_the_way("", [IMAGE]) == ()


def test_held_meta_packages() -> None:
    metas = (
        "linux-image-amd64",
        "linux-headers-cloud-amd64",
        "linux-generic-hwe-24.04",
        "linux-modules-nvidia-580-server-open-generic",
        "proxmox-default-kernel",
        "proxmox-headers-6.14",
        "pve-kernel-6.2",
        "nvidia-driver-590-open",
        "cuda-drivers-580",
    )
    exact = (IMAGE, HEADERS, f"linux-modules-nvidia-580-{IMAGE[12:]}", "proxmox-kernel-6.14.11-5-pve-signed", "bash")
    assert held_meta("\n".join(metas + exact)) == metas


#: Form of proc(5); the numbers are synthetic.
PROC_LOCKS = """\
1: FLOCK  ADVISORY  WRITE 901 00:19:1032 0 EOF
2: POSIX  ADVISORY  READ  733 08:01:131105 0 EOF
3: POSIX  ADVISORY  WRITE 5043 08:01:131105 0 EOF
3: -> POSIX  ADVISORY  WRITE 6001 08:01:131105 0 EOF
4: OFDLCK ADVISORY  READ  -1 00:06:5 0 EOF
"""


def test_case_roll_03_who_holds_the_lock() -> None:
    inodes = {131105: LOCK_FILES[0], 131106: LOCK_FILES[1]}
    expected = "unattended-upgr (pid 5043) holds /var/lib/dpkg/lock-frontend"
    assert lock_holder(PROC_LOCKS, inodes, {5043: "unattended-upgr\n", 6001: "apt-get\n"}) == expected
    assert lock_holder(PROC_LOCKS, inodes, {}) == "a process (pid 5043) holds /var/lib/dpkg/lock-frontend"
    assert lock_holder(PROC_LOCKS, {131106: LOCK_FILES[1]}, {}) is None
    assert lock_holder("", inodes, {}) is None


def test_case_roll_03_timers() -> None:
    units = {
        "apt-daily.timer": "active",
        "apt-daily-upgrade.timer": "inactive",
        "apt-daily.service": "inactive",
        "apt-daily-upgrade.service": "activating\n",
        "fstrim.timer": "active",
    }
    assert unattended_state(units) == ("apt-daily.timer", "apt-daily-upgrade.service")
    assert unattended_state({"unattended-upgrades.service": "active"}) == ("unattended-upgrades.service",)
    assert unattended_state({}) == ()


def test_case_roll_03_needrestart_neither_asks_nor_restarts() -> None:
    """The hook tests NEEDRESTART_SUSPEND for not empty; the modes are l, i and a."""
    environment = needrestart_environment()
    assert environment["NEEDRESTART_SUSPEND"]
    assert environment["NEEDRESTART_MODE"] == "l"
    assert environment["DEBIAN_FRONTEND"] == "noninteractive"


def test_case_roll_03_libraries_replaced_under_the_module() -> None:
    assert reboot_pending_libraries("580.82.07\n", "580.95.05") == (
        "the loaded module is 580.82.07, the libraries are 580.95.05: replaced since the last boot"
    )
    assert reboot_pending_libraries("580.95.05\n", "580.95.05") is None
    assert reboot_pending_libraries("", "580.95.05") is None
    assert reboot_pending_libraries("580.95.05", None) is None


DEFAULTS = """\
# Load a kexec kernel (true/false)
LOAD_KEXEC={value}
# Kernel and initrd image
KERNEL_IMAGE="/vmlinuz"
USE_GRUB_CONFIG=false
"""


@pytest.mark.parametrize(
    ("loaded", "defaults", "units", "armed"),
    [
        ("0\n", "", {}, False),
        ("", "", {}, False),  # a kernel without kexec
        ("1\n", "", {}, True),
        ("1\n", DEFAULTS.format(value="false"), {"kexec-load.service": "masked"}, True),
        ("0\n", DEFAULTS.format(value="true"), {}, True),
        ("0\n", DEFAULTS.format(value='"true"'), {"kexec-load.service": "enabled"}, True),
        ("0\n", DEFAULTS.format(value="true"), {"kexec-load.service": "generated", "kexec.service": ""}, True),
        ("0\n", DEFAULTS.format(value="true"), {"kexec-load.service": "disabled", "kexec.service": "masked"}, False),
        ("0\n", DEFAULTS.format(value="false"), {}, False),
        ("0\n", DEFAULTS.format(value="true") + "LOAD_KEXEC=false\n", {}, False),  # kexec.d has the last word
        ("0\n", DEFAULTS.format(value="false") + "LOAD_KEXEC=true # site\n", {}, True),
        ("0\n", "#LOAD_KEXEC=true\n", {}, False),
    ],
)
def test_kexec(loaded: str, defaults: str, units: dict[str, str], armed: bool) -> None:
    assert (kexec_armed(loaded, defaults, units) is not None) is armed


@pytest.mark.parametrize(
    "name",
    [
        "nvidia-driver-590-open",
        "nvidia-dkms-580",
        "nvidia-kernel-open-dkms",
        "nvidia-firmware-580-580.95.05",
        "libnvidia-compute-580",
        "libnvidia-ml1:i386",
        "firmware-nvidia-gsp",
        "cuda-drivers",
        "libcuda1",
        "zfsutils-linux",
        "zfs-initramfs",
        "libzfs4linux",
        "pve-manager",
        "pve-kernel-6.2.16-3-pve",
        "proxmox-ve",
        "proxmox-kernel-helper",
        "grub-efi-amd64-signed",
        "grub-pc",
        "systemd-boot",
        "systemd-boot-efi",
        "shim-signed",
    ],
)
def test_no_package_that_keeps_the_host_alive_changes_on_the_side(name: str) -> None:
    """apt.blocked guards them: installed, changed, downgraded or removed."""
    for transaction in (
        Transaction(installs=(PackageChange(name, None, "2"),)),
        Transaction(upgrades=(PackageChange(name, "1", "2"),)),
        Transaction(downgrades=(PackageChange(name, "2", "1"),)),
        Transaction(removals=(PackageChange(name, "1", None),)),
    ):
        assert blocked(transaction, [IMAGE, HEADERS]), transaction


@given(st.text(max_size=200))
def test_no_text_breaks_a_parser(text: str) -> None:
    held_in_the_way(text, [text])
    held_meta(text)
    lock_holder(text, {1: "x"}, {})
    kexec_armed(text, text, {})
    reboot_pending_libraries(text, text)
