"""The check ``device_access``: open and query the device nodes in the order in which CUDA uses them."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import time
from dataclasses import dataclass
from typing import Any, Callable

from gpu_checks import libcuda
from gpu_checks.device_nodes import (
    CAPABILITY,
    CONTROL,
    GPU,
    UVM,
    Node,
    NodeFacts,
    Reason,
    count_reason,
    majors_of,
    parse_proc_devices,
    plan_nodes,
    reason,
    reason_before_open,
)
from gpu_checks.measurement import ERROR, MEASURED, NOT_MEASURED, Measurement
from gpu_checks.nvidia_ioctl import Query, ask_gpu, ask_uvm, ask_version, errno_name
from gpu_checks.registry import Options, Report

NAME = "device_access"
QUERIES: dict[str, Callable[[int], Query]] = {CONTROL: ask_version, GPU: ask_gpu, UVM: ask_uvm}


@dataclass(frozen=True)
class Roots:
    """Where the kernel's views are; tests look elsewhere."""

    dev: str = "/dev"
    proc: str = "/proc"
    sys: str = "/sys"


@dataclass(frozen=True)
class Seen:
    """A node, what was seen at it, what is wrong with it (None: nothing) and how long looking took."""

    node: Node
    facts: NodeFacts
    reason: Reason | None
    seconds: float


def _read(path: str) -> str:
    """The text of a file that may be missing; empty then."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def parse_driver_version(text: str) -> str | None:
    """The version in /proc/driver/nvidia/version, of the open and of the closed module."""
    match = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)*)(?:\s|$)", text, re.MULTILINE)
    return match.group(1) if match else None


def parse_excluded_minor(text: str) -> int | None:
    """The minor of a GPU that its ``information`` file calls excluded, else None."""
    fields = dict(re.findall(r"^([^:\n]+):\s*(\S+)\s*$", text, re.MULTILINE))
    minor = fields.get("Device Minor", "")
    return int(minor) if fields.get("GPU Excluded") == "Yes" and minor.isdecimal() else None


def excluded_minors(roots: Roots) -> set[int | None]:
    """Minors of the GPUs that the driver holds back; containers often hide these files, then nothing is known."""
    folder = os.path.join(roots.proc, "driver/nvidia/gpus")
    return {parse_excluded_minor(_read(os.path.join(folder, name, "information"))) for name in _names(folder)} - {None}


def look(node: Node, roots: Roots, devices: dict[str, tuple[int, ...]]) -> NodeFacts:
    """What stat and /proc/devices say about a node, without opening it."""
    path = os.path.join(roots.dev, node.name)
    names, majors = majors_of(node.kind, devices)
    facts = NodeFacts(path, driver_names=names, driver_majors=majors)
    try:
        found = os.stat(path)
    except OSError as error:
        return dataclasses.replace(facts, stat_errno=error.errno)
    is_char = stat.S_ISCHR(found.st_mode)
    return dataclasses.replace(
        facts,
        is_char=is_char,
        mode=found.st_mode,
        uid=found.st_uid,
        gid=found.st_gid,
        major=os.major(found.st_rdev) if is_char else None,
        minor=os.minor(found.st_rdev) if is_char else None,
    )


def _is_nodev(path: str) -> bool | None:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_NODEV)
    except OSError:
        return None


def open_and_query(node: Node, facts: NodeFacts, excluded: set[int | None]) -> NodeFacts:
    """Open a node as CUDA does, ask its driver one harmless question, close it."""
    # MIG capabilities are opened for reading; everything else for both.
    access = os.O_RDONLY if node.kind == CAPABILITY else os.O_RDWR
    begin = time.monotonic()
    try:
        file = os.open(facts.path, access | os.O_CLOEXEC)
    except OSError as error:
        return dataclasses.replace(
            facts,
            opened=False,
            open_errno=error.errno,
            nodev=_is_nodev(facts.path),
            gpu_excluded=node.kind == GPU and facts.minor in excluded,
        )
    try:
        open_us = (time.monotonic() - begin) * 1e6
        ask = QUERIES.get(node.kind)
        return dataclasses.replace(facts, opened=True, open_us=open_us, query=ask(file) if ask else None)
    finally:
        os.close(file)


def inspect(node: Node, roots: Roots, devices: dict[str, tuple[int, ...]], excluded: set[int | None]) -> Seen:
    """Everything about one node."""
    begin = time.monotonic()
    facts = look(node, roots, devices)
    why = reason_before_open(facts)
    if why is None:
        facts = open_and_query(node, facts, excluded)
        why = reason(facts)
    return Seen(node, facts, why, time.monotonic() - begin)


def node_detail(seen: Seen) -> dict[str, Any]:
    """The facts of a node in plain data, for people and for the judge."""
    facts = seen.facts
    opened = {None: "not_tried", True: "ok", False: errno_name(facts.open_errno)}[facts.opened]
    detail: dict[str, Any] = {
        "path": facts.path,
        "required": seen.node.required,
        "exists": facts.stat_errno is None,
        "is_char": facts.is_char,
        "major": facts.major,
        "minor": facts.minor,
        "mode": None if facts.mode is None else f"{stat.S_IMODE(facts.mode):04o}",
        "uid": facts.uid,
        "gid": facts.gid,
        "driver_names": list(facts.driver_names),
        "driver_majors": list(facts.driver_majors),
        "open": opened,
        "query": None if facts.query is None else dataclasses.asdict(facts.query),
    }
    if seen.reason is not None:
        detail["message"] = seen.reason.message
    return detail


def node_measurement(seen: Seen) -> Measurement:
    """The measurement of one node: its value is how long opening it took.

    A node that CUDA can do without and that this user may not open (MIG's nodes are root's) was not measured; it is
    no error.
    """
    why = seen.reason
    status = MEASURED
    if why is not None:
        spared = not seen.node.required and why.cause == "device.denied_mode"
        status = NOT_MEASURED if spared else ERROR
    return Measurement(
        name=f"{NAME}.{seen.node.name}",
        value=None if why is not None or seen.facts.open_us is None else round(seen.facts.open_us, 1),
        unit="us",
        method="stat, open, one ioctl where the node has one, close",
        status=status,
        cause=None if why is None else why.cause,
        seconds=round(seen.seconds, 6),
        detail=node_detail(seen),
    )


def gpu_count(seen: list[Seen], expected: int | None) -> Measurement:
    """The number of GPU nodes that exist, usable or not, against the inventory's number."""
    found = sum(1 for each in seen if each.node.kind == GPU and each.facts.stat_errno is None)
    why = count_reason(found, expected)
    detail = {"expected_gpus": expected, **({} if why is None else {"message": why.message})}
    status = MEASURED if why is None else ERROR
    cause = None if why is None else why.cause
    method = "GPU device nodes that exist"
    return Measurement(f"{NAME}.gpu_count", found, "gpus", method, status, cause, 0.0, detail=detail)


