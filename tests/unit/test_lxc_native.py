"""From mounts and rules to devN: what goes and comes, that nothing becomes more or less open, and every refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuhost.causes import CAUSES
from gpuhost.lxc_attribution import policy_of
from gpuhost.lxc_config import MAIN, LxcDocument, parse
from gpuhost.lxc_native import Migration, dev_rules, migrate
from gpuhost.lxc_native_access import UNPRIVILEGED, InsideNode, NodeFacts, inside
from gpuhost.lxc_plan import needed_nodes
from gpuhost.lxc_reconcile import reconcile
from gpuhost.proc_devices import CharacterMajors, ProcDevicesError, nvidia_node, parse_character_majors

CASES = Path(__file__).resolve().parent.parent / "cases"
NOW = CharacterMajors(((1, "mem"), (195, "nvidia"), (195, "nvidiactl"), (237, "nvidia-caps"), (509, "nvidia-uvm")))
CAPS = {
    "/dev/nvidia-caps/nvidia-cap1": NodeFacts(mode=0o400),
    "/dev/nvidia-caps/nvidia-cap2": NodeFacts(mode=0o444),
}
NODES = {
    f"/dev/{name}": NodeFacts()
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools")
} | CAPS
NEW, OLD = "6.1.10", "5.1.12"
HEAD = "arch: amd64\nhostname: ct-llm-a\nostype: debian\nrootfs: local-zfs:subvol-141-disk-0,size=8G\n"


def mount(path: str, target: str = "", options: str = "bind,optional,create=file") -> str:
    return f"lxc.mount.entry: {path} {target or path[1:]} none {options}\n"


def rule(value: str, key: str = "allow") -> str:
    return f"lxc.cgroup2.devices.{key}: {value}\n"


PLAIN = HEAD + rule("c 195:* rwm") + rule("c 509:* rwm") + mount("/dev/nvidia0") + mount("/dev/nvidia-uvm")


def run(text: str, nodes: dict[str, NodeFacts] | None = None, version: str | None = NEW, **more: str) -> Migration:
    return migrate(text.encode(), NOW, NODES if nodes is None else nodes, version, about="141.conf", **more)  # type: ignore[arg-type]


def added(outcome: Migration) -> list[str]:
    return [change.after for change in outcome.changes if change.after is not None]


def access(content: bytes, current: CharacterMajors = NOW) -> dict[str, str]:
    """What each NVIDIA node of the container can be opened with by its rules, devN's included."""
    document = parse(content)
    own = [item for item in document.rules if item.section == MAIN]
    policy = policy_of([*dev_rules(document, current), *own], 2)
    needs = needed_nodes(document, current, ())
    return {need.path: policy.coverage(need) for need in needs if not need.is_dir}


def refused(text: str, code: str, words: str, **more: object) -> None:
    outcome = run(text, **more)  # type: ignore[arg-type]
    assert [item.cause for item in outcome.refusals] == [code], outcome.refusals
    assert words in outcome.refusals[0].sentence
    assert outcome.refusals[0].object.startswith("141.conf")
    assert code in CAUSES
    assert (outcome.changed, outcome.content, outcome.changes) == (False, text.encode(), ())


def test_mounts_and_rules_go_and_entries_come() -> None:
    outcome = run(PLAIN + "\n[snap]\n" + rule("c 195:* rwm") + mount("/dev/nvidia0"))
    assert outcome.content.decode() == (
        HEAD
        + "dev0: /dev/nvidia0,mode=0666\ndev1: /dev/nvidia-uvm,mode=0666\n"
        + "\n[snap]\n" + rule("c 195:* rwm") + mount("/dev/nvidia0")
    )  # fmt: skip
    assert [(change.kind, change.line) for change in outcome.changes] == [
        ("dev", 4), ("dev", 4), ("rule", 5), ("rule", 6), ("mount", 7), ("mount", 8),
    ]  # fmt: skip
    assert outcome.required_paths == ("/dev/nvidia0", "/dev/nvidia-uvm")
    assert outcome.refusals == ()


