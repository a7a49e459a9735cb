"""Install GRUB on a finished disk: in a guest, since grub-install asks the real devices."""

import shutil
from pathlib import Path

from .command import run_logged, tail
from .errors import LabError
from .image_disk import OVMF_CODE, OVMF_VARIABLES, ovmf
from .qemu import QEMU, accelerator

# In the image only until it has done its work, see rootfs-grub.
INSTALLER = "/usr/libexec/gpuhost-lab/install-grub"
INSTALLED = "gpuhost-lab: GRUB is installed"
MEMORY_MIB = 1024
# Measured 45 s.
EXPECTED_S = 45
LIMIT_S = 900


def install_grub(root: Path, raw: Path, source: Path | None, log: Path) -> None:
    """Boot the disk's own kernel with the installer as PID 1; source is the root to be moved to LVM."""
    kernel, initrd = (next((root / "boot").glob(f"{name}-*")) for name in ("vmlinuz", "initrd.img"))
    variables = raw.with_name("loader-vars.raw")
    shutil.copyfile(ovmf(OVMF_VARIABLES), variables)
    run_logged(
        command_line(kernel, initrd, variables, raw, source),
        step="install GRUB in a guest",
        log=log,
        timeout_s=LIMIT_S,
        expected_s=EXPECTED_S,
    )
    if INSTALLED not in log.read_bytes().decode("utf-8", "replace"):
        raise LabError(f"GRUB was not installed, log {log}\n{tail(log)}")


def command_line(kernel: Path, initrd: Path, variables: Path, raw: Path, source: Path | None) -> list[str]:
    """QEMU with the kernel given from outside; it ends when the guest is off or panics."""
    device = "/dev/vdb ro" if source else "/dev/vda2 ro"
    arguments = f"root={device} console=ttyS0 norandmaps mitigations=off loglevel=5 panic=1 init={INSTALLER}"
    disks = [raw, source] if source else [raw]
    return [
        *(QEMU, "-name", "gpuhost-lab-install-grub", *accelerator()),
        *("-machine", "q35", "-smp", "2", "-m", str(MEMORY_MIB), "-no-reboot"),
        *("-display", "none", "-vga", "none", "-nodefaults", "-nic", "none", "-serial", "stdio"),
        *("-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={ovmf(OVMF_CODE)}"),
        *("-drive", f"if=pflash,format=raw,unit=1,file={variables}"),
        *("-kernel", str(kernel), "-initrd", str(initrd), "-append", arguments),
        *(option for disk in disks for option in ("-drive", f"if=virtio,format=raw,cache=unsafe,file={disk}")),
        *("-device", "virtio-rng-pci"),
    ]
