"""What is inside an initramfs, and whether the image is whole.

An image is a row of pieces, as the kernel reads them (init/initramfs.c, ``unpack_to_rootfs``): cpio archives in the
"newc" format, each on a multiple of 4 bytes and with zeros in between, plain (microcode, since Debian 13 also modules
that are compressed already) or compressed. One compressed stream holds whole archives. Everything else is damage.

Pure: bytes in, frozen dataclasses out. zstd and lz4 are not in Python: the caller brings ``decompress``.
"""

from __future__ import annotations

import binascii
import bz2
import lzma
import posixpath
import re
import stat
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .target_modules import module_name

#: (``zstd`` or ``lz4``, one compressed stream) -> what it holds; ValueError where the program failed.
Decompress = Callable[[str, bytes], bytes]

#: lib/decompress.c. lz4 is the old frame format, ``lz4 -l``: the kernel knows no other.
_COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x5d\0\0": "lzma",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x02\x21\x4c\x18": "lz4",
}
_HEADER_BYTES = 110
#: lz4's bound for a block of 8 MiB, the size of the old format.
_LARGEST_LZ4_BLOCK = 8_421_520
_LARGEST_TEXT = 1 << 20
_TEXTS = re.compile(
    r"(?:etc|run|usr/local/lib|usr/lib|lib)/(?:modprobe|modules-load)\.d/[^/]+\.conf|conf/.+|etc/cmdline\.d/[^/]+"
)
_MODULE_FOLDER = re.compile(r"(?:usr/)?lib/modules/([^/]+)/")

#: path -> mode and bytes; views, so that no firmware is copied
_Entries = dict[str, tuple[int, memoryview]]


@dataclass(frozen=True)
class Image:
    """``names`` are all paths without a leading ``/``, folders too; ``files`` the texts that configure modules."""

    names: frozenset[str]
    files: dict[str, bytes]


def read(data: bytes, decompress: Decompress) -> Image:
    """An image's names and small texts. ValueError with place and kind of any damage, and where it has no /init."""
    view = memoryview(data)
    entries: _Entries = {}
    position = _after_zeros(view, 0)
    while position < len(view):
        if view[position] == ord("0"):
            if position % 4:
                raise ValueError(f"the cpio archive at byte {position} does not begin on a multiple of 4")
            position = _archive(view, position, entries)
        else:
            position += _compressed(view[position:], position, decompress, entries)
        position = _after_zeros(view, position)
    if "init" not in entries:
        raise ValueError(f"no /init in the {len(entries)} files of the image ({len(view)} bytes): a part is missing")
    return Image(frozenset(entries), _texts(entries))


def _after_zeros(view: memoryview, position: int) -> int:
    found = re.compile(rb"\0*").match(view, position)
    return found.end() if found else position


def _archive(view: memoryview, start: int, entries: _Entries) -> int:
    """Take in one cpio archive; where it ends."""
    position = start
    links: dict[tuple[int, ...], memoryview] = {}
    linked: list[tuple[str, int, tuple[int, ...]]] = []
    while True:
        header = view[position : position + _HEADER_BYTES]
        if not header:
            raise ValueError(f"the cpio archive at byte {start} ends at byte {position} without its TRAILER!!!")
        if bytes(header[:6]) not in (b"070701", b"070702"):
            raise ValueError(f"no cpio header at byte {position}, in the archive at byte {start}")
        try:
            fields = struct.unpack(">13I", binascii.unhexlify(header[6:]))
        except (binascii.Error, struct.error) as error:
            raise ValueError(f"cut off or broken cpio header at byte {position}: {error}") from error
        inode, mode, links_to_it, size, name_size = fields[0], fields[1], fields[4], fields[6], fields[11]
        name_end = position + _HEADER_BYTES + name_size
        raw = bytes(view[position + _HEADER_BYTES : name_end])
        if not 0 < name_size <= 4096 or len(raw) < name_size or raw[-1]:
            raise ValueError(f"cut off or broken name in the cpio header at byte {position}")
        if raw == b"TRAILER!!!\0":
            break
        body_start = start + _aligned(name_end - start)
        body = view[body_start : body_start + size]
        if len(body) < size:
            raise ValueError(f"the file at byte {position} has {size} bytes, but the image ends after {len(body)}")
        name = posixpath.normpath(raw[:-1].decode("utf-8", "replace")).lstrip("/")
        entries[name] = mode, body
        if links_to_it > 1 and stat.S_ISREG(mode):
            # Of a file with several names only one entry, usually the last, has the bytes.
            key = (inode, fields[7], fields[8])
            linked.append((name, mode, key))
            if size:
                links[key] = body
        position = start + _aligned(body_start - start + size)
    for name, mode, file in linked:
        entries[name] = mode, links.get(file, entries[name][1])
    return min(start + _aligned(name_end - start), len(view))


