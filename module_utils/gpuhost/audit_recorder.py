"""A host that remembers what was read of it: whatever a survey looks at becomes a fixture, and nothing else does."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from . import driver_facts
from .audit_snapshot import Snapshot
from .host_io import Host, Result

_MOST_LINKS = 40
_PROC = "/proc/"
_QUERY = "--query-gpu="
_LIBRARIES = re.compile(r"(?:/usr)?/lib(?:64)?(?:/[\w-]+-linux-gnu[^/]*)?(?:/nvidia/current)?")
_UNITS = re.compile(r"/etc/systemd/system(?:/[^/]+)?|/etc/rc\d\.d")
_TELLING = re.compile(
    r".*\.(?:wants|requires|d)|.*(?:nvidia|lxc|gpuhost|pve|docker|containerd|tuned|tlp|thermald|cpupower|cpufreq|ondemand"
    r"|power-profiles|ktune).*"
)


def _tells(folder: str, name: str) -> bool:
    """Whether a name in a folder that was listed is worth keeping although nobody reads it.

    Of /proc only those processes are kept that somebody reads; of folders that are full of others' things a few names.
    """
    if _LIBRARIES.fullmatch(folder):
        return driver_facts.LIBRARY.fullmatch(name) is not None
    return folder != "/proc" and (not _UNITS.fullmatch(folder) or _TELLING.fullmatch(name) is not None)


class Recorder(Host):
    """Reads through another host. Nothing can be written through it."""

    def __init__(self, inner: Host) -> None:
        super().__init__(str(inner.root))
        self._inner = inner
        self.snapshot = Snapshot(root=inner.is_root())

    # --- what is remembered

    def _seen(self, path: str) -> str | None:
        """Remember a path with the links that lead to it; where it really lies, None where there is nothing."""
        real = self._real(path)
        if real is None or not self._inner.exists(real):
            return None
        if self._inner.is_folder(real):
            self.snapshot.folders.add(real)
        else:
            self.snapshot.files.setdefault(real, b"")
        return real

    def _real(self, path: str) -> str | None:
        # The links of /proc are the kernel's own, and lead into another tree than their text says.
        if path.startswith(_PROC):
            return posixpath.normpath(path)
        left, done = [part for part in path.split("/") if part], "/"
        for _ in range(_MOST_LINKS * 10):
            if not left:
                return done
            here = posixpath.join(done, left.pop(0))
            place = self.path(here)
            if not place.is_symlink():
                done = here
                continue
            target = os.readlink(place)
            inside = self._inside(target)
            self.snapshot.links[here] = inside
            whole = posixpath.normpath(posixpath.join(done, inside))
            left, done = [*[part for part in whole.split("/") if part], *left], "/"
        return None

    def _inside(self, target: str) -> str:
        """A link's target as the host has it: below a root that is a folder an absolute one may have that in front."""
        root = str(self.root)
        return "/" + os.path.relpath(target, root) if root != "/" and target.startswith(f"{root}/") else target

    # --- what the survey does

    def read_bytes(self, path: str) -> bytes | None:
        data = self._inner.read_bytes(path)
        real = self._seen(path)
        if data is not None and real is not None:
            self.snapshot.files[real] = data
        return data

    def names(self, path: str) -> list[str]:
        found = self._inner.names(path)
        for name in found:
            if _tells(path, name):
                self._seen(f"{path}/{name}")
        return found

    def exists(self, path: str) -> bool:
        return self._seen(path) is not None

    def is_folder(self, path: str) -> bool:
        self._seen(path)
        return self._inner.is_folder(path)

    def files_below(self, path: str) -> list[str]:
        found = self._inner.files_below(path)
        for item in found:
            self._seen(item)
        return found

    def resolved(self, path: str) -> str | None:
        self._seen(path)
        return self._inner.resolved(path)

    def inode(self, path: str) -> int | None:
        self._seen(path)
        return self._inner.inode(path)

    def age_s(self, path: str) -> float | None:
        self._seen(path)
        return self._inner.age_s(path)

    def mode(self, path: str) -> int | None:
        mode, real = self._inner.mode(path), self._seen(path)
        if mode is not None and real is not None and mode & 0o111 and not self._inner.is_folder(path):
            self.snapshot.modes[real] = mode
        return mode

    def read_at(self, path: str, offset: int, length: int) -> bytes:
        data, real = self._inner.read_at(path, offset, length), self._seen(path)
        if real is not None and data:
            old = bytearray(self.snapshot.files.get(real, b""))
            old.extend(bytes(max(0, offset + len(data) - len(old))))
            old[offset : offset + len(data)] = data
            self.snapshot.files[real] = bytes(old)
        return data

    def device_numbers(self, path: str) -> tuple[int, int] | None:
        found = self._inner.device_numbers(path)
        if found is not None:
            self.snapshot.nodes[path] = found
        return found

    def holds_open(self, pid: int, prefix: str) -> bool:
        held = self._inner.holds_open(pid, prefix)
        if held:
            self.snapshot.links[f"/proc/{pid}/fd/3"] = f"{prefix}0" if prefix.endswith("nvidia") else prefix
        return held

    def run(self, argv: list[str], timeout_s: float = 60, stdin: bytes = b"") -> Result:
        result = self._inner.run(argv, timeout_s, stdin)
        query = next((word for word in argv if word.startswith(_QUERY)), None)
        if query and result.rc == 0:
            self._gpus(query.removeprefix(_QUERY).split(","), result.stdout)
        else:
            self.snapshot.runs[tuple(argv)] = (result.rc, result.stdout, result.stderr)
        return result

    def _gpus(self, fields: list[str], text: str) -> None:
        rows = [line.split(", ") for line in text.splitlines()]
        rows = [row for row in rows if len(row) == len(fields)]
        gpus = self.snapshot.gpus
        gpus.extend({} for _ in range(len(rows) - len(gpus)))
        for number, row in enumerate(rows):
            gpus[number] |= dict(zip(fields, (item.strip() for item in row), strict=True))

    def is_root(self) -> bool:
        return self._inner.is_root()

    def clock(self) -> float:
        return self._inner.clock()

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)

    def path(self, path: str) -> Path:
        return self._inner.path(path) if hasattr(self, "_inner") else super().path(path)
