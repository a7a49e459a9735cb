"""Install the Debian packages that lab and tests need, or say exactly which command needs root. Standard library."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys

PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mcopy": "mtools",
    "mkfs.vfat": "dosfstools",
    "sfdisk": "fdisk",
    "mke2fs": "e2fsprogs",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
    "cc": "gcc",
    "strace": "strace",
    "ip": "iproute2",
    "lxc-start": "lxc",
}
HEADERS = {"/usr/include/stdio.h": "libc6-dev"}
FIRMWARE = {"/usr/share/OVMF/OVMF_CODE.fd": "ovmf", "/usr/share/OVMF/OVMF_CODE_4M.fd": "ovmf"}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:" + os.environ.get("PATH", "")


def missing_for_python() -> list[str]:
    """Debian splits venv's ensurepip from Python: without it there is no virtual environment."""
    return [] if importlib.util.find_spec("ensurepip") else ["python3-venv"]


def missing_for_lab() -> list[str]:
    """Names of the packages that are not installed, sorted."""
    wanted = {package for program, package in PROGRAMS.items() if shutil.which(program, path=PATH) is None}
    wanted |= {package for path, package in HEADERS.items() if not os.path.exists(path)}
    if not any(os.path.exists(path) for path in FIRMWARE):
        wanted |= set(FIRMWARE.values())
    return sorted(wanted)


def main() -> int:
    """Install what is missing where this process may; else print the command and end with 2."""
    missing = missing_for_python if sys.argv[1:] == ["--python"] else missing_for_lab
    packages = missing()
    if not packages:
        return 0
    install = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    if os.geteuid() != 0:
        print(f"Packages are missing. As root: {' '.join(install)}", file=sys.stderr)
        return 2
    if shutil.which("apt-get") is None:
        print(f"These Debian packages are missing: {' '.join(packages)}", file=sys.stderr)
        return 2
    print(f"Installing: {' '.join(packages)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for argv in (["apt-get", "-q", "update"], install):
        result = subprocess.run(argv, env=environment, check=False, stdout=subprocess.DEVNULL)
        if result.returncode != 0:
            print(f"{' '.join(argv)} ended with {result.returncode}", file=sys.stderr)
            return 2
    importlib.invalidate_caches()
    still = missing()
    if still:
        print(f"Still missing after the installation: {' '.join(still)}", file=sys.stderr)
    return 2 if still else 0


if __name__ == "__main__":
    sys.exit(main())
