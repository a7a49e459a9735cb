"""DKMS's status lines and the proof for the target kernel: cases dkms-01, dkms-02 and dkms-04."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhost.causes import CAUSES
from gpuhost.dkms import (
    NVIDIA_MODULES,
    DkmsLine,
    Proof,
    find_modules,
    first_error,
    is_nvidia_driver,
    is_ready,
    others_not_built,
    parse_status,
    prove,
)

CASE_DKMS_01 = (Path(__file__).parent.parent / "cases/dkms-01-status-line-zoo.in.txt").read_text()
ROWS = [line.split("\t") for line in CASE_DKMS_01.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(("raw", "reading"), [row for row in ROWS if not row[1].startswith("(")])
def test_case_dkms_01_lines(raw: str, reading: str) -> None:
    module, version, kernel, arch, state, flag = [field.strip() for field in reading.split("|")]
    (line,) = parse_status(raw)
    assert line == DkmsLine(
        module=module,
        version=version,
        kernel=None if kernel == "(none)" else kernel,
        arch=None if arch == "(none)" else arch,
        state=state,
        warning=None if flag == "-" else flag,
    )
    assert is_nvidia_driver(module)
    assert is_ready(line) == (state == "installed" and flag not in ("differs", "missing"))


@pytest.mark.parametrize(("raw", "reading"), [row for row in ROWS if row[1].startswith("(")])
def test_case_dkms_01_lines_to_ignore(raw: str, reading: str) -> None:
    drivers = [line for line in parse_status(raw) if is_nvidia_driver(line.module)]
    assert drivers == [], reading


def test_whole_output() -> None:
    text = "\n".join(row[0] for row in ROWS)
    assert len(parse_status(text)) == len(ROWS) - 2  # one file message, one "Error!" line
    assert parse_status("") == []


def test_unknown_note_is_not_ready() -> None:
    (line,) = parse_status("nvidia/590.48.01, 6.14.0-36-generic, x86_64: installed (Signature is not trusted)")
    assert line.warning == "(Signature is not trusted)"
    assert not is_ready(line)


@pytest.mark.parametrize("name", ["nvidia-tesla-470", "nvidia-legacy-390xx", "nvidia-srv", "nvidia-open", "nvidia"])
def test_driver_names(name: str) -> None:
    assert is_nvidia_driver(name)


@pytest.mark.parametrize("name", ["nvidia-fs", "nvidia-peermem", "nvidia-uvm", "gdrdrv", "xnvidia", "nvidia-current-x"])
def test_other_names(name: str) -> None:
    assert not is_nvidia_driver(name)


def test_find_modules_in_any_compression_and_spelling() -> None:
    base = "/lib/modules/6.12.117+deb12-amd64"
    paths = [
        f"{base}/kernel/drivers/char/nvidia.ko",
        f"{base}/updates/dkms/nvidia.ko.xz",
        f"{base}/updates/dkms/nvidia_uvm.ko.zst",
        f"{base}/updates/dkms/nvidia-current-modeset.ko",
        f"{base}/updates/dkms/nvidia-drm.ko.gz",
        f"{base}/updates/dkms/nvidia-drm.ko.sig",
        f"{base}/kernel/drivers/i2c/i2c-nvidia-gpu.ko.xz",
        f"{base}/updates/dkms/nvidia-fs.ko",
        f"{base}/modules.dep",
    ]
    assert find_modules(paths, NVIDIA_MODULES) == {
        "nvidia": f"{base}/updates/dkms/nvidia.ko.xz",
        "nvidia-modeset": f"{base}/updates/dkms/nvidia-current-modeset.ko",
        "nvidia-uvm": f"{base}/updates/dkms/nvidia_uvm.ko.zst",
        "nvidia-drm": f"{base}/updates/dkms/nvidia-drm.ko.gz",
    }
    assert find_modules(["updates/dkms/nvidia-current-open.ko", "updates/dkms/nvidia-current-open-uvm.ko"], ["nvidia"])
    assert find_modules(paths, ["nvidia_uvm"]) == {"nvidia_uvm": f"{base}/updates/dkms/nvidia_uvm.ko.zst"}
    assert find_modules([], NVIDIA_MODULES) == {}


TARGET = "6.14.8-2-bpo12-pve"
OLD = "6.8.12-4-pve"
VERSION = "580.95.05"


def evidence(**changes: Any) -> list[Proof]:
    """Everything right for the target, except for what a test changes."""
    fields: dict[str, Any] = {
        "target": TARGET,
        "status": parse_status(
            f"nvidia/{VERSION}, {OLD}, x86_64: installed\nnvidia/{VERSION}, {TARGET}, x86_64: installed\n"
        ),
        "module_files": {name: f"/lib/modules/{TARGET}/updates/dkms/{name}.ko" for name in NVIDIA_MODULES},
        "vermagic": dict.fromkeys(NVIDIA_MODULES, f"{TARGET} SMP preempt mod_unload modversions "),
        "build_dir_exists": True,
        "user_space_version": VERSION,
        "module_versions": dict.fromkeys(NVIDIA_MODULES, VERSION),
    }
    return prove(**(fields | changes))


def failed(proofs: list[Proof]) -> list[tuple[str, str | None]]:
    assert all(proof.cause is None for proof in proofs if proof.ok)
    assert {proof.cause for proof in proofs if not proof.ok} <= set(CAUSES)
    return [(proof.name, proof.cause) for proof in proofs if not proof.ok]


def test_all_proven() -> None:
    proofs = evidence()
    assert failed(proofs) == []
    assert [proof.name for proof in proofs][:5] == [
        "headers",
        "dkms",
        "module nvidia",
        "vermagic nvidia",
        "version nvidia",
    ]
    assert len(proofs) == 2 + 3 * len(NVIDIA_MODULES) + 1


def test_case_dkms_02_headers_missing_and_apt_content() -> None:
    """The incident: the line for the running kernel and "added" for the target prove nothing."""
    status = parse_status(f"nvidia/{VERSION}, {OLD}, x86_64: installed\nnvidia/{VERSION}: added\n")
    proofs = evidence(status=status, module_files={}, vermagic={}, module_versions={}, build_dir_exists=False)
    assert failed(proofs)[:2] == [("headers", "dkms.headers_missing"), ("dkms", "dkms.not_built")]
    assert [name for name, cause in failed(proofs) if cause == "dkms.module_missing"] == [
        f"module {name}" for name in NVIDIA_MODULES
    ]
    dkms = proofs[1]
    assert dkms.observed == f"nvidia/{VERSION} installed for {OLD}; nvidia/{VERSION} added"
    assert dkms.expected == f"an NVIDIA driver installed for {TARGET}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"nvidia/{VERSION}: added",
        f"nvidia/{VERSION}, {TARGET}, x86_64: built",
        f"nvidia/{VERSION}, {TARGET}, x86_64: installed (WARNING! Diff between built and installed module!)",
        f"nvidia/{VERSION}, {TARGET}, x86_64: built (Built modules are missing in the kernel modules folder)",
        f"nvidia/{VERSION}, {TARGET}-other, x86_64: installed",
        f"nvidia-fs/2.24.3, {TARGET}, x86_64: installed",
    ],
)
def test_not_built(text: str) -> None:
    assert failed(evidence(status=parse_status(text))) == [("dkms", "dkms.not_built")]


def test_case_dkms_04_unrelated_module_is_no_failure_of_ours() -> None:
    status = parse_status(
        f"nvidia/{VERSION}, {TARGET}, x86_64: installed\nblksnap/6.0.3.1221, {TARGET}, x86_64: built\n"
    )
    assert failed(evidence(status=status)) == []


def test_case_dkms_04_build_failed() -> None:
    target, version = "6.17.13-2-pve", "550.163.01"
    status = parse_status(
        f"nvidia-current-open/{version}, 6.14.11-5-pve, x86_64: installed\nnvidia-current-open/{version}: added\n"
    )
    proofs = evidence(target=target, status=status, module_files={}, vermagic={}, module_versions={})
    causes = {cause for _, cause in failed(proofs)}
    assert causes == {"dkms.not_built", "dkms.module_missing", "dkms.version_mismatch"}


def test_case_dkms_04_the_other_modules_failure_is_told_apart() -> None:
    running, target = "6.14.11-5-pve", "6.17.13-2-pve"
    status = parse_status(
        f"blksnap/6.0.3.1221, {running}, x86_64: installed\n"
        f"nvidia-current-open/550.163.01, {running}, x86_64: installed\n"
        "nvidia-current-open/550.163.01: added\n"
        f"zfs/2.3.4, {running}, x86_64: installed\n"
        f"zfs/2.3.5, {target}, x86_64: installed\n"
        f"nvidia-fs/2.24.3, {running}, x86_64: installed\n"
        f"nvidia-fs/2.24.3, {target}, x86_64: built\n"
        "gdrdrv/2.5, 6.8.12-9-pve, x86_64: installed\n"
    )
    assert others_not_built(status, running, target) == ("blksnap/6.0.3.1221", "nvidia-fs/2.24.3")
    assert others_not_built(status, target, running) == ()
    assert others_not_built([], running, target) == ()


def test_only_the_modules_that_the_host_needs() -> None:
    """A driver that never built nvidia-peermem must not block."""
    needed = ("nvidia", "nvidia-uvm")
    files = {name: f"/lib/modules/{TARGET}/updates/dkms/{name}.ko" for name in needed}
    proofs = evidence(module_files=files, modules=needed)
    assert failed(proofs) == []
    assert [proof.name for proof in proofs if proof.name.startswith("module ")] == [
        "module nvidia",
        "module nvidia-uvm",
    ]
    del files["nvidia-uvm"]
    assert failed(evidence(module_files=files, modules=needed)) == [("module nvidia-uvm", "dkms.module_missing")]


def test_precompiled_driver_needs_no_dkms() -> None:
    proofs = evidence(status=[], build_dir_exists=False, needs_dkms=False)
    assert failed(proofs) == []
    assert proofs[0].name == "module nvidia"
    missing = evidence(status=[], build_dir_exists=False, needs_dkms=False, module_files={})
    assert {cause for _, cause in failed(missing)} == {"dkms.module_missing"}
    versions = dict.fromkeys(NVIDIA_MODULES, VERSION) | {"nvidia-uvm": "570.86.16"}
    assert failed(evidence(status=[], needs_dkms=False, module_versions=versions)) == [
        ("version nvidia-uvm", "dkms.version_mismatch")
    ]


def test_one_module_missing() -> None:
    files = {name: f"/lib/modules/{TARGET}/updates/dkms/{name}.ko" for name in NVIDIA_MODULES}
    files["nvidia-peermem"] = None  # type: ignore[assignment]
    assert failed(evidence(module_files=files)) == [("module nvidia-peermem", "dkms.module_missing")]
    files["nvidia-peermem"] = f"/lib/modules/{OLD}/updates/dkms/nvidia-peermem.ko"
    assert failed(evidence(module_files=files)) == [("module nvidia-peermem", "dkms.module_missing")]


def test_vermagic_of_another_kernel_or_unread() -> None:
    vermagic = dict.fromkeys(NVIDIA_MODULES, f"{TARGET} SMP preempt mod_unload modversions")
    vermagic["nvidia-uvm"] = f"{OLD} SMP preempt mod_unload modversions"
    del vermagic["nvidia-drm"]
    proofs = evidence(vermagic=vermagic)
    assert failed(proofs) == [("vermagic nvidia-uvm", "dkms.vermagic"), ("vermagic nvidia-drm", "dkms.vermagic")]
    assert [proof.observed for proof in proofs if not proof.ok] == [OLD, "not read"]


def test_versions_differ() -> None:
    versions = dict.fromkeys(NVIDIA_MODULES, VERSION) | {"nvidia-uvm": "580.82.07"}
    assert failed(evidence(module_versions=versions)) == [("version nvidia-uvm", "dkms.version_mismatch")]
    assert failed(evidence(user_space_version="590.48.01")) == [("user space", "dkms.version_mismatch")]
    assert failed(evidence(user_space_version=None)) == []


def test_underscores_are_the_same_module() -> None:
    files = {name.replace("-", "_"): f"/lib/modules/{TARGET}/x/{name}.ko" for name in NVIDIA_MODULES}
    assert failed(evidence(module_files=files)) == []


LOG_GENDWARFKSYMS = """\
DKMS make.log for nvidia-current-open-550.163.01 for kernel 6.17.13-2-pve (x86_64)
  CC [M]  nvidia/nv.o
