"""Machines that are ready for their trial boot, one a distribution: the clean roots that defects are made in.

Synthetic: names of packages and kernels as Debian 12, Ubuntu 24.04 (HWE kernel, precompiled driver) and Proxmox VE 8
have them. All three boot by systemd-boot here: what differs between the loaders has tests of its own.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fake_host import FakeHost
from fake_initramfs import EARLY, INSIDE, Member, archive, members_of
from fake_roll import HOST_NAME, RUN_ID
from fake_tools import install_programs
from fake_tree import (
    CMDLINE,
    DRIVER,
    ESP,
    MACHINE,
    add_headers,
    add_kernel,
    depmod,
    dkms_build,
    entry_text,
    lay_devices,
    module_text,
    set_variable,
)

from gpuhost import fallbacks, loaders, preflight
from gpuhost.boot_config import MODPROBE_FILE, render_modprobe
from gpuhost.dkms import NVIDIA_MODULES
from gpuhost.documents import Preflight, Proof
from gpuhost.rollfile import Roll, open_roll

ARGUMENTS: dict[str, str | None] = {"panic": "30", "iommu": "pt"}
OPTIONS = {"nvidia-uvm": {"uvm_disable_hmm": "1"}}
LINE = f"{CMDLINE} panic=30 iommu=pt"


@dataclass(frozen=True)
class Distribution:
    """Names that differ. ``precompiled``: the stem of Ubuntu's driver packages, empty for DKMS."""

    name: str
    old: str
    new: str
    image: str
    headers: str
    precompiled: str = ""
    extra: bool = False

    def packages(self, release: str) -> list[str]:
        """The packages of one kernel."""
        names = [f"{self.image}{release}", f"{self.headers}{release}"]
        names += [f"{self.precompiled}{release}"] if self.precompiled else []
        return names + ([f"linux-modules-extra-{release}"] if self.extra else [])


DEBIAN = Distribution("debian", "6.1.0-57-cloud-amd64", "6.12.117+deb12-cloud-amd64", "linux-image-", "linux-headers-")
UBUNTU = Distribution(
    "ubuntu", "6.8.0-60-generic", "6.14.0-36-generic", "linux-image-", "linux-headers-",
    "linux-modules-nvidia-570-server-open-", extra=True,
)  # fmt: skip
PROXMOX = Distribution("proxmox", "6.8.12-9-pve", "6.14.11-5-bpo12-pve", "proxmox-kernel-", "proxmox-headers-")


@dataclass
class Root:
    """One machine before its trial boot, its roll, and what a defect needs to be made."""

    host: FakeHost
    kind: Distribution
    roll: Roll

    @property
    def old(self) -> str:
        return self.kind.old

    @property
    def new(self) -> str:
        return self.kind.new

    @property
    def image(self) -> str:
        return f"/boot/initrd.img-{self.new}"

    def entry(self, release: str) -> str:
        """The file of a kernel's boot entry."""
        return f"{ESP}/loader/entries/{MACHINE}-{release}.conf"

    def module(self, name: str) -> str:
        """An NVIDIA module's file for the target."""
        return driver_path(self.kind, self.new, name)

    def drop(self, *paths: str) -> None:
        """Remove files, links and folders."""
        for path in paths:
            place = self.host.path(path)
            shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()

    def write_module(self, name: str, release: str = "", **fields: str) -> None:
        """Put another module in place of one of the driver's, in DKMS's tree as well."""
        self.host.put(self.module(name), module_text(release or self.new, **{"version": DRIVER, **fields}))
        if not self.kind.precompiled:
            dkms_build(self.host, self.new)

    def add_module(self, path: str) -> None:
        """A further module in the target's own tree."""
        self.host.put(f"/lib/modules/{self.new}/{path}", module_text(self.new, license="GPL"))
        depmod(self.host, self.new)

    def write_image(
        self, data: bytes | None = None, *, modules: tuple[str, ...] = (), more: tuple[Member, ...] = ()
    ) -> None:
        """The target's initramfs anew, in /boot and on the ESP."""
        if data is None:
            data = compressed(self.host, self.new, modules or INSIDE_WITH_DRIVER, more)
        for path in (self.image, f"{ESP}/{MACHINE}/{self.new}/initrd.img-{self.new}"):
            self.host.put(path, data)

    def hold(self) -> None:
        """Record the fallback as a roll does that begins now."""
        loader = loaders.of(self.host)
        self.roll = replace(self.roll, fallback=fallbacks.record(self.host, loader, self.old, None))

    def plan(self, **changes: Any) -> None:
        """Another plan for the roll that is open."""
        self.roll = replace(self.roll, plan={**self.roll.plan, **changes})

    def prove(self) -> Preflight:
        return preflight.prove(self.host, HOST_NAME, RUN_ID, self.roll)

    def failed(self) -> list[Proof]:
        """What does not hold, warnings too."""
        return [item for item in self.prove().proofs if not item.ok]


