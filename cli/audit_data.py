"""Audits as the command shows them: out of recorded documents, in lists, compared with earlier ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gpuhost.audit import URGENT
from gpuhost.documents import SCHEMA_PREFIX, Finding

LISTS = {
    "security": "Security",
    "p0_runtime": "P0, fixable at runtime",
    "p1_reboot": "P1, needs a reboot",
    "unknown": "Unknown",
    "good": "Confirmed good",
    "info": "Info",
}
"""Severities in the order in which they are shown, by the names that people know."""

SHORT = {
    "security": "security", "p0_runtime": "P0", "p1_reboot": "P1", "unknown": "unknown", "good": "good",
    "info": "info",
}  # fmt: skip
SCHEMA = SCHEMA_PREFIX + "audits"
COMPARED = ("id", "severity", "observed", "expected")


@dataclass(frozen=True)
class Change:
    """What is otherwise than in an earlier audit. ``verdict``: expected, not_expected, or other (neither better nor
    worse). Expected is what now is as the roles' variables ask for; not expected is what now is not."""

    verdict: str
    before: Finding | None
    after: Finding | None


@dataclass(frozen=True)
class HostAudit:
    """One host's audit. ``failure`` says why there is none; ``changes`` is None where nothing was compared."""

    host: str
    kernel: str = ""
    boot_id: str = ""
    as_root: bool = True
    taken_at: str = ""
    seconds: float = 0
    findings: tuple[Finding, ...] = ()
    failure: str = ""
    changes: tuple[Change, ...] | None = None
    since: HostAudit | None = None

    def listed(self, severity: str) -> tuple[Finding, ...]:
        """The findings of one list."""
        return tuple(item for item in self.findings if item.severity == severity)

    def changed(self, verdict: str) -> tuple[Change, ...]:
        """The changes of one verdict."""
        return tuple(item for item in self.changes or () if item.verdict == verdict)

    @property
    def counts(self) -> dict[str, int]:
        """How many findings each list has."""
        return {severity: len(self.listed(severity)) for severity in LISTS}

    @property
    def sentence(self) -> str:
        """``gpu1: 5 P0, 1 P1, 2 unknown, 14 good``; what nobody has is left out, but for good."""
        if self.failure:
            return f"{self.host}: not audited"
        shown = [f"{count} {SHORT[name]}" for name, count in self.counts.items() if count and name != "info"]
        return f"{self.host}: {', '.join(shown) or 'nothing found'}"

    @property
    def rebooted(self) -> bool:
        """Whether the host was booted since the earlier audit."""
        return self.since is not None and bool(self.since.boot_id) and self.since.boot_id != self.boot_id


