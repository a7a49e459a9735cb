"""Defects of the NVIDIA driver and of what DKMS makes of it."""

from __future__ import annotations

from defects import defect
from fake_ready import INSIDE_WITH_DRIVER, LINE, PROXMOX, UBUNTU, Root
from fake_tree import DRIVER, depmod, dkms_build, entry_text, module_text

from gpuhost.dkms import NVIDIA_MODULES

EFIVARS = "/sys/firmware/efi/efivars"


@defect()
def no_headers(root: Root) -> str:
    root.drop(f"/lib/modules/{root.new}/build")
    return "dkms.headers_missing"


@defect(PROXMOX)
def no_headers_on_proxmox(root: Root) -> str:
    root.drop(f"/lib/modules/{root.new}/build")
    return "dkms.headers_missing"


@defect()
def headers_of_another_kernel(root: Root) -> str:
    """A fix-broken run installs some headers (case dkms-03)."""
    text = f'#define UTS_RELEASE "{root.old}"\n'
    root.host.put(f"/lib/modules/{root.new}/build/include/generated/utsrelease.h", text)
    return "dkms.headers_missing"


@defect()
def dkms_knows_the_target_not(root: Root) -> str:
    """Modules that were copied there by hand."""
    forgotten(root)
    return "dkms.not_built"


@defect()
def built_and_not_installed(root: Root) -> str:
    root.drop(f"/var/lib/dkms/nvidia/kernel-{root.new}-x86_64")
    return "dkms.not_built"


@defect()
def module_that_dkms_did_not_build(root: Root) -> str:
    root.host.put(root.module("nvidia-uvm"), module_text(root.new, version=DRIVER, srcversion="0"))
    return "dkms.not_built"


@defect(PROXMOX)
def build_that_failed(root: Root) -> str:
    """Case dkms-04: no build, so no modules either; the first error of the log is named."""
    never_built(root)
    log = f"DKMS make.log for nvidia-{DRIVER} for kernel {root.new} (x86_64)\nnv.c:1:2: error: too few arguments\n"
    root.host.put(f"/var/lib/dkms/nvidia/{DRIVER}/build/make.log", log)
    return "dkms.not_built"


@defect(PROXMOX)
def build_that_was_skipped(root: Root) -> str:
    """Case dkms-02: apt and the hook ended with 0. All three are wrong, the headers are the cause."""
    never_built(root)
    root.drop(f"/lib/modules/{root.new}/build")
    return "dkms.headers_missing"


def never_built(root: Root) -> None:
    forgotten(root)
    root.drop(*(root.module(name) for name in NVIDIA_MODULES))
    depmod(root.host, root.new)


def forgotten(root: Root) -> None:
    """DKMS knows of no build for the target."""
    root.drop(f"/var/lib/dkms/nvidia/{DRIVER}/{root.new}", f"/var/lib/dkms/nvidia/kernel-{root.new}-x86_64")


@defect()
def no_nvidia_uvm(root: Root) -> str:
    root.drop(root.module("nvidia-uvm"))
    return "dkms.module_missing"


@defect(UBUNTU)
def no_nvidia_uvm_in_the_precompiled_package(root: Root) -> str:
    root.drop(root.module("nvidia-uvm"))
    return "dkms.module_missing"


@defect()
def module_of_the_old_kernel(root: Root) -> str:
    root.host.put(root.module("nvidia-uvm"), module_text(root.old, version=DRIVER))
    return "dkms.vermagic"


@defect()
def module_of_another_driver(root: Root) -> str:
    root.write_module("nvidia-uvm", version="550.54.15")
    return "dkms.version_mismatch"


@defect()
def libraries_of_another_driver(root: Root) -> str:
    root.host.put("/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15", "ELF")
    root.host.put("/sys/module/nvidia/version", "550.54.15\n")
    return "dkms.version_mismatch"


@defect(UBUNTU)
def libraries_of_another_driver_on_ubuntu(root: Root) -> str:
    root.host.put("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15", "ELF")
    root.host.put("/sys/module/nvidia/version", "550.54.15\n")
    return "dkms.version_mismatch"


@defect()
def driver_too_old(root: Root) -> str:
    """470 has no build for 6.12 (case dkms-04)."""
    never_built(root)
    root.host.path(f"/var/lib/dkms/nvidia/{DRIVER}").rename(root.host.path("/var/lib/dkms/nvidia/470.256.02"))
    log = f"DKMS make.log for nvidia-470.256.02 for kernel {root.new} (x86_64)\nnv.c:1: error: too few arguments\n"
    root.host.put("/var/lib/dkms/nvidia/470.256.02/build/make.log", log)
    return "driver.too_old"


