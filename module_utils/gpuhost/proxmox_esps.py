"""What lies on the ESPs that proxmox-boot-tool manages: which loader, and whether all of them hold the same.

The tool's exit status is no proof of that (a missing or full ESP): only reading finds it. Sources: see proxmox_boot.py.

Pure: texts, names and digests in, frozen dataclasses out.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from . import grub_config, systemd_boot
from .boot import FALLBACK_ID
from .grub_config import GrubConfig, GrubEntry
from .proxmox_boot import UUIDS

KERNELS = "EFI/proxmox"
"""``refresh`` removes every folder in here whose kernel is not selected, and ``proxmox-<folder>.conf`` with it."""

Loader = Literal["systemd-boot", "grub", "none"]

_ENTRY = re.compile(r"proxmox-(.+)\.conf")
_IMAGE = re.compile(r"vmlinuz-([^/]+)")


def esp_loader(names: Collection[str]) -> Loader:
    """The loader of an ESP by the files on it (paths relative to it), as the tool's hook decides.

    BIOS machines have GRUB's folder without an EFI program. vfat knows no case.
    """
    there = {name.lower() for name in names}
    if "efi/proxmox/grubx64.efi" in there:
        return "grub"
    if "loader/loader.conf" in there:
        return "systemd-boot"
    return "grub" if any(name.startswith("grub/") for name in there) else "none"


def skipped_by_refresh(loaders: Sequence[tuple[str, Loader]]) -> tuple[str, ...]:
    """UUIDs of the ESPs, in the list's order, that a refresh does not bring up to date, with rc 0.

    After an ESP with GRUB the hook takes every further one for GRUB, too: it never forgets what it found before.
    """
    first_grub = next((at for at, (_, loader) in enumerate(loaders) if loader == "grub"), len(loaders))
    return tuple(
        uuid
        for at, (uuid, loader) in enumerate(loaders)
        if loader == "none" or (loader == "systemd-boot" and at > first_grub)
    )


@dataclass(frozen=True)
class EspContent:
    """What was read from one ESP.

    entries       systemd-boot: loader/entries/*.conf
    grub_entries  GRUB: the menu of ``grub_cfg``
    digests       path relative to the ESP -> SHA-256, of at least kernels and initrds
    problem       why it could not be read; the rest is empty then
    texts         path -> text of the loaders' files, as they stand
    read_only     mounted read-only by somebody, so that no refresh can write it
    """

    uuid: str
    loader: Loader
    loader_conf: str | None = None
    entries: tuple[systemd_boot.Entry, ...] = ()
    grub_cfg: str | None = None
    grub_entries: tuple[GrubEntry, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    menu: GrubConfig | None = None
    free_bytes: int = 0
    read_only: bool = False

    def text(self, path: str) -> str | None:
        """A file's text; vfat knows no case."""
        return next((text for name, text in self.texts.items() if name.lower() == path.lower()), None)

    def digest(self, path: str) -> str | None:
        """A kernel's or an initrd's SHA-256."""
        return next((found for name, found in self.digests.items() if name.lower() == path.lower()), None)


def content(uuid: str, answer: Mapping[str, Any]) -> EspContent:
    """What ``esp_agent.py`` has found on one ESP. A menu that GRUB could not read is a problem."""
    if "problem" in answer:
        return EspContent(uuid, "none", problem=answer["problem"])
    found = EspContent(
        uuid,
        esp_loader(answer["names"]),
        digests=answer["digests"],
        texts=answer["texts"],
        free_bytes=answer["free_bytes"],
        read_only=answer["read_only"],
    )
    menu = None
    grub_cfg = found.text("grub/grub.cfg")
    if found.loader == "grub" and grub_cfg is not None:
        try:
            menu = grub_config.parse(grub_cfg)
        except ValueError as error:
            return EspContent(uuid, "grub", problem=f"grub/grub.cfg: {error}")
    return replace(
        found,
        loader_conf=found.text("loader/loader.conf"),
        entries=tuple(
            systemd_boot.parse_entry(path.rsplit("/", 1)[-1], text)
            for path, text in found.texts.items()
            if path.lower().startswith("loader/entries/")
        ),
        grub_cfg=grub_cfg,
        grub_entries=menu.entries if menu else (),
        menu=menu,
    )


@dataclass(frozen=True)
class Difference:
    """One thing that is not as it should be. ``uuid`` is empty for a file of the host itself."""

    uuid: str
    file: str
    observed: str
    expected: str

    @property
    def text(self) -> str:
        """One line of it."""
        place = f"ESP {self.uuid}: {self.file}" if self.uuid else self.file
        return f"{place}: {self.observed}, expected {self.expected}"


@dataclass(frozen=True)
class _Want:
    """The host's side: release -> (kernel, initrd) as SHA-256 of the files in /boot, and the command line."""

    kernels: Mapping[str, tuple[str, str]]
    cmdline: str


def compare(
    esps: Sequence[EspContent],
    kernels: Mapping[str, tuple[str, str]],
    cmdline: str,
    release: str,
    default: str | None = None,
) -> tuple[Difference, ...]:
    """Every difference between the ESPs and the host, and between the ESPs; empty where a roll may rely on them.

    esps     all of ``parse_uuids``, also those that could not be read
    kernels  release -> SHA-256 of /boot/vmlinuz-* and /boot/initrd.img-*
    cmdline  line 1 of /etc/kernel/cmdline (systemd-boot only: with GRUB the arguments of ``grub_entries`` are judged
             by whoever knows GRUB's settings, here only that both ESPs have the same)
    release  the kernel that must be there on every ESP
    default  what loader.conf must say (``Policy.default``); without it only that all say the same

    Entries that are not the tool's own (``gpuhost-fallback.conf``, memtest) are not looked at.
    """
    found: list[Difference] = []
    if not esps:
        found.append(Difference("", UUIDS, "no ESP listed", "at least one"))
    if release not in kernels:
        found.append(Difference("", f"/boot/vmlinuz-{release}", "no kernel with initrd", "both"))
    found += [Difference(esp.uuid, "/", esp.problem, "readable") for esp in esps if esp.problem]
    want = _Want(kernels, cmdline.strip())
    readable = [esp for esp in esps if not esp.problem]
    for esp in readable:
        if esp.loader == "systemd-boot":
            found += _systemd_boot(esp, want, release)
        elif esp.loader == "grub":
            found += _grub(esp, want, release)
        else:
            found.append(Difference(esp.uuid, "/", "no boot loader", "systemd-boot or GRUB"))
    found += _releases_agree(readable, release)
    found += _defaults([esp for esp in readable if esp.loader == "systemd-boot"], default)
    found += _menus_agree([esp for esp in readable if esp.loader == "grub"])
    return tuple(found)


def _files(esp: EspContent, release: str, folder: str, want: _Want) -> Iterator[Difference]:
    """Kernel and initrd of a release against those in /boot; where those are gone, only whether they are there."""
    names = (f"vmlinuz-{release}", f"initrd.img-{release}")
    for name, expected in zip(names, want.kernels.get(release, (None, None)), strict=True):
        path = f"{folder}{name}"
        observed = esp.digest(path)
        if observed is None:
            yield Difference(esp.uuid, path, "missing", f"like /boot/{name}")
        elif expected and observed != expected:
            yield Difference(esp.uuid, path, f"sha256 {observed[:12]}", f"sha256 {expected[:12]} like /boot/{name}")


def _own_entries(esp: EspContent) -> dict[str, systemd_boot.Entry]:
    """release -> entry of those that the tool wrote."""
    matches = ((_ENTRY.fullmatch(entry.filename), entry) for entry in esp.entries)
    return {found[1]: entry for found, entry in matches if found}


def _folders(esp: EspContent) -> set[str]:
    """Releases of which the ESP holds a folder with files."""
    parts = (path.split("/") for path in esp.digests if path.lower().startswith(f"{KERNELS.lower()}/"))
    return {item[2] for item in parts if len(item) == 4}


def _systemd_boot(esp: EspContent, want: _Want, release: str) -> Iterator[Difference]:
    entries = _own_entries(esp)
    for missing in sorted((_folders(esp) | {release}) - set(entries)):
        yield Difference(esp.uuid, f"loader/entries/proxmox-{missing}.conf", "missing", f"an entry of {missing}")
    for name, entry in sorted(entries.items()):
        folder = f"{KERNELS}/{name}/"
        fields = (
            ("version", entry.version or "", name),
            ("linux", entry.linux or "", f"/{folder}vmlinuz-{name}"),
            ("initrd", " ".join(entry.initrd), f"/{folder}initrd.img-{name}"),
            ("options", entry.options.strip(), want.cmdline),
        )
        for key, observed, expected in fields:
            if observed != expected:
                yield Difference(
                    esp.uuid, f"loader/entries/{entry.filename}", f"{key} {observed}".strip(), f"{key} {expected}"
                )
        yield from _files(esp, name, folder, want)


def _grub_releases(esp: EspContent) -> tuple[set[str], set[str]]:
    """Releases with a kernel file at the root of the ESP, and with a menu entry."""
    files = {found[1] for found in map(_IMAGE.fullmatch, esp.digests) if found}
    own = [item for item in esp.grub_entries if not item.recovery and item.id != FALLBACK_ID]
    entries = {item.release for item in own if item.release}
    return files, entries


def _grub(esp: EspContent, want: _Want, release: str) -> Iterator[Difference]:
    """GRUB's kernels lie at the root of the ESP, which is /boot while the tool runs update-grub."""
    files, entries = _grub_releases(esp)
    if esp.grub_cfg is None:
        yield Difference(esp.uuid, "grub/grub.cfg", "missing", "a menu")
    for missing in sorted((files | {release}) - entries):
        yield Difference(esp.uuid, "grub/grub.cfg", "missing", f"an entry of {missing}")
    for name in sorted(files | entries):
        yield from _files(esp, name, "", want)


def _releases_agree(esps: Sequence[EspContent], release: str) -> Iterator[Difference]:
    """A kernel that one ESP offers and another does not; ``release`` itself is looked for above."""
    offers = {esp.uuid: _grub_releases(esp)[1] if esp.loader == "grub" else set(_own_entries(esp)) for esp in esps}
    for name in sorted(set().union(*offers.values()) - {release}):
        having = next(uuid for uuid, names in offers.items() if name in names)
        for uuid, names in offers.items():
            if name not in names:
                yield Difference(uuid, "boot entries", f"none of {name}", f"one as on ESP {having}")


def _defaults(esps: Sequence[EspContent], default: str | None) -> Iterator[Difference]:
    """``default`` of loader.conf, against what is wanted or against the first ESP."""
    for esp in esps:
        observed = systemd_boot.default_of(esp.loader_conf or "")
        default = default or observed or "proxmox-*"
        if observed != default:
            seen = f"default {observed}" if observed else "no default"
            yield Difference(esp.uuid, "loader/loader.conf", seen, f"default {default}")


def _menu_lines(esp: EspContent) -> list[str]:
    """grub.cfg without what differs by nature: each names its own ESP, by UUID and by disk."""
    lines = (esp.grub_cfg or "").replace(esp.uuid, "UUID").splitlines()
    return [
        re.sub(r"\s--hint\S*", "", line).rstrip() for line in lines if not line.lstrip().startswith(("set root=", "#"))
    ]


def _menus_agree(esps: Sequence[EspContent]) -> Iterator[Difference]:
    """The first line in which a grub.cfg differs from the first ESP's."""
    written = [esp for esp in esps if esp.grub_cfg is not None]
    for esp in written[1:]:
        pairs = itertools.zip_longest(_menu_lines(esp), _menu_lines(written[0]), fillvalue="(end)")
        different = next((pair for pair in pairs if pair[0] != pair[1]), None)
        if different:
            expected = f"{different[1].strip()!r} as on ESP {written[0].uuid}"
            yield Difference(esp.uuid, "grub/grub.cfg", repr(different[0].strip()), expected)
