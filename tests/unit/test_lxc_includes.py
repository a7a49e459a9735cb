"""Included files: read where the include line stands, rewritten where they are the user's own. liblxc is the oracle."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from test_lxc_reconcile import ids, table

from gpuhost.lxc_config import parse
from gpuhost.lxc_includes import main_section
from gpuhost.lxc_reconcile import Reconciliation, include_paths, read_includes, reconcile, stale_rules

NOW = table({"nvidia-uvm": 509, "nvidia-caps": 237}, {504: "gpiochip"})
BEFORE = {"nvidia-uvm": 504, "nvidia-caps": 507}
COMMON = "/usr/share/lxc/config/common.conf"
FILES = {
    COMMON: b"lxc.cgroup2.devices.deny = a\nlxc.cgroup2.devices.allow = c *:* m\nlxc.include = /usr/share/lxc/d/\n",
    "/etc/lxc/gpu.conf": b"# GPU\r\nlxc.cgroup2.devices.allow = c 504:* rwm # uvm\r\nlxc.include = /etc/lxc/more.d\r\n",
    "/etc/lxc/more.d/caps.conf": b"lxc.cgroup2.devices.allow = c 507:* rwm",
}
MOUNT = b"lxc.mount.entry = /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file\n"
CONFIG = b"lxc.include = " + COMMON.encode() + b"\nlxc.include = /etc/lxc/gpu.conf\n" + MOUNT


def run(config: bytes, files: Mapping[str, bytes] | None = None, record: Mapping[str, int] = BEFORE) -> Reconciliation:
    return reconcile(config, NOW, record, style="lxc", presumed="report", includes=FILES if files is None else files)


def reader(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """What read_includes makes of a tree of files."""

    def names(folder: str) -> list[str]:
        inside = (path[len(folder.rstrip("/")) + 1 :] for path in files if path.startswith(folder.rstrip("/") + "/"))
        return [*dict.fromkeys(path.split("/")[0] for path in inside)]

    return read_includes(CONFIG, files.get, names)


# --- reading


def test_paths_of_a_config() -> None:
    assert include_paths(CONFIG) == (COMMON, "/etc/lxc/gpu.conf")
    assert include_paths(b"lxc.include: /x\nlxc.include:\n#lxc.include: /y\n[snap]\nlxc.include: /z\n", "pve") == (
        "/x",
    )


def test_all_is_read_once_and_only_conf_files_of_folders() -> None:
    more = {"/etc/lxc/more.d/.conf": b"", "/etc/lxc/more.d/README": b"", "/etc/lxc/other.conf": b"", "rel": b""}
    assert reader({**FILES, **more}) == FILES
    assert reader({}) == {}


def test_cycles_and_relative_paths_end() -> None:
    cycle = {COMMON: b"lxc.include = /etc/lxc/gpu.conf\n", "/etc/lxc/gpu.conf": b"lxc.include = " + COMMON.encode()}
    assert reader(cycle) == cycle
    assert read_includes(b"lxc.include = rel.conf\n", {"rel.conf": b""}.get, lambda _: []) == {}


def test_lines_stand_where_they_are_included() -> None:
    main = main_section(parse(CONFIG, "lxc"), FILES)
    assert [(rule.file, rule.line, rule.major) for rule in main.rules] == [
        (COMMON, 1, None), (COMMON, 2, None), ("/etc/lxc/gpu.conf", 2, 504), ("/etc/lxc/more.d/caps.conf", 1, 507),
    ]  # fmt: skip
    assert [mount.line for mount in main.mounts] == [3]
    assert main.unfollowed == ()


def test_clears_in_included_files_count_at_their_place() -> None:
    files = {"/etc/c": b"lxc.cgroup2.devices.allow =\nlxc.mount.entry =\n"}
    above = b"lxc.cgroup2.devices.allow = c 509:* rwm\n" + MOUNT
    gone = run(above + b"lxc.include = /etc/c\n", files)
    assert (gone.needed, gone.changed) == ((), False)
    below = run(b"lxc.include = /etc/c\n" + above, files)
    assert [need.path for need in below.needed] == ["/dev/nvidia-uvm"]
    assert ids(below) == ["lxc.include"]


def test_a_file_that_doubles_itself_ends() -> None:
    files = {f"/f{n}": f"lxc.include = /f{n + 1}\nlxc.include = /f{n + 1}\n".encode() for n in range(40)}
    outcome = run(b"lxc.include = /f0\n" + MOUNT, {**files, "/f40": b""})
    assert "lxc.include_missing" in ids(outcome)


# --- rewriting


def test_stale_numbers_are_rewritten_in_the_file_that_holds_them() -> None:
    outcome = run(CONFIG)
    assert (outcome.changed, outcome.changes) == (False, ())
    assert {item.path: item.content for item in outcome.included} == {
        "/etc/lxc/gpu.conf": FILES["/etc/lxc/gpu.conf"].replace(b"504", b"509"),
        "/etc/lxc/more.d/caps.conf": FILES["/etc/lxc/more.d/caps.conf"].replace(b"507", b"237"),
    }
    uvm, caps = outcome.included
    assert [(c.line, c.file, c.leaks_to, c.attribution) for c in uvm.changes] == [
        (2, "/etc/lxc/gpu.conf", "gpiochip", "recorded")
    ]
    assert (uvm.changed, caps.changed) == (True, True)
    assert "/etc/lxc/gpu.conf line 2" in {finding.source for finding in outcome.findings}


def test_a_second_run_changes_nothing() -> None:
    files = {**FILES, **{item.path: item.content for item in run(CONFIG).included}}
    again = run(CONFIG, files)
    assert not again.changed
    assert not any(item.changed or item.changes for item in again.included)
    assert stale_rules(CONFIG, NOW, BEFORE, style="lxc", includes=files) == ()


def test_the_judge_names_the_included_file() -> None:
    found = stale_rules(CONFIG, NOW, BEFORE, style="lxc", includes=FILES)
    assert [(rule.file, rule.line, rule.driver) for rule in found] == [
        ("/etc/lxc/gpu.conf", 2, "nvidia-uvm"), ("/etc/lxc/more.d/caps.conf", 1, "nvidia-caps"),
    ]  # fmt: skip


def test_presumed_is_never_written_into_an_included_file() -> None:
    outcome = reconcile(CONFIG, NOW, {}, style="lxc", presumed="apply", includes=FILES)
    assert not any(item.changed for item in outcome.included)
    # The rule that is missing comes into the container's own file.
    assert outcome.content == CONFIG + b"lxc.cgroup2.devices.allow = c 509:* rwm\n"


def test_dead_keys_of_an_included_file_are_not_converted() -> None:
    files = {"/etc/v1": b"lxc.cgroup.devices.allow = c 504:* rwm\nlxc.cgroup2.devices.allow = c 10:200 rwm\n"}
    outcome = run(b"lxc.include = /etc/v1\n" + MOUNT, files)
    assert [item.changed for item in outcome.included] == [False]
    assert outcome.content.endswith(b"lxc.cgroup2.devices.allow = c 509:* rwm\n")
    assert "/etc/v1 lines 1" in {f.source for f in outcome.findings if f.id == "lxc.dead_cgroup_key"}


def test_a_distribution_file_is_only_named() -> None:
    path = "/usr/share/lxc/config/site.conf"
    config = b"lxc.include = " + path.encode() + b"\n" + MOUNT
    outcome = run(config, {path: b"lxc.cgroup2.devices.allow = c 504:* rwm\n"})
    assert outcome.included == ()
    assert [(f.severity, f.source) for f in outcome.findings if f.id == "lxc.include_stale"] == [
        ("security", f"{path} line 1")
    ]
    assert outcome.content == config + b"lxc.cgroup2.devices.allow = c 509:* rwm\n"
    assert not run(outcome.content, {path: b"lxc.cgroup2.devices.allow = c 504:* rwm\n"}).changed


def test_a_rule_in_an_included_file_is_enough() -> None:
    files = {"/etc/lxc/gpu.conf": b"lxc.cgroup2.devices.allow = c 509:* rwm\n", COMMON: b""}
    assert ids(run(CONFIG, files)) == ["lxc.include"]


def test_an_include_that_takes_the_rule_back_is_seen() -> None:
    config = b"lxc.cgroup2.devices.allow = c 509:* rwm\n" + MOUNT + b"lxc.include = " + COMMON.encode() + b"\n"
    outcome = run(config)
    assert outcome.content == config + b"lxc.cgroup2.devices.allow = c 509:* rwm\n"
    assert not run(outcome.content).changed


@pytest.mark.parametrize(
    ("path", "expected"),
    [(b"/etc/none.conf", ["lxc.include_missing"]), (b"/etc/none.d/", []), (b"rel.conf", ["lxc.include_missing"])],
)
def test_a_missing_include_is_said(path: bytes, expected: list[str]) -> None:
    rule = b"lxc.cgroup2.devices.allow = c 509:* rwm\n"
    assert ids(run(b"lxc.include = " + path + b"\n" + rule + MOUNT, {"/x": b""})) == expected


def test_a_cycle_is_said() -> None:
    outcome = run(b"lxc.include = /x\n" + MOUNT, {"/x": b"lxc.include = /x\nlxc.cgroup2.devices.allow = c 509:* rwm\n"})
    assert [f.observed for f in outcome.findings if f.id == "lxc.include_missing"] == [
        "includes /x, which includes itself"
    ]


def test_without_the_files_none_is_followed() -> None:
    outcome = reconcile(CONFIG, NOW, BEFORE, style="lxc")
    assert [f.observed for f in outcome.findings if f.id == "lxc.include"] == ["includes /etc/lxc/gpu.conf"]
    assert outcome.included == ()


def test_proxmox_includes_are_followed_too_and_a_lock_holds_them() -> None:
    config = b"lxc.include: /etc/lxc/gpu.conf\n"
    files = {"/etc/lxc/gpu.conf": b"lxc.cgroup2.devices.allow = c 504:* rwm\n"}
    (item,) = reconcile(config, NOW, BEFORE, includes=files).included
    assert item.content == b"lxc.cgroup2.devices.allow = c 509:* rwm\n"
    locked = reconcile(b"lock: backup\n" + config, NOW, BEFORE, includes=files)
    assert [(item.changed, item.changes) for item in locked.included] == [(False, ())]
    assert [(held.file, held.held) for held in locked.held] == [("/etc/lxc/gpu.conf", "locked")]


def test_a_name_that_is_not_utf8() -> None:
    (path,) = include_paths(b"lxc.include = /etc/\xff.conf\n")
    outcome = run(b"lxc.include = /etc/\xff.conf\n", {path: b"lxc.cgroup2.devices.allow = c 504:* rwm\n"})
    assert outcome.included[0].changed
    assert "/etc/\\xff.conf line 1" in {finding.source for finding in outcome.findings}


# --- liblxc itself


@pytest.mark.skipif(shutil.which("lxc-info") is None, reason="needs lxc-info")
@pytest.mark.parametrize(
    "config",
    [
        b"lxc.cgroup2.devices.allow = c 9:1 rwm\nlxc.include = {a}\n  lxc.cgroup2.devices.allow='c 9:3 rwm'\n",
        b"lxc.include = {a}\nlxc.include = {a}\r\nlxc.cgroup2.devices.allow = c 9:4 rw # x\rlxc.include = {d}\n",
        b"lxc.include = {a}\nlxc.cgroup2 =\nlxc.include = {d}\n",
        b"lxc.include = {a}\nlxc.cgroup2.devices.allow =\nlxc.include = {d}/\n",
        b"lxc.cgroup2.devices.allow = c 9:1 rwm\0\nlxc.cgroup2.devices.allow = c 9:2 rwm\n",
        b"lxc.include = {none}/\nlxc.cgroup2.devices.allow = \"c 9:1 rwm\nlxc.include = {nested}\n",
    ],
)  # fmt: skip
def test_liblxc_reads_the_same_rules_in_the_same_order(tmp_path: Path, config: bytes) -> None:
    files = {
        "a": b"lxc.cgroup2.devices.allow = c 8:1 rwm\n",
        "d/one.conf": b"lxc.cgroup2.devices.allow = c 8:2 rwm\n",
        "d/not": b"lxc.cgroup2.devices.allow = c 8:3 rwm\n",
        "nested": b"lxc.include = {a}\nlxc.cgroup2.devices.allow = c 8:4 rwm",
        "lxc/ct/config": config,
    }
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(re.sub(rb"\{(\w+)\}", str(tmp_path).encode() + rb"/\1", data))
    command = ["lxc-info", "-P", str(tmp_path / "lxc"), "-n", "ct", "-c", "lxc.cgroup2.devices.allow"]
    answer = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    known = [line.removeprefix("lxc.cgroup2.devices.allow = ") for line in answer.splitlines() if line.strip()]

    def read(path: str) -> bytes | None:
        return Path(path).read_bytes() if Path(path).is_file() else None

    own = (tmp_path / "lxc/ct/config").read_bytes()
    found = read_includes(own, read, lambda path: sorted(p.name for p in Path(path).glob("*")))
    main = main_section(parse(own, "lxc"), found)
    values: list[str] = []
    for line in main.lines:
        if line.key == "lxc.cgroup2" or (line.key.endswith("allow") and not line.value):
            values.clear()
        elif line.key == "lxc.cgroup2.devices.allow":
            values.append(line.value.decode())
    assert values == known
