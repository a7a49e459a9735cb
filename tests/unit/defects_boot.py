"""Defects of what the loader would boot, of the fallback, and of the packages."""

from __future__ import annotations

from dataclasses import replace

from defects import defect
from fake_ready import PROXMOX, UBUNTU, Root
from fake_tree import CMDLINE, ESP, MACHINE, entry_text, module_text, set_variable

from gpuhost.apt_guard import LOCK_FILES


@defect()
def no_entry(root: Root) -> str:
    root.drop(root.entry(root.new))
    return "boot.entry_missing"


@defect()
def initrd_cut_on_the_esp(root: Root) -> str:
    root.host.put(f"{ESP}/{MACHINE}/{root.new}/initrd.img-{root.new}", "cut")
    return "boot.entry_missing"


@defect()
def no_kernel_on_the_esp(root: Root) -> str:
    root.drop(f"{ESP}/{MACHINE}/{root.new}/linux")
    return "boot.entry_missing"


@defect()
def entry_without_initrd(root: Root) -> str:
    lines = (root.host.read(root.entry(root.new)) or "").splitlines(True)
    root.host.put(root.entry(root.new), "".join(line for line in lines if "initrd" not in line))
    return "boot.entry_missing"


@defect()
def argument_not_in_the_entry(root: Root) -> str:
    root.host.put(root.entry(root.new), entry_text(root.new, f"{CMDLINE} panic=30"))
    return "boot.cmdline_missing"


@defect()
def argument_with_another_value(root: Root) -> str:
    """Case cmdline-02: a substring is no argument."""
    root.host.put(root.entry(root.new), entry_text(root.new, f"{CMDLINE} panic=30 iommu=ptx amd_iommu=pt"))
    return "boot.cmdline_missing"


@defect()
def arguments_on_the_second_line(root: Root) -> str:
    """Case cmdline-01: of /etc/kernel/cmdline the first line counts."""
    root.host.put("/etc/kernel/cmdline", f"{CMDLINE}\npanic=30 iommu=pt\n")
    return "boot.cmdline_missing"


@defect()
def a_panic_that_stays_dead(root: Root) -> str:
    root.plan(cmdline={"iommu": "pt"})
    root.host.put(root.entry(root.new), entry_text(root.new, f"{CMDLINE} iommu=pt panic=0"))
    return "boot.no_panic_reboot"


@defect()
def esp_that_turned_read_only(root: Root) -> str:
    root.host.put("/proc/mounts", f"/dev/vda15 {ESP} vfat ro,relatime 0 0\n")
    return "boot.esp_read_only"


@defect(UBUNTU)
def boot_counting(root: Root) -> str:
    counted = f"{ESP}/loader/entries/{MACHINE}-6.8.0-59-generic+3.conf"
    root.host.put(counted, entry_text("6.8.0-59-generic", CMDLINE))
    return "loader.unsupported"


@defect()
def no_room_in_boot(root: Root) -> str:
    root.host.free["/boot"] = 100
    return "boot.no_space"


@defect()
def no_room_on_the_esp(root: Root) -> str:
    root.host.free[ESP] = 100
    return "boot.no_space"


@defect()
def a_kernel_that_kexec_has_loaded(root: Root) -> str:
    root.host.put("/sys/kernel/kexec_loaded", "1\n")
    return "boot.kexec_armed"


@defect()
def kexec_at_every_reboot(root: Root) -> str:
    root.host.put("/etc/default/kexec", "LOAD_KEXEC=false\n")
    root.host.put("/etc/default/kexec.d/site.conf", "LOAD_KEXEC=true\n")
    root.host.programs["systemctl", "is-enabled"] = (0, "enabled\n", "")
    return "boot.kexec_armed"


# --- the fallback


@defect()
def fallback_not_recorded(root: Root) -> str:
    root.roll = replace(root.roll, fallback=None)
    return "boot.fallback_missing"


