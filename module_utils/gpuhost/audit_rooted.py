"""Names in a folder as a process sees it, through /proc/PID/root, without following any link of that tree.

A container's owner can put a link anywhere; through /proc/PID/root an absolute one would lead into the *host's* tree.
Each part of the path is opened by itself with O_NOFOLLOW, from the one before (openat(2)); only the kernel's own link
/proc/PID/root is followed, as it leads to the process's root and to no path. Reading it needs root.
"""

from __future__ import annotations

import os

from .host_io import Host


def names(host: Host, pid: int, folder: str) -> tuple[str, ...] | None:
    """Sorted names in a folder; None where it can't be read, is not there, or has a link in its path."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        handle = os.open(host.path(f"/proc/{pid}/root"), flags)
    except OSError:
        return None
    try:
        for part in folder.split("/"):
            if part == "..":
                return None
            if part in ("", "."):
                continue
            deeper = os.open(part, flags | os.O_NOFOLLOW, dir_fd=handle)
            os.close(handle)
            handle = deeper
        return tuple(sorted(os.listdir(handle)))
    except OSError:
        return None
    finally:
        os.close(handle)
