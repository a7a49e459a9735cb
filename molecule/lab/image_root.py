"""Build the base image's root file system in a folder.

`bootstrap` runs on the building machine; `customize` runs in a private mount namespace
of its own (see image.py), so that /proc, /sys and /dev are there for DKMS and vanish
with the process, whatever happens.
"""

import os
import re
import shutil
from pathlib import Path

from .apt_sources import SUITE, apt_settings, archives, for_guest, render_deb822
from .command import run, run_logged, say
from .errors import LabError
from .image_recipe import (
    DRIVER_NAME,
    DRIVER_VERSION,
    KERNEL_META,
    KERNEL_SERIES,
    Loader,
    packages,
    rootfs_folders,
)
from .paths import SOURCES

# Measured: 54 s on two cores with a mirror nearby; a slow mirror takes several times that.
BOOTSTRAP_EXPECTED_S = 60
BOOTSTRAP_LIMIT_S = 1200
# A package, module or user space step in the chroot: seconds each, apt up to a minute.
STEP_LIMIT_S = 600

# Timers that would take apt's lock in the middle of a test, consoles that nobody sees,
# and waits for a network that is static.
MASKED_UNITS = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty@tty1.service",
    "serial-getty@ttyS0.service",
    "lxc-net.service",
    "systemd-networkd-wait-online.service",
)
ENABLED_UNITS = (
    "ssh.service",
    "systemd-networkd.service",
    "lxc.service",
    "gpuhost-lab-slots.service",
    "gpuhost-lab-nodes.service",
    "gpuhost-lab-first-boot.service",
)
# The container's root file system: links into the guest's /usr and empty mount points.
CONTAINER_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
CONTAINER_FOLDERS = ("dev", "proc", "sys", "usr", "tmp", "run", "var/tmp", "var/lib", "root")


def bootstrap(root: Path, loader: Loader, log: Path) -> None:
    """mmdebstrap the suite with the packages, apt lists kept."""
    sources = root.parent / "build.sources"
    sources.write_text(render_deb822(archives()))
    settings = root.parent / "build.apt.conf"
    settings.write_text(apt_settings())
    run_logged(
        [
            "mmdebstrap",
            "--variant=minbase",
            "--mode=root",
            "--skip=cleanup/apt",
            f"--aptopt={settings}",
            f"--include={','.join(packages(loader))}",
            SUITE,
            str(root),
            str(sources),
        ],
        step=f"bootstrap {SUITE}",
        log=log,
        timeout_s=BOOTSTRAP_LIMIT_S,
        expected_s=BOOTSTRAP_EXPECTED_S,
    )


def customize(root: Path, loader: Loader, public_key: str) -> None:
    """Everything after the bootstrap; needs a private mount namespace."""
    _mount_kernel_folders(root)
    for folder in rootfs_folders(loader):
        shutil.copytree(folder, root, dirs_exist_ok=True, symlinks=True)
    (root / "boot/efi").mkdir(exist_ok=True)
    release = _install_kernel(root)
    _install_stub(root, release)
    _create_users(root, public_key)
    _complete_container(root)
    for unit in ENABLED_UNITS:
        _chroot(root, "systemctl", "enable", "--quiet", unit)
    _chroot(root, "systemctl", "mask", "--quiet", *MASKED_UNITS)
    if loader is Loader.SYSTEMD_BOOT:
        _write_esp(root, release)
    _finish(root)
    (root.parent / "kernel-release").write_text(release)


def _chroot(root: Path, *argv: str, env: dict[str, str] | None = None) -> str:
    return run(["chroot", str(root), *argv], timeout_s=STEP_LIMIT_S, env=env)


def _mount_kernel_folders(root: Path) -> None:
    """DKMS in a chroot without these leaves a half-installed tree that blocks later builds."""
    run(["mount", "-t", "proc", "proc", str(root / "proc")], timeout_s=30)
    run(["mount", "-t", "sysfs", "-o", "ro", "sysfs", str(root / "sys")], timeout_s=30)
    run(["mount", "--rbind", "/dev", str(root / "dev")], timeout_s=30)


def _install_kernel(root: Path) -> str:
    """The newest 6.1 cloud kernel and its versioned headers; gives back the release."""
    depends = _chroot(root, "apt-cache", "depends", KERNEL_META)
    match = re.search(rf"Depends: linux-image-({re.escape(KERNEL_SERIES)}\S+)", depends)
    if match is None:
        raise LabError(f"{KERNEL_META} names no kernel {KERNEL_SERIES}*:\n{depends}")
    release = match.group(1)
    # The emulated disk is not in sight here, so "dep" would find nothing to put in.
    conf = root / "etc/initramfs-tools/conf.d/lab"
    final = conf.read_text()
    conf.write_text(final.replace("MODULES=dep", "MODULES=list"))
    say(f"install kernel {release}")
    _chroot(
        root,
        *("apt-get", "install", "--yes", "--no-install-recommends"),
        *(f"linux-image-{release}", f"linux-headers-{release}"),
    )
    conf.write_text(final)
    return release


