"""The words of ``gpuhost trace``: at most 100 columns, what to do first."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from gpuhost_cli.trace_data import Finding, GpuFigures, Report
from gpuhost_cli.trace_names import short

WIDTH = 100


def render(report: Report, chosen: Sequence[GpuFigures]) -> str:
    """The whole text; details of the chosen GPUs only."""
    lines = [*_files(report), ""]
    if len(report.gpus) > 1:
        lines += [*_summary(report.gpus), ""]
    for gpu in chosen:
        lines += [*_gpu(gpu), ""]
    if len(chosen) < len(report.gpus):
        lines += [f"Details of {chosen[0].label} only, the slowest one: --gpu shows another, --json all.", ""]
    lines += _findings(report.findings)
    rest = [*(f"assumed: {item}" for item in report.assumptions), *(f"note: {item}" for item in report.notes)]
    lines += ["", *(row for item in rest for row in _wrap(item, ""))] if rest else []
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _wrap(text: str, indent: str, further: str = "  ") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + further, break_on_hyphens=False)


def _files(report: Report) -> Iterator[str]:
    for item in report.files:
        text = (
            f"{item.path}: {item.format}, {item.size_mb:,.1f} MB, {item.events:,} events, read in {item.read_s:.1f} s"
        )
        yield from _wrap(text, "")
        if item.broken:
            yield from _wrap(f"NOT WHOLE: {item.broken}; all figures are of what came before", "  ")


def _summary(gpus: Sequence[GpuFigures]) -> Iterator[str]:
    width = max(len("GPU"), *(len(gpu.label) for gpu in gpus))
    head = f"{'steps':>6} {'ms a step':>10} {'busy %':>7} {'idle %':>7} {'collectives %':>14} {'launches':>9}"
    yield f"{'GPU':<{width}}  {head}"
    for gpu in gpus:
        launches = gpu.launches.eager + gpu.launches.graphs
        yield (
            f"{gpu.label:<{width}}  {gpu.steps.count:>6} {gpu.steps.mean_ms:>10.3f} {gpu.busy_percent:>7.1f} "
            f"{gpu.idle.percent:>7.1f} {gpu.wall('collective'):>14.1f} {launches:>9.0f}"
        )


def _gpu(gpu: GpuFigures) -> Iterator[str]:
    steps = gpu.steps
    title = f"{gpu.label} {gpu.name}".strip()
    if steps.method == "none":
        yield f"{title}: {steps.mean_ms:.3f} ms in all, busy {gpu.busy_percent:.1f} %"
    else:
        yield f"{title}: {steps.mean_ms:.3f} ms a step, busy {gpu.busy_percent:.1f} %"
        spread = f"median {steps.median_ms:.3f} ms, {steps.shortest_ms:.3f} to {steps.longest_ms:.3f}"
        yield f"  {steps.count} steps, {spread}"
    yield from _wrap(f"steps: {steps.certainty}, {steps.detail}", "  ")
    if steps.left_out:
        yield from _wrap(f"left out: {'; '.join(steps.left_out)}", "  ")
    yield ""
    yield f"  {'per step':<32} {'wall ms':>9} {'share':>8} {'GPU ms':>9} {'hidden ms':>10} {'count':>8}"
    for row in gpu.classes:
        hidden = f"{row.hidden_ms:.3f}" if row.hidden_ms >= 0.0005 else "·"
        yield (
            f"  {row.title:<32} {row.wall_ms:>9.3f} {row.wall_percent:>6.1f} % {row.gpu_ms:>9.3f} {hidden:>10} "
            f"{row.count:>8.1f}"
        )
    yield from _idle(gpu)
    yield f"  {'the step':<32} {steps.mean_ms:>9.3f} {100:>6.1f} %"
    yield ""
    yield from _launches(gpu)
    yield ""
    yield f"  {'top kernels, per step':<48} {'class':<12} {'count':>7} {'mean us':>9} {'GPU ms':>8} {'busy %':>7}"
    for kernel in gpu.kernels:
        yield (
            f"  {short(kernel.name, 48):<48} {kernel.key:<12} {kernel.count:>7.1f} {kernel.mean_us:>9.1f} "
            f"{kernel.gpu_ms:>8.3f} {kernel.percent_of_busy:>7.1f}"
        )
    if gpu.idle.places:
        yield ""
        yield f"  {'gaps, after':<35} {'and before':<35} {'count':>7} {'longest us':>10} {'step %':>7}"
        for gap in gpu.idle.places:
            yield (
                f"  {_end(gap.after):<35} {_end(gap.before):<35} {gap.count:>7.1f} {gap.longest_us:>10.1f} "
                f"{gap.percent:>7.1f}"
            )


def _end(name: str) -> str:
    return short(name, 35) if name else "(the end)"


def _idle(gpu: GpuFigures) -> Iterator[str]:
    idle, step = gpu.idle, gpu.steps.mean_ms
    for title, percent, count in (
        (f"idle, gaps below {idle.long_from_us:g} us", idle.short_percent, idle.short_count),
        (f"idle, gaps from {idle.long_from_us:g} us on", idle.long_percent, idle.long_count),
    ):
        yield f"  {title:<32} {step * percent / 100:>9.3f} {percent:>6.1f} % {'':>9} {'':>10} {count:>8.1f}"


def _launches(gpu: GpuFigures) -> Iterator[str]:
    item = gpu.launches
    text = (
        f"launches a step: {item.eager:.1f} kernels one by one, {item.graphs:.1f} graphs "
        f"({item.from_graph_percent:.1f} % of {item.kernels:.1f} kernels come from graphs); "
        f"{item.host_copies:.1f} copies from or to the host, {item.host_copy_kb:.1f} kB"
    )
    if item.synchronisations is not None:
        text += f"; the CPU waits {item.synchronisations:.1f} times for the GPU"
    if item.cpu_sampling_percent:
        text += f"; sampling on the CPU {item.cpu_sampling_percent:.1f} % of the time"
    if gpu.power_w is not None:
        text += f"; {gpu.power_w:.0f} W"
    yield from _wrap(text, "  ")


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    if not findings:
        yield "No known fault: no rule's threshold is passed."
        return
    yield f"Findings ({len(findings)})"
    for item in findings:
        yield ""
        yield from _wrap(f"{item.percent:.1f} %  {item.code}  {item.gpu}: {item.what}", "  ", "    ")
        for place in item.where:
            yield from _wrap(place, "    ", "  ")
        yield from _wrap(f"likely: {item.likely_cause}", "    ")
        yield from _wrap(f"next: {item.next_step}", "    ")
        yield f"    limit {item.limit:g}: --threshold {item.threshold}=NUMBER"
