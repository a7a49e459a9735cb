"""The only file with input and output on a host: files, commands, clocks, signals.

Everything else takes a ``Host`` and stays testable on a folder that looks like one (``Host(root=...)``).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from . import rewrite_io
from .apt_guard import needrestart_environment
from .errors import stop

ENVIRONMENT = {
    "LC_ALL": "C",
    "LANG": "C",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    **needrestart_environment(),
}

# linux/fs.h, for efivarfs: _IOR('f', 1, long), _IOW('f', 2, long), and the flag.
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IMMUTABLE_FL = 0x80086601, 0x40086602, 0x10


@dataclass(frozen=True)
class Result:
    """What a command gave. Text is UTF-8 with replacement: a driver's log may hold anything."""

    argv: tuple[str, ...]
    rc: int
    stdout: str
    stderr: str

    @property
    def last_line(self) -> str:
        """The last line that says something, for messages."""
        for text in (self.stderr, self.stdout):
            lines = [line for line in text.splitlines() if line.strip()]
            if lines:
                return lines[-1].strip()
        return f"exit status {self.rc}"


class Host:
    """One machine, seen through its file system and its programs."""

    def __init__(self, root: str = "/") -> None:
        self.root = Path(root)
        self._digests: dict[str, str | None] | None = None

    def path(self, path: str) -> Path:
        """Where the host's ``path`` really lies."""
        return self.root / path.lstrip("/")

    # --- reading

    def read_bytes(self, path: str) -> bytes | None:
        """A file's bytes; None where there is no such file, or where the kernel does not answer for it."""
        try:
            return self.path(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            # sysfs answers ENODEV, EINVAL or EIO for attributes that this device does not have.
            if path.startswith(("/sys/", "/proc/")):
                return None
            raise stop("host.module_failed", path, error.strerror or str(error)) from error

    def read(self, path: str) -> str | None:
        """A file's text; None where there is none."""
        data = self.read_bytes(path)
        return None if data is None else data.decode("utf-8", "replace")

    def read_line(self, path: str) -> str:
        """A one-line file without its newline; empty where there is none."""
        return (self.read(path) or "").strip()

    def exists(self, path: str) -> bool:
        """Whether there is anything at the path (a dangling link counts as nothing)."""
        return self.path(path).exists()

    def is_folder(self, path: str) -> bool:
        """Whether the path is a folder."""
        return self.path(path).is_dir()

    def names(self, path: str) -> list[str]:
        """Sorted names in a folder; empty where there is none."""
        try:
            return sorted(os.listdir(self.path(path)))
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError, PermissionError):
            return []

    def files_below(self, path: str) -> list[str]:
        """Every file below a folder, as the host's own absolute paths, sorted."""
        base = self.path(path)
        found = [
            os.path.join(folder, name)
            for folder, _, names in os.walk(base)
            for name in names
        ]  # fmt: skip
        return sorted("/" + os.path.relpath(item, self.root) for item in found)

    def resolved(self, path: str) -> str | None:
        """Where a link leads; None where it leads nowhere."""
        target = self.path(path)
        return str(target.resolve()) if target.exists() else None

    @contextmanager
    def hashing_once(self) -> Iterator[None]:
        """Each file that is hashed in here is read once: for a step that changes nothing itself."""
        self._digests = {}
        try:
            yield
        finally:
            self._digests = None

    def sha256(self, path: str) -> str | None:
        """A file's SHA-256 in hex; None where there is none."""
        if self._digests is not None and path in self._digests:
            return self._digests[path]
        digest = hashlib.sha256()
        try:
            with self.path(path).open("rb") as stream:
                while chunk := stream.read(1 << 20):
                    digest.update(chunk)
        except FileNotFoundError:
            return self._remembered(path, None)
        return self._remembered(path, digest.hexdigest())

    def read_and_hash(self, path: str) -> bytes | None:
        """A file's bytes, which count as hashed too (``hashing_once``); None where there is none."""
        data = self.read_bytes(path)
        self._remembered(path, None if data is None else hashlib.sha256(data).hexdigest())
        return data

    def _remembered(self, path: str, digest: str | None) -> str | None:
        if self._digests is not None:
            self._digests[path] = digest
        return digest

    def size_bytes(self, path: str) -> int:
        """A file's size; 0 where there is none."""
        try:
            return self.path(path).stat().st_size
        except FileNotFoundError:
            return 0

    def free_bytes(self, path: str) -> int | None:
        """Room for root on the file system of a path; None where the path does not exist."""
        try:
            info = os.statvfs(self.path(path))
        except FileNotFoundError:
            return None
        return info.f_bavail * info.f_frsize

    def age_s(self, path: str) -> float | None:
        """Seconds since a file was last written; None where there is none."""
        try:
            return time.time() - self.path(path).stat().st_mtime
        except FileNotFoundError:
            return None

    def inode(self, path: str) -> int | None:
        """A file's inode number; None where there is none."""
        try:
            return self.path(path).stat().st_ino
        except FileNotFoundError:
            return None

    def mode(self, path: str) -> int | None:
        """A file's permission bits; None where there is none."""
        try:
            return stat.S_IMODE(self.path(path).stat().st_mode)
        except FileNotFoundError:
            return None

    def owner(self, path: str) -> tuple[int, int] | None:
        """(uid, gid) of a file; None where there is none."""
        try:
            info = self.path(path).stat()
        except FileNotFoundError:
            return None
        return info.st_uid, info.st_gid

    def device_numbers(self, path: str) -> tuple[int, int] | None:
        """(major, minor) of a character device node; None where there is none of that kind."""
        try:
            info = self.path(path).stat()
        except FileNotFoundError:
            return None
        if not stat.S_ISCHR(info.st_mode):
            return None
        return os.major(info.st_rdev), os.minor(info.st_rdev)

    def holds_open(self, pid: int, prefix: str) -> bool:
        """Whether a process has a file open whose path begins with ``prefix``. A process that is gone has none."""
        folder = self.path(f"/proc/{pid}/fd")
        for name in self.names(f"/proc/{pid}/fd"):
            try:
                if os.readlink(folder / name).startswith(prefix):
                    return True
            except (FileNotFoundError, PermissionError):
                continue
        return False

    # --- writing

    def write_atomic(self, path: str, data: bytes, mode: int | None = 0o644) -> None:
        """Write a file so that a reader, or a machine that dies, sees the old one or the new one, never a part.

        A temporary file in the same folder, fsync, rename, fsync of the folder. ``mode`` None leaves the mode to the
        file system: vfat (the ESP) and pmxcfs refuse chmod. Raises Stop with the errno's text.
        """
        # A link stays a link: what it leads to is replaced.
        target = self.path(path).resolve() if self.path(path).is_symlink() else self.path(path)
        temporary = ""
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".gpuhost-", dir=target.parent)
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                if mode is not None:
                    os.fchmod(stream.fileno(), mode)
                os.fsync(stream.fileno())
            os.replace(temporary, target)
            temporary = ""
            self._sync_folder(target.parent)
        except OSError as error:
            raise stop("host.module_failed", path, f"can't be written: {error.strerror}") from error
        finally:
            if temporary and os.path.exists(temporary):
                os.unlink(temporary)

    def rewrite(self, path: str, before: bytes, after: bytes, keep_owner: bool) -> bool:
        """Replace a file that still holds ``before``; False where it does not. See rewrite_io.

        Raises Stop(lxc.config_not_written): the old file is there, complete, and nothing beside it.
        """
        try:
            return rewrite_io.rewrite(self.path(path).resolve(), before, after, keep_owner)
        except OSError as error:
            text = error.strerror or str(error)
            raise stop(
                "lxc.config_not_written", path, f"can't be written: {text}", "room and a healthy disk"
            ) from error

    def rewrite_leftover(self, path: str, remove: bool) -> bool:
        """Whether a rewrite that the machine did not survive has left something beside the file; or remove it."""
        leftover = rewrite_io.temporary_of(self.path(path).resolve())
        there = os.path.lexists(leftover)
        if there and remove:
            try:
                leftover.unlink(missing_ok=True)
            except OSError as error:
                raise stop("host.module_failed", str(leftover), f"can't be removed: {error.strerror}") from error
        return there

    def write_live(self, path: str, value: str) -> None:
        """Set a value of the running kernel: one write into a file of /proc or /sys that is there already.

        Raises Stop with the errno's text: a key that is not there, a write that the kernel refuses even to root.
        """
        try:
            handle = os.open(self.path(path), os.O_WRONLY)
            try:
                os.write(handle, value.encode())
            finally:
                os.close(handle)
        except OSError as error:
            raise stop("host.module_failed", path, f"{value.strip()!r} can't be written: {error.strerror}") from error

    def read_at(self, path: str, offset: int, length: int) -> bytes:
        """Bytes of a file from an offset, fewer at its end; empty where there is none (PCI configuration space)."""
        try:
            handle = os.open(self.path(path), os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return b""
        try:
            return os.pread(handle, length, offset)
        finally:
            os.close(handle)

    def write_at(self, path: str, offset: int, data: bytes) -> None:
        """Write bytes into a file at an offset, in one call (PCI configuration space). Raises Stop."""
        try:
            handle = os.open(self.path(path), os.O_WRONLY)
            try:
                os.pwrite(handle, data, offset)
            finally:
                os.close(handle)
        except OSError as error:
            raise stop("host.module_failed", path, f"can't be written: {error.strerror}") from error

    def sync(self) -> None:
        """Write everything that the kernel still holds to the disks.

        Package scripts copy to the ESP without fsync, and a vfat that loses its power then has broken files.
        """
        os.sync()

    def remove(self, path: str) -> bool:
        """Remove a file; whether there was one."""
        try:
            self.path(path).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise stop("host.module_failed", path, f"can't be removed: {error.strerror}") from error
        self._sync_folder(self.path(path).parent)
        return True

    def remove_empty_folder(self, path: str) -> bool:
        """Remove a folder that holds nothing; whether it went."""
        try:
            self.path(path).rmdir()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.ENOTDIR):
                return False
            raise stop("host.module_failed", path, f"can't be removed: {error.strerror}") from error
        return True

    def rename(self, source: str, target: str) -> bool:
        """Rename a file: of several who try, exactly one gets True. False where there is no source any more."""
        try:
            self.path(source).rename(self.path(target))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise stop("host.module_failed", source, f"can't be renamed: {error.strerror}") from error
        self._sync_folder(self.path(target).parent)
        return True

    def link(self, path: str, target: str) -> bool:
        """Make a symbolic link, or put a wrong one right; whether it had to. ``target`` is written as it is."""
        place = self.path(path)
        if place.is_symlink() and os.readlink(place) == target:
            return False
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.with_name(f".gpuhost-{place.name}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        os.replace(temporary, place)
        self._sync_folder(place.parent)
        return True

    def write_efi_variable(self, path: str, data: bytes) -> str:
        """Set an EFI variable through efivarfs, which wants one write; an error text, empty where all went well.

        efivarfs makes its files immutable against an ``rm -rf``; the flag is taken off before and set by the kernel.
        """
        try:
            self._take_immutable_off(path)
            handle = os.open(self.path(path), os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.write(handle, data)
            finally:
                os.close(handle)
        except OSError as error:
            return f"{path}: {error.strerror}"
        return ""

    def remove_efi_variable(self, path: str) -> str:
        """Remove an EFI variable; an error text, empty where all went well or where there is none."""
        try:
            self._take_immutable_off(path)
            self.path(path).unlink(missing_ok=True)
        except OSError as error:
            return f"{path}: {error.strerror}"
        return ""

    def _take_immutable_off(self, path: str) -> None:
        if not self.path(path).exists():
            return
        handle = os.open(self.path(path), os.O_RDONLY)
        try:
            flags = bytearray(8)
            fcntl.ioctl(handle, FS_IOC_GETFLAGS, flags)
            wanted = int.from_bytes(flags, sys.byteorder) & ~FS_IMMUTABLE_FL
            fcntl.ioctl(handle, FS_IOC_SETFLAGS, wanted.to_bytes(8, sys.byteorder))
        finally:
            os.close(handle)

    def make_node(self, path: str, major: int, minor: int, mode: int, owner: tuple[int, int] = (0, 0)) -> None:
        """Make a character device node where there is none, or put a wrong one right, with its mode and owner kept."""
        target = self.path(path)
        if self.device_numbers(path) == (major, minor):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            if target.exists():
                before = target.stat()
                mode, owner = stat.S_IMODE(before.st_mode), (before.st_uid, before.st_gid)
            target.unlink(missing_ok=True)  # also a link that leads nowhere
            os.mknod(target, stat.S_IFCHR | mode, os.makedev(major, minor))
            target.chmod(mode)  # mknod's mode is masked by the umask
            os.chown(target, *owner)
        except OSError as error:
            # At boot udev's rules and nvidia-modprobe make the same nodes.
            if self.device_numbers(path) != (major, minor):
                raise stop("host.module_failed", path, f"can't be made: {error.strerror}") from error

    def _sync_folder(self, folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    # --- programs

    def run(self, argv: list[str], timeout_s: float = 60, stdin: bytes = b"") -> Result:
        """Run a program with the C locale and a time limit; past the limit its whole process group is killed.

        A program that does not exist gives rc 127, one that outlasts its limit rc 124, as a shell would say it.
        Its output goes to files, not to pipes: a daemon that a package's script starts keeps a pipe open for ever.
        """
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as source:
            source.write(stdin)
            source.seek(0)
            try:
                process = subprocess.Popen(
                    argv, stdin=source, stdout=out, stderr=err, env=ENVIRONMENT, cwd="/", start_new_session=True
                )
            except (FileNotFoundError, PermissionError) as error:
                return Result(tuple(argv), 127, "", f"{argv[0]}: {error.strerror}")
            note = ""
            try:
                rc = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                rc, note = 124, f"\n{argv[0]}: killed after {timeout_s:.0f} s"
            return Result(tuple(argv), rc, _text(out), _text(err) + note)

    def run_bytes(self, argv: list[str], timeout_s: float = 60, stdin: bytes = b"") -> tuple[int, bytes, str]:
        """Run a filter (zstd, lz4): exit status, what it wrote, its errors. rc 127 and 124 as in ``run``.

        In memory, through pipes: a decompressed initramfs would fill a small /tmp.
        """
        try:
            done = subprocess.run(
                argv, input=stdin, capture_output=True, timeout=timeout_s, check=False, env=ENVIRONMENT, cwd="/"
            )
        except (FileNotFoundError, PermissionError) as error:
            return 127, b"", f"{argv[0]}: {error.strerror}"
        except subprocess.TimeoutExpired:
            return 124, b"", f"{argv[0]}: killed after {timeout_s:.0f} s"
        return done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")

    @contextmanager
    def lock(self, path: str, wait_s: float = 0) -> Iterator[None]:
        """Hold a lock that dies with this process. Raises Stop(roll.busy) where another has it for longer than that."""
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("a") as handle:
            end = self.clock() + wait_s
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if self.clock() >= end:
                        raise stop("roll.busy", path, "another gpuhost step still runs on this host", "none") from error
                    self.sleep(1)
            yield

    @contextmanager
    def flock(self, path: str, wait_s: float) -> Iterator[bool]:
        """Hold somebody else's lock, a file or a folder; False where another has it for longer than that.

        A file is made where there is none, as its owner does it. A child that outlives this process keeps the lock.
        """
        target = self.path(path)
        if not target.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDONLY | os.O_DIRECTORY if target.is_dir() else os.O_RDWR | os.O_CREAT | os.O_APPEND
        handle = os.open(target, flags, 0o644)
        try:
            end = self.clock() + wait_s
            while not (ours := self._try_flock(handle)) and self.clock() < end:
                self.sleep(0.2)
            yield ours
        finally:
            os.close(handle)

    def _try_flock(self, handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_root(self) -> bool:
        """Whether this process may do everything."""
        return os.geteuid() == 0

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def clock(self) -> float:
        """A clock that only goes forward, in seconds."""
        return time.monotonic()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
