"""Kernel arguments, module options, initramfs and boot entry of the *target* kernel. The fallback is not touched."""

from __future__ import annotations

from . import boot, cmdline
from .boot import FileChange, Loader
from .errors import stop
from .host_io import Host

MODPROBE_FILE = "/etc/modprobe.d/gpuhost.conf"
MODPROBE_HEAD = "# Managed by gpuhost (boot_config_modprobe_options): changes made here are overwritten.\n"

COUNTERPARTS = (("amd_pstate", "intel_pstate"), ("amd_iommu", "intel_iommu"))
"""Arguments that each vendor's processors have under a name of their own (admin-guide/kernel-parameters.txt)."""
VENDOR_PREFIXES = {"AuthenticAMD": ("intel_", "kvm_intel."), "GenuineIntel": ("amd_", "kvm_amd.")}


def for_vendor(arguments: dict[str, str | None], vendor: str) -> tuple[dict[str, str | None], list[str]]:
    """The arguments for this processor (``vendor_id`` of /proc/cpuinfo), and a line for each that was exchanged.

    One list in the inventory serves AMD and Intel hosts: an argument of the other vendor becomes its counterpart where
    there is one that is not set by itself, and is left out where there is none.
    """
    foreign = VENDOR_PREFIXES.get(vendor, ())
    pairs = {theirs: ours for pair in COUNTERPARTS for theirs, ours in (pair, pair[::-1])}
    found: dict[str, str | None] = {}
    notes = []
    for key, value in arguments.items():
        name = key.replace("-", "_")
        if not name.startswith(foreign) or not foreign:
            found[key] = value
            continue
        ours = pairs.get(name)
        if ours is None or ours in {other.replace("-", "_") for other in arguments}:
            notes.append(f"{key} is left out: the processor is {vendor}")
        else:
            found[ours] = value
            notes.append(f"{key} becomes {ours}: the processor is {vendor}")
    return found, notes


def wanted_files(
    loader: Loader, arguments: dict[str, str | None], options: dict[str, dict[str, str]]
) -> list[FileChange]:
    """The files that differ from what is wanted, and nothing else. Raises Stop for a line that can't be changed."""
    changes = []
    try:
        changes += loader.argument_changes(arguments)
    except ValueError as error:
        raise stop("input.invalid", "kernel command line", str(error)) from error
    before, after = loader.host.read(MODPROBE_FILE), render_modprobe(options)
    if before != after and (options or before is not None):
        changes.append(FileChange(MODPROBE_FILE, before, after))
    return changes


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
        if change.after is None:
            host.remove(change.path)
        else:
            host.write_atomic(change.path, change.after.encode())


def needs_rebuild(loader: Loader, release: str, arguments: dict[str, str | None], changed: bool) -> list[str]:
    """Why initramfs and entry of the target have to be made again; empty where they are as they should be.

    ``changed``: the module options were written in this call.
    """
    host = loader.host
    reasons = [f"{MODPROBE_FILE} changed"] if changed else []
    entry = loader.read().entry(release)
    initrd = host.age_s(f"/boot/initrd.img-{release}")
    options = host.age_s(MODPROBE_FILE)
    if initrd is None:
        reasons.append(f"/boot/initrd.img-{release} does not exist")
    elif options is not None and options < initrd and not reasons:
        reasons.append(f"{MODPROBE_FILE} is newer than the initramfs")
    return reasons + entry_reasons(host, entry, release, arguments)


def entry_reasons(
    host: Host, entry: boot.BootEntry | None, release: str, arguments: dict[str, str | None]
) -> list[str]:
    """Why the entry of the target has to be made again."""
    if entry is None:
        return [f"no boot entry for {release}"]
    absent = cmdline.missing(entry.options, wanted_arguments(entry.options, arguments))
    reasons = [f"{entry.id} lacks {' '.join(absent)}"] if absent else []
    return reasons + [f"{path} differs from /boot" for path in boot.stale_copies(host, entry, release)]


def rebuild(loader: Loader, release: str, timeout_s: int) -> None:
    """Make initramfs and boot entry of one kernel again. The distribution's own hooks copy both to the ESP.

    Two calls, because update-initramfs alone leaves the entry's options as they are where the image does not change.
    """
    host = loader.host
    argv = ["update-initramfs", "-u" if host.exists(f"/boot/initrd.img-{release}") else "-c", "-k", release]
    result = host.run(argv, timeout_s=timeout_s)
    error, code = ("" if result.rc == 0 else result.last_line), "boot.initramfs_missing"
    if not error:
        argv, error = loader.make_entry(release, timeout_s)
        code = "boot.entry_missing"
    host.sync()
    if not error:
        return
    read_only = [esp for esp in loader.read().esps if boot.mounted_read_only(host, esp)]
    if read_only:
        raise boot.damaged(read_only[0])
    raise stop(code, " ".join(argv), error)
