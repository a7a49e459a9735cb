"""The driver's XID messages of this boot, and what each kind of them asks for.

Source: NVIDIA "XID Errors" (deploy/xid-errors), catalogue for Ampere and newer; only those that a host with GPUs for
compute meets. A number that is not in the table is shown without a judgement.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .documents import Finding, Severity
from .gpu_query import address_of
from .host_io import Host

CODE, MINOR = "gpu.xid", "gpu.xid_minor"
# "NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
# With MIG its instances stand behind the address: "(PCI:0000:41:00 GPU-I:05 GPU-CI:00)".
_LINE = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d+)(?:,\s*(.*))?")
_JOURNAL = ["journalctl", "--dmesg", "--boot", "--grep=NVRM: Xid", "--output=cat", "--quiet", "--no-pager"]
_FIX_RESET = "Stop what uses the GPU, then: nvidia-smi -i GPU -r; where it comes back: dcgmi diag -r 3"
_FIX_REBOOT = "Drain the host and reboot it; where it comes back: power cycle, check seating and risers, replace"
_FIX_APPLICATION = "Look at the process that is named; it is the program's own fault in most cases"

KNOWN: dict[int, tuple[Severity, str, str]] = {
    13: ("info", "a program's kernel failed", _FIX_APPLICATION),
    31: ("info", "a program used a wrong address", _FIX_APPLICATION),
    43: ("info", "a program was stopped after a fault", _FIX_APPLICATION),
    45: ("info", "a program's channels were torn down", _FIX_APPLICATION),
    48: ("p0_runtime", "uncorrectable memory error", _FIX_RESET),
    61: ("p0_runtime", "the GPU's microcontroller stopped", _FIX_RESET),
    62: ("p0_runtime", "the GPU's microcontroller halted", _FIX_RESET),
    63: ("p1_reboot", "a row is to be remapped, or a page retired", "Takes effect with a reset or a reboot"),
    64: ("p1_reboot", "a row could not be remapped, or a page not retired", "Replace the GPU"),
    74: ("p0_runtime", "NVLink error", _FIX_RESET),
    79: ("p1_reboot", "the GPU has fallen off the bus", _FIX_REBOOT),
    92: ("info", "many corrected memory errors", "Watch it; replace the GPU where the rate rises"),
    94: ("p0_runtime", "a memory error that hit one program only", "Start that program again; reset when convenient"),
    95: ("p0_runtime", "a memory error that may have hit all programs", _FIX_RESET),
    109: ("p0_runtime", "context switch timeout", _FIX_RESET),
    119: ("p0_runtime", "the GPU's firmware (GSP) does not answer", _FIX_RESET),
    120: ("p0_runtime", "the GPU's firmware (GSP) failed", _FIX_RESET),
    140: ("p0_runtime", "unrecovered memory error", _FIX_RESET),
    143: ("p1_reboot", "the GPU did not start", _FIX_REBOOT),
}
_RANK: tuple[Severity, ...] = ("p1_reboot", "p0_runtime", "info")


@dataclass(frozen=True)
class Xid:
    """One message."""

    address: str
    number: int
    text: str


@dataclass(frozen=True)
class Log:
    """All of this boot, in their order; ``unknown`` says why they are not known."""

    xids: tuple[Xid, ...] = ()
    unknown: str = ""


def parse(text: str) -> tuple[Xid, ...]:
    """The messages in a kernel log."""
    found = (_LINE.search(line) for line in text.splitlines())
    return tuple(Xid(address_of(item[1]), int(item[2]), (item[3] or "").strip()) for item in found if item)


def read(host: Host) -> Log:
    """From the journal; where there is none, from the kernel's ring buffer, which may have lost the oldest."""
    if not host.is_root():
        return Log(unknown="needs root")
    journal = host.run(_JOURNAL)
    # 1 with no word: no such line. A journalctl without pattern matching, or no journal at all, says so.
    if journal.rc in (0, 1) and not journal.stderr.strip():
        return Log(parse(journal.stdout))
    ring = host.run(["dmesg"])
    if ring.rc == 0 and ring.stdout.strip():
        return Log(parse(ring.stdout))
    return Log(unknown=f"{journal.last_line}; dmesg: {ring.last_line}")


def findings(log: Log) -> list[Finding]:
    """One finding for those that ask for something, one for the rest: a program's fault hides no broken GPU."""
    if log.unknown:
        return [_finding(CODE, "unknown", f"unknown: {log.unknown}", "")]
    serious = [item for item in log.xids if _severity(item) != "info"]
    minor = [item for item in log.xids if _severity(item) == "info"]
    found = [_summary(CODE, serious)] if serious else [_finding(CODE, "good", "none since boot", "")]
    return [*found, _summary(MINOR, minor)] if minor else found


def _severity(item: Xid) -> Severity:
    return KNOWN[item.number][0] if item.number in KNOWN else "info"


def _summary(code: str, group: Sequence[Xid]) -> Finding:
    severity = next(rank for rank in _RANK if any(_severity(item) == rank for item in group))
    counts = Counter((item.address, item.number) for item in group)
    texts, fixes = [], []
    for (address, number), count in sorted(counts.items()):
        _, meaning, fix = KNOWN.get(number, ("info", "see NVIDIA's catalogue", "docs.nvidia.com/deploy/xid-errors"))
        texts.append(f"{address} XID {number}{f' x{count}' if count > 1 else ''}: {meaning}")
        fixes.append(fix)
    return _finding(code, severity, "; ".join(texts), "; ".join(dict.fromkeys(fixes)))


def _finding(code: str, severity: Severity, observed: str, fix: str) -> Finding:
    why = "An XID is the driver's own report of a fault: of the GPU, of the bus, or of a program."
    return Finding(code, "gpu_state", severity, observed, "none since boot", why, fix, "kernel log of this boot")
