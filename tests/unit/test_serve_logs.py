"""The last log lines, from wherever they are, and why where they can't be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuhost_cli.serve_logs import LogSource, last_lines, stopped, telling


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
    assert "journalctl --no-pager --quiet --output=cat --lines=5000 --unit=vllm\n" in asked
    assert "docker logs --tail 5000 llm\n" in asked


ACCESS = 'INFO:     127.0.0.1:4321 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
REFUSED = 'INFO:     127.0.0.1:4321 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request'
STARTED = "INFO:     Application startup complete."
SEE_ABOVE = (
    "(APIServer pid=9) ERROR 11-30 21:22:24 [serving.py:929] vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
    "encountered an issue. See stack trace (above) for the root cause."
)
WORKER_DIED = (
    "(EngineCore pid=16) ERROR 11-30 21:22:24 [multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly "
    "(exit code: -9), shutting down executor."
)
FATAL = "(EngineCore pid=16) ERROR 11-30 21:22:24 [core.py:1512] EngineCore encountered a fatal error."
CANCELLED = "(EngineCore pid=16) ERROR 11-30 21:22:24 [core.py:1512] RuntimeError: cancelled [0]"
DEAD_VLLM = (
    STARTED, *[ACCESS] * 9, WORKER_DIED,
    "(EngineCore pid=16) INFO 11-30 21:22:24 [multiproc_executor.py:479] [shutdown] Executor: waiting for worker exit",
    "(EngineCore pid=16) ERROR 11-30 21:22:24 [dump_input.py:72] Dumping input data for V1 LLM engine" + 999 * " x",
    FATAL,
    '(EngineCore pid=16) ERROR 11-30 21:22:24 [core.py:1512]   File "core.py", line 1496, in run_engine_core',
    "(EngineCore pid=16) ERROR 11-30 21:22:24 [core.py:1512]     engine_core.run_busy_loop()",
    "(EngineCore pid=16) ERROR 11-30 21:22:24 [core.py:1512]",
    CANCELLED,
    *["(APIServer pid=9) ERROR 11-30 21:22:24 [serving.py:929]     raise output", SEE_ABOVE] * 64,
)  # fmt: skip
"""The form of what vLLM 0.32 writes when one of its workers is killed while it answers."""


def test_requests_that_went_well_are_no_last_lines() -> None:
    lines = [STARTED, "OutOfMemoryError", REFUSED, *[ACCESS] * 50]
    assert telling(lines, 2) == ["OutOfMemoryError", REFUSED]
    assert telling([ACCESS] * 5, 2) == [ACCESS] * 2  # better than nothing


def test_a_dead_engine_of_vllm_tells_why_itself() -> None:
    assert telling(DEAD_VLLM, 20) == [WORKER_DIED, FATAL, CANCELLED, SEE_ABOVE]
    stamped = [f"2026-11-30T21:22:24Z {line}" for line in DEAD_VLLM]  # docker logs --timestamps, kubectl logs
    assert telling(stamped, 2) == [f"2026-11-30T21:22:24Z {line}" for line in (CANCELLED, SEE_ABOVE)]
    assert telling([*DEAD_VLLM, *["leaked type"] * 99], 20)[-1] == SEE_ABOVE  # what a process says as it ends


def test_a_vllm_that_could_not_begin() -> None:
    why = (
        "(Worker_TP0 pid=7) ERROR 11-30 21:29:45 [multiproc_executor.py:953] torch.OutOfMemoryError: CUDA out of memory"
    )
    end = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    assert telling([why, *["  frame"] * 50, end], 20) == [why, end]


def test_an_earlier_death_is_none_of_this_one() -> None:
    lines = [*DEAD_VLLM, STARTED, "all is well"]
    assert telling(lines, 3) == [SEE_ABOVE, STARTED, "all is well"]


def test_an_engine_that_says_nothing() -> None:
    assert telling([STARTED, *["frame"] * 9, SEE_ABOVE], 2) == ["frame", SEE_ABOVE]


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
