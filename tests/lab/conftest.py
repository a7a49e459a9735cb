"""Fixtures of the lab tests. They run in the order in which they are written: each goes on where the last one ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.lab import lab


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="the long lab scenarios too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--full"):
        for item in items:
            if item.get_closest_marker("full"):
                item.add_marker(pytest.mark.skip(reason="a long scenario: make test-full"))


@pytest.fixture(scope="session")
def machines() -> Iterator[None]:
    """Nothing is left running by a test session, and nothing of an earlier one is in its way."""
    names = ("roll1", "roll2", "roll3", "roll4")
    _remove(names)
    yield
    _remove(names)
    if "after-apt" in lab("status"):
        lab("forget", "--snapshot", "after-apt")


def _remove(names: tuple[str, ...]) -> None:
    known = lab("status")
    for name in names:
        if f"machine {name}:" in known:
            lab("down", "--name", name)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One runs folder for all: expected times are learnt from one test to the next, as for a user."""
    return tmp_path_factory.mktemp("lab") / "runs"
