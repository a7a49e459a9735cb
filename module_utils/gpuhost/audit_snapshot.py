"""A host's files, links, device nodes and programs' answers as one text that people can review: what a fixture is.

``=== KIND ARGUMENT`` begins a block; what stands before the first one is about the host, for people. Kinds:

    file PATH, bare PATH     text; ``bare`` without the line end after its last line
    words PATH               words that end with a NUL each, a line for each: a /proc/PID/cmdline
    hex SIZE PATH            bytes; rows that are not named are zeros
    run STATUS PROGRAM ...   what a program answered: ``| `` before a line of stdout, ``! `` of stderr; ``%1B`` is ESC
    gpus                     what nvidia-smi --query-gpu answers, as CSV under the fields' names
    folders, empty           one path a line: folders, and files that hold nothing
    links, nodes, modes      ``PATH -> TARGET``, ``PATH MAJOR:MINOR``, ``0755 PATH``
    user                     ``root`` or ``other``: who looks

Braces in a path stand for several: ``cpu{0..63}``, ``{1,5..7}``. Of several braces in one line all go on in step.

Pure: text in, dataclass out, and back.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

_HEADER = re.compile(r"^=== ?(.*)\n", re.MULTILINE)
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_NUMBER = re.compile(r"\d+")
_CODE = re.compile(r"%([0-9A-F]{2})")
_ROW = 16
_QUOTED = {"%": "%25", "{": "%7B", "}": "%7D", "\n": "%0A", "\r": "%0D", ">": "%3E"}


@dataclass
class Snapshot:
    """The paths are the host's own. ``folders``: those that are there although nothing in them is."""

    about: str = ""
    root: bool = True
    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    nodes: dict[str, tuple[int, int]] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    runs: dict[tuple[str, ...], tuple[int, str, str]] = field(default_factory=dict)
    gpus: list[dict[str, str]] = field(default_factory=list)


# --- paths


def quoted(path: str) -> str:
    """A path as it stands in a line."""
    return "".join(_QUOTED.get(character, character) for character in path)


def _unquoted(text: str) -> str:
    for character, code in reversed(_QUOTED.items()):
        text = text.replace(code, character)
    return text


def expanded(text: str) -> list[str]:
    """All paths that a line with braces stands for. Raises ValueError where its braces have not the same length."""
    return [_unquoted(item) for item in _written_out(text)]


def _written_out(text: str) -> list[str]:
    parts = _BRACES.split(text)
    choices = [_values(part) for part in parts[1::2]]
    if len({len(item) for item in choices}) > 1:
        raise ValueError(f"the braces of {text!r} are not of one length")
    found = []
    for index in range(len(choices[0]) if choices else 1):
        values = iter(choices)
        found.append("".join(part if number % 2 == 0 else next(values)[index] for number, part in enumerate(parts)))
    return found


def _values(text: str) -> list[str]:
    found = []
    for item in text.split(","):
        numbers = _RANGE.fullmatch(item)
        found += [str(n) for n in range(int(numbers[1]), int(numbers[2]) + 1)] if numbers else [item]
    return found


def joined(paths: Iterable[str]) -> list[str]:
    """Lines for paths: those that differ in one number become one line with braces."""
    left = dict.fromkeys(quoted(path) for path in sorted(paths))
    lines = []
    while left:
        buckets: dict[tuple[str, str], list[str]] = {}
        for path in left:
            for number in _NUMBER.finditer(path):
                plain = str(int(number[0])) == number[0]
                if plain:
                    buckets.setdefault((path[: number.start()], path[number.end() :]), []).append(number[0])
        best = max(buckets, key=lambda key: len(buckets[key]), default=None)
        if best is None or len(buckets[best]) == 1:
            lines += list(left)
            break
        before, after = best
        lines.append(f"{before}{{{_ranges(sorted(map(int, buckets[best])))}}}{after}")
        for value in buckets[best]:
            del left[f"{before}{value}{after}"]
    return sorted(lines)


def _ranges(numbers: list[int]) -> str:
    groups: list[list[int]] = []
    for number in numbers:
        if groups and number == groups[-1][-1] + 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    return ",".join(str(item[0]) if len(item) == 1 else f"{item[0]}..{item[-1]}" for item in groups)


# --- rendering


def render(snapshot: Snapshot) -> str:
    """The text."""
    blocks = [snapshot.about.rstrip("\n") + "\n" if snapshot.about else "", "=== user\n", _line_of(snapshot.root)]
    for argv, (status, out, err) in sorted(snapshot.runs.items()):
        body = "".join(f"{sign} {_safe(line)}\n" for sign, text in (("|", out), ("!", err)) for line in _lines(text))
        blocks.append(f"=== run {status} {_one_line(shlex.join(argv))}\n{body}")
    if snapshot.gpus:
        blocks.append("=== gpus\n" + _csv(snapshot.gpus))
    blocks += _lists(snapshot)
    alike: dict[bytes, list[str]] = {}
    for path, data in snapshot.files.items():
        alike.setdefault(data, []).append(path)
    empty = alike.pop(b"", [])
    blocks.append("=== empty\n" + "".join(f"{line}\n" for line in joined(empty)) if empty else "")
    made = [(line, data) for data, paths in alike.items() for line in joined(paths)]
    blocks += [_file(line, data) for line, data in sorted(made)]
    return "".join(blocks)


def _one_line(text: str) -> str:
    return "".join(_QUOTED[character] if character in "%\n\r" else character for character in text)