warning: something harmless
error: gendwarfksyms: process_type: unexpected type
make[3]: *** [scripts/Makefile.build:287: nvidia/nv.o] Error 2
make[2]: *** [Makefile:1994: .] Error 2
"""


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (LOG_GENDWARFKSYMS, "error: gendwarfksyms: process_type: unexpected type"),
        (
            "make[3]: *** [x] Error 1\nnv-mmap.c:1:2: error: implicit declaration of function 'vm_flags_set'\n",
            "nv-mmap.c:1:2: error: implicit declaration of function 'vm_flags_set'",
        ),
        (
            "  CC x.o\n/bin/sh: 1: gendwarfksyms: not found\nmake: *** [x] Error 127\n",
            "/bin/sh: 1: gendwarfksyms: not found",
        ),
        ('ERROR: modpost: "x" [nvidia.ko] undefined!\n', 'ERROR: modpost: "x" [nvidia.ko] undefined!'),
        (
            "make -j2 modules\nmake[1]: *** [Makefile:243: __sub-make] Error 2\n",
            "make[1]: *** [Makefile:243: __sub-make] Error 2",
        ),
        ("cc1: some warnings being treated as errors\n", None),
        ("DKMS make.log for x\nCleaning build area... done.\n", None),
        ("", None),
    ],
)
def test_first_error(log: str, line: str | None) -> None:
    assert first_error(log) == line


@given(st.text(max_size=200))
def test_no_text_breaks_a_parser(text: str) -> None:
    parse_status(text)
    first_error(text)
    find_modules(text.splitlines(), NVIDIA_MODULES)
