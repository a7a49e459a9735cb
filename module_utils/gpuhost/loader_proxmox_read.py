"""Several ESPs that hold the same, written by proxmox-boot-tool: what is read of them, whichever loader they have.

An entry counts as whole where every ESP has it the same, with kernel and initrd byte for byte as in /boot: which ESP
the firmware takes is not ours to know. Where it is not whole, its ``linux`` is the first wrong file, written
``ESP UUID: path``, which is no file of the host: so whoever compares it with /boot finds it missing.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from . import boot, efi_variables, esp_access, proxmox_boot, proxmox_esps, systemd_boot
from .boot import FALLBACK_ID, BootEntry, BootState
from .documents import Blocker
from .errors import blocker
from .host_io import Host
from .proxmox_esps import EspContent

RUNNING = "/proc/sys/kernel/osrelease"
MASTERS = "/boot/gpuhost"
COPIES = "EFI/gpuhost"
"""The fallback's kernel and initrd, on the host and on each ESP."""
SHOWN = 3
"""Differences that are named; the rest is counted."""


@dataclass(frozen=True)
class Offer:
    """One thing that the loader on one ESP can boot. Paths are the ESP's own; ``file`` is where it is written down."""

    id: str
    release: str | None
    file: str
    text: str
    options: str
    linux: str
    initrd: tuple[str, ...]


