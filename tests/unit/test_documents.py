"""Every document fits the JSON schema that is made from its class, and begins with its head."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fake_roll import (
    CONTROLLER,
    HOST_NAME,
    PASSED,
    RUN_ID,
    debian_host,
    facts_of,
    power_cycle,
    prepared,
    roll_of,
    step,
    wishes,
)
from fake_tree import NEW

from gpuhost import documents
from gpuhost.documents import (
    GateResult,
    Outcome,
    Plan,
    Preflight,
    as_dict,
    json_schema,
    make_head,
    seconds_between,
    utc_now,
)
from gpuhost.gate import judge
from gpuhost.plan import make_plan
from gpuhost.preflight import prove
from gpuhost.rollfile import Roll

HEAD = ["schema", "schema_version", "host", "run_id", "taken_at"]
CLASSES = {"plan": Plan, "preflight": Preflight, "verdict": GateResult, "outcome": Outcome, "roll": Roll}
MEASURED = {"name": "device_access", "value": 1, "unit": "gpus", "status": "measured", "cause": None, "detail": {}}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Documents of a whole roll, by kind."""
    host = debian_host(tmp_path_factory.mktemp("host"))
    found = [as_dict(make_plan(facts_of(host), wishes(target="7.1", gate_required=()), RUN_ID, CONTROLLER))]
    found.append(as_dict(make_plan(facts_of(host), wishes(), RUN_ID, CONTROLLER)))
    prepared(host)
    found.append(as_dict(prove(host, HOST_NAME, RUN_ID, roll_of(host))))
    found.append(as_dict(dataclasses.replace(roll_of(host), fallback=None)))
    step(host, "gpuhost_workload", state="drained")
    step(host, "gpuhost_boot_trial", action="boot", allowed=True)
    power_cycle(host)
    found += step(host, "gpuhost_lxc_devices")["gpuhost_documents"]
    failed = {**MEASURED, "status": "error", "cause": "device.open_failed"}
    found += [
        as_dict(judge(HOST_NAME, RUN_ID, NEW, ["device_access"], {"gpu-ct": {"measurements": [item], "stale": []}}))
        for item in (MEASURED, failed)
    ]
    step(host, "gpuhost_boot_trial", action="promote", verdict=PASSED)
    found += step(host, "gpuhost_workload", state="handed_back", sentence="passed")["gpuhost_documents"]
    kinds: dict[str, list[dict[str, Any]]] = {}
    for document in found:
        kinds.setdefault(document["schema"].removeprefix("gpuhost."), []).append(document)
    return kinds


@pytest.mark.parametrize("kind", CLASSES)
def test_real_documents_fit_their_schema(real: dict[str, list[dict[str, Any]]], kind: str) -> None:
    schema = json_schema(CLASSES[kind])
    jsonschema.Draft202012Validator.check_schema(schema)
    assert real[kind]
    for document in real[kind]:
        jsonschema.validate(document, schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("kind", CLASSES)
def test_the_head_comes_first_and_flat(real: dict[str, list[dict[str, Any]]], kind: str) -> None:
    for document in real[kind]:
        assert list(document)[:5] == HEAD
        assert "head" not in document
        assert document["host"] == HOST_NAME
        assert document["taken_at"].endswith("Z")
    assert list(json_schema(CLASSES[kind])["properties"])[:5] == HEAD


@pytest.mark.parametrize("kind", CLASSES)
def test_a_field_too_many_or_too_few_does_not_fit(real: dict[str, list[dict[str, Any]]], kind: str) -> None:
    validator = jsonschema.Draft202012Validator(json_schema(CLASSES[kind]))
    document = real[kind][0]
    assert not validator.is_valid({**document, "more": 1})
    for name in document:
        assert not validator.is_valid({key: value for key, value in document.items() if key != name}), name


def test_wrong_values_do_not_fit(real: dict[str, list[dict[str, Any]]]) -> None:
    validator = jsonschema.Draft202012Validator(json_schema(GateResult))
    assert not validator.is_valid({**real["verdict"][0], "status": "passed"})
    assert not validator.is_valid({**real["verdict"][0], "required": "device_access"})


def test_a_document_is_plain_data(real: dict[str, list[dict[str, Any]]]) -> None:
    for found in real.values():
        for document in found:
            assert json.loads(json.dumps(document)) == document


def test_every_type_of_a_field_has_a_schema() -> None:
    @dataclasses.dataclass(frozen=True)
    class Odd:
        thing: complex

    with pytest.raises(TypeError, match="complex"):
        json_schema(Odd)


def test_all_dataclasses_here_have_a_schema() -> None:
    found = [item for item in vars(documents).values() if dataclasses.is_dataclass(item)]
    assert len(found) > 8
    for item in found:
        jsonschema.Draft202012Validator.check_schema(json_schema(item))  # type: ignore[arg-type]


def test_times() -> None:
    assert seconds_between("2026-01-31T12:00:00Z", "2026-02-01T12:00:01Z") == 86401
    assert seconds_between(utc_now(), utc_now()) in (0, 1)
    with pytest.raises(ValueError, match="does not match"):
        seconds_between("2026-01-31 12:00:00", utc_now())


def test_the_head_names_its_kind() -> None:
    head = make_head("plan", HOST_NAME, RUN_ID)
    assert (head.schema, head.schema_version) == ("gpuhost.plan", 1)


def test_facts_and_measurements_begin_with_the_same_head(tmp_path: Path) -> None:
    assert list(facts_of(debian_host(tmp_path)))[:5] == HEAD
