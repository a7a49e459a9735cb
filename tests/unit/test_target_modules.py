"""What a host needs from its target kernel: read from trees of /sys and /proc as real machines have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_host import FakeHost

from gpuhost.interface_names import predictable_names
from gpuhost.needed_modules import default_interfaces, needed
from gpuhost.target_modules import Needed, depmod_problems, extra_package, missing, module_name, provided

RUNNING, TARGET = "6.1.0-57-amd64", "6.12.117+deb12-amd64"
PCI = "/sys/devices/pci0000:00"


class Machine(FakeHost):
    """A host whose /sys has links, drivers and loaded modules."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.put("/proc/sys/kernel/osrelease", RUNNING + "\n")
        self.builtin: list[str] = []
        self.dep: list[str] = []
        self.mounts: list[str] = []

    def link_to(self, path: str, target: str) -> None:
        """A relative link, as sysfs has them."""
        place = self.path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        self.path(target).mkdir(parents=True, exist_ok=True)
        if not place.is_symlink():
            place.symlink_to(os.path.relpath(self.path(target), place.parent))

    def load(self, *names: str) -> None:
        for name in names:
            self.put(f"/sys/module/{name}/initstate", "live\n")

    def compiled_in(self, *paths: str) -> None:
        self.builtin += paths
        self.put(f"/lib/modules/{RUNNING}/modules.builtin", "".join(f"{path}\n" for path in self.builtin))

    def index(self, *lines: str) -> None:
        self.dep += lines
        self.put(f"/lib/modules/{RUNNING}/modules.dep", "".join(f"{line}\n" for line in self.dep))

    def driver(self, device: str, bus: str, driver: str, module: str = "", modalias: str = "") -> None:
        self.link_to(f"{device}/driver", f"/sys/bus/{bus}/drivers/{driver}")
        if module:
            self.link_to(f"/sys/bus/{bus}/drivers/{driver}/module", f"/sys/module/{module}")
            self.load(module)
        if modalias:
            self.put(f"{device}/modalias", modalias + "\n")

    def block(self, number: str, path: str, **files: str) -> None:
        self.link_to(f"/sys/dev/block/{number}", path)
        self.link_to(f"/sys/class/block/{path.rpartition('/')[2]}", path)
        for name, text in files.items():
            self.put(f"{path}/{name.replace('__', '/')}", text + "\n")

    def slave(self, path: str, lower: str) -> None:
        self.link_to(f"{path}/slaves/{lower.rpartition('/')[2]}", lower)

    def mount(self, number: str, point: str, kind: str, source: str, options: str = "rw") -> None:
        self.mounts.append(f"{len(self.mounts) + 20} 1 {number} / {point} rw,relatime - {kind} {source} {options}\n")
        self.put("/proc/self/mountinfo", "".join(self.mounts))

    def card(self, name: str, device: str) -> None:
        self.link_to(f"{device}/net/{name}/device", device)
        self.link_to(f"/sys/class/net/{name}", f"{device}/net/{name}")
        self.put(f"{device}/net/{name}/operstate", "up\n")

    def virtual_card(self, name: str, kind: str, *lower: str) -> None:
        path = f"/sys/devices/virtual/net/{name}"
        self.put(f"{path}/uevent", f"DEVTYPE={kind}\nINTERFACE={name}\n" if kind else f"INTERFACE={name}\n")
        self.link_to(f"/sys/class/net/{name}", path)
        for item in lower:
            self.link_to(
                f"{path}/lower_{item}", os.path.relpath(self.path(f"/sys/class/net/{item}").resolve(), self.root)
            )

    def route(self, *interfaces: str) -> None:
        rows = "".join(f"{name}\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n" for name in interfaces)
        self.put("/proc/net/route", "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\n" + rows)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def nvme(machine: Machine, slot: str, number: int) -> str:
    device = f"{PCI}/{slot}"
    machine.driver(device, "pci", "nvme", "nvme", "pci:v0000144Dd0000A80Asv0000144Dsd0000A801bc01sc08i02")
    disk = f"{device}/nvme/nvme{number}/nvme{number}n1"
    machine.block(f"259:{number * 10}", disk)
    machine.block(f"259:{number * 10 + 1}", f"{disk}/nvme{number}n1p1", partition="1")
    machine.block(f"259:{number * 10 + 2}", f"{disk}/nvme{number}n1p2", partition="2")
    return disk


