"""Run ``gpu_checks`` where the workload runs: in a container, or on the host itself."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from . import devices, gate_again, host_nodes, workloads
from .documents import make_head
from .errors import Stop, stop
from .expectations import Rules
from .host_io import Host, Result
from .workloads import gpu_nodes

ARCHIVE = "/var/lib/gpuhost/gpu_checks.pyz"
HOST_TARGET = "host"
SAME_NAME = "its name means the host itself here, so that nothing would be measured in it"
HOST_CHECKS = ("health",)
"""Checks about the machine, not about the workload: they run on the host as root, with the system's Python."""
EXCLUSIVE_CHECKS = ("p2p", "allreduce", "memory", "gemm", "decode")
"""Checks that need the GPUs for themselves: two at once would measure each other."""
DECODE_OPTIONS = ("model", "tp", "context", "batch")
"""What can be asked of the check decode; each has a default there."""
LOCK = "/run/gpuhost/measuring"
LOCK_WAIT_S = 600
"""For another measurement of this host to end: one of another play, or of another inventory name of the same host."""

SYSTEM_PYTHON = "/usr/bin/python3"
"""A container's own Python, which becomes the workload's user; only needed where gpu_gate_user is set."""
NO_SUCH_USER = 67  # EX_NOUSER of sysexits.h: what the bootstrap ends with where the workload's user is not known

# Runs inside the container: the archive comes on stdin, so that nothing of the host has to be mounted there and no
# path inside the container is ever followed from outside. The file is gone when the checks are. The user is looked up
# in the passwd of where this runs; only the checks become that user, so the file can be root's and be removed by root.
BOOTSTRAP = """
import os, pwd, subprocess, sys, tempfile
python, user, *arguments = sys.argv[1:]
become = {}
if user:
    try:
        who = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except (KeyError, OverflowError):
        sys.stderr.write("no user %r in the passwd of this system\\n" % user)
        sys.exit(67)
    os.environ.update(HOME=who.pw_dir, USER=who.pw_name, LOGNAME=who.pw_name)
    groups = os.getgrouplist(who.pw_name, who.pw_gid)
    become = {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": groups}
with tempfile.NamedTemporaryFile(suffix=".pyz") as archive:
    archive.write(sys.stdin.buffer.read())
    archive.flush()
    os.fchmod(archive.fileno(), 0o644 if user else 0o600)
    command = [python or sys.executable, archive.name, *arguments]
    sys.exit(subprocess.call(command, stdin=subprocess.DEVNULL, cwd="/", **become))
"""

AS_ROOT_TOO = ("cuda.init_failed", "cuda.no_device")
"""Ends of the check ``cuda`` that say little: where they befall a user, it is tried whether root fares better."""


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
    if HOST_TARGET in running:
        raise stop("gate.no_target", f"container {HOST_TARGET}", SAME_NAME, "another name")
    return running or [HOST_TARGET]


def expected_gpus(host: Host, target: str, before: tuple[str, ...]) -> int | None:
    """How many GPUs a target has to see. ``before`` are the GPU nodes at the roll's begin, empty outside of a roll.

    A container: of the nodes that it mounts those that were there (a template may list more). None where nothing says
    it: no such mounts, no roll.
    """
    return _expected(host, target, before, {item["name"]: item["gpu_nodes"] for item in workloads.survey(host)})


def _expected(host: Host, target: str, before: tuple[str, ...], mounted: dict[str, list[str]]) -> int | None:
    there = before or gpu_nodes(host)
    if host_nodes.has_mig_instances(host):
        return None  # CUDA shows instances, one at a time, and not the cards that have nodes
    if target == HOST_TARGET:
        return len(there) or None
    return len([path for path in mounted.get(target, []) if path in there]) or None


