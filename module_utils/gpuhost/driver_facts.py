"""The NVIDIA driver as it is on the host now: read from files only, for the survey and for the preflight."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from . import boot, debian_version, dkms, dkms_tree, driver_source
from .host_io import Host

_MULTIARCH = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")
#: Debian keeps them apart, for its alternatives.
LIBRARY_FOLDERS = (*_MULTIARCH, *(f"{folder}/nvidia/current" for folder in _MULTIARCH), "/usr/lib64", "/usr/lib")
LIBRARY = re.compile(r"lib(?:nvidia-ml|cuda)\.so\.(\d+\.\d+(?:\.\d+)?)")
PROPRIETARY_LICENSE, OPEN_LICENSE = "NVIDIA", "Dual MIT/GPL"
"""What modinfo says of nvidia.ko (``driver_support.flavour_of``)."""


def read(host: Host, running: str, versions: dict[str, str]) -> dict[str, Any]:
    """The driver's part of ``facts.json``. ``versions``: installed package -> version."""
    loaded = host.read_line("/sys/module/nvidia/version")
    status = dkms_tree.read_status(host)
    source = read_source(host, running, versions, status, running_files(host, running))
    return {
        "loaded": host.exists("/sys/module/nvidia"),
        "version": loaded or None,
        "uvm_disable_hmm": host.read_line("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm") or None,
        "library_version": library_version(host),
        "license": loaded_license(host),
        "source": source.kind,
        "source_detail": source.detail,
        "packages": list(source.packages),
        "package_version": source.package_version,
        "dkms_version": version_of(status) if source.needs_dkms else "",
        "built_for": sorted({line.kernel for line in status if line.kernel and _is_built(line)}),
    }


def _is_built(line: dkms.DkmsLine) -> bool:
    return dkms.is_nvidia_driver(line.module) and dkms.is_ready(line)


def running_files(host: Host, running: str) -> list[str]:
    """The running kernel's NVIDIA modules."""
    return [path for path in boot.module_files(host, running).values() if path is not None]


def read_source(
    host: Host, running: str, versions: dict[str, str], status: Sequence[dkms.DkmsLine], files: Sequence[str]
) -> driver_source.DriverSource:
    """Where the driver comes from. ``files``: :func:`running_files`."""
    traces = any(map(host.exists, driver_source.INSTALLER_TRACES))
    return driver_source.source(versions, status, files, running, traces)


def version_of(status: Sequence[dkms.DkmsLine]) -> str:
    """The version that DKMS would build for a new kernel: the newest that it knows."""
    found = {line.version for line in status if dkms.is_nvidia_driver(line.module)}
    return max(found, key=debian_version.sort_key, default="")


def library_version(host: Host) -> str | None:
    """The version of NVIDIA's user-space libraries by the name of the file; None where there are none on the host."""
    for folder in LIBRARY_FOLDERS:
        for name in host.names(folder):
            match = LIBRARY.fullmatch(name)
            if match:
                return match.group(1)
    return None


def loaded_license(host: Host) -> str:
    """The license of the loaded nvidia module; empty where none is loaded.

    A module whose license is not one of the kernel's own taints it with ``P`` (admin-guide/tainted-kernels.rst).
    """
    if not host.exists("/sys/module/nvidia"):
        return ""
    return PROPRIETARY_LICENSE if "P" in host.read_line("/sys/module/nvidia/taint") else OPEN_LICENSE


def read_gpus(host: Host) -> list[dict[str, str]]:
    """NVIDIA's display and 3D controllers (PCI class 03xx) by PCI address."""
    found = []
    for address in host.names("/sys/bus/pci/devices"):
        base = f"/sys/bus/pci/devices/{address}"
        if host.read_line(f"{base}/vendor") == "0x10de" and host.read_line(f"{base}/class").startswith("0x03"):
            found.append({"address": address, "device": host.read_line(f"{base}/device")})
    return found
