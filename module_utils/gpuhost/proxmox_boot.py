"""Proxmox's boot tool: its files and its output, and whether its ESPs hold what they should.

Sources: proxmox-kernel-helper's own scripts ``proxmox-boot-tool``, ``zz-proxmox-boot`` and ``functions``, 8.1.0, 8.1.4
and 9.2.0, run on folders as ESPs (formats and rules below are the same in all three). Two rules decide what is
done here: ``refresh`` returns 0 where it skipped an ESP, so only what the ESPs then hold counts; and which loader an
ESP has is decided by EFI/proxmox/grubx64.efi on it, not by the firmware or by /etc/kernel/cmdline (case cmdline-05).

Pure: text and dicts in, frozen dataclasses out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

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


# --- what the tool prints


@dataclass(frozen=True)
class EspStatus:
    """One ESP as ``status`` shows it. Versions are names of folders or files there, no proof of content.

    An ESP that was turned from one loader to the other has both modes; ``esp_loader`` says which one is in use.
    """

    uuid: str
    versions: dict[str, tuple[str, ...]]

    @property
    def modes(self) -> tuple[str, ...]:
        """``uefi``, ``grub``, both or none."""
        return tuple(self.versions)


@dataclass(frozen=True)
class Status:
    """``proxmox-boot-tool status``. managed: there is a list of ESPs; without one this is plain GRUB (cmdline-05)."""

    managed: bool
    firmware: Literal["uefi", "bios"] | None
    esps: tuple[EspStatus, ...]
    problems: tuple[str, ...]


def parse_status(stdout: str, stderr: str, rc: int) -> Status:
    """Read ``proxmox-boot-tool status``. An ESP that can't be reached is a line on stderr, with rc 0."""
    complaints = [line.strip() for line in stderr.splitlines() if line.strip()]
    if rc == 2 and any(UUIDS in line and "does not exist" in line for line in complaints):
        return Status(False, None, (), ())
    if rc != 0:
        complaints.append(f"{TOOL} status: exit status {rc}")
    booted = re.search(r"^System currently booted with (.+)$", stdout, re.MULTILINE)
    firmware: Literal["uefi", "bios"] | None = None
    if booted:
        firmware = "uefi" if booted[1].strip() == "uefi" else "bios"
    esps = []
    for line in re.finditer(r"^(\S+) is configured with:[ \t]*(.*)$", stdout, re.MULTILINE):
        modes = re.findall(r"(\w+) \(versions: ([^)]*)\)", line[2])
        # GRUB's own files lie in the same folder; a kernel's release begins with a digit.
        versions = {mode: tuple(name for name in names.split(", ") if name[:1].isdigit()) for mode, names in modes}
        esps.append(EspStatus(line[1], versions))
    return Status(True, firmware, tuple(esps), tuple(complaints))


@dataclass(frozen=True)
class Kernels:
    """Which kernels go onto the ESPs, and which one is the default.

    ``next_boot_pin`` is None where there is no such file. An empty file gives ``""``: it counts, too, as it takes the
    permanent pin out of force (``kernel list`` does not show it).
    """

    manual: tuple[str, ...]
    automatic: tuple[str, ...]
    pinned: str | None
    next_boot_pin: str | None


_HEADINGS = {
    "Manually selected kernels:": "manual",
    "Automatically selected kernels:": "automatic",
    "Pinned kernel:": "pinned",
    "Kernel pinned on next-boot:": "next_boot_pin",
}


def parse_kernel_list(stdout: str) -> Kernels:
    """Read ``proxmox-boot-tool kernel list``. The two pins are printed only where they are set."""
    groups: dict[str, list[str]] = {name: [] for name in _HEADINGS.values()}
    heading = None
    for line in map(str.strip, stdout.splitlines()):
        if line in _HEADINGS:
            heading = _HEADINGS[line]
        elif heading and line and line != "None.":
            groups[heading].append(line)
    return Kernels(
        manual=tuple(groups["manual"]),
        automatic=tuple(groups["automatic"]),
        pinned=next(iter(groups["pinned"]), None),
        next_boot_pin=next(iter(groups["next_boot_pin"]), None),
    )


def pin_files(pin: str | None, next_boot_pin: str | None, manual: str | None) -> Kernels:
    """The same from the files in /etc/kernel (None: not there); of a pin only the first line counts."""
    first, following = (None if text is None else text.split("\n")[0].strip() for text in (pin, next_boot_pin))
    return Kernels(tuple(dict.fromkeys((manual or "").split())), (), first or None, following)


# --- the default


@dataclass(frozen=True)
class Policy:
    """The default that an operator chose: a pinned kernel, or (None) the newest one."""

    pinned: str | None

    @property
    def default(self) -> str:
        """``default`` in loader.conf once ``refresh`` ran. A reinit writes ``proxmox-*`` there, whatever is pinned."""
        return f"proxmox-{self.pinned}.conf" if self.pinned else "proxmox-*"

    @property
    def commands(self) -> list[list[str]]:
        """What brings it about."""
        return [pin(self.pinned) if self.pinned else unpin(), refresh()]


def refusals(kernels: Kernels) -> tuple[str, ...]:
    """Why no roll may start with these pins, as sentences; empty where one may.

    A next-boot pin is taken back by a service of the kernel that it boots: one that panics is booted for ever, and the
    permanent pin is no fallback beside it (BOOT-FACTS B3, tried).
    """
    if kernels.next_boot_pin is None:
        return ()
    what = f"{kernels.next_boot_pin} is pinned for the next boot" if kernels.next_boot_pin else "the file is empty"
    return (f"{NEXT_BOOT_PIN}: {what}, which beats the permanent pin and does not fall back when that kernel panics",)


def policy(kernels: Kernels) -> Policy:
    """The policy found before a roll. ValueError where a next-boot pin lies there."""
    reasons = refusals(kernels)
    if reasons:
        raise ValueError("; ".join(reasons))
    return Policy(kernels.pinned)


def pin(release: str) -> list[str]:
    """Make a kernel the default; without ``refresh`` no ESP knows. On a terminal the tool asks: give it none."""
    return [TOOL, "kernel", "pin", parse_release(release).text]


def unpin() -> list[str]:
    """Take back the pin, and a next-boot pin with it."""
    return [TOOL, "kernel", "unpin"]


def refresh() -> list[str]:
    """Write every ESP anew. Its exit status says nothing: ``compare`` afterwards."""
    return [TOOL, "refresh"]
