"""The Boot Loader Interface's EFI variables: what the loader says of itself, and its one-shot.

Source: https://systemd.io/BOOT_LOADER_INTERFACE/ and efivarfs (Documentation/filesystems/efivarfs.rst).
"""

from __future__ import annotations

from .errors import stop
from .host_io import Host

FOLDER = "/sys/firmware/efi/efivars"
LOADER_GUID = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
ONE_SHOT = "LoaderEntryOneShot"
DEFAULT = "LoaderEntryDefault"
INFO = "LoaderInfo"
DEVICE = "LoaderDevicePartUUID"
#: NON_VOLATILE | BOOTSERVICE_ACCESS | RUNTIME_ACCESS: the 4 bytes in front of a variable in efivarfs.
EFI_ATTRIBUTES = 7


def path(name: str) -> str:
    """Where efivarfs shows a variable of the loader's."""
    return f"{FOLDER}/{name}-{LOADER_GUID}"


def read(host: Host, name: str) -> str | None:
    """A variable's text; None where it is not set. Raises Stop where it holds no text."""
    data = host.read_bytes(path(name))
    try:
        return (decode_efi_string(data) or None) if data else None
    except ValueError as error:
        raise stop("host.module_failed", f"EFI variable {name}", str(error), "UTF-16 text") from error


def decode_efi_string(data: bytes) -> str:
    """Text of a variable read from efivarfs: 4 bytes of attributes, then UTF-16LE up to a NUL; ValueError otherwise."""
    if len(data) < 4 or len(data) % 2:
        raise ValueError(f"{len(data)} bytes are no EFI string variable (4 bytes of attributes, then UTF-16LE)")
    try:
        return data[4:].decode("utf-16-le").partition("\0")[0]
    except UnicodeDecodeError as error:
        raise ValueError(f"the EFI variable holds no UTF-16LE text: {error}") from error


def encode_efi_string(text: str) -> bytes:
    """Bytes to write into efivarfs for a text: attributes 7, UTF-16LE, one NUL; ValueError where text holds a NUL."""
    if "\0" in text:
        raise ValueError("an EFI string cannot hold a NUL")
    return EFI_ATTRIBUTES.to_bytes(4, "little") + (text + "\0").encode("utf-16-le")
