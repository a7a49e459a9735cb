"""systemd-boot: loader.conf, Type #1 boot entries, and which entry a machine would boot next.

Sources, all systemd's own: src/boot/efi/boot.c (``line_get_key_value``, ``config_entry_add_type1``,
``config_entry_parse_tries``, ``config_entry_compare``, ``config_entry_find``, ``config_default_entry_select``; the same
rules in 252 and 257) and src/fundamental/string-util-fundamental.c (``strverscmp_improved``).

Two of its rules surprise: names match as a case-insensitive glob on the whole file name *with* ``.conf`` (a default
``proxmox-6.8`` selects nothing, and the next rule decides); and the EFI variable LoaderEntryDefault beats loader.conf.

Pure: text and bytes in, text, bytes and frozen dataclasses out.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_SPACE = " \t"


@dataclass(frozen=True)
class Entry:
    """One file of loader/entries. Absent fields are None; ``options`` joins repeated lines with a blank.

    filename  as on the ESP, boot counter and ``.conf`` included; lower-cased it is the entry's id
    linux     path on the ESP; for an ``efi`` entry the path of that program
    """

    filename: str
    title: str | None
    version: str | None
    machine_id: str | None
    sort_key: str | None
    linux: str | None
    initrd: tuple[str, ...]
    options: str

    @property
    def id(self) -> str:
        return self.filename.lower()

    @property
    def tries(self) -> tuple[int, int] | None:
        """(left, done) of a boot counter ``+LEFT[-DONE].conf``; None where the name has none."""
        found = re.fullmatch(r".*\+(\d+)(?:-(\d+))?\.conf", self.filename)
        return (int(found[1]), int(found[2] or 0)) if found else None


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Key and value of each line, as systemd-boot reads them: comments, keys without a value and blank lines go."""
    for raw in re.split(r"[\n\r]", text):
        line = raw.strip(_SPACE)
        key, separator, value = _cut(line)
        if line.startswith("#") or not separator:
            continue
        if len(value) > 1 and value.startswith('"') and value.endswith('"'):
            value = value[1:-1]
        yield key, value


def _cut(line: str) -> tuple[str, str, str]:
    """key, separator, value of a stripped line."""
    found = re.match(r"([^ \t]*)([ \t]*)(.*)", line, re.DOTALL)
    return (found[1], found[2], found[3]) if found else (line, "", "")


def default_of(text: str) -> str | None:
    """The ``default`` pattern; None where there is none. An ``@`` name other than @saved is ignored by systemd-boot."""
    values = [value for key, value in _pairs(text) if key == "default"]
    usable = [value for value in values if not value.startswith("@") or value.lower() == "@saved"]
    return usable[-1] if usable else None


def with_default(text: str, entry: str | None) -> str:
    """loader.conf with ``default <entry>``, or without any ``default`` where entry is None.

    The last default line, which is the one that counts, is replaced in place; others are removed, so that no reader
    can take the wrong one. Where the effective default is right already the text comes back as it is. Everything else
    stays byte for byte. ValueError for a name with white space, which no line can carry.
    """
    if entry is not None and (not entry or re.search(r"\s", entry)):
        raise ValueError(f"{entry!r} is not the name of a boot entry")
    lines = re.findall(r"[^\n\r]*(?:\r\n|\n|\r|\Z)", text)
    places = [index for index, line in enumerate(lines) if _cut(line.strip(" \t\r\n"))[0] == "default"]
    if entry is not None and default_of(text) == entry and len(places) == 1:
        return text
    if entry is not None and not places:
        end = "\r\n" if "\r\n" in text else "\n"
        gap = "" if not text or text[-1] in "\r\n" else end
        return f"{text}{gap}default {entry}{end}"
    for index in places:
        if entry is not None and index == places[-1]:
            body = lines[index].rstrip("\r\n")
            lines[index] = f"default {entry}{lines[index][len(body) :]}"
        else:
            lines[index] = ""
    return "".join(lines)


def parse_entry(filename: str, text: str) -> Entry:
    """Read one ``loader/entries/*.conf``. Unknown keys are ignored, a repeated key counts with its last value."""
    fields: dict[str, str] = {}
    initrd: list[str] = []
    options: list[str] = []
    for key, value in _pairs(text):
        if key == "initrd":
            initrd.append(value)
        elif key == "options":
            options.append(value)
        else:
            fields["linux" if key == "efi" else key] = value
    return Entry(
        filename=filename,
        title=fields.get("title"),
        version=fields.get("version"),
        machine_id=fields.get("machine-id"),
        sort_key=fields.get("sort-key"),
        linux=fields.get("linux"),
        initrd=tuple(initrd),
        options=" ".join(options),
    )


#: Separators in the order in which systemd-boot looks for them.
_PREFIXES = ("~", "-", "^", ".")


def _segments_differ(a: str, b: str) -> int:
    """Compare two leading segments: numbers by value and newer than letters, letters by code, longer is newer."""
    if a[:1].isdigit() or b[:1].isdigit():
        if a[:1].isdigit() != b[:1].isdigit():
            return 1 if a[:1].isdigit() else -1
        return (int(a) > int(b)) - (int(a) < int(b))
    return (a > b) - (a < b)


def _leading(text: str) -> str:
    """The digits or the letters that a text starts with."""
    found = re.match(r"[0-9]+|[A-Za-z]*", text)
    return found[0] if found else ""


