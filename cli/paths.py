"""Where the collection lies: the command works from a checkout, which holds the playbooks beside this package."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def playbook(name: str) -> Path:
    """The playbook of a stage or command. Raises FileNotFoundError where this package stands without its collection."""
    path = ROOT / "playbooks" / f"{name}.yml"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: gpuhost runs from its checkout (git clone, make install)")
    return path
