"""Known faults of decode steps: thresholds as data, and the rules that name them.

Every number here can be set with --threshold. None of them is a law: each is the point from which on the fault has
cost more than its repair in the cases that we know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from gpuhost_cli.trace_classes import QUANTISED_GEMMS
from gpuhost_cli.trace_data import Finding, GpuFigures, KernelRow
from gpuhost_cli.trace_model import TraceError
from gpuhost_cli.trace_names import short

THRESHOLDS: dict[str, tuple[float, str]] = {
    "cast_percent": (20, "cast and copy kernels, % of the step: a sound step has below 5; the known fault had 69"),
    "gap_percent": (30, "idle time, % of the step: with a graph it is below 15, even under the profiler"),
    "host_gap_percent": (20, "idle time in long gaps, % of the step: engines that prepare the next step ahead have 5"),
    "long_gap_us": (100, "a gap from which on it is the host's work, not one launch (an eager one takes 5 to 50 us)"),
    "eager_kernels": (200, "kernels per step that are launched one by one: at 5 us each they are 1 ms of CPU time"),
    "graph_percent": (50, "kernels that come from a graph, in %: below it a step counts as eager"),
    "collective_percent": (30, "all-reduces and other collectives, % of the step"),
    "straggler_percent": (15, "difference of the collectives' share between two GPUs, in points"),
    "quantise_percent": (10, "quantisation kernels, % of the step"),
    "quantise_ratio": (0.8, "quantisation kernels per quantised GEMM: from here on each GEMM has one beside it"),
    "host_copies": (24, "copies between host and GPU per step: engines need about ten for tokens and positions"),
    "host_copy_percent": (5, "copies between host and GPU, % of the step"),
    "cpu_sampling_percent": (5, "operators that choose a token on the CPU, % of the step"),
    "spin_busy_percent": (80, "busy GPU, in %, from which on idle power is a contradiction"),
    "spin_power_percent": (35, "power, % of the limit, up to which a GPU counts as idle"),
}
"""Name, default, and what it is a limit of."""

SLOW_LAUNCHES = 0.05
"""Long gaps per kernel, from which on they lie between the launches of a step, not between steps."""
LAUNCH_US = 5.0
"""A launch on the CPU, where the trace has no calls: cudaLaunchKernel takes 3 to 10 us in the traces that we know."""

Limits = Mapping[str, float]


def limits(told: Sequence[str]) -> dict[str, float]:
    """The thresholds, with those of --threshold NAME=NUMBER. Raises TraceError."""
    found = {name: float(value) for name, (value, _) in THRESHOLDS.items()}
    for item in told:
        name, _, text = item.partition("=")
        if name not in THRESHOLDS:
            raise TraceError(f"--threshold {item}: no such threshold: {', '.join(THRESHOLDS)}")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise TraceError(f"--threshold {item}: expected NAME=NUMBER, as cast_percent=25")
        found[name] = value
    return found


def judge(gpus: Sequence[GpuFigures], limit: Limits, power_limit_w: Mapping[str, float]) -> tuple[Finding, ...]:
    """All findings, the costliest first. ``power_limit_w`` is by the GPU's label, where power is known."""
    found = [item for gpu in gpus for rule in RULES for item in rule(gpu, limit)]
    found += [
        item for gpu in gpus if gpu.label in power_limit_w for item in _spin(gpu, limit, power_limit_w[gpu.label])
    ]
    found += _straggler(gpus, limit)
    return tuple(sorted(found, key=lambda item: -item.percent))


def _finding(
    gpu: GpuFigures, code: str, limit: Limits, name: str, percent: float, what: str, where: Sequence[str]
) -> Finding:
    return Finding(code, gpu.label, what, percent, limit[name], name, tuple(where))


def _kernels(gpu: GpuFigures, *keys: str) -> list[str]:
    rows: list[KernelRow] = [row for row in gpu.kernels if row.key in keys]
    return [_row(row) for row in rows[:3]]


def _row(row: KernelRow) -> str:
    return f"{row.count:.4g} x {row.mean_us:.1f} us: {short(row.name, 64)}"


def _cast(gpu: GpuFigures, limit: Limits) -> Iterator[Finding]:
    share = gpu.wall("cast")
    if share > limit["cast_percent"]:
        row = next(row for row in gpu.classes if row.key == "cast")
        what = f"{row.wall_ms:.3f} ms of each step cast or copy: {row.count:g} kernels"
        yield _finding(gpu, "trace.cast", limit, "cast_percent", share, what, _kernels(gpu, "cast"))


def _gaps(gpu: GpuFigures, limit: Limits) -> Iterator[Finding]:
    idle, launches = gpu.idle, gpu.launches
    eager = launches.from_graph_percent < limit["graph_percent"]
    waiting, launching = idle.long_percent, idle.short_percent
    if eager and idle.long_count > SLOW_LAUNCHES * launches.kernels:  # a slow CPU's launches, not the step's end
        waiting, launching = 0.0, idle.percent
    places = [
        f"{gap.percent:.1f} % in {gap.count:.3g} gaps after {_end(gap.after)}, before {_end(gap.before)}"
        for gap in idle.places[:2]
    ]
    too_idle = idle.percent > limit["gap_percent"]
    if waiting > limit["host_gap_percent"] or (too_idle and waiting > launching):
        what = f"the GPU waits {idle.long_count:.1f} times a step for {idle.long_from_us:g} us and more"
        yield _finding(gpu, "trace.host_gap", limit, "host_gap_percent", waiting, what, places)
    if launching > limit["gap_percent"] or (too_idle and launching >= waiting):
        what = (
            f"{idle.short_count + idle.long_count:.0f} gaps a step, median {idle.short_median_us:.1f} us, between "
            f"{launches.kernels:.0f} kernels, {launches.from_graph_percent:.0f} % of them from a graph"
        )
        code = "trace.dispatch_bound" if eager else "trace.graph_gaps"
        yield _finding(gpu, code, limit, "gap_percent", launching, what, places)


