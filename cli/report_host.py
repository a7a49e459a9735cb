"""One host of a report: what was, what was planned, what was done, what is, and how it came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuhost.documents import seconds_between
from gpuhost_cli import report_facts
from gpuhost_cli import report_read as read
from gpuhost_cli.report_decode import DecodePart, decode_part
from gpuhost_cli.report_gpu import GpuPart, gpu_part, measured_documents
from gpuhost_cli.report_plan import PlanPart, plan_part
from gpuhost_cli.report_rows import (
    DoneStep,
    Fact,
    FailureRow,
    FindingRow,
    MeasurementRow,
    RuleChange,
    StageTime,
    VerdictRow,
    Workload,
)
from gpuhost_cli.report_words import Outline, host_sentence

Documents = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class HostReport:
    """Everything about one host. A section is None where its document was not recorded."""

    host: str
    state: str
    sentence: str
    said: str
    """The outcome's own sentence, where one was recorded."""
    cause: str
    cause_sentence: str
    next_step: str
    kernel_before: str
    kernel_now: str
    target: str
    gate: str
    """``pass``, ``fail``, ``not_measured``, ``error``, or ``not_run``."""
    downtime_s: float | None
    """None: there was none, or it is not over (``downtime_open``)."""
    downtime_open: bool
    downtime_estimate_s: float | None
    read_again: bool
    """The facts were read a second time, so that what is now is known."""
    facts: tuple[Fact, ...] | None
    majors: tuple[Fact, ...]
    workloads: tuple[Workload, ...]
    plan: PlanPart | None
    done: tuple[DoneStep, ...]
    proofs: tuple[FindingRow, ...] | None
    verdict: GatePart | None
    gpu: GpuPart | None
    decode: DecodePart | None
    """Ceiling, parts and live step in one picture; None where there is nothing of them."""
    rules: RulesPart | None
    measurements: tuple[MeasurementRow, ...] | None
    stages: tuple[StageTime, ...]
    failures: tuple[FailureRow, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """The sections for which nothing was recorded."""
        sections = {
            "facts": self.facts, "plan": self.plan, "preflight": self.proofs, "device rules": self.rules,
            "gate": self.verdict, "measurements": self.measurements,
        }  # fmt: skip
        return tuple(name for name, section in sections.items() if section is None)

    @property
    def only_gated(self) -> bool:
        """A gate or measurements outside of a roll: no plan, no changes."""
        changed = any(step.changed for step in self.done)
        return self.gpu is not None and self.plan is None and self.rules is None and not changed

    @property
    def measured_with_errors(self) -> bool:
        """Nothing was judged, and not everything could be measured: done, but not well."""
        return self.gpu is not None and self.gpu.table is None and any(
            row.status == "error" for row in self.gpu.unmeasured
        )  # fmt: skip

    @property
    def leaks(self) -> tuple[RuleChange, ...]:
        """Stale rules that opened another driver's device to a container."""
        return tuple(change for change in (self.rules.changes if self.rules else ()) if change.leaks_to)


@dataclass(frozen=True)
class GatePart:
    """What the gate said, and about which kernel."""

    kernel: str
    sentence: str
    verdicts: tuple[VerdictRow, ...]


@dataclass(frozen=True)
class RulesPart:
    """What was done about device rules and nodes."""

    changes: tuple[RuleChange, ...]
    findings: tuple[FindingRow, ...]
    nodes_created: tuple[str, ...]


def build_host(host: str, state: str, documents: Documents, run: Mapping[str, Any], run_id: str) -> HostReport:
    """The report of one host out of its documents and the run's record."""
    tasks = [row for row in read.rows(run, "tasks") if row.get("host") == host]
    failures = read.failures(row for row in read.rows(run, "failures") if row.get("host") == host)
    roll, plan = documents.get("roll", {}), documents.get("plan")
    measured, preflight = measured_documents(documents), documents.get("preflight")
    downtime_s, downtime_open = downtime(roll)
    outline, gate = _Outline.of(documents, failures), _gate(documents.get("verdict"))
    estimate, gpu = read.number((plan or {}).get("downtime_estimate_s")), gpu_part(documents)
    kernel = outline.kernel_now or outline.kernel_before
    gated = documents.get("verdict", {}).get("kernel")  # after a way back this is the old one
    words = Outline(
        host,
        state,
        kernel,
        outline.target,
        gate,
        outline.cause,
        downtime_s,
        downtime_open,
        estimate,
        gated if isinstance(gated, str) else "",
        gpu.measured if gpu is not None and gpu.table is None else "",
    )
    return HostReport(
        host=host,
        state=state,
        sentence=host_sentence(words),
        said=outline.said,
        cause=outline.cause,
        cause_sentence=read.sentence_of(outline.cause),
        next_step=_next_step(state, documents, failures, outline.cause) or _of_errors(gpu),
        kernel_before=outline.kernel_before,
        kernel_now=outline.kernel_now,
        target=outline.target,
        gate=gate,
        downtime_s=downtime_s,
        downtime_open=downtime_open,
        downtime_estimate_s=estimate,
        read_again="facts_after" in documents,
        facts=report_facts.facts(documents) if "facts" in documents else None,
        majors=report_facts.majors(documents),
        workloads=read.workloads(roll),
        plan=None if plan is None else plan_part(plan),
        done=read.done_steps(roll, tasks, run_id),
        proofs=None if preflight is None else read.proofs(preflight),
        verdict=_gate_part(documents.get("verdict")),
        gpu=gpu,
        decode=decode_part(host, documents, run),
        rules=_rules_part(documents.get("reconcile")),
        measurements=tuple(row for document in measured for row in read.measurements(document)) if measured else None,
        stages=read.stage_times(roll, tasks),
        failures=failures,
    )


def _gate_part(verdict: Mapping[str, Any] | None) -> GatePart | None:
    if verdict is None:
        return None
    return GatePart(read.text(verdict.get("kernel")), read.text(verdict.get("sentence")), read.verdicts(verdict))


def _rules_part(reconcile: Mapping[str, Any] | None) -> RulesPart | None:
    if reconcile is None:
        return None
    created = read.texts(reconcile, "nodes_created")
    return RulesPart(read.rule_changes(reconcile), read.findings(reconcile), created)


@dataclass(frozen=True)
class _Outline:
    """What the first line needs."""

    kernel_before: str
    kernel_now: str
    target: str
    cause: str
    said: str

    @staticmethod
    def of(documents: Documents, failures: Sequence[FailureRow]) -> _Outline:
        kinds = ("roll", "plan", "outcome", "verdict")
        roll, plan, outcome, verdict = (documents.get(kind, {}) for kind in kinds)
        before = read.sub(documents.get("facts"), "kernel").get("release")
        after = read.sub(documents.get("facts_after"), "kernel").get("release")
        blocked = next((row.cause for row in read.blockers(plan)), "")
        standing = next((row.cause for row in failures if not row.rescued), "")
        return _Outline(
            kernel_before=read.text(roll.get("running_before") or before or plan.get("running")),
            kernel_now=read.text(after or ("" if roll else before or plan.get("running") or verdict.get("kernel"))),
            target=read.text(roll.get("target") or read.sub(plan, "target").get("release")),
            cause=read.text(outcome.get("cause") or roll.get("cause")) or standing or blocked,
            said=read.text(outcome.get("sentence") or roll.get("sentence")).rstrip("."),
        )


def downtime(roll: Mapping[str, Any]) -> tuple[float | None, bool]:
    """Seconds from the first drain step to the last hand_back (or rollback) step, and whether it is still going on."""
    steps = read.rows(roll, "steps")
    starts = [step.get("started_at") for step in steps if step.get("stage") == "drain" and step.get("started_at")]
    ends = [
        step.get("finished_at")
        for step in steps
        if step.get("stage") in ("hand_back", "rollback") and step.get("finished_at")
    ]
    if not starts:
        return None, False
    if not ends or roll.get("state") == "open":
        return None, True
    try:
        return max(0.0, seconds_between(str(min(map(str, starts))), str(max(map(str, ends))))), False
    except ValueError:
        return None, False


def _gate(verdict: Mapping[str, Any] | None) -> str:
    if verdict is None:
        return "not_run"
    status = verdict.get("status")
    return str(status) if status in ("pass", "fail", "not_measured") else "error"


def _next_step(state: str, documents: Documents, failures: Sequence[FailureRow], cause: str) -> str:
    """The most specific way out that was recorded."""
    if state in ("good", "nothing_to_do", "ok"):
        return ""
    said = [row.next_step for row in failures if row.cause == cause]
    said += [row.next_step for row in read.blockers(documents.get("plan", {}))]
    said += [row.next_step for row in read.proofs(documents.get("preflight", {})) if row.status == "not proven"]
    said += [row.next_step for row in read.verdicts(documents.get("verdict", {})) if row.cause and row.cause == cause]
    said += [read.next_step_of(cause)]
    said += [row.next_step for row in failures if not row.rescued]
    if state == "planned":
        said.append("Run the same command without --check.")
    if state == "untouched":
        said.append("Run the same command again once the other hosts are in order.")
    return next((step for step in said if step), "")


def _of_errors(gpu: GpuPart | None) -> str:
    """What to do about the first error of a run that only measured."""
    if gpu is None or gpu.table is not None:
        return ""
    return next((read.next_step_of(row.cause) for row in gpu.unmeasured if row.status == "error"), "")
