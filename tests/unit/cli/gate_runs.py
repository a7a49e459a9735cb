"""Run folders of a gate, made by the judge itself out of measurement documents (tests/fixtures/gpu_measurements)."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from gpu_checks.p2p.links import Link
from gpuhost.baselines import Baselines, Entry, Origin
from gpuhost.documents import as_dict, make_head
from gpuhost.expectations import Rules
from gpuhost.gate import judge
from gpuhost_cli import report
from gpuhost_cli.report_gpu import GpuPart
from gpuhost_cli.report_host import HostReport

DOCUMENTS = Path(__file__).parents[2] / "fixtures" / "gpu_measurements"
HOST, RUN_ID = "gpu-host-1", "20261130T173000Z-7a10"
OLD, NEW = "6.8.12-9-pve", "6.8.12-11-pve"
ORIGIN = Origin(
    "2026-10-04T03:12:44Z", "20261004T030000Z-11c2", OLD, "570.172.08",
    {"host": ["GPU-00000000-0000-4000-8000-000000000000"]},
)  # fmt: skip

Item = dict[str, Any]


def items(*names: str) -> list[Item]:
    """The measurements of these documents, one after the other."""
    return [item for name in names for item in json.loads((DOCUMENTS / f"{name}.json").read_text())["measurements"]]


def target(*found: Item) -> dict[str, Any]:
    checks = list(dict.fromkeys(item["name"].partition(".")[0] for item in found))
    return {"measurements": list(found), "stale": [], "checks": checks}


def changed(found: list[Item], **values: Any) -> list[Item]:
    """The same with other values; ``__`` stands for a dot of a name."""
    found = copy.deepcopy(found)
    named = {name.replace("__", "."): value for name, value in values.items()}
    for item in found:
        if item["name"] in named:
            item["value"] = named[item["name"]]
    return found


def baseline_of(targets: dict[str, Any]) -> Baselines:
    """Everything that was measured as the baseline, up to 1 % better or worse than now."""
    entries = {
        name: {
            item["name"]: Entry(float(item["value"]) * (1 + _jitter(item["name"])), item["unit"], ORIGIN.key)
            for item in own["measurements"]
            if item["status"] == "measured" and item["unit"] in ("gb_s", "tflop_s", "us", "share", "ms")
        }
        for name, own in targets.items()
    }
    return Baselines(make_head("baselines", HOST, ORIGIN.run_id), {ORIGIN.key: ORIGIN}, entries)


def _jitter(name: str) -> float:
    """The same for a name every time, -1 % to 1 %."""
    return (len(name) * 7 % 21 - 10) / 1000


PIX, SYS = Link("same_switch", "PIX", generation=5, width=16), Link("across_sockets", "SYS", generation=5, width=16)


def pairs(count: int = 8, **faults: float | str) -> list[Item]:
    """A p2p check (synthetic) of PCIe GPUs on two sockets. ``faults``: ``ce_0_5=4.1``, ``ce_2_3="p2p.hang"``."""
    found = []
    for what, unit in (("ce", "gb_s"), ("ce_both", "gb_s"), ("sm_write", "gb_s"), ("latency", "us")):
        for i in range(count):
            for j in range(count):
                if i == j:
                    continue
                link = PIX if i // 4 == j // 4 else SYS
                speed = (52.1 if link is PIX else 37.4) * (0.93 if what != "ce" else 1) + (i * 3 + j) % 5 * 0.11
                value = speed if unit == "gb_s" else 1.9 if link is PIX else 3.4
                fault = faults.get(f"{what}_{i}_{j}")
                found.append(_pair(f"p2p.{what}.{i}-{j}", unit, value if fault is None else fault, link))
    bad = [item for item in found if item["status"] == "error"]
    broken = {item["name"].rpartition(".")[2] for item in bad}
    state = {"memory_clock_mhz": 3201, "pstate": "P0", "power_w": 121.0, "sm_clock_mhz": 1980}
    ids = [{"ordinal": n, "uuid": f"GPU-{n:08d}", "pci_bus_id": f"0000:{n + 1:02x}:00.0"} for n in range(count)]
    gpus = [{**row, **state} for row in ids]
    cool = [{**row, "temperature_c": 38 + row["ordinal"], "throttle_reasons": ["gpu_idle"]} for row in gpus]
    warm = [{**row, "temperature_c": 41 + row["ordinal"], "throttle_reasons": []} for row in gpus]
    if count > 3:
        warm[3].update(temperature_c=91, sm_clock_mhz=1215, throttle_reasons=["hw_thermal_slowdown"])
    overall = _item("p2p", "pairs", count * (count - 1) - len(broken), bad[0]["cause"] if bad else None)
    overall["detail"] = {"expected_pairs": count * (count - 1), "gpus": {"before": cool, "after": warm}}
    if bad:
        overall["detail"]["message"] = f"{bad[0]['name']}: {bad[0]['detail']['message']}"
    return [*found, overall]


def _pair(name: str, unit: str, value: float | str, link: Link) -> Item:
    cause = value if isinstance(value, str) else None
    item = _item(name, unit, None if cause else value, cause)
    expected = link.expected_gb_s
    share = item["value"] / expected if unit == "gb_s" and not cause and expected else None
    item["detail"] = {"link": link.plain(), "peer_access": True, "expected_gb_s": expected, "share": share}
    if cause:
        item["detail"]["message"] = "no end within 5 s, killed; the worker waited in uninterruptible sleep"
    return item


def _item(name: str, unit: str, value: Any, cause: str | None) -> Item:
    return {
        "name": name, "value": value, "unit": unit, "status": "error" if cause else "measured", "cause": cause,
        "method": "synthetic", "clock": "CUDA events", "samples": None, "seconds": 0.2, "detail": {},
    }  # fmt: skip


def verdict(targets: dict[str, Any], required: list[str], **rules: Any) -> dict[str, Any]:
    """``verdict.json`` as the judge makes it."""
    return as_dict(judge(HOST, RUN_ID, NEW, required, targets, Rules(driver="580.159.04", **rules)))


def folder(
    parent: Path, targets: dict[str, Any], judged: dict[str, Any] | None, *, single: bool = False, host: str = HOST
) -> Path:
    """A run folder. ``single``: each check has a document of its own, as ``gate.yml --tags measure`` leaves them."""
    run_dir = parent / RUN_ID
    own = run_dir / host
    own.mkdir(parents=True)
    head = {**vars(make_head("measurements", host, RUN_ID)), "taken_at": "2026-11-30T17:30:10Z"}
    documents: dict[str, Any] = {"measurements": {**head, "targets": targets}}
    if single:
        documents = {}
        for name, answer in targets.items():
            for check in answer["checks"]:
                part = [item for item in answer["measurements"] if item["name"].partition(".")[0] == check]
                document = {**head, "concern": check, "targets": {name: {**answer, "measurements": part}}}
                documents[f"measurements-{check}"] = document
    if judged is not None:
        documents["verdict"] = judged
    for name, document in documents.items():
        (own / f"{name}.json").write_text(json.dumps(document))
    (run_dir / "run.json").write_text(json.dumps(_run(judged, host)))
    return run_dir


def _run(judged: dict[str, Any] | None, host: str) -> dict[str, Any]:
    task = {"host": host, "stage": "gate", "seconds": 42.6, "status": "ok", "message": ""}
    run: dict[str, Any] = {
        "schema": "gpuhost.run", "schema_version": 1, "run_id": RUN_ID, "command": "gpuhost gate -i hosts.yml",
        "target": "", "check_mode": False, "started_at": "2026-11-30T17:30:00Z", "finished_at": "2026-11-30T17:30:46Z",
        "exit_status": 0, "hosts": {host: "ok"}, "tasks": [{**task, "task": "Measure"}], "failures": [],
    }  # fmt: skip
    rows = (judged or {}).get("verdicts", ())
    first = next((row for row in rows if row["required"] and row["status"] != "pass"), None)
    if first is not None:
        about = f"gate {first['check']} on {first['target']}"
        said = f"{first['cause']}: {about}: {first['observed']}, expected {first['expected']}: {first['next_step']}"
        run.update(exit_status=3, hosts={host: "gate_failed"})
        run["tasks"].append({**task, "task": "Judge", "seconds": 0.4, "status": "failed"})
        run["failures"] = [
            {"host": host, "stage": "gate", "task": "Judge", "object": about, "message": said,
             **{key: first[key] for key in ("cause", "observed", "expected", "next_step")}}
        ]  # fmt: skip
    return run


def slow_gate() -> tuple[dict[str, Any], dict[str, Any]]:
    """Targets and verdict: a real H200 with a memory slower than its baseline, stub GPUs with a slow direction."""
    real = items("health", "cuda", "memory", "gemm")
    stub = items("p2p_slow")
    before = {"host": target(*real), "llm-a": target(*changed(stub, **dict.fromkeys(
        ["p2p__ce__0-1", "p2p__ce_both__0-1", "p2p__sm_write__0-1", "p2p__sm_read__0-1"], 49.85)))}  # fmt: skip
    now = {"host": target(*changed(real, memory__copy__gpu0=2104.2)), "llm-a": target(*stub)}
    required = ["cuda", "p2p", "memory"]
    return now, verdict(now, required, baselines=baseline_of(before))


def host_of(run_dir: Path) -> HostReport:
    return report.build(run_dir).hosts[0]


def part_of(run_dir: Path) -> GpuPart:
    part = host_of(run_dir).gpu
    assert part is not None
    return part


def pages(run_dir: Path) -> list[str]:
    built = report.build(run_dir)
    return [report.render_html(built), report.render_markdown(built)]


def eight(parent: Path, **faults: float | str) -> Path:
    """Eight GPUs against a baseline of healthy ones."""
    targets = {"llm-a": target(*pairs(8, **faults))}
    before = baseline_of({"llm-a": target(*pairs(8))})
    return folder(parent, targets, verdict(targets, ["p2p"], baselines=before))
