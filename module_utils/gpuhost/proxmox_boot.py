"""Proxmox's boot tool: its files, and its commands.

Sources: proxmox-kernel-helper's own scripts ``proxmox-boot-tool``, ``zz-proxmox-boot`` and ``functions``, 8.1.0, 8.1.4
and 9.2.0, run on folders as ESPs (formats and rules below are the same in all three). Two rules decide what is
done here: ``refresh`` returns 0 where it skipped an ESP, so only what the ESPs then hold counts; and which loader an
ESP has is decided by EFI/proxmox/grubx64.efi on it, not by the firmware or by /etc/kernel/cmdline (case cmdline-05).

Pure: text and dicts in, frozen dataclasses out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .kernel import parse_release

TOOL = "proxmox-boot-tool"
UUIDS = "/etc/kernel/proxmox-boot-uuids"
PIN = "/etc/kernel/proxmox-boot-pin"
NEXT_BOOT_PIN = "/etc/kernel/next-boot-pin"
MANUAL = "/etc/kernel/proxmox-boot-manual-kernels"
_UUID = re.compile(r"[0-9a-fA-F]{4}-[0-9a-fA-F]{4}")


# --- the list of ESPs


def parse_uuids(text: str) -> tuple[str, ...]:
    """The ESPs of /etc/kernel/proxmox-boot-uuids in their order, each once."""
    return tuple(dict.fromkeys(line for line in text.split("\n") if _UUID.fullmatch(line)))


def uuid_problems(text: str) -> tuple[str, ...]:
    """Lines that the tool passes over without an error, as sentences, and those that are there twice.

    It knows no comments and takes off no blanks (each gives a WARN, rc 0), and it does not read a last line that has
    no line end: that ESP is never refreshed, and nothing says so. One that is there twice is written twice.
    """
    *lines, last = text.split("\n")
    problems = [
        f"line {number} of {UUIDS} is no UUID, so the tool skips it: {line.strip()!r}"
        for number, line in enumerate([*lines, last], start=1)
        if line and not _UUID.fullmatch(line)
    ]
    problems += [f"{UUIDS} has {uuid} more than once" for uuid in parse_uuids(text) if text.split("\n").count(uuid) > 1]
    if _UUID.fullmatch(last):
        problems.append(f"the last line of {UUIDS} has no line end, so the tool never refreshes {last}")
    return tuple(problems)


# --- pins


@dataclass(frozen=True)
class Kernels:
    """Which kernels go onto the ESPs in any case, and which one is the default.

    ``next_boot_pin`` is None where there is no such file. An empty file gives ``""``: it counts, too, as it takes the
    permanent pin out of force (``kernel list`` does not show it).
    """

    manual: tuple[str, ...]
    pinned: str | None
    next_boot_pin: str | None


def pin_files(pin: str | None, next_boot_pin: str | None, manual: str | None) -> Kernels:
    """From the files in /etc/kernel (None: not there); of a pin only the first line counts."""
    first, following = (None if text is None else text.split("\n")[0].strip() for text in (pin, next_boot_pin))
    return Kernels(tuple(dict.fromkeys((manual or "").split())), first or None, following)


# --- the default


@dataclass(frozen=True)
class Policy:
    """The default that an operator chose: a pinned kernel, or (None) the newest one."""

    pinned: str | None

    @property
    def default(self) -> str:
        """``default`` in loader.conf once ``refresh`` ran. A reinit writes ``proxmox-*`` there, whatever is pinned."""
        return f"proxmox-{self.pinned}.conf" if self.pinned else "proxmox-*"


def refusals(kernels: Kernels) -> tuple[str, ...]:
    """Why no roll may start with these pins, as sentences; empty where one may.

    A next-boot pin is taken back by a service of the kernel that it boots: one that panics is booted for ever, and the
    permanent pin is no fallback beside it (BOOT-FACTS B3, tried).
    """
    if kernels.next_boot_pin is None:
        return ()
    what = f"{kernels.next_boot_pin} is pinned for the next boot" if kernels.next_boot_pin else "the file is empty"
    return (f"{NEXT_BOOT_PIN}: {what}, which beats the permanent pin and does not fall back when that kernel panics",)


def pin(release: str) -> list[str]:
    """Make a kernel the default; without ``refresh`` no ESP knows. On a terminal the tool asks: give it none."""
    return [TOOL, "kernel", "pin", parse_release(release).text]


def unpin() -> list[str]:
    """Take back the pin, and a next-boot pin with it."""
    return [TOOL, "kernel", "unpin"]


def refresh() -> list[str]:
    """Write every ESP anew. Its exit status says nothing: ``compare`` afterwards."""
    return [TOOL, "refresh"]
