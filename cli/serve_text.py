"""A serve-check for a terminal, at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from gpuhost.causes import cause
from gpuhost_cli.explain_text import printable
from gpuhost_cli.serve_compare import WORDS
from gpuhost_cli.serve_documents import Change, Comparison, GoldenResult, Level, Percentiles, ServeCheck
from gpuhost_cli.serve_progress import clock

WIDTH = 100


def render(found: ServeCheck) -> str:
    """The whole text."""
    lines = [*_head(found)]
    if found.levels:
        lines += ["", *_table(found.levels), ""]
        lines += _wrapped(f"{name}: {text}" for name, text in found.definitions.items())
    if found.golden:
        lines += ["", *_golden(found.golden)]
    if found.comparison:
        lines += ["", *comparison(found.comparison)]
    if found.notes:
        lines += ["", *_wrapped(f"note: {note}" for note in found.notes)]
    if found.state == "interrupted":
        lines += ["", "interrupted: what stands above was measured until then"]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def fault(found: ServeCheck) -> str:
    """Why the check has ended, for stderr: the fault, the log's last lines, the next step."""
    lines = [*_wrapped([printable(f"gpuhost: {found.cause}: {found.sentence}")])]
    if found.log_lines:
        lines += [printable(f"last lines of {found.log_source}:"), *(f"  | {line}" for line in found.log_lines)]
    lines += _wrapped([f"next: {cause(found.cause).next_step}"]) if found.cause else []
    return "\n".join(lines)


def _wrapped(texts: Iterator[str] | list[str]) -> Iterator[str]:
    for text in texts:
        yield from textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False) or [""]


def _head(found: ServeCheck) -> Iterator[str]:
    asked = found.parameters
    label = f"{found.label}: " if found.label else ""
    yield from _wrapped([printable(f"{label}{found.model or 'no model yet'} at {found.url} ({asked.api})")])
    medians = [level.prompt_tokens_median for level in found.levels if level.prompt_tokens_median]
    counted = f", {medians[0]:.0f} tokens by the server's count" if medians else ""
    text = f"prompts {asked.prompts}, seed {asked.seed}, {asked.prompt_words} words{counted}"
    if not asked.prompts.startswith("built-in"):
        text = f"prompts {asked.prompts}{counted}"
    yield from _wrapped([f"{text}; {asked.max_tokens} tokens out, greedy"])
    if found.waited:
        total = clock(sum(item.seconds for item in found.waited))
        states = ", ".join(f"{item.state} {clock(item.seconds)}" for item in found.waited if item.seconds >= 1)
        came = bool(found.levels or found.golden)
        verb = "ready after" if came else "waited"
        yield from _wrapped([printable(f"{verb} {total}: {states}" if states or not came else "ready at once")])


def _table(levels: tuple[Level, ...]) -> Iterator[str]:
    groups = "".join(f"  {title:^21}" for title in ("TTFT ms", "TPOT ms", "ITL ms"))
    yield f"{'':7}{'':5}{groups}  {'tok/s':^15}"
    three = "".join(f"{name:>7}" for name in ("p50", "p90", "p99"))
    yield f"{'streams':>7}{'n':>5}" + f"  {three}" * 3 + f"{'stream':>9}{'system':>9}"
    for level in levels:
        figures = "".join(f"  {_three(item)}" for item in (level.ttft_ms, level.tpot_ms, level.itl_ms))
        rates = f"{_number(level.stream_tok_s):>9}{_number(level.output_tok_s):>9}"
        yield f"{level.concurrency:>7}{len(level.answers):>5}{figures}{rates}"
        if level.errors:
            said = ", ".join(f"{count} {kind}" for kind, count in sorted(level.errors.items()))
            yield f"{'':7}errors: {said}"


def _three(found: Percentiles | None) -> str:
    values = (found.p50, found.p90, found.p99) if found else (None, None, None)
    return "".join(f"{_number(value):>7}" for value in values)


def _number(value: float | None) -> str:
    """Four digits at least, and no more decimals than there is room for."""
    if value is None:
        return "·"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}" if abs(value) < 10000 else f"{value:.0f}"


def _golden(found: GoldenResult) -> Iterator[str]:
    verb = "golden answers recorded in" if found.mode == "record" else "golden answers against"
    if found.mode == "record" and found.cause:
        verb = "golden answers, not recorded in"
    yield from _wrapped([printable(f"{verb} {found.path}: {'DAMAGE' if found.cause else 'good'}")])
    yield from _wrapped([f"  {found.sentence}"])
    for number, row in enumerate(found.rows, 1):
        if row.verdict == "equal" and row.common == row.length:
            continue
        title = row.prompt if len(row.prompt) <= 34 else row.prompt[:33] + "…"
        yield from _wrapped([printable(f"  {number:2}  {row.verdict:9} {title:34}  {row.sentence}")])


def comparison(found: Comparison) -> Iterator[str]:
    """The table of changes."""
    when = f", taken {found.before_taken_at}"
    allowed = f"tolerated: {found.tolerance_percent:g} %, TTFT {found.ttft_tolerance_percent:g} %"
    yield from _wrapped([printable(f"against {found.before}{when}: {found.sentence}")])
    yield f"{'streams':>7}  {'figure':13}{'before':>10}{'after':>10}{'change':>9}  {'95 % interval':18}  verdict"
    yield from (_change(item) for item in found.changes)
    yield from _wrapped([f"{allowed}; worse: beyond that, and the interval leaves out 0"])
    yield from _wrapped(f"note: {note}" for note in found.notes)


def _change(item: Change) -> str:
    values = f"{_number(item.before):>10}{_number(item.after):>10}"
    change = "·" if item.change_percent is None else f"{item.change_percent:+.1f} %"
    interval = "·"
    if item.low_percent is not None and item.high_percent is not None:
        interval = f"{item.low_percent:+.1f} to {item.high_percent:+.1f} %"
    few = f" ({item.n_before} and {item.n_after} answers)" if item.verdict == "too few" else ""
    name = WORDS.get(item.name, item.name)
    return f"{item.concurrency:>7}  {name:13}{values}{change:>9}  {interval:18}  {item.verdict}{few}"
