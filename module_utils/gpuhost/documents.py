"""The JSON documents that the parts hand to each other: frozen dataclasses, one writer, schemas made from them."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

SCHEMA_PREFIX = "gpuhost."

Stage = Literal[
    "survey", "plan", "prepare", "drain", "trial", "reconcile", "gate", "promote", "hand_back", "report", "rollback"
]
STAGES: tuple[str, ...] = (
    "survey", "plan", "prepare", "drain", "trial", "reconcile", "gate", "promote", "hand_back", "report",
)  # fmt: skip
DOWNTIME: tuple[str, ...] = ("drain", "trial", "reconcile", "gate", "promote", "hand_back")

Severity = Literal["good", "security", "p0_runtime", "p1_reboot", "info", "unknown"]
Status = Literal["pass", "fail", "not_measured", "error"]
MeasurementStatus = Literal["measured", "not_measured", "error"]


def utc_now() -> str:
    """The time as every document carries it: UTC, seconds, ``2026-01-31T12:00:00Z``."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_between(start: str, end: str) -> float:
    """Seconds from one document time to another. Raises ValueError for text of another form."""
    form = "%Y-%m-%dT%H:%M:%SZ"
    return (datetime.strptime(end, form) - datetime.strptime(start, form)).total_seconds()


@dataclass(frozen=True)
class Head:
    """What every document begins with."""

    schema: str
    schema_version: int
    host: str
    run_id: str
    taken_at: str


@dataclass(frozen=True)
class Finding:
    """One thing seen on a host, and what it should be. ``source`` says where it was read."""

    id: str
    domain: str
    severity: Severity
    observed: str
    expected: str
    why: str
    fix: str
    source: str


@dataclass(frozen=True)
class Blocker:
    """A reason not to begin, or not to go on. ``object`` is the thing it is about (package, file, container)."""

    cause: str
    object: str
    observed: str
    expected: str
    next_step: str

    @property
    def sentence(self) -> str:
        """One line for people: what, observed against expected, the way out."""
        text = f"{self.object}: {self.observed}"
        if self.expected:
            text += f", expected {self.expected}"
        return f"{text}: {self.next_step}"


@dataclass(frozen=True)
class Step:
    """One step of a plan, in words that a person can agree to. ``seconds`` is an estimate, None where there is none."""

    stage: str
    text: str
    downtime: bool
    seconds: float | None = None


@dataclass(frozen=True)
class Target:
    """The kernel that the roll goes to, resolved once: exact packages, versions and suite."""

    release: str
    image_package: str
    image_version: str
    image_suite: str
    headers_package: str
    headers_version: str
    headers_suite: str
    reason: str
    companions: tuple[str, ...] = ()
    """Packages beside image and headers, as the running kernel has them: Ubuntu's precompiled driver, extra modules."""


@dataclass(frozen=True)
class Plan:
    """``plan.json``. Same facts and wishes give the same plan, but for the times in its head."""

    head: Head
    wanted: str
    running: str
    target: Target | None
    nothing_to_do: bool
    resumes: bool
    """A roll is open on the host: this plan continues it with the versions that were chosen then."""
    cmdline: dict[str, str | None] = field(default_factory=dict)
    modprobe_options: dict[str, dict[str, str]] = field(default_factory=dict)
    gate_required: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    notes: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    downtime_estimate_s: float | None = None


@dataclass(frozen=True)
class Proof:
    """One thing that the preflight has proven, or not. ``cause`` is None where it holds.

    ``blocks`` is False for a warning: the roll goes on without it, and the report shows it.
    """

    name: str
    ok: bool
    cause: str | None
    observed: str
    expected: str
    next_step: str = ""
    blocks: bool = True


@dataclass(frozen=True)
class Preflight:
    """``preflight.json``: the target kernel is ready for its trial boot if every proof that blocks is ok."""

    head: Head
    target: str
    proofs: tuple[Proof, ...]


@dataclass(frozen=True)
class Verdict:
    """One check's verdict on one target (a container's name, or ``host``). Only ``pass`` opens the gate."""

    check: str
    target: str
    status: Status
    cause: str | None
    observed: str
    expected: str
    next_step: str
    required: bool
    seconds: float | None = None


@dataclass(frozen=True)
class Comparison:
    """One measured value beside what it was held against. ``limit``: a sentence; empty where there is none.

    ``verdict``: a verdict's status; ``recorded`` where the value becomes the baseline; ``shown`` where nothing says how
    good it has to be. ``baseline`` and ``change_percent`` are None where this host has no baseline for it.
    """

    target: str
    check: str
    name: str
    value: float | None
    unit: str
    baseline: float | None
    change_percent: float | None
    limit: str
    verdict: Literal["pass", "fail", "not_measured", "error", "recorded", "shown"]
    cause: str | None = None
    observed: str = ""
    next_step: str = ""


@dataclass(frozen=True)
class GateResult:
    """``verdict.json``: the gate as a whole. ``status`` is ``pass`` only if every required verdict is.

    ``notes``: what changed since the baseline beside the values: kernel, driver, a GPU.
    """

    head: Head
    kernel: str
    required: tuple[str, ...]
    status: Status
    cause: str | None
    sentence: str
    verdicts: tuple[Verdict, ...]
    driver: str = ""
    comparisons: tuple[Comparison, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """``outcome.json``: how the host came out of the run, for the exit status and the report's first line.

    ``state``: ``good`` (on the target, gated), ``nothing_to_do``, ``planned`` (check mode), ``good_on_old``,
    ``stopped`` (a safe point, nothing lost), ``refused`` (input), ``needs_person``, ``untouched``.
    """

    head: Head
    state: str
    cause: str | None
    sentence: str
    exit_status: int


def as_dict(document: Any) -> dict[str, Any]:
    """A document as plain data; the fields of its head come first and are not nested."""
    data = dataclasses.asdict(document)
    head = data.pop("head", None)
    plain = json.loads(json.dumps({**(head or {}), **data}))
    return typing.cast("dict[str, Any]", plain)


def make_head(kind: str, host: str, run_id: str, version: int = 1) -> Head:
    """The head of a document of this kind, taken now."""
    return Head(SCHEMA_PREFIX + kind, version, host, run_id, utc_now())


def json_schema(document: type) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a document class, with the head's fields beside its own."""
    schema = _object_schema(document)
    if "head" in schema["properties"]:
        head = schema["properties"].pop("head")
        schema["properties"] = {**head["properties"], **schema["properties"]}
        schema["required"] = head["required"] + [name for name in schema["required"] if name != "head"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": document.__name__, **schema}


def _object_schema(document: type) -> dict[str, Any]:
    hints = typing.get_type_hints(document)
    names = [item.name for item in dataclasses.fields(document)]
    return {
        "type": "object",
        "properties": {name: _type_schema(hints[name]) for name in names},
        "required": names,
        "additionalProperties": False,
    }


_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def _type_schema(hint: Any) -> dict[str, Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if dataclasses.is_dataclass(hint):
        return _object_schema(typing.cast("type", hint))
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_type_schema(item) for item in args]}
    if origin in (list, tuple):
        return {"type": "array", "items": _type_schema(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type_schema(args[1])}
    raise TypeError(f"no JSON schema for {hint!r}")
