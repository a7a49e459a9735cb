"""The Boot Loader Interface's EFI variables: what the loader says of itself, and its one-shot.

Source: https://systemd.io/BOOT_LOADER_INTERFACE/ and efivarfs (Documentation/filesystems/efivarfs.rst).
"""

from __future__ import annotations

from . import systemd_boot
from .errors import stop
from .host_io import Host

FOLDER = "/sys/firmware/efi/efivars"
LOADER_GUID = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
ONE_SHOT = "LoaderEntryOneShot"
DEFAULT = "LoaderEntryDefault"
INFO = "LoaderInfo"


def path(name: str) -> str:
    """Where efivarfs shows a variable of the loader's."""
    return f"{FOLDER}/{name}-{LOADER_GUID}"


def read(host: Host, name: str) -> str | None:
    """A variable's text; None where it is not set. Raises Stop where it holds no text."""
    data = host.read_bytes(path(name))
    try:
        return (systemd_boot.decode_efi_string(data) or None) if data else None
    except ValueError as error:
        raise stop("host.module_failed", f"EFI variable {name}", str(error), "UTF-16 text") from error
