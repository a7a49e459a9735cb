"""How good a measurement has to be: the inventory's word, else this host's own baseline, else what arithmetic says.

Pure. A limit is found for one measurement by its name; the judge (gate.py) makes a verdict of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from .baselines import Baselines, Entry, from_dict
from .blockers import KNOWN_CHECKS
from .errors import stop
from .gate_text import HIGHER_IS_BETTER, LOWER_IS_BETTER, quantity

Item = Mapping[str, Any]
"""One measurement, as plain data."""

TOLERANCE_PERCENT = {"gb_s": 5.0, "tflop_s": 5.0, "share": 10.0, "us": 15.0, "ms": 15.0, "gpus": 0.0}
"""By how much a value may be worse than its baseline. Medians of bandwidths and rates repeat within 1 to 2 % on an idle
GPU, and the clock under another room temperature makes up for about as much again; what several transfers at once
leave to each other varies more; a latency of some microseconds has the events' resolution of about 0.5 us in it. A
count has no tolerance."""

FLOOR_SHARE = 0.5
"""Of the speed that a pair's link is expected to have. A link that came up with half of its lanes, or one generation
too low, has half of its speed; what is below that is no matter of measuring."""
FLOOR_SHARE_THROUGH_HOST = 0.25
"""Where data goes through a root complex or between sockets, what lies between is shared and no link says its speed.
A kernel's reads through it have no floor: on healthy hosts they are down to a tenth."""
FLOOR_SHARE_TOGETHER = 0.125
"""Of what arithmetic on the GPUs' own ports leaves to each of several transfers at once: four GPUs behind one way up
have a quarter of it, and half of that is a collapse. Over NVLink nothing lies between: FLOOR_SHARE."""
NEAR = ("nvlink", "same_switch", "switches")
NEAR_WORDS = ("NV", "INT", "PIX", "PXB")

UNSTEADY_PERCENT = {"gemm.fp8_rows.*.m*": 25.0}
"""Figures that repeat worse than their unit's tolerance on healthy GPUs, by pattern. Products of few rows with a scale
for each row: five processes on one idle H200 gave 2005 to 2580 GB/s, each its own speed for all of these, where
other rates stayed within 1 %."""

EXPECT_KEYS = ("min", "max", "min_share")


@dataclass(frozen=True)
class Limit:
    """What a value has to keep. ``of_share``: it is the measurement's share of its own expected speed that has to."""

    minimum: float | None = None
    maximum: float | None = None
    of_share: bool = False
    text: str = ""
    source: str = "inventory"

    def holds(self, value: float) -> bool:
        """Whether a value keeps it."""
        low = self.minimum is None or value >= self.minimum
        return low and (self.maximum is None or value <= self.maximum)


@dataclass(frozen=True)
class Rules:
    """Everything that the judge knows beside the measurements. ``record``: what has no baseline yet becomes one.

    ``replace``: so does everything that is measured, and the old baseline is shown without being held against it.
    """

    expect: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tolerance: Mapping[str, float] = field(default_factory=dict)
    baselines: Baselines | None = None
    record: bool = False
    replace: bool = False
    require_p2p: bool = False
    quick: bool = False
    driver: str = ""

    def entry(self, target: str, name: str) -> Entry | None:
        """The baseline of one measurement."""
        return self.baselines.entry(target, name) if self.baselines else None


def rules_of(params: Mapping[str, Any], recorded: Mapping[str, Any] | None, driver: str = "") -> Rules:
    """What to judge by: a module's arguments, see RULES_ARGUMENTS, and the file of baselines, empty for none.

    Raises Stop for settings that make no sense, and for baselines that can't be read.
    """
    return Rules(
        checked_expect(params["expect"]),
        checked_tolerance(params["tolerance"]),
        from_dict(recorded) if recorded else None,
        params["first_run"] == "record",
        params["baseline"] == "replace",
        params.get("require_p2p", False),
        params["quick"],
        driver,
    )


