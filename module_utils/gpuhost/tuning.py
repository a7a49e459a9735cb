"""The frame of all tuning: what is written on a host, what it was before the first time, and how it is put back.

Each concern (sysctl, CPU, GPU runtime, PCIe) is a pure function of facts and wishes that gives findings and writes:
what tune would write is what audit expects. Here the writes are carried out, one by one: one that the kernel refuses
is reported by itself and keeps none of the others back.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .documents import Finding
from .errors import Stop, stop
from .host_io import Host

RECORD = "/var/lib/gpuhost/tuning.json"
"""What was there before the first tune, by kind and object: ``--revert`` restores exactly that."""

LIVE, FILE = "live", "file"
"""Kinds that every concern can use: a value of the running kernel (a text file in /proc or /sys), a file on disk."""


@dataclass(frozen=True)
class Write:
    """One thing to write. ``kind`` says how (see KINDS), ``object`` where, ``value`` what; None removes a file.

    ``why`` is for people, in a few words.
    """

    kind: str
    object: str
    value: str | None
    why: str = ""


@dataclass(frozen=True)
class Wanted:
    """What a concern wants of a host: findings as they are before any write, and the writes that would end them."""

    findings: tuple[Finding, ...] = ()
    writes: tuple[Write, ...] = ()


@dataclass(frozen=True)
class Written:
    """What became of one write. ``status``: ``same`` (nothing to do), ``written``, ``refused`` with the reason."""

    write: Write
    before: str | None
    status: Literal["same", "written", "refused"]
    reason: str = ""

    @property
    def is_text(self) -> bool:
        """Whether it is a whole file that is written or removed, not one value."""
        return self.write.kind == FILE or any("\n" in (text or "").strip() for text in (self.before, self.write.value))

    @property
    def line(self) -> str:
        """For people."""
        old, new = self.before, self.write.value
        if self.is_text:
            return f"{self.write.object}: {'removed' if new is None else 'written' if old is None else 'rewritten'}"
        old, new = (None if text is None else " ".join(text.split()) for text in (old, new))
        return f"{self.write.object}: {'nothing' if old is None else old} -> {'removed' if new is None else new}"


@dataclass(frozen=True)
class Kind:
    """How one kind of object is read and written. Both raise Stop where the host refuses; ``read`` gives None for none.

    ``same`` compares what is there with what is wanted: the kernel may spell a value otherwise than it was written.
    """

    read: Callable[[Host, str], str | None]
    write: Callable[[Host, str, str | None], None]
    same: Callable[[str | None, str | None], bool] = lambda seen, wanted: seen == wanted


def _read_file(host: Host, path: str) -> str | None:
    data = host.read_bytes(path)
    return None if data is None else data.decode("utf-8", "surrogateescape")


def _write_file(host: Host, path: str, value: str | None) -> None:
    if value is None:
        host.remove(path)
    else:
        host.write_atomic(path, value.encode("utf-8", "surrogateescape"), host.mode(path) or 0o644)


def _same_value(seen: str | None, wanted: str | None) -> bool:
    """The kernel separates several numbers by tabs and shows a choice in brackets (``always [madvise] never``)."""
    if seen is None or wanted is None:
        return seen is wanted
    words, target = seen.split(), wanted.split()
    chosen = [word[1:-1] for word in words if word.startswith("[") and word.endswith("]")]
    return words == target or (len(target) == 1 and chosen == target)


KINDS: dict[str, Kind] = {
    LIVE: Kind(
        lambda host, path: host.read(path), lambda host, path, value: host.write_live(path, value or ""), _same_value
    ),
    FILE: Kind(_read_file, _write_file),
}
"""Concerns add their own kinds (PCIe registers, units)."""


@dataclass
class Record:
    """``tuning.json``: the first ``before`` of every object, in the order in which they were written."""

    befores: list[dict[str, Any]] = field(default_factory=list)

    def knows(self, write: Write) -> bool:
        """Whether the object's state before the first tune is on record."""
        return any((item["kind"], item["object"]) == (write.kind, write.object) for item in self.befores)

    def remember(self, write: Write, before: str | None) -> None:
        """Record what was there, unless an earlier tune did."""
        if not self.knows(write):
            coded = None if before is None else base64.b64encode(before.encode("utf-8", "surrogateescape")).decode()
            self.befores.append({"kind": write.kind, "object": write.object, "before": coded})

    def forget(self, done: Sequence[Write]) -> None:
        """Drop what was put back."""
        gone = {(write.kind, write.object) for write in done}
        self.befores = [item for item in self.befores if (item["kind"], item["object"]) not in gone]

    def writes(self) -> list[Write]:
        """The writes that put everything back, the last one first."""
        return [
            Write(item["kind"], item["object"], _decoded(item["before"]), "as before the first tune")
            for item in reversed(self.befores)
        ]