def _eager(gpu: GpuFigures, limit: Limits) -> Iterator[Finding]:
    launches = gpu.launches
    if launches.eager > limit["eager_kernels"] and launches.from_graph_percent < limit["graph_percent"]:
        share, said = launches.launch_percent, "so long is the CPU in calls that launch"
        if share is None:
            share, said = launches.eager * LAUNCH_US / gpu.steps.mean_ms / 10, f"at {LAUNCH_US:g} us each, assumed"
        what = f"{launches.eager:.0f} kernels a step are launched one by one, {launches.graphs:.1f} graphs; {said}"
        yield _finding(gpu, "trace.no_graph", limit, "eager_kernels", share, what, ())


def _collective(gpu: GpuFigures, limit: Limits) -> Iterator[Finding]:
    share = gpu.wall("collective")
    if share > limit["collective_percent"]:
        row = next(row for row in gpu.classes if row.key == "collective")
        each_us = 1000 * row.gpu_ms / row.count
        what = f"{row.wall_ms:.3f} ms of each step in {row.count:g} collectives, {each_us:.1f} us each"
        yield _finding(gpu, "trace.collective", limit, "collective_percent", share, what, _kernels(gpu, "collective"))


def _quantise(gpu: GpuFigures, limit: Limits) -> Iterator[Finding]:
    share, rows = gpu.wall("quantise"), {row.key: row for row in gpu.classes}
    gemms = sum(rows[key].count for key in QUANTISED_GEMMS if key in rows)
    if share > limit["quantise_percent"] and gemms and rows["quantise"].count / gemms >= limit["quantise_ratio"]:
        what = f"{rows['quantise'].count:g} quantisation kernels a step beside {gemms:g} quantised GEMMs"
        yield _finding(gpu, "trace.quantise", limit, "quantise_percent", share, what, _kernels(gpu, "quantise"))


def _host_copies(gpu: GpuFigures, limit: Limits) -> Iterator[Finding]:
    launches, share = gpu.launches, gpu.launches.host_copy_percent
    rows = [row for row in gpu.kernels if row.key == "memcpy" and ("HtoD" in row.name or "DtoH" in row.name)]
    costly = share > limit["host_copy_percent"]
    if gpu.steps.method != "none" and (launches.host_copies > limit["host_copies"] or costly):
        what = (
            f"{launches.host_copies:.1f} copies between host and GPU a step, {launches.host_copy_kb:.1f} kB, "
            f"{launches.pageable_copies:.1f} of them from or to pageable memory, which waits for the GPU"
        )
        name = "host_copy_percent" if costly else "host_copies"
        yield _finding(gpu, "trace.host_copies", limit, name, share, what, [_row(row) for row in rows[:3]])


def _cpu_sampling(gpu: GpuFigures, limit: Limits) -> Iterator[Finding]:
    share = gpu.launches.cpu_sampling_percent
    if share is not None and share > limit["cpu_sampling_percent"]:
        what = "tokens are chosen by operators that launch nothing on the GPU"
        yield _finding(gpu, "trace.cpu_sampling", limit, "cpu_sampling_percent", share, what, ())


RULES: tuple[Callable[[GpuFigures, Limits], Iterator[Finding]], ...] = (
    _cast,
    _gaps,
    _eager,
    _collective,
    _quantise,
    _host_copies,
    _cpu_sampling,
)
"""Rules that look at one GPU."""


def _spin(gpu: GpuFigures, limit: Limits, power_limit_w: float) -> Iterator[Finding]:
    """A GPU that is busy by the clock and idle by its power runs a kernel that waits: a collective's loop."""
    share, power = gpu.wall("collective"), gpu.power_w or 0.0
    idle_power = 100 * power / power_limit_w <= limit["spin_power_percent"]
    if gpu.busy_percent >= limit["spin_busy_percent"] and idle_power and share > limit["collective_percent"]:
        what = f"busy {gpu.busy_percent:.0f} % of the time at {power:.0f} W of {power_limit_w:.0f} W"
        yield _finding(gpu, "trace.spinning", limit, "spin_power_percent", share, what, _kernels(gpu, "collective"))


def _straggler(gpus: Sequence[GpuFigures], limit: Limits) -> Iterator[Finding]:
    """Collectives end together: who comes last waits least, and the others' collectives are long because of it."""
    shares = sorted((gpu.wall("collective"), number) for number, gpu in enumerate(gpus) if gpu.wall("collective"))
    if len(shares) > 1 and shares[-1][0] - shares[0][0] > limit["straggler_percent"]:
        last, first = gpus[shares[0][1]], gpus[shares[-1][1]]
        what = (
            f"{shares[0][0]:.0f} % of its step are collectives, of {first.label}'s {shares[-1][0]:.0f} %: "
            "the others wait for it"
        )
        yield _finding(last, "trace.straggler", limit, "straggler_percent", shares[-1][0] - shares[0][0], what, ())


def _end(name: str) -> str:
    return short(name, 30) if name else "the end"
