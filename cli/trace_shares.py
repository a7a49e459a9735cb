"""Where the time of the steps of one GPU goes: by class, idle, kernel by kernel."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from gpuhost_cli.trace_classes import TITLES, Classes
from gpuhost_cli.trace_data import ClassRow, Gap, GpuFigures, Idle, KernelRow, Launches, StepFigures
from gpuhost_cli.trace_model import CORRELATION_BITS, GRAPH_LAUNCH, KERNEL, LAUNCH, MEMCPY, SYNC, Trace
from gpuhost_cli.trace_steps import Steps, Window

GAPS_SHOWN = 5
KEYS = tuple(TITLES)
_NUMBER = {key: number for number, key in enumerate(KEYS)}


@dataclass
class Sums:
    """What is added up over all steps; nanoseconds."""

    wall: list[float] = field(default_factory=lambda: [0.0] * len(KEYS))
    busy: int = 0
    overlap: int = 0
    gpu: dict[int, list[int]] = field(default_factory=dict)
    """By name: count, sum, longest."""
    short: list[int] = field(default_factory=list)
    long_ns: int = 0
    long_count: int = 0
    gaps: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """By the names before and after, -1 for none: count, sum, longest."""


def figures(
    trace: Trace, gpu: int, order: Sequence[int], steps: Steps, classes: Classes, long_gap_us: float
) -> GpuFigures:
    """All figures of one GPU, per step."""
    kinds = _kinds(trace, order)
    of_name = {name: _NUMBER[classes.of(trace.names[name], kind)] for name, kind in kinds.items()}
    sums = Sums()
    running: list[tuple[int, int]] = []
    for number, window in enumerate(steps.windows):
        if not number or window.first != steps.windows[number - 1].last:
            running = []  # what runs on from a window that is left out is not known
        _sweep(trace, order, window, of_name, round(long_gap_us * 1000), running, sums)
    total = sum(window.wall for window in steps.windows)
    count, total = steps.count, max(total, 1)
    walls = [window.wall * len(steps.windows) / count / 1e6 for window in steps.windows]
    idle = total - sums.busy
    return GpuFigures(
        label=" ".join(part for part in (trace.rank, trace.gpus[gpu].label) if part),
        name=trace.gpu_names.get(gpu, ""),
        file=trace.source,
        steps=StepFigures(
            steps.method,
            steps.certainty,
            steps.detail,
            count,
            steps.left_out,
            total / count / 1e6,
            median(walls),
            min(walls),
            max(walls),
        ),
        busy_percent=100 * sums.busy / total,
        overlap_percent=100 * sums.overlap / total,
        classes=_class_rows(sums, of_name, total, count),
        idle=Idle(
            percent=100 * idle / total,
            short_percent=100 * sum(sums.short) / total,
            short_count=len(sums.short) / count,
            short_median_us=median(sums.short) / 1000 if sums.short else 0.0,
            long_percent=100 * sums.long_ns / total,
            long_count=sums.long_count / count,
            long_from_us=long_gap_us,
            places=_gap_rows(trace, sums, total, count),
        ),
        launches=_launches(trace, gpu, order, steps, total),
        kernels=_kernel_rows(trace, sums, of_name, count),
    )


def _kinds(trace: Trace, order: Sequence[int]) -> dict[int, int]:
    names, kinds = trace.ops.name, trace.ops.kind
    return {names[row]: kinds[row] for row in order}


def _gap_rows(trace: Trace, sums: Sums, total: int, count: int) -> tuple[Gap, ...]:
    rows = sorted(sums.gaps.items(), key=lambda item: -item[1][1])[:GAPS_SHOWN]
    names = [*trace.names, ""]  # the last one, for -1
    return tuple(
        Gap(length / count / 1e6, 100 * length / total, times / count, longest / 1000, names[before], names[after])
        for (before, after), (times, length, longest) in rows
    )


def _sweep(
    trace: Trace,
    order: Sequence[int],
    window: Window,
    of_name: dict[int, int],
    long_gap_ns: int,
    running: list[tuple[int, int]],
    sums: Sums,
) -> None:
    """One step from left to right. Where several run at once, each has an equal part of that time.

    ``running`` has what still runs from the step before, and then what runs on into the next.
    """
    ops, wall = trace.ops, sums.wall
    now, last_end, last_name = window.begin, -1, -1
    for position in range(window.first, window.last):
        row = order[position]
        begin, end, name = ops.begin[row], ops.end[row], ops.name[row]
        kernel = sums.gpu.get(name)
        if kernel is None:
            kernel = sums.gpu[name] = [0, 0, 0]
        kernel[0] += 1
        kernel[1] += end - begin
        kernel[2] = max(kernel[2], end - begin)
        now = _advance(running, now, begin, wall, sums)
        if now < begin:
            _gap(begin - now, last_name, name, long_gap_ns, sums)
            now = begin
        heapq.heappush(running, (end, of_name[name]))
        if end >= last_end:
            last_end, last_name = end, name
    now = _advance(running, now, window.end, wall, sums)
    if now < window.end:
        after = ops.name[order[window.last]] if window.last < len(order) else -1
        _gap(window.end - now, last_name, after, long_gap_ns, sums)


def _advance(running: list[tuple[int, int]], now: int, until: int, wall: list[float], sums: Sums) -> int:
    """Give the time up to ``until`` to what runs; returns how far something did."""
    while running and now < until:
        first = running[0][0]
        stop = min(first, until)
        if stop > now:
            part = stop - now
            sums.busy += part
            if len(running) == 1:
                wall[running[0][1]] += part
            else:
                sums.overlap += part
                for _, number in running:
                    wall[number] += part / len(running)
            now = stop
        while running and running[0][0] <= now:
            heapq.heappop(running)
    return now


def _gap(length: int, before: int, after: int, long_gap_ns: int, sums: Sums) -> None:
    if length < long_gap_ns:
        sums.short.append(length)
    else:
        sums.long_ns += length
        sums.long_count += 1
    place = sums.gaps.get((before, after))
    if place is None:
        place = sums.gaps[before, after] = [0, 0, 0]
    place[0] += 1
    place[1] += length
    place[2] = max(place[2], length)


def _class_rows(sums: Sums, of_name: dict[int, int], total: int, count: int) -> tuple[ClassRow, ...]:
    gpu, number_of = [0] * len(KEYS), [0] * len(KEYS)
    for name, (times, length, _) in sums.gpu.items():
        gpu[of_name[name]] += length
        number_of[of_name[name]] += times
    rows = [
        ClassRow(
            key,
            TITLES[key],
            sums.wall[n] / count / 1e6,
            100 * sums.wall[n] / total,
            gpu[n] / count / 1e6,
            max(0.0, (gpu[n] - sums.wall[n]) / count / 1e6),
            number_of[n] / count,
        )
        for n, key in enumerate(KEYS)
        if number_of[n]
    ]
    return tuple(sorted(rows, key=lambda row: -row.wall_ms))


def _kernel_rows(trace: Trace, sums: Sums, of_name: dict[int, int], count: int) -> tuple[KernelRow, ...]:
    everything = max(1, sum(length for _, length, _ in sums.gpu.values()))
    rows = sorted(sums.gpu.items(), key=lambda item: -item[1][1])
    return tuple(
        KernelRow(
            trace.names[name],
            KEYS[of_name[name]],
            times / count,
            length / times / 1000,
            longest / 1000,
            length / count / 1e6,
            100 * length / everything,
        )
        for name, (times, length, longest) in rows
    )


def _launches(trace: Trace, gpu: int, order: Sequence[int], steps: Steps, total: int) -> Launches:
    ops = trace.ops
    eager, graphs, kernels, in_graph, copies, size, copying, pageable = 0, 0, 0, 0, 0, 0, 0, 0
    for window in steps.windows:
        seen_graphs: set[int] = set()
        for position in range(window.first, window.last):
            row = order[position]
            if ops.graph[row]:
                seen_graphs.add(ops.correlation[row])
            if ops.kind[row] == KERNEL:
                kernels += 1
                in_graph += ops.graph[row] != 0
                eager += ops.graph[row] == 0
            elif ops.kind[row] == MEMCPY:
                name = trace.names[ops.name[row]]
                if "HtoD" in name or "DtoH" in name:
                    copies += 1
                    size += ops.size[row]
                    copying += ops.end[row] - ops.begin[row]
                    pageable += "ageable" in name
        graphs += len(seen_graphs)
    count, span = steps.count, (steps.windows[0].begin, steps.windows[-1].end)
    process = trace.process(order)
    gpus = sum(other.process == trace.gpus[gpu].process for other in trace.gpus)
    waits, launching = _in_calls(trace, span, total, process, gpus)
    return Launches(
        kernels / count,
        eager / count,
        graphs / count,
        100 * in_graph / kernels if kernels else 0.0,
        None if launching is None else 100 * launching / total,
        copies / count,
        size / count / 1000,
        100 * copying / total,
        pageable / count,
        None if waits is None else waits / count,
        _cpu_sampling(trace, span, process),
    )


def _in_calls(
    trace: Trace, span: tuple[int, int], total: int, process: int, gpus: int
) -> tuple[float | None, float | None]:
    """Calls of the process that wait, and nanoseconds in those that launch, in the windows that count."""
    calls = trace.calls
    waits, launching, known = 0, 0, False
    for row in range(len(calls)):
        if calls.correlation[row] >> CORRELATION_BITS != process:
            continue
        known = True
        if span[0] <= calls.begin[row] < span[1]:
            if calls.kind[row] == SYNC:
                waits += 1
            elif calls.kind[row] in (LAUNCH, GRAPH_LAUNCH):
                launching += calls.end[row] - calls.begin[row]
    if not known:
        return None, None
    # Windows that were left out lie between the others; a process's calls are shared by all its GPUs.
    part = min(1.0, total / max(1, span[1] - span[0])) / max(1, gpus)
    return waits * part, launching * part


def _cpu_sampling(trace: Trace, span: tuple[int, int], process: int) -> float | None:
    """Share of the time in outermost sampling operators that launched nothing, which therefore ran on the CPU."""
    sampling, calls = trace.sampling, trace.calls
    mine = [row for row in range(len(sampling)) if sampling.correlation[row] >> CORRELATION_BITS == process]
    if not mine:
        return None
    launches: dict[int, list[int]] = {}
    for row in range(len(calls)):
        if calls.kind[row] != SYNC:
            launches.setdefault(calls.thread[row], []).append(calls.begin[row])
    for times in launches.values():
        times.sort()
    busy, until = 0, -1
    for row in sorted(mine, key=sampling.begin.__getitem__):
        begin, end = sampling.begin[row], sampling.end[row]
        if begin < until or not span[0] <= begin < span[1]:
            continue
        until = end
        times = launches.get(sampling.thread[row], [])
        if not _any_between(times, begin, end):
            busy += end - begin
    return 100 * busy / max(1, span[1] - span[0])


def _any_between(times: Sequence[int], begin: int, end: int) -> bool:
    place = bisect_left(times, begin)
    return place < len(times) and times[place] <= end
