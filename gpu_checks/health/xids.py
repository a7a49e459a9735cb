"""The driver's XID messages in the kernel's log, for each GPU: which of them mean a fault of the GPU or its bus.

Source: NVIDIA "XID Errors" (deploy/xid-errors), catalogue for Ampere and newer. The same numbers with the same meaning
as in the collection's audit; a test compares the two. A number that is in neither table is shown without a judgement.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_checks import host_view

FAULTS = {
    48: "uncorrectable memory error",
    61: "the GPU's microcontroller stopped",
    62: "the GPU's microcontroller halted",
    63: "a row is to be remapped, or a page retired",
    64: "a row could not be remapped, or a page not retired",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    94: "a memory error that hit one program only",
    95: "a memory error that may have hit all programs",
    109: "context switch timeout",
    119: "the GPU's firmware (GSP) does not answer",
    120: "the GPU's firmware (GSP) failed",
    140: "unrecovered memory error",
    143: "the GPU did not start",
}

OF_PROGRAMS = {
    13: "a program's kernel failed",
    31: "a program used a wrong address",
    43: "a program was stopped after a fault",
    45: "a program's channels were torn down",
    92: "many corrected memory errors",
}
"""In most cases a program's own fault, or only worth watching."""

UNKNOWN = "see NVIDIA's catalogue"

# "NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
# With MIG its instances stand behind the address: "(PCI:0000:41:00 GPU-I:05 GPU-CI:00)" (kernel_rc.c of the driver).
_LINE = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]+:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?[^)]*\): (\d+)")


@dataclass(frozen=True)
class Xid:
    """All messages with one number about one GPU. ``device``: its address without the function, ``0000:41:00``."""

    device: str
    number: int
    count: int

    @property
    def fault(self) -> bool:
        """Whether the GPU, its memory or its bus is to blame."""
        return self.number in FAULTS

    @property
    def text(self) -> str:
        """In words."""
        meaning = FAULTS.get(self.number) or OF_PROGRAMS.get(self.number, UNKNOWN)
        return f"XID {self.number}{f' x{self.count}' if self.count > 1 else ''}: {meaning}"


@dataclass(frozen=True)
class Log:
    """The XIDs that the log still holds. ``since_s``: how long after boot its first record is; older ones are lost."""

    xids: tuple[Xid, ...]
    since_s: float

    def of(self, pci_bus_id: str) -> list[Xid]:
        """Those of one GPU, by its address as sysfs writes it."""
        return [each for each in self.xids if pci_bus_id.startswith(each.device + ".")]


def parse(lines: Sequence[str]) -> tuple[Xid, ...]:
    """The messages, counted.

    >>> parse(["NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', GPU has fallen off the bus."])
    (Xid(device='0000:41:00', number=79, count=1),)
    """
    found = Counter((match[1].lower(), int(match[2])) for match in map(_LINE.search, lines) if match)
    return tuple(Xid(device, number, count) for (device, number), count in sorted(found.items()))


def read(dev: str) -> Log | None:
    """The kernel's log; None where it may not be read, as in most containers: then nothing is known, not zero."""
    records = host_view.kernel_records(dev)
    if not records:
        return None
    # A log that still begins with the kernel's own first message has lost nothing.
    since = 0.0 if records[0].number == 0 else records[0].seconds
    return Log(parse([each.text for each in records]), since)
