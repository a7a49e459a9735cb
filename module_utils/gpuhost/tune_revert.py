"""``gpuhost tune --revert``: everything as it was before the first tune, as the host has it on record."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

from . import concerns, tune_deadline, tune_step, tuning
from .documents import make_head
from .errors import stop
from .host_io import Host
from .rollfile import LOCK_FILE
from .tune_step import Concern
from .tuning import FILE, Wanted, Write, Written
from .unit_state import UNIT_FILE

CONCERN = Concern("revert", "kernel_runtime", "tune.not_put_back")
NOTHING = "nothing to put back: no tuning by gpuhost is on record here"
_UNITS = "/etc/systemd/system/"
_KNOWN = concerns.ALL
"""Imported for what it brings along: without its concern's file a kind of object could not be put back."""


def revert(host: Host, name: str, run_id: str, check: bool) -> dict[str, Any]:
    """Put it back, under the host's lock; the module's answer. What the host refuses stays on record."""
    with nullcontext() if check else host.lock(LOCK_FILE, tune_step.LOCK_WAIT_S):
        if not check:
            tune_deadline.put_back(host)  # what a killed measurement has left, before its timer comes
            tune_deadline.remove(host)
        due = _on_record(host)
        if not check:
            _stop_units(host, due)
        results = tuning.revert(host, check)
        if not check and any(_is_unit(item.write) for item in results):
            host.run(["systemctl", "daemon-reload"])
    refused = tune_step.findings((), results, CONCERN)
    head = asdict(make_head("tune", name, run_id))
    return {
        "changed": any(item.status == "written" for item in results),
        "lines": [*lines(results), *(f"not put back: {item.observed}" for item in refused)] if results else [NOTHING],
        "gpuhost_documents": [
            {**head, "concern": CONCERN.name, **tuning.document(results, Wanted(refused, tuple(due)))},
        ],
    }


def lines(results: Sequence[Written]) -> list[str]:
    """What was put back. A file of ours that goes is said to be removed, not what it held."""
    return tune_step.lines(results)


def _on_record(host: Host) -> list[Write]:
    """What is to be put back. Raises Stop where a newer gpuhost has put something on record that is not known here."""
    due = tuning.load(host).writes()
    strange = sorted({item.kind for item in due} - set(tuning.KINDS))
    if strange:
        way_out = "Use the gpuhost that has tuned this host, or a newer one"
        raise stop("host.module_failed", tuning.RECORD, f"unknown kinds: {', '.join(strange)}", "", way_out)
    return due


def _is_unit(write: Write) -> bool:
    return write.kind in (FILE, UNIT_FILE) and write.object.startswith(_UNITS)


def _stop_units(host: Host, due: Sequence[Write]) -> None:
    """Our own units that go: one that has done its work at boot would stay there as active, without a file."""
    gone = [item.object.removeprefix(_UNITS) for item in due if _is_unit(item) and item.value is None]
    units = [name for name in gone if "/" not in name and "@" not in name and host.exists(_UNITS + name)]
    if units:
        host.run(["systemctl", "stop", *units])
