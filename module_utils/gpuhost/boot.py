"""What boots: the loader, its entries, its default, its one-shot, and how much room is left.

Reading and deciding are apart: a loader's ``read`` gives a ``BootState``, everything else here is a function of it. The
loaders themselves, one class each, are in ``loader_*.py``; ``loaders.py`` finds out which one booted this machine.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any

from . import dkms
from .documents import Blocker
from .errors import Stop, stop
from .host_io import Host

FALLBACK_ID = "gpuhost-fallback"
"""The entry with the running system's own kernel, initrd and command line, where the loader rewrites all others."""


@dataclass(frozen=True)
class BootEntry:
    """One thing that the loader can boot. Paths are the host's own.

    ``id`` is the name that the loader knows it by (an entry's file name, a GRUB id path), ``file`` where it is written
    down, ``text`` what is written there: two entries with the same text boot the same.
    """

    id: str
    release: str | None
    file: str
    linux: str
    initrd: tuple[str, ...]
    options: str
    text: str = ""


@dataclass(frozen=True)
class BootState:
    """The boot configuration as it is on the disks and in the firmware now.

    ``policy`` is the default as it is set, in the loader's own words; None where nobody has set one. ``default_entry``
    and ``next_entry`` are the ids of what boots without and with the one-shot; None where that is not known.
    ``one_shot_by`` says how this loader boots an entry once; None where it can't. ``problems`` are what stands in the
    way of any roll, whatever the target.
    """

    loader: str
    loader_info: str = ""
    esps: tuple[str, ...] = ()
    entries: tuple[BootEntry, ...] = ()
    policy: str | None = None
    default_entry: str | None = None
    next_entry: str | None = None
    one_shot: str | None = None
    one_shot_by: str | None = None
    efi_default: str | None = None
    copies_fallback: bool = False
    """The fallback gets copies of kernel and initrd of its own, which need room."""
    problems: tuple[Blocker, ...] = ()

    def next_boot(self, one_shot: bool = True) -> BootEntry | None:
        """What the loader would boot now, with or without regard to a one-shot."""
        return self.named(self.next_entry if one_shot else self.default_entry)

    def named(self, name: str | None) -> BootEntry | None:
        """The entry of an id."""
        return next((entry for entry in self.entries if entry.id == name), None) if name else None

    def entry(self, release: str) -> BootEntry | None:
        """The loader's own entry of a kernel release, never the fallback's copy."""
        return next((item for item in self.entries if item.release == release and item.id != FALLBACK_ID), None)


@dataclass(frozen=True)
class FileChange:
    """One file that is not as it should be. ``before`` is None where it does not exist, ``after`` where it goes."""

    path: str
    before: str | None
    after: str | None

    def as_diff(self) -> dict[str, str]:
        """As Ansible shows it with ``--diff``."""
        headers = {"before_header": self.path, "after_header": self.path}
        return {**headers, "before": self.before or "", "after": self.after or ""}


class Loader(ABC):
    """One way in which machines boot, and how its default, its one-shot and its entries are changed.

    Nothing here decides: what is written when, and what has to hold before, is ``trial.py``.
    """

    name = ""

    def __init__(self, host: Host) -> None:
        self.host = host

    @abstractmethod
    def read(self) -> BootState:
        """The state now."""

    @abstractmethod
    def explicit(self, entry: BootEntry) -> str:
        """The policy that makes this entry the default by name."""

    def policies(self, target: BootEntry, before: str | None) -> list[str | None]:
        """The policies that promote may choose from, the one most like what was found first."""
        return [before, self.explicit(target)]

    @abstractmethod
    def would_boot(self, state: BootState, policy: str | None) -> BootEntry | None:
        """What this policy would boot; None where that can't be known."""

    @abstractmethod
    def default_change(self, policy: str | None) -> FileChange | None:
        """The change of a file that brings this default; None where it is set already."""

    @abstractmethod
    def set_default(self, policy: str | None) -> bool:
        """Make this policy the loader's; whether it had to change. The caller reads back."""

    @abstractmethod
    def set_one_shot(self, entry: BootEntry) -> str:
        """Have the next boot, and only the next, take this entry. What the tool said, for messages."""

    @abstractmethod
    def clear_one_shot(self) -> str:
        """Take a one-shot back. An error text, empty where all went well."""

    def add_fallback(self, entry: BootEntry) -> bool:
        """Give the running system an entry of its own where the loader rewrites the old one; whether it had to."""
        return False

    def fallback_of(self, state: BootState, release: str) -> BootEntry | None:
        """The entry to fall back to: the running kernel's own, where the loader leaves that alone."""
        return state.entry(release)

    def fallback_id(self, entry: BootEntry) -> str:
        """What the fallback of this entry is called, be it there already or not."""
        return entry.id

    def remove_fallback(self) -> bool:
        """Remove what ``add_fallback`` made; whether there was anything."""
        return False

    @abstractmethod
    def argument_changes(self, arguments: dict[str, str | None]) -> list[FileChange]:
        """The files that have to change so that new entries get these arguments. Raises ValueError for a bad line."""

    @abstractmethod
    def make_entry(self, release: str, timeout_s: int) -> tuple[list[str], str]:
        """Write the entry of this kernel anew: the command and its last line where it failed, else ``""``."""

    def arguments_like_before(self) -> None:  # noqa: B027 - most loaders have nothing to do
        """After argument files were taken back: let the loader's own entries follow where it keeps no copy."""

    def refreshes(self, path: str) -> bool:
        """Whether this file goes into the entries, so that they have to be made again when it changed."""
        return False