def _install_stub(root: Path, release: str) -> None:
    """Register, build and install the stub driver by DKMS; build the stub user space."""
    driver = f"{DRIVER_NAME}/{DRIVER_VERSION}"
    say(f"build {driver} for {release}")
    shutil.copytree(SOURCES / "stub" / "driver" / DRIVER_NAME, root / f"usr/src/{DRIVER_NAME}-{DRIVER_VERSION}")
    _chroot(root, "dkms", "install", driver, "-k", release)
    status = _chroot(root, "dkms", "status", driver, "-k", release)
    if ": installed" not in status:
        raise LabError(f"dkms did not install {driver} for {release}: {status}")
    userspace = root / "usr/src/gpuhost-lab-userspace"
    shutil.copytree(SOURCES / "stub" / "userspace", userspace)
    _chroot(root, "make", "--directory", "/usr/src/gpuhost-lab-userspace", "install")
    _chroot(root, "ldconfig")
    shutil.rmtree(userspace)


def _create_users(root: Path, public_key: str) -> None:
    """Root and the non-root `operator` take the same key; nobody has a password.

    Debian has a group of the name operator from the start.
    """
    _chroot(root, "useradd", "--create-home", "--gid", "operator", "--shell", "/bin/bash", "operator")
    for home, owner in (("root", "root"), ("home/operator", "operator")):
        folder = root / home / ".ssh"
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "authorized_keys").write_text(public_key)
        (folder / "authorized_keys").chmod(0o600)
        _chroot(root, "chown", "-R", f"{owner}:{owner}", f"/{home}/.ssh")
    # sudo refuses a file that others may write, and git keeps no modes but x
    (root / "etc/sudoers.d/operator").chmod(0o440)


def _complete_container(root: Path) -> None:
    """Links and mount points of the container, which git cannot carry."""
    base = root / "var/lib/lxc/gpu-ct"
    for name, target in CONTAINER_LINKS.items():
        (base / "rootfs" / name).symlink_to(target)
    for name in CONTAINER_FOLDERS:
        (base / "rootfs" / name).mkdir(parents=True, exist_ok=True)
    shutil.copy2(root / "etc/ld.so.cache", base / "rootfs/etc/ld.so.cache")
    shutil.copytree(root / "etc/alternatives", base / "rootfs/etc/alternatives", symlinks=True)
    base.chmod(0o770)


def _write_esp(root: Path, release: str) -> None:
    """Fill /boot/efi as systemd-boot's own tools would on a machine with a firmware."""
    esp = root / "boot/efi"
    loader = root / "usr/lib/systemd/boot/efi/systemd-bootx64.efi"
    for folder in ("EFI/BOOT", "EFI/systemd", "loader/entries", "gpuhost-lab"):
        (esp / folder).mkdir(parents=True, exist_ok=True)
    shutil.copy2(loader, esp / "EFI/BOOT/BOOTX64.EFI")
    shutil.copy2(loader, esp / "EFI/systemd/systemd-bootx64.efi")
    # No `default` line: to fix the fallback is the product's work. No menu: nobody sees it.
    (esp / "loader/loader.conf").write_text("timeout 0\n")
    (esp / "loader/entries.srel").write_text("type1\n")
    _chroot(
        root,
        *("kernel-install", "add", release, f"/boot/vmlinuz-{release}", f"/boot/initrd.img-{release}"),
        env={"BOOT_ROOT": "/boot/efi"},
    )
    # Without a mount point at /boot/efi the paths come out with that prefix.
    for entry in (esp / "loader/entries").glob("*.conf"):
        entry.write_text(re.sub(r"(?m)^(linux|initrd)(\s+)/boot/efi/", r"\1\2/", entry.read_text()))


def _finish(root: Path) -> None:
    """Settings that the chroot itself could not work with, and no left-overs."""
    (root / "etc/apt/apt.conf.d/99mmdebstrap").unlink(missing_ok=True)
    (root / "etc/apt/apt.conf.d/90lab").write_text(for_guest(apt_settings()))
    for path in (root / "etc/apt/sources.list.d").glob("*"):
        path.unlink()
    (root / "etc/apt/sources.list").unlink(missing_ok=True)
    (root / "etc/apt/sources.list.d/debian.sources").write_text(for_guest(render_deb822(archives())))
    _chroot(root, "apt-get", "clean")
    # parsing the lists takes apt 15 s under emulation; here it takes one
    _chroot(root, "apt-cache", "gencaches")
    resolv = root / "etc/resolv.conf"
    resolv.unlink(missing_ok=True)
    # The name server of QEMU's user network.
    resolv.write_text("nameserver 10.0.2.3\n")
    # Empty, not absent: each machine gets an id of its own without "first boot" presets.
    (root / "etc/machine-id").write_text("")
    os.sync()
