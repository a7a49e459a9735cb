"""From what a worker said to measurements: values, units, expectations, messages. Pure."""

from __future__ import annotations

from typing import Any

from gpu_checks.measurement import ERROR, MEASURED, NOT_MEASURED, Measurement, Samples
from gpu_checks.p2p.links import STAGED
from gpu_checks.p2p.patterns import judgeable
from gpu_checks.p2p.plan import ARRIVE, BOTH, CE, LATENCY, NAME, SM_READ, SM_WRITE, TOGETHER, Step, reads
from gpu_checks.p2p.state import FAILED, WRONG, Known, Opened, Pair, name_of, words_of

NO_ACCESS = "p2p.no_peer_access"
NOT_REACHED = "p2p.not_reached"
BY_ENVIRONMENT = "p2p.disabled_by_environment"
IN_USE = "gpu.in_use"

METHODS = {
    CE: "copies by a copy engine of the source GPU, events around each, the stream held until all are queued",
    BOTH: "copies by both GPUs' copy engines, both ways at once: this way's speed while the other runs",
    SM_WRITE: "a kernel on the source GPU reads its own memory and writes into the target's",
    SM_READ: "a kernel on the target GPU reads the source's memory and writes into its own",
    LATENCY: "a thread on the first GPU follows pointers in the second one's memory: time of one read",
    TOGETHER: "copies of many pairs at once: the smallest share of a pair's own speed that is left to it",
}
UNITS = {LATENCY: "us", TOGETHER: "share"}


def what_of(name: str) -> str:
    """What a measurement's name says was done.

    >>> what_of("p2p.sm_write.0-1"), what_of("p2p.together.ring.ce")
    ('sm_write', 'together')
    """
    return name.split(".")[1]


def refused(name: str, status: str, cause: str, message: str, seconds: float = 0.0, **detail: Any) -> Measurement:
    """A measurement that there is none of, and why."""
    what = what_of(name)
    said = {"message": message, **detail}
    unit = UNITS.get(what, "gb_s")
    return Measurement(name, None, unit, METHODS[what], status, cause, round(seconds, 6), detail=said)


def of_pair(opened: Opened, pair: Pair, value: float | None) -> dict[str, Any]:
    """What a judge needs beside the number: the link, and what it should carry."""
    link = opened.links[pair]
    expected = link.expected_gb_s
    share = None if expected is None or value is None else round(value / expected, 4)
    ends: dict[str, Any] = {"source": pair[0], "target": pair[1], "link": link.plain()}
    return {**ends, "peer_access": link.kind != STAGED, "expected_gb_s": expected, "share": share}


def accesses(opened: Opened) -> list[Measurement]:
    """Whether CUDA lets each pair's GPUs reach each other. No measure of anything that was moved."""
    method = "cuDeviceCanAccessPeer: what the driver says, not that it works"
    found = []
    for i, j in opened.pairs:
        detail: dict[str, Any] = {"source": i, "target": j, "link": opened.links[i, j].plain()}
        name = f"{NAME}.access.{i}-{j}"
        if opened.access[i][j]:
            found.append(Measurement(name, 1, "access", method, MEASURED, None, 0.0, detail=detail))
            continue
        why = (opened.links[i, j].driver or {}).get("write", "NVML says nothing about it")
        detail["message"] = f"GPU {i} can't reach the memory of GPU {j}: {why}; copies between them go through the host"
        found.append(Measurement(name, 0, "access", method, NOT_MEASURED, NO_ACCESS, 0.0, detail=detail))
    return found


def environment(variables: dict[str, str]) -> Measurement:
    """Whether the workload's environment forbids its collectives what is measured here. CUDA itself does not ask it."""
    off = {
        name: value
        for name, value in variables.items()
        if (name == "NCCL_P2P_DISABLE" and value.strip() not in ("", "0"))
        or (name == "NCCL_P2P_LEVEL" and value.strip().upper() in ("LOC", "0"))
    }
    method = "NCCL's variables in the environment of the workload"
    name, unit = f"{NAME}.environment", "allowed"
    if not off:
        return Measurement(name, 1, unit, method, MEASURED, None, 0.0, detail={"variables": variables})
    said = ", ".join(f"{key}={value}" for key, value in off.items())
    message = f"{said}: the workload's NCCL does not use the links, whatever they can do"
    detail = {"variables": variables, "message": message}
    return Measurement(name, 0, unit, method, NOT_MEASURED, BY_ENVIRONMENT, 0.0, detail=detail)


