"""What the base image is made of, and the hash that names it."""

import hashlib
from enum import StrEnum
from pathlib import Path

from .apt_sources import SUITE, apt_settings, archives, render_deb822
from .paths import SOURCES


class Loader(StrEnum):
    """How a machine boots, always by UEFI: one kind of image each."""

    SYSTEMD_BOOT = "systemd-boot"
    # /boot in the ext4 root file system
    GRUB = "grub"
    # the root file system, /boot with it, on a logical volume, as Proxmox has it
    GRUB_LVM = "grub-lvm"


# Besides mmdebstrap's minbase. dosfstools, man pages, loggers and the like are left out:
# each package costs time in every later dpkg run under emulation.
PACKAGES = (
    "systemd",
    "systemd-sysv",
    "udev",
    "dbus",
    "kmod",
    "initramfs-tools",
    "zstd",
    "openssh-server",
    "sudo",
    "python3",
    "python3-apt",
    "dkms",
    "gcc",
    "libc6-dev",
    "make",
    "lxc",
    "pciutils",
    "iproute2",
    "procps",
    # needed by the headers of 6.12: already here, so that the roll has less to install
    "pahole",
)
LOADER_PACKAGES = {
    Loader.SYSTEMD_BOOT: ("systemd-boot",),
    Loader.GRUB: ("grub-efi-amd64",),
    Loader.GRUB_LVM: ("grub-efi-amd64", "lvm2"),
}
# A meta package that only names the versioned kernel to install. It is itself left out:
# with it, a later apt run would drag headers or another kernel along.
KERNEL_META = "linux-image-cloud-amd64"
KERNEL_SERIES = "6.1."

# The stub driver's DKMS package, named as the real one.
DRIVER_NAME = "nvidia"
DRIVER_VERSION = "580.95.05"

# Room for a second and a third kernel with their headers; the file is sparse.
ROOT_MIB = 6144
# Kernels and initrds of three releases need about 60 MiB; 256 MiB is what Debian's installer gives or more.
ESP_MIB = 256
ESP_LABEL = "LAB-ESP"
ROOT_LABEL = "lab-root"
# LVM starts its first extent at 1 MiB and cuts the rest into extents of 4 MiB.
LVM_ROOT_MIB = (ROOT_MIB - 1) // 4 * 4

# Sources whose change makes another image. The rest only drives machines.
RECIPE_FILES = ("image_recipe.py", "image_root.py", "image_disk.py", "apt_sources.py")
RECIPE_FOLDERS = ("stub", "rootfs")
LOADER_FILES: dict[Loader, tuple[str, ...]] = {
    Loader.SYSTEMD_BOOT: (),
    Loader.GRUB: ("image_grub.py",),
    Loader.GRUB_LVM: ("image_grub.py",),
}
LOADER_FOLDERS = {
    Loader.SYSTEMD_BOOT: "rootfs-systemd-boot",
    Loader.GRUB: "rootfs-grub",
    Loader.GRUB_LVM: "rootfs-grub",
}


def packages(loader: Loader) -> tuple[str, ...]:
    """What mmdebstrap installs besides its minbase."""
    return (*PACKAGES, *LOADER_PACKAGES[loader])


def rootfs_folders(loader: Loader) -> list[Path]:
    """The folders that are laid over the guest's root, in this order."""
    return [SOURCES / "rootfs", SOURCES / LOADER_FOLDERS[loader]]


def recipe_paths(loader: Loader) -> list[Path]:
    """Every file that goes into the image, in a fixed order."""
    paths = [SOURCES / name for name in (*RECIPE_FILES, *LOADER_FILES[loader])]
    for folder in (*RECIPE_FOLDERS, LOADER_FOLDERS[loader]):
        paths += (path for path in (SOURCES / folder).rglob("*") if path.is_file() and path.suffix != ".pyc")
    return sorted(paths)


def recipe_hash(loader: Loader) -> str:
    """Name of the image: same inputs, same name, on any day."""
    digest = hashlib.sha256()
    for part in (loader, SUITE, *packages(loader), render_deb822(archives()), apt_settings()):
        digest.update(part.encode() + b"\0")
    for path in recipe_paths(loader):
        executable = path.stat().st_mode & 0o100
        digest.update(f"{path.relative_to(SOURCES)} {executable}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
