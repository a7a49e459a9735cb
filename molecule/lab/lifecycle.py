"""What one can do with machines: bring up, stop, cut the power, start again, save."""

import os
import shutil
from pathlib import Path

from . import guest, inventory, qemu
from .command import heartbeat, say
from .errors import LabError, NoAnswer
from .image import Image, ensure_image, locked, register_user
from .image_recipe import Loader
from .machine import (
    Machine,
    Settings,
    all_machines,
    free_port,
    known,
    machine,
    remove_folder,
    snapshot_folder,
)
from .paths import cache_root, state_root

# The most that a machine may have: several run beside each other on small CI machines.
MEMORY_LIMIT_MIB = 2048
# Names of the files that a machine takes along from the image or the snapshot it is made from.
HOST_KEY = "ssh_host_ed25519_key.pub"
CLIENT_KEY = "id_ed25519"
# Python, hostname and lxc-start under emulation.
INTRODUCE_EXPECTED_S = 5.0
INTRODUCE_LIMIT_S = 90.0
# A clean shutdown takes about 5 s, more with a container that is slow to stop.
STOP_EXPECTED_S = 8.0
STOP_LIMIT_S = 120.0


def _lock_file() -> Path:
    return state_root() / "state.lock"


def up(name: str, *, origin: str | None, loader: Loader | None, memory_mib: int, workload: bool) -> Machine:
    """A running, reachable machine; a new one, unless it is up already."""
    new = machine(name)
    if new.folder.exists():
        if new.pid() is None:
            raise LabError(f"{name} exists and is off: gpuhost_lab start --name {name}, or down to throw it away")
        say(f"{name} is up already")
        guest.wait_for_boot(new)
    else:
        _create(new, origin, loader, memory_mib)
        _boot_new(new)
        flags = ["--workload"] if workload else []
        with heartbeat(f"{name}: set the name" + (" and start gpu-ct" if workload else ""), INTRODUCE_EXPECTED_S):
            guest.execute(new, ["/usr/libexec/gpuhost-lab/introduce", name, *flags], INTRODUCE_LIMIT_S)
    _refresh_inventory()
    return new


def _create(new: Machine, origin: str | None, loader: Loader | None, memory_mib: int) -> None:
    """The machine's folder with overlays, keys and settings."""
    if memory_mib > MEMORY_LIMIT_MIB:
        raise LabError(f"{memory_mib} MiB asked for, {MEMORY_LIMIT_MIB} MiB is the most")
    if origin and loader:
        raise LabError(f"snapshot {origin} has its boot loader already: leave out --loader {loader}")
    source = snapshot_folder(origin) if origin else ensure_image(loader or Loader.SYSTEMD_BOOT).folder
    if not (source / "disk.qcow2").exists():
        raise LabError(f"no snapshot {origin}: gpuhost_lab status lists what there is")
    image = (source / "image").read_text() if origin else source.name
    new.folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(_lock_file()):
        work = new.folder.with_name(f".{new.name}.{os.getpid()}.new")
        work.mkdir()
        _overlay(Machine(work), source)
        for file in (CLIENT_KEY, HOST_KEY):
            shutil.copy2(source / file, work / file)
        settings = Settings(new.name, free_port(), memory_mib, image, origin or "image")
        host_key = (work / HOST_KEY).read_text().split()
        (work / "known_hosts").write_text(f"[127.0.0.1]:{settings.ssh_port} {host_key[0]} {host_key[1]}\n")
        Machine(work).write_settings(settings)
        register_user(image, new.folder)
        work.rename(new.folder)


def _overlay(target: Machine, source: Path) -> None:
    for overlay in (target.disk, target.variables):
        qemu.create_overlay((source / overlay.name).resolve(), overlay)


def boot(existing: Machine, limit_s: float = guest.BOOT_LIMIT_S) -> None:
    """Start QEMU and wait for the guest; gives no new name, starts no container."""
    image = Image(cache_root() / existing.settings.image)
    if not image.disk.exists():
        raise LabError(f"{existing.name}: its image {image.folder} is gone: down and up again")
    qemu.start(existing)
    guest.wait_for_boot(existing, limit_s)


