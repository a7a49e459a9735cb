"""A fake of Proxmox's boot tool for the fake host. No code of the real one: its formats and its rules only.

The rules are those that the real scripts 8.1.0, 8.1.4 and 9.2.0 showed when they were run on folders as ESPs, and
those of a lab machine with two real ESPs (8.1.0):

* uuids file: no comments, each odd line a WARN; a last line without a line end is not read at all
* ESP by ESP in the list's order; once an ESP had EFI/proxmox/grubx64.efi, all further ones count as GRUB (real bug)
* systemd-boot: EFI/proxmox/<release>/, loader/entries/proxmox-<release>.conf with line 1 of /etc/kernel/cmdline,
  ``default`` in loader.conf; foreign folders of EFI/proxmox go, foreign entries stay
* GRUB: kernels at the root of the ESP, which is /boot while update-grub runs; root id from the *host's* grub.cfg
* rc 0: ESP missing, kernel without initrd, no /etc/kernel/cmdline. rc 1: line 1 without root= (nothing written), ESP
  full (truncated file, no later ESP is reached). rc 2: a pin with GRUB, and no /boot/grub/grub.cfg on the host
* a next-boot pin beats the permanent one, even as an empty file; ``reinit`` writes ``default proxmox-*`` and forgets
  the pin until the next refresh (packages of systemd-boot, GRUB, shim and the tool itself run it since 8.1.2)

Not copied: mounting (an ESP is a folder), the question on a terminal, ``format``, ``init`` and ``clean``.

``agent`` stands for the process that reads and changes ESPs in a mount namespace of its own (esp_agent.py): its own
functions run, on those folders.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from fake_host import Answer, FakeHost

from gpuhost import esp_agent, grub_env

ETC = "/etc/kernel"
UUIDS = f"{ETC}/proxmox-boot-uuids"
PINS = {False: f"{ETC}/proxmox-boot-pin", True: f"{ETC}/next-boot-pin"}
MANUAL = f"{ETC}/proxmox-boot-manual-kernels"
SNIPPET = "/etc/default/grub.d/proxmox-kernel-pin.cfg"
RUN_ANEW = "Re-executing '{}' in new private mount namespace.."


FIXTURES = Path(__file__).parents[1] / "fixtures/proxmox"


def fixture(name: str) -> dict[str, str]:
    """A tree of tests/fixtures/proxmox: path -> text; also ``status.stdout``, ``status.stderr``, ``kernel-list``."""
    parts = re.split(r"^=== (.+)\n", (FIXTURES / f"{name}.tree").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def lay_out(host: FakeHost, name: str) -> FakeProxmox:
    """Lay such a tree into a fake host and give it the tool; ESPs are in /esp/<UUID>."""
    host.path("/sys/firmware/efi").mkdir(parents=True)
    uuids = []
    for path, text in fixture(name).items():
        if path.startswith("/"):
            # A real block has no line end behind it, which such a tree can't hold.
            host.put(path, grub_env.render({}) if path.endswith("/grubenv") else text)
        if path == UUIDS:
            uuids = text.split()
        if path.startswith("/boot/vmlinuz-"):
            host.packages[f"proxmox-kernel-{path.removeprefix('/boot/vmlinuz-')}-signed"] = ("1", "ii")
    for series in ("6.8", "6.14"):
        host.packages[f"proxmox-kernel-{series}"] = (f"{series}.1", "ii")
    tool = FakeProxmox({uuid: f"/esp/{uuid}" for uuid in uuids})
    host.programs[("proxmox-boot-tool",)] = tool
    host.programs[("unshare", "--mount", "--propagation", "private")] = tool.agent
    return tool


class _Exit(Exception):
    """``set -e``, or exit."""

    def __init__(self, rc: int) -> None:
        super().__init__(rc)
        self.rc = rc


@dataclass
class FakeProxmox:
    """``host.programs[("proxmox-boot-tool",)] = FakeProxmox({uuid: folder})``.

    esps     each ESP's folder in the host's tree
    missing  UUIDs whose disk is gone
    broken   UUIDs of which the file system can't be mounted
    locked   UUIDs that somebody has mounted read-only
    room     UUID -> bytes that kernels and initrds may take there
    asleep   a refresh that does nothing, with rc 0
    root_id  in the ESPs' menus; else that of the host's grub.cfg
    """

    esps: dict[str, str]
    missing: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    locked: set[str] = field(default_factory=set)
    room: dict[str, int] = field(default_factory=dict)
    asleep: bool = False
    root: str = "root=ZFS=/ROOT/pve-1 ro"
    root_id: str = ""
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)

    def __call__(self, host: FakeHost, argv: list[str]) -> Answer:
        self.host, self.out, self.err, self.grub = host, [], [], False
        rc = 0
        try:
            self._command(argv[1:])
        except _Exit as end:
            rc = end.rc
        return rc, "".join(f"{line}\n" for line in self.out), "".join(f"{line}\n" for line in self.err)

    def _command(self, words: list[str]) -> None:
        match words:
            case ["status"] | ["status", "--quiet"]:
                self._status(quiet=len(words) == 2)
            case ["kernel" | "kernels", "list"]:
                self._list()
            case ["kernel" | "kernels", "pin", release, *rest] if rest in ([], ["--next-boot"]):
                self._pin(release, bool(rest))
            case ["kernel" | "kernels", "unpin", *rest] if rest in ([], ["--next-boot"]):
                self._unpin(bool(rest))
            case ["kernel" | "kernels", "add" | "remove" as what, release]:
                self._manual(what, release)
            case ["refresh"] | ["refresh", "--hook", "zz-proxmox-boot"]:
                self._refresh(all_hooks=len(words) == 1)
            case ["reinit"]:
                self._each_esp(self._reinit_esp)
            case _:
                self.err.append("USAGE: proxmox-boot-tool <commands> [ARGS]")
                raise _Exit(1)

    # --- files

    def _first_line(self, path: str) -> str:
        return (self.host.read(path) or "").split("\n")[0]

    @property
    def _efi(self) -> bool:
        return self.host.exists("/sys/firmware/efi")

    def _each_esp(self, work: Callable[[str, Path], None]) -> None:
        for uuid in (self.host.read(UUIDS) or "").split("\n")[:-1]:
            if not uuid:
                continue
            if not re.search(r"[0-9a-fA-F]{4}-[0-9a-fA-F]{4}", uuid):
                self.err.append(f"WARN: {uuid} read from {UUIDS} does not look like a VFAT-UUID - skipping")
            elif uuid in self.missing or uuid not in self.esps:
                self.err.append(f"WARN: /dev/disk/by-uuid/{uuid} does not exist - clean '{UUIDS}'! - skipping")
            elif uuid in self.broken:
                self.err.append(f"mount of /dev/disk/by-uuid/{uuid} failed - skipping")
            else:
                work(uuid, self.host.path(self.esps[uuid]))

    # --- status, list

    def _status(self, quiet: bool) -> None:
        if not quiet:
            self.out.append(RUN_ANEW.format("/usr/sbin/proxmox-boot-tool"))
        if not self.host.exists(UUIDS):
            self.err += [] if quiet else [f"E: {UUIDS} does not exist."]
            raise _Exit(2)
        if not quiet:
            self.out.append(f"System currently booted with {'uefi' if self._efi else 'legacy bios'}")
            self._each_esp(self._status_of)

    def _status_of(self, uuid: str, esp: Path) -> None:
        modes = []
        if (esp / "loader/loader.conf").exists():
            modes.append(f"uefi (versions: {', '.join(_names(esp / 'EFI/proxmox'))})")
        if (esp / "grub").is_dir():
            modes.append(f"grub (versions: {', '.join(_images(esp))})")
            if not _images(esp):
                self.err.append(f"ls: cannot access '/var/tmp/espmounts/{uuid}/vmlinuz-*': No such file or directory")
        self.out.append(f"{uuid} is configured with: {', '.join(modes)}")

    def selected(self) -> list[str]:
        """The kernels that belong onto the ESPs."""
        names = [name for name, (_, state) in self.host.packages.items() if re.match(r"[ih][^nc]", state)]
        found = [re.fullmatch(r"(?:proxmox|pve)-kernel-(\d+\..+?)(?:-signed)?", name) for name in names]
        installed = sorted({item[1] for item in found if item}, key=_natural, reverse=True)
        kernels = [item for item in installed if item.endswith("-pve")]
        series = [item for item in installed if not item.endswith("-pve")][:2]
        running = self._first_line("/proc/sys/kernel/osrelease").lower()
        wanted = [running] if self.host.exists(f"/boot/vmlinuz-{running}") else []
        wanted += (self.host.read(MANUAL) or "").split() + kernels[:2]
        wanted += [item for item in kernels if series and item.startswith(f"{series[-1]}.")][:1]
        wanted += [self._first_line(path) for path in PINS.values()]
        return sorted({item for item in wanted if item})

    def _list(self) -> None:
        manual = (self.host.read(MANUAL) or "").split()
        automatic = [item for item in self.selected() if item not in manual]
        self.out += ["Manually selected kernels:", *(manual or ["None."]), ""]
        self.out += ["Automatically selected kernels:", *(automatic or [""])]
        for title, path in (("Pinned kernel:", PINS[False]), ("Kernel pinned on next-boot:", PINS[True])):
            if self._first_line(path):
                self.out += ["", title, self._first_line(path)]

    # --- pin, unpin, add, remove

    def _must_exist(self, release: str, action: str) -> None:
        if not self.host.exists(f"/boot/vmlinuz-{release}"):
            self.err.append(f"E: no kernel image found in /boot for '{release}', not {action}.")
            if action != "adding":
                self.err += ["", "Possible Proxmox kernel versions are:", *self.selected()]
            raise _Exit(1)

    def _pin(self, release: str, next_boot: bool) -> None:
        self._must_exist(release, "setting default")
        path = PINS[next_boot]
        before = self._first_line(path)
        if self.host.exists(path) and before != release:
            self.out.append(f"Overriding previously pinned version '{before}' with '{release}'")
        self.host.put(path, f"{release}\n")
        if self.host.exists(UUIDS):
            self.out.append(f"Set kernel '{release}' in {path}. Use the 'refresh' command to update the ESPs.")
        else:
            chosen = self._first_line(PINS[True]) or release
            self.out.append(f"Setting '{chosen}' as grub default entry and running update-grub.")
            self._set_grub_default(chosen)
            self.host.run(["update-grub"])
        if next_boot:
            self.out.append("Pinned for next boot only.")

    def _unpin(self, next_boot: bool) -> None:
        last = self._first_line(PINS[True])
        if not next_boot:
            last = self._first_line(PINS[False]) or last
        for path in [PINS[True]] if next_boot else [PINS[True], PINS[False]]:
            self.host.path(path).unlink(missing_ok=True)
            self.out.append(f"Removed {path}.")
        if not self.host.exists(UUIDS):
            self.out.append("Reset default grub entry and running update-grub.")
            self._set_grub_default(self._first_line(PINS[False]))
            self.host.run(["update-grub"])
        elif last:
            self.out.append(f"Unpinned kernel '{last}'. Use the 'refresh' command to update the ESPs.")

    def _manual(self, what: str, release: str) -> None:
        manual = set((self.host.read(MANUAL) or "").split())
        if what == "remove" and release not in manual:
            self.out.append(f"Kernel '{release}' not found in manual kernel list.")
            return
        if what == "add":
            self._must_exist(release, "adding")
        manual = manual | {release} if what == "add" else manual - {release}
        self.host.put(MANUAL, "".join(f"{item}\n" for item in sorted(manual)))
        done = f"Added kernel '{release}' to" if what == "add" else f"Removed kernel '{release}' from"
        self.out.append(f"{done} manual kernel list. Use the 'refresh' command to update the ESPs.")

    # --- refresh, reinit

    def _refresh(self, all_hooks: bool) -> None:
        hooks = ["proxmox-auto-removal"] if all_hooks else []
        self.out += [f"Running hook script '{name}'.." for name in [*hooks, "zz-proxmox-boot"]]
        self.out.append(RUN_ANEW.format("/etc/kernel/postinst.d/zz-proxmox-boot"))
        if not self.host.exists(UUIDS):
            self.err.append(f"No {UUIDS} found, skipping ESP sync.")
            return
        if self.host.exists("/etc/kernel/cmdline"):
            self.cmdline = self._first_line("/etc/kernel/cmdline")
            if "root=" not in self.cmdline:
                self.err.append("No root= parameter in /etc/kernel/cmdline found!")
                raise _Exit(1)
        else:
            self.err.append("No /etc/kernel/cmdline found - falling back to /proc/cmdline")
            running = re.sub(r"\binitrd=[0-9a-zA-Z\\/.-]*\s*", "", self.host.read("/proc/cmdline") or "")
            self.cmdline = running.rstrip("\n")
        if not self.asleep:
            self._each_esp(self._refresh_esp)

    def _refresh_esp(self, uuid: str, esp: Path) -> None:
        self.grub = self.grub or (esp / "EFI/proxmox/grubx64.efi").exists()
        if self._efi and not self.grub:
            for needed, complaint in (
                ("loader/loader.conf", " contains no loader.conf - skipping"),
                ("EFI/proxmox", "/EFI/proxmox does not exist- skipping"),
            ):
                if not (esp / needed).exists():
                    self.err.append(f"/dev/disk/by-uuid/{uuid}{complaint}")
                    return
        elif not (esp / "grub").is_dir():
            self.err.append(f"/dev/disk/by-uuid/{uuid} contains no grub directory - skipping")
            return
        self.err.append(f"Copying and configuring kernels on /dev/disk/by-uuid/{uuid}")
        as_grub = self.grub or not self._efi
        for release in self.selected():
            self._copy_kernel(uuid, esp, release, as_grub)
        pinned = self._first_line(PINS[self.host.exists(PINS[True])])
        if as_grub:
            self._set_grub_default(pinned)
            self._remove_old(_images(esp), lambda name: [esp / f"vmlinuz-{name}", esp / f"initrd.img-{name}"])
            self._update_grub(uuid, esp)
        else:
            _set_default(esp / "loader/loader.conf", f"proxmox-{pinned}.conf" if pinned else "proxmox-*")
            folders = [name for name in _names(esp / "EFI/proxmox") if (esp / "EFI/proxmox" / name).is_dir()]
            self._remove_old(
                folders, lambda name: [esp / "EFI/proxmox" / name, esp / f"loader/entries/proxmox-{name}.conf"]
            )

    def _copy_kernel(self, uuid: str, esp: Path, release: str, as_grub: bool) -> None:
        for kind, name in (("linux-image", "vmlinuz"), ("initrd-image", "initrd.img")):
            if not self.host.exists(f"/boot/{name}-{release}"):
                self.err.append(f"No {kind} /boot/{name}-{release} found - skipping")
                return
        self.err.append(f"\tCopying kernel {'' if as_grub else 'and creating boot-entry for '}{release}")
        folder = esp if as_grub else esp / "EFI/proxmox" / release
        folder.mkdir(exist_ok=True)
        for name in (f"vmlinuz-{release}", f"initrd.img-{release}"):
            self._copy(uuid, esp, self.host.path(f"/boot/{name}"), folder / name)
        if not as_grub:
            below = f"/EFI/proxmox/{release}"
            (esp / "loader/entries").mkdir(parents=True, exist_ok=True)
            (esp / f"loader/entries/proxmox-{release}.conf").write_text(
                f"title    Proxmox Virtual Environment\nversion  {release}\noptions  {self.cmdline}\n"
                f"linux    {below}/vmlinuz-{release}\ninitrd   {below}/initrd.img-{release}\n"
            )

    def _copy(self, uuid: str, esp: Path, source: Path, target: Path) -> None:
        """cp: the target is emptied first, and what fits is written."""
        target.write_bytes(b"")
        data = source.read_bytes()
        left = self._left(uuid, esp)
        target.write_bytes(data[:left])
        if len(data) > left:
            self.err.append(f"cp: error writing '{target}': No space left on device")
            raise _Exit(1)

    def _left(self, uuid: str, esp: Path) -> int:
        taken = sum(item.stat().st_size for item in esp.rglob("*") if re.match(r"vmlinuz-|initrd\.img-", item.name))
        return max(self.room.get(uuid, 2**40) - taken, 0)

    # --- the process in a mount namespace of its own

    def agent(self, host: FakeHost, argv: list[str]) -> Answer:
        """``unshare --mount --propagation private PYTHON -I - ORDER`` with the program on stdin."""
        self.host = host
        assert argv[5:7] == ["-I", "-"]
        assert b"def mounted_here(" in host.stdins[-1]
        with mock.patch("os.fsync"):
            answers = esp_agent.work(json.loads(argv[7]), self._mounted, host.root)
        for uuid in self.room:
            if "free_bytes" in answers.get(uuid, {}):
                answers[uuid]["free_bytes"] = self._left(uuid, host.path(self.esps[uuid]))
        return 0, json.dumps(answers) + "\n", ""

    @contextmanager
    def _mounted(self, uuid: str, writable: bool) -> Iterator[tuple[Path, bool]]:
        if uuid in self.missing or uuid not in self.esps:
            raise esp_agent.Unmountable(f"/dev/disk/by-uuid/{uuid} does not exist")
        if uuid in self.broken:
            raise esp_agent.Unmountable(f"mount: /mnt/{uuid}: wrong fs type, bad option, bad superblock")
        if writable and uuid in self.locked:
            raise esp_agent.Unmountable(f"/dev/disk/by-uuid/{uuid} is mounted read-only")
        esp = self.host.path(self.esps[uuid])
        real = esp_agent.write

        def limited(target: Path, data: bytes) -> None:
            if re.match(r"vmlinuz-|initrd\.img-", target.name) and len(data) > self._left(uuid, esp):
                raise OSError(errno.ENOSPC, "No space left on device", str(target))
            real(target, data)

        with mock.patch.object(esp_agent, "write", limited):
            yield esp, uuid in self.locked

    def _remove_old(self, names: list[str], paths: Callable[[str], list[Path]]) -> None:
        for name in names:
            if name not in "\n".join(self.selected()):  # the real one looks for a part of the text, too
                self.err.append(f"\tRemoving old version {name}")
                for path in paths(name):
                    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def _reinit_esp(self, uuid: str, esp: Path) -> None:
        if self._efi and not (esp / "EFI/proxmox/grubx64.efi").exists():
            (esp / "loader/loader.conf").write_text("timeout 3\ndefault proxmox-*\n")

    # --- GRUB

    def _set_grub_default(self, release: str) -> None:
        if not release:
            self.host.path(SNIPPET).unlink(missing_ok=True)
            return
        menu = self.host.read("/boot/grub/grub.cfg")
        if menu is None:
            self.err.append("sed: can't read /boot/grub/grub.cfg: No such file or directory")
            raise _Exit(2)
        found = re.search(r"gnulinux-advanced-(.+)' \{$", menu, re.MULTILINE)
        root = found[1] if found else ""
        self.host.put(SNIPPET, f'GRUB_DEFAULT="gnulinux-advanced-{root}>gnulinux-{release}-advanced-{root}"\n')

    def _update_grub(self, uuid: str, esp: Path) -> None:
        """grub-mkconfig's shape; its settings come from a shell, as they do there."""
        files = [self.host.path("/etc/default/grub")]
        files += sorted(self.host.path("/etc/default").glob("grub.d/*.cfg"))
        script = 'for f; do [ ! -e "$f" ] || . "$f"; done; printf "%s\\n" "${GRUB_DEFAULT:-0}" "$GRUB_CMDLINE_LINUX '
        script += '$GRUB_CMDLINE_LINUX_DEFAULT"'
        answer = subprocess.run(["sh", "-c", script, "sh", *files], capture_output=True, text=True, check=True)
        default, arguments = answer.stdout.splitlines()
        found = re.search(r"gnulinux-advanced-(.+)' \{$", self.host.read("/boot/grub/grub.cfg") or "", re.MULTILINE)
        root = self.root_id or (found[1] if found else "0000")
        options = f"{self.root} {arguments}".strip()
        kernels = sorted(_images(esp), key=_natural, reverse=True)
        text = HEAD.format(default=default)
        text += "".join(_menuentry("", f"gnulinux-simple-{root}", item, options, uuid) for item in kernels[:1])
        text += (
            f"submenu 'Advanced options for Proxmox VE GNU/Linux' $menuentry_id_option 'gnulinux-advanced-{root}' {{\n"
        )
        for item in kernels:
            text += _menuentry("\t", f"gnulinux-{item}-advanced-{root}", item, options, uuid)
        text += "}\n"
        for name in self.host.names("/etc/grub.d"):  # scripts of the kind `exec tail -n +N "$0"`
            script = self.host.read(f"/etc/grub.d/{name}") or ""
            found = re.search(r'^exec tail -n \+(\d+) "\$0"$', script, re.MULTILINE)
            assert found is not None
            text += "".join(script.splitlines(keepends=True)[int(found[1]) - 1 :])
        (esp / "grub/grub.cfg").write_text(text)


