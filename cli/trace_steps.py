"""Where one step of a trace ends and the next begins, on one GPU, and how certain that is.

A step's window goes from its first work on the GPU to the first work of the next step, so the time between two steps
is a part of it. The ways, the surest first: told (--steps), a span's name, the launches of one CUDA graph, a kernel
that comes once a round. The last window is left out where there are others: what follows its work is not in the trace.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from gpuhost_cli.trace_anchors import Cut, graph_cuts, sequence_cuts
from gpuhost_cli.trace_marks import DECODE, OTHER
from gpuhost_cli.trace_model import GRAPH_LAUNCH, KERNEL, SYNC, Mark, Trace

LIKE_EACH_OTHER = 0.6
"""Share of windows with exactly the same kernels from which on the others are taken for something else."""
SIMILAR = 0.2
"""Without that, a window counts with a number of kernels this near to the median: splits vary with the context."""
FAR_OUT = 10
"""Times the median step: a window as long as that holds a pause between requests, not a step."""
ENOUGH_LAUNCHES = 0.5
"""Share of the work whose launch is in the trace, from which on spans on the CPU can be carried over to the GPU."""


@dataclass(frozen=True)
class Window:
    """One step: positions in the GPU's order, the last one excluded, and nanoseconds."""

    first: int
    last: int
    begin: int
    end: int

    @property
    def wall(self) -> int:
        """Nanoseconds."""
        return self.end - self.begin


@dataclass(frozen=True)
class Steps:
    """The steps of one GPU, and how they were found."""

    method: str
    certainty: str
    """certain, likely, a guess, or none: then the figures are of the whole trace."""
    detail: str
    windows: tuple[Window, ...]
    count: int
    left_out: tuple[str, ...] = ()


def resolve_graphs(trace: Trace) -> None:
    """Mark what a graph has launched, where the trace does not say so itself: by the call, else by the correlation."""
    ops = trace.ops
    if any(ops.graph):
        return
    calls = trace.calls
    graphs = {calls.correlation[row] for row in range(len(calls)) if calls.kind[row] == GRAPH_LAUNCH}
    if not len(calls):  # a trace of the GPU alone: only a graph gives several kernels one correlation
        kernels = Counter(
            ops.correlation[row] for row in range(len(ops)) if ops.kind[row] == KERNEL and ops.correlation[row] >= 0
        )
        graphs = {correlation for correlation, number in kernels.items() if number > 1}
    for row in range(len(ops) if graphs else 0):
        if ops.correlation[row] in graphs:
            ops.graph[row] = -1


def find(trace: Trace, order: Sequence[int], gpu: int, told: int | None, name: re.Pattern[str] | None) -> Steps:
    """The steps of one GPU whose rows are ``order``, which is not empty."""
    ops = trace.ops
    whole = Window(0, len(order), ops.begin[order[0]], max(ops.end[row] for row in order))
    if told is not None:
        return Steps("told", "certain", f"the trace's whole time is divided by --steps {told}", (whole,), told)
    ways = [_by_marks(trace, order, gpu, name), graph_cuts(trace, order), sequence_cuts(trace, order)]
    tried = (_windows(trace, order, whole, *way) for way in ways if way is not None)
    found = [steps for steps in tried if steps is not None]
    # prof.step() is called once for many tokens by some: then the graph is nearer to a step than the span.
    two = len(found) > 1 and (found[0].method, found[1].method) == ("profiler", "graph")
    if two and found[1].certainty != "a guess" and found[1].count >= 2 * found[0].count:
        return found[1]
    if found:
        return found[0]
    return Steps("none", "none", "no steps were found: --steps N says how many there are", (whole,), 1)


def _by_marks(
    trace: Trace, order: Sequence[int], gpu: int, told: re.Pattern[str] | None
) -> tuple[str, str, str, list[Cut]] | None:
    """Cuts by the names of spans."""
    process = trace.process(order)
    mine = [mark for mark in trace.marks if mark.process == process]
    for pattern in (told,) if told else DECODE:
        chosen = [mark for mark in mine if pattern.search(mark.name)]
        if len(chosen) < 2:
            continue
        others = [] if told else [mark for mark in mine if any(item.search(mark.name) for item in OTHER)]
        cuts = _cuts_of_marks(trace, order, gpu, chosen, others)
        if sum(cut.counts for cut in cuts) >= 2:
            example = chosen[0].name if len(chosen[0].name) <= 40 else f"{chosen[0].name[:39]}…"
            method = "profiler" if pattern is DECODE[-1] else "span"
            return method, "certain", f"by the spans {example!r} and alike", cuts
    return None


