"""Kernel arguments, module options, initramfs and boot entry of the *target* kernel. The fallback is not touched."""

from __future__ import annotations

from dataclasses import dataclass

from . import boot, cmdline
from .errors import stop
from .host_io import Host

MODPROBE_FILE = "/etc/modprobe.d/gpuhost.conf"
MODPROBE_HEAD = "# Managed by gpuhost (boot_config_modprobe_options): changes made here are overwritten.\n"


@dataclass(frozen=True)
class FileChange:
    """One file that is not as it should be. ``before`` is None where it does not exist."""

    path: str
    before: str | None
    after: str


def wanted_files(host: Host, arguments: dict[str, str | None], options: dict[str, dict[str, str]]) -> list[FileChange]:
    """The files that differ from what is wanted, and nothing else. Raises Stop for a line that can't be changed."""
    changes = []
    text = host.read(boot.CMDLINE_FILE)
    try:
        after = cmdline.rewrite_file(current := text or _booted_cmdline(host), wanted_arguments(current, arguments))
    except ValueError as error:
        raise stop("input.invalid", boot.CMDLINE_FILE, str(error)) from error
    if arguments and cmdline.parse(after).arguments != cmdline.parse(text or "").arguments:
        changes.append(FileChange(boot.CMDLINE_FILE, text, after))
    before, after = host.read(MODPROBE_FILE), render_modprobe(options)
    if before != after and (options or before is not None):
        changes.append(FileChange(MODPROBE_FILE, before, after))
    return changes


def _booted_cmdline(host: Host) -> str:
    """What kernel-install takes without /etc/kernel/cmdline: the running line less what the loader added."""
    return cmdline.apply(host.read_line("/proc/cmdline"), {"BOOT_IMAGE": None, "initrd": None}).strip()


def wanted_arguments(current: str, arguments: dict[str, str | None]) -> dict[str, str | bool | None]:
    """What to set on top of a command line: our own wishes, but a user's own ``panic=`` wins over ours."""
    wanted: dict[str, str | bool | None] = {}
    for key, value in arguments.items():
        if key == "panic" and value is not None and reboots_on_panic(current):
            continue
        wanted[key] = True if value == "" else value
    return wanted


def reboots_on_panic(line: str) -> bool:
    """Whether a command line has a ``panic=`` of its own that reboots; 0 means to stay dead, and is no way back."""
    values = [item.value for item in cmdline.parse(line).own if item.key == "panic"]
    return bool(values) and values[-1] not in (None, "", "0")


def render_modprobe(options: dict[str, dict[str, str]]) -> str:
    """A modprobe.d file: one line a module, keys sorted, so that the same wish gives the same bytes."""
    lines = [
        f"options {module} " + " ".join(f"{key}={value}" for key, value in sorted(values.items()))
        for module, values in sorted(options.items())
    ]
    return MODPROBE_HEAD + "".join(line + "\n" for line in lines)


def write(host: Host, changes: list[FileChange]) -> None:
    """Write the changed files."""
    for change in changes:
        host.write_atomic(change.path, change.after.encode())


def needs_rebuild(host: Host, release: str, arguments: dict[str, str | None], changes: list[FileChange]) -> list[str]:
    """Why initramfs and entry of the target have to be made again; empty where they are as they should be."""
    reasons = [f"{change.path} changed" for change in changes if change.path == MODPROBE_FILE]
    state = boot.read(host)
    entry = state.entry(release)
    initrd = host.age_s(f"/boot/initrd.img-{release}")
    options = host.age_s(MODPROBE_FILE)
    if initrd is None:
        reasons.append(f"/boot/initrd.img-{release} does not exist")
    elif options is not None and options < initrd and not reasons:
        reasons.append(f"{MODPROBE_FILE} is newer than the initramfs")
    if entry is None:
        reasons.append(f"no boot entry for {release}")
    else:
        absent = cmdline.missing(entry.options, wanted_arguments(entry.options, arguments))
        if absent:
            reasons.append(f"{entry.filename} lacks {' '.join(absent)}")
        reasons += [f"{path} differs from /boot" for path in boot.stale_copies(host, state, entry, release)]
    return reasons


def rebuild(host: Host, release: str, timeout_s: int) -> None:
    """Make initramfs and boot entry of one kernel again. Debian's own hooks copy both to the ESP.

    Two calls, because update-initramfs alone leaves the entry's options as they are where the image does not change.
    """
    for argv in (
        ["update-initramfs", "-u" if host.exists(f"/boot/initrd.img-{release}") else "-c", "-k", release],
        ["kernel-install", "add", release, f"/boot/vmlinuz-{release}", f"/boot/initrd.img-{release}"],
    ):
        result = host.run(argv, timeout_s=timeout_s)
        host.sync()
        if result.rc != 0 and boot.read(host).read_only:
            raise boot.damaged(boot.read(host))
        if result.rc != 0:
            code = "boot.initramfs_missing" if argv[0] == "update-initramfs" else "boot.entry_missing"
            raise stop(code, " ".join(argv), result.last_line)
