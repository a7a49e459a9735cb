"""What the driver says of all GPUs at once: one ``nvidia-smi --query-gpu``, parsed.

One call costs 80 ms with two GPUs, ``nvidia-smi -q -x`` 220 ms (measured with driver 580.159.04). A driver that does
not know a field refuses the whole query with exit status 2, so there are two lists: one for today's drivers, one of
what every driver since R470 knows (``nvidia-smi --help-query-gpu``).
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field

from .host_io import Host

BASE = (
    "index", "pci.bus_id", "name", "uuid", "persistence_mode", "compute_mode",
    "ecc.mode.current", "ecc.mode.pending", "mig.mode.current", "mig.mode.pending",
    "power.limit", "power.default_limit", "power.min_limit", "power.max_limit", "power.draw",
    "temperature.gpu", "temperature.memory",
    "clocks.applications.memory", "clocks.applications.graphics", "clocks.max.memory", "clocks.max.graphics",
    "ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.uncorrected.aggregate.total",
    "retired_pages.single_bit_ecc.count", "retired_pages.double_bit.count", "retired_pages.pending",
)  # fmt: skip
OLD_REASONS = "clocks_throttle_reasons.active"
NEW = (
    "clocks_event_reasons.active", "temperature.gpu.tlimit", "gpu_recovery_action",
    "remapped_rows.correctable", "remapped_rows.uncorrectable", "remapped_rows.pending", "remapped_rows.failure",
)  # fmt: skip
_ATTEMPTS = ((*BASE, *NEW), (*BASE, OLD_REASONS), BASE)
_FORMAT = "--format=csv,noheader,nounits"
LIMIT_S = 30.0
"""Without persistence the driver first brings every GPU up: seconds for each."""

_UNKNOWN_FIELD = "is not a valid field to query"
_ADDRESS = re.compile(r"(?:PCI:)?(?:0000)?([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(\.[0-7])?")
# Said for what a GPU simply has not; any other text in brackets is an error of that GPU.
_NOT_THERE = {"", "n/a", "not supported", "requested functionality has been deprecated", "deprecated", "no data"}


@dataclass(frozen=True)
class Gpu:
    """One GPU. None: it has no such thing, or this driver does not say it."""

    index: int
    address: str
    name: str = ""
    uuid: str = ""
    persistence: bool | None = None
    compute_mode: str | None = None
    ecc: bool | None = None
    ecc_next: bool | None = None
    mig: bool | None = None
    mig_next: bool | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    power_min_w: float | None = None
    power_max_w: float | None = None
    power_draw_w: float | None = None
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    thermal_margin_c: float | None = None
    application_clocks_mhz: tuple[int, int] | None = None
    """Memory, graphics: the order of ``nvidia-smi -ac``."""
    max_clocks_mhz: tuple[int, int] | None = None
    event_reasons: int | None = None
    corrected: int | None = None
    uncorrected: int | None = None
    uncorrected_ever: int | None = None
    retired_single: int | None = None
    retired_double: int | None = None
    retired_pending: bool | None = None
    remapped_corrected: int | None = None
    remapped_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery_action: str | None = None
    errors: tuple[str, ...] = field(default=())
    """What it answered instead of a value, such as ``GPU is lost`` or ``Unknown Error``."""


@dataclass(frozen=True)
class Report:
    """All GPUs that answered, and what nvidia-smi said beside them; ``problem`` where it said nothing of any."""

    gpus: tuple[Gpu, ...] = ()
    remarks: tuple[str, ...] = ()
    problem: str = ""


def ask(host: Host) -> Report:
    """All GPUs. One call; more only where an older driver does not know a field."""
    said = ""
    for fields in _ATTEMPTS:
        result = host.run(["nvidia-smi", f"--query-gpu={','.join(fields)}", _FORMAT], timeout_s=LIMIT_S)
        if result.rc == 127:
            return Report(problem="nvidia-smi is not installed")
        if _UNKNOWN_FIELD in result.stdout + result.stderr:
            said = result.last_line
            continue
        report = parse(result.stdout, fields)
        if not report.gpus:
            return Report((), report.remarks, result.last_line)
        return report
    return Report(problem=said)


def ask_one(host: Host, address: str, *names: str) -> list[str | None]:
    """Some values of one GPU; all None where it does not answer."""
    argv = ["nvidia-smi", "-i", address, f"--query-gpu={','.join(names)}", _FORMAT]
    result = host.run(argv, timeout_s=LIMIT_S)
    row = next(csv.reader(result.stdout.splitlines()), []) if result.rc == 0 else []
    return [value_of(item) for item in row] if len(row) == len(names) else [None] * len(names)


def parse(text: str, fields: tuple[str, ...]) -> Report:
    """The query's answer. A line that is no row is a remark (``Unable to determine the device handle for ...``)."""
    gpus, remarks = [], []
    for line in text.splitlines():
        row = [item.strip() for item in next(csv.reader([line]), [])]
        found = dict(zip(fields, row, strict=False))
        if len(row) == len(fields) and found["index"].isdecimal():
            gpus.append(_gpu(found))
        elif line.strip():
            remarks.append(line.strip())
    return Report(tuple(gpus), tuple(remarks))


