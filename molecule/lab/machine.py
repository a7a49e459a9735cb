"""One machine's files and what is known about it."""

import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import LabError
from .paths import state_root

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


@dataclass(frozen=True)
class Settings:
    """What does not change during a machine's life."""

    name: str
    ssh_port: int
    memory_mib: int
    image: str
    origin: str


@dataclass(frozen=True)
class Machine:
    """A machine's folder; its settings are read from there."""

    folder: Path

    @property
    def name(self) -> str:
        """The folder's name is the machine's."""
        return self.folder.name

    @property
    def disk(self) -> Path:
        """Overlay over the image or a snapshot."""
        return self.folder / "disk.qcow2"

    @property
    def variables(self) -> Path:
        """UEFI variables, overlay like the disk."""
        return self.folder / "vars.qcow2"

    @property
    def pid_file(self) -> Path:
        """Written when QEMU was started."""
        return self.folder / "qemu.pid"

    @property
    def serial_log(self) -> Path:
        """The guest's console, of all boots."""
        return self.folder / "serial.log"

    @property
    def known_hosts(self) -> Path:
        """The machine's pinned host key."""
        return self.folder / "known_hosts"

    @property
    def private_key(self) -> Path:
        """The image's client key, copied: a pruned image must not lock the machine."""
        return self.folder / "id_ed25519"

    @property
    def settings_file(self) -> Path:
        """Its presence says that the machine is complete."""
        return self.folder / "machine.json"

    @property
    def settings(self) -> Settings:
        """What `up` wrote."""
        return Settings(**json.loads(self.settings_file.read_text()))

    def write_settings(self, settings: Settings) -> None:
        """Store the settings."""
        self.settings_file.write_text(json.dumps(asdict(settings), indent=2) + "\n")

    def pid(self) -> int | None:
        """QEMU's process id, None when it does not run."""
        try:
            pid = int(self.pid_file.read_text())
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            # a killed QEMU without a parent that reaps it stays as a zombie, with no argv
        except (FileNotFoundError, ProcessLookupError, ValueError):
            return None
        return pid if f"gpuhost-lab-{self.name}".encode() in argv else None


def machine(name: str) -> Machine:
    """The machine of that name, which need not exist."""
    if not NAME.fullmatch(name):
        raise LabError(f"{name!r} is no machine name: lower-case letters, digits and hyphens, 32 at most")
    return Machine(state_root() / "machines" / name)


def known(name: str) -> Machine:
    """The machine of that name, which must exist."""
    found = machine(name)
    if not found.settings_file.exists():
        raise LabError(f"no machine {name}: gpuhost_lab up --name {name}")
    return found


def snapshot_folder(name: str) -> Path:
    """Where a saved state of that name is."""
    if not NAME.fullmatch(name):
        raise LabError(f"{name!r} is no snapshot name: lower-case letters, digits and hyphens, 32 at most")
    return state_root() / "snapshots" / name


def all_machines() -> Iterator[Machine]:
    """Every machine of this state folder, in order of name."""
    folder = state_root() / "machines"
    for path in sorted(folder.iterdir()) if folder.exists() else ():
        # One that is just being made, or removed, has a hidden name.
        if not path.name.startswith(".") and Machine(path).settings_file.exists():
            yield Machine(path)


def free_port() -> int:
    """A port that nobody listens on and that no other machine has been given."""
    given = {other.settings.ssh_port for other in all_machines()}
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in given:
            return port


def remove_folder(path: Path) -> None:
    """Remove a machine's or snapshot's folder, whole or not at all visible."""
    doomed = path.with_name(f".{path.name}.{os.getpid()}.gone")
    path.rename(doomed)
    shutil.rmtree(doomed)
