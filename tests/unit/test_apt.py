"""apt's and dpkg's texts. Files of fixtures/apt are real; texts written out here are synthetic."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhost.apt import (
    MadisonLine,
    PackageChange,
    PackageState,
    Transaction,
    blocked,
    half_configured,
    parse_apt_error,
    parse_dpkg_status,
    parse_madison,
    parse_simulation,
)

FIXTURES = Path(__file__).parent.parent / "fixtures/apt"
IMAGE = "linux-image-6.12.117+deb12-cloud-amd64"


def read(name: str) -> str:
    return (FIXTURES / name).read_text()


def test_madison_of_a_real_archive() -> None:
    text = read("madison-bookworm.txt")
    lines = parse_madison(text)
    assert len(lines) == len(text.splitlines())
    assert MadisonLine(IMAGE, "6.12.117-1~deb12u1", "bookworm-security") in lines
    both = [line.suite for line in lines if line.package == "linux-image-6.1.0-50-amd64"]
    assert both == ["bookworm", "bookworm-security"]


def test_madison_of_other_archives() -> None:
    text = """\
 linux | 6.1.192-3 | http://deb.debian.org/debian-security bookworm-security/main Sources
 cuda-toolkit | 13.0.1-1 | https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64  Packages
 local | 1.0 | file:/srv/repo ./ Packages
 bash | 5.2 | cdrom:[Debian GNU/Linux 12.0.0 _Bookworm_ - Official amd64 NETINST]/ bookworm/main amd64 Packages
 pve-kernel-6.2.16-3-pve | 6.2.16-3 | http://download.proxmox.com/debian/pve bookworm/pve-no-subscription amd64 Packages