def value_of(text: str) -> str | None:
    """A value; None where there is none. What stands in brackets is no value."""
    bare = text.strip()
    return None if bare.startswith("[") or bare.lower() in _NOT_THERE else bare


def error_of(text: str) -> str | None:
    """The error that stands in the place of a value; None where it is a value or there simply is none."""
    bare = text.strip()
    if not (bare.startswith("[") and bare.endswith("]")):
        return None
    return None if bare[1:-1].strip().lower() in _NOT_THERE else bare[1:-1].strip()


def address_of(text: str) -> str:
    """A PCI address as the kernel writes it, from ``00000000:41:00.0`` or from a kernel log's ``PCI:0000:41:00``."""
    found = _ADDRESS.fullmatch(text.strip())
    return (found[1] + (found[2] or ".0")).lower() if found else text.strip().lower()


def _number(text: str | None) -> float | None:
    found = re.match(r"-?\d+(?:\.\d+)?", text or "")
    return float(found[0]) if found else None


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


_SWITCHES = {"enabled": True, "yes": True, "disabled": False, "no": False}


def _gpu(row: dict[str, str]) -> Gpu:
    values = {name: value_of(text) for name, text in row.items()}
    errors = dict.fromkeys(error for text in row.values() if (error := error_of(text)) is not None)

    def switch(name: str) -> bool | None:
        return _SWITCHES.get((values.get(name) or "").lower())

    def number(name: str) -> float | None:
        return _number(values.get(name))

    def count(name: str) -> int | None:
        return _count(values.get(name))

    def clocks(kind: str) -> tuple[int, int] | None:
        memory, graphics = count(f"clocks.{kind}.memory"), count(f"clocks.{kind}.graphics")
        return None if memory is None or graphics is None else (memory, graphics)

    reasons = values.get(NEW[0]) or values.get(OLD_REASONS) or ""
    return Gpu(
        index=int(row["index"]),
        address=address_of(row["pci.bus_id"]),
        name=values["name"] or "",
        uuid=values["uuid"] or "",
        persistence=switch("persistence_mode"),
        compute_mode=values["compute_mode"],
        ecc=switch("ecc.mode.current"),
        ecc_next=switch("ecc.mode.pending"),
        mig=switch("mig.mode.current"),
        mig_next=switch("mig.mode.pending"),
        power_limit_w=number("power.limit"),
        power_default_w=number("power.default_limit"),
        power_min_w=number("power.min_limit"),
        power_max_w=number("power.max_limit"),
        power_draw_w=number("power.draw"),
        temperature_c=number("temperature.gpu"),
        memory_temperature_c=number("temperature.memory"),
        thermal_margin_c=number("temperature.gpu.tlimit"),
        application_clocks_mhz=clocks("applications"),
        max_clocks_mhz=clocks("max"),
        event_reasons=int(reasons, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", reasons) else None,
        corrected=count("ecc.errors.corrected.volatile.total"),
        uncorrected=count("ecc.errors.uncorrected.volatile.total"),
        uncorrected_ever=count("ecc.errors.uncorrected.aggregate.total"),
        retired_single=count("retired_pages.single_bit_ecc.count"),
        retired_double=count("retired_pages.double_bit.count"),
        retired_pending=switch("retired_pages.pending"),
        remapped_corrected=count("remapped_rows.correctable"),
        remapped_uncorrected=count("remapped_rows.uncorrectable"),
        remap_pending=switch("remapped_rows.pending"),
        remap_failed=switch("remapped_rows.failure"),
        recovery_action=values.get("gpu_recovery_action"),
        errors=tuple(errors),
    )
