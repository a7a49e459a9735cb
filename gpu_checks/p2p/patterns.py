"""Many flows at once: pairs that are fast alone can collapse together, above all writes of several GPUs to one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from gpu_checks.p2p.copies import Flow, Mover, speeds_together, timed
from gpu_checks.p2p.plan import (
    TOGETHER_TURNS,
    TOGETHER_WARM_UP,
    Step,
    copy_bytes,
    fair_share,
    runs,
    seed,
    slot_bytes,
)

SLOWEST_GB_S = 10.0
"""Assumed of a pair whose own speed is not known."""

Pair = tuple[int, int]


def flows_of(mover: Mover, run: Sequence[Pair], step: Step, each: int, slot: int) -> list[Flow]:
    """A flow for each pair, each with a stream and a part of both buffers of its own."""
    places = {gpu: place for place, gpu in enumerate(sorted(mover.buffers))}
    streams: dict[int, int] = {}
    made = []
    for i, j in run:
        number = streams.get(i, 0)
        streams[i] = number + 1
        flow = mover.flow(i, j, step.engine, each, slot // each, number)
        made.append(
            dataclasses.replace(
                flow,
                source_address=flow.source_address + places[j] * slot,
                target_address=flow.target_address + places[i] * slot,
                mark=seed(step.key, i, j),
            )
        )
    return made


def together(mover: Mover, step: Step, alone: dict[Pair, float]) -> dict[str, Any]:
    """All rounds of a pattern. Returns for every flow of every round its speed, and what was wrong with its data.

    Kernels of one GPU that write to several others take turns on its multiprocessors: the speed of each is that of all
    its copies within the time in which all flows ran.
    """
    slot = slot_bytes(mover.size, len(mover.buffers))
    if not mover.open_at_once(step.pairs):
        return {"skipped": "the driver does not allow a GPU to reach that many others at the same time"}
    found = []
    for number, run in enumerate(runs(step.pattern, list(dict.fromkeys(step.pairs)))):
        everyone = dict.fromkeys(run, True)
        slowest = min(alone.get(pair, SLOWEST_GB_S) * fair_share(pair, run, everyone) for pair in run)
        each = copy_bytes(slot, slowest, TOGETHER_TURNS)
        flows = flows_of(mover, run, step, each, slot)
        for flow in flows:
            mover.prepare(flow)
        ends = timed(mover, flows, TOGETHER_TURNS, TOGETHER_WARM_UP)
        for flow, gb_s in zip(flows, speeds_together(ends, each)):
            wrong = mover.prove(flow, TOGETHER_TURNS)
            who = {"round": number, "source": flow.source, "target": flow.target}
            found.append({**who, "gb_s": gb_s, "copy_bytes": each, "wrong": wrong})
    return {"flows": found}


def judgeable(
    flows: Sequence[dict[str, Any]], alone: dict[Pair, float], shared: dict[Pair, bool]
) -> list[dict[str, Any]]:
    """Every flow with its speed alone, the share of it that was left, and the share that arithmetic leaves it.

    ``of_expected`` far below 1 is a collapse; None where the pair's own speed is not known.
    """
    rounds: dict[int, list[Pair]] = {}
    for flow in flows:
        rounds.setdefault(flow["round"], []).append((flow["source"], flow["target"]))
    found = []
    for flow in flows:
        pair = (flow["source"], flow["target"])
        expected, single = fair_share(pair, rounds[flow["round"]], shared), alone.get(pair)
        share = None if not single else flow["gb_s"] / single
        found.append(
            {
                **flow,
                "alone_gb_s": single,
                "share": share,
                "expected_share": expected,
                "of_expected": None if share is None else share / expected,
            }
        )
    return found
