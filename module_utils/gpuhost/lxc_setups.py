"""Other ways by which a container gets its GPU: recognised by its config and left alone.

Incus and LXD write a container's config anew at each start; hooks and scripts make nodes or mounts at start, where
no file says so. NVIDIA's hook of liblxc brings nodes and libraries, and no device rules (it passes --no-cgroups).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from .lxc_config import LxcDocument
from .lxc_lines import MAIN, Line

_MANAGER_KEY = re.compile(r"lxc\.(?:hook(?:\..+)?|apparmor\.profile|seccomp\.profile|log\.file|console\.logfile)")
_MANAGER_PATH = re.compile(rb"/(?:var/(?:lib|log|cache)|run)/(incus|lxd)\b|/var/snap/(lxd)/")
# Hooks that run before the container's own init does.
_HOOK_KEY = re.compile(r"lxc\.hook\.(?:pre-start|pre-mount|mount|autodev|start-host|start)")
_MAKES_NODES = re.compile(rb"nvidia|mknod", re.IGNORECASE)
_ENVIRONMENT_KEY = re.compile(r"lxc\.environment(?:\..+)?")
_VISIBLE = re.compile(rb"NVIDIA_VISIBLE_DEVICES=(?!(?:void|none)?\Z)")


def managed(document: LxcDocument) -> str:
    """The manager that generates this config, "Incus" or "LXD"; "" where somebody wrote it."""
    for line in document.entries():
        found = _MANAGER_PATH.search(line.value) if _MANAGER_KEY.fullmatch(line.key) else None
        if found:
            return "Incus" if found.group(1) == b"incus" else "LXD"
    return ""


def hook_lines(lines: Iterable[Line]) -> Iterator[Line]:
    """Lines of the main section by which NVIDIA devices come without a rule or a mount that names them."""
    for line in lines:
        by_hook = _HOOK_KEY.fullmatch(line.key) and _MAKES_NODES.search(line.value)
        by_environment = _ENVIRONMENT_KEY.fullmatch(line.key) and _VISIBLE.match(line.value)
        if line.kind == "entry" and (by_hook or by_environment):
            yield line


def script_lines(document: LxcDocument) -> Iterator[Line]:
    """Proxmox's `hookscript`, which may do anything at start."""
    return (line for line in document.entries(MAIN) if line.key == "hookscript" and document.style == "pve")
