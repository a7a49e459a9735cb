"""The effects of tuning for people: findings, lines of a run, and from the document's data a table for the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .causes import cause
from .documents import Finding, Severity
from .tune_effects import HARMFUL, IMPROVES, MIXED, NO_EFFECT, KnobEffect

_FINDINGS: dict[str, tuple[str, Severity]] = {
    IMPROVES: ("tune.improves", "good"),
    NO_EFFECT: ("tune.no_effect", "info"),
    HARMFUL: ("tune.harmful", "p0_runtime"),
    MIXED: ("tune.mixed", "info"),
}
_UNITS = {"gb_s": "GB/s", "us": "us", "ns": "ns", "s": "s", "ms": "ms"}
SOURCE = "gpuhost tune --measure"


def findings(found: Sequence[KnobEffect], domains: Mapping[str, str]) -> tuple[Finding, ...]:
    """One finding for each knob."""
    return tuple(_finding(item, domains.get(item.knob, "kernel_runtime")) for item in found)


def _finding(item: KnobEffect, domain: str) -> Finding:
    code, severity = _FINDINGS.get(item.verdict, ("tune.not_measured", "unknown"))
    known = cause(code)
    seen = [_changed(vars(effect)) for effect in item.benchmarks if effect.verdict in (IMPROVES, HARMFUL)]
    values = f"{item.old} -> {item.new}: " if item.old or item.new else ""
    observed = f"{item.knob} {values}{', '.join(seen) or item.reason or item.verdict}"
    fix = known.next_step if severity in ("p0_runtime", "unknown") else ""
    return Finding(code, domain, severity, observed, "an effect for the better, or none", known.sentence, fix, SOURCE)


def _changed(effect: Mapping[str, Any]) -> str:
    return f"{effect['benchmark']} {_interval(effect)} ({effect['verdict']})"


def _interval(effect: Mapping[str, Any]) -> str:
    """``-3.1 % (-3.9 to -2.2)``, or a dash."""
    if effect["effect_percent"] is None:
        return "-"
    low, high = effect["low_percent"], effect["high_percent"]
    return f"{effect['effect_percent']:+.1f} % ({low:+.1f} to {high:+.1f})"


def value_text(value: float | None, unit: str) -> str:
    """A median with its unit: three digits that count."""
    return "-" if value is None else f"{value:.4g} {_UNITS.get(unit, unit)}"


def lines(document: Mapping[str, Any]) -> list[str]:
    """A line for each knob, for the progress of a run."""
    return [_line(item) for item in document["knobs"]] or ["no runtime setting has two values here: nothing to measure"]


def _line(item: Mapping[str, Any]) -> str:
    values = f" {item['old']} -> {item['new']}" if item["old"] or item["new"] else ""
    seen = ", ".join(_changed(effect) for effect in item["benchmarks"] if effect["verdict"] in (IMPROVES, HARMFUL))
    reason = f"; {item['reason']}" if item["reason"] else ""
    return f"{item['knob']}{values}: {item['verdict']}{f' ({seen})' if seen else ''}: {item['decision']}{reason}"


def table(document: Mapping[str, Any]) -> str:
    """The whole document for a terminal: a block for each knob."""
    verify = document["mode"] == "verify"
    blocks = ["\n".join(_block(item, verify)) for item in document["knobs"]]
    foot = [
        f"{document['pairs']} pairs in turns; intervals hold with "
        f"{100 - document['family_error_percent']:g} % for all benchmarks of a knob together; "
        f"below the noise, or below {document['smallest_percent']:g} %, is no measurable effect."
    ]
    if document["load"]:
        foot.append(f"Measured under load, as told: {'; '.join(document['load'])}.")
    if not document["timer"]:
        foot.append("No timer stood by: a kill would have left the value that was being measured.")
    return "\n\n".join([*(blocks or lines(document)), "\n".join(foot)]) + "\n"


def _block(item: Mapping[str, Any], verify: bool) -> Iterator[str]:
    yield _head(item, verify)
    if not item["benchmarks"]:
        return
    heads = ("benchmark", *(("before", "after") if verify else ("old", "new")), "difference", "noise", "verdict")
    rows = [heads, *(_row(effect, verify) for effect in item["benchmarks"])]
    widths = [max(len(row[place]) for row in rows) for place in range(len(heads))]
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)),
        ]
        yield f"  {'  '.join(cells)}  {row[-1]}"
    for effect in item["benchmarks"]:
        yield from _moved(effect)


def _head(item: Mapping[str, Any], verify: bool) -> str:
    what = "" if verify or not item["objects"] else f": {item['old']} -> {item['new']}"
    many = f" ({item['objects']} objects)" if item["objects"] > 1 else ""
    reason = f"; {item['reason']}" if item["reason"] else ""
    return f"{item['knob']}{what}{many}: {item['verdict'].upper()}, {item['decision']}{reason}"


def _row(effect: Mapping[str, Any], verify: bool) -> tuple[str, ...]:
    first = statistics.median(effect["before_samples"]) if verify and effect["before_samples"] else effect["old_median"]
    noise = "-" if effect["noise_percent"] is None else f"{effect['noise_percent']:.1f} %"
    return (
        effect["benchmark"], value_text(first, effect["unit"]), value_text(effect["new_median"], effect["unit"]),
        _interval(effect), noise, effect["verdict"],
    )  # fmt: skip


def _moved(effect: Mapping[str, Any]) -> Iterator[str]:
    """Where the old values, measured again after the tune, are not what they were before it."""
    apart, noise = effect["before_percent"], effect["noise_percent"]
    if apart is not None and abs(apart) > max(noise or 0, 1.0):
        yield (
            f"  {effect['benchmark']}: the old values, measured again, lie {apart:+.1f} % from before: that part of "
            "the difference between the columns is not tune's"
        )
