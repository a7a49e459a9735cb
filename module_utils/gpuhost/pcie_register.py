"""MaxReadReq of one function, read and written through the kernel's file of its configuration space.

Only bits 14:12 of Device Control change, in one write of 16 bits: Device Status lies in the other half of the same 32
bits, and a 1 written there clears what it reports. Between our read and our write the kernel may change another bit of
the register; no program outside the kernel can close these microseconds.
"""

from __future__ import annotations

from . import tuning
from .errors import stop
from .host_io import Host
from .pcie_config import SIZES, Registers
from .pcie_tree import config_path, read_lockdown, read_registers

KIND = "pcie_mrrs"
"""Tuning's kind: the object is a full address, the value MaxReadReq in bytes."""

NOT_READABLE = {
    "no_answer": "answers 0xffff: it has fallen off the bus, or has no power",
    "needs_root": "unknown: needs root",
    "no_express": "has no PCI Express capability",
}


def read(host: Host, address: str) -> str | None:
    """MaxReadReq in bytes; None where it can't be read, or is a reserved code."""
    size = read_registers(host, address).request_bytes
    return None if size is None else str(size)


def write(host: Host, address: str, value: str | None) -> None:
    """Set MaxReadReq and read it back. Raises Stop with the reason where function or kernel do not take it."""
    found = read_registers(host, address)
    if found.state == "no_answer":
        raise stop("pcie.no_answer", address, NOT_READABLE[found.state], "an answer")
    if found.state != "readable" or value is None or int(value) not in SIZES:
        observed = NOT_READABLE.get(found.state, f"{value} is no size")
        raise stop("pcie.not_writable", address, observed, "a PCI Express device, 128 to 4096 bytes")
    lockdown = read_lockdown(host)
    if lockdown not in ("", "none"):
        raise stop("pcie.locked_down", address, f"the kernel is locked down ({lockdown})", "no lockdown")
    _write(host, address, found, int(value))


def _write(host: Host, address: str, found: Registers, size_bytes: int) -> None:
    host.write_at(config_path(address), found.control_offset, found.with_request(size_bytes).to_bytes(2, "little"))
    after = read_registers(host, address)
    if after.request_bytes != size_bytes:
        seen = f"reads {after.request_bytes}" if after.request_bytes else NOT_READABLE.get(after.state, "reads nothing")
        raise stop("pcie.not_writable", address, f"{seen} after {size_bytes} was written", f"{size_bytes} bytes")


tuning.KINDS[KIND] = tuning.Kind(read, write)