def survey(state: BootState, host: Host, running: str) -> dict[str, Any]:
    """The boot part of ``facts.json``."""
    return {
        "loader": state.loader,
        "loader_info": state.loader_info,
        "esps": list(state.esps),
        "policy": state.policy,
        "default_entry": state.default_entry,
        "one_shot": state.one_shot,
        "one_shot_by": state.one_shot_by,
        "efi_default": state.efi_default,
        "entries": [{key: value for key, value in asdict(entry).items() if key != "text"} for entry in state.entries],
        "problems": [asdict(item) for item in state.problems],
        "room": room(host, state, running),
    }


def room(host: Host, state: BootState, release: str) -> list[dict[str, Any]]:
    """Free bytes on each file system that a new kernel lands on, and what it needs there at the peak.

    Twice the running kernel's files: mkinitramfs writes the new image beside the old one before the rename, and so does
    the copy to the ESP. Once more where the fallback needs copies of its own.
    """
    kernel = host.size_bytes(f"/boot/vmlinuz-{release}")
    initrd = host.size_bytes(f"/boot/initrd.img-{release}")
    booted_from = [esp for esp in state.esps if any(entry.linux.startswith(f"{esp}/") for entry in state.entries)]
    needed = (3 if state.copies_fallback else 2) * (kernel + initrd)
    return [
        {"path": path, "free_bytes": host.free_bytes(path), "needed_bytes": needed}
        for path in dict.fromkeys(["/boot", *booted_from])
        if host.free_bytes(path) is not None
    ]


def mounted_read_only(host: Host, mount_point: str) -> bool:
    """By /proc/mounts: device, mount point, type, options. The kernel remounts a vfat in which it finds an error."""
    fields = [line.split() for line in (host.read("/proc/mounts") or "").splitlines()]
    options = [item[3].split(",") for item in fields if len(item) > 3 and item[1] == mount_point]
    return bool(options) and "ro" in options[-1]


def damaged(esp: str) -> Stop:
    """The stop for an ESP that can't be written."""
    return stop("boot.esp_read_only", esp, "mounted read-only", "writable")


def stale_copies(host: Host, entry: BootEntry, release: str) -> list[str]:
    """Files of an entry that are not byte for byte kernel and initrd in /boot; a power cut leaves such."""
    sources = (f"/boot/vmlinuz-{release}", f"/boot/initrd.img-{release}")
    # Early microcode and the like come before; the kernel's own initrd is the last one.
    pairs = [(entry.linux, sources[0])] + [(path, sources[1]) for path in entry.initrd[-1:]]
    digests = [(path, host.sha256(path), host.sha256(source)) for path, source in pairs]
    return [path for path, copy, original in digests if copy is None or copy != original]


def fallback_hashes(host: Host, entry: BootEntry, release: str) -> dict[str, str]:
    """SHA-256 of all that boots the running kernel: entry, kernel, initrd, NVIDIA modules. Raises Stop if incomplete.

    The modules count because a driver that was rebuilt or removed makes the way back as bad as the way there.
    """
    hashes = {f"{entry.file}#{entry.id}": hashlib.sha256(entry.text.encode()).hexdigest()}
    for path in (entry.linux, *entry.initrd):
        digest = host.sha256(path)
        if digest is None:
            raise stop("boot.fallback_missing", entry.id, f"{path} does not exist")
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
