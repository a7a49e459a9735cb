"""What boots: the loader, its entries, its default, and how much room is left. systemd-boot with kernel-install.

Reading and deciding are apart: ``read`` gives a ``BootState``, everything else is a function of it.
Sources: the Boot Loader Interface (EFI variables), the Boot Loader Specification (entries).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from . import dkms, systemd_boot
from .errors import Stop, stop
from .host_io import Host

EFIVARS = "/sys/firmware/efi/efivars"
LOADER_GUID = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
ESP_MOUNT_POINTS = ("/efi", "/boot/efi", "/boot")
CMDLINE_FILE = "/etc/kernel/cmdline"


@dataclass(frozen=True)
class BootState:
    """The boot configuration as it is on the disk and in the firmware now.

    ``esp`` is the ESP's mount point, None where none is mounted that holds a loader. ``entries`` are in the loader's
    own order. The three names are what the firmware's variables hold, None where a variable is not set.
    """

    loader_info: str
    esp: str | None
    loader_conf: str
    entries: tuple[systemd_boot.Entry, ...]
    one_shot: str | None
    efi_default: str | None
    read_only: bool = False
    """The ESP is mounted read-only: the kernel does that to a vfat in which it finds an error."""

    @property
    def loader(self) -> str:
        """``systemd-boot`` where it booted the machine and its files are there, else what is known."""
        if self.esp is None:
            return "unknown"
        return "systemd-boot" if self.loader_info.startswith("systemd-boot") else self.loader_info or "unknown"

    @property
    def default(self) -> str | None:
        """loader.conf's ``default`` value."""
        return systemd_boot.default_of(self.loader_conf)

    def next_boot(self, one_shot: bool = True) -> systemd_boot.Entry | None:
        """What the loader would boot now, with or without regard to a one-shot.

        None where that depends on what was booted last (``@saved``), which is not known here.
        """
        if (self.default or "").lower() == "@saved" and not self.efi_default and not (one_shot and self.one_shot):
            return None
        return systemd_boot.selected(
            list(self.entries), self.default, self.efi_default, self.one_shot if one_shot else None
        )

    def entry(self, release: str) -> systemd_boot.Entry | None:
        """The entry of a kernel release."""
        return systemd_boot.entry_for(list(self.entries), release)


def read(host: Host) -> BootState:
    """Read the boot state. A machine without UEFI or without a mounted ESP gives an empty one."""
    esp = next((point for point in ESP_MOUNT_POINTS if host.exists(f"{point}/loader/entries")), None)
    entries = []
    for name in host.names(f"{esp}/loader/entries") if esp else []:
        text = host.read(f"{esp}/loader/entries/{name}") if name.endswith(".conf") else None
        if text is not None:
            entries.append(systemd_boot.parse_entry(name, text))
    return BootState(
        loader_info=_variable(host, "LoaderInfo") or "",
        esp=esp,
        loader_conf=(host.read(f"{esp}/loader/loader.conf") or "") if esp else "",
        entries=tuple(systemd_boot.order(entries)),
        one_shot=_variable(host, "LoaderEntryOneShot"),
        efi_default=_variable(host, "LoaderEntryDefault"),
        read_only=esp is not None and _mounted_read_only(host, esp),
    )


def _mounted_read_only(host: Host, mount_point: str) -> bool:
    """By /proc/mounts: device, mount point, type, options."""
    fields = [line.split() for line in (host.read("/proc/mounts") or "").splitlines()]
    options = [item[3].split(",") for item in fields if len(item) > 3 and item[1] == mount_point]
    return bool(options) and "ro" in options[-1]


def damaged(state: BootState) -> Stop:
    """The stop for an ESP that can't be written."""
    return stop("boot.esp_read_only", str(state.esp), "mounted read-only", "writable")


