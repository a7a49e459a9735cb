"""One line that says what goes on: rewritten on a terminal, now and then a new one elsewhere."""

from __future__ import annotations

import time
from typing import TextIO

EVERY_S = 30.0
"""Between lines of the same kind where nothing rewrites them, as in a job's log."""


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Ticker:
    """Writes to one stream; ``kind`` tells a new situation from the same one with other numbers."""

    def __init__(self, stream: TextIO, width: int = 100) -> None:
        self.stream = stream
        self.width = width
        self.terminal = stream.isatty()
        self._kind = ""
        self._said_at = 0.0
        self._open = False

    def say(self, kind: str, text: str) -> None:
        """The situation of now."""
        if self.terminal:
            self.stream.write(f"\r{text[: self.width]:<{self.width}}")
            self.stream.flush()
            self._open = True
            return
        now = time.monotonic()
        if kind != self._kind or now - self._said_at >= EVERY_S:
            self._kind, self._said_at = kind, now
            print(text, file=self.stream, flush=True)

    def line(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        print(text, file=self.stream, flush=True)

    def clear(self) -> None:
        """Take the rewritten line away."""
        if self._open:
            self.stream.write(f"\r{'':<{self.width}}\r")
            self.stream.flush()
            self._open = False
