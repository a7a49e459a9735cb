"""nvbandwidth: how it is called, and what it says in JSON (``-j``). Formats are those of its version 0.8.

Three things about its output that a reader of the labels alone would get wrong:

* In a *read* test, data go from the column's GPU to the row's, in a *write* test from the row's to the column's,
  whatever the arrow in the description says.
* A bidirectional test gives three matrices, one below the other in the same ``bandwidth_matrix``: the first direction,
  the second one, and the sum. In the first, data go from the column's GPU to the row's, in the second the other way.
* Values are strings, and the diagonal is "N/A".
"""

from __future__ import annotations

import json
from typing import Any

from figures import Reading

LOCAL = "device_local_copy"
LATENCY = "device_to_device_latency_sm"
ONE_WAY = {
    "device_to_device_memcpy_write_ce": "CE write (GB/s)",
    "device_to_device_memcpy_read_ce": "CE read (GB/s)",
    "device_to_device_memcpy_write_sm": "SM write (GB/s)",
    "device_to_device_memcpy_read_sm": "SM read (GB/s)",
}
BOTH_WAYS = {
    "device_to_device_bidirectional_memcpy_write_ce": "CE write, both ways at once (GB/s)",
    "device_to_device_bidirectional_memcpy_read_ce": "CE read, both ways at once (GB/s)",
    "device_to_device_bidirectional_memcpy_write_sm": "SM write, both ways at once (GB/s)",
    "device_to_device_bidirectional_memcpy_read_sm": "SM read, both ways at once (GB/s)",
}
P2P_TESTS = (*ONE_WAY, *list(BOTH_WAYS)[:2], LATENCY)
"""The set whose seconds are compared: copy engine one way and both ways, SM one way, latency."""

Matrix = list[list["float | None"]]


class NotUsable(ValueError):
    """The output is no result; the text says why."""


def command(program: str, tests: tuple[str, ...]) -> list[str]:
    """The call for these tests, all else as nvbandwidth has it by default (512 MiB, three samples, data compared)."""
    return [program, "-j", "-t", *tests]


def _value(text: Any) -> float | None:
    """One cell. Raises NotUsable for what is neither a number nor N/A."""
    if text == "N/A":
        return None
    try:
        return float(text)
    except (TypeError, ValueError) as error:
        raise NotUsable(f"nvbandwidth: {text!r} in a matrix is no number") from error


def parse(text: str) -> dict[str, Matrix]:
    """The matrix of each test that passed, three of them on end for bidirectional ones.

    Raises NotUsable where a test failed or was left out, and where this is not nvbandwidth's JSON.
    """
    try:
        # Behind an error the document is printed a second time.
        said = json.JSONDecoder().raw_decode(text.lstrip())[0]["nvbandwidth"]
    except (ValueError, KeyError, TypeError) as error:
        raise NotUsable(f"nvbandwidth wrote no JSON of its own: {text.strip()[-300:]!r}") from error
    if "error" in said:
        raise NotUsable(f"nvbandwidth: {said['error']}")
    found = {}
    for test in said.get("testcases", []):
        if test.get("status") != "Passed":
            raise NotUsable(f"nvbandwidth: {test.get('name')}: {test.get('status')} {test.get('error', '')}".rstrip())
        found[str(test["name"])] = [[_value(cell) for cell in line] for line in test["bandwidth_matrix"]]
    return found


def about(text: str) -> dict[str, Any]:
    """Version and driver, for the record; no host name."""
    said = json.JSONDecoder().raw_decode(text.lstrip())[0]["nvbandwidth"]
    return {key: said.get(key) for key in ("version", "git_version", "Driver Version", "CUDA Runtime Version")}


def _pairs(figure: str, matrix: Matrix, from_row: bool) -> dict[Reading, float]:
    return {
        (figure, f"{row}-{column}" if from_row else f"{column}-{row}"): value
        for row, line in enumerate(matrix)
        for column, value in enumerate(line)
        if value is not None
    }


def _both(figure: str, matrix: Matrix) -> dict[Reading, float]:
    """Each way by itself. A direction comes twice (0-1 second, 1-0 first): the mean of the two."""
    count = len(matrix[0])
    if len(matrix) != 3 * count:
        raise NotUsable(f"nvbandwidth: {figure}: {len(matrix)} lines for {count} GPUs, and not three times as many")
    first = _pairs(figure, matrix[:count], from_row=False)
    second = _pairs(figure, matrix[count : 2 * count], from_row=True)
    return {reading: (first[reading] + second[reading]) / 2 for reading in first}


def readings(matrices: dict[str, Matrix]) -> dict[Reading, float]:
    """What these tests give, under the names of ``figures``. Latencies are in ns there, in us here."""
    found: dict[Reading, float] = {}
    for test, matrix in matrices.items():
        if test in ONE_WAY:
            found.update(_pairs(ONE_WAY[test], matrix, from_row="write" in test))
        elif test in BOTH_WAYS:
            found.update(_both(BOTH_WAYS[test], matrix))
        elif test == LATENCY:
            # The row's GPU reads the column's memory: the data come from the column.
            pairs = _pairs("latency of one read (us)", matrix, from_row=False)
            found.update({reading: value / 1000 for reading, value in pairs.items()})
        elif test == LOCAL:
            values = [value for value in matrix[0] if value is not None]
            found.update({("local copy, one way (GB/s)", str(gpu)): value for gpu, value in enumerate(values)})
    return found