def found(machine: Machine) -> set[tuple[str, str]]:
    return {(item.purpose, item.module) for item in needed(machine)}


def test_a_cloud_machine(machine: Machine) -> None:
    disk, card = f"{PCI}/0000:00:02.0/virtio1", f"{PCI}/0000:00:03.0/virtio2"
    for number in (2, 3):
        machine.driver(f"{PCI}/0000:00:0{number}.0", "pci", "virtio-pci", "virtio_pci")
    machine.driver(disk, "virtio", "virtio_blk", "virtio_blk")
    machine.driver(card, "virtio", "virtio_net", "virtio_net", "virtio:d00000001v00001AF4")
    machine.block("254:0", f"{disk}/block/vda")
    machine.block("254:1", f"{disk}/block/vda/vda1", partition="1")
    machine.block("254:15", f"{disk}/block/vda/vda15", partition="15")
    machine.card("eth0", card)
    machine.route("eth0")
    machine.load("ext4", "vfat", "nls_cp437", "nls_ascii")
    machine.mount("254:1", "/", "ext4", "/dev/vda1")
    machine.mount("254:15", "/boot/efi", "vfat", "/dev/vda15", "rw,fmask=0022,codepage=437,iocharset=ascii,errors=ro")
    machine.mount("0:20", "/proc", "proc", "proc")
    assert set(needed(machine)) == {
        Needed("root", "/dev/vda1", "ext4", "ext4"),
        Needed("root", "vda", "virtio_blk", "virtio_blk"),
        Needed("root", "vda", "virtio-pci", "virtio_pci"),
        Needed("ESP", "/dev/vda15", "vfat", "vfat"),
        Needed("ESP", "/dev/vda15", "nls_cp437", "nls_cp437"),
        Needed("ESP", "/dev/vda15", "nls_ascii", "nls_ascii"),
        Needed("ESP", "vda", "virtio_blk", "virtio_blk"),
        Needed("ESP", "vda", "virtio-pci", "virtio_pci"),
        Needed("default route", "eth0", "virtio_net", "virtio_net", "virtio:d00000001v00001AF4"),
        Needed("default route", "eth0", "virtio-pci", "virtio_pci"),
    }


def test_lvm_on_crypt_on_md_on_two_nvme(machine: Machine) -> None:
    disks = [nvme(machine, "0000:01:00.0", 0), nvme(machine, "0000:02:00.0", 1)]
    md, crypt, volume = (f"/sys/devices/virtual/block/{name}" for name in ("md0", "dm-0", "dm-1"))
    machine.block("9:0", md, md__level="raid1")
    machine.block("253:0", crypt, dm__uuid="CRYPT-LUKS2-0f5f6a3e8a3c4a0c9b1e1f4b6a2c7d11-luks")
    machine.block("253:1", volume, dm__uuid="LVM-abcdefghijklmnopqrstuvwxyz012345ABCDEFGHIJKLMNOPQRSTUVWXYZ678901")
    for number, disk in enumerate(disks):
        machine.slave(md, f"{disk}/nvme{number}n1p2")
    machine.slave(crypt, md)
    machine.slave(volume, crypt)
    machine.load("dm_mod", "dm_crypt", "dm_thin_pool", "md_mod", "raid1", "raid456", "xfs")
    machine.mount("253:1", "/", "xfs", "/dev/mapper/vg-root")
    assert found(machine) == {
        ("root", name) for name in ("xfs", "dm_mod", "dm_crypt", "dm_thin_pool", "md_mod", "raid1", "nvme")
    }
    assert {item.device for item in needed(machine) if item.module == "nvme"} == {"nvme0n1", "nvme1n1"}
    # crypt is a layer of its own here; of LVM itself the thin pool is only loaded, and so is crypt.
    assert {(item.device, item.module) for item in needed(machine) if item.guess} == {
        ("dm-1", "dm_crypt"),
        ("dm-1", "dm_thin_pool"),
    }
    assert {(item.device, item.module) for item in needed(machine) if item.module == "dm_crypt" and not item.guess} == {
        ("dm-0", "dm_crypt")
    }


