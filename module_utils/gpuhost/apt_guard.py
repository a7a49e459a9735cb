"""What could disturb the packages between now and the reboot, and the reboot itself.

Holds, the holder of dpkg's lock, apt's own timers, needrestart, libraries that were replaced under a loaded module,
and a kernel that kexec has ready (case roll-03). Nothing here kills a holder, takes a hold off or deletes a lock.

Pure: texts and dicts in, texts and tuples out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

LOCK_FILES = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)
"""The files that apt and dpkg lock, the one that is taken first first."""

#: Packages that only depend on the newest of a series. Releases begin with a digit and a patch level.
_META = re.compile(
    r"linux-(?:image|headers|modules-extra|modules-nvidia-\d+(?:-server)?(?:-open)?)-[a-z].*"
    r"|linux-modules-nvidia-\d+(?:-server)?(?:-open)?-[a-z].*"
    r"|linux-(?:generic|lowlatency|virtual|nvidia)(?:-.*)?"
    r"|(?:proxmox|pve)-(?:default-)?(?:kernel|headers)(?:-\d+\.\d+)?"
    r"|proxmox-ve|nvidia-driver.*|cuda-drivers.*|nvidia-open(?:-\d+)?"
)


def _bare(name: str) -> str:
    """``libcuda1:i386`` -> ``libcuda1``."""
    return name.strip().partition(":")[0]


def held(showhold: str) -> tuple[str, ...]:
    """The packages of ``apt-mark showhold``, one a line."""
    return tuple(dict.fromkeys(filter(None, map(_bare, showhold.splitlines()))))


def held_in_the_way(showhold: str, wanted: Iterable[str]) -> tuple[str, ...]:
    """The held packages without which the target can't be installed; the roll stops with their names.

    wanted  every package of the transaction: image and headers, and with Ubuntu's precompiled driver its package

    apt refuses to change a held package ("Held packages were changed"), also one that is not installed yet.
    """
    names = {_bare(name) for name in wanted}
    return tuple(name for name in held(showhold) if name in names)


def held_and_due(held_versions: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[str, ...]:
    """The held packages that would have to change: one that has the wanted version already is in nobody's way.

    held_versions  held package -> its installed version, empty where it is not installed
    wanted         package of the transaction -> the version that the target needs
    """
    due = [name for name, version in wanted.items() if held_versions.get(name) != version]
    return held_in_the_way("\n".join(held_versions), due)


def held_meta(showhold: str) -> tuple[str, ...]:
    """Held meta packages of kernel and driver: not in the way of exact versions, but worth a word.

    With ``linux-image-generic-hwe-24.04`` on hold the host gets no later kernel by itself once this one is promoted.
    """
    return tuple(name for name in held(showhold) if _META.fullmatch(name))


#: ``1: POSIX  ADVISORY  WRITE 5043 08:01:131105 0 EOF``; a waiting process has ``->`` after the number (proc(5)).
_LOCK = re.compile(r"^\d+: POSIX\s+\S+\s+WRITE\s+(?P<pid>\d+)\s+[0-9a-f]+:[0-9a-f]+:(?P<inode>\d+)\s")


def lock_holder(proc_locks: str, inodes: Mapping[int, str], names: Mapping[int, str]) -> str | None:
    """Who holds one of apt's locks, for the message while waiting; None where nobody does.

    inodes  inode -> path of those LOCK_FILES that exist
    names   pid -> /proc/<pid>/comm; a process that is gone by now may be missing

    The device number in /proc/locks is not compared: on btrfs it is another one than stat's.
    """
    for line in proc_locks.splitlines():
        found = _LOCK.match(line)
        path = inodes.get(int(found["inode"])) if found else None
        if found and path:
            pid = int(found["pid"])
            return f"{names.get(pid, '').strip() or 'a process'} (pid {pid}) holds {path}"
    return None


UNATTENDED_UNITS = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "apt-daily.service",
    "apt-daily-upgrade.service",
    "unattended-upgrades.service",
)
"""apt's own timers and what they start. unattended-upgrades.service only upgrades while the host shuts down."""


def unattended_state(units: Mapping[str, str]) -> tuple[str, ...]:
    """The units that could change packages between the package step and the reboot.

    units  name -> ActiveState of systemd (``active``, ``activating``, ``inactive``, ...); absent: no such unit

    A timer that is active may fire; a service that is active or activating runs now.
    """
    return tuple(name for name in UNATTENDED_UNITS if units.get(name, "").strip() in ("active", "activating"))


def needrestart_environment() -> dict[str, str]:
    """The environment of every apt and dpkg call: nothing asks, and nothing restarts a service that holds a GPU.

    needrestart's hook for apt ends at once where NEEDRESTART_SUSPEND is not empty; where needrestart runs all the same
    (another hook), NEEDRESTART_MODE=l makes it list only, and with DEBIAN_FRONTEND=noninteractive it takes the mode
    ``i`` for one without a terminal. All three since needrestart 3.0 (its ex/apt/apt-pinvoke and needrestart(1)).
    """
    return {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1", "NEEDRESTART_MODE": "l"}


def reboot_pending_libraries(loaded_version: str, library_version: str | None) -> str | None:
    """That the user-space libraries were replaced under the loaded module; None where they fit or nothing is loaded.

    loaded_version   /sys/module/nvidia/version, empty where the module is not loaded
    library_version  from the file name of libnvidia-ml / libcuda; None where the host has none

    Until the next reboot nothing new can use a GPU, so what runs now may not be started again on this kernel.
    """
    loaded = loaded_version.strip()
    if loaded and library_version and loaded != library_version:
        return f"the loaded module is {loaded}, the libraries are {library_version}: replaced since the last boot"
    return None


KEXEC_LOADED = "/sys/kernel/kexec_loaded"
KEXEC_DEFAULTS = "/etc/default/kexec"
"""Debian's kexec-tools; it reads the files of /etc/default/kexec.d after it."""
KEXEC_UNITS = ("kexec-load.service", "kexec.service")

_LOAD_KEXEC = re.compile(r"^\s*LOAD_KEXEC=(?P<quote>[\"']?)(?P<value>[^\"'\s#;]*)(?P=quote)", re.MULTILINE)
#: is-enabled answers with which a unit never starts or stops by itself; empty: the unit does not exist.
_NEVER = ("masked", "masked-runtime", "disabled", "not-found", "")


def kexec_armed(kexec_loaded: str, defaults: str, units: Mapping[str, str]) -> str | None:
    """Why a reboot would not go through firmware and boot loader, so that no one-shot counts; None where it does.

    kexec_loaded  /sys/kernel/kexec_loaded (the crash kernel's is another file and does no harm)
    defaults      /etc/default/kexec and then the files of kexec.d, one after the other
    units         KEXEC_UNITS -> ``systemctl is-enabled``; empty where that was not asked

    A loaded kernel counts by itself: ``shutdown -r`` of systemd takes it instead of the boot loader.
    """
    if kexec_loaded.strip() == "1":
        return f"{KEXEC_LOADED} is 1: a kernel is loaded, and a reboot may jump into it"
    settings = _LOAD_KEXEC.findall(defaults)
    if not settings or settings[-1][1] != "true":
        return None
    if units and all(units.get(name, "").strip() in _NEVER for name in KEXEC_UNITS):
        return None
    return f"{KEXEC_DEFAULTS} has LOAD_KEXEC=true: a kernel is loaded at shutdown, past the boot loader"
