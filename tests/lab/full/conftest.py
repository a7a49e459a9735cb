"""A machine of each loader with both kernels installed, its roll ended before the trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.lab import INVENTORY, OLD, TARGET, gpuhost, guest, kernel, lab

BASE = "full-base"


def snapshot_of(loader: str) -> str:
    """The name of a loader's snapshot."""
    return f"both-kernels-{loader}"


@pytest.fixture(scope="session")
def both_kernels(runs: Path) -> Iterator[Callable[[str], str]]:
    """Gives the snapshot of a loader, made where it is not there: prepared, then taken back by choice.

    Snapshots of one session serve the next, since only the upgrade itself is tested with them.
    """

    def make(loader: str) -> str:
        snapshot = snapshot_of(loader)
        if f"snapshot {snapshot}" not in lab("status"):
            _drop(BASE)
            lab("up", "--name", BASE, "--loader", loader, timeout_s=3600)
            prepared = gpuhost(runs, "prepare", "-i", str(INVENTORY), "--limit", BASE, "--target", TARGET)
            assert prepared.exit_status == 0, prepared.output[-4000:]
            ended = gpuhost(runs, "rollback", "-i", str(INVENTORY), "--limit", BASE)
            assert ended.exit_status == 0, ended.output[-4000:]
            assert kernel(BASE).startswith(OLD)
            assert f"vmlinuz-{TARGET}" in guest(BASE, "ls", "/boot")
            lab("save", "--name", BASE, "--as", snapshot)
            _drop(BASE)
        return snapshot

    yield make
    _drop(BASE)


def _drop(name: str) -> None:
    if f"machine {name}:" in lab("status"):
        lab("down", "--name", name)


@pytest.fixture
def machine() -> Iterator[str]:
    """The name of a machine that is thrown away, before and after."""
    _drop("full")
    yield "full"
    _drop("full")
