"""Container configuration files, byte for byte: Proxmox style and plain LXC style.

parse() accepts any bytes and keeps every one of them: `parse(data, style).render() == data`. Nothing is decoded,
normalised or reordered; a change replaces a span of one line. Which lines count follows the readers of these
files: pve-container's parse_pct_config for "pve", liblxc's parse_line and device rule grammar for "lxc".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from .lxc_lines import (
    MAIN,
    PENDING,
    ContainerFacts,
    DevEntry,
    DeviceMount,
    DeviceRule,
    Line,
    RuleKind,
    SpanEdit,
    Style,
    display,
)
from .proc_devices import nvidia_node

__all__ = [
    "MAIN",
    "PENDING",
    "ContainerFacts",
    "DevEntry",
    "DeviceMount",
    "DeviceRule",
    "Line",
    "LxcDocument",
    "SpanEdit",
    "Style",
    "display",
    "parse",
    "vmid_of",
]

_PVE_SECTION = re.compile(rb"\[(pve:pending|[a-z][a-z0-9_\-]+)\]\s*\Z", re.IGNORECASE)
_PVE_LXC_KEY = re.compile(rb"(lxc\.[a-z0-9_\-.]+)(?::|\s*=)\s*(.*?)\s*\Z", re.DOTALL)
_PVE_KEY = re.compile(rb"([a-z][a-z_]*\d*):\s*(\S.*?)\s*\Z", re.DOTALL)
# liblxc trims blanks, tabs and NULs only: a CR stays in the value.
_LXC_KEY = re.compile(rb"[ \t]*(lxc\.[^=]*?)[ \t\0]*=[ \t]*(.*?)[ \t\0]*\Z", re.DOTALL)
_DEVICE_KEY = re.compile(r"lxc\.cgroup(2?)\.devices\.(allow|deny)\Z")
_LOOKS_LIKE_RULE = re.compile(rb"\s*lxc\.cgroup2?\.devices\.(allow|deny)\s*[:=]", re.IGNORECASE)
# "exactly one blank" is one isspace() character; after three access letters anything may follow.
_NUMBERS = re.compile(rb"([abc])\s(\*|\d+):(\*|\d+)\s([rwm]{1,2}\Z|[rwm]{3})", re.DOTALL)
_PATH = re.compile(rb"(/dev/[^ ]*) +([rwm]{1,2}(?= |\Z)|[rwm]{3})", re.DOTALL)
_INT_MAX = 2**31 - 1  # liblxc keeps the numbers in an int


@dataclass(frozen=True)
class LxcDocument:
    """A parsed file. Properties keep file order and hold all sections; filter by .section == MAIN."""

    style: Style
    lines: tuple[Line, ...] = field(repr=False)

    def render(self) -> bytes:
        """Exactly the bytes that were parsed."""
        return b"".join(line.raw for line in self.lines)

    def entries(self, section: str = MAIN) -> tuple[Line, ...]:
        """The `key value` lines of one section."""
        return tuple(line for line in self.lines if line.kind == "entry" and line.section == section)

    @cached_property
    def sections(self) -> tuple[str, ...]:
        """Names of the sections after the main one, in order, as Proxmox reads them."""
        return tuple(dict.fromkeys(line.section for line in self.lines if line.kind == "section"))

    @cached_property
    def rules(self) -> tuple[DeviceRule, ...]:
        return tuple(rule for line in self.lines if (rule := _device_rule(line)) is not None)

    @cached_property
    def mounts(self) -> tuple[DeviceMount, ...]:
        """Bind mounts from below /dev, NVIDIA's and others."""
        return tuple(mount for line in self.lines if (mount := _mount(line)) is not None)

    @cached_property
    def dev_entries(self) -> tuple[DevEntry, ...]:
        return tuple(dev for line in self.lines if (dev := _dev_entry(line)) is not None)

    @cached_property
    def includes(self) -> tuple[tuple[int, str], ...]:
        """(line number, path) of every lxc.include of the main section; their content is not followed."""
        return tuple((ln.number, display(ln.value)) for ln in self.entries() if ln.key == "lxc.include" and ln.value)

    @cached_property
    def ignored_rules(self) -> tuple[Line, ...]:
        """Lines that look like a device rule and that the reader of this style does not take as one."""
        return tuple(ln for ln in self.lines if ln.kind == "unparsed" and _LOOKS_LIKE_RULE.match(ln.raw))

    @cached_property
    def facts(self) -> ContainerFacts:
        """Start facts of the main section; where a key repeats the last one counts, as for both readers."""
        last = {line.key: display(line.value).strip() for line in self.entries()}
        if self.style == "lxc":
            return ContainerFacts(
                autostart=_boolean(last.get("lxc.start.auto")),
                order=_integer(last.get("lxc.start.order")),
                hostname=last.get("lxc.uts.name"),
                unprivileged=True if "lxc.idmap" in last else None,
            )
        startup = last.get("startup")
        order = re.search(r"(?:\A|,)(?:order=)?(\d+)(?:,|\Z)", startup or "")
        return ContainerFacts(
            autostart=_boolean(last.get("onboot")),
            order=_integer(order.group(1)) if order else None,
            startup=startup,
            lock=last.get("lock"),
            hostname=last.get("hostname"),
            unprivileged=_boolean(last.get("unprivileged")),
        )

    def rewrite(
        self,
        edits: Iterable[SpanEdit] = (),
        insertions: Mapping[int, Sequence[bytes]] | None = None,
        removals: Iterable[int] = (),
    ) -> bytes:
        """New bytes with all edits made at once; spans refer to the parsed lines, so swaps cannot merge.

        insertions: line number (0 = top) -> lines without line end to put after it; they take the line end of
        the line they follow. removals: numbers of lines to drop.
        """
        by_line: dict[int, list[SpanEdit]] = {}
        for edit in edits:
            by_line.setdefault(edit.line, []).append(edit)
        added = dict(insertions or {})
        dropped = set(removals)
        eol = next((line.eol for line in self.lines if line.eol), b"\n")
        out = [new + eol for new in added.get(0, ())]
        for line in self.lines:
            raw = line.raw
            for edit in sorted(by_line.get(line.number, ()), key=lambda e: e.start, reverse=True):
                raw = raw[: edit.start] + edit.new + raw[edit.end :]
            out.append(b"" if line.number in dropped else raw)
            for new in added.get(line.number, ()):
                # A last line without line end keeps that property: the end goes before the new line.
                out.append(new + line.eol if line.eol else eol + new)
        return b"".join(out)


