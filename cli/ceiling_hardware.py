"""The machine as the sum needs it. Each number says where it comes from: given, measured, preset or assumed.

What was given by hand goes first, then what this host's own parts measured, then an assumption of the mode, then the
machine's sheet. Pure but for the two readers of data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from gpuhost_cli.ceiling_config import DATA
from gpuhost_cli.ceiling_measured import Measured

Source = Literal["given", "measured", "preset", "assumed"]

BITS = {"fp4": 4, "int4": 4, "fp8": 8, "int8": 8, "bf16": 16, "fp32": 32}
"""Operand widths. Twice as wide is half as fast, as on the data sheets, where nothing is known of a format."""


@dataclass(frozen=True)
class Input:
    """A number that the sum rests on."""

    name: str
    value: float
    unit: str
    source: Source
    why: str


@dataclass(frozen=True)
class Given:
    """What the caller says of the machine; None where nothing."""

    gpus: int | None = None
    memory_gb_s: float | None = None
    memory_efficiency: float | None = None
    allreduce_us: float | None = None
    transfer: str | None = None
    memory_gb: float | None = None
    link_gb_s: float | None = None
    tflop_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Hardware:
    """A machine. ``curve``: measured all-reduces, microseconds by bytes; where it is empty ``allreduce_us`` holds for
    every size. ``transfer``: whether that time has the transfer of one token in it (included), or not (added)."""

    title: str
    link: str
    gpus: Input
    memory_gb_s: Input
    memory_efficiency: Input
    allreduce_us: Input
    transfer: str
    transfer_why: str
    link_gb_s: Input
    tflop_s: Mapping[str, Input]
    curve: tuple[tuple[int, float], ...] = ()
    memory_gb: Input | None = None
    notes: tuple[str, ...] = ()

    @property
    def bytes_s(self) -> float:
        """What one GPU's memory gives to kernels."""
        return self.memory_gb_s.value * 1e9 * self.memory_efficiency.value

    def peak(self, arithmetic: str) -> Input:
        """The rate of a format: its own, or a neighbour's, twice as wide counted as half as fast.

        A GPU that has no arithmetic of a format multiplies in the next wider one, at that one's rate.
        """
        if arithmetic in self.tflop_s:
            return self.tflop_s[arithmetic]
        bits = BITS[arithmetic]
        by_bits = {BITS[name]: each for name, each in self.tflop_s.items()}
        if bits in by_bits:
            return by_bits[bits]
        narrower, wider = [each for each in by_bits if each < bits], [each for each in by_bits if each > bits]
        near = max(narrower) if narrower else min(wider)
        factor = near / bits if narrower else 1
        base = by_bits[near]
        why = f"{factor:g} x the rate of {near} bit" if narrower else f"no rate known: multiplied in {near} bit"
        return Input(f"{arithmetic.upper()} rate", base.value * factor, base.unit, "assumed", why)

    def inputs(self, arithmetic: Iterable[str], ranks: int, stages: int) -> tuple[Input, ...]:
        """The numbers that are used, for the table."""
        size = (self.memory_gb,) if self.memory_gb else ()
        exchange = ((self.allreduce_us,) if ranks > 1 else ()) + ((self.link_gb_s,) if ranks * stages > 1 else ())
        rates = (self.peak(each) for each in arithmetic)
        return (self.gpus, self.memory_gb_s, self.memory_efficiency, *size, *exchange, *rates)


