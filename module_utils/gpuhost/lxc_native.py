"""From NVIDIA mounts and device rules of a Proxmox container to `devN:` entries, which have no number to go stale.

Pure: config bytes and facts about the host in, new bytes or the refusals out. For each `devN` Proxmox stats the node
at every start, and writes rule and node itself (pve-container: update_lxc_config, lxc-pve-prestart-hook and
lxc-pve-autodev-hook, git commit ce1976b). All of a container's NVIDIA mounts go, or none does. Rules have to be right
before: reconcile first.

What becomes different: a node that is missing makes the start fail, where an `optional` mount was skipped; and minors
that a rule allowed beside those of the mounted nodes are closed. mknod is open to all containers in any case, by the
default policy `c *:* m`, so the letter m of a rule has no counterpart and needs none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .documents import Blocker
from .errors import blocker
from .lxc_attribution import NeededNode, Policy, policy_of
from .lxc_config import LxcDocument, parse
from .lxc_lines import MAIN, PENDING, DeviceMount, DeviceRule, display
from .lxc_native_access import (
    CGROUP_VERSION,
    IdRange,
    NodeFacts,
    Rights,
    allowed_letters,
    dev_rules,
    dev_value,
    id_ranges,
    inside,
    rights_of,
)
from .lxc_native_refusals import DENY_WRITE_SINCE, file_refusals, is_nvidia, mount_refusal, older
from .lxc_plan import Hierarchy
from .proc_devices import CharacterMajors, nvidia_node

__all__ = ["Migration", "NativeChange", "NodeFacts", "dev_rules", "migrate"]

MAX_DEVICES = 256  # pve-container's $MAX_DEVICES: dev0 to dev255

# Capabilities that are there as long as the driver is loaded: MIG configuration and monitoring. The others belong to
# single MIG instances; a bind mount of the folder follows them, devN entries can't.
_LASTING = {"/dev/nvidia-caps": ("/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2")}


@dataclass(frozen=True)
class NativeChange:
    """One line that goes (mount, rule) or comes (dev). line counts from 1 in the old file; a new line follows it."""

    kind: Literal["dev", "mount", "rule"]
    line: int
    before: str | None
    after: str | None
    path: str
    why: str


@dataclass(frozen=True)
class Migration:
    """The outcome for one file. With refusals content is the input and nothing changes.

    notes: what a person should know, such as rules that stay. required_paths: devN nodes that have to exist before the
    container starts, or the start fails.
    """

    content: bytes
    changed: bool
    changes: tuple[NativeChange, ...]
    notes: tuple[str, ...]
    refusals: tuple[Blocker, ...]
    required_paths: tuple[str, ...]


@dataclass(frozen=True)
class _Entry:
    """A node that gets a devN entry, for the mount of this line. rights: what the container can do with it today."""

    need: NeededNode
    line: int
    value: str
    rights: Rights


def migrate(
    config: bytes,
    current: CharacterMajors,
    nodes: Mapping[str, NodeFacts],
    version: str | None,
    *,
    about: str = "container",
    hierarchy: Hierarchy = "cgroup2",
) -> Migration:
    """Move a Proxmox config's NVIDIA mounts and rules to devN entries; any config bytes are accepted.

    nodes: every file on the host whose path nvidia_node() knows, those in /dev/nvidia-caps included; a path that is
    not in it does not exist. version: of the package pve-container, None when not known. about names the container
    in refusals. Raises ProcDevicesError when current is empty.
    """
    current.require_known()
    document = parse(config, "pve")
    rules = [rule for rule in document.rules if rule.section == MAIN and rule.version == CGROUP_VERSION]
    mounts = [mount for mount in document.mounts if mount.section == MAIN and mount.node]
    work = _Work(document, current, nodes, policy_of(rules, CGROUP_VERSION), id_ranges(document) or (), about)
    entries = work.entries(mounts)
    coming = [*work.native_nodes(), *(entry.need for entry in entries)]
    leaving = [rule for rule in rules if _serves(rule, coming, current)]
    notes = [*work.notes, *_kept_notes(rules, leaving, current)]
    required = [dev.path for dev in document.dev_entries if dev.section == MAIN]
    if not mounts and not leaving:
        return Migration(config, False, (), tuple(notes), (), tuple(required))
    refusals = [*file_refusals(document, work.policy, rules, current, version, hierarchy, about), *work.refusals]
    refusals += _deny_write_refusals(entries, version, about)
    free = _free_keys(document)
    if len(free) < len(entries):
        refusals.append(blocker("lxc.native_no_index", about, f"{len(entries)} nodes and {len(free)} free devN keys"))
    if not refusals:
        content, changes = _carry_out(document, mounts, leaving, entries, free)
        refusals += _differences(work, parse(content, "pve"), entries)
        if not refusals:
            required += [entry.need.path for entry in entries]
            return Migration(content, True, changes, tuple(notes), (), tuple(required))
    return Migration(config, False, (), tuple(notes), tuple(refusals), tuple(required))


class _Work:
    """One file on its way: gathers entries, refusals and notes."""

    def __init__(
        self, document: LxcDocument, current: CharacterMajors, nodes: Mapping[str, NodeFacts], policy: Policy,
        ranges: tuple[IdRange, ...], about: str,
    ) -> None:  # fmt: skip
        self.document, self.current, self.nodes, self.policy = document, current, nodes, policy
        self.ranges, self.about = ranges, about
        self.notes: list[str] = []
        self.refusals: list[Blocker] = []

    def native_nodes(self) -> list[NeededNode]:
        """The NVIDIA nodes that come by devN already."""
        devs = (dev for dev in self.document.dev_entries if dev.section == MAIN and dev.node)
        return [need for dev in devs if (need := self.need(dev.path, dev.line)) is not None]

    def need(self, path: str, line: int, *, optional: bool = False) -> NeededNode | None:
        node = nvidia_node(path)
        if node is None:
            return None
        major = self.current.driver_major(node.driver)
        return NeededNode(node.path, node.driver, major, node.minor, node.access, "dev", optional, line, node.is_dir)

    def entries(self, mounts: Sequence[DeviceMount]) -> list[_Entry]:
        """An entry for every node that the mounts bring and no devN does yet."""
        native = {need.path: self.document.lines[(need.line or 1) - 1].key for need in self.native_nodes()}
        made: dict[str, _Entry] = {}
        for mount in mounts:
            refusal = mount_refusal(mount, self.document.lines[mount.line - 1], self.about)
            if refusal:
                self.refusals.append(refusal)
            need = self.need(mount.source, mount.line, optional=mount.optional)
            for one in self._in_folder(need) if need and need.is_dir else [need]:
                if one is None or one.path in made:
                    continue
                if one.path in native:
                    self.notes.append(f"{native[one.path]} brings {one.path} already, with the mode that it says.")
                    continue
                entry = self._entry(one, in_folder=bool(need and need.is_dir))
                if entry:
                    made[one.path] = entry
        return list(made.values())

    def _in_folder(self, folder: NeededNode) -> list[NeededNode | None]:
        found = sorted(path for path in self.nodes if path.startswith(folder.path + "/"))
        others = [path for path in found if path not in _LASTING.get(folder.path, ())]
        where = f"{self.about} line {folder.line}"
        if others:
            self.refusals.append(
                blocker("lxc.native_mount", where, f"{folder.path} is mounted as a folder and holds {others[0]}",
                        "only nodes that are always there, which devN entries can name")
            )  # fmt: skip
        elif not found:
            self.refusals.append(blocker("lxc.native_node_missing", where, f"{folder.path} holds no device node"))
        else:
            self.notes.append(
                f"{folder.path} was mounted as a folder: nodes that appear in it later are not seen by the container."
            )
        return [] if others else [self.need(path, folder.line or 0, optional=True) for path in found]

    def _entry(self, need: NeededNode, *, in_folder: bool) -> _Entry | None:
        """The entry for one node, or None with a refusal or, inside a folder, with a note."""
        line, facts = need.line or 0, self.nodes.get(need.path)
        where = f"{self.about} line {line}"
        if facts is None or not facts.is_char:
            observed = "does not exist" if facts is None else "is not a character device"
            today = ", the mount is optional and is skipped today" if need.optional else ""
            self.refusals.append(blocker("lxc.native_node_missing", where, f"{need.path} {observed}{today}"))
            return None
        letters = allowed_letters(self.policy, need)
        node = inside(facts, self.ranges)
        rights = rights_of("r" in letters and "r" in node.reach, "w" in letters and "w" in node.reach)
        if set(need.access) <= set(rights):
            value = dev_value(need.path, node, deny_write="w" not in rights)
            return _Entry(need, line, value, rights)
        if in_folder:
            self.notes.append(f"{need.path} gets no entry: the container can't open it today.")
        elif set(need.access) <= set(node.reach):
            self.refusals.append(
                blocker("lxc.native_not_right", where, f"no rule lets {need.path} be opened with {need.access}",
                        f"a rule for {need.driver} with its number of today")
            )  # fmt: skip
        else:
            self.refusals.append(
                blocker("lxc.native_closed", where,
                        f"{need.path} is {facts.uid}:{facts.gid} {facts.mode:04o}: nobody in the container can open it",
                        f"{need.access} for everybody, or an owner that the container's id map reaches")
            )  # fmt: skip
        return None


def _serves(rule: DeviceRule, coming: Iterable[NeededNode], current: CharacterMajors) -> bool:
    """Whether an allow rule of NVIDIA's is for a node that comes by devN."""
    if not rule.allow or not is_nvidia(rule, current):
        return False
    alone = Policy(False, (rule,), ())
    return any(need.major is not None and alone.coverage(replace(need, access="")) == "yes" for need in coming)


