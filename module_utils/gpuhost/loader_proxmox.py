"""Proxmox's boot tool with systemd-boot on the ESPs; and which loader it is that the tool manages here.

What keeps the fallback the default is the EFI variable LoaderEntryDefault, ours from hold to promote. It beats
loader.conf, whose ``default`` is rewritten by every refresh (to the pinned kernel) and by every reinit (to
``proxmox-*``, the newest kernel, whatever is pinned; packages of systemd-boot, shim, GRUB and the tool run it since
8.1.2). Were loader.conf the place, an apt run between two calls of ours could make the kernel on trial the one that
boots every time. Beneath the variable the running kernel is pinned: that is what boots where a firmware loses the
variable, or an ESP the fallback's entry.

The one-shot is the EFI variable LoaderEntryOneShot. Nobody checks its name, so the entry is looked up on every ESP
before; none has to be mounted for it (tried).
"""

from __future__ import annotations

from . import cmdline, efi_variables, esp_access, proxmox_boot, systemd_boot
from . import loader_systemd_boot as plain
from .boot import FALLBACK_ID, BootEntry, BootState, FileChange
from .boot_config import wanted_arguments
from .errors import stop
from .esp_access import Change
from .host_io import Host
from .loader_proxmox_base import Proxmox
from .loader_proxmox_grub import ProxmoxGrub
from .loader_proxmox_read import COPIES, MASTERS, Offer
from .proxmox_esps import EspContent

FALLBACK_ENTRY = f"{FALLBACK_ID}.conf"
ENTRY_PATH = f"loader/entries/{FALLBACK_ENTRY}"


def of(host: Host) -> Proxmox:
    """The loader by what lies on the ESPs; where they differ, or none can be read, the one that booted the machine."""
    found = esp_access.read(host, proxmox_boot.parse_uuids(host.read(proxmox_boot.UUIDS) or ""))
    kinds = {esp.loader for esp in found if not esp.problem}
    if len(kinds) != 1 or "none" in kinds:
        info = efi_variables.read(host, efi_variables.INFO) or ""
        kinds = {"systemd-boot" if info.startswith("systemd-boot") else "grub"}
    return ProxmoxGrub(host, found) if "grub" in kinds else ProxmoxSystemdBoot(host, found)


