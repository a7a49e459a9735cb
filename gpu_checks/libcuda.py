"""Find libcuda.so.1 without loading it: where it is, and which driver it belongs to by its file name."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass

LIBRARY = "libcuda.so.1"

STANDARD_FOLDERS = (
    "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
    "/lib64", "/usr/lib64", "/lib", "/usr/lib",
    "/usr/local/nvidia/lib64", "/run/opengl-driver/lib", "/usr/lib/wsl/lib",
)  # fmt: skip
"""The loader's own folders, then those that container runtimes and distributions without ld.so.conf use."""

INCLUDE_DEPTH = 4
"""How deep ld.so.conf may include; real ones have one level, the limit stops a file that includes itself."""


@dataclass(frozen=True)
class Library:
    """A libcuda.so.1 that was found. ``version`` is the driver's, as the real file's name says, where it does."""

    path: str
    file: str
    version: str | None


def version_of(file_name: str) -> str | None:
    """The driver version in a file name: ``libcuda.so.580.159.04`` gives ``580.159.04``, ``libcuda.so.1`` nothing."""
    match = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)*)$", file_name)
    return match.group(1) if match else None


def configured_folders(path: str, depth: int = INCLUDE_DEPTH) -> list[str]:
    """The folders that ld.so.conf names, includes followed, in their order. A file that can't be read names none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except OSError:
        return []
    folders: list[str] = []
    for line in lines:
        if line.startswith("include") and line[7:8].isspace():
            if depth > 0:
                pattern = os.path.join(os.path.dirname(path), line[7:].strip())
                for included in sorted(glob.glob(pattern)):
                    folders += configured_folders(included, depth - 1)
        elif line.startswith("/"):
            folders.append(line)
    return folders


def search_folders(loader_path: str, configuration: str = "/etc/ld.so.conf") -> list[str]:
    """Where the loader would look, in its order, each folder once: LD_LIBRARY_PATH, ld.so.conf, the standard ones."""
    named = [folder for folder in re.split("[:;]", loader_path) if folder.startswith("/")]
    every = [*named, *configured_folders(configuration), *STANDARD_FOLDERS]
    # A 64-bit process does not take the 32-bit twin, and we are no 32-bit process where a GPU works.
    return list(dict.fromkeys(folder for folder in every if "i386" not in folder and "lib32" not in folder))


def find(folders: list[str]) -> list[Library]:
    """Every different libcuda.so.1 in these folders; the first is the one the loader takes."""
    found: dict[str, Library] = {}
    for folder in folders:
        path = os.path.join(folder, LIBRARY)
        if os.path.exists(path):
            real = os.path.realpath(path)
            found.setdefault(real, Library(path, os.path.basename(real), version_of(os.path.basename(real))))
    return list(found.values())