def parse(data: bytes, style: Style = "pve") -> LxcDocument:
    """Parse any bytes; never raises. style "pve" is /etc/pve/lxc/N.conf, "lxc" is /var/lib/lxc/NAME/config."""
    section = MAIN
    lines: list[Line] = []
    # keepends by LF only: bytes.splitlines would also split at a lone CR, which neither reader does.
    raws = [part + b"\n" for part in data.split(b"\n")]
    raws[-1] = raws[-1][:-1]
    for number, raw in enumerate((raw for raw in raws if raw), start=1):
        line = _pve_line(number, raw, section) if style == "pve" else _lxc_line(number, raw)
        section = line.section
        lines.append(line)
    return LxcDocument(style, tuple(lines))


def vmid_of(file_name: str) -> int | None:
    """The VMID of a live Proxmox container file, by its name alone; None for copies, notes and temporary files."""
    found = re.fullmatch(r"([0-9]{1,9})\.conf", file_name)
    return int(found.group(1)) if found else None


def _pve_line(number: int, raw: bytes, section: str) -> Line:
    body = raw[:-1] if raw.endswith(b"\n") else raw
    if not body.strip():
        return Line(number, raw, section, "blank")
    header = _PVE_SECTION.match(body)
    if header:
        name = header.group(1).decode("ascii")
        return Line(number, raw, PENDING if name.lower() == PENDING else name, "section")
    if body.startswith(b"#"):
        return Line(number, raw, section, "comment")
    found = _PVE_LXC_KEY.match(body) or _PVE_KEY.match(body)
    if not found:
        return Line(number, raw, section, "unparsed")
    return Line(number, raw, section, "entry", found.group(1).decode("ascii"), 0, *found.span(2))