@dataclass(frozen=True)
class Audits:
    """All hosts of one run."""

    run_id: str = ""
    taken_at: str = ""
    hosts: tuple[HostAudit, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def sentence(self) -> str:
        """How the whole run came out."""
        if len(self.hosts) == 1:
            return self.hosts[0].sentence
        urgent = sum(any(item.listed(name) for name in URGENT) for item in self.hosts)
        failed = sum(bool(item.failure) for item in self.hosts)
        parts = [f"{urgent} of {len(self.hosts)} hosts with something to do"]
        return ", ".join([*parts, *([f"{failed} not audited"] if failed else [])])


def host_audit(document: Mapping[str, Any]) -> HostAudit:
    """From ``audit.json``, of this or of an earlier version: what is not there is empty."""
    names = [item.name for item in fields(Finding)]
    findings = tuple(
        Finding(**{name: str(item.get(name, "")) for name in names})  # type: ignore[arg-type]
        for item in document.get("findings") or ()
    )
    return HostAudit(
        host=str(document.get("host", "")),
        kernel=str(document.get("kernel", "")),
        boot_id=str(document.get("boot_id", "")),
        as_root=document.get("as_root") is True,
        taken_at=str(document.get("taken_at", "")),
        seconds=float(document.get("seconds") or 0),
        findings=findings,
        failure=str(document.get("failure", "")),
    )


def load(path: Path) -> dict[str, HostAudit]:
    """Earlier audits by host: one audit's JSON, what ``--format json`` wrote, or a run's folder. Raises ValueError."""
    paths = sorted(path.glob("*/audit.json")) if path.is_dir() else [path]
    found: dict[str, HostAudit] = {}
    for item in paths:
        try:
            data = json.loads(item.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{item}: {error}") from error
        schema = data.get("schema") if isinstance(data, dict) else None
        if schema not in (SCHEMA, SCHEMA_PREFIX + "audit"):
            raise ValueError(f"{item}: not an audit: gpuhost audit --format json --output FILE writes one")
        for document in data["hosts"] if schema == SCHEMA else [data]:
            audit = host_audit(document)
            if not audit.failure:
                found[audit.host] = audit
    if not found:
        raise ValueError(f"{path}: no audit in there")
    return found


def as_json(audits: Audits) -> str:
    """All of it, as ``--format json`` gives it and ``--compare`` takes it."""
    hosts = []
    for item in audits.hosts:
        data = asdict(replace(item, since=None))
        data.pop("since")
        if item.since is not None:
            data["compared_with"] = {"taken_at": item.since.taken_at, "kernel": item.since.kernel}
        hosts.append({"schema": SCHEMA_PREFIX + "audit", "schema_version": 1, **data})
    whole = {"schema": SCHEMA, "schema_version": 1, "run_id": audits.run_id, "taken_at": audits.taken_at}
    return json.dumps({**whole, "notes": audits.notes, "hosts": hosts}, indent=2, ensure_ascii=False) + "\n"


# --- comparing


def compared(audits: Audits, earlier: Mapping[str, HostAudit]) -> Audits:
    """The same audits with what changed since. A host that was not audited then is named."""
    hosts = tuple(
        item if item.failure or item.host not in earlier else with_changes(item, earlier[item.host])
        for item in audits.hosts
    )
    new = [item.host for item in hosts if item.changes is None and not item.failure]
    lost = sorted(set(earlier) - {item.host for item in hosts})
    notes = [f"not compared, since the earlier audit does not have it: {', '.join(new)}"] if new else []
    notes += [f"in the earlier audit only: {', '.join(lost)}"] if lost else []
    return replace(audits, hosts=hosts, notes=(*audits.notes, *notes))


def with_changes(now: HostAudit, then: HostAudit) -> HostAudit:
    """What differs, finding by finding."""
    pairs = [pair for pair in _paired(then.findings, now.findings) if not _same(*pair)]
    changes = tuple(Change(_verdict(*pair), *pair) for pair in pairs)
    return replace(now, changes=changes, since=then)


_KEYS: tuple[Callable[[Finding], Hashable], ...] = (
    lambda item: tuple(getattr(item, name) for name in (*COMPARED, "source")),
    lambda item: (item.domain, item.id, item.source),
    lambda item: (item.domain, item.source),
    lambda item: (item.domain, item.id),
)
"""What makes two findings the same one, the strictest first: a finding may change its id, or where it was read."""


def _paired(then: Sequence[Finding], now: Sequence[Finding]) -> list[tuple[Finding | None, Finding | None]]:
    """Each finding of then with its like of now. Of several alike that differ none is taken for another."""
    pairs: list[tuple[Finding | None, Finding | None]] = []
    old, new = list(then), list(now)
    for key in _KEYS:
        for item in list(old):
            alike = [other for other in new if key(other) == key(item)]
            rivals = [other for other in old if key(other) == key(item)]
            if alike and (len(alike) == len(rivals) == 1 or key is _KEYS[0]):
                pairs.append((item, alike[0]))
                old.remove(item)
                new.remove(alike[0])
    return [*pairs, *((item, None) for item in old), *((None, item) for item in new)]


def _same(before: Finding | None, after: Finding | None) -> bool:
    if before is None or after is None:
        return False
    return all(getattr(before, name) == getattr(after, name) for name in COMPARED)


def _verdict(before: Finding | None, after: Finding | None) -> str:
    was, is_now = (item.severity if item else "" for item in (before, after))
    if is_now in URGENT:
        return "not_expected"
    if was in URGENT or (is_now == "good" and was != "good"):
        return "expected" if is_now != "unknown" else "other"
    return "other"
