"""What keeps a Proxmox config from being moved to `devN:` entries, by what stands in the file itself.

Sources: pve-container's update_lxc_config (the entries' rules come *before* the file's own `lxc.` lines, so a line
there can clear them), liblxc's lxc_setup (autodev hooks, which bring the nodes, run only with autodev) and its
mount_entry (an absolute target outside of the rootfs is ignored).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .debian_version import compare
from .documents import Blocker
from .errors import blocker
from .lxc_attribution import Policy
from .lxc_config import LxcDocument
from .lxc_lines import DeviceMount, DeviceRule, Line, display
from .lxc_native_access import id_ranges
from .lxc_plan import Hierarchy
from .proc_devices import FRONT_NAMES, CharacterMajors, nvidia_node

DEV_SINCE = "5.0.7"  # Proxmox VE 8.1 and newer; the web interface knows the entries since 8.2
DENY_WRITE_SINCE = "5.2.0"  # Proxmox VE 8.3

# What a mount may say beside bind and optional without meaning anything for a device node.
_PLAIN_OPTIONS = {"bind", "rbind", "optional", "create=file", "create=dir", "rw", "defaults", "nosuid", "noexec"}
_USUAL_INCLUDES = ("/usr/share/lxc/config/", "/usr/share/lxcfs/")
_NODE_HOOKS = ("hook.autodev", "hook.mount", "hook.pre-mount")


def older(version: str, other: str) -> bool:
    """Whether a package version comes before another one."""
    return compare(version, other) < 0


def is_nvidia(rule: DeviceRule, current: CharacterMajors) -> bool:
    """Whether a rule names an NVIDIA driver's number of today, or an NVIDIA node by its path."""
    if rule.kind == "path":
        return nvidia_node(rule.path) is not None
    if rule.kind != "numbers" or rule.type != "c" or rule.major is None:
        return False
    front = {current.driver_major(name) for name in FRONT_NAMES}
    return rule.major in front or current.nvidia_name_of(rule.major) is not None


def mount_refusal(mount: DeviceMount, line: Line, about: str) -> Blocker | None:
    """Why a devN entry can't stand for this mount: it always puts the node on its own path, and mounts nothing else."""
    where = f"{about} line {line.number}"
    fields = display(line.value).split()
    source = mount.node.path if mount.node else mount.source
    target = fields[1] if len(fields) > 1 else ""
    inside = "/".join(part for part in target.split("/") if part not in ("", "."))
    if target.startswith("/") or inside != source[1:]:
        return blocker("lxc.native_mount", where, f"{source} is mounted on {target or 'nothing'}", source[1:])
    kind = fields[2] if len(fields) > 2 else "none"
    odd = [option for option in mount.options if option not in _PLAIN_OPTIONS]
    if kind not in ("none", "bind") or odd or not {"bind", "rbind"} & set(mount.options):
        observed = f"{source} is mounted with {kind} {','.join(mount.options) or 'no options'}"
        return blocker("lxc.native_mount", where, observed, "bind, with optional and create=file at most")
    return None


def file_refusals(
    document: LxcDocument, policy: Policy, rules: Sequence[DeviceRule], current: CharacterMajors, version: str | None,
    hierarchy: Hierarchy, about: str,
) -> Iterator[Blocker]:  # fmt: skip
    """All in the file that is in the way, whatever nodes the mounts bring. rules: the main section's live ones."""
    if document.facts.lock is not None:
        yield blocker("lxc.locked", about, f"lock: {document.facts.lock}", "no lock")
    if version is None or older(version, DEV_SINCE):
        observed = f"pve-container {version}" if version else "pve-container's version is not known"
        yield blocker("lxc.native_too_old", about, observed, f"{DEV_SINCE} or newer")
    if hierarchy != "cgroup2":
        yield blocker("lxc.native_rule", about, "the devices controller is on cgroup v1", "cgroup v2, as devN needs it")
    if id_ranges(document) is None:
        yield blocker("lxc.native_closed", about, "an lxc.idmap line can't be read", "u or g and three numbers")
    if policy.allow_all:
        yield blocker("lxc.native_rule", about, "every device is allowed", "rules for single devices")
    for rule in rules:
        reason = _rule_reason(rule, current)
        if reason:
            yield blocker("lxc.native_rule", f"{about} line {rule.line}", f"{rule.text}: {reason}", "no such rule")
    for line in document.entries():
        observed, code = _line_reason(line)
        if observed:
            yield blocker(code, f"{about} line {line.number}", observed)


def _rule_reason(rule: DeviceRule, current: CharacterMajors) -> str:
    """Why a rule and devN entries don't go together; empty where they do. Foreign rules do."""
    if rule.kind == "clear" or (rule.kind == "all" and not rule.allow):
        return "it would clear the rules that devN brings"
    wide = rule.kind == "numbers" and rule.type in ("a", "c") and rule.major is None
    if rule.allow and wide and rule.access != "m":
        return "it opens every device, so nothing of the container's can go stale"
    if not rule.allow and (wide or is_nvidia(rule, current)):
        return "what it denies is somebody's decision"
    return ""


def _line_reason(line: Line) -> tuple[str, str]:
    """What a line brings or hides that devN entries can't replace, with its code; empty texts for most lines."""
    value = display(line.value)
    name = line.key.removeprefix("lxc.") if line.key.startswith("lxc.") else ""
    if name == "include" and value and not value.startswith(_USUAL_INCLUDES):
        return f"includes {value}, which may hold rules and mounts", "lxc.native_hook"
    if name.startswith("hook.") and value and (name in _NODE_HOOKS or "nvidia" in value):
        return f"{line.key} runs {value}, which may bring nodes or need the rules", "lxc.native_hook"
    if name == "autodev" and value.strip() == "0":
        return f"without {line.key} Proxmox can't put the nodes of devN into the container", "lxc.native_hook"
    if name in ("mount", "mount.fstab") and value:
        return f"mounts by {value}, which may bring NVIDIA's nodes", "lxc.native_hook"
    if line.key.startswith("mp") and value.startswith("/dev/nvidia"):
        return f"{line.key} brings {value.split(',')[0]}", "lxc.native_mount"
    fields = value.split() if name == "mount.entry" else []
    if len(fields) > 1 and fields[1].strip("/") in ("dev", "."):
        return f"{fields[0]} is mounted over the container's /dev", "lxc.native_mount"
    return "", ""
