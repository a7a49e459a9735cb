"""The measurement of the whole check ``p2p``: pairs whose data arrived, the matrices, what is missing. Pure."""

from __future__ import annotations

from typing import Any

from gpu_checks.measurement import ERROR, MEASURED, NOT_MEASURED, Measurement
from gpu_checks.p2p.plan import ARRIVE, BOTH, CE, ENGINES, LARGEST_BUFFER, LATENCY, NAME, SM_READ, SM_WRITE, Step, plan
from gpu_checks.p2p.results import IN_USE, NO_ACCESS, NOT_REACHED, of_pair, refused
from gpu_checks.p2p.state import WORST, WRONG, Known, Opened, name_of, words_of

METHOD = "every pair of GPUs: first a small copy, then speeds; a worker that hangs is killed; all data compared"
MATRICES = {"ce_gb_s": CE, "ce_both_gb_s": BOTH, "sm_write_gb_s": SM_WRITE, "sm_read_gb_s": SM_READ}
MATRICES["latency_us"] = LATENCY


def everything(opened: Opened, quick: bool) -> list[Step]:
    """What would be done if every GPU could reach every other one, and nobody else used them."""
    count = len(opened.access)
    return plan(opened.pairs, [[True] * count for _ in range(count)], quick)


def missing(known: Known, opened: Opened, quick: bool, reported: set[str], why: str) -> list[Measurement]:
    """A measurement for each that should be there and is not. ``why``: what ended the check early, if anything did."""
    found, planned = [], {step.key for step in opened.steps(quick)}
    for step in everything(opened, quick):
        if step.what == ARRIVE:
            continue
        for name in step.names:
            if name in reported:
                continue
            hinder = known.hinders(step)
            wrong = known.first(step.pairs[0], step.engine).get("wrong") if step.what == step.engine else None
            if wrong:
                message = f"the first copy of GPU {name_of(step.pairs[0])} ({step.engine}): {words_of(wrong)}"
                found.append(refused(name, ERROR, WRONG, message, **of_pair(opened, step.pairs[0], None)))
                continue
            if hinder is None and opened.in_use is not None:
                found.append(refused(name, NOT_MEASURED, IN_USE, opened.in_use))
            elif hinder is None and step.key not in planned:
                message = "the GPUs can't reach each other's memory"
                found.append(refused(name, NOT_MEASURED, NO_ACCESS, message))
            else:
                found.append(refused(name, NOT_MEASURED, NOT_REACHED, hinder or why or "it was not come to"))
    return found


def matrices(opened: Opened, measurements: list[Measurement]) -> dict[str, list[list[Any]]]:
    """Row: source (of the latency: who reads); column: target. None where nothing was measured."""
    count = len(opened.addresses)
    values = {each.name: each.value for each in measurements}
    found: dict[str, list[list[Any]]] = {
        name: [[values.get(f"{NAME}.{what}.{i}-{j}") for j in range(count)] for i in range(count)]
        for name, what in MATRICES.items()
    }
    words = {pair: link.word for pair, link in opened.links.items()}
    found["link"] = [[words.get((i, j)) for j in range(count)] for i in range(count)]
    return found


def table(found: dict[str, list[list[Any]]]) -> str:
    """The matrices for a person.

    >>> print(table({"ce_gb_s": [[None, 393.3], [52, None]]}))
    ce_gb_s      0      1
    0            -  393.3
    1           52      -
    """
    lines = []
    for name, rows in found.items():
        if all(value is None for row in rows for value in row):
            continue
        cells = [[_cell(value) for value in row] for row in rows]
        width = max(6, *(len(cell) for row in cells for cell in row))
        first = max(len(name), 7)
        lines.append(name.ljust(first) + "".join(f" {column:>{width}}" for column in range(len(rows))))
        for number, row in enumerate(cells):
            lines.append(str(number).ljust(first) + "".join(f" {cell:>{width}}" for cell in row))
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.4g}"


def overall(
    known: Known, opened: Opened, measurements: list[Measurement], seconds: float, why: str, more: dict[str, Any]
) -> Measurement:
    """The sum. ``more``: what only the check knows, for the record."""
    causes: dict[str, list[str]] = {cause.partition(".")[2]: [] for cause in (*WORST, NO_ACCESS, NOT_REACHED)}
    for each in measurements:
        key = (each.cause or "").partition(".")[2]
        if key in causes:
            causes[key].append(each.name.partition(".")[2])
    right = [pair for pair in opened.pairs if pair not in known.bad and _tried(known, pair)]
    found = matrices(opened, measurements)
    detail: dict[str, Any] = {
        "expected_gpus": len(opened.addresses),
        "expected_pairs": len(opened.pairs),
        "right": [name_of(pair) for pair in right],
        **causes,
        **found,
        "table": table(found),
        "buffer_bytes": opened.buffer_bytes,
        "buffers_shrunk": opened.buffer_bytes < LARGEST_BUFFER,
        "in_use": opened.in_use,
        **more,
    }
    errors = sorted((each for each in measurements if each.status == ERROR), key=_badness)
    status, cause, message = MEASURED, None, None
    if errors:
        status, cause = ERROR, errors[0].cause
        others = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        message = f"{errors[0].name}: {errors[0].detail.get('message')}{others}"
    elif opened.in_use is not None:
        status, cause, message = NOT_MEASURED, IN_USE, opened.in_use
    elif causes["not_reached"]:
        status, cause = NOT_MEASURED, NOT_REACHED
        message = f"{len(causes['not_reached'])} measurements were not come to: {why or 'see each'}"
    if message is not None:
        detail["message"] = message
    return Measurement(NAME, len(right), "pairs", METHOD, status, cause, round(seconds, 6), detail=detail)


def _badness(each: Measurement) -> int:
    return WORST.index(each.cause) if each.cause in WORST else len(WORST)


def _tried(known: Known, pair: tuple[int, int]) -> bool:
    """Whether data of this pair was compared at all."""
    return any("wrong" in known.first(pair, engine) for engine in ENGINES)
