"""Proofs that the NVIDIA driver is there for the target kernel, and that the target would take it."""

from __future__ import annotations

import posixpath
import re

from . import (
    apt_guard,
    dkms,
    dkms_tree,
    driver_facts,
    driver_source,
    driver_support,
    kernel,
    secure_boot,
    target_modules,
)
from .documents import Proof
from .modprobe_config import kept_away
from .preflight_evidence import Evidence, proof, warning

RIVALS = ("nouveau", "nova_core", "nova_drm")
"""The kernel's own drivers for NVIDIA's GPUs: whoever comes first has the device."""

_MODULE_PATH = re.compile(r"[^\s,]+\.ko[^\s,]*")
OF_ONE_MODULE = ("dkms.module_missing", "dkms.vermagic", "dkms.version_mismatch")


def proofs(seen: Evidence) -> list[Proof]:
    """Where the driver comes from decides what has to be proven; what follows from one failure is not said again."""
    first = _source_proofs(seen)
    if not all(item.ok for item in first):
        return [*first, *_around_the_driver(seen)]
    found = _built_proofs(seen)
    age = _age_proof(seen)
    if not age.ok:
        found = [item for item in found if item.name == "headers"]
    return [*first, *found, age, _flavour_proof(seen), _signature_proof(seen), *_around_the_driver(seen)]


def _around_the_driver(seen: Evidence) -> list[Proof]:
    return [_index_proof(seen), _rivals_proof(seen), _pending_proof(seen), _others_proof(seen)]


def _source_proofs(seen: Evidence) -> list[Proof]:
    source = seen.source
    found = [
        proof(
            "driver source",
            source.cause is None,
            source.cause or "driver.run_without_dkms",
            source.detail,
            "DKMS, or a package for each kernel",
        )
    ]
    package = driver_source.precompiled_package(source.packages, seen.running, seen.target)
    if source.kind == "precompiled" and package:
        there = package in seen.versions
        observed = f"{package} {seen.versions[package]}" if there else f"{package} is not installed"
        step = f"apt-get install {package}, then run the same command again."
        found.append(proof("driver package", there, "driver.precompiled_missing", observed, package, step))
    return found


def _built_proofs(seen: Evidence) -> list[Proof]:
    """Headers, DKMS's word, each module's file, vermagic and version."""
    needs_dkms = seen.source.kind != "precompiled"
    versions = {name: seen.of_module(name, "version") for name in seen.driver_files}
    found = dkms.prove(
        seen.target,
        seen.dkms_status,
        dict(seen.driver_files),
        {name: seen.of_module(name, "vermagic") for name in seen.driver_files},
        seen.host.exists(f"/lib/modules/{seen.target}/build"),
        driver_facts.library_version(seen.host),
        {name: version for name, version in versions.items() if version},
        seen.driver_modules,
        needs_dkms,
    )
    made = [proof(item.name, item.ok, item.cause or "", item.observed, item.expected) for item in found]
    return _without_consequences(seen, [_with_detail(seen, item) for item in made])


def _without_consequences(seen: Evidence, found: list[Proof]) -> list[Proof]:
    """Without headers there is no build, without a build no module: the first of them is the cause.

    The other way round where DKMS only has a note that a file is not what it built: which one, and what is wrong with
    it, is said by that module.
    """
    failed = {item.cause for item in found if not item.ok}
    of_modules = failed & set(OF_ONE_MODULE)
    drop: set[str | None] = set()
    if _only_a_note(seen) and of_modules:
        drop = {"dkms.not_built"}
    elif "dkms.not_built" in failed and not seen.driver_files:
        drop = of_modules | (failed & {"dkms.not_built"} if "dkms.headers_missing" in failed else set())
    return [item for item in found if item.ok or item.cause not in drop]


def _only_a_note(seen: Evidence) -> bool:
    """Whether DKMS has the driver installed for the target, but for a note about its files."""
    lines = [line for line in seen.dkms_status if line.kernel == seen.target and dkms.is_nvidia_driver(line.module)]
    return any(line.state == "installed" and not dkms.is_ready(line) for line in lines)


def _with_detail(seen: Evidence, item: Proof) -> Proof:
    """The package that brings the headers, whose headers they are, and the first error of a failed build."""
    if item.name == "headers":
        names = " or ".join(kernel.headers_package_names(seen.target))
        built_for = _headers_release(seen)
        ok = item.ok and built_for in ("", seen.target)
        observed = item.observed if ok or not item.ok else f"the headers there are those of {built_for}"
        step = f"Install {names} for exactly this release, then run the same command again."
        return proof(item.name, ok, "dkms.headers_missing", observed, f"{item.expected}, package {names}", step)
    if item.name == "dkms" and not item.ok:
        error = build_error(seen)
        step = "" if error else f"dkms autoinstall -k {seen.target}, then run the same command again."
        return proof(item.name, False, "dkms.not_built", f"{item.observed}{error}", item.expected, step)
    return item


def _headers_release(seen: Evidence) -> str:
    """The release that the headers are of; empty where they do not say (a fix-broken run may install others)."""
    text = seen.host.read(f"/lib/modules/{seen.target}/build/include/generated/utsrelease.h") or ""
    words = [line.split(None, 2)[2].strip('"') for line in text.splitlines() if line.startswith("#define UTS_RELEASE ")]
    return words[0] if words else ""


