"""The one way in which a container's config is written: what is kept, what is refused, and who else may be at it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_host import FakeHost
from fake_pct import CLUSTER, STANDALONE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuhost import config_file, rewrite_io
from gpuhost.containers import Container
from gpuhost.errors import Stop
from gpuhost.host_io import Host

PLAIN = "/var/lib/lxc/gpu-ct/config"
PVE = "/etc/pve/nodes/node-a/lxc/101.conf"
LINKED = "/etc/pve/lxc/101.conf"
LOCK = "/run/lock/lxc/pve-config-101.lock"
OLD, NEW = (
    b"arch: amd64\nlxc.cgroup2.devices.allow: c 504:* rwm\n",
    b"arch: amd64\nlxc.cgroup2.devices.allow: c 509:* rwm\n",
)


def change(data: bytes) -> bytes:
    return data.replace(b"504", b"509")


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """A host of Proxmox that has a plain container, too."""
    there = FakeHost(tmp_path)
    there.put("/usr/bin/pmxcfs")
    there.put("/etc/pve/.members", json.dumps(CLUSTER))
    there.put(PVE, OLD)
    there.path("/etc/pve/lxc").symlink_to("nodes/node-a/lxc")
    there.put(PLAIN, OLD)
    return there


def folder_of(host: Host, path: str) -> list[str]:
    return host.names(path.rpartition("/")[0])


def refused(host: Host, path: str) -> tuple[str, str]:
    with pytest.raises(Stop) as caught:
        config_file.update(host, path, change)
    assert caught.value.blocker.object == path
    return caught.value.blocker.cause, caught.value.blocker.observed


# --- written


@pytest.mark.parametrize("path", [PLAIN, PVE, LINKED])
def test_before_and_after(host: FakeHost, path: str) -> None:
    assert config_file.update(host, path, change) == (OLD, NEW)
    assert host.read_bytes(path) == NEW
    assert folder_of(host, path) == [path.rpartition("/")[2]]
    assert host.effects == [f"write {path}"]


def test_a_container_is_its_config(host: FakeHost) -> None:
    container = Container("101", "pve", LINKED, "pve", OLD)
    assert config_file.update(host, container, change) == (OLD, NEW)
    assert host.path("/etc/pve/lxc").is_symlink()


@pytest.mark.parametrize("path", [PLAIN, PVE])
def test_no_difference_writes_nothing_and_takes_no_lock(host: FakeHost, path: str) -> None:
    before = host.path(path).stat()
    assert config_file.update(host, path, lambda data: data) == (OLD, OLD)
    assert host.path(path).stat() == before
    assert not host.exists(LOCK)


def test_mode_owner_and_link_are_kept(host: FakeHost) -> None:
    host.path("/srv").mkdir()
    host.path(PLAIN).rename(host.path("/srv/gpu-ct.conf"))
    host.path(PLAIN).symlink_to("../../../../srv/gpu-ct.conf")
    host.path("/srv/gpu-ct.conf").chmod(0o604)
    if os.geteuid() == 0:
        os.chown(host.path("/srv/gpu-ct.conf"), 1000, 1001)
    before = host.path(PLAIN).stat()
    config_file.update(host, PLAIN, change)
    after = host.path("/srv/gpu-ct.conf").stat()
    assert host.path(PLAIN).is_symlink()
    assert host.read_bytes("/srv/gpu-ct.conf") == NEW
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert host.names("/srv") == ["gpu-ct.conf"]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(old=st.binary(max_size=300), new=st.binary(max_size=300))
def test_any_bytes(tmp_path: Path, old: bytes, new: bytes) -> None:
    host = FakeHost(tmp_path)
    host.put(PLAIN, old)
    assert config_file.update(host, PLAIN, lambda _: new) == (old, new)
    assert host.read_bytes(PLAIN) == new
    assert folder_of(host, PLAIN) == ["config"]


def test_pmxcfs_is_asked_for_no_mode_and_no_owner(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers EPERM, and to fsync some kernels' FUSE answers EINVAL: the writer inherits both here."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    def no_fsync(_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    for name in ("fchmod", "fchown", "chmod", "chown"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(os, "fsync", no_fsync)
    assert Host.rewrite(host, PVE, OLD, NEW, keep_owner=False)
    assert host.read_bytes(PVE) == NEW
    with pytest.raises(Stop) as caught:
        Host.rewrite(host, PLAIN, OLD, NEW, keep_owner=True)
    assert caught.value.blocker.observed == "can't be written: Operation not permitted"
    assert (host.read_bytes(PLAIN), folder_of(host, PLAIN)) == (OLD, ["config"])


def test_an_fsync_that_fails_for_another_reason_is_a_failure(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(Stop) as caught:
        Host.rewrite(host, PVE, OLD, NEW, keep_owner=False)
    assert (caught.value.blocker.cause, host.read_bytes(PVE)) == ("lxc.config_not_written", OLD)
    assert folder_of(host, PVE) == ["101.conf"]


# --- somebody else


@pytest.mark.parametrize("path", [PLAIN, PVE])
def test_a_file_that_changes_meanwhile_is_read_again(host: FakeHost, path: str) -> None:
    seen = []

    def slow(data: bytes) -> bytes:
        seen.append(data)
        if len(seen) == 2:  # the first is the look before the lock
            host.put(path, b"# somebody\n" + OLD)
        return change(data)

    assert config_file.update(host, path, slow) == (b"# somebody\n" + OLD, b"# somebody\n" + NEW)
    assert seen[-1] == b"# somebody\n" + OLD
    assert folder_of(host, path) == [path.rpartition("/")[2]]


def test_a_file_that_never_rests_is_left_alone(host: FakeHost) -> None:
    count = iter(range(100))

    def slow(data: bytes) -> bytes:
        host.put(PLAIN, b"%d\n" % next(count) + OLD)
        return change(data) + b"x"

    with pytest.raises(Stop) as caught:
        config_file.update(host, PLAIN, slow)
    assert caught.value.blocker.cause == "lxc.config_changed"
    assert (host.read_bytes(PLAIN) or b"").endswith(OLD)
    assert folder_of(host, PLAIN) == ["config"]


def test_a_config_that_is_gone(host: FakeHost) -> None:
    host.remove(PLAIN)
    assert refused(host, PLAIN) == ("lxc.config_changed", "no such file any more")


def test_what_does_not_read_back_is_said(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "rewrite", lambda *_, **__: True)
    assert refused(host, PVE) == ("lxc.config_changed", "does not read back as it was written")


@contextmanager
def held(host: Host, path: str) -> Iterator[None]:
    """Another program's flock, as pct takes it."""
    target = host.path(path)
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    handle = os.open(target, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(handle)


@pytest.mark.parametrize(("path", "lock"), [(PVE, LOCK), (LINKED, LOCK), (PLAIN, "/var/lib/lxc/gpu-ct")])
def test_a_lock_is_waited_for_and_never_ignored(host: FakeHost, path: str, lock: str) -> None:
    with held(host, lock):
        cause, observed = refused(host, path)
        assert (cause, host.read_bytes(path)) == ("lxc.config_locked", OLD)
        assert observed == f"{lock} is held by another program for more than 30 s"
    config_file.update(host, path, change)
    assert host.read_bytes(path) == NEW


def test_the_lock_is_held_while_it_is_rewritten(host: FakeHost) -> None:
    seen = []

    def look(data: bytes) -> bytes:
        with host.flock(LOCK, 0) as ours:
            seen.append(ours)
        return change(data)

    config_file.update(host, PVE, look)
    assert seen == [True, False]


@pytest.mark.parametrize("lock", ["backup", "snapshot", "migrate", "mounted"])
def test_a_config_with_a_lock_is_not_written(host: FakeHost, lock: str) -> None:
    """Case lxc-10."""
    text = f"lock: {lock}\n".encode() + OLD
    host.put(PVE, text)
    assert refused(host, PVE) == ("lxc.locked", f"lock: {lock}")
    assert host.read_bytes(PVE) == text


def test_the_lock_of_a_snapshot_section_is_none(host: FakeHost) -> None:
    host.put(PVE, OLD + b"[before]\nlock: backup\n")
    config_file.update(host, PVE, change)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        (json.dumps({**CLUSTER, "cluster": {"name": "lab", "quorate": 0}}), "/etc/pve is not quorate"),
        ("{", "/etc/pve/.members is not readable"),
        (None, "/etc/pve is not mounted"),
    ],
)
def test_quorum_first(host: FakeHost, members: str | None, reason: str) -> None:
    if members is None:
        host.remove("/etc/pve/.members")
    else:
        host.put("/etc/pve/.members", members)
    assert refused(host, PVE) == ("lxc.no_quorum", reason)
    assert not host.exists(LOCK)
    assert config_file.update(host, PVE, lambda data: data) == (OLD, OLD)  # nothing to write, nothing to refuse
    config_file.update(host, PLAIN, change)


