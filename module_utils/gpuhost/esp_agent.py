"""A program of its own: what lies on ESPs that nobody has mounted, and changes there.

``esp_access.py`` runs it in a mount namespace that ends with it. Nobody else ever sees its mounts, and nothing stays
mounted, also where it is killed. Standard library only; nothing of this package is imported.

It mounts like ``proxmox-boot-tool status``, writable, and for reading it then makes its own view read-only. A file
system can't be mounted read-only here and writable there: to a refresh that somebody starts in the same second mount(8)
would say "source write-protected, mounted read-only" (tried), and it could not write this ESP.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

ROOM = "/mnt"
"""Hidden under a tmpfs of the namespace, so that not even an empty folder is left anywhere."""
TEXTS = re.compile(r"loader/loader\.conf|loader/entries/[^/]+\.conf|grub/grub\.cfg|grub/grubenv", re.IGNORECASE)
HASHED = re.compile(r"(?:vmlinuz|initrd\.img)-.+")
TEMPORARY = ".gpuhost-new"

Mounted = Callable[[str, bool], AbstractContextManager[tuple[Path, bool]]]


class Unmountable(Exception):
    """The reason."""


def work(order: dict[str, list[list[str]]], mounted: Mounted, root: Path) -> dict[str, dict[str, Any]]:
    """UUID -> what was found, or, where there are changes for that ESP, what went wrong with them.

    order    UUID -> changes, each a list: ``copy`` a file of the host to a path, ``write`` a text to a path, ``remove``
             a file, ``remove_folder`` if it is empty; all paths are relative to the ESP
    mounted  gives for a UUID and "writable" the folder, and whether the file system can only be read
    root     the host's own tree
    """
    answers: dict[str, dict[str, Any]] = {}
    for uuid, changes in order.items():
        try:
            with mounted(uuid, bool(changes)) as (folder, read_only):
                if not changes:
                    answers[uuid] = {**read(folder), "read_only": read_only}
                    continue
                for what, *words in changes:
                    change(folder, root, what, words)
                answers[uuid] = {}
        except Unmountable as error:
            answers[uuid] = {"problem": str(error)}
        except OSError as error:
            answers[uuid] = {"problem": f"{error.filename or folder}: {error.strerror}", "errno": error.errno}
    return answers


def read(folder: Path) -> dict[str, Any]:
    """Names of all files, the loaders' own texts, the digests of kernels and initrds, the free bytes."""
    names, texts, digests = [], {}, {}
    for place, _, files in os.walk(folder):
        for file in files:
            path = Path(place, file)
            name = str(path.relative_to(folder))
            names.append(name)
            if TEXTS.fullmatch(name):
                # JSON carries any byte this way, and the other side gets the same ones back.
                texts[name] = path.read_bytes().decode("utf-8", "surrogateescape")
            elif HASHED.fullmatch(file):
                digests[name] = sha256(path)
    info = os.statvfs(folder)
    return {"names": sorted(names), "texts": texts, "digests": digests, "free_bytes": info.f_bavail * info.f_frsize}


def sha256(path: Path) -> str:
    """A file's digest."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def change(folder: Path, root: Path, what: str, words: list[str]) -> None:
    """One change of an order. What is right already is not written again."""
    if what == "copy":
        source, target = root / words[0].lstrip("/"), folder / words[1]
        if not (target.exists() and sha256(target) == sha256(source)):
            write(target, source.read_bytes())
    elif what == "write":
        target, data = folder / words[0], words[1].encode("utf-8", "surrogateescape")
        if not (target.exists() and target.read_bytes() == data):
            write(target, data)
    elif what == "remove":
        (folder / words[0]).unlink(missing_ok=True)
    elif what == "remove_folder":
        try:
            (folder / words[0]).rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise
    else:
        raise Unmountable(f"no such change: {what}")


def write(target: Path, data: bytes) -> None:
    """Old or new, never a part: a file beside it, fsync, rename, fsync of the folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(TEMPORARY)
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    handle = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def mounted_here(uuid: str, writable: bool) -> Iterator[tuple[Path, bool]]:
    """Mount an ESP in this namespace. It is unmounted before the end of the program: the kernel would do it later."""
    device = Path("/dev/disk/by-uuid", uuid)
    if not device.exists():
        raise Unmountable(f"{device} does not exist")
    folder = Path(ROOM, uuid)
    folder.mkdir(exist_ok=True)
    error = tool(["mount", "-t", "vfat", "-o", "umask=0077", str(device), str(folder)])
    if error:
        raise Unmountable(error)
    try:
        # So it is where somebody else has mounted it read-only, as the kernel does after an error in a vfat.
        read_only = bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
        if writable and read_only:
            raise Unmountable(f"{device} is mounted read-only")
        if not writable:
            tool(["mount", "-o", "remount,bind,ro", str(folder)])
        yield folder, read_only
    finally:
        tool(["umount", str(folder)])


def tool(argv: list[str]) -> str:
    """Run a program; what it says where it fails, else nothing."""
    result = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    said = (result.stderr or result.stdout).strip().splitlines()
    return "" if result.returncode == 0 else (said[0] if said else f"{argv[0]}: exit status {result.returncode}")


def main() -> None:
    """The order is the first argument, as JSON; so is the answer on stdout."""
    error = tool(["mount", "-t", "tmpfs", "-o", "mode=0700", "tmpfs", ROOM])
    if error:
        sys.exit(error)
    print(json.dumps(work(json.loads(sys.argv[1]), mounted_here, Path("/"))))


if __name__ == "__main__":
    main()
