"""What a rank's process and its team's leader say to each other: one JSON line for each thing, over a socket."""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Callable, NoReturn

from gpu_checks import processes
from gpu_checks.measurement import Measurement, to_dict

CHUNK_BYTES = 64 * 1024


class RankError(Exception):
    """A rank can't go on: a registered cause, a sentence, and what else is known. The rank lives on until its end."""

    def __init__(self, cause: str, message: str, **detail: Any) -> None:
        """Keep all three."""
        super().__init__(message)
        self.cause, self.message, self.detail = cause, message, detail


class Channel:
    """The rank's side. It is a ``registry.Report`` too: what goes in here reaches the check's own report."""

    def __init__(self, file: socket.socket) -> None:
        """Talk over this socket."""
        self._file = file
        self._rest = b""

    def _say(self, what: dict[str, Any]) -> None:
        self._file.sendall(json.dumps(what, allow_nan=False).encode() + b"\n")

    def add(self, measurement: Measurement) -> None:
        """Hand over one finished measurement."""
        self._say({"measurement": to_dict(measurement)})

    def doing(self, what: str, hung: str | None = None, died: str | None = None) -> None:
        """Say what comes next, and what it means if it never returns or kills us."""
        self._say({"doing": what, "hung": hung, "died": died})

    def answer(self, what: dict[str, Any]) -> None:
        """The end of an order."""
        self._say({"answer": what})

    def fail(self, error: RankError) -> None:
        """The end of an order that could not be carried out."""
        self._say({"failed": error.cause, "message": error.message, "detail": error.detail})

    def order(self) -> dict[str, Any] | None:
        """Wait for the next order; None where the leader has none any more."""
        while b"\n" not in self._rest:
            data = self._file.recv(CHUNK_BYTES)
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        found = json.loads(line)
        return found if isinstance(found, dict) else None


Carry = Callable[[dict[str, Any]], dict[str, Any]]
"""Carries an order out and gives its answer; RankError where it can't."""


def serve(channel: Channel, carry: Carry) -> None:
    """Carry out one order after the other until there are none left."""
    while True:
        order = channel.order()
        if order is None:
            return
        try:
            channel.answer(carry(order))
        except RankError as error:
            channel.fail(error)


def live(file: socket.socket, stderr: int, leader: int, life: Callable[[Channel], None]) -> NoReturn:
    """The whole life of a rank's process. It stays in the check's session, so that it is killed with the check."""

    def inside() -> None:
        # Libraries write to both as they please.
        os.dup2(stderr, 1)
        os.dup2(stderr, 2)
        life(Channel(file))

    processes.only_live(leader, inside)