class ProxmoxReader(boot.Loader):
    """What lies on the ESPs, as one state."""

    kind: proxmox_esps.Loader = "none"

    def __init__(self, host: Host, found: tuple[EspContent, ...] | None = None) -> None:
        super().__init__(host)
        self._found = found
        self._digests: dict[str, str | None] = {}

    # --- what each loader has its own way for

    @abstractmethod
    def offers(self, esp: EspContent) -> list[Offer]:
        """What this ESP offers, the tool's own entries first."""

    @abstractmethod
    def chosen(self, esp: EspContent, one_shot: bool) -> str | None:
        """The id of what this ESP would boot."""

    @abstractmethod
    def request(self) -> str | None:
        """The one-shot that is set."""

    @abstractmethod
    def how_once(self) -> str | None:
        """How an entry is booted once; None where it can't be."""

    @abstractmethod
    def is_held(self) -> bool:
        """Whether the fallback was made the default above what is pinned."""

    @abstractmethod
    def arguments_wanted(self) -> str:
        """The command line that the tool gives to every entry."""

    def own_problems(self) -> Iterator[Blocker]:
        """Further problems of this loader."""
        yield from ()

    # --- reading

    def read(self) -> BootState:
        efi_default = efi_variables.read(self.host, efi_variables.DEFAULT)
        return BootState(
            loader=self.name,
            loader_info=efi_variables.read(self.host, efi_variables.INFO) or "",
            esps=tuple(f"/dev/disk/by-uuid/{esp.uuid}" for esp in self.esps()),
            entries=tuple(self._entries()),
            policy=FALLBACK_ID if self.is_held() else self.pins().pinned,
            default_entry=self._agreed(self.chosen(esp, False) for esp in self.readable()),
            next_entry=self._agreed(self.chosen(esp, True) for esp in self.readable()),
            one_shot=self.request(),
            one_shot_by=self.how_once(),
            efi_default=None if self.is_held() or self.kind == "grub" else efi_default,
            copies_fallback=True,
            problems=tuple(self._problems()),
        )

    def uuids(self) -> tuple[str, ...]:
        """The tool's list."""
        return proxmox_boot.parse_uuids(self.host.read(proxmox_boot.UUIDS) or "")

    def esps(self) -> tuple[EspContent, ...]:
        """Every ESP of the list, also what can't be read."""
        if self._found is None:
            self._found = esp_access.read(self.host, self.uuids())
        return self._found

    def readable(self) -> list[EspContent]:
        """Those with this loader on them."""
        return [esp for esp in self.esps() if not esp.problem and esp.loader == self.kind]

    def changed(self) -> None:
        """What was read is no longer true."""
        self._found = None
        self._digests = {}

    def digest(self, path: str) -> str | None:
        """SHA-256 of a file of the host, read once like the ESPs."""
        if path not in self._digests:
            self._digests[path] = self.host.sha256(path)
        return self._digests[path]

    def pins(self) -> proxmox_boot.Kernels:
        """What is pinned, by the files."""
        return proxmox_boot.pin_files(
            self.host.read(proxmox_boot.PIN), self.host.read(proxmox_boot.NEXT_BOOT_PIN), None
        )

    @staticmethod
    def _agreed(choices: Iterable[str | None]) -> str | None:
        """What all ESPs say; None where they differ."""
        found = set(choices)
        return found.pop() if len(found) == 1 else None

    def _entries(self) -> Iterator[BootEntry]:
        """Every entry of any ESP; the tool's own first, as they are in each ESP's offers."""
        readable = [(esp, {offer.id: offer for offer in self.offers(esp)}) for esp in self.readable()]
        for name in dict.fromkeys(name for _, offers in readable for name in offers):
            first = next(offers[name] for _, offers in readable if name in offers)
            if name == FALLBACK_ID:
                yield self._fallback(first, [(esp, offers.get(name)) for esp, offers in readable])
                continue
            sources = (f"/boot/vmlinuz-{first.release}", f"/boot/initrd.img-{first.release}")
            wrong = [item for esp, offers in readable for item in self._wrong(esp, offers.get(name), first, sources)]
            linux = f"ESP {wrong[0]}" if wrong else sources[0]
            yield BootEntry(name, first.release, first.file, linux, sources[1:], first.options, first.text)

    def _wrong(self, esp: EspContent, offer: Offer | None, first: Offer, sources: tuple[str, str]) -> Iterator[str]:
        """What of an entry is not on this ESP as it is on the first one and in /boot."""
        if offer is None or offer.text != first.text or len(offer.initrd) != 1:
            yield f"{esp.uuid}: {first.file}"
            return
        for path, source in zip((offer.linux, *offer.initrd), sources, strict=True):
            if esp.digest(path) is None or esp.digest(path) != self.digest(source):
                yield f"{esp.uuid}: {path}"

    def _fallback(self, first: Offer, found: list[tuple[EspContent, Offer | None]]) -> BootEntry:
        """The fallback, whose text is all of it on every ESP: entry, and digests of kernel and initrd."""
        text = ""
        for esp, offer in found:
            text += f"ESP {esp.uuid}\n{offer.text if offer else 'no entry'}\n"
            text += "".join(f"{path} {esp.digest(path) or 'missing'}\n" for path in (first.linux, *first.initrd))
        linux, *initrd = (f"{MASTERS}/{os.path.basename(path)}" for path in (first.linux, *first.initrd))
        return BootEntry(FALLBACK_ID, first.release, first.file, linux, tuple(initrd), first.options, text)

    def laid(self) -> list[str]:
        """The ESPs that have the fallback's entry; where all have it, a roll is under way."""
        return [esp.uuid for esp in self.readable() if any(offer.id == FALLBACK_ID for offer in self.offers(esp))]

    # --- problems

    def _problems(self) -> Iterator[Blocker]:
        for line in proxmox_boot.uuid_problems(self.host.read(proxmox_boot.UUIDS) or ""):
            yield blocker("boot.esp_list_bad", proxmox_boot.UUIDS, line, "one UUID a line, each with a line end")
        if not self.esps():
            yield blocker("boot.esp_list_bad", proxmox_boot.UUIDS, "no ESP listed", "at least one")
        for esp in self.esps():
            if esp.problem:
                yield blocker("boot.esp_unreachable", f"ESP {esp.uuid}", esp.problem, "readable")
            elif esp.read_only:
                yield blocker("boot.esp_read_only", f"ESP {esp.uuid}", "mounted read-only", "writable")
        for line in proxmox_boot.refusals(self.pins()):
            yield blocker("boot.next_boot_pin", proxmox_boot.NEXT_BOOT_PIN, line, "no such file")
        mixed = self._mixed()
        if mixed:
            yield mixed
        elif self.readable() and len(self.laid()) < len(self.readable()):
            # While a roll is under way its own steps refresh, and its preflight proves: what is not there yet then
            # must not keep the same command from going on.
            yield from self._differences()
            yield from self._room()
        yield from self.own_problems()

    def _mixed(self) -> Blocker | None:
        """Loaders that differ between the ESPs, or from the one that says it has booted this machine."""
        kinds = {esp.uuid: esp.loader for esp in self.esps() if not esp.problem}
        info = efi_variables.read(self.host, efi_variables.INFO) or ""
        expected = "one loader on all ESPs, the one that booted this machine"
        if len(set(kinds.values())) > 1:
            seen = ", ".join(f"{loader} on {uuid}" for uuid, loader in kinds.items())
            skipped = proxmox_esps.skipped_by_refresh(list(kinds.items()))
            seen += f"; a refresh passes over {', '.join(skipped)}" if skipped else ""
        elif self.readable() and info.startswith("systemd-boot") != (self.kind == "systemd-boot"):
            seen = f"{self.kind} on all ESPs, but LoaderInfo is {info or 'not set'}"
        else:
            return None
        return blocker("boot.esp_mixed", "ESPs", seen, expected)

    def differences(self, release: str) -> tuple[proxmox_esps.Difference, ...]:
        """Where the ESPs that can be read differ from the host and from each other."""
        names = [os.path.basename(path) for esp in self.esps() for path in esp.digests]
        kernels = {}
        for item in {release, *(name[8:] for name in names if name.startswith("vmlinuz-"))}:
            linux, initrd = (self.digest(f"/boot/{name}-{item}") for name in ("vmlinuz", "initrd.img"))
            if linux and initrd:
                kernels[item] = (linux, initrd)
        esps = [esp for esp in self.esps() if not esp.problem]
        default = None if self.kind == "grub" else proxmox_boot.Policy(self.pins().pinned).default
        if self.pins().next_boot_pin is not None:
            default = None  # named by itself
        return proxmox_esps.compare(esps, kernels, self.arguments_wanted(), release, default)

    def _differences(self) -> Iterator[Blocker]:
        found = [item.text for item in self.differences(self.host.read_line(RUNNING))]
        if found:
            more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            yield blocker("boot.esp_differs", "ESPs", "; ".join(found[:SHOWN]) + more, "as in /boot, on every ESP")

    def _room(self) -> Iterator[Blocker]:
        """Room for the fallback's copies, and for another kernel where none newer than the running one is there yet."""
        release = self.host.read_line(RUNNING)
        size = sum(self.host.size_bytes(f"/boot/{name}-{release}") for name in ("vmlinuz", "initrd.img"))
        for esp in self.readable():
            others = [offer.release for offer in self.offers(esp) if offer.release and offer.release != release]
            newer = [other for other in others if systemd_boot.compare_versions(other, release) > 0]
            needed = size if newer else 2 * size
            if esp.free_bytes < needed:
                seen, wanted = f"{esp.free_bytes // 2**20} MiB free", f"at least {needed // 2**20} MiB"
                yield blocker("boot.no_space", f"ESP {esp.uuid}", seen, wanted)
