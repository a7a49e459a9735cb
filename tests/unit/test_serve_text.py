"""What a person sees: the line of progress, and figures that fit."""

from __future__ import annotations

import io

import pytest

from gpuhost_cli import serve_progress
from gpuhost_cli.serve_progress import Ticker, clock
from gpuhost_cli.serve_text import _number


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_where_something_changes_and_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(serve_progress.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    ticker = Ticker(out)
    for second in range(65):
        now[0] = 1000.0 + second
        ticker.say("loading", f"loading {second}")
    ticker.say("ready", "ready")
    assert out.getvalue() == "loading 0\nloading 30\nloading 60\nready\n"


def test_a_terminal_has_one_line_that_is_rewritten() -> None:
    out = Terminal()
    ticker = Ticker(out, width=10)
    ticker.say("a", "0123456789abc")
    ticker.say("a", "short")
    ticker.line("stays")
    ticker.clear()
    assert out.getvalue() == "\r0123456789\rshort     \r          \rstays\n"


@pytest.mark.parametrize(
    ("value", "text"), [(None, "·"), (0.0, "0.00"), (96.5, "96.50"), (440.04, "440.0"), (12345.6, "12346")]
)
def test_numbers_fit(value: float | None, text: str) -> None:
    assert _number(value) == text
    assert len(text) < 7


def test_clock() -> None:
    assert [clock(0.9), clock(440), clock(3600)] == ["0:00", "7:20", "60:00"]
