"""Proxmox's boot tool with GRUB on the ESPs (Secure Boot, or BIOS): kernels, grub.cfg and grubenv of each are its own.

Nothing of the host's /boot/grub is read at boot; only the root id in a pin is taken from the host's grub.cfg.

The default is the tool's pin, a GRUB_DEFAULT in grub.d; while the fallback is held, a file of ours that sorts behind:
every refresh then makes the fallback's entry the default, and a reinit leaves grub.cfg alone. The fallback's entry
comes from /etc/grub.d like plain GRUB's. One script serves all ESPs, so it finds the copies by their name, not by an
ESP's UUID; they are the same everywhere.

The one-shot is ``next_entry`` in the grubenv of every ESP: which one the firmware takes is not known before, and GRUB
clears only the one that it has booted from. The others are cleared by us, on the way back and on promotion.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from . import esp_access, grub_config, grub_defaults, grub_env, grub_snippet
from . import loader_grub as plain
from .boot import FALLBACK_ID, BootEntry, BootState, FileChange
from .documents import Blocker
from .errors import Stop, blocker, stop
from .esp_access import Change
from .grub_config import GrubConfig, GrubEntry
from .loader_proxmox_base import Proxmox
from .loader_proxmox_read import COPIES, Offer
from .proxmox_esps import EspContent

ENV = "grub/grubenv"
CFG = "grub/grub.cfg"
PIN_SNIPPET = "/etc/default/grub.d/proxmox-kernel-pin.cfg"
_SUBMENU = re.compile(r"gnulinux-advanced-([^'>\s]+)")


class ProxmoxGrub(Proxmox):
    """GRUB on each ESP."""

    name = "proxmox-boot-tool with GRUB"
    kind = "grub"

    # --- reading

    def offers(self, esp: EspContent) -> list[Offer]:
        """Those in the submenu first: the top level's moves to another kernel with the next update-grub."""
        entries = sorted(esp.grub_entries, key=lambda entry: ">" not in entry.id)
        # One of ours without its script goes with the next refresh.
        lasts = self.host.exists(plain.SNIPPET)
        return [self._offer(entry) for entry in entries if not entry.recovery and (lasts or entry.id != FALLBACK_ID)]

    @staticmethod
    def _offer(entry: GrubEntry) -> Offer:
        linux, *initrd = ((path or "").lstrip("/") for path in (entry.linux, *entry.initrd))
        text = f"linux {entry.linux} {entry.options}\ninitrd {' '.join(entry.initrd)}\n"
        return Offer(entry.id, entry.release, CFG, text, entry.options, linux, tuple(initrd))

    @staticmethod
    def _environment(esp: EspContent) -> dict[str, str]:
        """Raises Stop where GRUB could not read its block."""
        block = (esp.text(ENV) or "").encode("utf-8", "surrogateescape")
        try:
            return grub_env.parse(block) if block else {}
        except ValueError as error:
            raise stop(
                "grub.environment_broken", f"ESP {esp.uuid}: {ENV}", str(error), "an environment block"
            ) from error

    @staticmethod
    def _menu(esp: EspContent) -> GrubConfig:
        return esp.menu or grub_config.parse("")

    def chosen(self, esp: EspContent, one_shot: bool) -> str | None:
        try:
            found = grub_config.next_boot(self._menu(esp), self._environment(esp), one_shot)
        except ValueError as error:
            place = f"ESP {esp.uuid}: {CFG}"
            raise stop("grub.default_undecided", place, str(error), "a default that can be read") from error
        return found.id if found else None

    def request(self) -> str | None:
        requests = (grub_env.one_shot(self._environment(esp)) for esp in self.readable())
        return next((item for item in requests if item), None)

    def how_once(self) -> str | None:
        menus = [self._menu(esp) for esp in self.readable()]
        return (
            "grubenv of each ESP" if all(menu.honours_next_entry and menu.clears_next_entry for menu in menus) else None
        )

    def is_held(self) -> bool:
        return self.host.read(plain.DEFAULT) == grub_defaults.with_default(FALLBACK_ID)

    def arguments_wanted(self) -> str:
        return ""  # what update-grub makes of its settings is not compared here

    def own_problems(self) -> Iterator[Blocker]:
        if self.readable() and self.how_once() is None:
            seen = f"{CFG} does not read and clear next_entry"
            yield blocker("loader.no_one_shot", "ESPs", seen, "a grub.cfg of grub-mkconfig")
        on_host = _SUBMENU.search(self.host.read(plain.CFG) or "")
        on_esps = {found[1] for esp in self.readable() if (found := _SUBMENU.search(esp.grub_cfg or ""))}
        if on_esps and {on_host and on_host[1]} != on_esps:
            seen = f"root id {on_host[1] if on_host else 'missing'}, and {', '.join(sorted(on_esps))} on the ESPs"
            way = "Make it again with update-grub: proxmox-boot-tool takes the root id of a pin from there."
            yield blocker("boot.esp_differs", plain.CFG, seen, "the same: a pin would lead to the first entry", way)

    # --- the default

    def would_boot(self, state: BootState, policy: str | None) -> BootEntry | None:
        if policy == FALLBACK_ID:
            return state.named(FALLBACK_ID)
        if policy is not None:
            return state.entry(policy)
        word = self._unpinned()
        found = [grub_config.resolve(self._menu(esp), word) for esp in self.readable()] if word else []
        return state.named(self._agreed(entry.id if entry else None for entry in found))

    def _unpinned(self) -> str | None:
        """GRUB_DEFAULT as the files have it without a pin and without us; None for what GRUB remembers."""
        names = [name for name in self.host.names(plain.DEFAULTS_D) if name.endswith(".cfg")]
        paths = [plain.DEFAULTS, *(f"{plain.DEFAULTS_D}/{name}" for name in names)]
        others = [path for path in paths if path not in (plain.DEFAULT, PIN_SNIPPET)]
        try:
            word = grub_defaults.effective([(path, self.host.read(path) or "") for path in others]).default or "0"
        except ValueError as error:
            raise stop("grub.defaults_not_understood", plain.DEFAULTS, str(error), "plain assignments") from error
        return None if word == "saved" else word

    def is_default(self, esp: EspContent, policy: str | None, pinned: str | None) -> bool:
        menu = self._menu(esp)
        if policy == FALLBACK_ID:
            return menu.default_word == FALLBACK_ID
        if pinned is None:
            return menu.default_word == (self._unpinned() or "${saved_entry}")
        word = menu.default_word or ""
        found = grub_config.resolve(menu, word) if word != FALLBACK_ID else None
        return found is not None and found.id == word and found.release == pinned

    def before_refresh(self, policy: str | None) -> bool:
        if policy != FALLBACK_ID:
            error = self.clear_one_shot()
            if error:
                raise stop("boot.loader_failed", f"next_entry in {ENV}", error, "cleared on every ESP")
            return self.host.remove(plain.DEFAULT) if self.is_held() else False
        if self.is_held():
            return False
        self.host.write_atomic(plain.DEFAULT, grub_defaults.with_default(FALLBACK_ID).encode())
        return True

    # --- the one-shot

    def set_one_shot(self, entry: BootEntry) -> str:
        self.changed()
        if self.how_once() is None:
            return f"{CFG} does not read and clear next_entry"
        return self.whole(entry) or self._request_on_all(entry.id)

    def clear_one_shot(self) -> str:
        return self._request_on_all(None)

    def _request_on_all(self, name: str | None) -> str:
        """Set or clear ``next_entry`` on every ESP that has another; an error text."""
        changes: dict[str, list[Change]] = {}
        for esp in self.readable():
            env = self._environment(esp)
            if grub_env.one_shot(env) == name:
                continue
            env = {key: value for key, value in env.items() if key != "next_entry"}
            block = (esp.text(ENV) or "").encode("utf-8", "surrogateescape") or None
            new = grub_env.render({**env, "next_entry": name} if name else env, block)
            changes[esp.uuid] = [("write", ENV, new.decode("utf-8", "surrogateescape"))]
        try:
            esp_access.change(self.host, changes)
        except Stop as error:
            return error.blocker.observed
        finally:
            self.changed()
        return ""

    # --- the fallback, arguments

    def write_entry(self, entry: BootEntry, again: bool) -> list[Change]:
        """Into /etc/grub.d, from where it gets into each grub.cfg."""
        if not again or not self.host.exists(plain.SNIPPET):
            text = grub_snippet.render(self.readable()[0].grub_cfg or "", entry, COPIES, None)
            text = find_by_name(text, f"/{COPIES}/{self.names(entry)[0]}")
            self.host.write_atomic(plain.SNIPPET, text.encode(), 0o755)
        self.refresh()
        return []

    def remove_entry(self) -> bool:
        removed = self.before_refresh(None)
        removed = self.host.remove(plain.SNIPPET) or removed
        if removed or self._listed():  # also where it had been removed, and the refresh did not come any more
            self.refresh()
            removed = True
        return removed

    def _listed(self) -> bool:
        """Whether a grub.cfg still has the fallback's entry."""
        return any(entry.id == FALLBACK_ID for esp in self.readable() for entry in esp.grub_entries)

    def argument_changes(self, arguments: dict[str, str | None]) -> list[FileChange]:
        return plain.Grub(self.host).argument_changes(arguments)

    def refreshes(self, path: str) -> bool:
        return path == plain.ARGUMENTS


def find_by_name(text: str, path: str) -> str:
    """A menu entry that takes the ESP on which it finds a file, in place of the one that it names by UUID or disk."""
    text = re.sub(r"^[ \t]*set root=.*\n", "", text, flags=re.MULTILINE)
    found = rf"\1search --no-floppy --file --set=root {path}"
    text, count = re.subn(r"^([ \t]*)search\s.*--set=root.*$", found, text, flags=re.MULTILINE)
    if not count:
        raise stop("boot.fallback_missing", path, "the kernel's own menu entry has no search command to go by")
    return text