def samples_of(plain: dict[str, Any]) -> Samples:
    """Samples, rounded to what they mean."""
    return Samples(plain["n"], *(round(plain[key], 4) for key in ("median", "p20", "p80")))


def of_step(known: Known, opened: Opened, step: Step, result: dict[str, Any], seconds: float) -> list[Measurement]:
    """The measurements that a step gives. A small first copy gives one only where it failed outright."""
    if "error" in result:
        cause = result.get("cause", FAILED)
        extra = {key: result[key] for key in ("suspects", "state", "survivors") if result.get(key)}
        pairs = [of_pair(opened, pair, None) for pair in step.pairs] if step.what != TOGETHER else [{}]
        rows = zip(step.names, pairs)
        return [refused(name, ERROR, cause, result["error"], seconds, **row, **extra) for name, row in rows]
    if step.what == ARRIVE:
        return []
    if "skipped" in result:
        return [refused(name, NOT_MEASURED, NO_ACCESS, result["skipped"], seconds) for name in step.names]
    if step.what == LATENCY:
        return [_latency(opened, step, result, seconds)]
    if step.what == TOGETHER:
        return [_together(known, opened, step, result, seconds)]
    return [_speed(known, opened, step, place, result, seconds / len(step.pairs)) for place in range(len(step.pairs))]


def _speed(known: Known, opened: Opened, step: Step, place: int, result: dict[str, Any], seconds: float) -> Measurement:
    pair, flow = step.pairs[place], result["flows"][place]
    first = known.first(pair, step.engine)
    wrong = first.get("wrong") or flow["wrong"]
    value = round(flow["gb_s"], 3)
    detail = {
        **of_pair(opened, pair, value),
        **result["moved"],
        "data": {"first_copy": first.get("wrong"), "timed_copies": flow["wrong"]},
    }
    if wrong:
        which = "the first copy" if first.get("wrong") else "the timed copies"
        said = f"{which} of GPU {pair[0]} -> {pair[1]} ({step.engine}): {words_of(wrong)}; at {value:g} GB/s"
        detail["message"] = said
    return Measurement(
        step.names[place], value, "gb_s", METHODS[step.what], ERROR if wrong else MEASURED, WRONG if wrong else None,
        round(seconds, 6), _clock(reads(step.engine, *pair)[0]), samples_of(flow["samples"]), detail,
    )  # fmt: skip


def _clock(ordinal: int) -> str:
    return f"CUDA events on GPU {ordinal}"


def _latency(opened: Opened, step: Step, result: dict[str, Any], seconds: float) -> Measurement:
    pair, value = step.pairs[0], round(result["us"], 4)
    detail = {**of_pair(opened, pair, None), **result["moved"]}
    samples = samples_of(result["samples"])
    seconds, clock = round(seconds, 6), _clock(pair[0])
    return Measurement(step.names[0], value, "us", METHODS[LATENCY], MEASURED, None, seconds, clock, samples, detail)


def _together(known: Known, opened: Opened, step: Step, result: dict[str, Any], seconds: float) -> Measurement:
    """The smallest share; and which flow it was. Wrong data of one flow makes the whole pattern an error."""
    flows = judgeable(result["flows"], known.alone(step.engine), opened.shared)
    shares = [flow for flow in flows if flow["share"] is not None]
    wrong = next((flow for flow in flows if flow["wrong"]), None)
    name, seconds = step.names[0], round(seconds, 6)
    if not shares:
        return refused(name, NOT_MEASURED, NOT_REACHED, "no pair's own speed is known", seconds, flows=flows)
    worst = min(shares, key=lambda flow: float(flow["of_expected"]))
    value = round(min(float(flow["share"]) for flow in shares), 4)
    detail: dict[str, Any] = {
        "engine": step.engine,
        "pattern": step.pattern,
        "expected_share": worst["expected_share"],
        "of_expected": round(worst["of_expected"], 4),
        "worst": name_of((worst["source"], worst["target"])),
        "flows": flows,
    }
    if wrong is not None:
        where = name_of((wrong["source"], wrong["target"]))
        detail["message"] = f"{step.pattern} ({step.engine}), {where}: {words_of(wrong['wrong'])}"
    status, cause = (MEASURED, None) if wrong is None else (ERROR, WRONG)
    clock = "CUDA events on each flow's GPU"
    return Measurement(name, value, "share", METHODS[TOGETHER], status, cause, seconds, clock, None, detail)
