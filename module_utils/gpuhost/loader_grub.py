"""Plain GRUB, on UEFI or BIOS: /boot/grub/grub.cfg made by grub-mkconfig.

update-grub rewrites every entry from one command line, so the running system gets an entry of its own for the time of a
roll: ``gpuhost-fallback``, with copies of its kernel and initrd in /boot/gpuhost and with today's command line.

The one-shot is grub_one_shot.py's, what is in the way grub_problems.py's.

Files of ours: /etc/default/grub.d/zz-gpuhost.cfg (arguments, stays), zz-gpuhost-default.cfg (an explicit default),
/etc/grub.d/42_gpuhost and /boot/gpuhost (during a roll), gpuhost/grubenv on the ESP (during a roll).
"""

from __future__ import annotations

import os
import re

from . import boot, grub_config, grub_defaults, grub_one_shot, grub_problems, grub_snippet
from .boot import FALLBACK_ID, BootEntry, BootState, FileChange
from .boot_config import wanted_arguments
from .documents import Blocker
from .errors import Stop, blocker, stop
from .grub_one_shot import OneShot
from .host_io import Host

CFG = "/boot/grub/grub.cfg"
CUSTOM = "/boot/grub/custom.cfg"
DEFAULTS = "/etc/default/grub"
DEFAULTS_D = "/etc/default/grub.d"
ARGUMENTS = f"{DEFAULTS_D}/zz-gpuhost.cfg"
DEFAULT = f"{DEFAULTS_D}/zz-gpuhost-default.cfg"
SNIPPET = "/etc/grub.d/42_gpuhost"
COPIES = "/boot/gpuhost"
UPDATE_S = 600


