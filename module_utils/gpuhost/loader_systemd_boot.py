"""Plain systemd-boot with kernel-install (Debian's and Ubuntu's hooks).

Each kernel has an entry of its own, and the hooks write only the entry of the kernel that they are called for: the
running kernel's entry is the fallback as it is. ``bootctl set-oneshot`` sets an EFI variable and does not check the
name (BOOT: tried), so the entry is looked up before and ``uname`` after.
"""

from __future__ import annotations

import re

from . import boot, cmdline, efi_variables, systemd_boot
from .boot import BootEntry, BootState, FileChange
from .boot_config import wanted_arguments
from .documents import Blocker
from .errors import blocker, stop
from .host_io import Host

ESP_MOUNT_POINTS = ("/efi", "/boot/efi", "/boot")
CMDLINE_FILE = "/etc/kernel/cmdline"
WAITS = re.compile(r"^\s*timeout\s+menu-force\s*$", re.MULTILINE)


def mounted_esp(host: Host) -> str | None:
    """The mount point of the ESP that holds boot entries; None where none does."""
    return next((point for point in ESP_MOUNT_POINTS if host.exists(f"{point}/loader/entries")), None)


def read_entries(host: Host, esp: str) -> list[systemd_boot.Entry]:
    """The entries of one ESP, in the loader's own order."""
    entries = []
    for name in host.names(f"{esp}/loader/entries"):
        text = host.read(f"{esp}/loader/entries/{name}") if name.endswith(".conf") else None
        if text is not None:
            entries.append(systemd_boot.parse_entry(name, text))
    return systemd_boot.order(entries)


def as_boot_entry(host: Host, esp: str, entry: systemd_boot.Entry) -> BootEntry:
    """An entry with the host's own paths."""
    file = f"{esp}/loader/entries/{entry.filename}"
    linux, *initrd = (f"{esp}/{path.lstrip('/')}" for path in (entry.linux or "", *entry.initrd))
    return BootEntry(
        entry.filename, systemd_boot.release_of(entry), file, linux, tuple(initrd), entry.options, host.read(file) or ""
    )


def set_one_shot_variable(host: Host, entry_id: str) -> str:
    """Set LoaderEntryOneShot, by bootctl where there is one, else directly; what the tool said."""
    result = host.run(["bootctl", "set-oneshot", entry_id])
    if result.rc == 127:
        data = efi_variables.encode_efi_string(entry_id)
        return host.write_efi_variable(efi_variables.path(efi_variables.ONE_SHOT), data)
    return "" if result.rc == 0 else result.last_line


def clear_one_shot_variable(host: Host) -> str:
    """Remove LoaderEntryOneShot; an error text or nothing."""
    result = host.run(["bootctl", "set-oneshot", ""])
    if result.rc == 127:
        return host.remove_efi_variable(efi_variables.path(efi_variables.ONE_SHOT))
    return "" if result.rc == 0 else result.last_line


def booted_cmdline(host: Host) -> str:
    """What kernel-install takes without /etc/kernel/cmdline: the running line less what the loader added."""
    return cmdline.apply(host.read_line("/proc/cmdline"), {"BOOT_IMAGE": None, "initrd": None}).strip()


def cmdline_file_change(host: Host, arguments: dict[str, str | None]) -> list[FileChange]:
    """The change of /etc/kernel/cmdline, none where its arguments are right. Raises ValueError for a bad line."""
    text = host.read(CMDLINE_FILE)
    current = text or booted_cmdline(host)
    after = cmdline.rewrite_file(current, wanted_arguments(current, arguments))
    if not arguments or cmdline.parse(after).arguments == cmdline.parse(text or "").arguments:
        return []
    return [FileChange(CMDLINE_FILE, text, after)]


