"""Proofs on the inside of the target's initramfs."""

from __future__ import annotations

from . import initramfs, target_modules
from .boot_config import MODPROBE_FILE
from .documents import Proof
from .host_io import Host
from .initramfs import Image
from .modprobe_config import kept_away, modprobe_problems, option_problems
from .preflight_driver import RIVALS
from .preflight_evidence import Evidence, proof

PACKAGES = {"zstd": "zstd", "lz4": "lz4"}
UNPACK_S = 120
#: What the initramfs mounts. The rest is mounted by the system inside.
EARLY = ("root", "usr")


class ToolMissing(Exception):
    """The program that unpacks the image is not there; its name."""


def proofs(seen: Evidence) -> list[Proof]:
    """There, newer than its options, whole, for this kernel only, with root's modules and the options inside."""
    data = seen.host.read_and_hash(seen.image_path)
    fresh = _fresh_proof(seen, data)
    if not data:
        return [fresh]
    try:
        image = initramfs.read(data, lambda name, stream: unpacked(seen.host, name, stream))
    except ToolMissing as error:
        name = str(error)
        step = f"apt-get install {PACKAGES[name]}, then run the same command again."
        return [
            fresh,
            proof("initramfs inside", False, "boot.initramfs_tool_missing", f"no program {name}", "unpacked", step),
        ]
    except ValueError as error:
        step = f"Rebuild it with: update-initramfs -u -k {seen.target}; then run the same command again."
        observed = f"{seen.image_path}: {error}"
        return [fresh, proof("initramfs inside", False, "boot.initramfs_damaged", observed, "whole", step)]
    held = initramfs.modules(image)
    return [
        fresh,
        proof("initramfs inside", True, "boot.initramfs_damaged", f"{len(image.names)} files, whole", "whole"),
        _kernel_proof(seen, held),
        _root_proof(seen, held.get(seen.target, {})),
        _options_proof(seen, image),
        _rivals_proof(seen, image, held.get(seen.target, {})),
    ]


def unpacked(host: Host, name: str, stream: bytes) -> bytes:
    """One compressed stream by the host's program. ValueError for damage, ToolMissing where there is no program."""
    rc, data, error = host.run_bytes([name, "-dc"], timeout_s=UNPACK_S, stdin=stream)
    if rc == 127:
        raise ToolMissing(name)
    if rc != 0:
        raise ValueError(error.strip().splitlines()[-1] if error.strip() else f"{name} ends with {rc}")
    return data


def _fresh_proof(seen: Evidence, data: bytes | None) -> Proof:
    """Not older than the module options that go into it."""
    age, options = seen.host.age_s(seen.image_path), seen.host.age_s(MODPROBE_FILE)
    newer = age is not None and (options is None or options >= age)
    observed = "missing" if data is None else f"{len(data)} bytes, {'newer' if newer else 'older'}"
    expected = f"{seen.image_path}, newer than {MODPROBE_FILE}"
    return proof("initramfs", bool(data) and newer, "boot.initramfs_missing", observed, expected)


def _kernel_proof(seen: Evidence, held: dict[str, dict[str, str]]) -> Proof:
    others = sorted(set(held) - {seen.target})
    observed = f"modules of {', '.join(others)}" if others else f"{len(held.get(seen.target, {}))} modules"
    expected = f"modules of {seen.target} only"
    return proof("initramfs kernel", not others, "boot.initramfs_foreign_modules", observed, expected)


def _root_proof(seen: Evidence, held: dict[str, str]) -> Proof:
    """What root hangs on has to be in the image, or in the kernel itself: nothing else is there to load it from.

    A guess is left out: dm_multipath, which Ubuntu Server always loads, or the dm_crypt of a data disk is in no image.
    """
    needed = [item for item in seen.ground.modules if item.purpose in EARLY and not item.guess]
    index = {name: seen.modules.index[name] for name in held if name in seen.modules.index}
    inside = target_modules.Target(seen.modules.builtin, index)
    gone = target_modules.missing(needed, inside)
    if gone:
        gone = target_modules.missing(needed, inside, None, seen.index_file("modules.alias"))
    # A module that the target lacks altogether is said by the proof of the target's modules.
    known = {*seen.modules.index, *seen.modules.builtin}
    gone = tuple(item for item in gone if target_modules.canonical(item.needed.module) in known)
    observed = "; ".join(f"{item.problem} for {item.needed.device}" for item in gone)
    return proof(
        "initramfs root",
        not gone,
        "boot.module_missing",
        observed or ", ".join(dict.fromkeys(item.module for item in needed)),
        "every module of the root device in the image or built in",
        f"Add it to /etc/initramfs-tools/modules, then: update-initramfs -u -k {seen.target}",
    )


def _options_proof(seen: Evidence, image: Image) -> Proof:
    """The options of the plan, inside the image for the modules that it holds and on the host for all others.

    That a module of the driver is missing is said by the driver's own proofs.
    """
    wanted = seen.roll.plan["modprobe_options"]
    problems = modprobe_problems(image, wanted, seen.command_line)
    said = {target_modules.canonical(name) for name in seen.driver_modules if name not in seen.driver_files}
    here = {module: options for module, options in wanted.items() if target_modules.canonical(module) not in said}
    problems += option_problems(
        "on the host", seen.modprobe_files, seen.files, here, seen.command_line, seen.modules.builtin
    )
    asked = "; ".join(
        f"{module} {' '.join(f'{key}={value}' for key, value in options.items())}" for module, options in wanted.items()
    )
    observed = "; ".join(problems) or "in force"
    return proof("module options", not problems, "boot.modprobe_options", observed, asked or "none of ours")


def _rivals_proof(seen: Evidence, image: Image, held: dict[str, str]) -> Proof:
    kept = [kept_away(name, image.files, seen.command_line, present=held, initramfs=True) for name in RIVALS]
    loose = [item.reason for item in kept if not item.kept]
    observed = "; ".join(loose) or "; ".join(dict.fromkeys(item.reason for item in kept))
    expected = "kept away in the initramfs too"
    return proof("initramfs nouveau", not loose, "driver.nouveau_not_kept_away", observed, expected)
