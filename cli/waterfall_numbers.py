"""Numbers out of documents of any form: one that is none, or not finite, is not there. Pure."""

from __future__ import annotations

import math
from typing import Any

from gpuhost_cli import report_read as read

LARGEST, LEAST = 1e15, 1e-12
"""Beyond these nothing is a time, a rate or a count: sums and quotients of such numbers would be none."""


def finite(value: Any) -> float | None:
    """A number that is one."""
    found = read.number(value)
    return found if found is not None and math.isfinite(found) and abs(found) < LARGEST else None


def positive(value: Any) -> float | None:
    """A number above zero."""
    found = finite(value)
    return found if found is not None and found > LEAST else None


def whole(value: Any) -> int:
    """A whole number; 0 where there is none."""
    return int(finite(value) or 0)