class ProxmoxSystemdBoot(Proxmox):
    """systemd-boot on each ESP."""

    name = "proxmox-boot-tool"
    kind = "systemd-boot"

    # --- reading

    def offers(self, esp: EspContent) -> list[Offer]:
        entries = [self._offer(esp, entry) for entry in self._bootable(esp)]
        return sorted(entries, key=lambda offer: not offer.id.startswith("proxmox-"))

    @staticmethod
    def _bootable(esp: EspContent) -> list[systemd_boot.Entry]:
        """In the loader's own order. It leaves out an entry whose kernel is not there."""
        entries = systemd_boot.order(esp.entries)
        return [entry for entry in entries if entry.linux is None or esp.digest(_path(entry.linux)) or _foreign(entry)]

    @staticmethod
    def _offer(esp: EspContent, entry: systemd_boot.Entry) -> Offer:
        file = f"loader/entries/{entry.filename}"
        return Offer(
            FALLBACK_ID if entry.filename == FALLBACK_ENTRY else entry.filename,
            systemd_boot.release_of(entry),
            file,
            esp.text(file) or "",
            entry.options,
            _path(entry.linux or ""),
            tuple(_path(path) for path in entry.initrd),
        )

    def chosen(self, esp: EspContent, one_shot: bool) -> str | None:
        efi_default = efi_variables.read(self.host, efi_variables.DEFAULT)
        request = self.request() if one_shot else None
        default = systemd_boot.default_of(esp.loader_conf or "")
        found = systemd_boot.selected(self._bootable(esp), default, efi_default, request)
        return _id(found)

    def request(self) -> str | None:
        return efi_variables.read(self.host, efi_variables.ONE_SHOT)

    def how_once(self) -> str | None:
        return "EFI variable"

    def is_held(self) -> bool:
        return efi_variables.read(self.host, efi_variables.DEFAULT) == FALLBACK_ENTRY

    def arguments_wanted(self) -> str:
        text = self.host.read(plain.CMDLINE_FILE)
        return plain.booted_cmdline(self.host) if text is None else cmdline.effective_first_line(text)[0]

    # --- the default

    def would_boot(self, state: BootState, policy: str | None) -> BootEntry | None:
        if policy == FALLBACK_ID:
            return state.named(FALLBACK_ID)
        pattern = proxmox_boot.Policy(policy).default
        found = [systemd_boot.find(self._bootable(esp), pattern) for esp in self.readable()]
        return state.named(self._agreed(_id(entry) for entry in found))

    def is_default(self, esp: EspContent, policy: str | None, pinned: str | None) -> bool:
        return systemd_boot.default_of(esp.loader_conf or "") == proxmox_boot.Policy(pinned).default

    def before_refresh(self, policy: str | None) -> bool:
        if policy != FALLBACK_ID or self.is_held():
            return False
        data = efi_variables.encode_efi_string(FALLBACK_ENTRY)
        self._must_be_set(self.host.write_efi_variable(efi_variables.path(efi_variables.DEFAULT), data), True)
        return True

    def after_refresh(self, policy: str | None) -> bool:
        """Last, so that until then the fallback boots."""
        return False if policy == FALLBACK_ID else self._let_go()

    def _let_go(self) -> bool:
        if not self.is_held():
            return False  # not there, or somebody else's
        self._must_be_set(self.host.remove_efi_variable(efi_variables.path(efi_variables.DEFAULT)), False)
        return True

    def _must_be_set(self, error: str, wanted: bool) -> None:
        if error or self.is_held() != wanted:
            observed = error or f"the firmware has {'not ' if wanted else ''}kept it"
            raise stop("boot.loader_failed", "EFI variable LoaderEntryDefault", observed)

    # --- the one-shot

    def set_one_shot(self, entry: BootEntry) -> str:
        self.changed()
        return self.whole(entry) or plain.set_one_shot_variable(self.host, entry.id)

    def clear_one_shot(self) -> str:
        return plain.clear_one_shot_variable(self.host)

    # --- the fallback, arguments

    def write_entry(self, entry: BootEntry, again: bool) -> list[Change]:
        """The text is kept on the host: an ESP that lost it gets the same again."""
        master = f"{MASTERS}/{FALLBACK_ENTRY}"
        text = self.host.read(master) if again else None
        if text is None:
            linux, *initrd = (f"/{COPIES}/{name}" for name in self.names(entry))
            text = f"title    gpuhost fallback: {entry.release}\nversion  {entry.release}\noptions  {entry.options}\n"
            text += f"linux    {linux}\n" + "".join(f"initrd   {path}\n" for path in initrd)
            self.host.write_atomic(master, text.encode())
        return [("write", ENTRY_PATH, text)]

    def remove_entry(self) -> bool:
        removed = self._let_go()
        there = {esp.uuid: [("remove", ENTRY_PATH)] for esp in self.readable() if esp.text(ENTRY_PATH) is not None}
        esp_access.change(self.host, there)
        self.changed()
        return removed or bool(there)

    def argument_changes(self, arguments: dict[str, str | None]) -> list[FileChange]:
        """Only line 1 counts. Where it lacks something, the others are joined to it (case cmdline-01)."""
        text = self.host.read(plain.CMDLINE_FILE)
        if text is None or not arguments:
            return plain.cmdline_file_change(self.host, arguments)
        first, _ = cmdline.effective_first_line(text)
        wanted = wanted_arguments(first, arguments)
        if cmdline.has_root(first) and cmdline.apply(first, wanted) == first:
            return []
        return [FileChange(plain.CMDLINE_FILE, text, cmdline.rewrite_file(text, wanted))]

    def refreshes(self, path: str) -> bool:
        return path == plain.CMDLINE_FILE


def _path(path: str) -> str:
    """A path of an entry as one relative to the ESP."""
    return path.replace("\\", "/").lstrip("/")


def _foreign(entry: systemd_boot.Entry) -> bool:
    """An entry that is no kernel's, such as the memory test: whether its program is there was not read."""
    return not _path(entry.linux or "").rsplit("/", 1)[-1].startswith("vmlinuz-")


def _id(entry: systemd_boot.Entry | None) -> str | None:
    if entry is None:
        return None
    return FALLBACK_ID if entry.filename == FALLBACK_ENTRY else entry.filename
