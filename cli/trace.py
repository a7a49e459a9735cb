"""``gpuhost trace``: where the milliseconds of a decode step go, from a profiler's file; and how to make that file."""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuhost.causes import USAGE
from gpuhost_cli import trace_nsys, trace_power, trace_rules, trace_server, trace_text, trace_torch
from gpuhost_cli.trace_classes import TITLES, Classes
from gpuhost_cli.trace_data import FileFigures, GpuFigures, Report, as_json
from gpuhost_cli.trace_marks import NONE_TOLD
from gpuhost_cli.trace_model import BrokenTrace, Trace, TraceError
from gpuhost_cli.trace_shares import figures
from gpuhost_cli.trace_steps import find, resolve_graphs

FRONT_END = ".async_llm."
"""In the name of what vLLM's API server writes of itself: HOST_PID.async_llm.TIME.pt.trace.json.gz."""
HELP = "say where the time of a decode step goes, from a trace of torch's profiler or of Nsight Systems"
EPILOG = """\
  gpuhost trace --server http://gpu1:30000 --engine sglang      make a trace
  gpuhost trace 1764520000-TP-0.trace.json.gz                   read it
  gpuhost trace *-TP-*.trace.json.gz                            all ranks: who waits for whom
  nsys export --type sqlite report.nsys-rep && gpuhost trace report.sqlite

Nothing of the trace leaves this machine. Exit status: 0 no known fault, 1 a known
fault is named, 2 a file or a server that can't be used.
"""


def add_parser(commands: Any) -> None:
    """The command line."""
    made = commands.add_parser(
        "trace", help=HELP, description=HELP, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    fill(made)


def fill(made: argparse.ArgumentParser) -> None:
    """All options."""
    made.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="Chrome JSON (also .gz), or an Nsight Systems SQLite export"
    )
    made.add_argument("--steps", type=_count, metavar="N", help="how many steps the trace has; default: found")
    made.add_argument("--step-name", metavar="REGEX", help="spans that are steps, where their name is one of your own")
    made.add_argument("--gpu", action="append", metavar="LABEL", help="details of this GPU, as 3, or 'rank 1 GPU 1'")
    made.add_argument("--top", type=_count, default=12, metavar="N", help="kernels to list (default: 12)")
    made.add_argument("--partial", action="store_true", help="report what a broken file has before it breaks")
    made.add_argument("--json", action="store_true", help="everything as JSON")
    made.add_argument(
        "--threshold",
        action="append",
        default=[],
        metavar="NAME=N",
        help="another limit for a rule: "
        + ", ".join(f"{name} {value:g}" for name, (value, _) in trace_rules.THRESHOLDS.items()),
    )
    made.add_argument(
        "--class",
        action="append",
        default=[],
        dest="classes",
        metavar="CLASS=REGEX",
        help=f"kernels that are of this class, before the table of its own; classes: {', '.join(TITLES)}",
    )
    made.add_argument("--power", metavar="W|FILE", help="watts a GPU drew meanwhile, or nvidia-smi's CSV of them")
    made.add_argument("--power-limit", type=float, metavar="W", help="the GPU's limit, where --power does not say it")
    trace_server.fill(made.add_argument_group("make a trace: start and stop the profiler of a running server"))


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Read or make a trace; what can't be used is said on stderr."""
    try:
        if options.server:
            if options.files:
                raise TraceError("--server makes a trace, FILE reads one: give one of them")
            return trace_server.run(options)
        if not options.files:
            raise TraceError("FILE is missing; --server URL --engine sglang|vllm makes one")
        report = analyse(options)
        chosen = _chosen(report.gpus, options.gpu)
    except TraceError as error:
        print(f"gpuhost: {error}", file=sys.stderr)
        return USAGE
    print(as_json(report) if options.json else trace_text.render(report, chosen), end="\n" if options.json else "")
    return report.exit_status