def _lxc_line(number: int, raw: bytes) -> Line:
    body = raw[:-1] if raw.endswith(b"\n") else raw
    if not body.strip(b" \t\0"):
        return Line(number, raw, MAIN, "blank")
    if body.lstrip(b" \t").startswith(b"#"):
        return Line(number, raw, MAIN, "comment")
    found = _LXC_KEY.match(body)
    if not found:
        return Line(number, raw, MAIN, "unparsed")
    start, end = found.span(2)
    if end - start > 1 and body[start : start + 1] in (b"'", b'"') and body[start] == body[end - 1]:
        start, end = start + 1, end - 1  # liblxc strips one pair of quotes
    # latin-1 keeps one character per byte, so that separator's arithmetic holds for any key.
    return Line(number, raw, MAIN, "entry", found.group(1).decode("latin-1"), found.start(1), start, end)


def _device_rule(line: Line) -> DeviceRule | None:
    key = _DEVICE_KEY.match(line.key) if line.kind == "entry" else None
    if not key:
        return None
    version, allow = (2 if key.group(1) else 1), key.group(2) == "allow"

    def rule(kind: RuleKind, **more: object) -> DeviceRule:
        return DeviceRule(line.number, line.section, line.key, version, allow, kind, line.text, **more)  # type: ignore[arg-type]

    value = line.value
    if value in (b"", b"a"):
        return rule("all") if value else rule("clear")
    path = _PATH.match(value)
    if path:
        return rule("path", path=display(path.group(1)), access=path.group(2).decode("ascii"))
    numbers = _NUMBERS.match(value)
    problem = _problem(numbers)
    if problem or not numbers:
        return rule("malformed", malformed=problem)
    major, minor = numbers.group(2), numbers.group(3)
    return rule(
        "numbers",
        type=numbers.group(1).decode("ascii"),
        major=None if major == b"*" else int(major),
        minor=None if minor == b"*" else int(minor),
        access=numbers.group(4).decode("ascii"),
        major_span=(line.value_start + numbers.start(2), line.value_start + numbers.end(2)),
    )


def _problem(numbers: re.Match[bytes] | None) -> str:
    """Why liblxc would refuse the numbers of a rule, or read other ones; empty when it would not."""
    if not numbers:
        return "not 'type major:minor access' with one blank and 1-3 letters of rwm"
    digits = [number for number in numbers.group(2, 3) if number != b"*"]
    if any(len(number) > 1 and number.startswith(b"0") for number in digits):
        return "a leading zero makes liblxc read the number as octal"
    if any(len(number) > 10 or int(number) > _INT_MAX for number in digits):
        return "the number is too large for a device number"
    return ""


def _mount(line: Line) -> DeviceMount | None:
    if line.kind != "entry" or line.key != "lxc.mount.entry":
        return None
    fields = display(line.value).split()
    if not fields or not fields[0].startswith("/dev/"):
        return None
    options = tuple(fields[3].split(",")) if len(fields) > 3 else ()
    return DeviceMount(line.number, line.section, fields[0], options, nvidia_node(fields[0]))


def _dev_entry(line: Line) -> DevEntry | None:
    if line.kind != "entry" or not re.fullmatch(r"dev\d+", line.key):
        return None
    parts = [part.strip() for part in display(line.value).split(",")]
    # The path is the default key of the property string: first and bare, or path= anywhere.
    named = [part[len("path=") :] for part in parts if part.startswith("path=")]
    path = (named or parts)[0]
    return DevEntry(line.number, line.section, line.key, path, nvidia_node(path))


def _boolean(text: str | None) -> bool | None:
    """A switch as Proxmox and liblxc read it; None when absent or neither on nor off."""
    words = {"1": True, "on": True, "yes": True, "true": True, "0": False, "off": False, "no": False, "false": False}
    return words.get((text or "").lower())


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,9}", text) else None