@defect()
def proprietary_modules_for_a_gpu_that_needs_open_ones(root: Root) -> str:
    root.host.put("/sys/bus/pci/devices/0000:01:00.0/device", "0x2bb5\n")
    root.write_module("nvidia", license="NVIDIA")
    return "driver.wrong_flavour"


@defect(UBUNTU)
def open_modules_for_a_gpu_that_needs_the_others(root: Root) -> str:
    root.host.put("/sys/bus/pci/devices/0000:01:00.0/device", "0x1db6\n")
    return "driver.wrong_flavour"


@defect()
def run_file_without_dkms(root: Root) -> str:
    root.drop("/var/lib/dkms")
    for release in (root.old, root.new):
        root.drop(f"/lib/modules/{release}/updates")
        depmod(root.host, release)
    for name in NVIDIA_MODULES:
        path = f"/lib/modules/{root.old}/kernel/drivers/video/{name}.ko"
        root.host.put(path, module_text(root.old, version=DRIVER))
    root.host.put("/usr/bin/nvidia-uninstall")
    root.hold()
    return "driver.run_without_dkms"


@defect(UBUNTU)
def no_precompiled_package_for_the_target(root: Root) -> str:
    del root.host.packages[f"linux-modules-nvidia-570-server-open-{root.new}"]
    root.drop(*(root.module(name) for name in NVIDIA_MODULES))
    depmod(root.host, root.new)
    return "driver.precompiled_missing"


@defect()
def unsigned_under_secure_boot(root: Root) -> str:
    secure_boot(root)
    return "driver.unsigned"


@defect()
def signed_by_a_stranger_under_secure_boot(root: Root) -> str:
    secure_boot(root)
    for name in NVIDIA_MODULES:
        root.write_module(name, signer="Another machine's key")
    return "driver.signer_not_enrolled"


@defect(UBUNTU)
def signed_by_a_stranger_and_enforced_by_an_argument(root: Root) -> str:
    for name in NVIDIA_MODULES:
        root.write_module(name, signer="Another machine's key")
    root.host.put(root.entry(root.new), entry_text(root.new, f"{LINE} module.sig_enforce=1"))
    root.host.put("/proc/keys", KEYS)
    return "driver.signer_not_enrolled"


KEYS = "1a2b3c4d I------  1 perm 1f030000  0  0 asymmetri Example CA: DKMS module signing key: 58e5a3: X509.rsa 12 []\n"


def secure_boot(root: Root) -> None:
    root.host.put(f"{EFIVARS}/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", b"\x06\0\0\0\x01")
    enrolled = "Subject: CN=DKMS module signing key\n"
    root.host.programs["mokutil",] = (0, f"[key 1]\n        {enrolled}", "")


@defect()
def nouveau_not_kept_away(root: Root) -> str:
    root.add_module("kernel/drivers/gpu/drm/nouveau/nouveau.ko")
    return "driver.nouveau_not_kept_away"


@defect()
def nova_not_kept_away(root: Root) -> str:
    root.add_module("kernel/drivers/gpu/nova-core/nova_core.ko")
    root.host.put("/etc/modprobe.d/nvidia.conf", "blacklist nouveau\n")
    return "driver.nouveau_not_kept_away"


@defect()
def nouveau_kept_away_on_the_host_only(root: Root) -> str:
    root.add_module("kernel/drivers/gpu/drm/nouveau/nouveau.ko")
    root.write_image(modules=(*INSIDE_WITH_DRIVER, "nouveau"))
    root.host.put("/etc/modprobe.d/nvidia.conf", "blacklist nouveau\n")
    return "driver.nouveau_not_kept_away"


@defect()
def module_index_from_before_the_build(root: Root) -> str:
    path = f"/lib/modules/{root.new}/modules.dep"
    lines = (root.host.read(path) or "").splitlines(True)
    root.host.put(path, "".join(line for line in lines if "nvidia-uvm" not in line))
    return "boot.depmod_stale"


@defect()
def libraries_replaced_under_the_loaded_module(root: Root) -> str:
    root.host.put("/sys/module/nvidia/version", "550.54.15\n")
    root.host.put(f"/usr/lib/x86_64-linux-gnu/libcuda.so.{DRIVER}", "ELF")
    return "driver.reboot_pending"


@defect()
def another_dkms_module_not_built(root: Root) -> str:
    """blksnap, left over from removed backup software (case dkms-04)."""
    root.host.put(f"/lib/modules/{root.old}/updates/dkms/blksnap.ko.xz", module_text(root.old))
    dkms_build(root.host, root.old, "blksnap", "6.0.3.1221")
    return "dkms.other_not_built"
