"""Transfers between every pair of GPUs as matrices: what each reached, over which link, and how good that is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuhost import gate_text
from gpuhost_cli import report_read as read
from gpuhost_cli.report_gate import BAD, WORD, ComparedRow

TITLES = {
    "ce": "Copy engine, one way",
    "ce_both": "Copy engine, both ways at once",
    "sm_write": "Kernel writes into the peer",
    "sm_read": "Kernel reads from the peer",
    "latency": "Latency of one read",
}
UNITS = {"latency": "us"}
_PAIR = re.compile(rf"p2p\.({'|'.join(TITLES)})\.(\d{{1,2}})-(\d{{1,2}})")
"""Two digits: more GPUs than that are not in one host, and no document makes a page of a million cells."""

HEAT = (0.25, 0.5, 0.75, 0.9)
"""Shares of the expected speed between the colours. A half is where the gate's own arithmetic ends for near GPUs, a
quarter where it ends across the host; NVLink's copies reach 87 % and PCIe's 90 % of what is nominal."""
SMALL = 4
"""Up to this many GPUs all matrices stand side by side."""


@dataclass(frozen=True)
class Cell:
    """One ordered pair. ``heat``: 1 (far below what is expected) to 5; None where nothing is expected."""

    source: int
    target: int
    value: float | None
    unit: str
    link: str
    expected_gb_s: float | None
    share: float | None
    heat: int | None
    cause: str
    verdict: str
    """That of the gate; the measurement's own status where nobody judged."""

    @property
    def bad(self) -> bool:
        """It failed, or there is no value."""
        return self.verdict in BAD

    @property
    def tone(self) -> str:
        """The class of its cell: a missing value is not as loud as a failure, and no colour says how good it is."""
        if self.verdict in ("fail", "error"):
            return f"failed h{self.heat}" if self.heat else "failed"
        return f"h{self.heat}" if self.heat else "missing" if self.value is None else ""

    @property
    def value_text(self) -> str:
        """The number alone; where there is none the end of its cause: ``hang``."""
        if self.value is None:
            return self.cause.rpartition(".")[2].replace("_", " ") or "–"
        return f"{self.value:.0f}" if abs(self.value) >= 100 else f"{self.value:#.3g}".rstrip(".")

    @property
    def under(self) -> str:
        """Link class and share of what is expected of it."""
        share = "" if self.share is None else f"{100 * self.share:.0f} %"
        return " · ".join(part for part in (self.link, share) if part)

    @property
    def sentence(self) -> str:
        """All of it, for whoever points at the cell."""
        parts = [f"GPU {self.source} → {self.target}: {gate_text.quantity(self.value, self.unit)}"]
        if self.expected_gb_s is not None:
            parts.append(f"expected {gate_text.quantity(self.expected_gb_s, 'gb_s')} ({self.link or 'unknown link'})")
        if self.bad:
            parts.append(f"{WORD[self.verdict]} {self.cause}".strip())
        return ", ".join(parts)


@dataclass(frozen=True)
class Matrix:
    """Row: from this GPU (of the latency: who reads); column: to that one. None: the diagonal, or nothing measured."""

    target: str
    what: str
    title: str
    unit: str
    cells: tuple[tuple[Cell | None, ...], ...]

    @property
    def bad(self) -> bool:
        """A pair in it failed."""
        return any(cell is not None and cell.bad for row in self.cells for cell in row)

    @property
    def first(self) -> bool:
        """Shown at once, not folded away."""
        return self.what == "ce" or self.bad or len(self.cells) <= SMALL

    @property
    def heated(self) -> bool:
        """A speed is expected of at least one pair."""
        return any(cell is not None and cell.heat is not None for row in self.cells for cell in row)


def matrices(target: str, measurements: Sequence[Mapping[str, Any]], rows: Sequence[ComparedRow]) -> list[Matrix]:
    """The matrices of one target, out of the measurements of pairs; those that nobody measured are left out."""
    judged = {row.name: row for row in rows if row.target == target}
    found: dict[str, dict[tuple[int, int], Cell]] = {}
    for item in measurements:
        name = read.text(item.get("name"))
        match = _PAIR.fullmatch(name)
        if match:
            pair = int(match[2]), int(match[3])
            found.setdefault(match[1], {})[pair] = _cell(pair, item, judged.get(name))
    count = 1 + max((end for cells in found.values() for pair in cells for end in pair), default=-1)
    return [
        Matrix(
            target, what, title, gate_text.UNITS.get(unit, unit),
            tuple(tuple(found[what].get((i, j)) for j in range(count)) for i in range(count)),
        )
        for what, title in TITLES.items()
        for unit in [UNITS.get(what, "gb_s")]
        if what in found
    ]  # fmt: skip


def _cell(pair: tuple[int, int], item: Mapping[str, Any], judged: ComparedRow | None) -> Cell:
    detail = read.sub(item, "detail")
    value = read.number(item.get("value")) if item.get("status") == "measured" else None
    unit = read.text(item.get("unit")) or "gb_s"
    expected = read.number(detail.get("expected_gb_s"))
    share = value / expected if value is not None and expected and unit == "gb_s" else None
    status = "shown" if item.get("status") == "measured" else read.text(item.get("status"))
    verdict = judged.verdict if judged is not None else status
    cause = (judged.cause if judged is not None else None) or read.text(item.get("cause"))
    word = read.text(read.sub(detail, "link").get("word") or "").strip("?")
    heat = None if share is None else 1 + sum(share >= edge for edge in HEAT)
    return Cell(*pair, value, unit, word, expected, share, heat, cause, verdict if verdict in WORD else "shown")