def _safe(text: str) -> str:
    """A line without what a terminal or an editor would act on."""
    return "".join(f"%{ord(item):02X}" if item == "%" or (item < " " and item != "\t") else item for item in text)


def _line_of(root: bool) -> str:
    return "root\n" if root else "other\n"


def _lines(text: str) -> list[str]:
    """Lines of a program's output; a last line without an end gets one."""
    return text.removesuffix("\n").split("\n") if text else []


def _csv(rows: list[dict[str, str]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([names, *([row.get(name, "[N/A]") for name in names] for row in rows)])
    return out.getvalue()


def _lists(snapshot: Snapshot) -> Iterator[str]:
    lists = {
        "links": [f"{quoted(path)} -> {quoted(target)}" for path, target in sorted(snapshot.links.items())],
        "nodes": [f"{quoted(path)} {major}:{minor}" for path, (major, minor) in sorted(snapshot.nodes.items())],
        "modes": [f"{mode:04o} {quoted(path)}" for path, mode in sorted(snapshot.modes.items())],
        "folders": joined(snapshot.folders),
    }
    for kind, lines in lists.items():
        if lines:
            yield f"=== {kind}\n" + "".join(f"{line}\n" for line in lines)


def _file(path: str, data: bytes) -> str:
    text = _plain(data)
    if text is not None and text.endswith("\n"):
        return f"=== file {path}\n{text}"
    if text is not None:
        return f"=== bare {path}\n{text}\n"
    words = [_plain(word) for word in data.split(b"\0")]
    if data.endswith(b"\0") and all(word is not None and "\n" not in word for word in words):
        return f"=== words {path}\n" + "".join(f"{word}\n" for word in words[:-1])
    rows = "".join(
        f"{at:04x}: {data[at : at + _ROW].hex(' ')}\n"
        for at in range(0, len(data), _ROW)
        if any(data[at : at + _ROW])
    )  # fmt: skip
    return f"=== hex {len(data)} {path}\n{rows}"


def _plain(data: bytes) -> str | None:
    """Text that may stand in a block as it is; None where it may not."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    odd = any(not (character.isprintable() or character in "\t\n") for character in text)
    return None if odd or re.search(r"^===", text, re.MULTILINE) else text


# --- parsing


def parse(text: str) -> Snapshot:
    """Raises ValueError for what is no snapshot."""
    parts = _HEADER.split(text)
    made = Snapshot(about=parts[0].rstrip("\n"))
    for header, body in zip(parts[1::2], parts[2::2], strict=True):
        kind, _, argument = header.partition(" ")
        if kind not in _BLOCKS:
            raise ValueError(f"no such block: {header!r}")
        add = _BLOCKS[kind]
        add(made, argument, body)
    return made


def _add_file(made: Snapshot, argument: str, data: bytes) -> None:
    made.files |= dict.fromkeys(expanded(argument), data)


def _add_empty(made: Snapshot, argument: str, body: str) -> None:
    for line in body.splitlines():
        _add_file(made, line, b"")


def _add_hex(made: Snapshot, argument: str, body: str) -> None:
    size, _, path = argument.partition(" ")
    data = bytearray(int(size))
    for line in body.splitlines():
        at, _, row = line.partition(":")
        found = bytes.fromhex(row)
        data[int(at, 16) : int(at, 16) + len(found)] = found
    _add_file(made, path, bytes(data))


def _add_run(made: Snapshot, argument: str, body: str) -> None:
    status, *argv = shlex.split(_unquoted(argument))
    out, err = (
        "".join(f"{_CODE.sub(_decoded, line[2:])}\n" for line in body.split("\n") if line[:2] == sign)
        for sign in ("| ", "! ")
    )
    made.runs[tuple(argv)] = (int(status), out, err)


def _decoded(code: re.Match[str]) -> str:
    return chr(int(code[1], 16))


def _add_links(made: Snapshot, argument: str, body: str) -> None:
    for line in body.splitlines():
        for item in _written_out(line):
            path, _, target = item.partition(" -> ")
            made.links[_unquoted(path)] = _unquoted(target)


def _add_nodes(made: Snapshot, argument: str, body: str) -> None:
    for item in (item for line in body.splitlines() for item in expanded(line)):
        path, _, numbers = item.rpartition(" ")
        major, _, minor = numbers.partition(":")
        made.nodes[path] = (int(major), int(minor))


def _add_modes(made: Snapshot, argument: str, body: str) -> None:
    for line in body.splitlines():
        mode, _, path = line.partition(" ")
        made.modes |= dict.fromkeys(expanded(path), int(mode, 8))


_BLOCKS: dict[str, Callable[[Snapshot, str, str], None]] = {
    "file": lambda made, argument, body: _add_file(made, argument, body.encode()),
    "bare": lambda made, argument, body: _add_file(made, argument, body.removesuffix("\n").encode()),
    "words": lambda made, argument, body: _add_file(made, argument, body.replace("\n", "\0").encode()),
    "hex": _add_hex,
    "run": _add_run,
    "gpus": lambda made, argument, body: made.gpus.extend(csv.DictReader(io.StringIO(body))),
    "folders": lambda made, argument, body: made.folders.update(*map(expanded, body.splitlines())),
    "empty": _add_empty,
    "links": _add_links,
    "nodes": _add_nodes,
    "modes": _add_modes,
    "user": lambda made, argument, body: setattr(made, "root", body.strip() == "root"),
}
