"""Build the archive ``gpu_checks.pyz``: ``python3 -m gpu_checks.build_zipapp --output build/gpu_checks.pyz``.

The same sources give the same bytes, so that a host whose copy has the right hash needs no new one: fixed times and
modes, sorted names, and no compression, whose bytes would depend on the zlib at hand.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import zipfile
from pathlib import Path

SHEBANG = b"#!/usr/bin/env python3\n"
FIXED_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a ZIP entry can have."""

PACKAGE = Path(__file__).resolve().parent
NOT_SHIPPED = frozenset({"build_zipapp.py"})


def entries(package: Path, name: str) -> list[tuple[str, bytes]]:
    """Names and contents of the archive, sorted. The package's ``__main__`` is the archive's as well."""
    found = {
        f"{name}/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in package.rglob("*.py")
        if path.name not in NOT_SHIPPED and "__pycache__" not in path.parts
    }
    found["__main__.py"] = (package / "__main__.py").read_bytes()
    return sorted(found.items())


def build(output: Path, package: Path = PACKAGE, name: str = PACKAGE.name) -> None:
    """Write the archive of a package under this name, in place of an old one only when it is complete."""
    output.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(SHEBANG)
            with zipfile.ZipFile(file, "a", zipfile.ZIP_STORED) as archive:
                for path, content in entries(package, name):
                    entry = zipfile.ZipInfo(path, FIXED_TIME)
                    entry.create_system = 3  # Unix, whatever builds it
                    entry.external_attr = 0o100644 << 16
                    archive.writestr(entry, content)
        os.chmod(temporary, 0o755)  # noqa: S103 - it is a program, and the workload's user must be able to run it
        os.replace(temporary, output)
    except BaseException:
        os.unlink(temporary)
        raise


def main(argv: list[str] | None = None) -> int:
    """Build the archive that the command line names."""
    made = argparse.ArgumentParser(prog="build_zipapp", description="Build gpu_checks.pyz.")
    made.add_argument("--output", type=Path, required=True, metavar="FILE")
    build(made.parse_args(argv).output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