def test_entries_follow_those_that_are_there_and_take_free_numbers() -> None:
    text = HEAD.replace("ostype", "dev0: /dev/dri/renderD128,gid=104\ndev2: /dev/kvm\nostype") + PLAIN[len(HEAD) :]
    pending = "\n[pve:pending]\ndelete: dev3,net0\ndev1: /dev/fuse\n"
    outcome = run(text + pending)
    assert added(outcome) == ["dev4: /dev/nvidia0,mode=0666", "dev5: /dev/nvidia-uvm,mode=0666"]
    assert b"dev2: /dev/kvm\ndev4: /dev/nvidia0" in outcome.content
    assert outcome.content.endswith(pending.encode())


def test_other_devices_stay_byte_for_byte() -> None:
    others = rule("c 226:* rwm") + mount("/dev/dri", options="bind,optional,create=dir") + rule("c 10:238 rwm", "deny")
    assert run(PLAIN + others).content == run(PLAIN).content + others.encode()


def test_crlf_and_a_last_line_without_end() -> None:
    text = PLAIN.replace("\n", "\r\n").removesuffix("\r\n")
    content = run(text).content
    assert content.endswith(b"dev0: /dev/nvidia0,mode=0666\r\ndev1: /dev/nvidia-uvm,mode=0666\r\n")


def test_duplicates_and_rules_by_path_and_by_minor_go() -> None:
    text = HEAD + rule("/dev/nvidia0 rwm") + rule("c 509:0 rw") + rule("c 509:0 rw") + mount("/dev/nvidia0") * 2
    outcome = run(text + mount("/dev/nvidia-uvm"))
    assert added(outcome) == ["dev0: /dev/nvidia0,mode=0666", "dev1: /dev/nvidia-uvm,mode=0666"]
    assert b"lxc." not in outcome.content


def test_a_rule_without_a_node_of_its_own_stays_and_is_named() -> None:
    outcome = run(PLAIN + rule("c 237:* rwm") + rule("c 195:1 rwm"))
    assert b"c 237:* rwm\n" in outcome.content
    assert b"c 195:1 rwm\n" in outcome.content
    assert [note for note in outcome.notes if note.startswith("line 9 stays (")]


def test_left_over_rules_beside_entries_go() -> None:
    """lxc-07: entries for all nodes, rules from before. 509 is somebody else's there and stays."""
    config = (CASES / "lxc-07-native-dev-entries.in.conf").read_bytes()
    current = parse_character_majors((CASES / "lxc-07-native-dev-entries.proc_devices.txt").read_text())
    outcome = migrate(config, current, NODES, NEW)
    assert outcome.content == config.replace(rule("c 195:* rwm").encode(), b"")
    assert "/dev/dri/renderD128" in outcome.required_paths


def test_a_mount_beside_its_own_entry_goes() -> None:
    text = HEAD + "dev0: /dev/nvidia0,gid=44\n" + rule("c 195:* rwm") + mount("/dev/nvidia0")
    outcome = run(text)
    assert outcome.content.decode() == HEAD + "dev0: /dev/nvidia0,gid=44\n"
    assert outcome.notes == ("dev0 brings /dev/nvidia0 already, with the mode that it says.",)


# --- mode and owner


def test_owner_and_mode_of_a_privileged_container_are_the_hosts() -> None:
    nodes = {**NODES, "/dev/nvidia0": NodeFacts(0, 44, 0o660), "/dev/nvidia-uvm": NodeFacts(7, 0, 0o640)}
    assert added(run(PLAIN, nodes)) == ["dev0: /dev/nvidia0,gid=44", "dev1: /dev/nvidia-uvm,mode=0640,uid=7"]