N: Unable to locate package nothing
"""
    assert [(line.package, line.suite) for line in parse_madison(text)] == [
        ("cuda-toolkit", ""),
        ("local", ""),
        ("bash", "bookworm"),
        ("pve-kernel-6.2.16-3-pve", "bookworm"),
    ]


def test_simulated_installation() -> None:
    tx = parse_simulation(read("simulate-kernel-and-headers.txt"))
    image = next(change for change in tx.installs if change.name == IMAGE)
    assert image == PackageChange(IMAGE, None, "6.12.117-1~deb12u1", "Debian-Security:12/oldstable-security")
    base = next(change for change in tx.installs if change.name == "linux-base")
    assert base.suite == "Debian:12.15/oldstable, Debian-Security:12/oldstable-security"
    assert "linux-kbuild-6.12.117+deb12" in {change.name for change in tx.installs}
    assert not tx.removals
    assert not tx.downgrades
    assert blocked(tx, [IMAGE]) == ()


def test_simulated_upgrade_with_brackets_at_the_end() -> None:
    tx = parse_simulation(read("simulate-upgrade.txt"))
    assert not tx.installs
    assert [change.name for change in tx.upgrades] == [
        "libpam0g",
        "libpam-modules-bin",
        "libpam-modules",
        "libpam-runtime",
        "libssl-dev",
        "libssl3",
        "openssl",
    ]
    assert tx.upgrades[-1] == PackageChange(
        "openssl", "3.0.19-1~deb12u2", "3.0.22-1~deb12u2", "Debian-Security:12/oldstable-security"
    )


def test_simulated_downgrade() -> None:
    tx = parse_simulation(read("simulate-downgrade.txt"))
    assert [change.name for change in tx.downgrades] == ["tzdata"]
    assert not tx.upgrades


@pytest.mark.parametrize("name", ["simulate-remove.txt", "simulate-purge.txt"])
def test_simulated_removal(name: str) -> None:
    tx = parse_simulation(read(name))
    assert len(tx.removals) == 6
    assert PackageChange("dpkg-dev", "1.21.22", None) in tx.removals
    assert "would remove dpkg-dev 1.21.22" in blocked(tx, ["dpkg-dev"])


def test_nothing_to_do() -> None:
    assert parse_simulation("bash is already the newest version (5.2.15-2+b8).\n").empty


GUARD_TEXT = """\
Inst nvidia-driver [580.95.05-1] (590.48.01-1 NVIDIA:NVIDIA CUDA [amd64])
Inst libcuda1:i386 [580.95.05-1] (590.48.01-1 NVIDIA:NVIDIA CUDA [i386])
Inst libzfs4linux [2.2.6-pve1] (2.2.7-pve1 Proxmox Debian Repository:stable [amd64])
Inst grub-efi-amd64 [2.06-13] (2.06-13 Debian:12/stable [amd64])
Inst firmware-nvidia-gsp [590.48.01-1] (580.95.05-1 NVIDIA:NVIDIA CUDA [amd64])
Inst proxmox-kernel-6.14.11-5-bpo12-pve-signed (6.14.11-5~bpo12+1 Proxmox Debian Repository:stable [all])
Inst proxmox-headers-6.14.11-5-bpo12-pve (6.14.11-5~bpo12+1 Proxmox Debian Repository:stable [amd64])
Inst pve-firmware [3.15-1] (3.16-2 Proxmox Debian Repository:stable [all])
Inst local (1.0 local-deb [all])
Inst vim [1] (2 Debian:12/stable [amd64])
Remv proxmox-ve [8.2.0]
"""


def test_guarded_packages_block() -> None:
    """Synthetic."""
    tx = parse_simulation(GUARD_TEXT)
    wanted = ["proxmox-kernel-6.14.11-5-bpo12-pve-signed", "proxmox-headers-6.14.11-5-bpo12-pve"]
    assert blocked(tx, wanted) == (
        "would remove proxmox-ve 8.2.0",
        "would change nvidia-driver 580.95.05-1 -> 590.48.01-1",
        "would change libcuda1:i386 580.95.05-1 -> 590.48.01-1",
        "would change libzfs4linux 2.2.6-pve1 -> 2.2.7-pve1",
        "would reinstall grub-efi-amd64 2.06-13",
        "would change pve-firmware 3.15-1 -> 3.16-2",
        "would change firmware-nvidia-gsp 590.48.01-1 -> 580.95.05-1",
    )
    assert "would install proxmox-headers-6.14.11-5-bpo12-pve 6.14.11-5~bpo12+1" in blocked(tx, wanted[:1])
    assert not any("libcuda1" in reason for reason in blocked(tx, ["libcuda1"]))
    local = next(change for change in tx.installs if change.name == "local")
    assert (local.new, local.suite) == ("1.0", "local-deb")


@pytest.mark.parametrize("name", ["systemd-boot-efi", "shim-signed", "cuda-drivers", "zfs-dkms", "libnvidia-ml1"])
def test_each_guard(name: str) -> None:
    assert blocked(Transaction(installs=(PackageChange(name, None, "1"),)), [IMAGE]) == (f"would install {name} 1",)


@pytest.mark.parametrize(
    "name",
    [
        "dkms", "libzpool5linux", "libnvpair3linux", "libuutil3linux", "libpve-common-perl", "proxmox-kernel-helper",
        "shim-signed", "qemu-server", "zfs-initramfs", "pve-manager", "nvidia-kernel-common-580", "libnvidia-cfg1-580",
    ],
)  # fmt: skip
def test_what_keeps_the_host_alive_does_not_change_with_a_kernel(name: str) -> None:
    change = PackageChange(name, "1", "2")
    assert blocked(Transaction(upgrades=(change,)), [IMAGE]) == (f"would change {name} 1 -> 2",)
    assert blocked(Transaction(removals=(PackageChange(name, "1", None),)), [IMAGE]) == (f"would remove {name} 1",)


@pytest.mark.parametrize("stem", ["linux-modules-nvidia-580-", "linux-objects-nvidia-580-", "linux-signatures-nvidia-"])
def test_a_precompiled_driver_comes_with_its_kernel_and_is_not_changed(stem: str) -> None:
    name = f"{stem}6.14.0-36-generic"
    assert blocked(Transaction(installs=(PackageChange(name, None, "1"),)), [IMAGE]) == ()
    assert blocked(Transaction(upgrades=(PackageChange(name, "1", "2"),)), [IMAGE]) == (f"would change {name} 1 -> 2",)
    assert blocked(Transaction(removals=(PackageChange(name, "1", None),)), [IMAGE]) == (f"would remove {name} 1",)


@pytest.mark.parametrize("name", ["linux-image-6.1.0-58-amd64", "systemd", "libgrub", "pvesomething", "linux-base"])
def test_others_may_change(name: str) -> None:
    assert blocked(Transaction(upgrades=(PackageChange(name, "1", "2"),)), [IMAGE]) == ()


def test_dpkg_states() -> None:
    states = parse_dpkg_status(read("dpkg-query.txt"))
    assert states["bash"] == PackageState("bash", "5.2.15-2+b8", "i", "i")
    assert all(state.installed for state in states.values())
    assert half_configured(states) == ()


def test_half_configured_kernel_of_case_dkms_04() -> None:
    """Synthetic lines with the states that the case reports."""
    text = (
        "proxmox-kernel-6.17.13-2-pve-signed\t6.17.13-2\tiF \n"
        "proxmox-kernel-6.14.11-5-pve-signed\t6.14.11-5\tii \n"
        "nvidia-driver\t580\thi \n"
        "old\t1\trc \n"
        "broken\t1\tiHR\n"
        "initramfs-tools\t0.142\tit \n"
        "libc6\t2.36\tii \n"
        "libc6\t2.36\tiU \n"
        "gone\t\tun \n"
        "not a line\n"
    )
    states = parse_dpkg_status(text)
    assert half_configured(states) == (
        "broken (iHR)",
        "initramfs-tools (it)",
        "libc6 (iU)",
        "proxmox-kernel-6.17.13-2-pve-signed (iF)",
    )
    assert states["proxmox-kernel-6.14.11-5-pve-signed"].installed
    assert states["nvidia-driver"].installed
    assert states["nvidia-driver"].held
    assert not states["old"].installed
    assert not states["gone"].installed


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("error-locate.txt", "Unable to locate package no-such-kernel"),
        ("error-version.txt", "Version '1.2.3' for 'linux-image-6.12.117+deb12-cloud-amd64' was not found"),
        ("error-headers-gone.txt", "Unable to locate package linux-headers-6.12.100+deb12-cloud-amd64"),
        ("error-no-remove.txt", "Packages need to be removed but remove is disabled."),
        (
            "error-unmet.txt",
            "Unable to correct problems, you have held broken packages.; linux-image-6.12.107+deb12-amd64 : Conflicts: "
            "linux-image-6.12.107+deb12-amd64-unsigned but 6.12.107-1~deb12u1 is to be installed",
        ),
        ("simulate-upgrade.txt", ""),
    ],
)
def test_real_errors(name: str, text: str) -> None:
    assert parse_apt_error(read(name)) == text


@pytest.mark.parametrize(
    ("stderr", "text"),
    [
        (
            "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 5043 (unattended-upgr)\n"
            "N: Be aware that removing the lock file is not a solution and may break your system.\n"
            "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?\n",
            "Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 5043 (unattended-upgr); Unable to "
            "acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?",
        ),
        (
            "W: something\nE: You don't have enough free space in /var/cache/apt/archives/.\n",
            "You don't have enough free space in /var/cache/apt/archives/.",
        ),
        (
            "dpkg: error processing package linux-image-6.12 (--configure):\n"
            "E: Sub-process /usr/bin/dpkg returned an error code (1)\n",
            "dpkg: error processing package linux-image-6.12 (--configure):",
        ),
        (
            "E: Sub-process /usr/bin/dpkg returned an error code (1)\n",
            "Sub-process /usr/bin/dpkg returned an error code (1)",
        ),
        ("W: only a warning\n", ""),
    ],
)
def test_other_errors(stderr: str, text: str) -> None:
    """Synthetic, in apt's own words."""
    assert parse_apt_error(stderr) == text


@given(st.text(max_size=200))
def test_no_text_breaks_a_parser(text: str) -> None:
    parse_madison(text)
    parse_simulation(text)
    parse_dpkg_status(text)
    parse_apt_error(text)
