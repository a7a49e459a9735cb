"""Fixtures of the lab tests. They run in the order in which they are written: each goes on where the last one ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.lab import lab


@pytest.fixture(scope="session")
def machines() -> Iterator[None]:
    """Nothing is left running by a test session, and nothing of an earlier one is in its way."""
    _clean()
    yield
    _clean()


def _clean() -> None:
    known = lab("status")
    for name in ("roll1", "roll2", "roll3", "roll4", "roll5"):
        if f"machine {name}:" in known:
            lab("down", "--name", name)
    if "snapshot after-apt" in known:
        lab("forget", "--snapshot", "after-apt")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One runs folder for all: expected times are learnt from one test to the next, as for a user."""
    return tmp_path_factory.mktemp("lab") / "runs"
