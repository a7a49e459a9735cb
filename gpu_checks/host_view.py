"""What /proc and /sys say about the driver and the fabric, read only once CUDA has failed. Nothing here is written."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass

NVIDIA_VENDOR = "0x10de"
BRIDGE_OTHER = "0x068000"
"""The PCI class of an NVSwitch. A BMC's VGA chip, or a GPU's audio function, has another one."""

FABRIC_MANAGER = "nv-fabricmanage"
"""The daemon's name as the kernel cuts it, at 15 characters."""

KMSG = (1, 11)
KMSG_RECORDS = 50_000
"""More than any kernel's buffer holds; a limit so that a log that grows as fast as it is read ends, too."""


def read(path: str) -> str | None:
    """The text of a small file; None where it can't be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def is_open_module(version_text: str) -> bool | None:
    """Whether /proc/driver/nvidia/version is that of the open kernel modules; None where it says nothing."""
    return "Open Kernel Module" in version_text if "NVRM version" in version_text else None


def has_nvswitch(sys: str) -> bool | None:
    """Whether a PCI device is an NVSwitch: NVIDIA's, and a bridge. None where PCI can't be seen."""
    folder = os.path.join(sys, "bus/pci/devices")
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    return any(
        read(os.path.join(folder, name, "vendor")) == NVIDIA_VENDOR
        and read(os.path.join(folder, name, "class")) == BRIDGE_OTHER
        for name in names
    )


def runs_fabric_manager(proc: str) -> bool | None:
    """Whether the fabric manager's process is there. None in a container, which can't see the host's."""
    names = {read(os.path.join(proc, pid, "comm")) for pid in os.listdir(proc) if pid.isdecimal()}
    if FABRIC_MANAGER in names:
        return True
    # Only who sees the kernel's own threads sees every process.
    return False if "kthreadd" in names else None


@dataclass(frozen=True)
class Record:
    """A message of the kernel: its number since boot, its time in seconds after boot, its text."""

    number: int
    seconds: float
    text: str


def parse_kmsg(record: bytes) -> str:
    """The text of a record of /dev/kmsg: ``6,1234,5678,-;NVRM: ...`` and continuation lines."""
    return record.partition(b";")[2].split(b"\n", 1)[0].decode("utf-8", "replace")


def parse_record(record: bytes) -> Record | None:
    """A record of /dev/kmsg with its number and its time (microseconds there); None for what is none.

    >>> parse_record(b"6,1234,5678000,-;NVRM: loading")
    Record(number=1234, seconds=5.678, text='NVRM: loading')
    """
    numbers = record.partition(b";")[0].split(b",")
    if len(numbers) < 3 or not (numbers[1].isdigit() and numbers[2].isdigit()):
        return None
    return Record(int(numbers[1]), int(numbers[2]) / 1e6, parse_kmsg(record))


def kernel_records(dev: str) -> list[Record]:
    """The kernel's log, as much of it as there still is; empty where it may not be read."""
    path = os.path.join(dev, "kmsg")
    found: list[Record] = []
    try:
        seen = os.stat(path)
        # A container may have a console in its place, and reading that would take somebody's input.
        if not stat.S_ISCHR(seen.st_mode) or (os.major(seen.st_rdev), os.minor(seen.st_rdev)) != KMSG:
            return []
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        for _ in range(KMSG_RECORDS):
            with contextlib.suppress(BrokenPipeError):  # records that were overwritten while we read
                record = parse_record(os.read(file, 8192))
                found += [record] if record is not None else []
    except OSError:
        pass  # EAGAIN: that was the last one
    finally:
        os.close(file)
    return found


def kernel_log(dev: str, last: int = 5) -> tuple[str, ...]:
    """The last lines of NVIDIA's driver in the kernel's log; empty where it may not be read."""
    texts = [record.text for record in kernel_records(dev) if re.search(r"NVRM|nvidia|Xid", record.text)]
    return tuple(texts[-last:])
