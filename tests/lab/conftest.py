"""Fixtures of the lab tests. Those of a file run in the order in which they are written, each where the last one ended.

Two files can run at the same time (``-n 2 --dist loadfile``): each has machines of its own, and what the first one
saves is waited for. ``make test`` takes one at a time: see tools/run_tests.py for why. The
names give the order: the longest file first, and files of about the same length last.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuhost_lab.paths import state_root
from tests.lab.lab import lab

NAMES = ("roll1", "roll2", "roll3", "roll4", "roll5", "pcie", "tune", "panics")
"""Of all machines that these tests make."""


@pytest.fixture(scope="session")
def machines(testrun_uid: str) -> Iterator[None]:
    """Nothing is left running by a test session, and nothing of an earlier one is in its way.

    The first process of a session clears up before, the last one after it.
    """
    with _present() as users:
        if users["session"] != testrun_uid:
            _clean()
            users.update(session=testrun_uid, processes=0)
        users["processes"] += 1
    yield
    with _present() as users:
        users["processes"] -= 1
        if not users["processes"]:
            _clean()


@pytest.fixture(scope="module", autouse=True)
def own_machines(request: pytest.FixtureRequest, machines: None) -> Iterator[None]:
    """A file's machines take no time and memory from the next one."""
    yield
    for name in getattr(request.module, "MACHINES", ()):
        _drop(name)


def _drop(name: str) -> None:
    if f"machine {name}:" in lab("status"):
        lab("down", "--name", name)


@contextmanager
def _present() -> Iterator[dict[str, object]]:
    """Which session uses the lab, and with how many processes; one process at a time looks and changes it."""
    state_root().mkdir(parents=True, exist_ok=True)
    with (state_root() / "tests.json").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        users = json.loads(file.read() or '{"session": "", "processes": 0}')
        yield users
        file.truncate(0)
        file.write(json.dumps(users))


def _clean() -> None:
    for name in NAMES:
        _drop(name)
    if "snapshot after-apt" in lab("status"):
        lab("forget", "--snapshot", "after-apt")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One runs folder for all: expected times are learnt from one test to the next, as for a user."""
    return tmp_path_factory.mktemp("lab") / "runs"