def sheets() -> dict[str, dict[str, Any]]:
    """Data sheets by name."""
    paths = sorted((DATA / "hardware").glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def modes() -> dict[str, dict[str, Any]]:
    """The sets of assumptions by name."""
    found: dict[str, dict[str, Any]] = json.loads((DATA / "modes.json").read_text(encoding="utf-8"))
    return found


def hardware_of(
    sheet: Mapping[str, Any], mode: Mapping[str, Any], given: Given, measured: Measured | None, tp: int, hidden: int
) -> Hardware:
    """The machine. ``tp`` and ``hidden`` say which measured all-reduce is the one that a token needs."""
    notes = [f"measured: {measured.where}", *measured.notes] if measured else []
    curve: tuple[tuple[int, float], ...] = ()
    if measured and measured.reduce_us and given.allreduce_us is None and tp > 1:
        if measured.ranks == tp:
            curve = measured.reduce_us
        else:
            ranks = measured.ranks if measured.ranks is not None else "an unknown number of"
            notes.append(f"the all-reduces were measured over {ranks} GPUs, tp is {tp}: not used")
    memory = _memory(sheet, mode, given, measured)
    is_measured = memory.source == "measured"
    return Hardware(
        title=str(sheet["title"]),
        link=str(sheet["link"]),
        gpus=_gpus(sheet, given, measured),
        memory_gb_s=memory,
        memory_efficiency=_efficiency(mode, given, is_measured),
        allreduce_us=_allreduce(mode["allreduce_us"] or sheet["allreduce_us"], given, curve, 2 * hidden),
        transfer=given.transfer or ("included" if curve else str(mode["transfer"]["value"])),
        transfer_why="given" if given.transfer else "measured by size" if curve else str(mode["transfer"]["why"]),
        link_gb_s=_link(sheet, given, measured),
        tflop_s=_rates(sheet, given, measured),
        curve=curve,
        memory_gb=_size(sheet, given),
        notes=tuple(notes),
    )


def _gpus(sheet: Mapping[str, Any], given: Given, measured: Measured | None) -> Input:
    if given.gpus is not None:
        return Input("GPUs", given.gpus, "", "given", "--gpus")
    if measured and measured.gpus:
        return Input("GPUs", measured.gpus, "", "measured", "whose memory was measured")
    return Input("GPUs", sheet["gpus"], "", "preset", str(sheet["title"]))


def _memory(sheet: Mapping[str, Any], mode: Mapping[str, Any], given: Given, measured: Measured | None) -> Input:
    name, unit = "memory of one GPU", "GB/s"
    if given.memory_gb_s is not None:
        return Input(name, given.memory_gb_s, unit, "given", "--gpu-memory-gb-s")
    if measured and measured.read_gb_s is not None:
        return Input(name, measured.read_gb_s, unit, "measured", measured.read_from)
    if mode["memory_gb_s"] is not None:
        return Input(name, mode["memory_gb_s"]["value"], unit, "assumed", mode["memory_gb_s"]["why"])
    return Input(name, sheet["memory_gb_s"], unit, "preset", str(sheet["source"]))


def _size(sheet: Mapping[str, Any], given: Given) -> Input | None:
    name, unit = "size of a GPU's memory", "GB"
    if given.memory_gb is not None:
        return Input(name, given.memory_gb, unit, "given", "--gpu-memory-gb")
    return Input(name, sheet["memory_gb"], unit, "preset", str(sheet["title"])) if "memory_gb" in sheet else None


def _efficiency(mode: Mapping[str, Any], given: Given, is_measured: bool) -> Input:
    name = "share of it that kernels get"
    if given.memory_efficiency is not None:
        return Input(name, given.memory_efficiency, "", "given", "--memory-efficiency")
    if is_measured:
        return Input(name, 1.0, "", "assumed", "the rate above is one that a kernel reached, so all of it")
    return Input(name, mode["memory_efficiency"]["value"], "", "assumed", mode["memory_efficiency"]["why"])


def _allreduce(
    assumed: Mapping[str, Any], given: Given, curve: tuple[tuple[int, float], ...], token_bytes: int
) -> Input:
    name, unit = "one all-reduce of a token", "us"
    if given.allreduce_us is not None:
        return Input(name, given.allreduce_us, unit, "given", "--allreduce-us")
    if curve:
        sizes = ", ".join(str(size) for size, _ in curve[:4]) + (", ..." if len(curve) > 4 else "")
        why = f"in a CUDA graph, for {token_bytes} B out of sizes {sizes}"
        return Input(name, at_size(curve, token_bytes), unit, "measured", why)
    return Input(name, assumed["value"], unit, "assumed", assumed["why"])


def at_size(curve: tuple[tuple[int, float], ...], size: float) -> float:
    """Microseconds at a size: straight between the two measured beside it; outside, that of the nearest.

    >>> at_size(((8192, 20.0), (16384, 40.0)), 12288), at_size(((8192, 20.0),), 99)
    (30.0, 20.0)
    """
    for (low, fast), (high, slow) in pairwise(curve):
        if low <= size <= high:
            return fast + (slow - fast) * (size - low) / (high - low)
    return curve[0][1] if size < curve[0][0] else curve[-1][1]


def _link(sheet: Mapping[str, Any], given: Given, measured: Measured | None) -> Input:
    name, unit = "one GPU to another", "GB/s"
    if given.link_gb_s is not None:
        return Input(name, given.link_gb_s, unit, "given", "--link-gb-s")
    if measured and measured.copy_gb_s is not None:
        return Input(name, measured.copy_gb_s, unit, "measured", measured.copy_from)
    return Input(name, sheet["link_gb_s"], unit, "preset", str(sheet["link"]))


def _rates(sheet: Mapping[str, Any], given: Given, measured: Measured | None) -> dict[str, Input]:
    unit = "TFLOP/s"
    found = {
        name: Input(f"{name.upper()} rate", rate, unit, "preset", "dense") for name, rate in sheet["tflop_s"].items()
    }
    if measured:
        for name, rate in measured.tflop_s.items():
            found[name] = Input(f"{name.upper()} rate", rate, unit, "measured", "large products")
    for name, rate in given.tflop_s.items():
        found[name] = Input(f"{name.upper()} rate", rate, unit, "given", "--flops")
    return found
