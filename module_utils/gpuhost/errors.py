"""The one exception of the core: a stop with a registered cause and the way out."""

from __future__ import annotations

from typing import Any

from .causes import cause
from .documents import Blocker


class Stop(Exception):
    """Something is in the way. ``blocker`` says what, on which object, and what to do.

    ``documents`` are what was found before the stop; they go into the run's records all the same.
    """

    def __init__(self, blocker: Blocker, documents: tuple[dict[str, Any], ...] = ()) -> None:
        super().__init__(blocker.sentence)
        self.blocker = blocker
        self.documents = documents


def blocker(code: str, about: str, observed: str, expected: str = "", next_step: str = "") -> Blocker:
    """A blocker with a registered cause; the registry's next step unless a better one is known."""
    return Blocker(code, about, observed, expected, next_step or cause(code).next_step)


def stop(code: str, about: str, observed: str, expected: str = "", next_step: str = "") -> Stop:
    """A Stop to be raised."""
    return Stop(blocker(code, about, observed, expected, next_step))


DEFECTS = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)
"""What a text that nobody has seen before can raise somewhere below. It becomes a Stop at the edge, with its name."""


def defect(error: BaseException) -> Blocker:
    """A blocker for an exception without a cause of its own."""
    return blocker("host.module_failed", type(error).__name__, str(error) or "no text")