INSIDE_WITH_DRIVER = (*INSIDE, "nvidia", "nvidia-uvm")


def compressed(host: FakeHost, release: str, modules: tuple[str, ...], more: tuple[Member, ...] = ()) -> bytes:
    """An image as Debian and Ubuntu make them: microcode, then one archive in zstd."""
    main = archive(*members_of(host, release, modules), *more, block=512)
    return EARLY + subprocess.run(["zstd", "-1", "-qc"], input=main, capture_output=True, check=True).stdout


def driver_path(kind: Distribution, release: str, name: str) -> str:
    """Where a module of the driver lies."""
    if kind.precompiled:
        return f"/lib/modules/{release}/kernel/nvidia-570srv-open/{name}.ko"
    return f"/lib/modules/{release}/updates/dkms/{name}.ko.xz"


def ready(folder: Path, kind: Distribution = DEBIAN) -> Root:
    """A host on its old kernel, with everything there for the new one."""
    host = FakeHost(folder)
    install_programs(host)
    lay_devices(host)
    host.put(MODPROBE_FILE, render_modprobe(OPTIONS))
    host.packages = {"base-files": ("12.4", "ii")}
    for release in (kind.old, kind.new):
        add_kernel(host, release, modules=not kind.precompiled, entry=False)
        add_headers(host, release)
        for name in NVIDIA_MODULES if kind.precompiled else ():
            host.put(driver_path(kind, release, name), module_text(release, version=DRIVER))
        depmod(host, release)
        host.put(f"{ESP}/{MACHINE}/{release}/linux", host.read_bytes(f"/boot/vmlinuz-{release}") or b"")
        image = compressed(host, release, INSIDE_WITH_DRIVER)
        for path in (f"/boot/initrd.img-{release}", f"{ESP}/{MACHINE}/{release}/initrd.img-{release}"):
            host.put(path, image)
        line = LINE if release == kind.new else CMDLINE
        host.put(f"{ESP}/loader/entries/{MACHINE}-{release}.conf", entry_text(release, line))
        host.packages.update(dict.fromkeys(kind.packages(release), ("1.0", "ii")))
    host.put(f"{ESP}/loader/loader.conf", f"timeout 3\ndefault {MACHINE}-{kind.old}.conf\n")
    set_variable(host, "LoaderInfo", "systemd-boot 252.39-1~deb12u1")
    host.put("/etc/kernel/cmdline", LINE + "\n")
    host.put("/proc/sys/kernel/osrelease", kind.old + "\n")
    host.put("/proc/cmdline", f"initrd=\\{MACHINE}\\{kind.old}\\initrd.img {CMDLINE} systemd.machine_id={MACHINE}\n")
    host.put("/sys/module/nvidia/version", DRIVER + "\n")
    gpu = "/sys/bus/pci/devices/0000:01:00.0"
    for name, text in (("vendor", "0x10de"), ("class", "0x030200"), ("device", "0x2330")):
        host.put(f"{gpu}/{name}", text + "\n")
    root = Root(host, kind, open_roll(HOST_NAME, RUN_ID, _plan(kind), kind.old, {}, ()))
    root.hold()
    return root


def _plan(kind: Distribution) -> dict[str, Any]:
    image, headers = kind.packages(kind.new)[:2]
    target = {
        "release": kind.new, "image_package": image, "image_version": "1.0", "image_suite": "stable",
        "headers_package": headers, "headers_version": "1.0", "headers_suite": "stable", "reason": "asked for",
    }  # fmt: skip
    return {"target": target, "cmdline": ARGUMENTS, "modprobe_options": OPTIONS}
