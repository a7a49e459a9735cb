"""Several ESPs that proxmox-boot-tool writes: changing what boots, whichever loader they have.

``refresh`` rewrites every entry on every ESP from one command line, so the running system gets an entry of its own for
the time of a roll: ``gpuhost-fallback``, with kernel and initrd in /boot/gpuhost and copies in EFI/gpuhost on each ESP.
A refresh removes foreign folders in EFI/proxmox and leaves these alone (tried with the real scripts). Besides, the
running kernel is pinned until promote: its own entry then stays on the ESPs while another kernel runs, and it is what
boots where the fallback's entry should ever be missing.

The tool's exit status decides nothing, what the ESPs then hold does (BOOT-FACTS B4). It never gets a terminal, on which
it would ask. ``kernel pin --next-boot`` is not used: a kernel that panics is booted by it for ever (B3, tried).

Policies: None (nothing pinned, the newest kernel boots), a release (pinned), ``gpuhost-fallback`` (during a roll).
"""

from __future__ import annotations

import os
from abc import abstractmethod
from contextlib import suppress

from . import esp_access, proxmox_boot
from .boot import FALLBACK_ID, BootEntry, BootState, FileChange
from .errors import Stop, stop
from .esp_access import Change
from .loader_proxmox_read import COPIES, MASTERS, RUNNING, ProxmoxReader
from .proxmox_esps import EspContent

REFRESH_S = 600


