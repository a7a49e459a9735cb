"""The preflight: proofs that the target kernel is ready for its trial boot. Read-only; one entry per proof."""

from __future__ import annotations

import re

from . import apt, boot, cmdline, dkms, loaders
from .boot_config import MODPROBE_FILE, reboots_on_panic, wanted_arguments
from .causes import cause
from .documents import Preflight, Proof, make_head
from .errors import Stop
from .host_io import Host
from .rollfile import Fallback, Roll
from .survey import read_packages

LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
LIBRARY = re.compile(r"lib(?:nvidia-ml|cuda)\.so\.(\d+\.\d+(?:\.\d+)?)")


def prove(host: Host, name: str, run_id: str, roll: Roll) -> Preflight:
    """Every proof for the roll's target on this host."""
    release = roll.target
    state = loaders.of(host).read()
    proofs = (
        driver_proofs(host, release)
        + entry_proofs(host, state, release, roll.plan["cmdline"])
        + [initramfs_proof(host, release)]
        + fallback_proofs(host, state, roll)
        + [package_proof(host)]
    )
    return Preflight(make_head("preflight", name, run_id), release, tuple(proofs))


def proof(name: str, ok: bool, code: str, observed: str, expected: str) -> Proof:
    """A proof; cause and next step only where it does not hold."""
    return Proof(name, ok, None if ok else code, observed, expected, "" if ok else cause(code).next_step)


def driver_proofs(host: Host, release: str) -> list[Proof]:
    """Headers there, the driver built for exactly this kernel, every module of it there."""
    files = boot.module_files(host, release)
    information = module_information(host, [path for path in files.values() if path is not None])
    magic, versions = {}, {}
    for module, path in files.items():
        if path is not None:
            magic[module] = information.get(path, {}).get("vermagic", "")
            versions[module] = information.get(path, {}).get("version", "")
    found = dkms.prove(
        release,
        dkms.parse_status(host.run(["dkms", "status", "-k", release], timeout_s=300).stdout),
        files,
        magic,
        host.exists(f"/lib/modules/{release}/build"),
        user_space_version(host),
        {module: version for module, version in versions.items() if version},
    )
    return [Proof(p.name, p.ok, p.cause, p.observed, p.expected, _next(p.cause)) for p in found]


def user_space_version(host: Host) -> str | None:
    """The version of NVIDIA's user-space libraries by the name of the file; None where there are none on the host."""
    for folder in LIBRARY_FOLDERS:
        for name in host.names(folder):
            match = LIBRARY.fullmatch(name)
            if match:
                return match.group(1)
    return None


def _next(code: str | None) -> str:
    return cause(code).next_step if code else ""


def module_information(host: Host, paths: list[str]) -> dict[str, dict[str, str]]:
    """``modinfo`` of several module files in one call: path -> field -> value (the first, where one repeats)."""
    if not paths:
        return {}
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in host.run(["modinfo", *paths]).stdout.splitlines():
        key, colon, value = line.partition(":")
        if key == "filename":
            current = found.setdefault(value.strip(), {})
        elif colon:
            current.setdefault(key, value.strip())
    return found


def entry_proofs(host: Host, state: boot.BootState, release: str, arguments: dict[str, str | None]) -> list[Proof]:
    """The target's entry exists, its files are byte for byte those in /boot, its options hold what was asked for."""
    entry = state.entry(release)
    if entry is None:
        return [proof("boot entry", False, "boot.entry_missing", f"none in {state.loader}", f"an entry for {release}")]
    wrong = boot.stale_copies(host, entry, release)
    absent = cmdline.missing(entry.options, wanted_arguments(entry.options, arguments))
    return [
        proof(
            "boot entry",
            not wrong and bool(entry.initrd),
            "boot.entry_missing",
            f"differs from /boot: {', '.join(wrong)}" if wrong else entry.id,
            "kernel and initrd as in /boot",
        ),
        proof(
            "way back after a panic",
            reboots_on_panic(entry.options),
            "boot.no_panic_reboot",
            entry.options,
            "panic= with a number of seconds, not 0",
        ),
        proof(
            "kernel arguments",
            not absent,
            "boot.cmdline_missing",
            f"missing: {' '.join(absent)}" if absent else entry.options,
            " ".join(f"{key}={value}" if value else key for key, value in arguments.items()) or "nothing of ours",
        ),
    ]


def initramfs_proof(host: Host, release: str) -> Proof:
    """The initramfs is there and not older than the module options that go into it."""
    image = f"/boot/initrd.img-{release}"
    age, options = host.age_s(image), host.age_s(MODPROBE_FILE)
    ok = age is not None and host.size_bytes(image) > 0 and (options is None or options >= age)
    observed = "missing" if age is None else f"{host.size_bytes(image)} bytes, {'newer' if ok else 'older'}"
    return proof("initramfs", ok, "boot.initramfs_missing", observed, f"{image}, newer than {MODPROBE_FILE}")


def fallback_proofs(host: Host, state: boot.BootState, roll: Roll) -> list[Proof]:
    """The fallback is what the loader boots by itself, and not one byte of it has changed since the roll began."""
    fallback = roll.fallback
    if fallback is None:
        return [proof("fallback", False, "boot.fallback_missing", "not recorded", roll.running_before)]
    changed = changed_fallback(host, state, fallback)
    return [
        proof(
            "fallback unchanged",
            not changed,
            "boot.fallback_changed",
            f"changed: {', '.join(changed)}" if changed else f"{len(fallback.files)} files",
            "SHA-256 as before the roll",
        ),
        proof(
            "default is the fallback",
            state.default_entry == fallback.entry,
            "boot.default_not_held",
            state.default_entry or "nothing that is known",
            fallback.entry,
        ),
        proof(
            "no EFI default",
            state.efi_default is None,
            "boot.efi_default_set",
            state.efi_default or "not set",
            "not set",
        ),
        proof(
            "one-shot",
            state.one_shot_by is not None,
            "loader.unsupported",
            state.one_shot_by or "none",
            "a way to boot an entry once",
        ),
        proof(
            "no foreign one-shot",
            state.one_shot is None,
            "boot.foreign_one_shot",
            state.one_shot or "not set",
            "not set",
        ),
    ]


def changed_fallback(host: Host, state: boot.BootState, fallback: Fallback) -> list[str]:
    """What boots the fallback and is not, byte for byte, what it was when the roll began."""
    entry = state.named(fallback.entry)
    if entry is None:
        return [fallback.entry]
    try:
        now = boot.fallback_hashes(host, entry, fallback.release)
    except Stop as error:
        return [error.blocker.observed]
    return sorted(path for path in {*now, *fallback.files} if now.get(path) != fallback.files.get(path))


def package_proof(host: Host) -> Proof:
    """dpkg has nothing left to do."""
    broken = apt.half_configured(read_packages(host))
    return proof("packages", not broken, "apt.half_configured", ", ".join(broken) or "all configured", "all configured")


def first_failure(document: Preflight) -> Proof | None:
    """The first proof that does not hold; None where the host is ready."""
    return next((item for item in document.proofs if not item.ok), None)
