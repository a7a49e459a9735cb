"""A host for the whole command: the lab's stub libraries, a /dev, /proc and /sys of its own, and the real archive."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu_checks.build_zipapp import build

HERE = Path(__file__).resolve().parent
USERSPACE = HERE.parents[2] / "molecule/lab/stub/userspace"
VERSION = "580.95.05"
SYSTEM_PYTHON = "/usr/bin/python3"
FLAGS = ("-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
CANNOT = next(
    (
        f"{reason}"
        for missing, reason in (
            (os.geteuid() != 0, "mknod needs root"),
            (shutil.which("cc") is None, "no C compiler (cc) for the stub libraries"),
            (shutil.which("unshare") is None, "no unshare"),
        )
        if missing
    ),
    None,
)
needs_stage = pytest.mark.skipif(CANNOT is not None, reason=CANNOT or "")

# 1:3 is /dev/null: it opens everywhere; the preloaded stub driver answers for it.
NODES = {"nvidiactl": (1, 3, "666"), "nvidia0": (1, 3, "666"), "nvidia1": (1, 3, "666"), "nvidia-uvm": (1, 3, "666")}
DEVICES = ("1 nvidia", "1 nvidiactl", "1 nvidia-uvm")


def open_the_way(folder: Path) -> None:
    """Let another user reach a folder of pytest's, which makes its own for one user alone."""
    top = Path(tempfile.gettempdir())
    for each in (folder, *folder.parents):
        if each == top:
            return
        each.chmod(0o755)


def compile_library(output: Path, source: Path, name: str) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    command = ["cc", *FLAGS, f"-Wl,-soname,{name}", "-o", str(output), str(source)]
    subprocess.run(command, check=True, capture_output=True)


@dataclass
class Stage:
    """Compiled once; ``measure`` is one run of the archive with the changes that it names."""

    folder: Path
    archive: Path
    libraries: str = "lib"
    sysfs: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path, libcuda: Path = USERSPACE / "libcuda.c") -> Stage:
        for name in ("lib", "cuda/compat"):
            real = folder / name / f"libcuda.so.{VERSION}"
            compile_library(real, libcuda, "libcuda.so.1")
            (folder / name / "libcuda.so.1").symlink_to(real.name)
        compile_library(folder / "lib/libnvidia-ml.so.1", USERSPACE / "libnvidia-ml.c", "libnvidia-ml.so.1")
        compile_library(folder / "driver.so", HERE / "stub_driver.c", "driver.so")
        (folder / "none").mkdir()
        build(folder / "gpu_checks.pyz")
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
        return cls(folder, folder / "gpu_checks.pyz")

    def script(self, nodes: dict[str, tuple[int, int, str]], devices: tuple[str, ...], module: str) -> str:
        """Mounts that this process alone sees."""
        made = [f"mknod -m {mode} /dev/{name} c {major} {minor}" for name, (major, minor, mode) in nodes.items()]
        files = {"proc/driver/nvidia/version": module, **self.sysfs}
        return "; ".join(
            [
                "set -e", "mount -t tmpfs tmpfs /dev", "mknod -m 666 /dev/null c 1 3", *made,
                f"printf 'Character devices:\\n{''.join(row + chr(92) + 'n' for row in devices)}' >/dev/devices",
                "mount --bind /dev/devices /proc/devices",
                *(f"mount -t tmpfs tmpfs /{place}" for place in ("proc/driver", "sys/module", "sys/bus/pci")),
                "mkdir -p /sys/bus/pci/devices",
                *(f"mkdir -p /{path.rpartition('/')[0]}; printf '%s\\n' '{text}' >/{path}"
                  for path, text in files.items()),
            ]
        )  # fmt: skip

    def run(
        self,
        *arguments: str,
        nodes: dict[str, tuple[int, int, str]] | None = None,
        devices: tuple[str, ...] = DEVICES,
        module: str = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Release Build",
        user: int = 0,
        timeout: float = 20,
        **environment: str,
    ) -> dict[str, dict]:
        """Measurements by name."""
        become = f"setpriv --reuid {user} --regid {user} --clear-groups " if user else ""
        # An interpreter below somebody's home is not everybody's.
        python = SYSTEM_PYTHON if user else sys.executable
        start = f"exec {become}env LD_PRELOAD={self.folder}/driver.so {python} {self.archive}"
        whole = f"{self.script(NODES if nodes is None else nodes, devices, module)}; {start} {' '.join(arguments)}"
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", f"{whole} --json --timeout {timeout:g}"],
            capture_output=True, text=True, check=False, cwd="/", timeout=60,
            env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(self.folder / self.libraries), **environment},
        )  # fmt: skip
        if done.returncode and "unshare" in done.stderr:
            pytest.skip(f"no mounts of our own here: {done.stderr.strip()}")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return {each["name"]: each for each in json.loads(done.stdout)["measurements"]}