RULES_ARGUMENTS: dict[str, Any] = {
    "expect": {"type": "dict", "default": {}},
    "tolerance": {"type": "dict", "default": {}},
    "first_run": {"type": "str", "choices": ["", "record"], "default": ""},
    "baseline": {"type": "str", "choices": ["keep", "replace"], "default": "keep"},
}
"""The arguments of a module that holds measurements against something."""


def check_of(name: str) -> str:
    """The check that a measurement, or a pattern of measurements, belongs to.

    >>> check_of("memory*"), check_of("p2p.ce.0-1")
    ('memory', 'p2p')
    """
    return name.partition(".")[0].rstrip("*")


def checked_expect(raw: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """``gpu_gate_expect`` as numbers. Raises Stop(input.invalid)."""
    found = {}
    for name, wanted in raw.items():
        about = f"gpu_gate_expect: {name}"
        if check_of(name) not in KNOWN_CHECKS:
            raise stop("input.invalid", about, "begins with no check", f"one of {', '.join(KNOWN_CHECKS)}")
        if not isinstance(wanted, Mapping) or not wanted or set(wanted) - set(EXPECT_KEYS):
            raise stop("input.invalid", about, repr(wanted), "min, max or both, or min_share, each with a number")
        if "min_share" in wanted and len(wanted) > 1:
            raise stop("input.invalid", about, repr(wanted), "min_share alone, or min and max")
        found[name] = {key: _number(f"{about}: {key}", value) for key, value in wanted.items()}
    return found


def checked_tolerance(raw: Mapping[str, Any]) -> dict[str, float]:
    """``gpu_gate_tolerance`` as numbers. Raises Stop(input.invalid)."""
    found = {}
    for name, percent in raw.items():
        about = f"gpu_gate_tolerance: {name}"
        if name not in TOLERANCE_PERCENT and check_of(name) not in KNOWN_CHECKS:
            raise stop("input.invalid", about, "no unit and no check", f"one of {', '.join(TOLERANCE_PERCENT)}")
        found[name] = _number(about, percent)
        if not 0 <= found[name] < 100:
            raise stop("input.invalid", about, f"{found[name]:g}", "percent, from 0 to below 100")
    return found


def _number(about: str, value: Any) -> float:
    """A number, also as text: a template of the inventory gives text."""
    try:
        if isinstance(value, bool) or not math.isfinite(float(value)):
            raise stop("input.invalid", about, repr(value), "a number")
    except (TypeError, ValueError) as error:
        raise stop("input.invalid", about, repr(value), "a number") from error
    return float(value)


def pattern_for(patterns: Mapping[str, Any], name: str) -> str | None:
    """The entry that is about a measurement: its own name, else the longest pattern that fits; None where none does."""
    if name in patterns:
        return name
    return max((item for item in patterns if fnmatchcase(name, item)), key=len, default=None)


def value_of(item: Item) -> float | None:
    """A measurement's value where it is a number that can be compared."""
    return _real(item.get("value"))


def share_of(item: Item) -> float | None:
    """The share of its expected speed that a measurement has reached; None where no speed is expected of it."""
    detail = item.get("detail") or {}
    value, unit = value_of(item), item.get("unit")
    if detail.get("pattern"):
        return _real(detail.get("of_expected"))  # several transfers at once are as good as the worst of them
    if unit == "share":
        return value
    told, expected = _real(detail.get("share")), _real(detail.get("expected_gb_s"))
    if told is not None:
        return told
    return value / expected if value is not None and unit == "gb_s" and expected else None


def _real(value: Any) -> float | None:
    real = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if real else None


def limit_for(item: Item, target: str, rules: Rules) -> Limit | None:
    """The limit of one measurement: the first of inventory, baseline and arithmetic that has one."""
    pattern = pattern_for(rules.expect, item["name"])
    if pattern is not None:
        return _of_inventory(rules.expect[pattern], item["unit"])
    entry = None if rules.replace else rules.entry(target, item["name"])
    if entry is not None and entry.unit == item["unit"]:
        return _of_baseline(item, entry, rules)
    return _of_arithmetic(item)


def _of_inventory(wanted: Mapping[str, float], unit: str) -> Limit:
    if "min_share" in wanted:
        return Limit(wanted["min_share"], None, True, f"at least {100 * wanted['min_share']:g} % of its expected speed")
    low, high = wanted.get("min"), wanted.get("max")
    words = [f"at least {quantity(low, unit)}"] if low is not None else []
    words += [f"at most {quantity(high, unit)}"] if high is not None else []
    return Limit(low, high, False, f"{' and '.join(words)} (inventory)")


def _of_baseline(item: Item, entry: Entry, rules: Rules) -> Limit | None:
    """The baseline less its tolerance, or the edge of the baseline's own spread where that is further away.

    But never further than twice the tolerance: a baseline that was recorded in a noisy moment would excuse everything.
    """
    unit = entry.unit
    if unit not in HIGHER_IS_BETTER | LOWER_IS_BETTER:
        return None
    # A pattern such as memory* is about speeds: with 15 % of it 7 GPUs of 8 would do.
    pattern = None if unit == "gpus" else pattern_for(rules.tolerance, item["name"])
    percent = rules.tolerance[pattern] if pattern is not None else _usual_tolerance(item["name"], unit, rules)
    if unit in LOWER_IS_BETTER:
        high = min(max(entry.value * (1 + percent / 100), entry.p80 or 0), entry.value * (1 + 2 * percent / 100))
        return Limit(None, high, False, f"at most {quantity(high, unit)} (baseline + {_off(high, entry)})", "baseline")
    edge = entry.value if entry.p20 is None else entry.p20
    low = max(min(entry.value * (1 - percent / 100), edge), entry.value * (1 - 2 * percent / 100))
    return Limit(low, None, False, f"at least {quantity(low, unit)} (baseline - {_off(low, entry)})", "baseline")


def _off(limit: float, entry: Entry) -> str:
    """How far a limit is from its baseline: the tolerance, or more where the baseline's own spread is wider."""
    return f"{100 * abs(limit - entry.value) / entry.value:.3g} %" if entry.value else "0 %"


def _usual_tolerance(name: str, unit: str, rules: Rules) -> float:
    """Percent for a figure that the inventory does not name: its word on the unit, else what is known of the figure."""
    if unit in rules.tolerance:
        return rules.tolerance[unit]
    unsteady = pattern_for(UNSTEADY_PERCENT, name)
    return TOLERANCE_PERCENT[unit] if unsteady is None else UNSTEADY_PERCENT[unsteady]


def _of_arithmetic(item: Item) -> Limit | None:
    """Only transfers between GPUs that reach each other have one: a share of what their links can do."""
    detail = item.get("detail") or {}
    if not item["name"].startswith("p2p.") or detail.get("peer_access") is False or share_of(item) is None:
        return None
    kind, word = link_of(item)
    near = kind in NEAR or word.startswith(NEAR_WORDS)
    if detail.get("pattern"):
        share = FLOOR_SHARE if kind == "nvlink" else FLOOR_SHARE_TOGETHER
        return Limit(share, None, True, f"at least {100 * share:g} % of its fair share", "floor")
    if not near and item["name"].split(".")[1] == "sm_read":
        return None
    share = FLOOR_SHARE if near else FLOOR_SHARE_THROUGH_HOST
    expected = _real(detail.get("expected_gb_s"))
    speed = "its link's speed" if expected is None else quantity(expected, "gb_s")
    return Limit(share, None, True, f"at least {100 * share:g} % of {speed}{f' ({word})' if word else ''}", "floor")


def link_of(item: Item) -> tuple[str, str]:
    """The class of a pair's link and its word in ``nvidia-smi topo -m``; empty where they are not known."""
    link = (item.get("detail") or {}).get("link")
    if isinstance(link, Mapping):
        return str(link.get("kind") or ""), str(link.get("word") or "")
    return "", str(link or "")