def _kept_notes(rules: Sequence[DeviceRule], leaving: Sequence[DeviceRule], current: CharacterMajors) -> Iterator[str]:
    for rule in rules:
        if rule.allow and is_nvidia(rule, current) and rule not in leaving:
            yield f"line {rule.line} stays ({rule.text}): no node that comes into the container is its own."


def _deny_write_refusals(entries: Sequence[_Entry], version: str | None, about: str) -> Iterator[Blocker]:
    for entry in entries:
        if "w" not in entry.rights and version is not None and older(version, DENY_WRITE_SINCE):
            yield blocker(
                "lxc.native_too_old", f"{about} line {entry.line}",
                f"{entry.need.path} may only be read, and pve-container {version} has no deny-write",
                f"pve-container {DENY_WRITE_SINCE} or newer",
            )  # fmt: skip


def _free_keys(document: LxcDocument) -> list[int]:
    """Free numbers of devN, lowest first. A pending change of a key would take the entry away again."""
    used = {dev.key for dev in document.dev_entries if dev.section in (MAIN, PENDING)}
    for line in document.entries(PENDING):
        if line.key == "delete":
            used |= set(display(line.value).replace(",", " ").replace(";", " ").split())
    return [number for number in range(MAX_DEVICES) if f"dev{number}" not in used]