HEAD = """if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${{next_entry}}" ] ; then
   set default="${{next_entry}}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="{default}"
fi
if [ x"${{feature_menuentry_id}}" = xy ]; then
  menuentry_id_option="--id"
else
  menuentry_id_option=""
fi
"""


def _menuentry(indent: str, name: str, release: str, options: str, uuid: str) -> str:
    title = f"Proxmox VE GNU/Linux, with Linux {release}" if indent else "Proxmox VE GNU/Linux"
    body = (
        f"\tsearch --no-floppy --fs-uuid --set=root {uuid}\n"
        f"\tlinux\t/vmlinuz-{release} {options}\n\tinitrd\t/initrd.img-{release}\n"
    )
    lines = f"menuentry '{title}' --class proxmox $menuentry_id_option '{name}' {{\n{body}}}\n".splitlines()
    return "".join(f"{indent}{line}\n" for line in lines)


def _set_default(path: Path, entry: str) -> None:
    """Every default line, or a new one at the end."""
    text, count = re.subn(r"^default .*$", lambda _: f"default {entry}", path.read_text(), flags=re.MULTILINE)
    path.write_text(text if count else f"{text}default {entry}\n")


def _names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir()) if folder.is_dir() else []


def _images(esp: Path) -> list[str]:
    return sorted(item.name.removeprefix("vmlinuz-") for item in esp.glob("vmlinuz-*"))


def _natural(release: str) -> list[tuple[int, str]]:
    return [(int(number or 0), text) for number, text in re.findall(r"(\d+)|(\D+)", release)]
