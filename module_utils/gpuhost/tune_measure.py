"""Measure what each knob of tuning does on a host: old value and new in turns, everything else as it is now.

Nothing stays changed but one thing: a knob that is in force, and does harm, gets its old value back. Values that are
not in force yet are tune's to set, which comes after.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from . import tune_deadline, tune_effects, tune_effects_text, tune_load
from .documents import as_dict, make_head
from .errors import DEFECTS, Stop, stop
from .host_io import Host
from .rollfile import LOCK_FILE
from .tune_deadline import Deadline, Value
from .tune_effects import Effects, KnobEffect
from .tune_knobs import Change, Knob
from .tune_sampler import Round, Sampler
from .tune_step import LOCK_WAIT_S
from .tuning import KINDS

EFFECTS = "/var/lib/gpuhost/effects.json"
"""The last document, on the host: a controller that has gone does not take the result with it."""
SETTLE_S = 0.2
_SPARE_S = 60
_SLOWER = 3
"""How much longer than the first round one may take on average before the deadline comes."""


@dataclass(frozen=True)
class Order:
    """How to measure. ``without_timer``: go on where no systemd answers, and a kill would leave the new value."""

    pairs: int = tune_effects.PAIRS
    smallest_percent: float = tune_effects.SMALLEST_PERCENT
    under_load: bool = False
    keep_harmful: bool = False
    without_timer: bool = False

    def checked(self) -> Order:
        """The order itself. Raises Stop(input.invalid)."""
        if not tune_effects.FEWEST_PAIRS <= self.pairs <= 1000:
            expected = f"{tune_effects.FEWEST_PAIRS} to 1000"
            raise stop("input.invalid", "tune_effects_pairs", str(self.pairs), expected)
        if self.smallest_percent < 0:
            raise stop("input.invalid", "tune_effects_smallest_percent", f"{self.smallest_percent:g}", "0 or more")
        return self


@dataclass
class Run:
    """A measurement as it goes on."""

    host: Host
    order: Order
    sampler: Sampler
    load: tuple[str, ...] = ()
    deadline: Deadline = field(default_factory=lambda: Deadline(0, False))


@contextmanager
def _ends_orderly() -> Iterator[None]:
    """SIGTERM and SIGHUP become an exit, so that old values come back on the way out."""

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def started(host: Host, order: Order, sampler: Sampler) -> Iterator[Run]:
    """The host's lock, nothing left of an earlier measurement, an idle host, a first round. Raises Stop."""
    with _ends_orderly(), host.lock(LOCK_FILE, LOCK_WAIT_S):
        tune_deadline.put_back(host)
        tune_deadline.remove(host)
        seen = tune_load.prove_idle(tune_load.read(host), order.under_load)
        sampler.first()
        needed = tune_effects.pairs_needed(len(sampler.catalog))
        if order.pairs < needed:
            text = f"{order.pairs} pairs find nothing among {len(sampler.catalog)} benchmarks"
            raise stop("input.invalid", "tune_effects_pairs", text, f"at least {needed}")
        yield Run(host, order, sampler, seen)


def estimate_s(run: Run, knobs: int) -> float:
    """Seconds that so many knobs take."""
    return knobs * (2 * run.order.pairs + 1) * (run.sampler.round_s + SETTLE_S)


@contextmanager
def guarded(run: Run) -> Iterator[None]:
    """The timer, for all knobs of this run. Raises Stop(tune.no_timer) before anything is written."""
    seconds = int(_SLOWER * estimate_s(run, 1)) + _SPARE_S
    run.deadline = tune_deadline.install(run.host, seconds)
    if not run.deadline.has_timer and not run.order.without_timer:
        raise stop("tune.no_timer", "systemd", "does not answer", "a timer that puts old values back after a kill")
    try:
        yield
    finally:
        # What could not be put back is tried again by the timer.
        if not tune_deadline.is_on(run.host):
            tune_deadline.remove(run.host)


def measure(run: Run, knobs: Sequence[Knob]) -> tuple[KnobEffect, ...]:
    """Every knob alone, one after the other."""
    if not knobs:
        return ()
    with guarded(run):
        return tuple(one(run, knob) for knob in knobs)


def one(run: Run, knob: Knob) -> KnobEffect:
    """Turn a knob to and fro, put it back, judge; one that does harm and is in force gets its old value."""
    begun = run.host.clock()
    rounds: list[tuple[str, Round]] = []
    try:
        with _restored(run, knob):
            changes, refused = _tried(run, knob)
            if changes:
                rounds = _turns(run, changes)
    except Stop as error:
        if error.blocker.cause == "tune.not_restored":
            raise
        changes, refused = (), error.blocker.sentence
    if not changes:
        return _not_measured(knob, refused, run.host.clock() - begun)
    found = _judged(run, knob, rounds, refused, run.host.clock() - begun)
    if found.decision == "left out" and knob.in_force:
        found = _taken_back(run, knob, found)
    return found


