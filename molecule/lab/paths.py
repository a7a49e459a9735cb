"""Where the lab keeps its image and its machines."""

import os
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
REPOSITORY = SOURCES.parent.parent


def cache_root() -> Path:
    """Images, shared by all checkouts of this user: they depend on content only."""
    given = os.environ.get("GPUHOST_LAB_CACHE")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "gpuhost" / "lab"


def state_root() -> Path:
    """Machines and snapshots of this checkout."""
    given = os.environ.get("GPUHOST_LAB_STATE")
    return Path(given).resolve() if given else REPOSITORY / ".lab"


def inventory_file() -> Path:
    """The generated inventory of the machines that are up."""
    given = os.environ.get("GPUHOST_LAB_INVENTORY")
    return Path(given) if given else REPOSITORY / "inventory" / "lab" / "hosts.yml"