def _decoded(text: str | None) -> str | None:
    return None if text is None else base64.b64decode(text).decode("utf-8", "surrogateescape")


def load(host: Host) -> Record:
    """The record; an empty one where nothing was ever tuned. Raises Stop where it can't be read."""
    text = host.read(RECORD)
    if text is None:
        return Record()
    try:
        befores = json.loads(text)["befores"]
        for item in befores:
            _decoded(item["before"])
            item["kind"], item["object"]
    except (ValueError, KeyError, TypeError) as error:
        way_out = f"Look at {RECORD}; without it nothing can be put back by gpuhost"
        raise stop("host.module_failed", RECORD, f"not a record of tuning: {error}", "", way_out) from error
    return Record(list(befores))


def save(host: Host, record: Record) -> None:
    """Write the record; an empty one goes."""
    if record.befores:
        text = json.dumps({"schema": "gpuhost/tuning", "befores": record.befores}, indent=2)
        host.write_atomic(RECORD, (text + "\n").encode(), 0o600)
    else:
        host.remove(RECORD)


def apply(host: Host, writes: Sequence[Write], check: bool) -> list[Written]:
    """Carry out what differs; in check mode only say so. The record is on disk before anything is written."""
    seen = [(write, _seen(host, write)) for write in writes]
    due = [(write, before) for write, before in seen if not KINDS[write.kind].same(before, write.value)]
    if not check and due:
        record = load(host)
        for write, before in due:
            record.remember(write, before)
        save(host, record)
    results = {id(write): _carry_out(host, write, before, check) for write, before in due}
    return [results.get(id(write)) or Written(write, before, "same") for write, before in seen]


def revert(host: Host, check: bool) -> list[Written]:
    """Put everything back as it was before the first tune. What the host refuses stays on record."""
    record = load(host)
    results = [_put_back(host, write, check) for write in record.writes()]
    if not check:
        record.forget([item.write for item in results if item.status != "refused"])
        save(host, record)
    return results


def _put_back(host: Host, write: Write, check: bool) -> Written:
    """One object; one that can't be read keeps none of the others back.

    A live value whose file is gone (another kernel, another driver) is gone with it: nothing is left to put back.
    """
    if write.kind == LIVE and not host.exists(write.object):
        return Written(write, None, "same")
    try:
        before = _seen(host, write)
    except Stop as error:
        return Written(write, None, "refused", error.blocker.observed)
    return _carry_out(host, write, before, check)


def _seen(host: Host, write: Write) -> str | None:
    return KINDS[write.kind].read(host, write.object)


def _carry_out(host: Host, write: Write, before: str | None, check: bool) -> Written:
    kind = KINDS[write.kind]
    if kind.same(before, write.value):
        return Written(write, before, "same")
    if check:
        return Written(write, before, "written")
    try:
        kind.write(host, write.object, write.value)
        after = kind.read(host, write.object)
    except Stop as error:
        return Written(write, before, "refused", error.blocker.observed)
    if not kind.same(after, write.value):
        return Written(write, before, "refused", f"reads {(after or 'nothing').strip()} after it was written")
    return Written(write, before, "written")


def document(results: Sequence[Written], wanted: Wanted) -> dict[str, Any]:
    """The part of ``tune.json`` of one concern."""
    return {
        "findings": [asdict(item) for item in wanted.findings],
        "written": [
            {"kind": item.write.kind, "object": item.write.object, "status": item.status, "reason": item.reason,
             "before": item.before if item.write.kind == LIVE else None, "why": item.write.why}
            for item in results
        ],
    }  # fmt: skip
