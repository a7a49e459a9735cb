"""A host for tests: a real file tree below a folder, and a table of programs instead of programs.

A test may also cut the power: ``die_after = n`` ends everything with ``Killed`` right after the n-th effect (a file
that was written or removed, a program that ran). The tree then holds what a machine would find at its next boot.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from gpuhost.host_io import Host, Result

Answer = tuple[int, str, str]
Program = Callable[["FakeHost", list[str]], Answer]

READS_ONLY = {"lxc-ls", "lxc-info", "dpkg-query", "modinfo", "apt-cache", "dkms"}


class Killed(BaseException):
    """The process is gone, or the power is: no handler of the code under test may catch it."""


class FakeHost(Host):
    """``root`` is the host's file tree. Everything that a real tree can't hold for a test is a field."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.programs: dict[tuple[str, ...], Answer | Program] = {}
        self.calls: list[list[str]] = []
        self.stdins: list[bytes] = []
        self.nodes: dict[str, tuple[int, int]] = {}
        self.node_modes: dict[str, int] = {}
        self.free: dict[str, int] = {}
        self.root_user = True
        self.seconds = 0.0
        self.effects: list[str] = []
        self.die_after: int | None = None
        # What the programs of fake_tools act on.
        self.running: set[str] = set()
        self.stubborn: set[str] = set()
        self.broken: set[str] = set()
        self.packages: dict[str, tuple[str, str]] = {}
        self.archive: list[tuple[str, str, str]] = []
        self.held: set[str] = set()
        self.dkms_fails = False
        self.absent: set[str] = set()
        self.rebooting = False
        self.boots: list[str] = []

    # --- what the test asks

    def put(self, path: str, content: str | bytes = "") -> None:
        """Lay a file into the tree."""
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)

    def aged(self, path: str, seconds: float) -> None:
        """Let a file be this much older than it is."""
        info = self.path(path).stat()
        os.utime(self.path(path), (info.st_atime - seconds, info.st_mtime - seconds))

    def snapshot(self) -> dict[str, tuple[int, bytes]]:
        """Every file with mode and bytes, every folder with its mode."""
        found = {}
        for item in sorted(self.root.rglob("*")):
            mode = stat.S_IMODE(item.lstat().st_mode)
            data = os.readlink(item).encode() if item.is_symlink() else b"" if item.is_dir() else item.read_bytes()
            found[str(item.relative_to(self.root))] = (mode, data)
        return found

    def ran(self, *prefix: str) -> list[list[str]]:
        """The calls that begin with these words."""
        return [call for call in self.calls if tuple(call[: len(prefix)]) == prefix]

    # --- what the code under test does

    def _effect(self, what: str) -> None:
        self.effects.append(what)
        if self.die_after is not None and len(self.effects) >= self.die_after:
            raise Killed(what)

    def run(self, argv: list[str], timeout_s: float = 60, stdin: bytes = b"") -> Result:
        self.calls.append(list(argv))
        self.stdins.append(stdin)
        known = [prefix for prefix in self.programs if tuple(argv[: len(prefix)]) == prefix]
        if known:
            answer = self.programs[max(known, key=len)]
            rc, out, err = answer(self, list(argv)) if callable(answer) else answer
        else:
            rc, out, err = 127, "", f"{argv[0]}: No such file or directory"
        if argv[0] not in READS_ONLY:
            self._effect(" ".join(argv))
        return Result(tuple(argv), rc, out, err)

    def run_bytes(self, argv: list[str], timeout_s: float = 60, stdin: bytes = b"") -> tuple[int, bytes, str]:
        """A filter is the program of the machine that the test runs on, unless the host is to have none."""
        self.calls.append(list(argv))
        if argv[0] in self.absent:
            return 127, b"", f"{argv[0]}: No such file or directory"
        return super().run_bytes(argv, timeout_s, stdin)

    def write_atomic(self, path: str, data: bytes, mode: int | None = 0o644) -> None:
        with mock.patch("os.fsync"):  # its order has a test of its own; a hundred rolls would wait for the disk
            super().write_atomic(path, data, mode)
        self._effect(f"write {path}")

    def rewrite(self, path: str, before: bytes, after: bytes, keep_owner: bool) -> bool:
        with mock.patch("os.fsync"):  # the child inherits the patch
            written = super().rewrite(path, before, after, keep_owner)
        if written:
            self._effect(f"write {path}")
        return written

    def write_live(self, path: str, value: str) -> None:
        super().write_live(path, value)  # refuses what is not there
        self.put(path, value)  # the kernel takes a whole value, a file would keep the rest of a longer one
        self._effect(f"live {path}")

    def remove(self, path: str) -> bool:
        with mock.patch("os.fsync"):
            there = super().remove(path)
        self._effect(f"remove {path}")
        return there

    def rename(self, source: str, target: str) -> bool:
        with mock.patch("os.fsync"):
            there = super().rename(source, target)
        self._effect(f"rename {source}")
        return there

    def _take_immutable_off(self, path: str) -> None:
        """A plain file has no such flag."""

    def link(self, path: str, target: str) -> bool:
        with mock.patch("os.fsync"):
            changed = super().link(path, target)
        if changed:
            self._effect(f"link {path}")
        return changed

    def make_node(self, path: str, major: int, minor: int, mode: int = 0o666, owner: tuple[int, int] = (0, 0)) -> None:
        self.nodes[path], self.node_modes[path] = (major, minor), mode
        self._effect(f"node {path}")

    def device_numbers(self, path: str) -> tuple[int, int] | None:
        return self.nodes.get(path)

    def mode(self, path: str) -> int | None:
        return self.node_modes.get(path) if path in self.nodes else super().mode(path)

    def free_bytes(self, path: str) -> int | None:
        return self.free.get(path, 10 * 2**30) if self.exists(path) else None

    def is_root(self) -> bool:
        return self.root_user

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def clock(self) -> float:
        self.seconds += 0.5
        return self.seconds
