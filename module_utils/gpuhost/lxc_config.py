"""Container configuration files, byte for byte: Proxmox style and plain LXC style.

parse() accepts any bytes and keeps every one of them: `parse(data, style).render() == data`. Nothing is decoded,
normalised or reordered; a change replaces a span of one line. Which lines count follows the readers of these
files: pve-container's parse_pct_config for "pve", liblxc's parse_line and device rule grammar for "lxc".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from .lxc_entries import dev_entry, device_mount, device_rule, ignored_rule
from .lxc_lines import (
    MAIN,
    PENDING,
    ContainerFacts,
    DevEntry,
    DeviceMount,
    DeviceRule,
    Line,
    SpanEdit,
    Style,
    display,
)

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
# liblxc trims blanks and tabs only.
_LXC_KEY = re.compile(rb"[ \t]*(lxc\.[^=]*?)[ \t]*=[ \t]*(.*?)[ \t]*\Z", re.DOTALL)
# Proxmox splits at LF. liblxc splits at CR and LF alike (parse.c: lxc_file_for_each_line_mmap).
_LINES = {"pve": re.compile(rb"([^\n]*?)(\r?\n|\Z)"), "lxc": re.compile(rb"([^\r\n]*)(\r\n|\r|\n|\Z)")}


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
        return tuple(rule for line in self.lines if (rule := device_rule(line)) is not None)

    @cached_property
    def mounts(self) -> tuple[DeviceMount, ...]:
        """Bind mounts from below /dev, NVIDIA's and others."""
        return tuple(mount for line in self.lines if (mount := device_mount(line)) is not None)

    @cached_property
    def dev_entries(self) -> tuple[DevEntry, ...]:
        return tuple(dev for line in self.lines if (dev := dev_entry(line)) is not None)

    @cached_property
    def includes(self) -> tuple[tuple[int, str], ...]:
        """(line number, path) of every lxc.include of the main section; lxc_includes.py follows them."""
        return tuple((line.number, path) for line in self.entries() if (path := line.included_path))

    @cached_property
    def ignored_rules(self) -> tuple[Line, ...]:
        """Lines that look like a device rule and that the reader of this style does not take as one."""
        return tuple(line for line in self.lines if ignored_rule(line))

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


@lru_cache(maxsize=1024)
def parse(data: bytes, style: Style = "pve", file: str = "") -> LxcDocument:
    """Parse any bytes; never raises. style "pve" is /etc/pve/lxc/N.conf, "lxc" is /var/lib/lxc/NAME/config.

    file is the path of an included file; every line then carries it.
    """
    section = MAIN
    lines: list[Line] = []
    # For liblxc the file ends at the first NUL.
    text, nul, rest = data.partition(b"\0") if style == "lxc" else (data, b"", b"")
    for number, (body, eol) in enumerate((m.groups() for m in _LINES[style].finditer(text) if m.group()), start=1):
        line = _pve_line(number, body, eol, section) if style == "pve" else _lxc_line(number, body, eol, file)
        section = line.section
        lines.append(line)
    if nul:
        lines.append(Line(len(lines) + 1, nul + rest, b"", section, "unparsed", file=file))
    return LxcDocument(style, tuple(lines))


def vmid_of(file_name: str) -> int | None:
    """The VMID of a live Proxmox container file, by its name alone; None for copies, notes and temporary files."""
    found = re.fullmatch(r"([0-9]{1,9})\.conf", file_name)
    return int(found.group(1)) if found else None


def _pve_line(number: int, body: bytes, eol: bytes, section: str) -> Line:
    if not body.strip():
        return Line(number, body, eol, section, "blank")
    header = _PVE_SECTION.match(body)
    if header:
        name = header.group(1).decode("ascii")
        return Line(number, body, eol, PENDING if name.lower() == PENDING else name, "section")
    if body.startswith(b"#"):
        return Line(number, body, eol, section, "comment")
    raw_lxc = _PVE_LXC_KEY.match(body)
    found = raw_lxc or _PVE_KEY.match(body)
    if not found:
        return Line(number, body, eol, section, "unparsed")
    # Proxmox hands `lxc.*` values to liblxc as they are.
    span = _unquoted(body, *found.span(2)) if raw_lxc else found.span(2)
    return Line(number, body, eol, section, "entry", found.group(1).decode("ascii"), 0, *span)


def _lxc_line(number: int, body: bytes, eol: bytes, file: str) -> Line:
    if not body.strip(b" \t"):
        return Line(number, body, eol, MAIN, "blank", file=file)
    if body.lstrip(b" \t").startswith(b"#"):
        return Line(number, body, eol, MAIN, "comment", file=file)
    found = _LXC_KEY.match(body)
    if not found:
        return Line(number, body, eol, MAIN, "unparsed", file=file)
    # latin-1 keeps one character per byte, so that separator's arithmetic holds for any key.
    key, span = found.group(1).decode("latin-1"), _unquoted(body, *found.span(2))
    return Line(number, body, eol, MAIN, "entry", key, found.start(1), *span, file)


def _unquoted(body: bytes, start: int, end: int) -> tuple[int, int]:
    """The span of a value without the one pair of quotes that liblxc strips."""
    quoted = end - start > 1 and body[start : start + 1] in (b"'", b'"') and body[start] == body[end - 1]
    return (start + 1, end - 1) if quoted else (start, end)


def _boolean(text: str | None) -> bool | None:
    """A switch as Proxmox and liblxc read it; None when absent or neither on nor off."""
    words = {"1": True, "on": True, "yes": True, "true": True, "0": False, "off": False, "no": False, "false": False}
    return words.get((text or "").lower())


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,9}", text) else None
