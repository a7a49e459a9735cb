"""One concern of tuning as a module does it: look, write what differs, look again, say what is left.

The findings are those after the writes (in check mode those before). What the kernel refused is a finding of its own,
in the place of the one that it would have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from . import tuning
from .causes import cause
from .documents import Finding, make_head
from .host_io import Host
from .rollfile import LOCK_FILE
from .tuning import Wanted, Written

LOCK_WAIT_S = 30.0

ARGUMENTS: dict[str, Any] = {
    "host_name": {"type": "str", "required": True},
    "run_id": {"type": "str", "required": True},
}
"""Arguments that every tuning module takes."""


@dataclass(frozen=True)
class Concern:
    """What a concern is called in ``tune.json``, its findings' domain, and the cause of a refused write."""

    name: str
    domain: str
    refused: str


def tune(
    host: Host, params: dict[str, Any], check: bool, concern: Concern, look: Callable[[], Wanted]
) -> dict[str, Any]:
    """Do it, under the host's lock; the module's answer."""
    with nullcontext() if check else host.lock(LOCK_FILE, LOCK_WAIT_S):
        if not check:
            _end_measurement(host)
        before = look()
        results = tuning.apply(host, before.writes, check)
        after = before if check else look()
    found = Wanted(findings(after.findings, results, concern), after.writes)
    head = asdict(make_head("tune", params["host_name"], params["run_id"]))
    return {
        "changed": any(item.status == "written" for item in results),
        "lines": lines(results),
        "diff": [_diff(item) for item in results if item.status == "written" and item.is_text],
        "gpuhost_documents": [{**head, "concern": concern.name, **tuning.document(results, found)}],
    }


def _end_measurement(host: Host) -> None:
    """Values that a measurement has left when it was killed go back now: its timer would undo this tune later."""
    from . import tune_deadline  # noqa: PLC0415 - it knows all concerns, and these know this file

    tune_deadline.put_back(host)
    tune_deadline.remove(host)


def findings(found: Sequence[Finding], results: Sequence[Written], concern: Concern) -> tuple[Finding, ...]:
    """The findings with those about refused writes, one for all that were refused for the same reason."""
    groups: dict[tuple[str, str], list[Written]] = {}
    for item in results:
        if item.status == "refused":
            groups.setdefault((item.write.why, item.reason), []).append(item)
    objects = {part for group in groups.values() for item in group for part in item.write.object.split("|")}
    kept = tuple(item for item in found if item.severity != "p0_runtime" or item.source not in objects)
    return kept + tuple(_refused(reason, group, concern) for (_, reason), group in groups.items())


def _refused(reason: str, group: Sequence[Written], concern: Concern) -> Finding:
    first = group[0].write
    more = f" and {len(group) - 1} more" if len(group) > 1 else ""
    known = cause(concern.refused)
    return Finding(
        concern.refused, concern.domain, "p0_runtime", f"{first.object}{more}: {reason}",
        (first.value or "nothing").strip(), known.sentence, known.next_step, first.object,
    )  # fmt: skip


def lines(results: Sequence[Written]) -> list[str]:
    """What was written, a line each; many files that changed alike for the same reason are one line."""
    groups: dict[tuple[str, str | None, str | None], list[Written]] = {}
    for item in results:
        if item.status == "written":
            own = "" if item.write.why and not item.is_text else item.write.object
            groups.setdefault((own or item.write.why, item.before, item.write.value), []).append(item)
    return [_line(group) for group in groups.values()]


def _line(group: Sequence[Written]) -> str:
    first = group[0]
    if len(group) == 1:
        return first.line
    same = replace(first, write=replace(first.write, object=first.write.why)).line
    return f"{same} ({len(group)} files, the first {first.write.object})"


def _diff(item: Written) -> dict[str, str]:
    return {
        "before_header": item.write.object,
        "after_header": item.write.object,
        "before": item.before or "",
        "after": item.write.value or "",
    }
