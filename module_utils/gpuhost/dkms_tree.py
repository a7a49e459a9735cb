"""What ``dkms status`` would say, read from DKMS's own tree.

The program is a shell script that reads the dkms.conf of every module again for each kernel: 10 to 16 s on an emulated
machine, seconds on a real one. Its answer comes from these files alone (dkms 2.8 to 3.4, ``is_module_added``,
``is_module_built``, ``_is_module_installed`` and ``module_status_built_extra``):

    <tree>/<module>/<version>/source                      added
    <tree>/<module>/<version>/<kernel>/<arch>/module/     built
    <tree>/<module>/kernel-<kernel>-<arch>                installed, where it leads to the folder of that build
    <tree>/<module>/original_module/<kernel>/<arch>       a module of the distribution was put aside

Compared with dkms 3.0.10 itself on seven trees. The one difference: a file that is gone is ``missing`` here and
``differs`` there. dkms.conf may name more modules than were built: each module that is needed is proven by itself.

A tree elsewhere (``dkms_tree`` in /etc/dkms/framework.conf) is not followed: then nothing counts as built.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection

from .dkms import DkmsLine
from .host_io import Host
from .target_modules import module_name

TREE = "/var/lib/dkms"
LEFT_BY_A_FAILED_BUILD = "build/make.log"


def read_status(host: Host, files: Collection[str] = (), release: str = "") -> list[DkmsLine]:
    """A line for each build, and one for each version without any.

    files    all files below /lib/modules/<release>: what was built for that release is compared with them, byte by byte
    """
    lines: list[DkmsLine] = []
    for module in host.names(TREE):
        for version in host.names(f"{TREE}/{module}"):
            if not version.startswith("kernel-") and "source" in host.names(f"{TREE}/{module}/{version}"):
                lines += _version(host, module, version, files, release)
    return lines


def _version(host: Host, module: str, version: str, files: Collection[str], release: str) -> list[DkmsLine]:
    base = f"{TREE}/{module}/{version}"
    lines = []
    for kernel in host.names(base):
        for arch in host.names(f"{base}/{kernel}") if kernel[:1].isdigit() else ():
            build = f"{base}/{kernel}/{arch}"
            if not host.names(f"{build}/module"):
                continue
            link = f"{TREE}/{module}/kernel-{kernel}-{arch}"
            state = "installed" if host.resolved(link) == host.resolved(build) else "built"
            note = _difference(host, f"{build}/module", files) if kernel == release and state == "installed" else None
            if note is None and host.exists(f"{TREE}/{module}/original_module/{kernel}/{arch}"):
                note = "original"
            lines.append(DkmsLine(module, version, kernel, arch, state, note))
    return lines or [DkmsLine(module, version, None, None, "added")]


def _difference(host: Host, folder: str, files: Collection[str]) -> str | None:
    """``missing`` or ``differs`` where what was built is not what lies in the kernel's tree."""
    for name in host.names(folder):
        copies = [path for path in files if posixpath.basename(path) == name]
        if not copies:
            return "missing"
        if host.sha256(f"{folder}/{name}") not in map(host.sha256, copies):
            return "differs"
    return None


def built_modules(host: Host, module: str, release: str) -> set[str]:
    """Names, spelled with ``-``, of what a DKMS module (``zfs/2.3.4``) brings for a kernel."""
    folders = [f"{TREE}/{module}/{release}/{arch}/module" for arch in host.names(f"{TREE}/{module}/{release}")]
    return {module_name(name) for folder in folders for name in host.names(folder)} - {""}


def failed_build(host: Host, module: str, version: str) -> tuple[str, str] | None:
    """Path and text of the log that a failed build leaves behind: a build that went well moves it away."""
    path = f"{TREE}/{module}/{version}/{LEFT_BY_A_FAILED_BUILD}"
    text = host.read(path)
    return None if text is None else (path, text)