def test_an_unprivileged_container_gets_what_everybody_has() -> None:
    nodes = {**NODES, "/dev/nvidia0": NodeFacts(0, 44, 0o666)}
    assert added(run(PLAIN + "unprivileged: 1\n", nodes))[0] == "dev0: /dev/nvidia0,mode=0666"


def test_a_mapped_group_keeps_its_number_inside() -> None:
    idmap = (
        "lxc.idmap: u 0 100000 65536\nlxc.idmap: g 0 100000 10\nlxc.idmap: g 10 44 1\nlxc.idmap: g 11 100011 65525\n"
    )
    nodes = {**NODES, "/dev/nvidia0": NodeFacts(0, 44, 0o660), "/dev/nvidia-uvm": NodeFacts(0, 44, 0o666)}
    assert added(run(PLAIN + idmap, nodes)) == ["dev0: /dev/nvidia0,gid=10", "dev1: /dev/nvidia-uvm,gid=10,mode=0666"]


def test_what_nobody_inside_can_open_is_not_opened() -> None:
    nodes = {**NODES, "/dev/nvidia0": NodeFacts(0, 44, 0o660)}
    refused(PLAIN + "unprivileged: 1\n", "lxc.native_closed", "/dev/nvidia0 is 0:44 0660", nodes=nodes)


@pytest.mark.parametrize(
    ("facts", "ranges", "expected"),
    [
        (NodeFacts(0, 0, 0o666), UNPRIVILEGED, InsideNode(0, 0, 0o666, "rw")),
        (NodeFacts(0, 0, 0o660), UNPRIVILEGED, InsideNode(0, 0, 0o000, "")),
        (NodeFacts(0, 0, 0o444), UNPRIVILEGED, InsideNode(0, 0, 0o444, "r")),
        (NodeFacts(100000, 100044, 0o640), UNPRIVILEGED, InsideNode(0, 44, 0o640, "rw")),
        (NodeFacts(100007, 44, 0o664), UNPRIVILEGED, InsideNode(7, 0, 0o644, "rw")),
        (NodeFacts(0, 100044, 0o664), UNPRIVILEGED, InsideNode(0, 44, 0o664, "rw")),
        (NodeFacts(0, 44, 0o400), (), InsideNode(0, 44, 0o400, "rw")),
    ],
)
def test_a_node_as_seen_inside(
    facts: NodeFacts, ranges: tuple[tuple[str, int, int, int], ...], expected: InsideNode
) -> None:
    assert inside(facts, ranges) == expected


def test_an_idmap_that_cannot_be_read() -> None:
    refused(PLAIN + "lxc.idmap: u 0 100000\n", "lxc.native_closed", "lxc.idmap")


# --- read only


CAP = HEAD + rule("c 237:1 r") + rule("c 237:2 rwm") + mount("/dev/nvidia-caps/nvidia-cap1")


def test_rights_to_read_only_become_deny_write() -> None:
    assert added(run(CAP)) == ["dev0: /dev/nvidia-caps/nvidia-cap1,deny-write=1,mode=0400"]


def test_an_older_proxmox_cannot_say_read_only() -> None:
    refused(CAP, "lxc.native_too_old", "has no deny-write", version=OLD)
    assert run(PLAIN, version=OLD).changed


def test_an_entry_that_may_only_read_loses_no_wider_rule() -> None:
    """dev0 gives reading, the rule beside it writing too: without the rule less would be open than today."""
    text = HEAD + "dev0: /dev/nvidia0,deny-write=1\n" + rule("c 195:* rwm")
    refused(text, "lxc.native_rule", "/dev/nvidia0 would be open with r")


def test_reading_and_writing_by_two_rules_is_not_both_at_once() -> None:
    text = HEAD + rule("c 237:1 r") + rule("c 237:* w") + mount("/dev/nvidia-caps/nvidia-cap1")
    refused(text, "lxc.native_not_right", "no rule lets /dev/nvidia-caps/nvidia-cap1 be opened with r")