@defect()
def fallback_with_other_arguments(root: Root) -> str:
    root.host.put(root.entry(root.old), entry_text(root.old, f"{CMDLINE} panic=30"))
    return "boot.fallback_changed"


@defect()
def running_with_arguments_that_no_entry_has(root: Root) -> str:
    root.host.put("/proc/cmdline", (root.host.read("/proc/cmdline") or "").replace(" ro ", " ro mem=64G "))
    return "boot.fallback_not_booted"


@defect()
def fallback_with_another_initrd(root: Root) -> str:
    root.host.put(f"{ESP}/{MACHINE}/{root.old}/initrd.img-{root.old}", "x")
    return "boot.fallback_changed"


@defect(PROXMOX)
def fallback_with_another_kernel(root: Root) -> str:
    root.host.put(f"{ESP}/{MACHINE}/{root.old}/linux", "x")
    return "boot.fallback_changed"


@defect(UBUNTU)
def fallback_with_a_changed_driver(root: Root) -> str:
    root.host.put(f"/lib/modules/{root.old}/kernel/nvidia-570srv-open/nvidia.ko", module_text(root.old, version="1"))
    return "boot.fallback_changed"


@defect()
def default_not_held(root: Root) -> str:
    root.host.put(f"{ESP}/loader/loader.conf", "timeout 3\n")
    return "boot.default_not_held"


@defect()
def default_is_the_target(root: Root) -> str:
    root.host.put(f"{ESP}/loader/loader.conf", f"default {MACHINE}-{root.new}.conf\n")
    return "boot.default_not_held"


@defect()
def efi_default_that_is_harmless_today(root: Root) -> str:
    set_variable(root.host, "LoaderEntryDefault", f"{MACHINE}-{root.old}.conf")
    return "boot.efi_default_set"


@defect()
def somebody_elses_one_shot(root: Root) -> str:
    set_variable(root.host, "LoaderEntryOneShot", f"{MACHINE}-{root.new}.conf")
    return "boot.foreign_one_shot"


# --- units


@defect()
def gpu_unit_that_had_failed_before(root: Root) -> str:
    """nvidia-fabricmanager on a machine without NVSwitch: the trial would be taken back for it."""
    unit_failed(root, "nvidia-fabricmanager.service")
    return "host.unit_failed"


@defect()
def systemd_that_does_not_answer(root: Root) -> str:
    root.host.programs["systemctl", "list-units"] = (1, "", "Failed to connect to bus: Connection refused\n")
    return "host.unit_failed"


def unit_failed(root: Root, name: str) -> None:
    root.host.programs["systemctl", "is-system-running"] = (1, "degraded\n", "")
    root.host.programs["systemctl", "list-units"] = (0, f"{name} loaded failed failed x\n", "")


# --- packages


@defect()
def half_configured(root: Root) -> str:
    root.host.packages[f"linux-image-{root.new}"] = ("1.0", "iF")
    root.host.packages["linux-base"] = ("4", "iU")
    return "apt.half_configured"


@defect(UBUNTU)
def target_on_hold_in_another_version(root: Root) -> str:
    root.host.packages[f"linux-headers-{root.new}"] = ("0.9", "hi")
    return "apt.held"


@defect()
def apt_at_work(root: Root) -> str:
    """Case roll-03."""
    root.host.put(LOCK_FILES[0])
    root.host.put("/proc/5043/comm", "unattended-upgr\n")
    inode = root.host.path(LOCK_FILES[0]).stat().st_ino
    root.host.put("/proc/locks", f"1: POSIX  ADVISORY  WRITE 5043 08:01:{inode} 0 EOF\n")
    return "apt.locked"


@defect(UBUNTU)
def automatic_upgrade_at_work(root: Root) -> str:
    root.host.programs["systemctl", "is-active"] = (0, "inactive\nactivating\n", "")
    return "apt.locked"
