"""Who can open a host's device node inside a container, and what a Proxmox `devN:` entry must say for the same.

A bind mount shows the host's node with the host's owner; `devN` makes a node of its own, whose mode, uid and gid are
those *inside* (pve-container's create_passthrough_device_node). An owner that the container's id map does not reach
is nobody inside: then only what everybody may do is left, for the container's root too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from .lxc_attribution import NeededNode, Policy
from .lxc_config import LxcDocument
from .lxc_lines import MAIN, DeviceRule, display
from .proc_devices import CharacterMajors

CGROUP_VERSION = 2  # Proxmox writes the rules of devN under lxc.cgroup2 only
# pve-container's parse_id_maps: what an unprivileged container without lxc.idmap gets.
UNPRIVILEGED = (("u", 0, 100000, 65536), ("g", 0, 100000, 65536))
DEFAULT_MODE = 0o660  # of a devN entry without mode=; its uid and gid are 0

IdRange = tuple[str, int, int, int]
"""Kind (u or g), first id inside, first id on the host, how many."""

Rights = Literal["", "r", "w", "rw"]

_ID_RANGE = re.compile(r"([ug])\s+([0-9]{1,10})\s+([0-9]{1,10})\s+([0-9]{1,10})")


@dataclass(frozen=True)
class NodeFacts:
    """A file below /dev as the host's stat shows it: owner, permission bits, and whether it is a character device."""

    uid: int = 0
    gid: int = 0
    mode: int = 0o666
    is_char: bool = True


@dataclass(frozen=True)
class InsideNode:
    """A node as a container sees it: what a devN entry must say, and what the container's root can do with it."""

    uid: int
    gid: int
    mode: int
    reach: Rights


def id_ranges(document: LxcDocument) -> tuple[IdRange, ...] | None:
    """The container's id map; empty where ids are the host's (privileged). None for a map that can't be read."""
    keys = [f"lxc.{name}" for name in ("idmap", "id_map")]
    lines = [display(line.value) for line in document.entries() if line.key in keys]
    if not lines:
        return UNPRIVILEGED if document.facts.unprivileged else ()
    found = [_ID_RANGE.fullmatch(text) for text in lines]
    return tuple((m[1], int(m[2]), int(m[3]), int(m[4])) for m in found if m) if all(found) else None


def inside(node: NodeFacts, ranges: tuple[IdRange, ...]) -> InsideNode:
    """The host's node as the container sees it.

    Root inside can take every id that the map reaches, so a class without a mapped id gets what is left without it.
    """
    uid, gid = _inside_id("u", node.uid, ranges), _inside_id("g", node.gid, ranges)
    owner, group, other = node.mode >> 6 & 7, node.mode >> 3 & 7, node.mode & 7
    if gid is None:
        group = other
    if uid is None:
        owner = group | other
    mode = owner << 6 | group << 3 | other
    # Root overrides permission bits only where both owner ids are mapped (capable_wrt_inode_uidgid).
    bits = 7 if uid is not None and gid is not None else owner | group | other
    return InsideNode(uid or 0, gid or 0, mode, rights_of(bool(bits & 4), bool(bits & 2)))


def rights_of(read: bool, write: bool) -> Rights:
    """Two switches as access letters."""
    if read:
        return "rw" if write else "r"
    return "w" if write else ""


def dev_value(path: str, node: InsideNode, *, deny_write: bool) -> str:
    """The value of a devN entry, as Proxmox itself would write it: the path, then the options by name."""
    options = ["deny-write=1"] if deny_write else []
    options += [f"gid={node.gid}"] if node.gid else []
    options += [f"mode={node.mode:04o}"] if node.mode != DEFAULT_MODE else []
    options += [f"uid={node.uid}"] if node.uid else []
    return ",".join([path, *options])


def dev_rules(document: LxcDocument, current: CharacterMajors) -> tuple[DeviceRule, ...]:
    """The rules that Proxmox writes at start for the NVIDIA devN entries; they stand before the file's own rules."""
    found = []
    for dev in document.dev_entries:
        major = current.driver_major(dev.node.driver) if dev.node else None
        if dev.section != MAIN or dev.node is None or major is None:
            continue
        line = document.lines[dev.line - 1]
        options = {part.strip() for part in display(line.value).split(",")}
        denies = options & {f"deny-write={word}" for word in ("1", "on", "yes", "true")}
        found.append(
            DeviceRule(
                dev.line, MAIN, line.key, CGROUP_VERSION, True, "numbers", line.text,
                type="c", major=major, minor=dev.node.minor, access="r" if denies else "rw",
            )
        )  # fmt: skip
    return tuple(found)


def allowed_letters(policy: Policy, need: NeededNode) -> str:
    """Access letters that the rules grant; "" also where reading and writing are allowed, but not at once."""
    granted = [letters for letters in ("rw", "r", "w") if policy.coverage(replace(need, access=letters)) == "yes"]
    if "rw" in granted:
        return "rw"
    return granted[0] if len(granted) == 1 else ""


def _inside_id(kind: str, host: int, ranges: tuple[IdRange, ...]) -> int | None:
    if not ranges:
        return host
    for known, first, on_host, count in ranges:
        if known == kind and on_host <= host < on_host + count:
            return first + host - on_host
    return None