class SystemdBoot(boot.Loader):
    """systemd-boot on one mounted ESP."""

    name = "systemd-boot"

    def read(self) -> BootState:
        host = self.host
        esp = mounted_esp(host)
        info = efi_variables.read(host, efi_variables.INFO) or ""
        one_shot = efi_variables.read(host, efi_variables.ONE_SHOT)
        efi_default = efi_variables.read(host, efi_variables.DEFAULT)
        if esp is None:
            observed = f"no ESP with loader/entries is mounted on {', '.join(ESP_MOUNT_POINTS)}"
            problem = blocker("loader.unsupported", "ESP", observed, "a mounted ESP", "Mount it (mount /boot/efi).")
            return BootState(self.name, info, problems=(problem,), one_shot=one_shot, efi_default=efi_default)
        entries = read_entries(host, esp)
        policy = systemd_boot.default_of(host.read(f"{esp}/loader/loader.conf") or "")
        # @saved depends on what was booted last, which is not known here.
        saved = (policy or "").lower() == "@saved" and not efi_default
        default = None if saved else systemd_boot.selected(entries, policy, efi_default, None)
        chosen = None if saved and not one_shot else systemd_boot.selected(entries, policy, efi_default, one_shot)
        return BootState(
            loader=self.name,
            loader_info=info,
            esps=(esp,),
            entries=tuple(as_boot_entry(host, esp, entry) for entry in entries),
            policy=policy,
            default_entry=default.filename if default else None,
            next_entry=chosen.filename if chosen else None,
            one_shot=one_shot,
            one_shot_by="EFI variable",
            efi_default=efi_default,
            problems=self._problems(esp, entries),
        )

    def _problems(self, esp: str, entries: list[systemd_boot.Entry]) -> tuple[Blocker, ...]:
        found = []
        if boot.mounted_read_only(self.host, esp):
            found.append(blocker("boot.esp_read_only", esp, "mounted read-only", "writable"))
        booted = efi_variables.read(self.host, efi_variables.DEVICE)
        found += [_other_esp(esp, booted)] if booted and not self._is_booted(esp, booted) else []
        if WAITS.search(self.host.read(f"{esp}/loader/loader.conf") or ""):
            found.append(
                blocker("loader.waits_for_a_key", f"{esp}/loader/loader.conf", "timeout menu-force", "seconds")
            )
        counted = [entry.filename for entry in entries if entry.tries]
        if counted:
            observed = f"boot counting: {', '.join(counted)}"
            found.append(blocker("loader.unsupported", "/etc/kernel/tries", observed, "no boot counting"))
        return tuple(found)

    def _is_booted(self, esp: str, booted: str) -> bool:
        """Whether the mounted ESP is the one that the firmware took. One that can't be looked up counts as that."""
        fields = [line.split() for line in (self.host.read("/proc/mounts") or "").splitlines()]
        device = next((self.host.resolved(item[0]) for item in fields if len(item) > 1 and item[1] == esp), None)
        wanted = self.host.resolved(f"/dev/disk/by-partuuid/{booted.lower()}")
        return device is None or wanted is None or device == wanted

    def explicit(self, entry: BootEntry) -> str:
        return entry.id

    def would_boot(self, state: BootState, policy: str | None) -> BootEntry | None:
        # @saved means the entry last booted, which a one-shot does not count as.
        if (policy or "").lower() == "@saved":
            return None
        chosen = systemd_boot.selected(read_entries(self.host, state.esps[0]), policy, None, None)
        return state.named(chosen.filename) if chosen else None

    def default_change(self, policy: str | None) -> FileChange | None:
        esp = mounted_esp(self.host)
        if esp is None:
            raise stop("loader.unsupported", "ESP", "not mounted", "a mounted ESP with systemd-boot")
        path = f"{esp}/loader/loader.conf"
        before = self.host.read(path)
        after = systemd_boot.with_default(before or "", policy)
        return None if (before or "") == after else FileChange(path, before, after)

    def set_default(self, policy: str | None) -> bool:
        change = self.default_change(policy)
        if change is None or change.after is None:
            return False
        self.host.write_atomic(change.path, change.after.encode(), None)
        return True

    def set_one_shot(self, entry: BootEntry) -> str:
        return set_one_shot_variable(self.host, entry.id)

    def clear_one_shot(self) -> str:
        return clear_one_shot_variable(self.host)

    def argument_changes(self, arguments: dict[str, str | None]) -> list[FileChange]:
        return cmdline_file_change(self.host, arguments)

    def make_entry(self, release: str, timeout_s: int) -> tuple[list[str], str]:
        argv = ["kernel-install", "add", release, f"/boot/vmlinuz-{release}", f"/boot/initrd.img-{release}"]
        result = self.host.run(argv, timeout_s=timeout_s)
        return argv, "" if result.rc == 0 else result.last_line


def _other_esp(esp: str, booted: str) -> Blocker:
    return blocker("boot.esp_not_booted", esp, f"the firmware booted from partition {booted.lower()}", "this one")