def _cuts_of_marks(
    trace: Trace, order: Sequence[int], gpu: int, chosen: Sequence[Mark], others: Sequence[Mark]
) -> list[Cut]:
    """A span on the CPU begins on the GPU with the first work that was launched in it, whenever that ran."""
    ops = trace.ops
    cpu = sorted([(m.begin, m.end, True) for m in chosen if m.gpu is None] + [
        (m.begin, m.end, False) for m in others if m.gpu is None
    ])  # fmt: skip
    if cpu:
        launches = _launches(trace)
        begins, seen, cuts, known = [item[0] for item in cpu], set[int](), list[Cut](), 0
        for position, row in enumerate(order):
            launched = launches.get(ops.correlation[row])
            if launched is None:
                continue
            known += 1
            number = bisect_right(begins, launched) - 1
            if number >= 0 and launched <= cpu[number][1] and number not in seen:
                seen.add(number)
                cuts.append(Cut(position, cpu[number][2]))
        if known >= ENOUGH_LAUNCHES * len(order):
            return cuts
    starts = [ops.begin[row] for row in order]
    spans = sorted(
        [(m.begin, m.end, True) for m in chosen if m.gpu == gpu]
        + [(m.begin, m.end, False) for m in others if m.gpu == gpu]
    )
    cuts, until = [], -1
    for begin, end, counts in spans:  # one span may be there once for each stream
        if begin >= until:
            position = bisect_left(starts, begin)
            if position < len(order):
                cuts.append(Cut(position, counts))
        until = max(until, end)
    return cuts


def _launches(trace: Trace) -> dict[int, int]:
    calls = trace.calls
    return {
        calls.correlation[row]: calls.begin[row]
        for row in range(len(calls))
        if calls.kind[row] != SYNC and calls.correlation[row]
    }


def _windows(
    trace: Trace, order: Sequence[int], whole: Window, method: str, certainty: str, detail: str, cuts: list[Cut]
) -> Steps | None:
    """The windows that count: those that look like most of the others."""
    ops = trace.ops
    places = [*(cut.position for cut in cuts), len(order)]
    ends = [*(ops.begin[order[cut.position]] for cut in cuts[1:]), whole.end]
    every = [
        Window(first, last, ops.begin[order[first]], end)
        for first, last, end in zip(places, places[1:], ends, strict=False)
        if last > first
    ]
    counting = [window for window, cut in zip(every, cuts, strict=False) if cut.counts]
    if len(counting) < 2:
        return None
    left_out = [f"{len(every) - len(counting)} that are no decode steps"] if len(every) > len(counting) else []
    last_is_open = counting[-1].last == len(order)
    alike, share = _alike(trace, order, counting)
    if len(alike) < len(counting):
        left_out.append(f"{len(counting) - len(alike)} with other kernels (a prefill, or another batch size)")
    typical = median(window.wall for window in alike)
    kept = [window for window in alike if window.wall <= FAR_OUT * typical]
    if len(kept) < len(alike):
        left_out.append(
            f"{len(alike) - len(kept)} that took more than {FAR_OUT} times the median (a pause, or a prefill)"
        )
    if last_is_open and len(kept) > 2 and kept[-1].last == len(order):
        kept = kept[:-1]
        left_out.append("the last one, whose end is not in the trace")
    if certainty != "certain" and share < LIKE_EACH_OTHER:
        certainty = "a guess"
    said = f"{detail}; {100 * share:.0f} % of them have exactly the same kernels"
    return Steps(method, certainty, said, tuple(kept), len(kept), tuple(left_out))


def _alike(trace: Trace, order: Sequence[int], windows: Sequence[Window]) -> tuple[list[Window], float]:
    """Those with the same kernels as most, and the share of the commonest set of kernels."""
    names = trace.ops.name
    weights = [hash((number, "step")) for number in range(len(trace.names))]
    found: dict[int, list[Window]] = defaultdict(list)
    for window in windows:
        found[sum(weights[names[order[at]]] for at in range(window.first, window.last))].append(window)
    commonest = max(found.values(), key=len)
    share = len(commonest) / len(windows)
    if share >= LIKE_EACH_OTHER:
        return commonest, share
    middle = median(window.last - window.first for window in windows)
    near = [window for window in windows if abs(window.last - window.first - middle) <= SIMILAR * middle]
    return near or list(windows), share
