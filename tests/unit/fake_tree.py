"""The tree of a Debian 12 GPU host with systemd-boot: kernel 6.1 runs, 6.12 is installed or only in the archive.

Synthetic, made after the lab's machine (docs/architecture.md): file names, entry fields and the bytes of the EFI
variables are those of systemd 252 and kernel-install.
"""

from __future__ import annotations

import os

from fake_host import FakeHost
from fake_initramfs import image_of

from gpuhost.dkms import NVIDIA_MODULES
from gpuhost.efi_variables import encode_efi_string

OLD = "6.1.0-57-cloud-amd64"
NEW = "6.12.117+deb12-cloud-amd64"
VERSIONS = {OLD: "6.1.172-1", NEW: "6.12.117-1"}
MACHINE = "0123456789abcdef0123456789abcdef"
ESP = "/boot/efi"
EFIVARS = "/sys/firmware/efi/efivars"
GUID = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
OLD_ENTRY = f"{MACHINE}-{OLD}.conf"
NEW_ENTRY = f"{MACHINE}-{NEW}.conf"
CMDLINE = "root=UUID=0f5f6a3e-8a3c-4a0c-9b1e-1f4b6a2c7d11 ro console=ttyS0,115200"
DRIVER = "570.124.06"
KERNEL_MODULES = (
    "kernel/fs/ext4/ext4", "kernel/fs/fat/vfat", "kernel/fs/nls/nls_ascii", "kernel/fs/nls/nls_cp437",
    "kernel/drivers/block/virtio_blk", "kernel/drivers/net/virtio_net", "kernel/drivers/virtio/virtio_pci",
)  # fmt: skip
"""What the machine of this tree stands on: a virtio disk with ext4 and a vfat ESP, a virtio card. No nouveau."""
DKMS_SOURCE = f"/var/lib/dkms/nvidia/{DRIVER}"
BOOT_IDS = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(1, 20)]
CONTAINER = "gpu-ct"
PLAIN = "web"

# nvidia-uvm 504 -> 509 and nvidia-caps 507 -> 237: the numbers of the incident.
MAJORS = {OLD: {"nvidia-uvm": 504, "nvidia-caps": 507}, NEW: {"nvidia-uvm": 509, "nvidia-caps": 237}}
OTHERS = {OLD: {509: "aux"}, NEW: {504: "aux"}}
CONFIG = """lxc.uts.name = gpu-ct
lxc.start.auto = 1
lxc.start.order = 2
lxc.cgroup2.devices.allow = c 195:* rwm
lxc.cgroup2.devices.allow = c 504:* rwm
lxc.cgroup2.devices.allow = c 507:* rwm
lxc.mount.entry = /dev/nvidia0 dev/nvidia0 none bind,optional,create=file
lxc.mount.entry = /dev/nvidiactl dev/nvidiactl none bind,optional,create=file
lxc.mount.entry = /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file
"""


def proc_devices(release: str) -> str:
    """/proc/devices of a kernel."""
    rows = {1: "mem", 195: "nvidia", **OTHERS[release]} | {major: name for name, major in MAJORS[release].items()}
    characters = "".join(f"{major:3d} {name}\n" for major, name in sorted(rows.items()))
    return f"Character devices:\n{characters}195 nvidiactl\n\nBlock devices:\n254 virtblk\n"


def entry_text(release: str, options: str) -> str:
    """A boot entry as kernel-install 252 writes it."""
    return (
        "title      Debian GNU/Linux 12 (bookworm)\n"
        f"version    {release}\n"
        f"machine-id {MACHINE}\n"
        "sort-key   debian\n"
        f"options    {options} systemd.machine_id={MACHINE}\n"
        f"linux      /{MACHINE}/{release}/linux\n"
        f"initrd     /{MACHINE}/{release}/initrd.img-{release}\n"
    )


def kernel_of_package(name: str) -> str:
    """The release that a kernel or headers package is for."""
    return name.removeprefix("linux-image-").removeprefix("linux-headers-")


def add_headers(host: FakeHost, release: str) -> None:
    """``build`` is a link in a real tree; a link out of the test's folder would lead nowhere."""
    host.put(f"/lib/modules/{release}/build/Makefile", "# headers\n")


def link_to(host: FakeHost, path: str, target: str) -> None:
    """A relative link, as sysfs and DKMS have them; what it leads to is made."""
    place = host.path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    host.path(target).mkdir(parents=True, exist_ok=True)
    if not place.is_symlink():
        place.symlink_to(os.path.relpath(host.path(target), place.parent))