def test_multipath_and_its_partition(machine: Machine) -> None:
    machine.driver(f"{PCI}/0000:04:00.0", "pci", "mpt3sas", "mpt3sas")
    paths = []
    for number, name in ((0, "sda"), (16, "sdb")):
        port = f"{PCI}/0000:04:00.0/host1/target1:0:{number}/1:0:{number}:0"
        machine.driver(port, "scsi", "sd", "sd_mod")
        machine.block(f"8:{number}", f"{port}/block/{name}")
        paths.append(f"{port}/block/{name}")
    whole, part = "/sys/devices/virtual/block/dm-0", "/sys/devices/virtual/block/dm-1"
    machine.block("253:0", whole, dm__uuid="mpath-3600508b400105e210000900000490000")
    machine.block("253:1", part, dm__uuid="part1-mpath-3600508b400105e210000900000490000")
    machine.slave(part, whole)
    for path in paths:
        machine.slave(whole, path)
    machine.load("dm_mod", "dm_multipath")
    machine.mount("253:1", "/", "ext4", "/dev/mapper/mpatha-part1")
    assert found(machine) == {("root", name) for name in ("dm_mod", "dm_multipath", "sd_mod", "mpt3sas")}


def test_native_nvme_multipath_hides_the_controller(machine: Machine) -> None:
    machine.driver(f"{PCI}/0000:01:00.0", "pci", "nvme", "nvme")
    subsystem = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0"
    machine.block("259:0", f"{subsystem}/nvme0n1")
    machine.link_to(f"{subsystem}/nvme0", f"{PCI}/0000:01:00.0/nvme/nvme0")
    machine.mount("259:0", "/", "ext4", "/dev/nvme0n1")
    assert found(machine) == {("root", "nvme")}


@pytest.mark.parametrize("known", [True, False])
def test_zfs_pool(machine: Machine, known: bool) -> None:
    nvme(machine, "0000:01:00.0", 0)
    machine.link_to("/sys/block/nvme0n1", f"{PCI}/0000:01:00.0/nvme/nvme0/nvme0n1")
    if known:
        machine.put("/run/udev/data/b259:2", "S:disk/by-label/rpool\nE:ID_FS_LABEL=rpool\nE:ID_FS_TYPE=zfs_member\n")
        machine.put("/run/udev/data/b259:1", "E:ID_FS_LABEL=other\nE:ID_FS_TYPE=zfs_member\n")
    machine.load("zfs", "spl")
    machine.index(
        "updates/dkms/zfs.ko.xz: updates/dkms/spl.ko.xz",
        "updates/dkms/spl.ko.xz:",
        "kernel/drivers/nvme/host/nvme.ko.xz:",
    )
    machine.mount("0:27", "/", "zfs", "rpool/ROOT/pve-1")
    items = {item.module: item for item in needed(machine)}
    assert set(items) == {"zfs", "spl", "nvme"}
    assert items["zfs"].foreign == "updates/dkms/zfs.ko.xz"
    assert items["nvme"].foreign == ""


def test_btrfs_on_several_disks(machine: Machine) -> None:
    nvme(machine, "0000:01:00.0", 0)
    machine.driver(f"{PCI}/0000:05:00.0", "pci", "ahci", "ahci")
    machine.block("8:0", f"{PCI}/0000:05:00.0/ata1/host0/target0:0:0/0:0:0:0/block/sda")
    for name in ("sda", "nvme0n1p2"):
        machine.link_to(
            f"/sys/fs/btrfs/11111111-2222-3333-4444-555555555555/devices/{name}", f"/sys/class/block/{name}"
        )
    machine.put("/dev/sda")
    machine.load("btrfs")
    machine.mount("0:30", "/", "btrfs", "/dev/sda")
    assert found(machine) == {("root", "btrfs"), ("root", "ahci"), ("root", "nvme")}


