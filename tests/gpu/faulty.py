"""Build faulty.c in front of a real library, so that a program that loads it meets a fault at once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_checks.cuda_api import loaded_path

SOURCE = Path(__file__).resolve().parent / "faulty.c"
NEEDS_COMPILER = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) for the faulty library")
FLAGS = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
MAPS = "import ctypes; ctypes.CDLL('libcuda.so.1'); print(open('/proc/self/maps').read())"


def real_libcuda():
    """The libcuda that programs get here, by its real path."""
    done = subprocess.run([sys.executable, "-c", MAPS], capture_output=True, text=True, check=True, timeout=60)
    return Path(loaded_path(done.stdout)).resolve()


def build_faulty(folder, real, name, *definitions):
    """The library ``name`` in ``folder``, with ``real`` behind it.

    A dependency is usually named without its folder, and would be found as the faulty library itself. An empty
    library that calls itself by the real one's path makes the linker write down that path.
    """
    empty, named, target = folder / "empty.c", folder / "named.so", folder / name
    empty.write_text("")
    subprocess.run(["cc", "-shared", f"-Wl,-soname,{real}", str(empty), "-o", str(named)], check=True)
    subprocess.run(
        ["cc", *FLAGS, *definitions, f'-DREAL="{real}"', str(SOURCE), "-Wl,--no-as-needed", str(named), "-ldl",
         f"-Wl,-soname,{name}", "-o", str(target)],
        check=True,
    )  # fmt: skip
    return target
