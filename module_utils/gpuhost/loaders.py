"""Which boot loader this machine has, by what lies on its ESPs and by what the loader itself says, not by guesses."""

from __future__ import annotations

from . import boot, efi_variables, loader_proxmox
from .boot import BootEntry, BootState, FileChange
from .errors import blocker, stop
from .host_io import Host
from .loader_grub import CFG as GRUB_CFG
from .loader_grub import Grub
from .loader_systemd_boot import SystemdBoot, mounted_esp
from .proxmox_boot import UUIDS

SUPPORTED = "systemd-boot with kernel-install, GRUB, or either of them under proxmox-boot-tool"


def of(host: Host) -> boot.Loader:
    """The loader. Proxmox's tool manages its ESPs itself, whatever loader is on them, so its list comes first."""
    info = efi_variables.read(host, efi_variables.INFO) or ""
    if host.exists(UUIDS):
        return loader_proxmox.of(host)
    if info.startswith("systemd-boot"):
        return SystemdBoot(host)
    return Grub(host) if booted_by_grub(host, info) else Unknown(host)


def booted_by_grub(host: Host, info: str) -> bool:
    """Whether GRUB booted this machine, from the grub.cfg in /boot.

    GRUB 2.12 with its bli module sets LoaderInfo; older ones, and all on BIOS, do not, and then BOOT_IMAGE= on the
    running command line, which GRUB adds, says so.
    """
    says_so = info.startswith("GRUB") if info else "BOOT_IMAGE=" in host.read_line("/proc/cmdline")
    return says_so and host.exists(GRUB_CFG)


class Unknown(boot.Loader):
    """A loader that gpuhost can't give a trial boot. It is read, named and refused."""

    name = "unknown"

    def read(self) -> BootState:
        info = efi_variables.read(self.host, efi_variables.INFO) or ""
        name = info or "unknown"
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
