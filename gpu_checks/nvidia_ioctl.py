"""The few harmless ioctls with which a device node proves that NVIDIA's driver answers behind it.

Numbers and structures are those of NVIDIA's open-gpu-kernel-modules (nv-ioctl-numbers.h, nv-ioctl.h,
uvm_linux_ioctl.h), unchanged over the releases we know unless said otherwise.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from dataclasses import dataclass
from typing import Callable


def _iowr(number: int, size_bytes: int) -> int:
    """``_IOWR('F', number, size)`` as x86 and arm64 encode it: direction in bits 31:30, size in 29:16."""
    return (3 << 30) | (size_bytes << 16) | (ord("F") << 8) | number


# struct { u32 cmd; u32 reply; char versionString[64]; }
VERSION_LAYOUT = struct.Struct("=II64s")
CHECK_VERSION_STR = _iowr(200 + 10, VERSION_LAYOUT.size)
# '2' asks for the driver's version. Drivers before 530.30 read it as "skip the check" and leave the string empty.
VERSION_QUERY = ord("2")
VERSION_RECOGNIZED = 1

# struct { int rc; u32 adapterStatus; }, the outcome of this file's own open. Known to drivers since about 550.40.
OPEN_LAYOUT = struct.Struct("=iI")
WAIT_OPEN_COMPLETE = _iowr(200 + 18, OPEN_LAYOUT.size)

# struct { u64 flags; u32 rmStatus; }, padded to 16 bytes. Must be the first call on a fresh file of nvidia-uvm.
UVM_LAYOUT = struct.Struct("=QI4x")
UVM_INITIALIZE = 0x30000001
# The driver writes the status; this filler is no NV_STATUS, so an answer that was not written does not look good.
UVM_NOT_WRITTEN = 0xFFFFFFFF


@dataclass(frozen=True)
class Query:
    """What a driver said. ``good`` is None where the driver does not know the question (no proof, no failure)."""

    name: str
    good: bool | None
    answer: str
    errno_name: str | None = None
    driver_version: str | None = None


Ioctl = Callable[[int, int, bytearray], None]
"""(file, request, buffer that is rewritten in place); raises OSError."""


def real_ioctl(file: int, request: int, buffer: bytearray) -> None:
    """The kernel's ioctl."""
    fcntl.ioctl(file, request, buffer, True)


def errno_name(number: int | None) -> str:
    """The symbolic name of an errno (``ENXIO``), or its number in words."""
    return "none" if number is None else errno.errorcode.get(number, f"errno {number}")


def _failed(name: str, error: OSError) -> Query:
    return Query(name, False, f"{os.strerror(error.errno or 0)}", errno_name(error.errno))


def parse_version(reply: bytes) -> Query:
    """Read the structure that CHECK_VERSION_STR gave back."""
    _, recognized, text = VERSION_LAYOUT.unpack(reply)
    version = text.split(b"\0", 1)[0].decode("ascii", "replace")
    if recognized != VERSION_RECOGNIZED:
        return Query("check_version", False, f"reply {recognized}, expected {VERSION_RECOGNIZED}")
    if not version:
        return Query("check_version", True, "recognized, without a version (driver before 530)")
    return Query("check_version", True, version, driver_version=version)


def ask_version(file: int, ioctl: Ioctl = real_ioctl) -> Query:
    """Ask nvidiactl for the driver's version: the first call of every NVIDIA client.

    Only nvidiactl answers it; the driver refuses it with EINVAL on /dev/nvidiaN.
    """
    buffer = bytearray(VERSION_LAYOUT.pack(VERSION_QUERY, 0, b""))
    try:
        ioctl(file, CHECK_VERSION_STR, buffer)
    except OSError as error:
        return _failed("check_version", error)
    return parse_version(bytes(buffer))


def parse_open_complete(reply: bytes) -> Query:
    """Read the structure that WAIT_OPEN_COMPLETE gave back."""
    code, adapter_status = OPEN_LAYOUT.unpack(reply)
    return Query("wait_open_complete", code == 0 and adapter_status == 0, f"rc {code}, adapter {adapter_status:#x}")


def ask_gpu(file: int, ioctl: Ioctl = real_ioctl) -> Query:
    """Ask a GPU node whether its adapter came up.

    A driver that does not know the question says EINVAL or ENOTTY. That is no failure: our open was a blocking one,
    which returns only after the adapter has started.
    """
    buffer = bytearray(OPEN_LAYOUT.pack(-1, 0))
    try:
        ioctl(file, WAIT_OPEN_COMPLETE, buffer)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOTTY):
            return Query("wait_open_complete", None, "not known to this driver", errno_name(error.errno))
        return _failed("wait_open_complete", error)
    return parse_open_complete(bytes(buffer))


def parse_uvm(reply: bytes) -> Query:
    """Read the structure that UVM_INITIALIZE gave back."""
    _, status = UVM_LAYOUT.unpack(reply)
    return Query("uvm_initialize", status == 0, f"rmStatus {status:#x}")


def ask_uvm(file: int, ioctl: Ioctl = real_ioctl) -> Query:
    """Make a UVM context on a fresh file of nvidia-uvm, as CUDA does; closing the file ends it."""
    buffer = bytearray(UVM_LAYOUT.pack(0, UVM_NOT_WRITTEN))
    try:
        ioctl(file, UVM_INITIALIZE, buffer)
    except OSError as error:
        return _failed("uvm_initialize", error)
    return parse_uvm(bytes(buffer))