def _carry_out(
    document: LxcDocument, mounts: Sequence[DeviceMount], leaving: Sequence[DeviceRule], entries: Sequence[_Entry],
    free: Sequence[int],
) -> tuple[bytes, tuple[NativeChange, ...]]:  # fmt: skip
    main = document.entries()
    devs = [dev.line for dev in document.dev_entries if dev.section == MAIN]
    anchor = max(devs or [line.number for line in main if not line.key.startswith("lxc.")] or [0])
    changes, lines = [], []
    for number, entry in zip(free, entries, strict=False):
        lines.append(f"dev{number}: {entry.value}")
        changes.append(NativeChange("dev", anchor, None, lines[-1], entry.need.path, f"for line {entry.line}"))
    gone = [(mount.line, "mount", mount.source, "devN makes the node") for mount in mounts]
    gone += [(rule.line, "rule", rule.path, "devN brings its own rule") for rule in leaving]
    for line, kind, path, why in sorted(gone):
        text = document.lines[line - 1].text
        changes.append(NativeChange("mount" if kind == "mount" else "rule", line, text, None, path, why))
    new = {anchor: [text.encode("utf-8", "surrogateescape") for text in lines]}
    return document.rewrite(insertions=new, removals=[line for line, *_ in gone]), tuple(changes)


def _differences(work: _Work, after: LxcDocument, entries: Sequence[_Entry]) -> Iterator[Blocker]:
    """Read the result again: every node must be as open as before. Says what this migration did not foresee."""

    def policy(document: LxcDocument) -> Policy:
        own = [rule for rule in document.rules if rule.section == MAIN]
        return policy_of([*dev_rules(document, work.current), *own], CGROUP_VERSION)

    old, new = policy(work.document), policy(after)
    expected: list[tuple[NeededNode, str]] = [(entry.need, entry.rights) for entry in entries]
    expected += [(need, allowed_letters(old, need)) for need in work.native_nodes() if need.major is not None]
    for need, rights in expected:
        found = allowed_letters(new, need)
        if found != rights:
            yield blocker(
                "lxc.native_rule", f"{work.about} line {need.line}",
                f"{need.path} would be open with {found or 'nothing'}", f"{rights or 'nothing'}, as today",
            )  # fmt: skip
