"""Our own checks: how they are called, and their document under the names of ``figures``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from figures import SMALL_BYTES, Reading, collective, collective_rate, gemv, gemv_share

Measurement = dict[str, Any]
CHECK_LIMIT_S = 120


class NotUsable(ValueError):
    """The output is no document of ours; the text says why."""


def command(python: str, archive: str, checks: list[str], quick: bool = False) -> list[str]:
    """The call of some checks, as anybody would run them."""
    return [python, archive, *checks, "--json", "--timeout", str(CHECK_LIMIT_S), *(["--quick"] if quick else [])]


def parse(text: str) -> list[Measurement]:
    """The measurements of a document. Raises NotUsable for anything else."""
    try:
        said = json.loads(text)
        if said["schema"] != "gpuhost.measurements":
            raise NotUsable(f"a document of {said['schema']}")
        return list(said["measurements"])
    except (ValueError, KeyError, TypeError) as error:
        raise NotUsable(f"gpu_checks wrote no document: {text.strip()[-300:]!r}") from error


def _is_asked_for(name: str) -> bool:
    """Whether somebody waits for this figure: a check as a whole, or one with a peer. (No GPU has every format.)"""
    return "." not in name or any(pattern.fullmatch(name) for pattern, _, _ in NAMES)


OF_THE_PEAK = re.compile(r"memory\.copy\.|gemm\.bf16\.\w+\.m1$")
"""Whose share of the memory's peak is asked for."""


def troubles(measurements: list[Measurement]) -> list[str]:
    """What was not measured, and why: one sentence each."""
    found = []
    for each in measurements:
        name, status, detail = each["name"], each["status"], each["detail"]
        if status == "error" or (status == "not_measured" and _is_asked_for(name)):
            found.append(f"{name}: {status} {each['cause']}: {detail.get('message', '')}".rstrip(": "))
        elif status == "measured" and OF_THE_PEAK.match(name) and detail.get("share") is None:
            found.append(f"{name}: no share of the NVML peak: {detail.get('share_unknown', '')}".rstrip(": "))
    return found


def _local_copy(match: re.Match[str], each: Measurement) -> dict[Reading, float]:
    """Ours counts bytes read and written, the peer one of both."""
    found = {("local copy, one way (GB/s)", match[1]): each["detail"]["one_way_gb_s"]}
    share = each["detail"].get("share")
    return found if share is None else {**found, ("local copy, share of the NVML peak", match[1]): share}


P2P_FIGURES = {
    "ce": "CE write (GB/s)",
    "ce_both": "CE write, both ways at once (GB/s)",
    "sm_write": "SM write (GB/s)",
    "sm_read": "SM read (GB/s)",
}
"""Copies by engine go out from the source's GPU, as in nvbandwidth's write tests."""


def _p2p(match: re.Match[str], each: Measurement) -> dict[Reading, float]:
    return {(P2P_FIGURES[match[1]], match[2]): each["value"]}


def _latency(match: re.Match[str], each: Measurement) -> dict[Reading, float]:
    """GPU i reads the memory of GPU j: the data come from j."""
    return {("latency of one read (us)", f"{match[2]}-{match[1]}"): each["value"]}


def _allreduce(match: re.Match[str], each: Measurement) -> dict[Reading, float]:
    size = int(match[2])
    found = {(collective(match[1], size), "all"): each["value"]}
    if size > SMALL_BYTES:
        found[collective_rate(match[1], size), "all"] = each["detail"]["busbw_gb_s"]
    return found


def _gemv(match: re.Match[str], each: Measurement) -> dict[Reading, float]:
    m, n, k = (int(each["detail"]["shape"][axis]) for axis in "mnk")
    found = {(gemv(m, n, k), match[1]): each["value"]}
    share = each["detail"].get("share")
    return found if share is None else {**found, (gemv_share(m, n, k), match[1]): share}


NAMES: list[tuple[re.Pattern[str], str, Callable[[re.Match[str], Measurement], dict[Reading, float]]]] = [
    (re.compile(r"memory\.copy\.gpu(\d+)"), "gb_s", _local_copy),
    (re.compile(r"p2p\.(ce|ce_both|sm_write|sm_read)\.(\d+-\d+)"), "gb_s", _p2p),
    (re.compile(r"p2p\.latency\.(\d+)-(\d+)"), "us", _latency),
    (re.compile(r"allreduce\.(graph|eager)\.(\d+)"), "us", _allreduce),
    (re.compile(r"gemm\.bf16\.gpu(\d+)\.m\d+"), "gb_s", _gemv),
]
"""Which of our measurements have a peer. A name in another unit is another figure: products of many rows are rates."""


def readings(measurements: list[Measurement]) -> dict[Reading, float]:
    """Everything that was measured and has a peer."""
    found: dict[Reading, float] = {}
    for each in measurements:
        for pattern, unit, read in NAMES:
            match = pattern.fullmatch(each["name"])
            if match and each["status"] == "measured" and each["unit"] == unit:
                found.update(read(match, each))
    return found


def products(measurements: list[Measurement]) -> list[tuple[int, int, int, int]]:
    """GPU, m, n, k of each product that was given as bytes per second: what the peer has to do as well."""
    pattern, unit, _ = NAMES[-1]
    found = []
    for each in measurements:
        match = pattern.fullmatch(each["name"])
        if match and each["status"] == "measured" and each["unit"] == unit:
            shape = each["detail"]["shape"]
            found.append((int(match[1]), shape["m"], shape["n"], shape["k"]))
    return found
