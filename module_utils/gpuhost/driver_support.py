"""Which driver can't work with a kernel or a GPU: named before anything is installed.

Two tables, both of them conservative: what they do not know is not refused, because a build that fails is still caught
by the proof for the target kernel (``dkms.py``). A row needs a public report of the failure *and* its cause: an
interface that the kernel dropped for good and that the driver's public sources at that tag still use, so that later
kernels fail too.

Pure: texts in, texts out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from . import debian_version
from .kernel import parse_release

OPEN, PROPRIETARY = "open", "proprietary"

_NVIDIA = "NVIDIA/open-gpu-kernel-modules"


@dataclass(frozen=True)
class Unbuildable:
    """The releases of one branch up to ``last`` do not compile for kernels from ``since`` on.

    ``fixed`` is the nearest release that is known to compile there, empty where none is. ``flavour`` is empty where
    both fail. ``package`` is the last version of a distribution's own package that failed as well: such a package
    carries fixes under NVIDIA's version, so that ``last`` says nothing about it. ``release`` narrows a row to kernels
    of one make.
    """

    branch: int
    last: str
    since: tuple[int, int]
    fixed: str
    source: str
    flavour: str = ""
    package: str = ""
    release: str = ""


#: Oldest kernel first. Not in here although case dkms-04 names it: 570.133.07 on 6.14. That report
#: (void-linux/void-packages#54925) is about a headers package that lacked files; NVIDIA's sources have what 6.14 needs
#: since 570.124.04.
UNBUILDABLE = (
    Unbuildable(530, "530.30.02", (6, 3), "530.41.03", f"{_NVIDIA}#497"),
    Unbuildable(525, "525.105.17", (6, 4), "525.116.04", f"{_NVIDIA}#501"),
    Unbuildable(530, "530.41.03", (6, 4), "535.54.03", f"{_NVIDIA}#501, Frogging-Family/nvidia-all#177"),
    Unbuildable(550, "550.78", (6, 10), "550.90.07", "NixOS/nixpkgs#332350"),
    Unbuildable(470, "470.256.02", (6, 12), "535.247.01", "void-linux/void-packages#53759, NixOS/nixpkgs#370339"),
    # MODULE_IMPORT_NS takes a string since 6.13.
    Unbuildable(550, "550.142", (6, 13), "550.144.03", f"{_NVIDIA}#751"),
    Unbuildable(555, "555.58.02", (6, 13), "570.86.16", f"{_NVIDIA}#751"),
    Unbuildable(560, "560.35.03", (6, 13), "570.86.16", f"{_NVIDIA}#751"),
    Unbuildable(565, "565.77", (6, 13), "570.86.16", f"{_NVIDIA}#751, NixOS/nixpkgs#375730"),
    # 6.15 dropped EXTRA_CFLAGS, del_timer_sync and make_device_exclusive_range.
    Unbuildable(535, "535.247.01", (6, 15), "535.261.03", f"{_NVIDIA}#866, the same sources at tag 535.247.01"),
    Unbuildable(550, "550.163.01", (6, 15), "570.169", f"{_NVIDIA}#866"),
    Unbuildable(570, "570.148.08", (6, 15), "570.169", f"{_NVIDIA}#866, NixOS/nixpkgs#412299"),
    Unbuildable(575, "575.51.03", (6, 15), "575.64", f"{_NVIDIA}#840, Frogging-Family/nvidia-all#293"),
    # The proprietary flavour then still used a symbol that is for GPL modules only.
    Unbuildable(570, "570.158.01", (6, 15), "570.169", f"{_NVIDIA}#866, NixOS/nixpkgs#411829", PROPRIETARY),
    Unbuildable(575, "575.57.08", (6, 15), "575.64", "NixOS/nixpkgs#411829, LibreELEC/LibreELEC.tv#10154", PROPRIETARY),
    # Only the mainline build: nothing is known of a distribution's 6.17, nor which release compiles.
    Unbuildable(580, "580.105.08", (6, 17), "", f"case dkms-04, {_NVIDIA} PR 951", release=r"6\.17\.11-0617\d+-\w+"),
    # drm_mode_config_funcs.fb_create has one argument more since 6.17.
    Unbuildable(535, "535.261.03", (6, 17), "535.274.02", f"{_NVIDIA}#1143, the same sources at tag 535.261.03"),
    Unbuildable(550, "550.163.01", (6, 17), "580.82.07", f"case dkms-04, {_NVIDIA}#1143", package="550.163.01-2"),
    Unbuildable(555, "555.58.02", (6, 17), "580.82.07", f"case dkms-04, {_NVIDIA}#1143"),
    Unbuildable(570, "570.183", (6, 17), "570.195.03", "Frogging-Family/nvidia-all#310"),
    Unbuildable(575, "575.64.05", (6, 17), "580.82.07", f"{_NVIDIA}#1143, the same sources at tag 575.64.05"),
    Unbuildable(580, "580.76.05", (6, 17), "580.82.07", "CachyOS/kernel-patches#117"),
    # vm_area_struct.__vm_flags is gone since 6.19.
    Unbuildable(580, "580.126.16", (6, 19), "580.126.18", "NixOS/nixpkgs#489947, NixOS/nixpkgs#491462"),
    Unbuildable(590, "590.48.01", (6, 19), "595.45.04", f"{_NVIDIA}#1021"),
)


def _numbers(version: str) -> tuple[int, ...]:
    """``570.133.07`` -> (570, 133, 7); empty where it is no driver version."""
    return tuple(map(int, version.split("."))) if re.fullmatch(r"\d+(\.\d+){1,2}", version) else ()


def _series(kernel_release: str) -> tuple[int, int] | None:
    try:
        major, minor = re.findall(r"\d+", parse_release(kernel_release).version)[:2]
    except ValueError:
        return None
    return int(major), int(minor)


def _covers(row: Unbuildable, version: tuple[int, ...], package_version: str) -> bool:
    """Whether the row knows this source to fail, wherever it comes from."""
    if not package_version:
        return version <= _numbers(row.last)
    same_maker = ("ubuntu" in row.package) == ("ubuntu" in package_version)
    return bool(row.package) and same_maker and debian_version.compare(package_version, row.package) <= 0


def too_old(driver_version: str, flavour: str, kernel_release: str, package_version: str = "") -> str | None:
    """Why this driver does not compile for this kernel, and which one does; None where nothing is known.

    flavour          ``open``, ``proprietary`` or empty (unknown), see :func:`flavour_of`
    package_version  dpkg's version of the driver's package where a distribution maintains it itself (its own fixes are
                     in there); empty for NVIDIA's installer and NVIDIA's repository
    """
    version, series = _numbers(driver_version), _series(kernel_release)
    if not version or series is None:
        return None
    known = [
        row
        for row in UNBUILDABLE
        if row.branch == version[0]
        and row.since <= series
        and row.flavour in ("", flavour)
        and _covers(row, version, package_version)
        and (not row.release or re.fullmatch(row.release, kernel_release))
    ]
    if not known:
        return None
    row = known[-1]  # the one for the newest kernel: its way out is right for the older ones as well
    since = ".".join(map(str, row.since))
    kernels = kernel_release if row.release else f"Linux {since} and later"
    way_out = f"{row.fixed} does" if row.fixed else "choose a kernel of the distribution's own archive"
    return f"driver {package_version or driver_version} does not build for {kernels}; {way_out} ({row.source})"


@dataclass(frozen=True)
class Generation:
    """GPUs of PCI device ids ``first`` to ``last``. ``flavour`` is the only one that drives them, empty for both."""

    first: int
    last: int
    name: str
    flavour: str = ""


#: Code names and ids: pci.ids (GM, GP, GV, TU, GA, GH, AD, GB, GR); which ones the open modules drive: the list of
#: compatible GPUs in the open modules' README, which begins at 1E02 (Turing). Blackwell is in no proprietary flavour
#: and in no list before 570.86.15.
GENERATIONS = (
    Generation(0x1340, 0x17FF, "Maxwell or Pascal", PROPRIETARY),
    Generation(0x1B00, 0x1D7F, "Pascal", PROPRIETARY),
    Generation(0x1D80, 0x1DFF, "Volta", PROPRIETARY),
    Generation(0x1E00, 0x1FFF, "Turing"),
    Generation(0x2080, 0x20FF, "Ampere"),
    Generation(0x2180, 0x21FF, "Turing"),
    Generation(0x2200, 0x228A, "Ampere"),
    Generation(0x2300, 0x23FF, "Hopper"),
    Generation(0x2400, 0x25FF, "Ampere"),
    Generation(0x2680, 0x28FF, "Ada"),
    Generation(0x2900, 0x29FF, "Blackwell", OPEN),
    Generation(0x2B80, 0x2FFF, "Blackwell", OPEN),
    Generation(0x3000, 0x30FF, "Rubin", OPEN),
    Generation(0x3180, 0x33FF, "Blackwell Ultra", OPEN),
)
#: The first branch that knows a Blackwell GPU.
BLACKWELL_BRANCH = 570


def generation(device_id: str) -> Generation | None:
    """The generation of a PCI device id (``2330``, ``0x2330``, ``10de:2330``); None where it is not known."""
    text = device_id.strip().lower().rpartition(":")[2].removeprefix("0x")
    if not re.fullmatch(r"[0-9a-f]{4}", text):
        return None
    return next((item for item in GENERATIONS if item.first <= int(text, 16) <= item.last), None)


def flavour_of(module_license: str) -> str:
    """``modinfo -F license`` of nvidia.ko (of no other: nvidia-uvm is MIT/GPL in both flavours); "" where unknown."""
    return {"NVIDIA": PROPRIETARY, "Dual MIT/GPL": OPEN}.get(module_license.strip(), "")


def flavour_problem(gpu_device_ids: Iterable[str], module_license: str, driver_version: str) -> str | None:
    """Why these GPUs can't be driven by these modules; None where they can, or where nothing is known.

    gpu_device_ids  PCI device ids of the host's NVIDIA GPUs (class 03xx)
    module_license  the license field of the target's nvidia.ko
    """
    flavour, version = flavour_of(module_license), _numbers(driver_version)
    for device_id in gpu_device_ids:
        found = generation(device_id)
        if found is None or not found.flavour:
            continue
        if flavour and flavour != found.flavour:
            return f"GPU {device_id} ({found.name}) needs the {found.flavour} kernel modules, these are the {flavour}"
        if found.flavour == OPEN and version and version[0] < BLACKWELL_BRANCH:
            return f"GPU {device_id} ({found.name}) needs driver {BLACKWELL_BRANCH} or newer, this is {driver_version}"
    return None