def driver_detail(seen: list[Seen], proc_text: str, libraries: list[libcuda.Library]) -> dict[str, Any]:
    """The driver's version by each of its witnesses. ``None`` in an ``agree`` field: one of the two is not known.

    A libcuda of another version than the module is CUDA error 803 in most cases, but a compatibility package may be
    meant to differ; so this is a fact for the judge and no cause here.
    """
    answers = [each.facts.query.driver_version for each in seen if each.facts.query and each.node.kind == CONTROL]
    query = answers[0] if answers else None
    proc = parse_driver_version(proc_text)
    module = query or proc
    library = libraries[0].version if libraries else None
    return {
        "version_query": query,
        "version_proc": proc,
        "versions_agree": None if None in (query, proc) else query == proc,
        "libcuda_found": bool(libraries),
        "libcuda": [dataclasses.asdict(each) for each in libraries],
        "libcuda_agrees": None if None in (module, library) else module == library,
    }


def overall(seen: list[Seen], count: Measurement, seconds: float, driver: dict[str, Any]) -> Measurement:
    """The verdict-like sum: usable GPU nodes, and the first required node that blocks, else a wrong count."""
    usable = sum(1 for each in seen if each.node.kind == GPU and each.reason is None)
    blocking = next((each for each in seen if each.node.required and each.reason is not None), None)
    detail: dict[str, Any] = {
        "gpu_nodes": count.value,
        "expected_gpus": count.detail["expected_gpus"],
        "first_blocking": None if blocking is None else blocking.facts.path,
        "optional_errors": [
            f"{NAME}.{each.node.name}"
            for each in seen
            if not each.node.required and node_measurement(each).status == ERROR
        ],
        "euid": os.geteuid(),
        "driver": driver,
    }
    cause, message = count.cause, count.detail.get("message")
    if blocking is not None and blocking.reason is not None:
        cause, message = blocking.reason.cause, blocking.reason.message
    if message is not None:
        detail["message"] = message
    status = MEASURED if cause is None else ERROR
    method = "nvidiactl, every GPU node and nvidia-uvm opened and queried"
    return Measurement(NAME, usable, "gpus", method, status, cause, round(seconds, 6), detail=detail)


def check(options: Options, report: Report, roots: Roots = Roots()) -> None:
    """Measure every node, then the number of GPU nodes, then the whole."""
    begin = time.monotonic()
    # No guess where this file can't be read: the check then ends with the error, which its caller reports.
    with open(os.path.join(roots.proc, "devices"), encoding="utf-8", errors="replace") as file:
        devices = parse_proc_devices(file.read())
    excluded = excluded_minors(roots)
    seen = []
    caps = _names(os.path.join(roots.dev, "nvidia-caps"))
    for node in plan_nodes(_names(roots.dev), caps, options.expect_gpus):
        report.doing(f"open and query {os.path.join(roots.dev, node.name)}")
        seen.append(inspect(node, roots, devices, excluded))
        report.add(node_measurement(seen[-1]))
    report.doing("look for libcuda")
    libraries = libcuda.find(libcuda.search_folders(os.environ.get("LD_LIBRARY_PATH", "")))
    driver = driver_detail(seen, _read(os.path.join(roots.proc, "driver/nvidia/version")), libraries)
    count = gpu_count(seen, options.expect_gpus)
    report.add(count)
    report.add(overall(seen, count, time.monotonic() - begin, driver))
