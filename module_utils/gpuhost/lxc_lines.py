"""What a container configuration is made of: lines, device rules, mounts, devN entries, start facts.

Values only; lxc_config.py reads them from bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .proc_devices import NvidiaNode

Style = Literal["pve", "lxc"]
LineKind = Literal["blank", "comment", "section", "entry", "unparsed"]
RuleKind = Literal["numbers", "all", "path", "clear", "malformed"]

MAIN = ""  # the section a container starts from; snapshots and pending changes have names
PENDING = "pve:pending"


def display(data: bytes) -> str:
    """Bytes as text for messages, JSON-safe: what is not UTF-8 becomes a backslash escape."""
    return data.decode("utf-8", errors="backslashreplace")


@dataclass(frozen=True)
class Line:
    """One line: number from 1, raw bytes with its line end, and the span of its value inside raw."""

    number: int
    raw: bytes
    section: str
    kind: LineKind
    key: str = ""
    key_start: int = 0
    value_start: int = 0
    value_end: int = 0

    @property
    def value(self) -> bytes:
        return self.raw[self.value_start : self.value_end]

    @property
    def eol(self) -> bytes:
        """The line end: CRLF, LF, or nothing on a last line without one."""
        if not self.raw.endswith(b"\n"):
            return b""
        return b"\r\n" if self.raw.endswith(b"\r\n") else b"\n"

    @property
    def separator(self) -> bytes:
        """What stands between key and value, e.g. b": " or b" = "."""
        return self.raw[self.key_start + len(self.key) : self.value_start]

    @property
    def text(self) -> str:
        """The line without its end, for messages; bytes that are not UTF-8 are shown as escapes."""
        return display(self.raw[: len(self.raw) - len(self.eol)])


@dataclass(frozen=True)
class DeviceRule:
    """One device rule. major and minor are None for `*`; malformed says why liblxc would refuse the rule.

    version is the cgroup version of the key; major_span are byte offsets of the number inside the raw line.
    """

    line: int
    section: str
    key: str
    version: int
    allow: bool
    kind: RuleKind
    text: str
    type: str = ""
    major: int | None = None
    minor: int | None = None
    access: str = ""
    path: str = ""
    malformed: str = ""
    major_span: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class DeviceMount:
    """A bind mount whose source lies below /dev; node is set when the source is NVIDIA's."""

    line: int
    section: str
    source: str
    options: tuple[str, ...]
    node: NvidiaNode | None

    @property
    def optional(self) -> bool:
        """Whether a missing source is skipped silently at start."""
        return "optional" in self.options


@dataclass(frozen=True)
class DevEntry:
    """A Proxmox `devN:` entry: Proxmox reads the numbers at each start; a missing node makes the start fail."""

    line: int
    section: str
    key: str
    path: str
    node: NvidiaNode | None


@dataclass(frozen=True)
class ContainerFacts:
    """What decides whether a container starts by itself. None where the file does not say."""

    autostart: bool | None = None
    order: int | None = None
    startup: str | None = None
    lock: str | None = None
    hostname: str | None = None
    unprivileged: bool | None = None


@dataclass(frozen=True)
class SpanEdit:
    """Replace raw[start:end] of one line (number from 1) by new bytes."""

    line: int
    start: int
    end: int
    new: bytes
