"""Kinds of tuning that concern systemd and kernel modules: unit files, whether a unit is enabled, active; a module.

Sources: systemctl(1), systemd.unit(5). ``[Install]`` of a drop-in counts: so a unit that its package ships without one
(``static``) can be enabled.
"""

from __future__ import annotations

from . import tuning
from .errors import stop
from .host_io import Host

UNIT_FILE = "unit_file"
"""A unit file or a drop-in: like a file, and systemd reads its files again."""
ENABLED, ACTIVE = "unit_enabled", "unit_active"
"""Object is a unit; values are ``enabled`` or ``disabled``, and ``active`` or ``inactive``."""
MODULE = "module"
"""Object is a kernel module; values are ``absent``, ``now``, ``at boot`` and ``now, at boot``."""
ABSENT, NOW, AT_BOOT, NOW_AND_AT_BOOT = "absent", "now", "at boot", "now, at boot"
UNIT_FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
_MODULES_LOAD = ("/etc/modules-load.d", "/run/modules-load.d", "/usr/lib/modules-load.d")
_START_S = 120.0


def installed(host: Host, unit: str) -> bool:
    """Whether there is a file of this unit."""
    return any(host.exists(f"{folder}/{unit}") for folder in UNIT_FOLDERS)


def show(host: Host, unit: str, *properties: str) -> dict[str, str] | None:
    """Properties of a unit, in one call; None where no systemd answers."""
    result = host.run(["systemctl", "show", unit, f"--property={','.join(properties)}", "--no-pager"])
    if result.rc != 0:
        return None
    return dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)


def _run(host: Host, *words: str, about: str) -> None:
    result = host.run(list(words), timeout_s=_START_S)
    if result.rc != 0:
        raise stop("host.module_failed", about, f"{' '.join(words)}: {result.last_line}")


def _write_unit_file(host: Host, path: str, value: str | None) -> None:
    tuning.KINDS[tuning.FILE].write(host, path, value)
    if value is None:
        host.remove_empty_folder(path.rpartition("/")[0])
    _run(host, "systemctl", "daemon-reload", about=path)


def _read_enabled(host: Host, unit: str) -> str | None:
    # Exit status 1 for everything but enabled; the word is on stdout, and nothing for a unit without a file.
    return host.run(["systemctl", "is-enabled", unit]).stdout.strip() or None


def _write_enabled(host: Host, unit: str, value: str | None) -> None:
    _run(host, "systemctl", "enable" if value == "enabled" else "disable", unit, about=unit)


def _read_active(host: Host, unit: str) -> str | None:
    return host.run(["systemctl", "is-active", unit]).stdout.strip() or None


def _write_active(host: Host, unit: str, value: str | None) -> None:
    _run(host, "systemctl", "start" if value == "active" else "stop", unit, about=unit)


def module_drop_in(name: str) -> str:
    """Our own file that loads a module at boot."""
    return f"/etc/modules-load.d/gpuhost-{name.replace('_', '-')}.conf"


def module_state(host: Host, name: str) -> str:
    """Whether a module is loaded, and whether some file of modules-load.d loads it at boot."""
    lines = (
        line.strip().replace("-", "_")
        for folder in _MODULES_LOAD
        for file in host.names(folder)
        for line in (host.read(f"{folder}/{file}") or "").splitlines()
    )
    at_boot = name in lines
    if host.exists(f"/sys/module/{name}"):
        return NOW_AND_AT_BOOT if at_boot else NOW
    return AT_BOOT if at_boot else ABSENT


def _write_module(host: Host, name: str, value: str | None) -> None:
    """Now first: one that the kernel refuses would be refused at every boot, and systemd would be degraded by it.

    The other way round the file goes first: a module that is in use stays loaded, but no boot loads it again.
    """
    wanted, loaded = value or ABSENT, host.exists(f"/sys/module/{name}")
    path = module_drop_in(name)
    if not wanted.endswith(AT_BOOT):
        host.remove(path)
    if wanted.startswith(NOW) and not loaded:
        _run(host, "modprobe", name, about=f"module {name}")
    elif loaded and not wanted.startswith(NOW):
        _run(host, "modprobe", "-r", name, about=f"module {name}")
    if wanted.endswith(AT_BOOT) and not module_state(host, name).endswith(AT_BOOT):
        host.write_atomic(path, f"# Managed by gpuhost.\n{name}\n".encode())


tuning.KINDS[UNIT_FILE] = tuning.Kind(tuning.KINDS[tuning.FILE].read, _write_unit_file)
# What was static, linked or without a file before is put back by "disable": only "enabled" is compared.
tuning.KINDS[ENABLED] = tuning.Kind(
    _read_enabled, _write_enabled, lambda seen, wanted: (seen == "enabled") == (wanted == "enabled")
)
tuning.KINDS[ACTIVE] = tuning.Kind(
    _read_active, _write_active, lambda seen, wanted: (seen == "active") == (wanted == "active")
)
tuning.KINDS[MODULE] = tuning.Kind(module_state, _write_module)
