"""The words of a report: sentences, times, and what a state or an exit status means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

EXIT_MEANING = {
    0: "good, or nothing to do",
    1: "findings",
    2: "usage, input or connection",
    3: "a gate failed, the host is back on the old kernel",
    4: "a host is lost or needs a person",
    5: "stopped at a safe point, can be resumed",
}

STANDALONE_GATE = "a gate failed, outside of a roll"
"""Exit status 3 where no roll was on its way: there is no old kernel to be back on."""

STATE_WORD = {
    "good": "good",
    "ok": "done",
    "findings": "something left to do",
    "nothing_to_do": "nothing to do",
    "planned": "planned only",
    "good_on_old": "back on the old kernel",
    "gate_failed": "gate failed",
    "stopped": "stopped at a safe point",
    "refused": "refused",
    "unreachable": "unreachable",
    "needs_person": "needs a person",
    "untouched": "untouched",
}
STATE_TONE = {
    "good": "good", "ok": "good", "nothing_to_do": "good", "planned": "quiet", "untouched": "quiet",
    "findings": "warn", "good_on_old": "warn", "stopped": "warn", "refused": "warn", "gate_failed": "bad",
    "unreachable": "bad", "needs_person": "bad",
}  # fmt: skip
"""How loud a state is. A roll that came back by itself is a warning: the host is safe, the work is not done."""

GATE_WORD = {
    "pass": "passed",
    "fail": "failed",
    "not_measured": "not measured",
    "error": "error",
    "not_run": "not run",
}
GATE_TONE = {"pass": "good", "fail": "bad", "not_measured": "bad", "error": "bad", "not_run": "quiet"}

MANY_HOSTS = 3
"""Up to this many hosts are named one by one in the first line."""

URGENT = ("needs_person", "unreachable", "good_on_old", "gate_failed", "stopped", "refused")
"""States in which something is left to do, the most urgent first."""

SHORT_STATES = frozenset({"untouched", "nothing_to_do", "planned", "refused", "unreachable"})
"""States in which most stages were not reached: their empty sections are named in one line."""


def exit_meaning(status: int, states: Sequence[str]) -> str:
    """What an exit status means, given how the hosts came out."""
    if status == 3 and "gate_failed" in states and "good_on_old" not in states:
        return STANDALONE_GATE
    return EXIT_MEANING.get(status, "unknown")


def seconds_words(seconds: float | None) -> str:
    """``2 h 03 min``, ``4 min 12 s``, ``7 s``, ``0.4 s``; ``not recorded`` for None."""
    if seconds is None:
        return "not recorded"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, left = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {left:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def was(before: float | None, after: float | None, unit: str) -> str:
    """A value before and after: ``345 → 1935 MHz``; once where both are the same, or only one is known."""
    known = [f"{value:.0f}" for value in (before, after) if value is not None]
    return f"{' → '.join(dict.fromkeys(known))} {unit}" if known else "–"


def downtime_words(seconds: float | None, still_open: bool) -> str:
    """The downtime for people."""
    if still_open:
        return "not over"
    return "none" if seconds is None else seconds_words(seconds)


@dataclass(frozen=True)
class Outline:
    """What a host's sentence is made of. ``kernel`` is the one that it runs now, ``gate_kernel`` the last gated one.

    ``measured``: what a run that only measured has found, in words.
    """

    host: str
    state: str
    kernel: str
    target: str
    gate: str
    cause: str
    downtime_s: float | None
    downtime_open: bool
    estimate_s: float | None
    gate_kernel: str = ""
    measured: str = ""


def host_sentence(outline: Outline) -> str:
    """How one host came out: on which kernel, gated or not, with how much downtime."""
    host, on = outline.host, outline.kernel or "a kernel that was not recorded"
    gated = f"gate {GATE_WORD.get(outline.gate, outline.gate)}" if outline.gate != "not_run" else "not gated"
    down = f"downtime {downtime_words(outline.downtime_s, outline.downtime_open)}".replace(
        "downtime none", "no downtime"
    )
    why = f" ({outline.cause})" if outline.cause else ""
    target = outline.target or "another kernel"
    estimate = outline.estimate_s
    about = f"about {seconds_words(estimate)} of downtime" if estimate is not None else "downtime not estimated"
    sentences = {
        "good": f"{host} runs {on}, {gated}, {down}",
        "ok": f"{host}: {outline.measured}, nothing judged" if outline.measured else f"{host} runs {on}, {gated}",
        "findings": f"{host} has something left to do",
        "nothing_to_do": f"{host} already runs {on}, nothing to do, no downtime",
        "planned": f"{host} runs {on} and would go to {target}, {about}; nothing was changed",
        "good_on_old": f"{host} is back on {on}, {gated} on {outline.gate_kernel or target}{why}, {down}",
        "gate_failed": f"{host} runs {on}, {gated}{why}",
        "stopped": f"{host} still runs {on}, stopped at a safe point{why}, {down}",
        "refused": f"{host} stays on {on}, refused{why}, nothing was changed",
        "unreachable": f"{host} is unreachable{why}",
        "needs_person": f"{host} needs a person{why}, last known kernel {on}, {down}",
        "untouched": f"{host} is untouched on {on}",
    }
    return sentences.get(outline.state, f"{host}: {outline.state}{why}, kernel {on}, {gated}, {down}")


def run_sentence(hosts: Sequence[tuple[str, str]], finished: bool) -> str:
    """The report's first line out of (state, sentence) per host; with many hosts counts, the worst first."""
    unfinished = "" if finished else "Not finished, the run was interrupted or is still going on: "
    if not hosts:
        return unfinished + "no host took part in this run."
    if len(hosts) <= MANY_HOSTS:
        return unfinished + "; ".join(sentence for _, sentence in hosts) + "."
    states = [state for state, _ in hosts]
    order = [*(state for state in URGENT if state in states), *(state for state in states if state not in URGENT)]
    counts = ", ".join(f"{states.count(state)} {STATE_WORD.get(state, state)}" for state in dict.fromkeys(order))
    return f"{unfinished}{len(hosts)} hosts: {counts}."


def run_next_step(hosts: Sequence[tuple[str, str]]) -> str:
    """What to do next for the run as a whole, out of (state, next step) per host: that of the most urgent host."""
    urgent = [step for state in URGENT for found, step in hosts if found == state and step]
    later = [step for state, step in hosts if state not in URGENT and step]
    return next(iter(urgent + later), "")