# --- folders


FOLDER = HEAD + rule("c 237:* rwm") + mount("/dev/nvidia-caps", options="bind,optional,create=dir")


def test_the_caps_folder_becomes_its_lasting_nodes() -> None:
    outcome = run(FOLDER)
    assert added(outcome) == [
        "dev0: /dev/nvidia-caps/nvidia-cap1,mode=0400",
        "dev1: /dev/nvidia-caps/nvidia-cap2,mode=0444",
    ]
    assert "appear in it later" in outcome.notes[0]


def test_a_node_of_the_folder_that_is_closed_today_stays_out() -> None:
    outcome = run(FOLDER + "unprivileged: 1\n")
    assert added(outcome) == ["dev0: /dev/nvidia-caps/nvidia-cap2,deny-write=1,mode=0444"]
    assert "/dev/nvidia-caps/nvidia-cap1 gets no entry: the container can't open it today." in outcome.notes


def test_a_folder_with_nodes_that_come_and_go() -> None:
    nodes = {**NODES, "/dev/nvidia-caps/nvidia-cap66": NodeFacts(mode=0o444)}
    refused(FOLDER, "lxc.native_mount", "holds /dev/nvidia-caps/nvidia-cap66", nodes=nodes)
    channels = HEAD + rule("c 237:* rwm") + mount("/dev/nvidia-caps-imex-channels")
    refused(
        channels, "lxc.native_mount", "channel0", nodes={"/dev/nvidia-caps-imex-channels/channel0": NodeFacts()}
    )  # fmt: skip


def test_an_empty_folder() -> None:
    refused(FOLDER, "lxc.native_node_missing", "holds no device node", nodes={})


# --- refusals


def test_a_node_that_is_missing_or_no_device() -> None:
    gone = {path: facts for path, facts in NODES.items() if path != "/dev/nvidia-uvm"}
    refused(PLAIN, "lxc.native_node_missing", "/dev/nvidia-uvm does not exist, the mount is optional", nodes=gone)
    file = {**NODES, "/dev/nvidia-uvm": NodeFacts(is_char=False)}
    refused(PLAIN, "lxc.native_node_missing", "is not a character device", nodes=file)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (mount("/dev/nvidia1", "dev/nvidia0"), "/dev/nvidia1 is mounted on dev/nvidia0, expected dev/nvidia1"),
        (mount("/dev/nvidia1", "/dev/nvidia1"), "is mounted on /dev/nvidia1"),
        (mount("/dev/nvidia1", options="bind,ro,create=file"), "with none bind,ro,create=file"),
        (mount("/dev/nvidia1", options="create=file"), "with none create=file"),
        ("lxc.mount.entry: /dev/nvidia1 dev/nvidia1 tmpfs bind\n", "with tmpfs bind"),
        ("lxc.mount.entry: /srv/dev dev none bind\n", "over the container's /dev"),
        ("mp0: /dev/nvidia-caps,mp=/dev/nvidia-caps\n", "mp0 brings /dev/nvidia-caps"),
    ],
)
def test_mounts_that_no_entry_can_express(line: str, words: str) -> None:
    refused(PLAIN + line, "lxc.native_mount", words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (rule("c *:* rwm"), "opens every device"),
        (rule("a *:* rw"), "opens every device"),
        (rule("c 195:1 rwm", "deny"), "somebody's decision"),
        (rule("c *:* rwm", "deny"), "somebody's decision"),
        (rule("/dev/nvidia1 w", "deny"), "somebody's decision"),
    ],
)
def test_rules_that_do_not_go_with_entries(line: str, words: str) -> None:
    refused(PLAIN + line, "lxc.native_rule", words)


@pytest.mark.parametrize("line", [rule("a", "deny"), rule("", "deny"), rule("")])
def test_a_rule_that_would_clear_what_the_entries_bring(line: str) -> None:
    head, rest = HEAD, PLAIN[len(HEAD) :]
    refused(head + line + rest, "lxc.native_rule", "clear the rules that devN brings")