def test_an_esp_that_is_not_mounted(machine: Machine) -> None:
    nvme(machine, "0000:01:00.0", 0)
    machine.put("/dev/nvme0n1p2")
    machine.path("/dev/disk/by-uuid").mkdir(parents=True)
    machine.path("/dev/disk/by-uuid/78DC-E4D8").symlink_to("../../nvme0n1p2")
    assert {(item.purpose, item.module) for item in needed(machine, ["/dev/disk/by-uuid/78DC-E4D8"])} == {
        ("ESP", "nvme")
    }


def test_the_topmost_mount_counts_and_autofs_needs_nothing(machine: Machine) -> None:
    machine.load("vfat", "autofs4")
    machine.mount("0:40", "/efi", "autofs", "systemd-1")
    assert found(machine) == set()
    machine.mount("259:1", "/efi", "vfat", "/dev/nvme0n1p1")
    assert found(machine) == {("ESP", "vfat")}


def test_vlan_on_bridge_on_bond_on_two_cards(machine: Machine) -> None:
    for number, driver in ((0, "mlx5_core"), (1, "ixgbe")):
        machine.driver(f"{PCI}/0000:0{number}:00.0", "pci", driver, driver)
        machine.card(f"enp{number}s0", f"{PCI}/0000:0{number}:00.0")
    machine.virtual_card("bond0", "bond", "enp0s0", "enp1s0")
    machine.virtual_card("vmbr0", "bridge", "bond0")
    machine.virtual_card("vmbr0.7", "vlan", "vmbr0")
    machine.load("bonding", "bridge", "8021q")
    machine.index("updates/dkms/mlx5_core.ko:", "kernel/drivers/net/ethernet/intel/ixgbe/ixgbe.ko:")
    machine.route("vmbr0.7")
    items = {item.module: item for item in needed(machine)}
    assert set(items) == {"8021q", "bridge", "bonding", "mlx5_core", "ixgbe"}
    assert [name for name, item in items.items() if item.foreign] == ["mlx5_core"]


def test_open_vswitch_does_not_show_its_cards(machine: Machine) -> None:
    machine.driver(f"{PCI}/0000:00:1f.6", "pci", "e1000e", "e1000e")
    machine.card("eno1", f"{PCI}/0000:00:1f.6")
    machine.virtual_card("vmbr0", "")
    machine.load("openvswitch")
    machine.route("vmbr0")
    assert found(machine) == {("default route", "openvswitch"), ("default route", "e1000e")}


def test_a_card_and_the_driver_of_its_phy(machine: Machine) -> None:
    card, phy = f"{PCI}/0000:03:00.0", f"{PCI}/0000:03:00.0/mdio_bus/r8169-0-300/r8169-0-300:00"
    machine.driver(card, "pci", "r8169", "r8169")
    machine.driver(phy, "mdio_bus", "RTL8226", "realtek")
    machine.card("enp3s0", card)
    machine.link_to(f"{card}/net/enp3s0/phydev", phy)
    machine.route("enp3s0")
    assert found(machine) == {("default route", "r8169"), ("default route", "realtek")}


def test_only_what_can_be_a_module_counts(machine: Machine) -> None:
    """A driver without a module link is built in; pcieport can be no module at all and is asked of nobody."""
    machine.driver(f"{PCI}/0000:00:1c.0", "pci", "pcieport")
    machine.driver(f"{PCI}/0000:00:1c.0/0000:01:00.0", "pci", "ahci")
    port = f"{PCI}/0000:00:1c.0/0000:01:00.0/ata1/host0/target0:0:0/0:0:0:0"
    machine.driver(port, "scsi", "sd")
    machine.block("8:0", f"{port}/block/sda")
    machine.compiled_in("kernel/drivers/ata/ahci.ko", "kernel/drivers/scsi/sd_mod.ko", "kernel/fs/ext4/ext4.ko")
    machine.mount("8:0", "/", "ext3", "/dev/sda")
    assert found(machine) == {("root", "ahci"), ("root", "sd_mod"), ("root", "ext4")}