def module_text(release: str, **fields: str) -> str:
    """A module file of the fake tree: the fields that modinfo shows, as text."""
    known = {"vermagic": f"{release} SMP preempt mod_unload modversions", "license": "Dual MIT/GPL", **fields}
    return "".join(f"{key}={value}\n" for key, value in known.items())


def depmod(host: FakeHost, release: str) -> None:
    """modules.dep for the files that are there."""
    tree = f"/lib/modules/{release}/"
    files = [path.removeprefix(tree) for path in host.files_below(tree) if ".ko" in path.rpartition("/")[2]]
    host.put(f"{tree}modules.dep", "".join(f"{path}:\n" for path in files))


def dkms_build(host: FakeHost, release: str, module: str = "nvidia", version: str = DRIVER) -> None:
    """What ``dkms install`` leaves in its tree for the modules that lie in updates/dkms."""
    build = f"/var/lib/dkms/{module}/{version}/{release}/x86_64"
    names = NVIDIA_MODULES if module == "nvidia" else (module,)
    host.path(f"/var/lib/dkms/{module}/{version}/source").mkdir(parents=True, exist_ok=True)
    for name in names:
        file = f"{name}.ko.xz"
        host.put(f"{build}/module/{file}", host.read_bytes(f"/lib/modules/{release}/updates/dkms/{file}") or b"")
    link_to(host, f"/var/lib/dkms/{module}/kernel-{release}-x86_64", build)


def add_kernel(
    host: FakeHost, release: str, *, modules: bool = True, entry: bool = True, options: str = CMDLINE
) -> None:
    """What the kernel's packages, DKMS and kernel-install leave behind for one release."""
    host.put(f"/boot/vmlinuz-{release}", f"kernel {release}\n" * 20)
    for path in KERNEL_MODULES:
        host.put(f"/lib/modules/{release}/{path}.ko", module_text(release, license="GPL"))
    host.put(f"/lib/modules/{release}/modules.builtin", "kernel/drivers/pci/pcieport.ko\n")
    host.put(f"/lib/modules/{release}/modules.alias", "alias fs-ext4 ext4\n")
    if modules:
        for name in NVIDIA_MODULES:
            path = f"/lib/modules/{release}/updates/dkms/{name}.ko.xz"
            host.put(path, module_text(release, version=DRIVER))
        dkms_build(host, release)
    depmod(host, release)
    if entry:
        host.put(f"/boot/initrd.img-{release}", image_of(host, release))
        for file, source in (("linux", f"vmlinuz-{release}"), (f"initrd.img-{release}", f"initrd.img-{release}")):
            host.put(f"{ESP}/{MACHINE}/{release}/{file}", host.read_bytes(f"/boot/{source}") or b"")
        host.put(f"{ESP}/loader/entries/{MACHINE}-{release}.conf", entry_text(release, options))


def set_variable(host: FakeHost, name: str, text: str | None) -> None:
    """An EFI variable of the loader, in efivarfs' own bytes; None removes it."""
    path = f"{EFIVARS}/{name}-{GUID}"
    if text is None:
        host.path(path).unlink(missing_ok=True)
    else:
        host.put(path, encode_efi_string(text))


def booted(host: FakeHost, release: str, options: str = CMDLINE) -> None:
    """What the running kernel shows."""
    host.put("/proc/sys/kernel/osrelease", release + "\n")
    host.put("/proc/sys/kernel/random/boot_id", BOOT_IDS[len(host.boots)] + "\n")
    initrd = f"initrd=\\{MACHINE}\\{release}\\initrd.img-{release}"
    machine = "" if "systemd.machine_id=" in options else f" systemd.machine_id={MACHINE}"
    host.put("/proc/cmdline", f"{initrd} {options}{machine}\n")
    host.put("/proc/devices", proc_devices(release))
    host.put("/proc/1000/comm", "python3\n")  # any container's init, as lxc-info gives its number
    host.put("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n")
    host.boots.append(release)
    uvm = MAJORS[release]["nvidia-uvm"]
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        host.put(f"/dev/{name}")
    host.nodes = {
        "/dev/nvidia0": (195, 0),
        "/dev/nvidiactl": (195, 255),
        "/dev/nvidia-uvm": (uvm, 0),
        "/dev/nvidia-uvm-tools": (uvm, 1),
    }


