"""What in GRUB's configuration keeps a host from booting unattended, or boots something else than it says. Pure."""

from __future__ import annotations

import re

from .documents import Blocker
from .errors import blocker
from .grub_config import GrubConfig

CFG = "/boot/grub/grub.cfg"
_SUPERUSERS = re.compile(r"^\s*set superusers=[\"']?\w", re.MULTILINE)
_SUBMENU = re.compile(r"^\s*submenu\s", re.MULTILINE)
_RESTRICTED = re.compile(r"^\s*menuentry\s(?=.*'gnulinux-)(?!.*--unrestricted)", re.MULTILINE)
_WAITS = re.compile(r"^\s*set timeout=-1\s*$", re.MULTILINE)
_DECIDES = re.compile(r"\b(?:default|next_entry|load_env)\b")


def of(cfg: str, config: GrubConfig, custom: str | None) -> list[Blocker]:
    """The problems, whatever the target. ``custom``: the text of custom.cfg, which grub.cfg reads; None without one."""
    found = []
    if not config.entries:
        found.append(blocker("grub.config_unreadable", CFG, "no entry in it", "entries of grub-mkconfig"))
    # A submenu has no --unrestricted of its own: an entry in it asks, too, also as the default. Firmware settings may.
    if _SUPERUSERS.search(cfg) and (_SUBMENU.search(cfg) or _RESTRICTED.search(cfg)):
        found.append(blocker("grub.asks_for_password", CFG, "superusers is set, and not every entry boots without"))
    if _WAITS.search(cfg):
        found.append(blocker("loader.waits_for_a_key", CFG, "set timeout=-1", "a number of seconds"))
    if custom is not None and _DECIDES.search(custom):
        observed = "sets what boots after grub.cfg has"
        found.append(blocker("grub.default_undecided", "/boot/grub/custom.cfg", observed, "menu entries only"))
    return found