def test_default_routes(machine: Machine) -> None:
    machine.put(
        "/proc/net/route",
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        "eth1\t00000000\t010200C0\t0003\t0\t0\t200\t00000000\t0\t0\t0\n"
        "eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
        "eth2\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
        "*\t00000000\t00000000\t0200\t0\t0\t0\t00000000\t0\t0\t0\n",
    )
    zero = "0" * 32
    machine.put(
        "/proc/net/ipv6_route",
        f"{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00450003     eth3\n"
        f"{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo\n"
        f"fe800000000000000000000000000000 40 {zero} 00 {zero} 00000100 00000001 00000000 00000001     eth4\n",
    )
    assert default_interfaces(machine) == ("eth0", "eth3")


def test_a_host_that_shows_nothing(machine: Machine) -> None:
    assert needed(machine) == ()
    assert default_interfaces(machine) == ()


# --- the target

DEP = """kernel/drivers/nvme/host/nvme.ko.xz: kernel/drivers/nvme/host/nvme-core.ko.xz
kernel/drivers/nvme/host/nvme-core.ko.xz:
kernel/net/8021q/8021q.ko.zst:
updates/dkms/nvidia.ko.xz:
kernel/zfs/zfs.ko:
"""
BUILTIN = "kernel/fs/ext4/ext4.ko\nkernel/fs/nls/nls_cp437.ko\nkernel/drivers/md/dm-mod.ko\n"
FILES = {line.partition(":")[0] for line in DEP.splitlines()}


def need(module: str, modalias: str = "", foreign: str = "") -> Needed:
    return Needed("root", "sda", module, module, modalias, foreign)


def judged(item: Needed, files: set[str] | None = None, aliases: str = "") -> list[tuple[str, bool]]:
    found = missing([item], provided(BUILTIN, DEP), FILES if files is None else files, aliases)
    return [(entry.problem, entry.dkms) for entry in found]


def test_what_the_target_has() -> None:
    for name in ("nvme", "nvme_core", "8021q", "ext4", "nls_cp437", "dm_mod", "dm-mod"):
        assert judged(need(name)) == []
    full = {f"/usr/lib/modules/{TARGET}/{path}" for path in FILES}
    assert judged(need("nvme"), full) == []
    assert missing([need("nvme")], provided(BUILTIN, DEP)) == ()


def test_absolute_paths_in_an_old_index() -> None:
    target = provided("", "".join(f"/lib/modules/{TARGET}/{line}\n" for line in DEP.splitlines()))
    assert missing([need("nvidia")], target, FILES) == ()


def test_what_the_target_lacks() -> None:
    assert judged(need("mpt3sas")) == [("no module mpt3sas", False)]
    assert judged(need("zfs_old", foreign="updates/dkms/zfs_old.ko")) == [("no module zfs_old", True)]


def test_a_stale_index() -> None:
    core = "kernel/drivers/nvme/host/nvme-core.ko.xz"
    assert judged(need("nvme"), FILES - {core}) == [(f"modules.dep names {core}, which does not exist", False)]
    assert judged(need("nvidia"), FILES - {"updates/dkms/nvidia.ko.xz"}) == [
        ("modules.dep names updates/dkms/nvidia.ko.xz, which does not exist", True)
    ]


def test_dkms_here_and_the_kernels_own_there() -> None:
    problem = "only kernel/zfs/zfs.ko is there, the running kernel has it from updates/dkms/zfs.ko"
    assert judged(need("zfs", foreign="updates/dkms/zfs.ko")) == [(problem, True)]


def test_another_module_claims_the_device() -> None:
    aliases = (
        "# Aliases extracted from modules themselves.\nalias pci:v*d*sv*sd*bc01sc08i02* nvme\nalias fs-ext4 ext4\n"
    )
    device = "pci:v0000144Dd0000A80Asv0000144Dsd0000A801bc01sc08i02"
    assert judged(need("nvme_old", device), aliases=aliases) == []
    assert judged(need("nvme_old", device), aliases=aliases.replace(" nvme\n", " gone\n")) != []
    assert judged(need("nvme_old", device, "updates/dkms/nvme_old.ko"), aliases=aliases) == [
        ("no module nvme_old", True)
    ]
    assert judged(need("nvme_old"), aliases=aliases) != []


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("kernel/fs/nls/nls_iso8859-1.ko.xz", "nls-iso8859-1"),
        ("/lib/modules/x/updates/dkms/nvidia-uvm.ko", "nvidia-uvm"),
        ("kernel/x.ko.gz", "x"),
        ("modules.dep", ""),
        ("kernel/x.ko.debug", ""),
    ],
)
def test_module_names(path: str, name: str) -> None:
    assert module_name(path) == name


