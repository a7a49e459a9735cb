"""What a container configuration is made of: lines, device rules, mounts, devN entries, start facts.

Values only; lxc_config.py reads them from bytes.
"""

from __future__ import annotations

import posixpath
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


# Files of the distribution: an upgrade of the package overwrites them, so nothing is rewritten there.
_DISTRIBUTION = ("/usr/share/lxc/", "/usr/share/lxcfs/")


def is_distribution(file: str) -> bool:
    """Whether an included file belongs to the distribution."""
    return ("/" + posixpath.normpath(file).lstrip("/")).startswith(_DISTRIBUTION)


def place(file: str, line: int) -> str:
    """Where a line stands, for people; the container's own file has no name here."""
    return f"{shown(file)} line {line}" if file else f"config line {line}"


def shown(path: str) -> str:
    """A path for messages: bytes that are not UTF-8 become backslash escapes."""
    return display(path.encode("utf-8", "surrogateescape"))


@dataclass(frozen=True)
class Line:
    """One line: number from 1, its bytes without and with its line end, and the span of its value inside them.

    file is "" for the container's own file, else the path under which the file was included.
    """

    number: int
    body: bytes
    eol: bytes
    section: str
    kind: LineKind
    key: str = ""
    key_start: int = 0
    value_start: int = 0
    value_end: int = 0
    file: str = ""

    @property
    def raw(self) -> bytes:
        return self.body + self.eol

    @property
    def value(self) -> bytes:
        return self.body[self.value_start : self.value_end]

    @property
    def included_path(self) -> str:
        """The file or folder that the line includes; "" for other lines, and where the value is empty."""
        is_include = self.kind == "entry" and self.key == "lxc.include"
        return self.value.decode("utf-8", "surrogateescape") if is_include else ""

    @property
    def separator(self) -> bytes:
        """What stands between key and value, e.g. b": " or b" = "."""
        return self.body[self.key_start + len(self.key) : self.value_start]

    @property
    def text(self) -> str:
        """The line without its end, for messages; bytes that are not UTF-8 are shown as escapes."""
        return display(self.body)


@dataclass(frozen=True)
class DeviceRule:
    """One device rule. major and minor are None for `*`; malformed says why liblxc would refuse the rule.

    version is the cgroup version of the key; major_span are byte offsets of the number inside the raw line. file is
    as in Line.
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
    file: str = ""

    @property
    def place(self) -> tuple[str, int]:
        """The line that the rule was read from; a file that is included twice gives two rules with one place."""
        return self.file, self.line

    @property
    def fixed(self) -> bool:
        """Whether the rule stands in a file of the distribution, which is never rewritten."""
        return bool(self.file) and is_distribution(self.file)


@dataclass(frozen=True)
class DeviceMount:
    """A bind mount whose source lies below /dev; node is set when the source is NVIDIA's."""

    line: int
    section: str
    source: str
    options: tuple[str, ...]
    node: NvidiaNode | None
    file: str = ""

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