@dataclass(frozen=True)
class Order:
    """What to run: the archive, the checks, the workload's interpreter, seconds for each check.

    ``user``: the workload's, as a name or a uid inside the target; empty: root. ``quick``: only what shows within
    seconds that something is broken. ``decode``: what the check of this name measures, see DECODE_OPTIONS.
    """

    archive: bytes
    checks: list[str]
    python: str
    timeout_s: int
    user: str = ""
    quick: bool = False
    decode: Mapping[str, Any] = field(default_factory=dict)

    @property
    def inside(self) -> Order:
        """What of it is about the workload: it runs in the targets."""
        return replace(self, checks=[name for name in self.checks if name not in HOST_CHECKS])

    @property
    def on_host(self) -> Order:
        """What of it is about the machine."""
        checks = [name for name in self.checks if name in HOST_CHECKS]
        return replace(self, checks=checks, python=sys.executable, user="")


def measure_all(host: Host, order: Order, wanted: list[str], gpus_before: tuple[str, ...]) -> dict[str, Any]:
    """Measurements and stale device rules by target, as the judge takes them. ``gpus_before``: empty outside a roll.

    One target after the other: of containers that share GPUs one would measure the other.
    """
    with measuring(host, order):
        return _measure_all(host, order, wanted, gpus_before)


def measure_for_gate(
    host: Host, order: Order, wanted: list[str], gpus_before: tuple[str, ...], required: list[str], rules: Rules
) -> tuple[dict[str, Any], list[str]]:
    """As ``measure_all``; what would fail the gate for its speed alone is measured twice. The lines say what was."""
    with measuring(host, order):
        answers = _measure_all(host, order, wanted, gpus_before)
        slow = gate_again.wanted(required, answers, rules)
        for target, checks in slow.items():
            again = _measure_all(host, replace(order, checks=list(checks)), [target], gpus_before)[target]
            better = gate_again.better_of(answers[target]["measurements"], again["measurements"], target, rules)
            answers[target] = {**answers[target], "measurements": better}
    return answers, gate_again.lines(slow)


@contextmanager
def measuring(host: Host, order: Order) -> Iterator[None]:
    """Alone on this host, where a check needs that. Raises Stop(roll.busy) where another measurement does not end."""
    if not host.is_root() or not set(order.checks) & set(EXCLUSIVE_CHECKS):
        yield  # the lock is root's file
        return
    with host.lock(LOCK, LOCK_WAIT_S):
        yield