def analyse(options: argparse.Namespace) -> Report:
    """All files. Raises TraceError."""
    limit, classes = trace_rules.limits(options.threshold), Classes(options.classes)
    name = _pattern(options.step_name)
    power = trace_power.read(options.power, options.power_limit) if options.power else None
    files, gpus, notes = list[FileFigures](), list[GpuFigures](), list[str]()
    limits_w: dict[str, float] = {}
    idle: list[str] = []
    for path in options.files:
        trace = _read(path, name or NONE_TOLD, options.partial)
        if not len(trace.ops):
            idle.append(_without_gpu(path, trace))
            continue
        found = _figures(trace, options.steps, name, classes, limit["long_gap_us"])
        for index, gpu in found:
            known = power.of(index) if power else None
            gpus.append(replace(gpu, power_w=known[0]) if known else gpu)
            if known:
                limits_w[gpu.label] = known[1]
        files.append(_file(trace))
        notes += [f"{path}: {note}" for note in trace.notes]
    if not gpus:
        raise TraceError("\n  ".join(idle))
    notes += [f"{line} (left out)" for line in idle]
    notes += _twice(gpus)
    findings = trace_rules.judge(gpus, limit, limits_w)
    gpus = [replace(gpu, kernels=gpu.kernels[: options.top]) for gpu in gpus]
    assumptions = (power.said,) if power else ()
    return Report(tuple(files), tuple(gpus), findings, limit, assumptions, tuple(notes))


def _read(path: Path, marks: re.Pattern[str], partial: bool) -> Trace:
    try:
        database = trace_nsys.is_database(path)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}: give a file that can be read") from error
    if path.suffix in (".nsys-rep", ".qdrep") and not database:
        raise TraceError(
            f"{path}: a report of Nsight Systems itself: nsys export --type sqlite {path} makes one to read"
        )
    try:
        trace = (trace_nsys if database else trace_torch).read(path, marks, partial=partial)
    except BrokenTrace as error:
        raise TraceError(f"{error}; --partial reports what comes before") from error
    return trace


def _without_gpu(path: Path, trace: Trace) -> str:
    """Why a trace has no work of a GPU. vLLM writes one more for its front end, beside those of its ranks."""
    if FRONT_END in path.name:
        return f"{path}: the trace of vLLM's front end, which has no work on a GPU, other than those of the ranks"
    broken = f" before it breaks ({trace.broken})" if trace.broken else ""
    return (
        f"{path}: no work of a GPU in its {trace.events:,} events{broken}: profile with the activity GPU (CUDA), "
        "and while requests run; a server that runs on the CPU has none"
    )


def _twice(gpus: Sequence[GpuFigures]) -> list[str]:
    """vLLM's folder keeps the files of all profiles: two of one rank are no two ranks."""
    labels = Counter(gpu.label for gpu in gpus)
    return [
        f"{label} is in {count} files: give those of one profile, since all GPUs here are taken for ranks that run "
        "together"
        for label, count in labels.items()
        if count > 1
    ]


def _figures(
    trace: Trace, told: int | None, name: re.Pattern[str] | None, classes: Classes, long_gap_us: float
) -> list[tuple[int, GpuFigures]]:
    resolve_graphs(trace)
    found = []
    for number, gpu in sorted(enumerate(trace.gpus), key=lambda item: (item[1].process, item[1].index)):
        order = trace.order(number)
        if order:
            steps = find(trace, order, number, told, name)
            found.append((gpu.index, figures(trace, number, order, steps, classes, long_gap_us)))
    return found


def _file(trace: Trace) -> FileFigures:
    return FileFigures(
        trace.source,
        trace.format,
        trace.rank,
        trace.size_bytes / 1e6,
        trace.events,
        len(trace.ops),
        trace.seconds,
        trace.broken,
    )


def _chosen(gpus: Sequence[GpuFigures], told: Sequence[str] | None) -> list[GpuFigures]:
    """Those that --gpu names, else the slowest one."""
    if not told:
        return [max(gpus, key=lambda gpu: gpu.steps.median_ms)]
    found = [gpu for gpu in gpus if any(gpu.label == item or gpu.label.endswith(f"GPU {item}") for item in told)]
    if not found:
        raise TraceError(f"--gpu {' '.join(told)}: the trace has {', '.join(gpu.label for gpu in gpus)}")
    return found


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(text) if text else None
    except re.error as error:
        raise TraceError(f"--step-name {text}: no regular expression: {error}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """The command alone, where nothing else of gpuhost is installed: python -m gpuhost_cli.trace FILE."""
    made = argparse.ArgumentParser(
        prog="gpuhost trace", description=HELP, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    fill(made)
    return run(made.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