def add_archive(host: FakeHost, *releases: str, headers: bool = True) -> None:
    """Offer kernels for installation."""
    for release in releases:
        version = VERSIONS.get(release, "6.12.120-1")
        host.archive.append((f"linux-image-{release}", version, "bookworm-security"))
        if headers:
            host.archive.append((f"linux-headers-{release}", version, "bookworm-security"))


def add_packages(host: FakeHost, release: str) -> None:
    """Count a kernel's packages as installed."""
    for kind in ("image", "headers"):
        host.packages[f"linux-{kind}-{release}"] = (VERSIONS[release], "ii")


def lay_devices(host: FakeHost) -> None:
    """A virtio disk with root and ESP, a virtio card with the default route: what /proc and /sys say of them."""
    disk, card = (f"/sys/devices/pci0000:00/0000:00:0{slot}.0/virtio{slot}" for slot in (2, 3))
    for device, bus, driver in (
        (disk.rpartition("/")[0], "pci", "virtio-pci"), (card.rpartition("/")[0], "pci", "virtio-pci"),
        (disk, "virtio", "virtio_blk"), (card, "virtio", "virtio_net"),
    ):  # fmt: skip
        link_to(host, f"{device}/driver", f"/sys/bus/{bus}/drivers/{driver}")
        link_to(host, f"/sys/bus/{bus}/drivers/{driver}/module", f"/sys/module/{driver.replace('-', '_')}")
    for path in KERNEL_MODULES:
        host.put(f"/sys/module/{path.rpartition('/')[2]}/initstate", "live\n")
    for number, name in ((0, "vda"), (1, "vda/vda1"), (15, "vda/vda15")):
        link_to(host, f"/sys/dev/block/254:{number}", f"{disk}/block/{name}")
        link_to(host, f"/sys/class/block/{name.rpartition('/')[2]}", f"{disk}/block/{name}")
        if number:
            host.put(f"{disk}/block/{name}/partition", f"{number}\n")
    host.put(f"{card}/net/enp0s3/address", "52:54:00:12:34:56\n")
    host.put(f"{card}/net/enp0s3/operstate", "up\n")
    link_to(host, f"{card}/net/enp0s3/device", card)
    link_to(host, "/sys/class/net/enp0s3", f"{card}/net/enp0s3")
    host.put(
        "/proc/self/mountinfo",
        "20 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw\n"
        "21 20 254:15 / /boot/efi rw - vfat /dev/vda15 rw,codepage=437,iocharset=ascii\n",
    )
    host.put(
        "/proc/net/route",
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\n"
        "enp0s3\t00000000\t0200000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n",
    )
    host.put("/proc/modules", "nvidia_uvm 2076672 4 - Live 0x0 (OE)\nnvidia 9 92 nvidia_uvm, Live 0x0 (OE)\n")


def lay_tree(host: FakeHost, *, installed: bool) -> None:
    """The whole machine. ``installed``: the new kernel is there too, with everything that belongs to it."""
    host.packages = {"base-files": ("12.4+deb12u12", "ii"), "systemd-boot": ("252.39-1~deb12u1", "ii")}
    lay_devices(host)
    add_kernel(host, OLD)
    add_headers(host, OLD)
    add_packages(host, OLD)
    if installed:
        add_kernel(host, NEW, options=f"{CMDLINE} panic=30")
        add_headers(host, NEW)
        add_packages(host, NEW)
    host.put(f"{ESP}/loader/loader.conf", "timeout 3\nconsole-mode keep\n")
    set_variable(host, "LoaderInfo", "systemd-boot 252.39-1~deb12u1")
    host.put("/etc/kernel/cmdline", f"{CMDLINE} panic=30\n" if installed else f"{CMDLINE}\n")
    host.put("/etc/os-release", 'ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n')
    host.put("/proc/uptime", "5000.00 9000.00\n")
    host.put("/sys/module/nvidia/version", DRIVER + "\n")
    gpu = "/sys/bus/pci/devices/0000:01:00.0"
    for name, text in (("vendor", "0x10de"), ("class", "0x030200"), ("device", "0x2330")):
        host.put(f"{gpu}/{name}", text + "\n")
    host.put(f"/var/lib/lxc/{CONTAINER}/config", CONFIG)
    host.put(f"/var/lib/lxc/{PLAIN}/config", "lxc.uts.name = web\nlxc.start.order = 1\n")
    host.put("/var/lib/apt/lists/lock")
    host.running = {CONTAINER, PLAIN}
    add_archive(host, OLD, NEW)
    booted(host, OLD)