def _measure_all(host: Host, order: Order, wanted: list[str], gpus_before: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    inside, outside = order.inside, order.on_host
    if inside.checks:
        alone = wanted == [HOST_TARGET]  # containers are none of its business, and reading them may need root
        stale = {} if alone else devices.stale_by_container(host)
        mounted = {} if alone else {item["name"]: item["gpu_nodes"] for item in workloads.survey(host)}
        for target in targets(host, wanted):
            expected = _expected(host, target, gpus_before, mounted)
            answer = measure(host, target, inside, expected)
            as_root = _as_root(host, target, inside, expected, answer)
            found[target] = {**answer, **as_root, "stale": stale.get(target, []), "checks": inside.checks}
    if outside.checks:
        answer = measure(host, HOST_TARGET, outside, _expected(host, HOST_TARGET, gpus_before, {}))
        of_workload = found.get(HOST_TARGET, {"measurements": [], "checks": [], "stale": []})
        found[HOST_TARGET] = {
            **answer,
            **of_workload,
            "measurements": [*of_workload["measurements"], *answer["measurements"]],
            "checks": [*of_workload["checks"], *outside.checks],
        }
    return found


def intended(host: Host, order: Order, wanted: list[str]) -> list[str]:
    """What would run, and where: a line for each place. For check mode; never raises for a container that is down."""
    lines = []
    if order.inside.checks:
        try:
            places = targets(host, wanted)
        except Stop as error:
            return [f"nothing would run: {error.blocker.cause}: {error.blocker.sentence}"]
        names, user = ", ".join(order.inside.checks), f" as {order.user}" if order.user else ""
        lines += [f"would run {names} {_in(place)} with {order.python}{user}" for place in places]
    if order.on_host.checks:
        lines.append(f"would run {', '.join(order.on_host.checks)} on the host with {sys.executable}")
    return lines


def _in(place: str) -> str:
    return "on the host" if place == HOST_TARGET else f"in container {place}"


def driver_version(host: Host) -> str:
    """The version of the driver that is loaded; empty where none is."""
    return host.read_line("/sys/module/nvidia/version")


def _as_root(host: Host, target: str, order: Order, expected: int | None, answer: dict[str, Any]) -> dict[str, Any]:
    """Where CUDA does not start for the workload's user and nothing explains it: how it goes as root.

    It says whether permissions are to blame, or the driver. Empty where there is nothing to ask.
    """
    item = next((item for item in answer["measurements"] if item["name"] == "cuda"), None)
    if not order.user or item is None or item["cause"] not in AS_ROOT_TOO:
        return {}
    again = measure(host, target, replace(order, user="", checks=["cuda"]), expected)["measurements"]
    return {"cuda_as_root": next((item["status"] for item in again if item["name"] == "cuda"), "error")}


def measure(host: Host, target: str, order: Order, expected: int | None) -> dict[str, Any]:
    """The measurements of one target. An interpreter that is missing or fails is a measurement too: an error."""
    arguments = [*order.checks, "--json", "--timeout", str(order.timeout_s)]
    if expected is not None:
        arguments += ["--expect-gpus", str(expected)]
    if order.quick:
        arguments.append("--quick")
    if "decode" in order.checks:
        arguments += decode_arguments(order.decode)
    limit = order.timeout_s * len(order.checks) + 30
    if target == HOST_TARGET and not order.user and host.is_root():
        result = host.run([order.python, ARCHIVE, *arguments], timeout_s=limit)
    elif target == HOST_TARGET and not host.is_root():
        # Whoever is connected is the workload's user, and can't write the archive to where root has it.
        result = host.run([order.python, "-c", BOOTSTRAP, "", "", *arguments], timeout_s=limit, stdin=order.archive)
    elif target == HOST_TARGET:
        # The workload's interpreter may be the user's own file: on the host it never runs as root.
        start = [sys.executable, "-c", BOOTSTRAP, order.python, order.user]
        result = host.run([*start, *arguments], timeout_s=limit, stdin=order.archive)
    else:
        # An absolute interpreter, no shell; --clear-env because the host's environment is none of the container's.
        attach = ["lxc-attach", "-n", target, "--clear-env", "--set-var", "PATH=/usr/local/bin:/usr/bin:/bin", "--"]
        # The workload's interpreter may be the user's own file: it does not run as the container's root either.
        start = [SYSTEM_PYTHON, "-I", "-c", BOOTSTRAP, order.python, order.user]
        if not order.user:
            start = [order.python, "-c", BOOTSTRAP, "", ""]
        result = host.run([*attach, *start, *arguments], timeout_s=limit, stdin=order.archive)
    return _read(result, target, order.checks)


def decode_arguments(wanted: Mapping[str, Any]) -> list[str]:
    """``gpu_gate_decode`` as arguments of the check. A model may be the content of its config.json.

    >>> decode_arguments({"model": "glm-5", "tp": 8, "context": None})
    ['--model', 'glm-5', '--tp', '8']
    """
    found = []
    for name in DECODE_OPTIONS:
        value = wanted.get(name)
        if value not in (None, ""):
            found += [f"--{name}", json.dumps(value) if isinstance(value, Mapping) else str(value)]
    return found


def _read(result: Result, target: str, checks: list[str]) -> dict[str, Any]:
    try:
        document = json.loads(result.stdout)
        measurements = document["measurements"]
    except (ValueError, KeyError, TypeError):
        cause = {124: "check.timeout", NO_SUCH_USER: "check.no_such_user"}.get(result.rc, "check.crashed")
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