def test_depmod() -> None:
    assert depmod_problems(DEP, FILES) == ()
    assert depmod_problems(DEP, FILES - {"kernel/zfs/zfs.ko"}) == ()
    assert depmod_problems(DEP, FILES | {"updates/dkms/nvidia-uvm.ko.xz", "updates/dkms/other.ko"}) == (
        "updates/dkms/nvidia-uvm.ko.xz is not in modules.dep",
    )
    assert depmod_problems(DEP, FILES - {"updates/dkms/nvidia.ko.xz"}) == (
        "modules.dep names updates/dkms/nvidia.ko.xz, which does not exist",
    )


def test_depmod_lists_one_of_two_copies() -> None:
    """nvidia-dkms beside linux-modules-nvidia."""
    copy = "kernel/nvidia-535/nvidia.ko"
    assert depmod_problems(DEP, FILES | {copy}) == ()
    assert depmod_problems(DEP, {*FILES, copy} - {"updates/dkms/nvidia.ko.xz"}) == (
        "modules.dep names updates/dkms/nvidia.ko.xz, which does not exist",
    )
    # The other way round DKMS's copy is the newer one: depmod would list it.
    before = DEP.replace("updates/dkms/nvidia.ko.xz", copy)
    assert depmod_problems(before, FILES | {copy}) == ("updates/dkms/nvidia.ko.xz is not in modules.dep",)


def test_extra_package() -> None:
    running, target = "6.8.0-60-generic", "6.8.0-71-generic"
    extra = f"linux-modules-extra-{target}"
    assert extra_package(running, target, [f"linux-modules-extra-{running}"]) == extra
    assert extra_package(running, target, [f"linux-modules-extra-{running}", extra]) is None
    assert extra_package(running, target, [f"linux-modules-{running}"]) is None


# --- names of interfaces

MAC = "52:54:00:12:34:56"
LINK_FILE = f"[Match]\nMACAddress={MAC.upper()}\n\n[Link]\nName=enp1s0f0\n"


def name(
    interface: str, driver: str = "mlx5_core", cards: int = 2, line: str = "", link: str = "", rules: str = ""
) -> str:
    return predictable_names(interface, MAC, driver, cards, line, {"/etc/systemd/network/10-x.link": link}, rules) or ""


@pytest.mark.parametrize(
    "warning",
    [
        name("eth0", line="net.ifnames=0"),
        name("enp1s0f0"),
        name("ens3", cards=1),
        name("eno1", "ixgbe"),
        name("enp1s0f0", link=LINK_FILE.replace("56", "57")),
        name("enp1s0f0", link=LINK_FILE.replace("f0", "f1")),
        name("eth0", rules=f'# SUBSYSTEM=="net", ATTR{{address}}=="{MAC}", NAME="eth0"'),
        name("eth0", line=f"ifname=eth1:{MAC}"),
    ],
)
def test_a_name_that_may_change(warning: str) -> None:
    assert "no .link file pins it" in warning


@pytest.mark.parametrize(
    "warning",
    [
        name("eth0", "virtio_net", 1),
        name("ens18", "virtio_net", 2),
        name("enp1s0f0", link=LINK_FILE),
        name("enp1s0f0", link=LINK_FILE.replace("MACAddress", "PermanentMACAddress")),
        name("enx525400123456"),
        name("lan0"),
        name("eth0", rules=f'SUBSYSTEM=="net", ACTION=="add", ATTR{{address}}=="{MAC}", NAME="eth0"'),
        name("eth0", line=f"ro ifname=eth0:{MAC}"),
    ],
)
def test_a_name_that_stays(warning: str) -> None:
    assert warning == ""
