"""Power of the GPUs while a trace was made: a number, or a time series of nvidia-smi."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from gpuhost_cli.trace_model import TraceError

HOW = "nvidia-smi --query-gpu=timestamp,index,power.draw,power.limit,utilization.gpu --format=csv -lms 200 > FILE"
_NUMBER = re.compile(r"^-?\d+(\.\d+)?$")


@dataclass(frozen=True)
class Power:
    """Watts by GPU index; None as index means all."""

    draw_w: dict[int | None, float]
    limit_w: dict[int | None, float]
    said: str

    def of(self, index: int) -> tuple[float, float] | None:
        """Power and its limit of one GPU."""
        draw, limit = (table.get(index, table.get(None)) for table in (self.draw_w, self.limit_w))
        return (draw, limit) if draw is not None and limit else None


def read(text: str, limit_w: float | None) -> Power:
    """--power. Raises TraceError."""
    if _NUMBER.match(text):
        if limit_w is None:
            raise TraceError(f"--power {text}: --power-limit W is missing: only a share of the limit says 'idle'")
        return Power({None: float(text)}, {None: limit_w}, f"every GPU draws {text} W, as told")
    try:
        lines = Path(text).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"--power {text}: neither a number of watts nor a file that can be read") from error
    return _series(text, lines, limit_w)


def _series(name: str, lines: Iterable[str], limit_w: float | None) -> Power:
    rows = list(csv.reader(lines, skipinitialspace=True))
    head = [re.sub(r"\s*\[.*\]$", "", item.strip()) for item in rows[0]] if rows else []
    if "index" not in head or "power.draw" not in head:
        raise TraceError(f"--power {name}: columns index and power.draw are missing; make it with: {HOW}")
    draw: dict[int | None, list[float]] = defaultdict(list)
    limit: dict[int | None, float] = {None: limit_w} if limit_w else {}
    for row in rows[1:]:
        cells = {key: re.sub(r"\s*(W|%|MHz)$", "", cell.strip()) for key, cell in zip(head, row, strict=False)}
        index, watts = cells.get("index", ""), cells.get("power.draw", "")
        if not index.isdigit() or not _NUMBER.match(watts):
            continue  # [N/A], or a line that was cut off
        draw[int(index)].append(float(watts))
        if not limit_w and _NUMBER.match(cells.get("power.limit", "")):
            limit[int(index)] = float(cells["power.limit"])
    if not draw:
        raise TraceError(f"--power {name}: no row with a GPU's power in it; make it with: {HOW}")
    if not limit:
        raise TraceError(f"--power {name}: no column power.limit: add it, or give --power-limit W")
    count = sum(map(len, draw.values()))
    said = f"power is the mean of all {count} rows of {name}; its GPU index is the trace's, its time the trace's time"
    return Power({index: mean(values) for index, values in draw.items()}, limit, said)