def _aligned(size: int) -> int:
    return (size + 3) & ~3


def _compressed(view: memoryview, offset: int, decompress: Decompress, entries: _Entries) -> int:
    """Take in the archives of one compressed stream; the number of bytes that it has in the image."""
    name = next((name for magic, name in _COMPRESSIONS.items() if view[: len(magic)] == magic), None)
    if name is None:
        begins = bytes(view[:6]).hex(" ")
        raise ValueError(f"{len(view)} bytes at byte {offset} are no archive that the kernel knows ({begins})")
    try:
        content, used = _decompressed(name, view, decompress)
        inner, position = memoryview(content), _after_zeros(memoryview(content), 0)
        if position == len(inner):
            raise ValueError("there is nothing in it")
        while position < len(inner):
            position = _after_zeros(inner, _archive(inner, position, entries))
    except ValueError as error:
        raise ValueError(f"the {name} archive at byte {offset}: {error}") from error
    return used


def _decompressed(name: str, view: memoryview, decompress: Decompress) -> tuple[bytes, int]:
    """What one stream holds and its length in the image."""
    if name in ("zstd", "lz4"):
        length = _zstd_length(view) if name == "zstd" else _lz4_length(view)
        return decompress(name, bytes(view[:length])), length
    stream: Any = lzma.LZMADecompressor()  # tells xz from lzma by itself
    if name in ("gzip", "bzip2"):
        stream = zlib.decompressobj(zlib.MAX_WBITS | 16) if name == "gzip" else bz2.BZ2Decompressor()
    try:
        content = stream.decompress(view)
    except (zlib.error, lzma.LZMAError, OSError) as error:
        raise ValueError(str(error)) from error
    if not stream.eof:
        raise ValueError(f"it is cut off: the image ends after {len(view)} bytes of it")
    return content, len(view) - len(stream.unused_data)


def _zstd_length(view: memoryview) -> int:
    """Length of one zstd frame (RFC 8878), found without decompressing: what comes after is not the program's."""
    descriptor = view[4] if len(view) > 4 else 0
    single = bool(descriptor & 0x20)
    position = 5 + (not single) + (0, 1, 2, 4)[descriptor & 3] + (int(single), 2, 4, 8)[descriptor >> 6]
    last = 0
    while not last:
        if position + 3 > len(view):
            raise ValueError(f"it is cut off: the image ends after {len(view)} bytes of it")
        block = int.from_bytes(view[position : position + 3], "little")
        last, kind, size = block & 1, block >> 1 & 3, block >> 3
        position += 3 + (1 if kind == 1 else size)  # kind 1 is one byte, repeated
    position += 4 if descriptor & 4 else 0  # checksum
    if position > len(view):
        raise ValueError(f"it is cut off: {position} bytes long, of which the image has {len(view)}")
    return position


def _lz4_length(view: memoryview) -> int:
    """Length of a stream in lz4's old format: blocks up to the end of the image or to zeros; it has no end mark."""
    position = 4
    while position < len(view):
        head = view[position : position + 4]
        size = int.from_bytes(head, "little")
        if not any(head):
            return position
        if head == view[:4]:
            size = 0
        elif len(head) < 4 or size > _LARGEST_LZ4_BLOCK or position + 4 + size > len(view):
            raise ValueError(f"cut off or broken block at byte {position} of it")
        position += 4 + size
    return position


def _texts(entries: _Entries) -> dict[str, bytes]:
    found = {}
    for name in filter(_TEXTS.fullmatch, entries):
        mode, body = _followed(entries, name)
        if stat.S_ISREG(mode) and len(body) <= _LARGEST_TEXT:
            found[name] = bytes(body)
    return found


def _followed(entries: _Entries, name: str) -> tuple[int, memoryview]:
    """The file that a name leads to; mode 0 where to none. A link to /dev/null hides the files of its name."""
    for _ in range(8):
        mode, body = entries.get(name) or entries.get(f"usr/{name}") or (0, memoryview(b""))
        if not stat.S_ISLNK(mode):
            return mode, body
        target = bytes(body).decode("utf-8", "replace")
        if target == "/dev/null":
            return stat.S_IFREG, memoryview(b"")
        name = posixpath.normpath(posixpath.join("/", posixpath.dirname(name), target)).lstrip("/")
    return 0, memoryview(b"")


def modules(image: Image) -> dict[str, dict[str, str]]:
    """release -> module name (with ``-``) -> its path in the image. More than the target's release is a finding."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(image.names):
        folder, name = _MODULE_FOLDER.match(path), module_name(path)
        if folder and name:
            found.setdefault(folder[1], {})[name] = path
    return found
