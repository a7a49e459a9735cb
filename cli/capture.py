"""``gpuhost survey --capture FILE``: this machine as a fixture, without its names, addresses and secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gpuhost import audit
from gpuhost.capture import capture
from gpuhost.host_io import Host
from gpuhost_cli.paths import ROOT
from gpuhost_cli.run import InputError

ROLES = {"sysctl": "sysctl_tuning", "cpu": "cpu_tuning", "gpu_runtime": "gpu_runtime", "pcie": "pcie_tuning"}
"""Concern of tuning -> the role whose defaults say what is looked at."""
READ_IT = "read it before it leaves the house: a redaction knows no names that nobody told it"


def wishes() -> dict[str, dict[str, Any]]:
    """The roles' defaults, by concern and by the modules' own names."""
    found = {}
    for concern, role in ROLES.items():
        text = (ROOT / "roles" / role / "defaults/main.yml").read_text(encoding="utf-8")
        found[concern] = {name.removeprefix(f"{role}_"): value for name, value in yaml.safe_load(text).items()}
    return found


def write(path: Path, host: Host | None = None) -> str:
    """Capture a host, by default this machine, into a file; what is to be said about it."""
    seen = host or Host()
    text = capture(seen, [part.look for part in audit.parts_of(wishes(), [])])
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--capture {path}: {error.strerror}: give a file that can be written") from error
    note = "" if seen.is_root() else "; without root what only root may read is not in it"
    return f"{path}: {len(text.splitlines())} lines{note}; {READ_IT}"