def _boot_new(new: Machine) -> None:
    """Boot a machine that has done nothing yet; one that stands still is started once more."""
    try:
        boot(new, guest.STANDS_STILL_S)
    except NoAnswer as error:
        say(f"{error}\n{new.name}: started once more")
        qemu.cut_power(new)
        boot(new)


def start(name: str) -> Machine:
    """Boot a machine that is off."""
    existing = known(name)
    boot(existing)
    _refresh_inventory()
    return existing


def stop(name: str) -> None:
    """Shut down cleanly; the overlay is kept."""
    existing = known(name)
    if existing.pid() is None:
        say(f"{name} is off already")
        return
    with heartbeat(f"{name}: shut down", STOP_EXPECTED_S):
        if guest.attempt(existing, ["systemctl", "poweroff"], guest.TRY_LIMIT_S) is None:
            # no ssh: press the button
            qemu.monitor(existing, "system_powerdown")
        gone = qemu.wait_for_exit(existing, STOP_LIMIT_S)
    if not gone:
        raise LabError(f"{name}: still on {STOP_LIMIT_S:.0f} s after poweroff: gpuhost_lab kill --name {name}")
    _refresh_inventory()


def kill(name: str) -> None:
    """Cut the power; the overlay is kept."""
    qemu.cut_power(known(name))
    _refresh_inventory()


def down(name: str) -> None:
    """Throw a machine away; nothing to do where there is none."""
    existing = machine(name)
    if existing.folder.exists():
        qemu.cut_power(existing)
        with locked(_lock_file()):
            remove_folder(existing.folder)
        say(f"{name}: thrown away")
    _refresh_inventory()


def save(name: str, snapshot: str) -> Path:
    """Keep a machine's state under a name; the machine itself is off and goes on from there."""
    existing = known(name)
    settings = existing.settings
    target = snapshot_folder(snapshot)
    if target.exists():
        raise LabError(f"snapshot {snapshot} exists: gpuhost_lab forget --snapshot {snapshot}")
    stop(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(_lock_file()):
        work = target.with_name(f".{snapshot}.{os.getpid()}.new")
        work.mkdir()
        for file in (CLIENT_KEY, HOST_KEY):
            shutil.copy2(existing.folder / file, work / file)
        (work / "image").write_text(settings.image)
        for overlay in (existing.disk, existing.variables):
            overlay.rename(work / overlay.name)
        register_user(settings.image, target)
        work.rename(target)
        _overlay(existing, target)
        existing.write_settings(Settings(name, settings.ssh_port, settings.memory_mib, settings.image, snapshot))
    say(f"{name}: saved as {snapshot}")
    return target


def forget(snapshot: str) -> None:
    """Remove a saved state that no machine stands on."""
    users = [other.name for other in all_machines() if other.settings.origin == snapshot]
    if users:
        raise LabError(f"snapshot {snapshot} carries {', '.join(users)}: gpuhost_lab down --name {users[0]}")
    folder = snapshot_folder(snapshot)
    if folder.exists():
        with locked(_lock_file()):
            remove_folder(folder)


def status() -> str:
    """One line for each machine and snapshot, none of them half made by another process."""
    with locked(_lock_file()):
        return _status()


def _status() -> str:
    lines = []
    for each in all_machines():
        settings, pid = each.settings, each.pid()
        state = f"on, process {pid}" if pid else "off"
        lines.append(
            f"machine {each.name}: {state}, ssh 127.0.0.1:{settings.ssh_port}, "
            f"{settings.memory_mib} MiB, from {settings.origin}, image {settings.image}"
        )
    folder = state_root() / "snapshots"
    names = sorted(path.name for path in folder.iterdir() if (path / "image").exists()) if folder.exists() else []
    lines += (f"snapshot {name}" for name in names)
    return "\n".join(lines) if lines else "no machines, no snapshots"


def _refresh_inventory() -> None:
    with locked(_lock_file()):
        inventory.refresh()
