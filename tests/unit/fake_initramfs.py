"""Real initramfs images, made here: cpio archives in the newc format (Documentation/driver-api/early-userspace)."""

from __future__ import annotations

import stat

from fake_host import FakeHost

LINK, FILE, FOLDER = stat.S_IFLNK | 0o777, stat.S_IFREG | 0o644, stat.S_IFDIR | 0o755
Member = tuple[str, int, bytes]

#: What mkinitramfs takes along for a machine like fake_tree's, besides modprobe.d.
INSIDE = ("ext4", "virtio_blk", "virtio_pci")


def member(name: str, mode: int = FILE, body: bytes = b"", inode: int = 0, links: int = 1) -> bytes:
    """One file of a newc archive."""
    raw = name.encode() + b"\0"
    fields = (inode, mode, 0, 0, links, 0, len(body), 0, 0, 0, 0, len(raw), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + raw
    return head + bytes(-len(head) % 4) + body + bytes(-len(body) % 4)


def archive(*members: Member, trailer: bool = True, block: int = 4) -> bytes:
    """A whole archive, padded to a multiple of ``block``."""
    data = b"".join(member(name, mode, body, inode) for inode, (name, mode, body) in enumerate(members, start=1))
    data += member("TRAILER!!!") if trailer else b""
    return data + bytes(-len(data) % block)


EARLY = archive(("kernel/x86/microcode/GenuineIntel.bin", FILE, b"\x01microcode" * 50), block=512)


def members_of(host: FakeHost, release: str, modules: tuple[str, ...] = INSIDE) -> list[Member]:
    """The files of an image for one kernel of this host: its modules by name, and the host's modprobe.d."""
    tree = f"/lib/modules/{release}"
    wanted = [path for path in host.files_below(tree) if path.rpartition("/")[2].partition(".ko")[0] in modules]
    options = [f"/etc/modprobe.d/{name}" for name in host.names("/etc/modprobe.d")]
    return [
        (".", FOLDER, b""),
        ("init", FILE, b"#!/bin/sh\n"),
        *((f"usr{path}", FILE, host.read_bytes(path) or b"") for path in wanted),
        *((path.lstrip("/"), FILE, host.read_bytes(path) or b"") for path in options),
        (f"usr{tree}/modules.dep", FILE, b""),
    ]


def image_of(host: FakeHost, release: str) -> bytes:
    """What mkinitramfs would write, without compression."""
    return archive(*members_of(host, release), block=512)
