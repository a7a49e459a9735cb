"""Replace a file so that neither a kill nor a full disk leaves half of it, or anything beside it. Input and output.

Linux has no call that replaces a file by an unnamed one (linkat refuses a name that exists), so between the creation of
the new file and its rename there is a second name in the folder, and a process that is killed there can't remove it. So
a child of its own session writes: one that dies is cleaned up after by its parent, and one whose parent dies finishes
by itself. Only when both die at once, as with the machine, is the second name left; it is always the same one, which
nobody else reads, and the next rewrite removes it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

SUFFIX = ".tmp.gpuhost"
"""Proxmox's own temporary names are N.conf.tmp.PID; neither it nor liblxc reads anything of that kind."""
WRITTEN, CHANGED, FAILED = 0, 3, 4
# pmxcfs is a FUSE file system without fsync: kernels have answered that in several ways.
_NO_FSYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def temporary_of(target: Path) -> Path:
    """The second name of a file, in its own folder."""
    return target.with_name(target.name + SUFFIX)


def rewrite(target: Path, before: bytes, after: bytes, keep_owner: bool) -> bool:
    """Replace ``before`` by ``after``; False where the file holds something else. Raises OSError, the old file kept.

    ``keep_owner`` false: nothing is done about mode and owner, because the file system decides them (pmxcfs).
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _in_child(writer, target, before, after, keep_owner)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        said = stream.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) in (WRITTEN, CHANGED):
        return os.WEXITSTATUS(status) == WRITTEN
    temporary_of(target).unlink(missing_ok=True)
    if target.read_bytes() == after:
        return True  # what went wrong came after the rename
    if os.WIFSIGNALED(status):
        raise InterruptedError(errno.EINTR, f"the writer was killed by signal {os.WTERMSIG(status)}")
    raise OSError(int(said or errno.EIO), os.strerror(int(said or errno.EIO)))


def _in_child(writer: int, target: Path, before: bytes, after: bytes, keep_owner: bool) -> None:
    """Write, say the errno of what failed, and end: nothing of the parent's own code may run here a second time."""
    status = FAILED
    try:
        os.setsid()  # a signal to the parent's group is none for its writer
        status = WRITTEN if _write(target, before, after, keep_owner) else CHANGED
    except OSError as error:
        temporary_of(target).unlink(missing_ok=True)
        os.write(writer, str(error.errno or errno.EIO).encode())
    finally:
        os._exit(status)


def _write(target: Path, before: bytes, after: bytes, keep_owner: bool) -> bool:
    temporary = temporary_of(target)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600 if keep_owner else 0o640)
    try:
        if keep_owner:
            info = target.stat()
            os.fchown(handle, info.st_uid, info.st_gid)
            os.fchmod(handle, stat.S_IMODE(info.st_mode))
        view = memoryview(after)
        while view:
            view = view[os.write(handle, view) :]
        _sync(handle)
    finally:
        os.close(handle)
    if target.read_bytes() != before:
        temporary.unlink()
        return False
    os.rename(temporary, target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync(folder)
    finally:
        os.close(folder)
    return True


def _sync(handle: int) -> None:
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise
