"""Files, commands and time limits, on a real folder and with real programs. Nothing here waits longer than a second."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import time
from pathlib import Path

import pytest

from gpuhost.errors import Stop
from gpuhost.host_io import ENVIRONMENT, Host, Result


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(str(tmp_path))


# --- reading


def test_what_is_not_there_reads_as_nothing(host: Host) -> None:
    assert host.read_bytes("/etc/none") is None
    assert host.read("/etc/none") is None
    assert host.read_line("/etc/none") == ""
    assert host.names("/etc/none") == []
    assert host.files_below("/etc/none") == []
    assert host.sha256("/etc/none") is None
    assert host.size_bytes("/etc/none") == 0
    assert host.age_s("/etc/none") is None
    assert host.mode("/etc/none") is None
    assert host.free_bytes("/etc/none") is None
    assert host.device_numbers("/etc/none") is None
    assert host.resolved("/etc/none") is None
    assert not host.exists("/etc/none")


def test_reading(host: Host, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b").write_bytes(b" one\xff \n")
    assert host.read("/a/b") == " one\ufffd \n"
    assert host.read_line("/a/b") == "one\ufffd"
    assert host.names("/a") == ["b"]
    assert host.files_below("/a") == ["/a/b"]
    assert host.size_bytes("/a/b") == 7
    assert host.sha256("/a/b") == hashlib.sha256(b" one\xff \n").hexdigest()
    assert host.device_numbers("/a/b") is None
    assert (host.free_bytes("/a") or 0) > 0


def test_a_file_is_hashed_once_where_nothing_changes(host: Host, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    first = hashlib.sha256(b"one").hexdigest()
    with host.hashing_once():
        assert host.read_and_hash("/a") == b"one"
        assert host.read_and_hash("/none") is None
        assert host.sha256("/none") is None
        (tmp_path / "a").write_bytes(b"two")
        (tmp_path / "none").write_bytes(b"")
        assert host.sha256("/a") == first
        assert host.sha256("/none") is None
    assert host.sha256("/a") == hashlib.sha256(b"two").hexdigest()
    assert host.sha256("/none") is not None


def test_the_inode_is_the_one_in_proc_locks(host: Host, tmp_path: Path) -> None:
    assert host.inode("/lock") is None
    (tmp_path / "lock").touch()
    assert host.inode("/lock") == (tmp_path / "lock").stat().st_ino


def test_a_filter_takes_and_gives_bytes(host: Host) -> None:
    data = bytes(range(256)) * 4000
    assert host.run_bytes(["cat"], stdin=data) == (0, data, "")
    rc, out, error = host.run_bytes([sys.executable, "-c", "import sys; sys.stderr.write('no'); sys.exit(3)"])
    assert (rc, out, error) == (3, b"", "no")


def test_a_filter_that_is_missing_or_hangs(host: Host) -> None:
    assert host.run_bytes(["no-such-program-here"])[0] == 127
    assert host.run_bytes(["sleep", "30"], timeout_s=0.2) == (124, b"", "sleep: killed after 0 s")


def test_a_filter_that_does_not_read_its_input(host: Host) -> None:
    assert host.run_bytes(["true"], stdin=bytes(1 << 20))[0] == 0


def test_needrestart_neither_asks_nor_restarts() -> None:
    assert (ENVIRONMENT["NEEDRESTART_SUSPEND"], ENVIRONMENT["NEEDRESTART_MODE"]) == ("1", "l")


def test_a_dangling_link_counts_as_nothing(host: Host, tmp_path: Path) -> None:
    (tmp_path / "build").symlink_to("nowhere")
    assert not host.exists("/build")
    assert host.resolved("/build") is None


def test_a_file_that_can_not_be_read_is_no_missing_file(host: Host, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(Stop) as caught:
        host.read_bytes("/loop")
    assert caught.value.blocker.cause == "host.module_failed"
    assert caught.value.blocker.object == "/loop"


def test_which_device_a_process_holds(host: Host, tmp_path: Path) -> None:
    folder = tmp_path / "proc/42/fd"
    folder.mkdir(parents=True)
    (folder / "0").symlink_to("/dev/null")
    (folder / "7").symlink_to("/dev/nvidia0")
    assert host.holds_open(42, "/dev/nvidia")
    assert not host.holds_open(42, "/dev/dri")
    assert not host.holds_open(43, "/dev/nvidia")


# --- writing


def test_write_makes_folders_and_sets_the_mode(host: Host, tmp_path: Path) -> None:
    host.write_atomic("/etc/gpuhost/a.conf", b"one\n", 0o640)
    assert (tmp_path / "etc/gpuhost/a.conf").read_bytes() == b"one\n"
    assert host.mode("/etc/gpuhost/a.conf") == 0o640
    assert host.names("/etc/gpuhost") == ["a.conf"]


def test_write_replaces_by_rename_after_the_bytes_are_on_the_disk(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.write_atomic("/a", b"old")
    done: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def fsync(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        real_sync(handle)

    def replace(source: str, target: str) -> None:
        done.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    host.write_atomic("/a", b"new")
    assert done == ["file", "rename", "folder"]


def test_no_chmod_where_the_file_system_refuses_it(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchmod", refuse)
    host.write_atomic("/efi/loader.conf", b"x", None)  # vfat, pmxcfs
    with pytest.raises(Stop) as caught:
        host.write_atomic("/efi/loader.conf", b"y", 0o644)
    assert "Operation not permitted" in caught.value.blocker.observed
    assert host.read("/efi/loader.conf") == "x"


def test_a_read_only_file_system_is_a_stop_with_the_path(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(Stop) as caught:
        host.write_atomic("/boot/efi/loader/loader.conf", b"x")
    assert caught.value.blocker.object == "/boot/efi/loader/loader.conf"
    assert "Read-only file system" in caught.value.blocker.observed


def test_a_link_stays_a_link(host: Host, tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "config").symlink_to("real")
    host.write_atomic("/config", b"new")
    assert (tmp_path / "config").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_remove_says_whether_there_was_one(host: Host, tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    assert host.remove("/hold")
    assert not host.remove("/hold")


def test_what_can_not_be_removed_is_a_stop(host: Host, tmp_path: Path) -> None:
    (tmp_path / "hold").mkdir()
    with pytest.raises(Stop):
        host.remove("/hold")


# --- programs


def test_run_gives_all_three(host: Host) -> None:
    code = "import sys; sys.stderr.write(sys.stdin.read()); print('out'); sys.exit(3)"
    result = host.run([sys.executable, "-c", code], stdin=b"err")
    assert (result.rc, result.stdout, result.stderr) == (3, "out\n", "err")


def test_run_has_the_c_locale_and_no_terminal(host: Host) -> None:
    result = host.run(["env"])
    found = dict(line.split("=", 1) for line in result.stdout.splitlines())
    assert {key: found.get(key) for key in ENVIRONMENT} == ENVIRONMENT
    assert found["LC_ALL"] == "C"
    assert host.run(["tty"]).stdout == "not a tty\n"


def test_a_missing_program_is_127(host: Host) -> None:
    result = host.run(["gpuhost-no-such-program"])
    assert result.rc == 127
    assert "gpuhost-no-such-program" in result.last_line


def test_a_program_is_killed_at_its_limit_with_its_children(host: Host) -> None:
    begin = time.monotonic()
    result = host.run(["sh", "-c", "echo began; sleep 20 & wait"], timeout_s=0.3)
    assert result.rc == 124
    assert result.stdout == "began\n"
    assert "killed after" in result.stderr
    assert time.monotonic() - begin < 5


def test_a_daemon_that_keeps_the_pipe_does_not_hold_us_up(host: Host) -> None:
    begin = time.monotonic()
    result = host.run(["sh", "-c", "setsid sleep 1.5 & echo done"], timeout_s=10)
    assert result.rc == 0
    assert time.monotonic() - begin < 1


def test_what_left_the_process_group_does_not_hold_us_up(host: Host) -> None:
    begin = time.monotonic()
    result = host.run(["sh", "-c", "setsid sleep 1.5 & sleep 20"], timeout_s=0.2)
    assert result.rc == 124
    assert time.monotonic() - begin < 1


def test_a_lock_is_held_once_and_dies_with_its_holder(host: Host) -> None:
    with host.lock("/var/lib/gpuhost/lock"):
        with pytest.raises(Stop) as caught, host.lock("/var/lib/gpuhost/lock"):
            pass
        assert caught.value.blocker.cause == "roll.busy"
        host.run(["sh", "-c", "setsid sleep 0.5 &"])  # a program that outlives its caller does not inherit it
    with host.lock("/var/lib/gpuhost/lock"):
        pass


def test_the_last_line_says_something() -> None:
    assert Result(("x",), 1, "", "E: no\n \n").last_line == "E: no"
    assert Result(("x",), 1, "only out\n", "").last_line == "only out"
    assert Result(("x",), 7, " \n", "").last_line == "exit status 7"


def test_the_last_line_is_the_error_where_there_is_one() -> None:
    assert Result(("apt-get",), 100, "Building dependency tree...\n", "E: no\n").last_line == "E: no"


@pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root")
def test_a_node_that_somebody_else_makes_meanwhile_or_a_dead_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, real = Host(str(tmp_path)), os.mknod
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia1").symlink_to("gone")
    host.make_node("/dev/nvidia1", 1, 3, 0o666)
    assert host.device_numbers("/dev/nvidia1") == (1, 3)

    def second(path: Path, mode: int, device: int) -> None:
        real(path, mode, device)
        real(path, mode, device)

    monkeypatch.setattr(os, "mknod", second)
    host.make_node("/dev/nvidia0", 1, 3, 0o666)
    assert host.device_numbers("/dev/nvidia0") == (1, 3)
