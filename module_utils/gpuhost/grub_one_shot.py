"""Where GRUB's one-shot lies: ``next_entry`` in its own environment block, or a file of ours on the ESP.

On LVM, md, btrfs and ZFS GRUB can't write its block: ``grub-reboot`` says nothing, and the new kernel boots *every*
time (tried). The file on the ESP is read by the snippet of grub_snippet.py.
"""

from __future__ import annotations

import os

from . import grub_env, grub_snippet
from .errors import stop
from .host_io import Host

ENV = "/boot/grub/grubenv"
ESP_MOUNT_POINTS = ("/boot/efi", "/efi")
BLOCK, ESP = "grubenv", "ESP"


class OneShot:
    """The request for one boot, in whichever place this host's GRUB can clear it."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._place: str | None = None

    def place(self) -> str | None:
        """``grubenv`` where GRUB can write its own block, ``ESP`` where ours has to do, None where neither can be."""
        if self._place is None:
            if grub_env.is_writable_by_grub(self._probe("fs"), self._probe("abstraction")):
                self._place = BLOCK
            else:
                self._place = ESP if self.esp() else ""
        return self._place or None

    def filesystem(self) -> str:
        """What /boot/grub lies on, for messages."""
        return f"{self._probe('fs')} {self._probe('abstraction')}".strip()

    def _probe(self, target: str) -> str:
        result = self.host.run(["grub-probe", f"--target={target}", "/boot/grub"])
        return result.stdout.strip() if result.rc == 0 else f"grub-probe: {result.last_line}"

    def esp(self) -> tuple[str, str] | None:
        """(mount point, file system UUID) of the ESP, which is vfat and which GRUB can therefore write."""
        fields = [line.split() for line in (self.host.read("/proc/mounts") or "").splitlines()]
        for item in fields:
            if len(item) > 3 and item[1] in ESP_MOUNT_POINTS and item[2] == "vfat":
                device = os.path.basename(self.host.resolved(item[0]) or item[0])
                for uuid in self.host.names("/dev/disk/by-uuid"):
                    if os.path.basename(self.host.resolved(f"/dev/disk/by-uuid/{uuid}") or "") == device:
                        return item[1], uuid
        return None

    def environment(self, path: str = ENV) -> dict[str, str]:
        """An environment block. Raises Stop where GRUB could not read it."""
        data = self.host.read_bytes(path)
        try:
            return grub_env.parse(data) if data else {}
        except ValueError as error:
            raise stop("grub.environment_broken", path, str(error), "an environment block") from error

    def request(self) -> str | None:
        """The entry that is asked for, in either place."""
        return self._on_esp() or self.environment().get("next_entry") or None

    def _file(self) -> str | None:
        esp = self.esp()
        return f"{esp[0]}/{grub_snippet.ESP_ENV}" if esp else None

    def _on_esp(self) -> str | None:
        path = self._file()
        return self.environment(path).get("gpuhost_next") if path else None

    def lay(self) -> str | None:
        """Make the file on the ESP, empty, where the request has to lie there; the ESP's UUID for the snippet."""
        esp, path = self.esp(), self._file()
        if self.place() != ESP or esp is None or path is None:
            return None
        if not self.host.exists(path):
            self._write(path, "")
        return esp[1]

    def _write(self, path: str, request: str) -> None:
        self.host.write_atomic(path, grub_env.render({"gpuhost_next": request}), None)

    def set(self, entry_id: str, cfg: str, clears: bool) -> str:
        """Ask for an entry; an error text. ``cfg``: grub.cfg's text, ``clears``: whether it clears GRUB's own block."""
        path = self._file()
        if self.place() == ESP and path:
            if f"{grub_snippet.ESP_ENV} gpuhost_next" not in cfg:
                return f"grub.cfg has no snippet that reads {path}"
            self._write(path, entry_id)
            return ""
        if not clears:
            return "grub.cfg does not read and clear next_entry"
        result = self.host.run(["grub-reboot", entry_id])
        return "" if result.rc == 0 else result.last_line

    def clear(self) -> str:
        """Take it back, wherever it lies; an error text."""
        path = self._file()
        if path and self._on_esp():
            self._write(path, "")
        if not self.environment().get("next_entry"):
            return ""
        result = self.host.run(["grub-editenv", ENV, "unset", "next_entry"])
        return "" if result.rc == 0 else result.last_line

    def remove(self) -> bool:
        """Remove the file on the ESP; whether there was one."""
        path = self._file()
        if path is None:
            return False
        removed = self.host.remove(path)
        self.host.remove_empty_folder(os.path.dirname(path))
        return removed
