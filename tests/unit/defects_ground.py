"""Defects of what disks and network stand on, and of the initramfs."""

from __future__ import annotations

from defects import defect
from fake_initramfs import EARLY, FILE, INSIDE
from fake_ready import INSIDE_WITH_DRIVER, PROXMOX, UBUNTU, Root
from fake_tree import depmod, dkms_build, link_to, module_text

from gpuhost.boot_config import MODPROBE_FILE


@defect()
def no_network_driver(root: Root) -> str:
    target_lacks(root, "virtio_net")
    return "boot.module_missing"


@defect()
def no_root_file_system(root: Root) -> str:
    target_lacks(root, "ext4")
    return "boot.module_missing"


@defect(PROXMOX)
def no_code_page_for_the_esp(root: Root) -> str:
    target_lacks(root, "nls_ascii")
    return "boot.module_missing"


def target_lacks(root: Root, name: str) -> None:
    (path,) = [path for path in root.host.files_below(f"/lib/modules/{root.new}") if path.endswith(f"/{name}.ko")]
    root.drop(path)
    depmod(root.host, root.new)


@defect()
def module_in_the_index_only(root: Root) -> str:
    root.drop(f"/lib/modules/{root.new}/kernel/drivers/net/virtio_net.ko")
    return "boot.module_missing"


@defect()
def root_on_a_dkms_module_that_is_not_built(root: Root) -> str:
    """ZFS: not a word apart as for blksnap, it blocks."""
    host = root.host
    host.put(f"/lib/modules/{root.old}/updates/dkms/zfs.ko.xz", module_text(root.old))
    dkms_build(host, root.old, "zfs", "2.3.4")
    depmod(host, root.old)
    host.put("/sys/module/zfs/initstate", "live\n")
    host.put("/proc/self/mountinfo", "20 1 0:27 / / rw - zfs rpool/ROOT/pve-1 rw\n" + mounts(root, "/boot/efi"))
    link_to(host, "/sys/block/vda", "/sys/devices/pci0000:00/0000:00:02.0/virtio2/block/vda")
    return "boot.module_missing"


def mounts(root: Root, point: str) -> str:
    lines = (root.host.read("/proc/self/mountinfo") or "").splitlines(True)
    return "".join(line for line in lines if f" {point} " in line)


@defect()
def root_that_stands_on_nothing_known(root: Root) -> str:
    """What was not seen is not proven."""
    root.host.put("/proc/self/mountinfo", mounts(root, "/boot/efi"))
    return "boot.module_missing"


@defect(UBUNTU)
def no_extra_drivers_for_the_target(root: Root) -> str:
    del root.host.packages[f"linux-modules-extra-{root.new}"]
    return "boot.modules_extra_missing"


@defect()
def card_named_by_its_slot(root: Root) -> str:
    link_to(root.host, "/sys/bus/pci/drivers/e1000e/module", "/sys/module/e1000e")
    root.host.put("/sys/module/e1000e/initstate", "live\n")
    root.add_module("kernel/drivers/net/ethernet/intel/e1000e/e1000e.ko")
    card = "/sys/devices/pci0000:00/0000:00:05.0"
    link_to(root.host, f"{card}/driver", "/sys/bus/pci/drivers/e1000e")
    link_to(root.host, f"{card}/net/enp0s5/device", card)
    link_to(root.host, "/sys/class/net/enp0s5", f"{card}/net/enp0s5")
    root.host.put(f"{card}/net/enp0s5/address", "52:54:00:12:34:57\n")
    route = (root.host.read("/proc/net/route") or "").replace("enp0s3", "enp0s5")
    root.host.put("/proc/net/route", route)
    return "net.name_unpinned"


@defect()
def default_route_in_another_table(root: Root) -> str:
    """Policy routing: /proc/net/route has the main table only."""
    root.host.put("/proc/net/route", "Iface\tDestination\tGateway\tFlags\n")
    return "net.no_default_route"


@defect()
def default_route_over_nothing_known(root: Root) -> str:
    root.host.put("/proc/net/route", (root.host.read("/proc/net/route") or "").replace("enp0s3", "gone0"))
    return "net.no_default_route"


# --- the initramfs


@defect()
def no_initramfs(root: Root) -> str:
    root.drop(root.image)
    return "boot.initramfs_missing"


@defect()
def empty_initramfs(root: Root) -> str:
    root.write_image(b"")
    return "boot.initramfs_missing"


@defect()
def initramfs_older_than_its_options(root: Root) -> str:
    root.host.aged(root.image, 60)
    return "boot.initramfs_missing"


@defect()
def initramfs_cut_off(root: Root) -> str:
    data = root.host.read_bytes(root.image) or b""
    root.write_image(data[: len(data) // 2 + 300])
    return "boot.initramfs_damaged"


@defect()
def initramfs_with_a_turned_byte(root: Root) -> str:
    data = bytearray(root.host.read_bytes(root.image) or b"")
    data[-100] ^= 0xFF
    root.write_image(bytes(data))
    return "boot.initramfs_damaged"


@defect()
def initramfs_of_microcode_only(root: Root) -> str:
    root.write_image(EARLY)
    return "boot.initramfs_damaged"


@defect()
def no_program_to_unpack_the_initramfs(root: Root) -> str:
    root.host.absent.add("zstd")
    return "boot.initramfs_tool_missing"


@defect()
def modules_of_another_kernel_in_the_initramfs(root: Root) -> str:
    root.write_image(more=((f"usr/lib/modules/{root.old}/kernel/fs/ext4/ext4.ko", FILE, b"\x7fELF"),))
    return "boot.initramfs_foreign_modules"


@defect()
def root_device_not_in_the_initramfs(root: Root) -> str:
    root.write_image(modules=tuple(name for name in INSIDE_WITH_DRIVER if name != "virtio_blk"))
    return "boot.module_missing"


@defect()
def option_not_in_the_initramfs(root: Root) -> str:
    file = root.host.read_bytes(MODPROBE_FILE) or b""
    root.drop(MODPROBE_FILE)
    root.write_image()
    root.host.put(MODPROBE_FILE, file)
    root.host.aged(MODPROBE_FILE, 60)
    return "boot.modprobe_options"


@defect()
def option_taken_back_by_a_later_file(root: Root) -> str:
    root.host.put("/etc/modprobe.d/zz-site.conf", "options nvidia_uvm uvm_disable_hmm=0\n")
    return "boot.modprobe_options"


@defect()
def option_of_a_module_that_does_not_exist(root: Root) -> str:
    root.plan(modprobe_options={"nvdia": {"NVreg_EnableGpuFirmware": "0"}})
    return "boot.modprobe_options"


@defect()
def option_of_a_module_that_is_built_in(root: Root) -> str:
    """Nothing reads modprobe.d for it."""
    path = f"/lib/modules/{root.new}/modules.builtin"
    root.host.put(path, f"{root.host.read(path)}kernel/drivers/block/loop.ko\n")
    root.plan(modprobe_options={"loop": {"max_loop": "8"}})
    return "boot.modprobe_options"


@defect()
def option_of_a_module_outside_the_initramfs(root: Root) -> str:
    root.write_image(modules=INSIDE)
    root.host.put(MODPROBE_FILE, "# emptied by hand\n")
    root.host.aged(MODPROBE_FILE, 60)
    return "boot.modprobe_options"
