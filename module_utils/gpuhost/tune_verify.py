"""Before, apply, after: what tune as a whole does on a host.

Two blocks of samples with minutes between them would also show what else has changed meanwhile. So after the tune the
old values come back once more, in turns with the new ones, and the difference is that of these pairs; the samples from
before are shown beside them, with how far the old values now lie from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from . import tune_effects, tune_measure
from .errors import DEFECTS, stop
from .host_io import Host
from .tune_deadline import Value
from .tune_effects import Effect, KnobEffect
from .tune_knobs import Change, Knob
from .tune_measure import Order, Run
from .tuning import KINDS

ALL_SET = "all that tune has set"
NOTHING_SET = (
    "tune has changed nothing at runtime: whatever differs between before and after has another cause, or needs a boot"
)
WHICH = "which of the settings it is says: gpuhost tune --measure"


def before(run: Run, knobs: Sequence[Knob]) -> dict[str, Any]:
    """What ``after`` needs: the values now, and samples of the host as it is."""
    values = [asdict(Value(item.kind, item.object, item.start)) for knob in knobs for item in knob.changes]
    return {"values": values, "rounds": [run.sampler.round() for _ in range(run.order.pairs)]}


def changed_since(host: Host, then: Mapping[str, Any]) -> Knob | None:
    """All that is otherwise now, as one knob; None where nothing is. Raises Stop where ``then`` is no such thing."""
    changes = []
    try:
        for item in then["values"]:
            kind = KINDS[item["kind"]]
            now = kind.read(host, item["object"])
            if now is not None and not kind.same(now, item["value"]):
                changes.append(Change(item["kind"], item["object"], item["value"], now, now))
        [{**found} for found in then["rounds"]]
    except DEFECTS as error:
        raise stop(
            "input.invalid", "before", f"{type(error).__name__}: {error}", "the answer of state before"
        ) from error
    return Knob(ALL_SET, "tune", "kernel_runtime", tuple(changes)) if changes else None


def after(run: Run, then: Mapping[str, Any]) -> KnobEffect:
    """The effect of all that was set since ``then``. Nothing is taken back: single knobs are ``measure``'s."""
    knob = changed_since(run.host, then)
    if knob is None:
        return _nothing_set(run, then)
    run.order = replace(run.order, keep_harmful=True)
    found = tune_measure.measure(run, [knob])[0]
    effects = tuple(tune_effects.with_before(item, _samples(then, item.benchmark)) for item in found.benchmarks)
    reason = WHICH if found.verdict in ("harmful", "mixed") else found.reason
    return replace(found, benchmarks=effects, reason=reason)


def _samples(then: Mapping[str, Any], name: str) -> list[float]:
    return [float(item[name]) for item in then["rounds"] if name in item]


def _nothing_set(run: Run, then: Mapping[str, Any]) -> KnobEffect:
    """The two blocks beside each other. A difference is shown, and no verdict of an effect is made of it."""
    begun = run.host.clock()
    rounds = [run.sampler.round() for _ in range(run.order.pairs)]
    effects = []
    for name, item in run.sampler.catalog.items():
        old, new = _samples(then, name), [found[name] for found in rounds if name in found]
        count = min(len(old), len(new))
        found = tune_effects.judge(item, old[:count], new[:count], len(run.sampler.catalog), run.order.smallest_percent)
        effects.append(_no_verdict(tune_effects.with_before(found, old)))
    verdict = tune_effects.knob_verdict(effects)
    return KnobEffect(
        ALL_SET, "tune", "", "", 0, verdict, "as it was", False, NOTHING_SET, round(run.host.clock() - begun, 1),
        tuple(effects),
    )  # fmt: skip


def _no_verdict(found: Effect) -> Effect:
    return found if found.verdict == "no measurable effect" else replace(found, verdict="not measured")


def order_of(params: Mapping[str, Any]) -> Order:
    """From the module's parameters. Raises Stop(input.invalid)."""
    return Order(
        params["pairs"], params["smallest_percent"], params["under_load"], params["keep_harmful"],
        params["without_timer"],
    ).checked()  # fmt: skip