def build_error(seen: Evidence) -> str:
    """``; <make.log>: <first error>`` of a build for the target that failed; empty where there is none."""
    drivers = {(line.module, line.version) for line in seen.dkms_status if dkms.is_nvidia_driver(line.module)}
    for module, version in sorted(drivers):
        log = dkms_tree.failed_build(seen.host, module, version)
        error = dkms.first_error(log[1]) if log and seen.target in log[1] else None
        if log and error:
            return f"; {log[0]}: {error}"
    return ""


def _age_proof(seen: Evidence) -> Proof:
    """A build that went well proves more than any table."""
    built = any(
        line.kernel == seen.target and dkms.is_ready(line) and dkms.is_nvidia_driver(line.module)
        for line in seen.dkms_status
    )
    version = driver_facts.version_of(seen.dkms_status)
    license_text = driver_facts.loaded_license(seen.host)
    reason = driver_support.too_old(
        version, driver_support.flavour_of(license_text), seen.target, seen.source.package_version
    )
    bad = seen.source.needs_dkms and not built and reason is not None
    observed = f"{reason}{build_error(seen)}" if bad else f"driver {version or seen.of_module('nvidia', 'version')}"
    return proof("driver age", not bad, "driver.too_old", observed, f"a driver that builds for {seen.target}")


def _flavour_proof(seen: Evidence) -> Proof:
    text, version = seen.of_module("nvidia", "license"), seen.of_module("nvidia", "version")
    gpus = [gpu["device"] for gpu in driver_facts.read_gpus(seen.host)]
    reason = driver_support.flavour_problem(gpus, text, version)
    observed = reason or f"{driver_support.flavour_of(text) or 'unknown'} modules, {len(gpus)} GPUs"
    return proof(
        "driver flavour", reason is None, "driver.wrong_flavour", observed, "modules that drive the GPUs of this host"
    )


def _signature_proof(seen: Evidence) -> Proof:
    """Every module that was built here and that the host needs: NVIDIA's, and DKMS's for disks and network."""
    host = seen.host
    enforced = secure_boot.enforces(
        host.read_bytes(secure_boot.SECURE_BOOT),
        host.read_bytes(secure_boot.SETUP_MODE),
        host.read_line(secure_boot.LOCKDOWN),
        seen.command_line,
        host.read_line(secure_boot.SIG_ENFORCE),
        host.read_bytes(secure_boot.MOK_SB_STATE),
    )
    if not enforced:
        return proof("signatures", True, "driver.unsigned", "not enforced", "not enforced, or signed by a trusted key")
    wanted = {seen.driver_files[name] for name in seen.driver_modules if name in seen.driver_files}
    wanted |= set(seen.information) - set(seen.driver_files.values())
    signers = {posixpath.basename(path): seen.information.get(path, {}).get("signer", "") for path in sorted(wanted)}
    listed = host.run(["mokutil", "--list-enrolled"])
    names = secure_boot.parse_enrolled(listed.stdout if listed.rc == 0 else "")
    trusted = (*names, *secure_boot.parse_proc_keys(host.read("/proc/keys") or ""))
    problem = secure_boot.signer_problem(True, signers, trusted)
    if problem is None:
        return proof("signatures", True, "driver.unsigned", f"{len(signers)} modules signed by trusted keys", "signed")
    return proof("signatures", False, problem.code, problem.observed, problem.expected)


def _index_proof(seen: Evidence) -> Proof:
    """A file that is gone is said by the proof of that module."""
    absent = {name for name in seen.driver_modules if name not in seen.driver_files}
    problems = [
        text
        for text in target_modules.depmod_problems(seen.dep, seen.files)
        if not dkms.find_modules(_MODULE_PATH.findall(text), absent)
    ]
    observed = "; ".join(problems) or "every NVIDIA module is in modules.dep"
    return proof("module index", not problems, "boot.depmod_stale", observed, "modules.dep as the files are")


def _rivals_proof(seen: Evidence) -> Proof:
    present = {*seen.modules.index, *seen.modules.builtin}
    kept = [
        kept_away(name, seen.modprobe_files, seen.command_line, present=present, initramfs=False) for name in RIVALS
    ]
    loose = [item.reason for item in kept if not item.kept]
    observed = "; ".join(loose) or "; ".join(dict.fromkeys(item.reason for item in kept))
    return proof("nouveau and nova", not loose, "driver.nouveau_not_kept_away", observed, "kept away")


def _pending_proof(seen: Evidence) -> Proof:
    loaded = seen.host.read_line("/sys/module/nvidia/version")
    reason = apt_guard.reboot_pending_libraries(loaded, driver_facts.library_version(seen.host))
    observed = reason or f"module {loaded or 'not loaded'}"
    return warning("loaded driver", reason is None, "driver.reboot_pending", observed, "libraries of the loaded module")


def _others_proof(seen: Evidence) -> Proof:
    """Whether one of them keeps the host from booting is the boot proofs' matter."""
    vital = {target_modules.canonical(item.module) for item in seen.ground.modules if item.foreign}
    left = [
        name
        for name in dkms.others_not_built(seen.dkms_status, seen.running, seen.target)
        if not vital & dkms_tree.built_modules(seen.host, name, seen.running)
    ]
    observed = f"not built for {seen.target}: {', '.join(left)}" if left else "built, or none"
    return warning("other DKMS modules", not left, "dkms.other_not_built", observed, "as for the running kernel")