def test_everything_allowed() -> None:
    refused(PLAIN + rule("a"), "lxc.native_rule", "every device is allowed")


def test_mknod_of_everything_is_no_wildcard() -> None:
    assert run(PLAIN + rule("c *:* m")).changed


def test_a_stale_rule_is_reconciled_first() -> None:
    refused(PLAIN.replace("509", "504"), "lxc.native_not_right", "no rule lets /dev/nvidia-uvm be opened with rw")


def test_a_driver_that_is_not_loaded() -> None:
    table = CharacterMajors(((1, "mem"), (195, "nvidia")))
    assert {r.cause for r in migrate(PLAIN.encode(), table, NODES, NEW).refusals} == {"lxc.native_not_right"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("lxc.include: /etc/lxc/gpu.conf\n", "includes /etc/lxc/gpu.conf"),
        ("lxc.hook.autodev: /root/nodes.sh\n", "runs /root/nodes.sh"),
        ("lxc.hook.mount: /usr/share/lxc/hooks/nvidia\n", "hooks/nvidia"),
        ("lxc.hook.pre-start: nvidia-modprobe -c0 -u\n", "nvidia-modprobe"),
        ("lxc.autodev: 0\n", "lxc.autodev"),
        ("lxc.mount.fstab: /etc/gpu.fstab\n", "/etc/gpu.fstab"),
    ],
)
def test_what_else_brings_nodes(line: str, words: str) -> None:
    refused(PLAIN + line, "lxc.native_hook", words)


def test_usual_includes_and_other_hooks_are_no_reason() -> None:
    extra = "lxc.include: /usr/share/lxc/config/common.conf\nlxc.hook.post-stop: /root/tell.sh\nlxc.autodev: 1\n"
    assert run(PLAIN + extra).changed


def test_versions_lock_and_hierarchy() -> None:
    refused(PLAIN, "lxc.native_too_old", "pve-container 5.0.6, expected 5.0.7", version="5.0.6")
    refused(PLAIN, "lxc.native_too_old", "is not known", version=None)
    refused(PLAIN + "lock: backup\n", "lxc.locked", "lock: backup")
    refused(PLAIN, "lxc.native_rule", "cgroup v1", hierarchy="legacy")


def test_no_free_key() -> None:
    used = "".join(f"dev{number}: /dev/tty{number}\n" for number in range(255))
    refused(PLAIN + used, "lxc.native_no_index", "2 nodes and 1 free devN keys")


def test_a_file_without_nvidia_is_never_refused() -> None:
    text = HEAD + "lock: backup\n" + rule("a") + mount("/dev/dri")
    assert run(text, version=None) == Migration(text.encode(), False, (), (), (), ())


def test_without_a_table_nothing_is_said() -> None:
    with pytest.raises(ProcDevicesError):
        migrate(PLAIN.encode(), CharacterMajors(), NODES, NEW)


# --- the public cases, reconciled first


@pytest.mark.parametrize("path", sorted(CASES.glob("lxc-*.expected.conf")), ids=lambda path: path.name[:6])
def test_the_cases(path: Path) -> None:
    current = parse_character_majors(
        path.with_name(path.name.replace(".expected.conf", ".proc_devices.txt")).read_text()
    )
    config = path.read_bytes()
    outcome = migrate(config, current, {**NODES, "/dev/nvidia3": NodeFacts()}, NEW)
    refusals = {"lxc-05": ["lxc.native_hook"], "lxc-12": ["lxc.native_rule"]}
    assert [item.cause for item in outcome.refusals] == refusals.get(path.name[:6], [])
    assert outcome.changed == (not outcome.refusals)
    again = migrate(outcome.content, current, NODES, NEW)
    assert outcome.refusals or (again.changed, again.refusals) == (False, ())
    assert not reconcile(outcome.content, current, {}, presumed="report").changed