def compare_versions(a: str, b: str) -> int:
    """systemd's ``strverscmp_improved``: -1 where a is older, 0, 1 where it is newer.

    ``~`` is older than the end, then ``-``, ``^`` and ``.`` in this order before no separator at all; characters that
    belong to no version (``+``, ``_``) only separate.
    """
    while True:
        a = re.sub(r"^[^0-9A-Za-z~^.-]+", "", a)
        b = re.sub(r"^[^0-9A-Za-z~^.-]+", "", b)
        for prefix in _PREFIXES:
            if prefix == "-" and not (a and b):  # after "~" and before the rest: the longer one is newer
                return bool(a) - bool(b)
            starts = a.startswith(prefix), b.startswith(prefix)
            if starts[0] != starts[1]:
                return -1 if starts[0] else 1
            if starts[0]:
                a, b = a[1:], b[1:]
        left, right = _leading(a), _leading(b)
        result = _segments_differ(left, right)
        if result:
            return result
        a, b = a[len(left) :], b[len(right) :]


def _compare_keys(a: Entry, b: Entry) -> int:
    """sort-key, machine-id, then version downwards; entries with a sort-key come before those without."""
    if not a.sort_key or not b.sort_key:
        return (not a.sort_key) - (not b.sort_key)
    ours, theirs = (a.sort_key, a.machine_id or ""), (b.sort_key, b.machine_id or "")
    if ours != theirs:
        return -1 if ours < theirs else 1
    return -compare_versions(a.version or "", b.version or "")


def _compare(a: Entry, b: Entry) -> int:
    """``config_entry_compare``: negative where a comes first."""
    left, right = a.tries, b.tries
    spent = (left is not None and left[0] == 0) - (right is not None and right[0] == 0)
    result = spent or _compare_keys(a, b) or -compare_versions(a.id, b.id)
    if result or left is None or right is None:
        return result
    return (right[0] > left[0]) - (right[0] < left[0]) or (left[1] > right[1]) - (left[1] < right[1])


def order(entries: Iterable[Entry]) -> list[Entry]:
    """systemd-boot's own order, the entry that it would boot without any default first.

    Entries whose counter is spent come last; then those with a sort-key by sort-key, machine-id and version (newest
    first); then the file name (newest first); then more tries left, then fewer tries done.
    """
    return sorted(entries, key=functools.cmp_to_key(_compare))


def _set_pattern(body: str) -> str:
    """A glob's ``[...]`` as a regular expression: ranges, no negation (loader.conf(5))."""
    return "[" + re.sub(r"([\\^\[\]&~|])", r"\\\1", body) + "]"


_GLOB = re.compile(r"\\(?P<escaped>.)|(?P<star>\*+)|(?P<one>\?)|\[(?P<set>.[^\]]*)\]|(?P<plain>.)", re.DOTALL)


def _glob(pattern: str) -> re.Pattern[str]:
    """efi_fnmatch's patterns: ``*``, ``?``, ``[a-z]`` and a backslash; anything else stands for itself."""
    parts = []
    for found in _GLOB.finditer(pattern):
        if found["star"]:
            parts.append(".*")
        elif found["one"]:
            parts.append(".")
        elif found["set"]:
            parts.append(_set_pattern(found["set"]))
        else:
            parts.append(re.escape(found["escaped"] or found["plain"]))
    return re.compile("".join(parts), re.DOTALL)


def _offered(entry: Entry) -> bool:
    """Whether systemd-boot lists this file at all: its name, and something to boot (``config_load_entries``).

    It also leaves out an entry whose kernel file is missing; that file is not known here.
    """
    return entry.id.endswith(".conf") and not entry.filename.startswith((".", "auto-")) and bool(entry.linux)


def find(entries: Sequence[Entry], pattern: str | None) -> Entry | None:
    """The first entry, in systemd-boot's order, whose whole file name fits, case ignored."""
    if not pattern:
        return None
    try:
        wanted = _glob(pattern.lower())
    except re.error:  # an impossible range such as [z-a]: systemd-boot finds nothing with it
        return None
    return next((entry for entry in order(entries) if _offered(entry) and wanted.fullmatch(entry.id)), None)


def selected(
    entries: Sequence[Entry], loader_default: str | None, efi_default: str | None, one_shot: str | None
) -> Entry | None:
    """The entry that the next boot takes if nobody touches the menu; None where there is no entry.

    one_shot (EFI LoaderEntryOneShot) beats efi_default (LoaderEntryDefault), which beats loader.conf's default; a name
    that fits no entry is passed over without a word, and without any the first entry in order is taken. An ``@saved``
    default depends on LoaderEntryLastBooted, which is not known here: it counts as a name that fits nothing.
    Automatic entries (Windows, firmware) are never taken by themselves and are left out here.
    """
    for pattern in (one_shot, efi_default, loader_default):
        entry = find(entries, pattern)
        if entry is not None:
            return entry
    return next(filter(_offered, order(entries)), None)


def release_of(entry: Entry) -> str | None:
    """The kernel release that an entry boots: its version field, else what its kernel's path names."""
    if entry.version:
        return entry.version
    parts = re.split(r"[/\\]", entry.linux or "")
    found = re.fullmatch(r"(?:vmlinuz|linux|kernel)-(.+)", parts[-1])
    return found[1] if found else (parts[-2] if len(parts) > 1 and parts[-2][:1].isdigit() else None)
