"""DKMS: what its state means, and the proof that the NVIDIA driver is there for the kernel to boot next.

Exit statuses prove nothing here: dkms 3.0.10 returns 0 for ``added``, for an unknown module and for a skipped build
(cases dkms-01 and dkms-02), and apt returns 0 with it. What proves is the line ``<target>, <arch>: installed``, the
module files under ``/lib/modules/<target>``, and the versions and vermagic that modinfo reads from those files.

A roll has the state from DKMS's own tree (dkms_tree.py). ``parse_status`` reads what the program prints, in all its
wordings (case dkms-01), into the same lines.

Pure: text and dicts in, frozen dataclasses out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

#: The five modules of one driver. nvidia-peermem is built by every driver since R470 and needed for GPUDirect RDMA.
NVIDIA_MODULES = ("nvidia", "nvidia-modeset", "nvidia-uvm", "nvidia-drm", "nvidia-peermem")

#: DKMS names of the driver itself: NVIDIA's installer, Ubuntu (nvidia, nvidia-srv), Debian (nvidia-current[-open],
#: nvidia-tesla-470, nvidia-legacy-390xx). nvidia-fs, nvidia-peer-memory and the like are other modules.
_DRIVER = re.compile(r"nvidia(?:-open|-srv|-(?:current|tesla(?:-\d+)?|legacy-\d+xx)(?:-open)?|-\d+(?:-open|-srv)?)?")

#: ``module/version`` since dkms 2.8.7, ``module, version`` before.
_STATUS = re.compile(
    r"^(?P<module>[^\s,/:]+)(?:/|, )(?P<version>[^\s,:]+)"
    r"(?:, (?P<kernel>[^\s,]+), (?P<arch>[^\s,:]+))?"
    r": (?P<state>installed-weak from \S+|installed|built|added|broken)(?P<tail>.*)$"
)
#: Wordings of dkms 2.8 to 3.4; the first that fits decides. An error about another module may be glued to a good line.
_NOTES = (
    ("other-module-error", re.compile(r"^\s*Error!")),
    ("missing", re.compile(r"missing", re.IGNORECASE)),
    ("differs", re.compile(r"Diff between|Differences between", re.IGNORECASE)),
    ("original", re.compile(r"original[_ ]modules? exists?", re.IGNORECASE)),
)
#: Notes that leave a module usable: a distribution's own module beside ours, and an error about another module.
_HARMLESS = (None, "original", "other-module-error")


@dataclass(frozen=True)
class DkmsLine:
    """One module of DKMS for one kernel, or one that was built for none: a line of ``dkms status``.

    state    added, built, installed, weak (EL's weak-modules) or broken
    warning  None, ``missing``, ``differs``, ``original``, ``other-module-error``, or the note itself where unknown
    """

    module: str
    version: str
    kernel: str | None
    arch: str | None
    state: str
    warning: str | None = None


@dataclass(frozen=True)
class Proof:
    """One statement about the target kernel. ``cause`` is a code of the registry where ``ok`` is false, else None."""

    name: str
    ok: bool
    cause: str | None
    observed: str
    expected: str


def _warning(tail: str) -> str | None:
    if not tail.strip():
        return None
    return next((name for name, pattern in _NOTES if pattern.search(tail)), tail.strip())


def parse_status(text: str) -> list[DkmsLine]:
    """The lines of ``dkms status`` that describe a module; error and file messages in between are skipped."""
    lines = []
    for raw in text.splitlines():
        found = _STATUS.match(raw.strip())
        if found:
            state = "weak" if found["state"].startswith("installed-weak") else found["state"]
            lines.append(
                DkmsLine(
                    found["module"], found["version"], found["kernel"], found["arch"], state, _warning(found["tail"])
                )
            )
    return lines


def is_ready(line: DkmsLine) -> bool:
    """Whether DKMS claims that this module can be loaded: ``installed``, and no note that says otherwise."""
    return line.state == "installed" and line.warning in _HARMLESS


def is_nvidia_driver(name: str) -> bool:
    """Whether a DKMS module name is the NVIDIA driver, rather than one of its companions."""
    return _DRIVER.fullmatch(name) is not None


_MODULE_FILE = re.compile(r"(?P<stem>[^/]+)\.ko(?:\.(?:gz|xz|zst|lz4|bz2|lzma))?$")
#: Debian installs nvidia-current-uvm.ko and lets modprobe map the name.
_FLAVOURED = re.compile(r"^nvidia-(?:current|tesla(?:-\d+)?|legacy-\d+xx)(?:-open)?(?=-|$)")


def _canonical(name: str) -> str:
    """One spelling per module: the kernel takes ``-`` and ``_`` as equal."""
    return name.replace("_", "-")


def _rank(path: str, exact: bool) -> tuple[bool, bool]:
    """Sort key, best first: depmod's search order (depmod.d(5): updates before the rest), then the plain name."""
    return ("/updates/" not in f"/{path}", not exact)


def find_modules(paths: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """name -> path of its module file, for those ``names`` that have one.

    paths  files of one kernel's module tree, absolute or relative; any compression
    Of several files for one name the one that modprobe would take is returned: ``updates/`` before ``kernel/``.
    """
    found: dict[str, list[tuple[tuple[bool, bool], str]]] = {}
    for path in paths:
        match = _MODULE_FILE.search(path)
        if match is None:
            continue
        stem = _canonical(match["stem"])
        plain = _FLAVOURED.sub("nvidia", stem)
        found.setdefault(plain, []).append((_rank(path, exact=plain == stem), path))
    return {name: min(found[_canonical(name)])[1] for name in names if _canonical(name) in found}


def _lookup(table: Mapping[str, str | None], name: str) -> str | None:
    """Value under ``name`` in either spelling."""
    return next((value for key, value in table.items() if _canonical(key) == _canonical(name)), None)


def _proof(name: str, ok: bool, cause: str, observed: str, expected: str) -> Proof:
    return Proof(name, ok, None if ok else cause, observed, expected)


def _describe(line: DkmsLine) -> str:
    where = f" for {line.kernel}" if line.kernel else ""
    note = f" ({line.warning})" if line.warning else ""
    return f"{line.module}/{line.version} {line.state}{where}{note}"


def _dkms_proof(target: str, status: Sequence[DkmsLine]) -> tuple[Proof, str | None]:
    """The proof that DKMS built for exactly the target, and the driver version that it built."""
    drivers = [line for line in status if is_nvidia_driver(line.module)]
    here = [line for line in drivers if line.kernel == target]
    ready = [line for line in here if is_ready(line)]
    observed = "; ".join(map(_describe, ready or here or drivers)) or "dkms knows no NVIDIA driver"
    version = ready[0].version if ready else None
    return _proof("dkms", bool(ready), "dkms.not_built", observed, f"an NVIDIA driver installed for {target}"), version


def _of_other_kernel(path: str, target: str) -> bool:
    found = re.search(r"lib/modules/([^/]+)/", path)
    return found is not None and found[1] != target


def _module_proofs(
    target: str, name: str, *, path: str | None, vermagic: str | None, version: str | None, wanted: str | None
) -> list[Proof]:
    """File, vermagic and version of one module; a missing file is said once and not three times."""
    there = path is not None and not _of_other_kernel(path, target)
    expected = f"{name}.ko under /lib/modules/{target}"
    proofs = [_proof(f"module {name}", there, "dkms.module_missing", path or "no such file", expected)]
    if not there:
        return proofs
    built_for = vermagic.split()[0] if vermagic and vermagic.split() else "not read"
    proofs.append(_proof(f"vermagic {name}", built_for == target, "dkms.vermagic", built_for, target))
    if wanted is not None:
        observed = version or "not read"
        proofs.append(_proof(f"version {name}", observed == wanted, "dkms.version_mismatch", observed, wanted))
    return proofs


def prove(
    target: str,
    status: Sequence[DkmsLine],
    module_files: Mapping[str, str | None],
    vermagic: Mapping[str, str],
    build_dir_exists: bool,
    user_space_version: str | None,
    module_versions: Mapping[str, str],
    modules: Sequence[str] = NVIDIA_MODULES,
    needs_dkms: bool = True,
) -> list[Proof]:
    """Everything that must hold before the target kernel may be booted (cases dkms-02 and dkms-04), in reading order.

    target              the release to boot, not the running one
    status              all that DKMS has (``dkms_tree.read_status``); other modules and other kernels do no harm
    module_files        module name -> path under /lib/modules/<target>; absent or None: no such file
    vermagic            module name -> ``modinfo -k <target> -F vermagic``
    build_dir_exists    whether /lib/modules/<target>/build leads to a directory
    user_space_version  version of libcuda / libnvidia-ml on the host; None where the host has none
    module_versions     module name -> ``modinfo -k <target> -F version``
    modules             the modules that this host needs (``driver_source.needed_modules``)
    needs_dkms          False for a precompiled driver: neither headers nor DKMS are needed, only the modules themselves

    Versions are compared with what DKMS built for the target or, where it built nothing, with the nvidia module.
    """
    headers = "there" if build_dir_exists else "absent"
    expected = f"/lib/modules/{target}/build"
    proofs: list[Proof] = []
    version = None
    if needs_dkms:
        proofs.append(_proof("headers", build_dir_exists, "dkms.headers_missing", f"{expected} {headers}", expected))
        built, version = _dkms_proof(target, status)
        proofs.append(built)
    wanted = version or _lookup(module_versions, "nvidia")
    for name in modules:
        path, magic, own = (_lookup(table, name) for table in (module_files, vermagic, module_versions))
        proofs.extend(_module_proofs(target, name, path=path, vermagic=magic, version=own, wanted=wanted))
    if user_space_version is not None:
        same, expected = user_space_version == wanted, wanted or "the module's version"
        proofs.append(_proof("user space", same, "dkms.version_mismatch", user_space_version, expected))
    return proofs


def others_not_built(status: Sequence[DkmsLine], running: str, target: str) -> tuple[str, ...]:
    """``module/version`` of the DKMS modules, NVIDIA's driver apart, that the running kernel has and the target lacks.

    status  all that DKMS has, not only for one kernel

    To be reported beside the driver's proof, never as its failure (case dkms-04: blksnap). Whether one of them keeps
    the host from booting (ZFS, a network driver) is the boot proofs' matter. A module counts as built whatever its
    version: DKMS may have built a newer one for the target.
    """
    others = [line for line in status if not is_nvidia_driver(line.module)]
    built = {line.module for line in others if line.kernel == target and is_ready(line)}
    had = [line for line in others if line.kernel == running and line.state in ("installed", "weak")]
    return tuple(dict.fromkeys(f"{line.module}/{line.version}" for line in had if line.module not in built))


#: The first of these is the real error; what follows in a make.log are its consequences.
_REAL_ERROR = re.compile(
    r"\berror:|undefined reference to|No rule to make target|command not found|: not found$|No space left on device"
    r"|Cannot allocate memory|Segmentation fault|^Killed\b|^Error! ",
    re.IGNORECASE,
)
_CONSEQUENCE = re.compile(r"\*\*\*|\bError \d+\b")


def first_error(make_log: str) -> str | None:
    """The first real error line of DKMS's make.log, else the first ``make: *** ... Error 2``, else None."""
    lines = [line.strip() for line in make_log.splitlines()]
    for pattern in (_REAL_ERROR, _CONSEQUENCE):
        found = next((line for line in lines if pattern.search(line)), None)
        if found is not None:
            return found
    return None
