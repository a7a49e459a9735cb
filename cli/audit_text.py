"""An audit for a terminal: at most 100 columns, colour only where somebody looks."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from typing import TextIO

from gpuhost.documents import Finding
from gpuhost_cli.audit_data import LISTS, SHORT, Audits, Change, HostAudit
from gpuhost_cli.explain_text import printable

WIDTH = 100
GAP = "  "
COLOURS = {"security": "31", "p0_runtime": "31", "p1_reboot": "33", "unknown": "36", "good": "32", "info": "0"}
VERDICTS = {
    "not_expected": ("Not expected: changed, and not as wished", "31"),
    "expected": ("Expected: as wished now", "32"),
    "other": ("Other changes", "0"),
}


def has_colour(stream: TextIO) -> bool:
    """A terminal whose user has not said otherwise (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def render(audits: Audits, colour: bool) -> str:
    """The whole text."""
    lines: list[str] = []
    if len(audits.hosts) > 1:
        lines += [*_summary(audits.hosts), ""]
    for number, host in enumerate(audits.hosts):
        lines += ["", "=" * WIDTH] if number else []
        lines += _host(host, colour)
    lines += ["", *(f"note: {item}" for item in audits.notes)] if audits.notes else []
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _summary(hosts: Sequence[HostAudit]) -> Iterator[str]:
    """One line a host."""
    name_width = min(30, max(len("host"), *(len(item.host) for item in hosts)))
    heads = list(SHORT.values())
    widths = [max(4, len(head)) for head in heads]
    counts = GAP.join(head.rjust(width) for head, width in zip(heads, widths, strict=True))
    yield f"{'host'.ljust(name_width)}{GAP}{counts}{GAP}kernel"
    for item in hosts:
        name = _cut(item.host, name_width).ljust(name_width)
        if item.failure:
            yield f"{name}{GAP}{_cut('not audited: ' + _shown(item.failure), WIDTH - name_width - len(GAP))}"
            continue
        numbers = GAP.join(
            (str(item.counts[key]) if item.counts[key] else "·").rjust(width)
            for key, width in zip(SHORT, widths, strict=True)
        )
        yield _cut(f"{name}{GAP}{numbers}{GAP}{item.kernel}{'' if item.as_root else ' (without root)'}", WIDTH)


def _host(host: HostAudit, colour: bool) -> Iterator[str]:
    yield _paint(host.sentence, "1", colour)
    if host.failure:
        yield from textwrap.wrap(_shown(host.failure), WIDTH - 2, initial_indent="  ", subsequent_indent="  ")
        return
    root = "as root" if host.as_root else "without root: much of it is unknown"
    yield f"kernel {host.kernel}, read at {host.taken_at} in {host.seconds:.2f} s, {root}"
    if host.changes is not None:
        yield from _changes(host, colour)
        return
    for severity, title in LISTS.items():
        found = host.listed(severity)
        if found:
            yield ""
            yield _paint(f"{title} ({len(found)})", f"1;{COLOURS[severity]}", colour)
            yield from _list(found, with_expected=severity not in ("good", "info"))


def _list(found: Sequence[Finding], *, with_expected: bool) -> Iterator[str]:
    """The rows of one list. What the same step ends stands together, with the step below."""
    id_width = min(28, max(len(item.id) for item in found))
    left = WIDTH - 2 - id_width - len(GAP)
    expected_width = min(30, max(len(item.expected) for item in found))
    widths = [id_width, left - len(GAP) - expected_width, expected_width] if with_expected else [id_width, left]
    for fix in dict.fromkeys(item.fix for item in found):
        for item in (item for item in found if item.fix == fix):
            cells = [item.id, item.observed, item.expected][: len(widths)]
            yield from _row(cells, widths)
        if fix:
            yield from textwrap.wrap(_shown(fix), WIDTH, initial_indent="    -> ", subsequent_indent="       ")


def _row(cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    columns = [
        textwrap.wrap(_shown(cell), max(1, width), break_on_hyphens=False) or [""]
        for cell, width in zip(cells, widths, strict=True)
    ]
    for number in range(max(map(len, columns))):
        parts = [
            (column[number] if number < len(column) else "").ljust(width)
            for column, width in zip(columns, widths, strict=True)
        ]
        yield "  " + GAP.join(parts)


def _changes(host: HostAudit, colour: bool) -> Iterator[str]:
    assert host.since is not None
    then = f"since {host.since.taken_at}"
    if host.since.kernel != host.kernel:
        then += f", kernel then {host.since.kernel}"
    yield then + (", booted since" if host.rebooted else ", not booted since")
    if host.since.as_root != host.as_root:
        yield f"then {'as root' if host.since.as_root else 'without root'}: what is known differs by that alone"
    if not host.changes:
        yield "nothing has changed"
    for verdict, (title, code) in VERDICTS.items():
        changes = host.changed(verdict)
        if changes:
            yield ""
            yield _paint(f"{title} ({len(changes)})", f"1;{code}", colour)
            for change in changes:
                yield from _change(change)


def _change(change: Change) -> Iterator[str]:
    item = change.after or change.before
    assert item is not None
    yield f"  {item.id}"
    for word, part in (("then", change.before), ("now", change.after)):
        text = f"{part.observed} ({SHORT.get(part.severity, part.severity)})" if part else "no such finding"
        yield from textwrap.wrap(_shown(text), WIDTH, initial_indent=f"    {word:<5}", subsequent_indent=" " * 9)


def _shown(text: str) -> str:
    """What a process or a file of a container has in it does nothing to the terminal."""
    return printable(" ".join(text.split()))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _paint(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text
