"""Where this host's NVIDIA driver comes from, and which of its modules the host needs.

What has to be proven for the target kernel follows from it: a module that DKMS builds, a package for exactly the
target, or nothing at all, because NVIDIA's installer without ``--dkms`` builds for the running kernel only.

Pure: names and texts in, frozen dataclasses out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from . import dkms
from .dkms import DkmsLine, find_modules, is_nvidia_driver

Kind = Literal["dkms", "precompiled", "run_dkms", "run", "none"]

INSTALLER_TRACES = ("/usr/bin/nvidia-uninstall", "/var/log/nvidia-installer.log")
"""What NVIDIA's installer leaves behind. The log survives an uninstall, so neither of them is proof of a driver."""

#: Debian: nvidia-kernel-dkms, nvidia-open-kernel-dkms, nvidia-tesla-470-kernel-dkms, nvidia-legacy-390xx-kernel-dkms.
#: NVIDIA's repository: nvidia-kernel-open-dkms (Debian), nvidia-dkms[-open] (since 590). Ubuntu:
#: nvidia-dkms-580[-server][-open]. nvidia-fs-dkms and nvidia-peer-memory-dkms are other modules.
_DKMS_PACKAGE = re.compile(
    r"nvidia(?:-(?:tesla(?:-\d+)?|legacy-\d+xx))?(?:-open)?-kernel(?:-open)?-dkms"
    r"|nvidia(?:-open)?-dkms(?:-\d+)?(?:-server)?(?:-open)?"
)
#: Ubuntu: linux-modules-nvidia-580-server-open-6.8.0-60-generic. Its meta packages end in a flavour.
_PRECOMPILED = re.compile(r"(?P<stem>linux-modules-nvidia-(?P<branch>\d+)(?:-server)?(?:-open)?)-(?P<release>\d.*)")
#: Names that only Debian's own source package gives to DKMS; NVIDIA's packages and installer say ``nvidia``.
_DEBIAN_NAME = re.compile(r"nvidia-(?:current|tesla|legacy)\b.*")
#: ``535.288.01-0ubuntu0.24.04.1`` is Ubuntu's own; NVIDIA's repository has ``-0ubuntu1`` or ``-1ubuntu1``.
_UBUNTU_VERSION = re.compile(r".*-0ubuntu0\.\d+.*")


@dataclass(frozen=True)
class DriverSource:
    """``packages`` brought the driver; ``detail`` is for people.

    ``package_version`` is dpkg's version where a distribution maintains the package itself, with its own fixes
    (see ``driver_support.too_old``); empty for NVIDIA's repository and installer.
    """

    kind: Kind
    packages: tuple[str, ...]
    detail: str
    package_version: str = ""

    @property
    def needs_dkms(self) -> bool:
        """Whether DKMS has to build it for the target."""
        return self.kind in ("dkms", "run_dkms")

    @property
    def cause(self) -> str | None:
        """The cause code where this source can't be brought to another kernel."""
        return "driver.run_without_dkms" if self.kind == "run" else None


def _bare(name: str) -> str:
    return name.partition(":")[0]


def _precompiled(names: Iterable[str], release: str) -> list[re.Match[str]]:
    """Ubuntu's precompiled driver packages for one release, the newest branch first."""
    found = [match for match in map(_PRECOMPILED.fullmatch, map(_bare, names)) if match]
    return sorted((match for match in found if match["release"] == release), key=lambda m: -int(m["branch"]))


def precompiled_package(names: Iterable[str], running: str, target: str) -> str | None:
    """The package that carries for ``target`` what the running kernel's precompiled driver package carries."""
    found = _precompiled(names, running)
    return f"{found[0]['stem']}-{target}" if found else None


def source(
    packages: Mapping[str, str],
    status: Sequence[DkmsLine],
    module_files: Iterable[str],
    running: str,
    installer_traces: bool,
) -> DriverSource:
    """Where the driver of the running kernel comes from.

    packages          name -> version of the installed packages
    status            all lines of ``dkms status``
    module_files      files below /lib/modules/<running>
    installer_traces  whether one of INSTALLER_TRACES exists

    DKMS comes first: depmod prefers ``updates/`` to the folder of Ubuntu's precompiled modules.
    """
    names = tuple(sorted(name for name in packages if _DKMS_PACKAGE.fullmatch(_bare(name))))
    drivers = [line for line in status if is_nvidia_driver(line.module)]
    if names:
        return DriverSource("dkms", names, f"DKMS, package {', '.join(names)}", _own_version(packages, names, drivers))
    precompiled = _precompiled(packages, running)
    if any(line.kernel == running and dkms.is_ready(line) for line in drivers) or (drivers and not precompiled):
        what = ", ".join(dict.fromkeys(f"{line.module}/{line.version}" for line in drivers))
        return DriverSource("run_dkms", (), f"NVIDIA's installer, with DKMS ({what})")
    if precompiled:
        name = precompiled[0].string
        return DriverSource("precompiled", (name,), f"precompiled, package {name}")
    file = find_modules(module_files, ["nvidia"]).get("nvidia")
    if file is None:
        return DriverSource("none", (), "no NVIDIA module for the running kernel")
    by = "NVIDIA's installer" if installer_traces or "/kernel/drivers/video/" in file else "hand"
    return DriverSource("run", (), f"{file}, put there by {by} without DKMS: nothing builds it for another kernel")


def _own_version(packages: Mapping[str, str], names: Sequence[str], drivers: Sequence[DkmsLine]) -> str:
    """dpkg's version of a package that the distribution itself maintains; empty for NVIDIA's."""
    version = packages[names[0]]
    debian = any(_DEBIAN_NAME.fullmatch(line.module) for line in drivers)
    return version if debian or _UBUNTU_VERSION.fullmatch(version) else ""


def loaded_modules(proc_modules: str) -> tuple[str, ...]:
    """Names in /proc/modules."""
    return tuple(line.split()[0] for line in proc_modules.splitlines() if line.strip())


def needed_modules(module_files: Iterable[str], loaded: Iterable[str]) -> tuple[str, ...]:
    """The NVIDIA modules that this host needs of the target kernel, under the names of ``dkms.NVIDIA_MODULES``.

    module_files  files below /lib/modules/<running>
    loaded        names of /proc/modules or /sys/module

    nvidia and nvidia-uvm always, since there is no CUDA without; the others only where the running kernel has them: a
    driver that never built nvidia-peermem (no InfiniBand in the kernel) must not block.
    """
    here = find_modules(module_files, dkms.NVIDIA_MODULES).keys() | {name.replace("_", "-") for name in loaded}
    always = ("nvidia", "nvidia-uvm")
    return tuple(name for name in dkms.NVIDIA_MODULES if name in always or name in here)
