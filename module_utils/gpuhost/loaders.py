"""Which boot loader this machine has, by what lies on its ESPs and by what the loader itself says, not by guesses."""

from __future__ import annotations

from . import boot, efi_variables
from .boot import BootEntry, BootState, FileChange
from .errors import blocker, stop
from .host_io import Host
from .loader_systemd_boot import SystemdBoot, mounted_esp

GRUB_CFG = "/boot/grub/grub.cfg"
PROXMOX_UUIDS = "/etc/kernel/proxmox-boot-uuids"
"""The ESPs that proxmox-boot-tool manages. Without this list it manages none."""
SUPPORTED = "systemd-boot with kernel-install"


def of(host: Host) -> boot.Loader:
    """The loader. Proxmox's tool manages its ESPs itself, whatever loader is on them, so its list comes first."""
    info = efi_variables.read(host, efi_variables.INFO) or ""
    if info.startswith("systemd-boot") and not host.exists(PROXMOX_UUIDS):
        return SystemdBoot(host)
    return Unknown(host)


def called(host: Host, info: str) -> str:
    """What this version can't use, by name.

    LoaderInfo is the loader's own word. GRUB 2.12 with its bli module sets it, too; older ones do not, and then it is
    BOOT_IMAGE= on the running command line, which GRUB adds, that says who booted the machine.
    """
    if host.exists(PROXMOX_UUIDS):
        return "proxmox-boot-tool"
    if not info and host.exists(GRUB_CFG) and "BOOT_IMAGE=" in host.read_line("/proc/cmdline"):
        return "GRUB"
    return info or "unknown"


class Unknown(boot.Loader):
    """A loader that gpuhost can't give a trial boot. It is read, named and refused."""

    name = "unknown"

    def read(self) -> BootState:
        info = efi_variables.read(self.host, efi_variables.INFO) or ""
        name = called(self.host, info)
        esp = mounted_esp(self.host)
        problem = blocker("loader.unsupported", "boot loader", name, SUPPORTED)
        return BootState(name, info, (esp,) if esp else (), problems=(problem,))

    def _refuse(self) -> Exception:
        return stop("loader.unsupported", "boot loader", self.read().loader, SUPPORTED)

    def explicit(self, entry: BootEntry) -> str:
        raise self._refuse()

    def would_boot(self, state: BootState, policy: str | None) -> BootEntry | None:
        return None

    def default_change(self, policy: str | None) -> FileChange | None:
        raise self._refuse()

    def set_default(self, policy: str | None) -> bool:
        raise self._refuse()

    def set_one_shot(self, entry: BootEntry) -> str:
        raise self._refuse()

    def clear_one_shot(self) -> str:
        return ""

    def argument_changes(self, arguments: dict[str, str | None]) -> list[FileChange]:
        raise self._refuse()

    def make_entry(self, release: str, timeout_s: int) -> tuple[list[str], str]:
        raise self._refuse()