# --- properties


@st.composite
def configs(draw: st.DrawFn) -> bytes:
    """Reconciled configs: rules right for today, with other people's lines, odd spacing, snapshots."""
    lines = HEAD.splitlines()
    paths = sorted(NODES)
    for path in draw(st.lists(st.sampled_from(paths), unique=True, min_size=1, max_size=5)):
        node = nvidia_node(path)
        if draw(st.integers(0, 9)):  # without its rule the file would not be right, and is refused
            minor = draw(st.sampled_from(["*", str(node.minor) if node else "*"]))
            access = draw(st.sampled_from(["rwm", "rw"] + (["r"] if node and node.access == "r" else [])))
            lines.append(rule(f"c {NOW.driver_major(node.driver) if node else 0}:{minor} {access}").rstrip())
        if draw(st.integers(0, 3)):
            lines.append(mount(path, options=draw(st.sampled_from(["bind", "bind,optional,create=file"]))).rstrip())
        else:
            more = draw(st.sampled_from(["", ",gid=44", ",deny-write=1", ",mode=0666"]))
            lines.append(f"dev{len(lines)}: {path}{more}")
    for _ in range(draw(st.integers(0, 3))):
        major = draw(st.sampled_from([195, 509, 237, 226, 10, 504]))
        minor = draw(st.sampled_from(["*", "0", "1", "255"]))
        key = "deny" if not draw(st.integers(0, 9)) else "allow"
        lines.append(rule(f"c {major}:{minor} {draw(st.sampled_from(['rwm', 'rw', 'r', 'rwm # x']))}", key).rstrip())
    lines = lines[:4] + draw(st.permutations(lines[4:]))
    if draw(st.booleans()):
        lines.insert(2, "unprivileged: 1")
    if draw(st.booleans()):
        lines.insert(draw(st.integers(0, 3)), "# c 195:* rwm /dev/nvidia0")
    lines += draw(st.sampled_from([[], ["", "[snap]", rule("c 509:* rwm").rstrip(), mount("/dev/nvidia0").rstrip()]]))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    return end.join(lines).encode() + draw(st.sampled_from([b"", end.encode()]))


def is_ours(document: LxcDocument, number: int) -> bool:
    rules = {item.line: item for item in document.rules if item.section == MAIN and item.allow}
    mounts = {item.line for item in document.mounts if item.section == MAIN and item.node}
    return number in mounts or (number in rules and rules[number].major in (195, 237, 509))


@settings(max_examples=300, deadline=None)
@given(configs(), st.sampled_from([OLD, NEW]), st.sampled_from([0o666, 0o660]))
def test_only_our_lines_change_and_access_stays(config: bytes, version: str, mode: int) -> None:
    nodes = {**NODES, "/dev/nvidia0": NodeFacts(0, 44, mode)}
    outcome = migrate(config, NOW, nodes, version)
    if outcome.refusals or not outcome.changed:
        assert outcome.content == config
        return
    old, new = parse(config), parse(outcome.content)
    kept = {change.line for change in outcome.changes if change.after is None}
    assert all(is_ours(old, number) for number in kept)
    fresh = {(text or "").encode() for text in added(outcome)}
    before = [line.raw.rstrip(b"\r\n") for line in old.lines if line.number not in kept]
    after = [line.raw.rstrip(b"\r\n") for line in new.lines]
    assert [raw for raw in after if raw not in fresh] == before
    assert access(outcome.content) == access(config)
    assert not [item for item in new.mounts if item.section == MAIN and item.node]
    again = migrate(outcome.content, NOW, nodes, version)
    assert (again.changed, again.content, again.refusals) == (False, outcome.content, ())
    assert all(dev.node is None or nvidia_node(dev.path) for dev in new.dev_entries)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    outcome = migrate(data, NOW, NODES, NEW)
    assert outcome.changed or outcome.content == data
