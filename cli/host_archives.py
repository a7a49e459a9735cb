"""What a host needs to come back by itself: gpuhost's own code and the checks, each in one file."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path

import gpuhost
from gpu_checks.build_zipapp import PACKAGE, build


def host_archives() -> dict[str, str]:
    """``program`` and ``archive`` in base64: milliseconds, the same bytes for the same sources."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, package in (("program", Path(gpuhost.__file__).parent), ("archive", PACKAGE)):
            path = Path(folder) / name
            build(path, package, name="gpuhost" if name == "program" else package.name)
            found[name] = base64.b64encode(path.read_bytes()).decode()
    return found
