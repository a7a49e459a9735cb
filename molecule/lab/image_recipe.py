"""What the base image is made of, and the hash that names it."""

import hashlib
from pathlib import Path

from .apt_sources import SUITE, apt_settings, archives, render_deb822
from .paths import SOURCES

# Besides mmdebstrap's minbase. dosfstools, man pages, loggers and the like are left out:
# each package costs time in every later dpkg run under emulation.
PACKAGES = (
    "systemd",
    "systemd-sysv",
    "systemd-boot",
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

# Sources whose change makes another image. The rest only drives machines.
RECIPE_FILES = ("image_recipe.py", "image_root.py", "image_disk.py", "apt_sources.py")
RECIPE_FOLDERS = ("stub", "rootfs")


def recipe_paths() -> list[Path]:
    """Every file that goes into the image, in a fixed order."""
    paths = [SOURCES / name for name in RECIPE_FILES]
    for folder in RECIPE_FOLDERS:
        paths += (path for path in (SOURCES / folder).rglob("*") if path.is_file() and path.suffix != ".pyc")
    return sorted(paths)


def recipe_hash() -> str:
    """Name of the image: same inputs, same name, on any day."""
    digest = hashlib.sha256()
    for part in (SUITE, *PACKAGES, render_deb822(archives()), apt_settings()):
        digest.update(part.encode() + b"\0")
    for path in recipe_paths():
        executable = path.stat().st_mode & 0o100
        digest.update(f"{path.relative_to(SOURCES)} {executable}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