class Proxmox(ProxmoxReader):
    """ESPs that proxmox-boot-tool keeps the same."""

    # --- what each loader has its own way for

    @abstractmethod
    def before_refresh(self, policy: str | None) -> bool:
        """What this loader needs for a policy before the ESPs are written; whether it had to change."""

    def after_refresh(self, policy: str | None) -> bool:
        """The same afterwards."""
        return False

    @abstractmethod
    def is_default(self, esp: EspContent, policy: str | None, pinned: str | None) -> bool:
        """Whether the files on this ESP make this policy the default."""

    @abstractmethod
    def write_entry(self, entry: BootEntry, again: bool) -> list[Change]:
        """Write the fallback's entry: on the host what the tool makes it from, else as changes for each ESP.

        again  this kernel's is on an ESP already: what the host has of it holds
        """

    @abstractmethod
    def remove_entry(self) -> bool:
        """The opposite; whether there was anything."""

    # --- the default

    def explicit(self, entry: BootEntry) -> str:
        return FALLBACK_ID if entry.id == FALLBACK_ID else entry.release or entry.id

    def _release(self, policy: str | None) -> str | None:
        """The release that a policy pins: that of the fallback is the running one where there is none yet."""
        if policy != FALLBACK_ID:
            return policy
        entry = self.read().named(FALLBACK_ID)
        return entry.release if entry else self.host.read_line(RUNNING)

    def default_change(self, policy: str | None) -> FileChange | None:
        release = self._release(policy)
        before = self.host.read(proxmox_boot.PIN)
        if self.pins().pinned == release:
            return None
        return FileChange(proxmox_boot.PIN, before, None if release is None else f"{release}\n")

    def set_default(self, policy: str | None) -> bool:
        """Pin or unpin, then refresh where an ESP does not say so yet.

        Raises Stop where that does not help and the fallback was to be held. Else the fallback is let go only once all
        ESPs have the new default; the caller reads back which it is.
        """
        if not self.readable():
            raise stop("boot.esp_unreachable", "ESPs", "none of them can be read", "at least one")
        pinned = self._release(policy)
        changed = self.before_refresh(policy)
        if self.pins().pinned != pinned:
            self._must(proxmox_boot.pin(pinned) if pinned else proxmox_boot.unpin())
            changed = True
        if self._without(policy, pinned):
            said = self.refresh()
            changed = True
            without = self._without(policy, pinned)
            if without and policy == FALLBACK_ID:
                observed = f"{pinned} is not the default on ESP {', '.join(without)} ({said})"
                raise stop(
                    "boot.default_not_held", " ".join(proxmox_boot.refresh()), observed, f"{pinned} on every ESP"
                )
            if without:
                return True
        return self.after_refresh(policy) or changed

    def _without(self, policy: str | None, pinned: str | None) -> list[str]:
        """The ESPs that have another default."""
        return [esp.uuid for esp in self.readable() if not self.is_default(esp, policy, pinned)]

    def _must(self, argv: list[str]) -> None:
        result = self.host.run(argv, timeout_s=REFRESH_S)
        self.changed()
        if result.rc != 0:
            raise stop("boot.loader_failed", " ".join(argv), result.last_line)

    def refresh(self, timeout_s: int = REFRESH_S) -> str:
        """Have all ESPs written anew; the exit status and the tool's last line, for messages only."""
        result = self.host.run(proxmox_boot.refresh(), timeout_s=timeout_s)
        self.changed()
        self.host.sync()
        return f"exit status {result.rc}, {result.last_line}"

    # --- the fallback

    def fallback_of(self, state: BootState, release: str) -> BootEntry | None:
        return state.named(FALLBACK_ID)

    def fallback_id(self, entry: BootEntry) -> str:
        return FALLBACK_ID

    def add_fallback(self, entry: BootEntry) -> bool:
        """Copy kernel and initrd to every ESP and make the entry; only what is not right there is written.

        Once an ESP has the fallback of this kernel, the files in /boot/gpuhost are what the others get: the kernel's
        own entry may have other arguments by then. A first attempt that fails leaves nothing behind.
        """
        there = self.read().named(FALLBACK_ID)
        again = there is not None and there.release == entry.release and self._masters_are_whole(there)
        if again and self._is_whole():
            return False
        try:
            if not again:
                self._write_masters(entry)
            copies = [("copy", f"{MASTERS}/{name}", f"{COPIES}/{name}") for name in self.names(entry)]
            esp_access.change(self.host, {esp.uuid: copies for esp in self.readable()})
            written = self.write_entry(entry, again)
            esp_access.change(self.host, {esp.uuid: written for esp in self.readable()})
            self.changed()
            self.host.sync()
            if not self._is_whole():
                raise stop("boot.fallback_missing", FALLBACK_ID, "not on every ESP as it was written")
        except Stop:
            self.changed()
            if not again:
                with suppress(Stop):  # what is in the way there is what the first one says
                    self.remove_fallback()
            raise
        return True

    @staticmethod
    def names(entry: BootEntry) -> list[str]:
        """File names of kernel and initrd."""
        return [os.path.basename(path) for path in (entry.linux, *entry.initrd)]

    def _masters_are_whole(self, there: BootEntry) -> bool:
        return all(self.host.exists(path) for path in (there.linux, *there.initrd))

    def _write_masters(self, entry: BootEntry) -> None:
        for path in (entry.linux, *entry.initrd):
            data = self.host.read_bytes(path)
            if data is None:
                raise stop("boot.fallback_missing", entry.id, f"{path} is missing, or not as in /boot")
            self.host.write_atomic(f"{MASTERS}/{os.path.basename(path)}", data, 0o600)
        self.changed()

    def _is_whole(self) -> bool:
        """Whether every ESP has the fallback's entry, the same everywhere, with the masters' bytes."""
        found = [{offer.id: offer for offer in self.offers(esp)}.get(FALLBACK_ID) for esp in self.readable()]
        first = next((offer for offer in found if offer), None)
        if first is None or any(offer is None or offer.text != first.text for offer in found):
            return False
        paths = (first.linux, *first.initrd)
        masters = {path: self.digest(f"{MASTERS}/{os.path.basename(path)}") for path in paths}
        return all(esp.digest(path) == masters[path] is not None for esp in self.readable() for path in paths)

    def remove_fallback(self) -> bool:
        """The entry first, then the copies that it needs. An ESP that can't be reached keeps them."""
        removed = self.remove_entry()
        for esp in self.readable():
            copies = [path for path in esp.digests if path.lower().startswith(f"{COPIES.lower()}/")]
            changes: list[Change] = [("remove", path) for path in copies]
            if copies:
                esp_access.change(self.host, {esp.uuid: [*changes, ("remove_folder", COPIES)]})
                removed = True
        for name in self.host.names(MASTERS):
            removed = self.host.remove(f"{MASTERS}/{name}") or removed
        self.host.remove_empty_folder(MASTERS)
        self.changed()
        return removed

    # --- entries

    def whole(self, entry: BootEntry) -> str:
        """Why an entry can't be relied on, whichever ESP is booted; empty where it can."""
        lost = [f"ESP {esp.uuid}: {esp.problem}" for esp in self.esps() if esp.problem]
        found = self.read().named(entry.id)
        if lost:
            return lost[0]
        if found is None:
            return f"no entry {entry.id}"
        return "" if found.linux.startswith("/") else f"{found.linux} is not as in /boot"

    def make_entry(self, release: str, timeout_s: int) -> tuple[list[str], str]:
        said = self.refresh(timeout_s)
        found = [item.text for item in self.differences(release)]
        found += [f"ESP {esp.uuid}: {esp.problem}" for esp in self.esps() if esp.problem]
        if self.read().entry(release) is None and said.startswith("exit status 0"):
            found.insert(0, f"no ESP has {release}: proxmox-boot-tool kernel add {release} lists it among theirs")
        return proxmox_boot.refresh(), f"{found[0]} ({said})" if found else ""

    def arguments_like_before(self) -> None:
        self.refresh()