def survey(host: Host, running: str) -> dict[str, Any]:
    """The boot part of ``facts.json``."""
    state = read(host)
    default = state.next_boot(one_shot=False)
    return {
        "loader": state.loader,
        "loader_info": state.loader_info,
        "esp": state.esp,
        "esp_read_only": state.read_only,
        "loader_conf": state.loader_conf,
        "default": state.default,
        "default_entry": default.filename if default else None,
        "one_shot": state.one_shot,
        "efi_default": state.efi_default,
        "entries": [asdict(entry) for entry in state.entries],
        "cmdline_file": host.read(CMDLINE_FILE),
        "room": room(host, state, running),
    }


def room(host: Host, state: BootState, release: str) -> list[dict[str, Any]]:
    """Free bytes on each file system that a new kernel lands on, and what it needs there at the peak.

    Twice the running kernel's files: mkinitramfs writes the new image beside the old one before the rename.
    """
    kernel = host.size_bytes(f"/boot/vmlinuz-{release}")
    initrd = host.size_bytes(f"/boot/initrd.img-{release}")
    places = ["/boot"] + ([state.esp] if state.esp and state.esp != "/boot" else [])
    return [
        {"path": path, "free_bytes": host.free_bytes(path), "needed_bytes": 2 * (kernel + initrd)}
        for path in places
        if host.free_bytes(path) is not None
    ]


def entry_files(state: BootState, entry: systemd_boot.Entry) -> list[str]:
    """The files that an entry boots from, as paths on the host, its own first."""
    return [f"{state.esp}/loader/entries/{entry.filename}"] + [
        f"{state.esp}/{path.lstrip('/')}" for path in (entry.linux, *entry.initrd) if path
    ]


def stale_copies(host: Host, state: BootState, entry: systemd_boot.Entry, release: str) -> list[str]:
    """Files of an entry on the ESP that are not byte for byte kernel and initrd in /boot; a power cut leaves such."""
    pairs = zip(
        entry_files(state, entry)[1:], (f"/boot/vmlinuz-{release}", f"/boot/initrd.img-{release}"), strict=False
    )
    digests = [(path, host.sha256(path), host.sha256(source)) for path, source in pairs]
    return [path for path, copy, original in digests if copy is None or copy != original]


def fallback_hashes(host: Host, state: BootState, release: str) -> dict[str, str]:
    """SHA-256 of all that boots the running kernel: entry, kernel, initrd, NVIDIA modules. Raises Stop if incomplete.

    The modules count because a driver that was rebuilt or removed makes the way back as bad as the way there.
    """
    entry = state.entry(release)
    if entry is None:
        raise stop("boot.fallback_missing", release, f"no entry among {len(state.entries)} on {state.esp}")
    hashes: dict[str, str] = {}
    for path in entry_files(state, entry):
        digest = host.sha256(path)
        if digest is None:
            raise stop("boot.fallback_missing", entry.filename, f"{path} does not exist")
        hashes[path] = digest
    for module in module_files(host, release).values():
        found = host.sha256(module) if module else None
        if module and found:
            hashes[module] = found
    return hashes


def module_files(host: Host, release: str) -> dict[str, str | None]:
    """Where each NVIDIA module lies for a kernel release; None where it does not."""
    base = f"/lib/modules/{release}"
    # Ubuntu's precompiled modules lie in kernel/nvidia-VERSION.
    prebuilt = [f"kernel/{name}" for name in host.names(f"{base}/kernel") if name.startswith("nvidia")]
    paths: list[str] = []
    for folder in ("updates", "extra", "kernel/drivers/video", *prebuilt):
        paths += host.files_below(f"{base}/{folder}")
    found = dkms.find_modules(paths, dkms.NVIDIA_MODULES)
    return {name: found.get(name) for name in dkms.NVIDIA_MODULES}


def _variable(host: Host, name: str) -> str | None:
    data = host.read_bytes(f"{EFIVARS}/{name}-{LOADER_GUID}")
    try:
        return (systemd_boot.decode_efi_string(data) or None) if data else None
    except ValueError as error:
        raise stop("host.module_failed", f"EFI variable {name}", str(error), "UTF-16 text") from error