class Grub(boot.Loader):
    """GRUB with its configuration in /boot/grub."""

    name = "grub"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.one_shot = OneShot(host)

    # --- reading

    def read(self) -> BootState:
        config = self._config()
        env = self.one_shot.environment()
        request = self.one_shot.request()
        default = self._default(config, env)
        chosen = grub_config.resolve(config, request) if request else default
        esp = self.one_shot.esp()
        # The one in the submenu first: the top level's moves to another kernel with the next update-grub. Another
        # system's last: it may have a kernel of the same name.
        ordered = sorted(config.entries, key=lambda item: (item.id.startswith("osprober-"), ">" not in item.id))
        entries = tuple(self._entry(entry) for entry in ordered if not entry.recovery and self._lasts(entry))
        return BootState(
            loader=self.name,
            esps=(esp[0],) if esp else (),
            entries=entries,
            policy=self._policy(config, env),
            default_entry=default.id if default else None,
            next_entry=chosen.id if chosen else None,
            one_shot=request,
            one_shot_by=self.one_shot.place(),
            copies_fallback=True,
            problems=tuple(self._problems(config)),
        )

    def _lasts(self, entry: grub_config.GrubEntry) -> bool:
        """Whether an entry is still there after the next update-grub. One of ours without its script is not."""
        return entry.id != FALLBACK_ID or self.host.exists(SNIPPET)

    def _problems(self, config: grub_config.GrubConfig) -> list[Blocker]:
        text = self.host.read(CFG) or ""
        found = grub_problems.of(text, config, self.host.read(CUSTOM))
        try:
            self._effective()
        except Stop as error:
            found.append(error.blocker)
        esp, place = self.one_shot.esp(), self.one_shot.place()
        if place is None:
            observed = (
                f"GRUB can't write here ({self.one_shot.filesystem()}), and there is no ESP to keep the request on"
            )
            expected = "ext4 or vfat without LVM or md, or a mounted ESP"
            found.append(blocker("loader.no_one_shot", grub_one_shot.ENV, observed, expected))
        if esp and place == grub_one_shot.ESP and boot.mounted_read_only(self.host, esp[0]):
            found.append(blocker("boot.esp_read_only", esp[0], "mounted read-only", "writable"))
        return found

    def _config(self) -> grub_config.GrubConfig:
        try:
            return grub_config.parse(self.host.read(CFG) or "")
        except ValueError as error:
            raise stop("grub.config_unreadable", CFG, str(error), "what GRUB can read") from error

    def _default(self, config: grub_config.GrubConfig, env: dict[str, str]) -> grub_config.GrubEntry | None:
        """What boots without a one-shot. Raises Stop where a condition decides it that can't be known here."""
        try:
            return grub_config.next_boot(config, env, one_shot=False)
        except ValueError as error:
            raise stop("grub.default_undecided", CFG, str(error), "a default that can be read") from error

    def _entry(self, entry: grub_config.GrubEntry) -> BootEntry:
        text = f"linux {entry.linux} {entry.options}\ninitrd {' '.join(entry.initrd)}\n"
        release = entry.release
        linux, *initrd = (self._host_path(path) for path in (entry.linux or "", *entry.initrd))
        if entry.id == FALLBACK_ID:
            found = re.search(r"gpuhost fallback: (\S+)", entry.title[-1] if entry.title else "")
            release = found[1] if found else None
        return BootEntry(entry.id, release, CFG, linux, tuple(initrd), entry.options, text)

    def _host_path(self, path: str) -> str:
        """A path as GRUB has it (from the root of the file system that holds /boot) as the host's own."""
        base = f"{COPIES}/" if f"/{os.path.basename(COPIES)}/" in path else "/boot/"
        return base + path.rsplit("/", 1)[-1]

    def _policy(self, config: grub_config.GrubConfig, env: dict[str, str]) -> str | None:
        """The default as it is set: None for the first entry (GRUB_DEFAULT=0), ``saved:ID`` where GRUB remembers it."""
        word = config.default_word
        if word == "${saved_entry}":
            return f"saved:{env.get('saved_entry', '')}"
        return None if word in ("0", "", None) else word

    # --- the default

    def explicit(self, entry: BootEntry) -> str:
        return entry.id

    def policies(self, target: BootEntry, before: str | None) -> list[str | None]:
        remembered = [f"saved:{target.id}"] if (before or "").startswith("saved:") else []
        return [before, *remembered, self.explicit(target)]

    def would_boot(self, state: BootState, policy: str | None) -> BootEntry | None:
        config = self._config()
        word = "0" if policy is None else policy.removeprefix("saved:")
        found = grub_config.resolve(config, word or "0")
        return state.named(found.id) if found else None

    def default_change(self, policy: str | None) -> FileChange | None:
        before = self.host.read(DEFAULT)
        by_name = policy is not None and not policy.startswith("saved:") and policy != self._found_in_files()
        after = grub_defaults.with_default(policy) if by_name and policy else None
        return None if before == after else FileChange(DEFAULT, before, after)

    def _found_in_files(self) -> str | None:
        """GRUB_DEFAULT as the files have it without ours."""
        return self._effective().default

    def _effective(self) -> grub_defaults.Effective:
        """The variables without our own files. Raises Stop for a file that can't be understood."""
        try:
            return grub_defaults.effective(self._default_files())
        except ValueError as error:
            raise stop("grub.defaults_not_understood", DEFAULTS, str(error), "plain assignments") from error

    def _default_files(self) -> list[tuple[str, str]]:
        names = [name for name in self.host.names(DEFAULTS_D) if name.endswith(".cfg")]
        paths = [DEFAULTS, *(f"{DEFAULTS_D}/{name}" for name in names)]
        return [(path, self.host.read(path) or "") for path in paths if path not in (ARGUMENTS, DEFAULT)]

    def set_default(self, policy: str | None) -> bool:
        changed = self._apply(self.default_change(policy))
        if policy and policy.startswith("saved:") and self.one_shot.environment().get("saved_entry", "") != policy[6:]:
            argv = (
                ["grub-set-default", policy[6:]]
                if policy[6:]
                else ["grub-editenv", grub_one_shot.ENV, "unset", "saved_entry"]
            )
            self._must(argv)
            changed = True
        word = policy if policy and not policy.startswith("saved:") else None
        said = self._config().default_word
        # Also where an earlier attempt was cut off before update-grub.
        if changed or (said != word and (word is not None or said == FALLBACK_ID)):
            self.update()
            return True
        return False

    def _apply(self, change: FileChange | None) -> bool:
        if change is None:
            return False
        if change.after is None:
            return self.host.remove(change.path)
        self.host.write_atomic(change.path, change.after.encode())
        return True

    def _must(self, argv: list[str]) -> None:
        result = self.host.run(argv, timeout_s=UPDATE_S)
        if result.rc != 0:
            raise stop("boot.loader_failed", " ".join(argv), result.last_line)

    def update(self) -> None:
        """Make grub.cfg again. Its exit status is not the proof: the caller reads what is in the file then."""
        self._must(["update-grub"])
        self.host.sync()

    # --- the one-shot

    def set_one_shot(self, entry: BootEntry) -> str:
        config = self._config()
        clears = config.honours_next_entry and config.clears_next_entry
        return self.one_shot.set(entry.id, self.host.read(CFG) or "", clears)

    def clear_one_shot(self) -> str:
        return self.one_shot.clear()

    # --- the fallback

    def fallback_of(self, state: BootState, release: str) -> BootEntry | None:
        return state.named(FALLBACK_ID)

    def fallback_id(self, entry: BootEntry) -> str:
        return FALLBACK_ID

    def add_fallback(self, entry: BootEntry) -> bool:
        """Copy kernel and initrd, write the snippet; not where the fallback of this kernel is there already."""
        there = self.read().named(FALLBACK_ID)
        if there is not None and there.release == entry.release:
            return False
        copies = [entry.linux, *entry.initrd]
        for path in copies:
            data = self.host.read_bytes(path)
            if data is None:
                raise stop("boot.fallback_missing", entry.id, f"{path} does not exist")
            self.host.write_atomic(f"{COPIES}/{os.path.basename(path)}", data, 0o600)
        text = grub_snippet.render(self.host.read(CFG) or "", entry, os.path.basename(COPIES), self.one_shot.lay())
        self.host.write_atomic(SNIPPET, text.encode(), 0o755)
        self.update()
        return True

    def remove_fallback(self) -> bool:
        removed = self.host.remove(SNIPPET)
        # Also where an earlier attempt was cut off before update-grub.
        if removed or any(entry.id == FALLBACK_ID for entry in self._config().entries):
            self.update()
            removed = True
        for name in self.host.names(COPIES):
            removed = self.host.remove(f"{COPIES}/{name}") or removed
        self.host.remove_empty_folder(COPIES)
        return self.one_shot.remove() or removed

    # --- arguments and entries

    def argument_changes(self, arguments: dict[str, str | None]) -> list[FileChange]:
        before = self.host.read(ARGUMENTS)
        found = self._effective()
        wanted = wanted_arguments(f"{found.cmdline_linux} {found.cmdline_linux_default}", arguments)
        after = grub_defaults.render_dropin(found, wanted) or None
        return [] if before == after else [FileChange(ARGUMENTS, before, after)]

    def refreshes(self, path: str) -> bool:
        return path == ARGUMENTS

    def make_entry(self, release: str, timeout_s: int) -> tuple[list[str], str]:
        result = self.host.run(["update-grub"], timeout_s=timeout_s)
        return ["update-grub"], "" if result.rc == 0 else result.last_line

    def arguments_like_before(self) -> None:
        self.update()
