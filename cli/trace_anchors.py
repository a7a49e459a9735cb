"""Steps by what comes again and again: the launches of one CUDA graph, or a kernel that comes once a round."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from gpuhost_cli.trace_model import KERNEL, Trace
from gpuhost_cli.trace_names import short

Found = tuple[str, str, str, list["Cut"]]

MOST_OF_IT = 0.5
"""Share of the GPU's busy time that graphs must have to say where a step begins."""
REGULAR = 0.8
"""Share of rounds with exactly the same kernels that makes a kernel the mark of a round."""
COVERED = 0.5
"""Share of all kernels that must lie between the first and the last of these marks."""
FEWEST = 3
"""Times that a kernel must come to show a rhythm."""
LONGEST_HUNT = 400
"""Kernels of which it is tried: those that come once a step are among the rare ones, and those are tried first."""

ONCE_A_STEP = re.compile(r"arg_?max|sampling|topk.*topp|multinomial|embedding|vectorized_gather", re.IGNORECASE)
"""What chooses the next token, or looks its vector up."""


class Cut(NamedTuple):
    """A step begins at this position of the GPU's order; ``counts`` is False for one that is not to be counted."""

    position: int
    counts: bool = True


class _Run:
    """One launch of a graph."""

    def __init__(self, position: int, graph: int) -> None:
        self.position, self.graph = position, graph
        self.kernels, self.busy, self.names = 0, 0, 0


def graph_cuts(trace: Trace, order: Sequence[int]) -> Found | None:
    """By the graph that has most of the GPU's time: each of its launches is a step."""
    ops = trace.ops
    weights = [hash((number, "graph")) for number in range(len(trace.names))]
    runs: dict[int, _Run] = {}
    busy = 0
    for position, row in enumerate(order):
        busy += ops.end[row] - ops.begin[row]
        if ops.graph[row]:
            run = runs.get(ops.correlation[row])
            if run is None:
                run = runs[ops.correlation[row]] = _Run(position, ops.graph[row])
            run.kernels += 1
            run.busy += ops.end[row] - ops.begin[row]
            run.names += weights[ops.name[row]]
    alike: dict[object, list[_Run]] = defaultdict(list)
    for run in runs.values():
        # Without a graph's number its kernels stand for it; layers that are graphs of their own then look alike.
        alike[run.graph if run.graph > 0 else (run.kernels, run.names)].append(run)
    if sum(run.busy for run in runs.values()) < MOST_OF_IT * busy or not alike:
        return None
    numbered = all(run.graph > 0 for run in runs.values())
    chosen = max(alike.values(), key=lambda group: sum(run.busy for run in group))
    share = sum(run.busy for run in chosen) / busy
    if len(chosen) < 2 or (not numbered and share < MOST_OF_IT):
        return None
    cuts = [Cut(run.position) for run in sorted(chosen, key=lambda run: run.position)]
    whose = f"CUDA graph {chosen[0].graph}" if chosen[0].graph > 0 else "a CUDA graph"
    detail = f"by {len(chosen)} launches of {whose}, which has {100 * share:.0f} % of the GPU's busy time"
    return "graph", "certain" if numbered and share >= REGULAR else "likely", detail, cuts


def sequence_cuts(trace: Trace, order: Sequence[int]) -> Found | None:
    """By a kernel that comes once a round, with the same kernels between its occurrences."""
    ops = trace.ops
    places: dict[int, list[int]] = defaultdict(list)
    for position, row in enumerate(order):
        if ops.kind[row] == KERNEL:
            places[ops.name[row]].append(position)
    weights = [hash((number, "round")) for number in range(len(trace.names))]
    totals, total = [0], 0
    for row in order:
        total += weights[ops.name[row]]
        totals.append(total)

    def rank(name: int) -> tuple[bool, int]:
        return not ONCE_A_STEP.search(trace.names[name]), len(places[name])

    tried = [name for name in places if len(places[name]) >= FEWEST]
    for name in sorted(tried, key=rank)[:LONGEST_HUNT]:
        found = places[name]
        rounds = Counter(totals[after] - totals[before] for before, after in pairwise(found))
        share = rounds.most_common(1)[0][1] / (len(found) - 1)
        if share >= REGULAR and found[-1] - found[0] >= COVERED * len(order) - (found[1] - found[0]):
            token = not rank(name)[0]
            what = "a kernel that chooses or looks up a token" if token else "the rarest kernel with a rhythm"
            detail = f"by {what}: {short(trace.names[name], 60)}, {len(found)} times"
            return "sequence", "likely" if token else "a guess", detail, [Cut(position) for position in found]
    return None