@contextmanager
def _restored(run: Run, knob: Knob) -> Iterator[None]:
    """Everything as it was, however it ends. Raises Stop(tune.not_restored) where the host refuses."""
    host = run.host
    tune_deadline.begin(host, run.deadline, [Value(item.kind, item.object, item.start) for item in knob.changes])
    try:
        yield
    finally:
        tune_deadline.put_back(host)
        # At the deadline the record is gone already, and the last write may have come after it.
        for item in knob.changes:
            if not _reads(host, item, item.start):
                KINDS[item.kind].write(host, item.object, item.start)


def _reads(host: Host, item: Change, value: str) -> bool:
    return KINDS[item.kind].same(KINDS[item.kind].read(host, item.object), value)


def _set(run: Run, item: Change, value: str) -> None:
    """Write one value and read it back, unless it is there already. Raises Stop."""
    if _reads(run.host, item, value):
        return
    if not tune_deadline.is_on(run.host):
        raise stop("tune.deadline", item.object, "the old values are back already", "an end before the deadline")
    KINDS[item.kind].write(run.host, item.object, value)
    if not _reads(run.host, item, value):
        seen = (KINDS[item.kind].read(run.host, item.object) or "nothing").strip()
        raise stop("tune.not_measured", item.object, f"reads {seen} after it was written", value.strip())


def _tried(run: Run, knob: Knob) -> tuple[tuple[Change, ...], str]:
    """The changes that the host takes in both directions, and why the others are left out."""
    taken, problems = [], []
    for item in knob.changes:
        try:
            _set(run, item, item.new if _reads(run.host, item, item.old) else item.old)
            _set(run, item, item.old)
            taken.append(item)
        except Stop as error:
            if error.blocker.cause == "tune.deadline":
                raise
            problems.append(f"{item.object}: {error.blocker.observed}")
    more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
    return tuple(taken), f"{problems[0]}{more}" if problems else ""


def _turns(run: Run, changes: Sequence[Change]) -> list[tuple[str, Round]]:
    rounds = []
    for letter in tune_effects.order(run.order.pairs):
        for item in changes:
            _set(run, item, item.old if letter == "A" else item.new)
        run.host.sleep(SETTLE_S)
        rounds.append((letter, run.sampler.round()))
    return rounds


def paired(rounds: Sequence[tuple[str, Round]], name: str) -> tuple[list[float], list[float]]:
    """The old values and the new ones of a benchmark, a pair at a place. A pair with a gap is left out."""
    old, new = [], []
    for first, second in zip(rounds[::2], rounds[1::2], strict=True):
        values = {letter: found[name] for letter, found in (first, second) if name in found}
        if len(values) == 2:
            old.append(values["A"])
            new.append(values["B"])
    return old, new


def _judged(run: Run, knob: Knob, rounds: Sequence[tuple[str, Round]], refused: str, seconds: float) -> KnobEffect:
    catalog, smallest = run.sampler.catalog, run.order.smallest_percent
    effects = tuple(
        tune_effects.judge(item, *paired(rounds, name), len(catalog), smallest) for name, item in catalog.items()
    )
    verdict = tune_effects.knob_verdict(effects)
    decision, reason = tune_effects.decision(verdict, run.order.keep_harmful)
    reason = "; ".join(item for item in (reason, f"without {refused}" if refused else "") if item)
    return KnobEffect(
        knob.name, knob.concern, knob.old, knob.new, len(knob.changes), verdict, decision, knob.in_force, reason,
        round(seconds, 1), effects,
    )  # fmt: skip


def _not_measured(knob: Knob, reason: str, seconds: float) -> KnobEffect:
    return KnobEffect(
        knob.name, knob.concern, knob.old, knob.new, len(knob.changes), "not measured", "as it was", knob.in_force,
        reason or "nothing to be turned", round(seconds, 1), (),
    )  # fmt: skip


def _taken_back(run: Run, knob: Knob, found: KnobEffect) -> KnobEffect:
    problems = []
    for item in reversed(knob.changes):
        try:
            KINDS[item.kind].write(run.host, item.object, item.old)
        except (Stop, *DEFECTS) as error:
            problems.append(f"{item.object}: {error}")
    text = f"{found.reason}; the old value is back" if not problems else f"not taken back: {problems[0]}"
    return replace(found, in_force=bool(problems), reason=text)


def document(
    run: Run, names: tuple[str, str], mode: Any, found: Sequence[KnobEffect], knobs: Sequence[Knob], seconds: float
) -> dict[str, Any]:
    """``effects.json``, which also stays on the host. ``names``: the host's and the run's."""
    domains = {knob.name: knob.domain for knob in knobs}
    made = Effects(
        make_head("effects", *names), mode, run.order.pairs, 100 * tune_effects.ALPHA, run.order.smallest_percent,
        tune_effects.METHOD, run.host.read_line("/proc/sys/kernel/osrelease"), run.load, run.deadline.has_timer,
        round(seconds, 1), tuple(found), tune_effects_text.findings(found, domains),
    )  # fmt: skip
    plain = as_dict(made)
    run.host.write_atomic(EFFECTS, (json.dumps(plain, indent=2) + "\n").encode())
    return plain
