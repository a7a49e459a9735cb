"""PCI configuration space, as much of it as PCIe tuning needs: the PCI Express capability, AER, ACS.

Pure: a reader is called for each piece (offset, length), so that nothing is read that nobody needs; some devices take a
read of their reserved registers badly (lspci(8), -xxx).

Sources: PCI Express Base Specification, chapter "Configuration Space"; the kernel's include/uapi/linux/pci_regs.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Reader = Callable[[int, int], bytes]
State = Literal["readable", "no_answer", "needs_root", "no_express"]

SIZES = (128, 256, 512, 1024, 2048, 4096)
"""MaxReadReq and MaxPayload in bytes, by their code: log2(bytes) - 7. Codes 6 and 7 are reserved."""

ALL_ONES = 0xFFFF
"""What a read gives where no device answers: it has fallen off the bus, or sleeps with its power off."""

_STATUS, _HAS_LIST, _FIRST = 0x06, 0x10, 0x34
_EXPRESS, _DEVICE_CONTROL, _TYPE_AT = 0x10, 8, 2
_EXTENDED, _AER, _ACS, _ACS_CONTROL = 0x100, 0x0001, 0x000D, 6
# Each capability takes at least 4 bytes behind the header of 64, each extended one at least 8 behind the first 256.
_LONGEST, _LONGEST_EXTENDED = (256 - 64) // 4, (4096 - 256) // 8

REQUEST_SHIFT, PAYLOAD_SHIFT, SIZE_MASK = 12, 5, 0b111
REQUEST_BITS = SIZE_MASK << REQUEST_SHIFT
RELAXED_ORDERING, NO_SNOOP, BIT_15 = 1 << 4, 1 << 11, 1 << 15
ACS_REDIRECTS = 0x04 | 0x08 | 0x10
"""ACS Control: P2P Request Redirect, P2P Completion Redirect, Upstream Forwarding."""
_ENDPOINTS = (0x0, 0x1, 0x9)
"""Device/Port Type: endpoint, legacy endpoint, endpoint integrated into the root complex."""


@dataclass(frozen=True)
class Registers:
    """What one function shows. ``control`` is its Device Control register, which lies at ``control_offset``.

    ``acs`` is ACS Control, None where there is no such capability (or no extended space).
    """

    state: State
    port_type: int = 0
    control_offset: int = 0
    control: int = 0
    has_aer: bool = False
    acs: int | None = None

    @property
    def request_bytes(self) -> int | None:
        """MaxReadReq; None where the function has none, or a reserved code."""
        return size_of(self.control >> REQUEST_SHIFT) if self.state == "readable" else None

    @property
    def payload_bytes(self) -> int | None:
        """MaxPayload; None likewise."""
        return size_of(self.control >> PAYLOAD_SHIFT) if self.state == "readable" else None

    def with_request(self, size_bytes: int) -> int:
        """Device Control with another MaxReadReq: bits 14:12 alone change.

        Bit 15 is kept as read on a bridge (Bridge Configuration Retry Enable). On an endpoint it reads 0, and a 1
        resets the function: there it is never written. Raises ValueError for what is no size or no device.
        """
        if self.state != "readable":
            raise ValueError(f"not readable: {self.state}")
        changed = (self.control & ~REQUEST_BITS) | SIZES.index(size_bytes) << REQUEST_SHIFT
        return changed & ~BIT_15 if self.port_type in _ENDPOINTS else changed


def size_of(code: int) -> int | None:
    """Bytes of a size code (its lowest three bits); None for a reserved one."""
    code &= SIZE_MASK
    return SIZES[code] if code < len(SIZES) else None


def parse(read: Reader) -> Registers:
    """Look for the capabilities by their ids, never at a fixed offset."""
    vendor = _word(read, 0)
    if vendor is None or vendor == ALL_ONES:
        return Registers("no_answer")
    offset = _find(read, _EXPRESS)
    if offset is None:
        return Registers("no_express")
    control = _word(read, offset + _DEVICE_CONTROL)
    kind = _word(read, offset + _TYPE_AT)
    if control is None or kind is None:
        # The kernel shows an ordinary user the first 64 bytes (drivers/pci/pci-sysfs.c, pci_read_config).
        return Registers("needs_root")
    if control == ALL_ONES:
        return Registers("no_answer")
    extended = _extended(read)
    acs = extended.get(_ACS)
    return Registers(
        "readable",
        port_type=kind >> 4 & 0xF,
        control_offset=offset + _DEVICE_CONTROL,
        control=control,
        has_aer=_AER in extended,
        acs=None if acs is None else _word(read, acs + _ACS_CONTROL),
    )


def _word(read: Reader, offset: int) -> int | None:
    data = read(offset, 2)
    return int.from_bytes(data, "little") if len(data) == 2 else None


def _find(read: Reader, wanted: int) -> int | None:
    """The offset of a capability, or of the first one that can't be read; None where the list does not have it."""
    status = _word(read, _STATUS) or 0
    at = (read(_FIRST, 1) or b"\0")[0] & ~3 if status & _HAS_LIST else 0
    for _ in range(_LONGEST):  # a broken list may lead back to itself
        if at < 0x40:
            return None
        entry = _word(read, at)
        if entry is None or entry & 0xFF == wanted:
            return at
        at = entry >> 8 & ~3
    return None


def _extended(read: Reader) -> dict[int, int]:
    """Offsets of the extended capabilities by id; empty where the space ends at 256 bytes."""
    found: dict[int, int] = {}
    at = _EXTENDED
    for _ in range(_LONGEST_EXTENDED):
        data = read(at, 4)
        header = int.from_bytes(data, "little")
        if len(data) < 4 or header in (0, 0xFFFFFFFF):
            break
        found.setdefault(header & 0xFFFF, at)
        at = header >> 20 & ~3
        if at < _EXTENDED:
            break
    return found