def test_a_node_without_a_cluster_is_quorate(host: FakeHost) -> None:
    host.put("/etc/pve/.members", json.dumps(STANDALONE))
    config_file.update(host, PVE, change)


def test_only_a_live_config_is_written_in_pmxcfs(host: FakeHost) -> None:
    host.put("/etc/pve/nodes/node-a/lxc/101.conf.bak", OLD)
    with pytest.raises(Stop):
        config_file.update(host, "/etc/pve/nodes/node-a/lxc/101.conf.bak", change)


# --- a writer that dies


def test_a_writer_that_is_killed_is_cleaned_up_after(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "rename", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    assert refused(host, PLAIN) == ("lxc.config_not_written", "can't be written: the writer was killed by signal 9")
    assert (host.read_bytes(PLAIN), folder_of(host, PLAIN)) == (OLD, ["config"])


def test_a_writer_that_is_killed_after_the_rename_has_written(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.rename

    def rename_and_die(source: Path, target: Path) -> None:
        real(source, target)
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(os, "rename", rename_and_die)
    assert config_file.update(host, PLAIN, change) == (OLD, NEW)


def test_a_defect_in_the_writer_stays_in_the_writer(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(rewrite_io, "_write", break_down)
    assert refused(host, PLAIN)[0] == "lxc.config_not_written"
    assert host.read_bytes(PLAIN) == OLD
