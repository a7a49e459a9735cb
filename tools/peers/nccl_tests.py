"""all_reduce_perf of nccl-tests: how it is called, and the JSON that it writes (``-J``). As of its version 2.19.

The column *in place* is the one to compare with: there each operation works on what the one before left. Times are
those of the host's clock over ``-n`` operations (times ``-G`` launches of a graph of so many), the wait at the end
included; ours are the GPU's own. The file has the whole environment in it: only figures are taken out of it.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import LARGEST_BYTES, SMALL_BYTES, Reading, collective, collective_rate

TOKEN_BYTES = 12 << 10
"""One token's hidden state (6144 values of BF16): no power of two, so it takes a call of its own."""

OPERATIONS = {"graph": (20, 20), "eager": (200, 20)}
"""In a row for small and for large sizes. 20 is nccl-tests' own default, and ours in a graph. What its clock, the
host's, takes in addition, some 20 us for the first launch and the last wait, would be 1 us of each of 20 small ones."""

LAUNCHES = (50, 10)
"""Of a graph, for small and for large sizes: these 20 us are then 0.3 % of the 6 ms that 8 B take, and less of more."""

WARM_UP = 5
STEP = 2
MODES = ("graph", "eager")

A_PROCESS_EACH, ONE_PROCESS, A_THREAD_EACH = "a process a GPU", "one process", "a thread a GPU"
"""How GPUs are spread. The first is how engines have it, the second nccl-tests' default; ours can do both."""


class NotUsable(ValueError):
    """The output is no result; the text says why."""


@dataclass(frozen=True)
class Layout:
    """How GPUs are spread over processes. ``launcher``: what stands before the program."""

    name: str
    program: str
    launcher: tuple[str, ...] = ()
    threads: int = 1
    gpus: int = 1

    def command(self, least: int, most: int, mode: str, output: str) -> list[str]:
        """A call for sizes from ``least`` to ``most`` bytes, each twice the one before."""
        large = most > SMALL_BYTES
        graph = ["-G", str(LAUNCHES[large])] if mode == "graph" else []
        return [
            *self.launcher, self.program, "-t", str(self.threads), "-g", str(self.gpus), "-b", str(least), "-e",
            str(most), "-f", str(STEP), "-n", str(OPERATIONS[mode][large]), "-w", str(WARM_UP), *graph, "-J", output,
        ]  # fmt: skip


def nccl_of_torch() -> Path | None:
    """Where the wheel nvidia-nccl-* of this interpreter put its include and lib, if it is there."""
    found = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    places = list(found.submodule_search_locations or []) if found else []
    return Path(places[0]) if places else None


def layout(name: str, folder: str, gpus: int) -> Layout:
    """How to run on so many GPUs; one process a GPU needs the build with MPI."""
    if name == A_PROCESS_EACH:
        launcher = (f"{folder}/mpi/bin/mpiexec.hydra", "-launcher", "fork", "-n", str(gpus))
        return Layout(name, f"{folder}/all_reduce_perf_mpi", launcher)
    threads = name == A_THREAD_EACH
    return Layout(name, f"{folder}/all_reduce_perf", threads=gpus if threads else 1, gpus=1 if threads else gpus)


SPANS = ((8, SMALL_BYTES), (TOKEN_BYTES, TOKEN_BYTES), (2 * SMALL_BYTES, LARGEST_BYTES))
"""The calls that all sizes take: from and to, in bytes."""


def parse(text: str) -> dict[int, dict[str, Any]]:
    """The in-place result of each size in bytes. Raises NotUsable for an unfinished file, and for wrong data."""
    try:
        said = json.loads(text)
        found = {int(line["size"]): line["in_place"] for line in said["results"]}
    except (ValueError, KeyError, TypeError) as error:
        raise NotUsable(f"all_reduce_perf ended before its results: {text.strip()[-200:]!r}") from error
    wrong = [size for size, result in found.items() if result["nwrong"]]
    if wrong or not found:
        raise NotUsable(f"all_reduce_perf: wrong data at {wrong} B" if wrong else "all_reduce_perf: no results")
    return found


def about(text: str) -> dict[str, Any]:
    """The version of the library, for the record; nothing of the environment."""
    return {"nccl_version": json.loads(text).get("nccl_version")}


def readings(results: dict[int, dict[str, Any]], mode: str) -> dict[Reading, float]:
    """Under the names of ``figures``; the place of a collective is all GPUs."""
    found: dict[Reading, float] = {}
    for size, result in results.items():
        found[collective(mode, size), "all"] = float(result["time"])
        if size > SMALL_BYTES:
            found[collective_rate(mode, size), "all"] = float(result["bus_bw"])
    return found
