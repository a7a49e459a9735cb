"""The config parser: every byte survives, and lines mean what Proxmox and liblxc take them for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_lxc_properties import generated

from gpuhost.lxc_config import MAIN, PENDING, DeviceRule, SpanEdit, Style, parse, vmid_of

# Fragments that steer random bytes into the interesting corners.
FRAGMENTS = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [
            b"\n", b"\r\n", b"\r", b"\0", b"#", b"[snap]", b"[pve:pending]", b" ", b"=", b": ", b"'", b'"', b"a",
            b"lxc.cgroup2.devices.allow", b"lxc.cgroup.devices.deny", b"c 195:* rwm", b"c *:* m", b"c 1:2 rw # x",
            b"/dev/nvidia0 rwm", b"lxc.mount.entry", b"dev0: /dev/nvidia0,gid=44", b"lock: backup", b"lxc.include",
            b"c 99999999999999:* rwm", b"c 007:1 r", b"\xff\xfe",
        ]
    ),
)  # fmt: skip
CONFIGS = st.lists(FRAGMENTS, max_size=40).map(b"".join)
STYLES: list[Style] = ["pve", "lxc"]


@given(CONFIGS, st.sampled_from(STYLES))
@generated
def test_any_bytes_round_trip(data: bytes, style: Style) -> None:
    document = parse(data, style)
    assert document.render() == data
    assert document.rewrite() == data
    # Every property must survive any input, and every span must lie inside its line.
    for name in ("facts", "sections", "includes", "mounts", "dev_entries", "ignored_rules"):
        assert getattr(document, name) is not None
    for rule in document.rules:
        if rule.kind == "numbers":
            start, end = rule.major_span
            number = document.lines[rule.line - 1].raw[start:end]
            assert number == (b"*" if rule.major is None else str(rule.major).encode())


def only_rule(line: bytes, style: Style = "pve") -> DeviceRule:
    rules = parse(line, style).rules
    assert len(rules) == 1
    return rules[0]


@pytest.mark.parametrize(
    "value", [b"c 501:* rwm", b"c 501:* rwm # uvm", b"c 501:* rwmx", b"c\t501:*\trwm", b"c 501:* mwr", b"c 501:* rrr"]
)
@pytest.mark.parametrize("separator", [b": ", b" = ", b"=", b":"])
def test_accepted_rules(value: bytes, separator: bytes) -> None:
    rule = only_rule(b"lxc.cgroup2.devices.allow" + separator + value + b"\r\n")
    assert (rule.kind, rule.type, rule.major, rule.minor, rule.allow, rule.version) == (
        "numbers", "c", 501, None, True, 2,
    )  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        b"c 501:* rw # uvm", b"c  501:* rwm", b"c 501:*  rwm", b"c 501 rwm", b"c 501:* x", b"c 0x1f5:* rwm",
        b"c 0501:* rwm", b"c 501:01 rwm", b"d 501:* rwm", b"c501:* rwm", b"c 99999999999:* rwm", b"c 501:*", b"a ,",
    ],
)  # fmt: skip
def test_refused_rules_are_malformed_with_a_reason(value: bytes) -> None:
    rule = only_rule(b"lxc.cgroup2.devices.allow: " + value)
    assert rule.kind == "malformed"
    assert rule.malformed


def test_rule_kinds() -> None:
    assert only_rule(b"lxc.cgroup2.devices.allow: a").kind == "all"
    assert only_rule(b"lxc.cgroup2.devices.allow:").kind == "clear"
    assert only_rule(b"lxc.cgroup2.devices.deny: a").allow is False
    assert only_rule(b"lxc.cgroup.devices.allow: c 195:* rwm").version == 1
    unusual = only_rule(b"lxc.cgroup2.devices.allow: a *:* rwm")
    assert (unusual.kind, unusual.type, unusual.major) == ("numbers", "a", None)
    path = only_rule(b"lxc.cgroup2.devices.allow: /dev/nvidia-uvm rw # text")
    assert (path.kind, path.path, path.access) == ("path", "/dev/nvidia-uvm", "rw")


@pytest.mark.parametrize(
    "line",
    [
        b" lxc.cgroup2.devices.allow: c 1:2 r",
        b"LXC.cgroup2.devices.allow: c 1:2 r",
        b"lxc.cgroup2.devices.allow : c 1:2 r",
    ],
)
def test_proxmox_does_not_take_these_as_rules(line: bytes) -> None:
    document = parse(line)
    assert document.rules == ()
    assert [ignored.number for ignored in document.ignored_rules] == [1]


def test_sections_comments_and_description() -> None:
    document = parse(
        b"#lxc.cgroup2.devices.allow: c 1:2 r\n#[gpu]\narch: amd64\n[x]\nlxc.cgroup2.devices.allow: c 3:4 r\n\n"
        b"[PVE:pending]  \nlxc.cgroup2.devices.allow: c 5:6 r\n[Snap-1]\r\nlxc.cgroup2.devices.allow: c 7:8 r\n"
    )
    # "[x]" is too short for a snapshot name, so Proxmox stays in the main section.
    assert document.sections == (PENDING, "Snap-1")
    assert [(rule.section, rule.major) for rule in document.rules] == [(MAIN, 3), (PENDING, 5), ("Snap-1", 7)]


def test_plain_style() -> None:
    document = parse(
        b"# note\n  lxc.cgroup2.devices.allow = 'c 195:* rwm'\nlxc.include = /etc/lxc/gpu.conf\n"
        b"lxc.start.auto = 1\nlxc.start.order = 5\nlxc.uts.name = gpu-ct\n[snap]\nlxc.cgroup2.devices.deny = a\n",
        "lxc",
    )
    assert [(rule.kind, rule.section) for rule in document.rules] == [("numbers", MAIN), ("all", MAIN)]
    assert document.includes == ((3, "/etc/lxc/gpu.conf"),)
    facts = document.facts
    assert (facts.autostart, facts.order, facts.hostname) == (True, 5, "gpu-ct")
    assert document.sections == ()


def test_liblxc_ends_a_line_at_a_carriage_return_too() -> None:
    document = parse(b"lxc.cgroup2.devices.allow = c 1:2 rw\r\n# note\rlxc.cgroup2.devices.allow = c 3:4 r\r", "lxc")
    assert [(line.number, line.kind, line.eol) for line in document.lines] == [
        (1, "entry", b"\r\n"), (2, "comment", b"\r"), (3, "entry", b"\r"),
    ]  # fmt: skip
    assert [(rule.line, rule.kind, rule.major) for rule in document.rules] == [(1, "numbers", 1), (3, "numbers", 3)]
    assert document.rewrite(insertions={3: [b"new"]}).endswith(b"c 3:4 r\rnew\r")


def test_for_liblxc_the_file_ends_at_a_nul() -> None:
    data = b"lxc.cgroup2.devices.allow = c 1:2 rw\0\nlxc.cgroup2.devices.allow = c 3:4 r\n"
    document = parse(data, "lxc")
    assert [rule.major for rule in document.rules] == [1]
    assert document.render() == data
    assert document.rewrite(insertions={1: [b"new"]}).startswith(b"lxc.cgroup2.devices.allow = c 1:2 rw\nnew\0")


def test_proxmox_hands_quotes_to_liblxc() -> None:
    rule = only_rule(b"lxc.cgroup2.devices.allow: 'c 195:* rwm'\r\n")
    assert (rule.kind, rule.major, rule.major_span) == ("numbers", 195, (30, 33))
    assert parse(b"hostname: 'a'\n").facts.hostname == "'a'"


def test_an_empty_value_clears_a_key_or_all_of_its_version() -> None:
    document = parse(b"lxc.cgroup2 =\nlxc.cgroup2 = x\nlxc.cgroup.dir = a\n", "lxc")
    assert [(rule.kind, rule.version) for rule in document.rules] == [("clear", 2)]


@pytest.mark.parametrize(
    ("value", "problem"), [(b"/dev/nvidia0 rw", "only an allow rule may name a path"), (b"/x", "not")]
)
def test_a_deny_rule_takes_no_path(value: bytes, problem: str) -> None:
    assert only_rule(b"lxc.cgroup2.devices.deny: " + value).malformed.startswith(problem)
    path = only_rule(b"lxc.cgroup2.devices.allow: /srv/node rw")
    assert (path.kind, path.path, path.malformed) == ("path", "/srv/node", "")


def test_proxmox_facts() -> None:
    facts = parse(b"onboot: 0\nonboot: 1\nstartup: order=3,up=30\nlock: backup\nhostname: a\nunprivileged: 1\n").facts
    assert (facts.autostart, facts.order, facts.startup, facts.lock) == (True, 3, "order=3,up=30", "backup")
    assert (facts.hostname, facts.unprivileged) == ("a", True)
    assert parse(b"arch: amd64\n").facts.autostart is None
    assert parse(b"[snap]\nlock: backup\n").facts.lock is None


def test_mounts_and_dev_entries() -> None:
    document = parse(
        b"dev0: /dev/nvidia0,gid=44\ndev12: mode=0666,path=/dev/dri/card0\n"
        b"lxc.mount.entry: /dev/nvidia-caps dev/nvidia-caps none bind,optional,create=dir\n"
        b"lxc.mount.entry = /dev/fb0 dev/fb0 none bind\nlxc.mount.entry: /srv/x srv/x none bind\n"
    )
    assert [(dev.key, dev.path, dev.node is not None) for dev in document.dev_entries] == [
        ("dev0", "/dev/nvidia0", True),
        ("dev12", "/dev/dri/card0", False),
    ]
    assert [(mount.source, mount.optional, mount.node is not None) for mount in document.mounts] == [
        ("/dev/nvidia-caps", True, True),
        ("/dev/fb0", False, False),
    ]


def test_rewrite_makes_all_edits_at_once() -> None:
    data = b"one\r\ntwo"
    document = parse(data)
    assert document.rewrite([SpanEdit(1, 0, 1, b"longer"), SpanEdit(1, 2, 3, b"E")]) == b"longernE\r\ntwo"
    assert document.rewrite(insertions={1: [b"new"]}) == b"one\r\nnew\r\ntwo"
    assert document.rewrite(insertions={2: [b"new", b"er"]}) == b"one\r\ntwo\r\nnew\r\ner"
    assert document.rewrite(removals=[1]) == b"two"
    assert parse(b"").rewrite(insertions={0: [b"new"]}) == b"new\n"


def test_only_live_files_have_a_vmid() -> None:
    names = [
        "129.conf", "129.conf.bak", "129.conf.tmp", "129.conf.new", "129.conf.backup.20250301_101500", "1290.conf",
        "gpu-notes.conf", ".ansible_tmpq1w2e3130.conf", "129.conf\n", "\u0661\u0662.conf",
    ]  # fmt: skip
    assert [vmid_of(name) for name in names if vmid_of(name) is not None] == [129, 1290]
