"""The last log lines, from wherever they are, and why where they can't be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuhost_cli.serve_logs import LogSource, last_lines, stopped


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for journalctl, systemctl and docker that answer what a test writes beside them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("journalctl", "systemctl", "docker"):
        (folder / name).write_text(f'#!/bin/sh\necho "$0 $*" >>{tmp_path}/asked\ncat {tmp_path}/{name}.out\n')
        (folder / name).chmod(0o755)
        (tmp_path / f"{name}.out").write_text("")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return tmp_path


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"".join(b"line %d\n\n" % number for number in range(50)) + b"\x1b[31mred\xff\n" + b"x" * 900)
    assert last_lines(LogSource(file=str(path)), 3) == ("line 49", "\\x1b[31mred\ufffd", "x" * 400)


def test_a_large_file_is_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    with path.open("wb") as handle:
        handle.truncate(3 * 1024**3)
        handle.seek(0, 2)
        handle.write(b"\nthe end\n")
    assert last_lines(LogSource(file=str(path)), 1) == ("the end",)


def test_nothing_to_show(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    assert last_lines(LogSource(), 5) == ()
    assert last_lines(LogSource(file=str(tmp_path / "empty")), 5) == ("(empty)",)
    assert last_lines(LogSource(file=str(tmp_path / "none")), 5) == ("(can't be read: No such file or directory)",)
    assert last_lines(LogSource(command=("/no/such",)), 5) == ("(can't be read: No such file or directory)",)
    assert last_lines(LogSource(command=("false",)), 5) == ("(exit status 1)",)


def test_a_unit_and_a_container(tools: Path) -> None:
    (tools / "journalctl.out").write_text("one\ntwo\n")
    (tools / "docker.out").write_text("three\n")
    assert last_lines(LogSource(unit="vllm"), 2) == ("one", "two")
    assert last_lines(LogSource(container="llm"), 2) == ("three",)
    asked = (tools / "asked").read_text()
    assert "journalctl --no-pager --quiet --output=cat --lines=2 --unit=vllm\n" in asked
    assert "docker logs --tail 2 llm\n" in asked


def test_a_command_has_no_shell() -> None:
    source = LogSource(command=("printf", "%s\n", "$HOME; echo no"))
    assert last_lines(source, 5) == ("$HOME; echo no",)
    assert source.name == "printf '%s\n' '$HOME; echo no'"


@pytest.mark.parametrize(
    ("tool", "out", "source", "says"),
    [
        ("systemctl", "failed\nfailed\nexit-code\n", LogSource(unit="vllm"), "unit vllm is failed (failed, exit-code)"),
        ("systemctl", "inactive\ndead\nsuccess\n", LogSource(unit="vllm"), "unit vllm is inactive (dead, success)"),
        ("systemctl", "active\nrunning\nsuccess\n", LogSource(unit="vllm"), ""),
        ("systemctl", "activating\nauto-restart\nexit-code\n", LogSource(unit="vllm"), ""),
        ("docker", "exited 137\n", LogSource(container="llm"), "container llm is exited (exit status 137)"),
        ("docker", "running 0\n", LogSource(container="llm"), ""),
        ("docker", "", LogSource(container="llm"), ""),
    ],
)
def test_whether_it_still_runs(tools: Path, tool: str, out: str, source: LogSource, says: str) -> None:
    (tools / f"{tool}.out").write_text(out)
    assert stopped(source) == says


def test_nobody_knows_without_the_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert stopped(LogSource(unit="vllm")) == stopped(LogSource(container="x")) == stopped(LogSource(file="y")) == ""
