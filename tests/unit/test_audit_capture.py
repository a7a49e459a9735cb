"""A real host as a fixture: the text, what is kept of a host, and that names, addresses and secrets are gone."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_host import FakeHost
from fake_snapshot import lay, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from test_audit_hosts import WISHES, audited

from gpuhost import audit, capture
from gpuhost.audit_recorder import Recorder
from gpuhost.audit_redact import Redactor
from gpuhost.audit_snapshot import Snapshot, expanded, joined, parse, render
from gpuhost_cli import capture as cli_capture

# --- the text

_name = st.text(alphabet="abz019-_.{}%,> ", min_size=1, max_size=6).filter(lambda text: text.strip() == text)
_path = st.lists(_name, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
_line = st.text(alphabet="ab=| !%\t\x1b{é", max_size=6)
_output = st.lists(_line, max_size=3).map(lambda lines: "".join(f"{line}\n" for line in lines))


def _ended(words: list[str]) -> bytes:
    return "".join(f"{word}\0" for word in words).encode()


_data = st.one_of(
    st.binary(max_size=40),
    st.lists(st.text(alphabet="a=\n\té \0", max_size=6), max_size=3).map(lambda parts: "".join(parts).encode()),
    st.lists(st.text(alphabet="a=-", max_size=4), min_size=1, max_size=3).map(_ended),
    st.sampled_from([b"", b"1\n", b"=== file /x\n", b"a\n=== b", b"\n", b"\0", bytes(64), b"x" + bytes(40)]),
)  # fmt: skip
_snapshots = st.builds(
    Snapshot,
    root=st.booleans(),
    files=st.dictionaries(_path, _data, max_size=4),
    links=st.dictionaries(_path, _path, max_size=3),
    folders=st.sets(_path, max_size=3),
    nodes=st.dictionaries(_path, st.tuples(st.integers(0, 511), st.integers(0, 300)), max_size=2),
    modes=st.dictionaries(_path, st.sampled_from([0o755, 0o644]), max_size=2),
    runs=st.dictionaries(
        st.lists(st.text(alphabet="a-= \t\n'%{", min_size=1, max_size=5), min_size=1, max_size=3).map(tuple),
        st.tuples(st.integers(0, 127), _output, _output),
        max_size=2,
    ),
)


@settings(max_examples=300)
@given(_snapshots)
def test_parse_gives_back_what_was_rendered(made: Snapshot) -> None:
    assert parse(render(made)) == made


@given(_snapshots)
def test_the_text_is_stable(made: Snapshot) -> None:
    assert render(parse(render(made))) == render(made)


@given(st.sets(st.integers(0, 300).map(lambda number: f"/sys/cpu{number}/state{number % 3}/x"), max_size=40))
def test_joined_paths_expand_to_themselves(paths: set[str]) -> None:
    found = [path for line in joined(paths) for path in expanded(line)]
    assert sorted(found) == sorted(paths)


def test_many_alike_are_one_line() -> None:
    assert joined(f"/cpu{number}/x" for number in range(128)) == ["/cpu{0..127}/x"]
    assert joined(["/cpu0/x", "/cpu1/x", "/cpu5/x"]) == ["/cpu{0..1,5}/x"]
    assert joined(["/a01/x", "/a02/x"]) == ["/a01/x", "/a02/x"]  # 01 is not a number's own spelling


def test_braces_go_on_in_step() -> None:
    assert expanded("/{a,b}/{1..2}") == ["/a/1", "/b/2"]
    with pytest.raises(ValueError, match="not of one length"):
        expanded("/{a,b}/{1..3}")


def test_a_block_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="no such block"):
        parse("=== nonsense /x\n")


@pytest.mark.parametrize("name", ["vm-intel-2gpu", "debian-no-gpu"])
def test_the_captured_hosts_are_as_the_capture_writes_them(name: str) -> None:
    made = snapshot(name)
    assert parse(render(made)) == made


# --- redaction

_octet = st.integers(1, 254)
_ipv4 = st.tuples(st.integers(1, 223), _octet, _octet, _octet).map(lambda four: ".".join(map(str, four)))
_ipv4 = _ipv4.filter(lambda text: not re.match(r"127\.|192\.0\.2\.|198\.51\.100\.|203\.0\.113\.", text))
_ipv6 = st.ip_addresses(v=6).filter(lambda a: not a.is_loopback and not a.is_unspecified).map(str)
_ipv6 = _ipv6.filter(lambda text: not text.startswith("2001:db8:"))
_hex = st.sampled_from("0123456789abcdef")
_mac = st.lists(st.integers(0, 255), min_size=6, max_size=6).map(lambda six: ":".join(f"{byte:02x}" for byte in six))
_mac = _mac.filter(lambda text: not text.startswith("02:00:00:00:") and len(set(text)) > 2)
_uuid = st.uuids().map(str).filter(lambda text: not text.startswith("00000000-0000-0000-0000-"))
_token = st.sampled_from(["hf_abcdefghijkl", "sk-abcdefgh1234", "nvapi-abcdefgh12", "ghp_abcdefghijklmnopq"])
_identifier = st.one_of(
    _ipv4, _ipv6, _mac, _uuid, _token, st.sampled_from(["gpu07", "gpu07.rack.example.net", "alice"])
)
_glue = st.sampled_from([" ", "\n", " = ", ",", "/", "(", ") ", "\t", '"', ": "])
NAMES = ("gpu07.rack.example.net", "gpu07", "alice")


@settings(max_examples=300)
@given(st.lists(st.tuples(_identifier, _glue), min_size=1, max_size=6))
def test_nothing_that_identifies_is_left(parts: Sequence[tuple[str, str]]) -> None:
    shown = Redactor(NAMES).text(" " + "".join(f"{what}{glue}" for what, glue in parts))
    for what, _ in parts:
        assert what not in re.split(r"[^\w.:-]+", shown), shown


@given(st.lists(_identifier, min_size=1, max_size=5))
def test_the_same_thing_gets_the_same_stand_in(what: list[str]) -> None:
    redactor = Redactor(NAMES)
    first = [redactor.text(f"x {item} y") for item in what]
    again = [redactor.text(f"x {item} y") for item in what]
    assert first == again
    plain = [item for item in dict.fromkeys(what) if not re.match(r"hf_|sk-|nvapi-|ghp_", item)]
    assert len({redactor.text(f"x {item} y") for item in plain}) == len(plain)


@given(st.lists(st.tuples(_identifier, _glue), max_size=5))
def test_what_was_redacted_stays(parts: Sequence[tuple[str, str]]) -> None:
    shown = Redactor(NAMES).text(" " + "".join(f"{what}{glue}" for what, glue in parts))
    assert Redactor(NAMES).text(shown) == shown


KEPT = """\
0000:01:00.0 10de:2bb5 00000000:41:00.0 PCI:0000:41:00
580.159.04 96.00.a5.00.1a 6.8.12-4-pve 6.12.117+deb12-amd64 libcublas.so.12.8.4.1 nvidia_cublas-13.1.0.3.dist-info
/sys/devices/pci0000:00/0000:00:01.1 127.0.0.1 0.0.0.0 255.255.255.0 ::1 192.0.2.7 lxc@inference.service
VLLM::Worker_TP0 SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c
c 195:* rwm 12:34:56 2026-01-31T12:00:00Z 0x000000000014220c NV18 --tp-size 8 max_tokens
lxc.cgroup2.devices.allow = c 504:* rwm
"""


def test_what_gpu_work_is_about_stays() -> None:
    assert Redactor(("pve", "gpu07", "vm")).text(KEPT) == KEPT


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/alice/venv /home/bob /home/alice", "/home/user1/venv /home/user2 /home/user1"),
        ("mail root@corp.example.net", "mail user1@example.com"),
        ("HF_TOKEN=abc", "HF_TOKEN=***"),
        ('"api_key": "abc"', '"api_key": "***"'),
        ("lxc.environment = AWS_SECRET_ACCESS_KEY=abc", "lxc.environment = AWS_SECRET_ACCESS_KEY=***"),
        ("DB_PASS=abc WANDB_KEY=abc TOKEN_V2=abc", "DB_PASS=*** WANDB_KEY=*** TOKEN_V2=***"),
        ("curl -H 'Authorization: Bearer abcdef123'", "curl -H 'Authorization: Bearer ***'"),
        ("password = hunter2", "password = ***"),
        ("http://u:p@proxy.example.com/", "http://***@proxy.example.com/"),
        ("Serial Number : 165012345\nBoard ID: 0x6", "Serial Number : 0\nBoard ID: 0"),
        ("port guid 0c42:a103:0065:1f5a", "port guid 0000:0000:0000:0001"),
        ("GPU-e311bf27-d5f8-7414-656b-2cc947298c99", "GPU-00000000-0000-0000-0000-000000000001"),
        ("/docker/" + "ab" * 32, "/docker/000000000001" + "0" * 52),
        ("hwaddr BC:24:11:0A:0B:0C", "hwaddr 02:00:00:00:00:01"),
        ("10.0.0.5-10.0.0.9, 10.0.0.5.", "192.0.2.1-192.0.2.2, 192.0.2.1."),
    ],
)
def test_redaction(text: str, shown: str) -> None:
    assert Redactor().text(text) == shown


# --- a host


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    made = lay(FakeHost(tmp_path / "host"), snapshot("pve-amd-8gpu"))
    for path, text in {
        "/etc/hostname": "gpu07\n",
        "/etc/passwd": "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/bash\n",
        "/proc/4301/environ": "HF_TOKEN=abcdef\0LD_PRELOAD=/home/alice/libnccl.so.2\0PATH=/bin\0",
        "/proc/5000/cmdline": "psql\0--password\0hunter2\0",
        "/proc/5000/status": "Name:\tpsql\nPPid:\t1\n",
        "/etc/sysctl.d/50-own.conf": "# by alice@corp.example.net on gpu07\nkernel.printk = 3\n",
    }.items():
        made.put(path, text)
    conf = made.read("/etc/pve/lxc/101.conf") or ""
    made.put(
        "/etc/pve/lxc/101.conf", conf + "net0: name=eth0,bridge=vmbr0,hwaddr=BC:24:11:0A:0B:0C,ip=10.20.30.40/24\n"
    )
    return made


def captured(host: FakeHost) -> str:
    return capture.capture(host, [part.look for part in audit.parts_of(WISHES, [])])


SECRETS = (
    "gpu07", "alice", "hunter2", "abcdef", "BC:24:11", "10.20.30.40", "example-not-a-secret", "corp.example.net",
    "psql", "inference",
)  # fmt: skip


def test_a_capture_tells_nobody(host: FakeHost) -> None:
    text = captured(host)
    assert [secret for secret in SECRETS if secret in text] == []


@pytest.mark.parametrize("name", ["pve-amd-8gpu", "ubuntu-amd-8gpu", "vm-intel-2gpu", "debian-no-gpu"])
def test_a_captured_host_gives_the_same_audit(name: str, tmp_path: Path) -> None:
    """Everything that the audit reads is in the capture, and nothing that was cut away was needed."""
    real = lay(FakeHost(tmp_path / "real"), snapshot(name))
    again = lay(FakeHost(tmp_path / "again"), parse(captured(real)))
    first, second = audited(real), audited(again)
    assert [(item.severity, item.id) for item in second] == [(item.severity, item.id) for item in first]
    told = {item.id: item.observed for item in second}
    assert all(told[item.id] == item.observed for item in first if item.domain in ("pcie", "firmware", "driver"))


def test_the_command_writes_a_file_that_is_a_fixture(host: FakeHost, tmp_path: Path) -> None:
    said = cli_capture.write(tmp_path / "mine.tree", host)
    assert str(tmp_path / "mine.tree") in said
    assert "read it before it leaves the house" in said
    assert parse((tmp_path / "mine.tree").read_text()).root
    host.root_user = False
    assert "without root" in cli_capture.write(tmp_path / "mine.tree", host)


def test_a_capture_is_small_enough_to_be_read(tmp_path: Path) -> None:
    real = lay(FakeHost(tmp_path), snapshot("ubuntu-amd-8gpu"))
    assert len(captured(real).splitlines()) < 1300


def test_a_capture_changes_nothing(host: FakeHost) -> None:
    before = host.snapshot()
    captured(host)
    assert host.snapshot() == before


def test_without_root_it_says_so(host: FakeHost) -> None:
    host.root_user = False
    assert parse(captured(host)).root is False


def test_dockers_environments_are_not_kept(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    folder = f"/var/lib/docker/containers/{'ab' * 32}"
    host.put(f"{folder}/hostconfig.json", json.dumps({"Runtime": "nvidia", "Binds": ["/srv/secret:/x"]}))
    environment = {"Name": "/llm", "State": {"Running": True, "Pid": 5}, "Config": {"Env": ["HF_TOKEN=abc"]}}
    host.put(f"{folder}/config.v2.json", json.dumps(environment))
    text = captured(host)
    assert '{"Name": "/llm", "State": {"Running": true}}' in text
    assert "HF_TOKEN" not in text
    assert "/srv/secret" not in text


def test_links_are_kept_as_they_are(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.put("/usr/lib/modules/x/modules.dep", "a\n")
    host.path("/lib").symlink_to("usr/lib")
    recorder = Recorder(host)
    assert recorder.read("/lib/modules/x/modules.dep") == "a\n"
    assert recorder.snapshot.links == {"/lib": "usr/lib"}
    assert recorder.snapshot.files == {"/usr/lib/modules/x/modules.dep": b"a\n"}


def test_links_that_go_in_a_circle_end(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.path("/a").symlink_to("b")
    host.path("/b").symlink_to("a")
    recorder = Recorder(host)
    assert recorder.exists("/a/x") is False
    assert recorder.snapshot.files == {}


def test_pieces_of_a_file_are_put_together(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.put("/sys/x/config", bytes(range(16)))
    recorder = Recorder(host)
    recorder.read_at("/sys/x/config", 8, 2)
    recorder.read_at("/sys/x/config", 0, 1)
    assert recorder.snapshot.files == {"/sys/x/config": b"\x00\0\0\0\0\0\0\0\x08\x09"}
