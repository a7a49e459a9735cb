"""Run ``gpu_checks`` where the workload runs: in a container, or on the host itself."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from . import devices, workloads
from .documents import make_head
from .errors import stop
from .host_io import Host, Result
from .workloads import gpu_nodes

ARCHIVE = "/var/lib/gpuhost/gpu_checks.pyz"
HOST_TARGET = "host"

# Runs inside the container: the archive comes on stdin, so that nothing of the host has to be mounted there and no
# path inside the container is ever followed from outside. The file is gone when the checks are.
BOOTSTRAP = """
import os, subprocess, sys, tempfile
with tempfile.NamedTemporaryFile(suffix=".pyz") as archive:
    archive.write(sys.stdin.buffer.read())
    archive.flush()
    sys.exit(subprocess.call([sys.executable, archive.name, *sys.argv[1:]], stdin=subprocess.DEVNULL))
"""


def place(host: Host, archive_base64: str) -> bytes:
    """Put the archive on the host if it is not there already; its bytes."""
    data = base64.b64decode(archive_base64)
    if host.read_bytes(ARCHIVE) != data:
        host.write_atomic(ARCHIVE, data, 0o755)
    return data


def targets(host: Host, wanted: list[str]) -> list[str]:
    """Where to measure: what the inventory names, else every running container with a GPU, else the host itself.

    Raises Stop(gate.no_target) where containers with GPUs exist but none of them runs.
    """
    if wanted:
        return wanted
    with_gpu = [item for item in workloads.survey(host) if item["gpu"]]
    running = [item["name"] for item in with_gpu if item["running"]]
    if with_gpu and not running:
        names = ", ".join(item["name"] for item in with_gpu)
        raise stop("gate.no_target", names, "has GPUs but does not run", "running")
    return running or [HOST_TARGET]


def expected_gpus(host: Host, target: str, before: tuple[str, ...]) -> int | None:
    """How many GPUs a target has to see. ``before`` are the GPU nodes at the roll's begin, empty outside of a roll.

    A container: of the nodes that it mounts those that were there (a template may list more). None where nothing says
    it: no such mounts, no roll.
    """
    if target == HOST_TARGET:
        return len(before or gpu_nodes(host)) or None
    mounted = {item["name"]: item["gpu_nodes"] for item in workloads.survey(host)}.get(target, [])
    there = before or gpu_nodes(host)
    return len([path for path in mounted if path in there]) or None


@dataclass(frozen=True)
class Order:
    """What to run: the archive, the checks, the workload's interpreter, seconds for each check."""

    archive: bytes
    checks: list[str]
    python: str
    timeout_s: int


def measure_all(host: Host, order: Order, wanted: list[str], gpus_before: tuple[str, ...]) -> dict[str, Any]:
    """Measurements and stale device rules by target, as the judge takes them. ``gpus_before``: empty outside a roll."""
    stale = devices.stale_by_container(host)
    return {
        target: {
            **measure(host, target, order, expected_gpus(host, target, gpus_before)),
            "stale": stale.get(target, []),
        }
        for target in targets(host, wanted)
    }


def measure(host: Host, target: str, order: Order, expected: int | None) -> dict[str, Any]:
    """The measurements of one target. An interpreter that is missing or fails is a measurement too: an error."""
    arguments = [*order.checks, "--json", "--timeout", str(order.timeout_s)]
    if expected is not None:
        arguments += ["--expect-gpus", str(expected)]
    limit = order.timeout_s * len(order.checks) + 30
    if target == HOST_TARGET:
        result = host.run([order.python, ARCHIVE, *arguments], timeout_s=limit)
    else:
        # An absolute interpreter, no shell; --clear-env because the host's environment is none of the container's.
        attach = ["lxc-attach", "-n", target, "--clear-env", "--set-var", "PATH=/usr/local/bin:/usr/bin:/bin", "--"]
        result = host.run([*attach, order.python, "-c", BOOTSTRAP, *arguments], timeout_s=limit, stdin=order.archive)
    return _read(result, target, order.checks)


def _read(result: Result, target: str, checks: list[str]) -> dict[str, Any]:
    try:
        document = json.loads(result.stdout)
        measurements = document["measurements"]
    except (ValueError, KeyError, TypeError):
        cause = "check.timeout" if result.rc == 124 else "check.crashed"
        measurements = [_failed(check, cause, result.last_line) for check in checks]
        document = {"python": None, "tool_version": None}
    return {
        "target": target,
        "python": document.get("python"),
        "tool_version": document.get("tool_version"),
        "measurements": measurements,
    }


def _failed(check: str, cause: str, line: str) -> dict[str, Any]:
    return {
        "name": check, "value": None, "unit": None, "method": "run gpu_checks", "clock": None, "samples": None,
        "status": "error", "cause": cause, "seconds": None, "detail": {"sentence": line},
    }  # fmt: skip


def document(name: str, run_id: str, answers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """``measurements.json``."""
    head = make_head("measurements", name, run_id)
    return {**vars(head), "targets": answers}
