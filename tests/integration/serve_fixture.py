"""A server of the tests' own as a process, and serve-check run against it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuhost_cli.main import main

SERVER = Path(__file__).with_name("fake_llm_server.py")


@dataclass(frozen=True)
class Running:
    """A server that runs. ``log`` is where it writes its log."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def fake_server(log: Path, *options: str, port: int = 0) -> Iterator[Running]:
    """Start it; with a port of its own it is not waited for until it listens."""
    argv = [sys.executable, str(SERVER), "--log", str(log), "--port", str(port), *options]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            if not port:
                assert process.stdout is not None
                port = int(process.stdout.readline().split()[1])
            yield Running(process, port, log)
        finally:
            process.kill()


@dataclass(frozen=True)
class Result:
    """What a run of the command has left."""

    status: int
    out: str
    err: str
    document: dict[str, Any]

    def level(self, number: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.document["levels"][number]
        return found


def check(server: Running | str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> Result:
    """Run it in this process. Small by default: one stream, four answers of 24 tokens."""
    output = tmp_path / "out.json"
    output.unlink(missing_ok=True)
    url = server if isinstance(server, str) else server.url
    small = ["--concurrency", "1", "--requests", "4", "--max-tokens", "24", "--stall", "20", "--wait", "60"]
    capsys.readouterr()
    status = main(["serve-check", url, "-o", str(output), *small, *options])
    shown = capsys.readouterr()
    return Result(status, shown.out, shown.err, json.loads(output.read_text()) if output.exists() else {})
