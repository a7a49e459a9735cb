"""Measurements say one thing each, survive the way through a pipe, and are written as one document."""

import json
import re

import pytest

from gpu_checks.causes import CAUSES
from gpu_checks.measurement import Measurement, Samples, document, from_dict, render_json, render_text, to_dict

GOOD = Measurement("p2p", 51.0, "gb_s", "copy", "measured", None, 0.2, samples=Samples(20, 51.0, 50.0, 52.0))
BAD = Measurement("device_access", 0, "gpus", "open", "error", "device.denied_cgroup", 0.1, detail={"message": "why"})


@pytest.mark.parametrize("measurement", [GOOD, BAD])
def test_plain_form_and_back(measurement):
    assert from_dict(json.loads(json.dumps(to_dict(measurement)))) == measurement


@pytest.mark.parametrize(
    ("status", "cause", "value"),
    [
        ("measured", "check.timeout", 1),
        ("error", None, 1),
        ("not_measured", None, None),
        ("pass", None, 1),
        ("error", "no.such_cause", None),
        ("measured", None, None),
    ],
)
def test_a_measurement_that_contradicts_itself_is_refused(status, cause, value):
    with pytest.raises(ValueError):
        Measurement("x", value, "us", "m", status, cause, 0.0)


@pytest.mark.parametrize("plain", [None, [], {}, {"name": "x"}, {**to_dict(GOOD), "more": 1}])
def test_what_is_no_measurement_is_refused(plain):
    with pytest.raises(ValueError):
        from_dict(plain)


def test_samples_of_another_form_are_refused():
    with pytest.raises(ValueError):
        from_dict({**to_dict(GOOD), "samples": {"n": 1}})


def test_the_document_has_the_agreed_fields():
    plain = json.loads(render_json(document([GOOD, BAD], "run-7")))
    assert set(plain) == {
        "schema", "schema_version", "run_id", "tool_version", "python", "host", "taken_at", "measurements",
    }  # fmt: skip
    assert (plain["schema"], plain["schema_version"], plain["run_id"]) == ("gpuhost.measurements", 1, "run-7")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", plain["taken_at"])
    assert set(plain["measurements"][0]) == {
        "name", "value", "unit", "method", "clock", "samples", "status", "cause", "seconds", "detail",
    }  # fmt: skip
    assert plain["measurements"][0]["samples"] == {"n": 20, "median": 51.0, "p20": 50.0, "p80": 52.0}


def test_numbers_that_are_not_json_are_refused():
    endless = Measurement("x", float("nan"), "us", "m", "measured", None, 0.0)
    with pytest.raises(ValueError):
        render_json(document([endless]))


def test_text_names_the_cause_and_why():
    text = render_text(document([GOOD, BAD]))
    assert re.search(r"^p2p +measured +51 gb_s$", text, re.M)
    assert re.search(r"^device_access +error +0 gpus +device.denied_cgroup: why$", text, re.M)


def test_text_has_a_measurements_table_below_its_line():
    table = "ce_gb_s      0      1\n0            -  393.3\n1           52      -"
    with_table = Measurement("p2p", 2, "pairs", "copy", "measured", None, 0.1, detail={"table": table})
    lines = render_text(document([GOOD, with_table, BAD])).splitlines()
    assert lines[2:5] == ["    ce_gb_s      0      1", "    0            -  393.3", "    1           52      -"]
    assert lines[5].startswith("device_access")


def test_text_ends_with_the_sum_and_what_failed():
    absent = Measurement("p2p.ce.0-1", None, "gb_s", "copy", "not_measured", "p2p.not_reached", 0.1)
    assert render_text(document([GOOD])).splitlines()[-1] == "total: 1 measured"
    assert render_text(document([GOOD, absent, BAD])).splitlines()[-1] == (
        "total: 1 measured, 1 not measured, 1 error (device.denied_cgroup: device_access)"
    )
    hung = [Measurement(f"p2p.ce.0-{n}", None, "gb_s", "copy", "error", "p2p.hang", 0.1) for n in range(1, 8)]
    assert render_text(document(hung)).splitlines()[-1] == (
        "total: 0 measured, 7 errors (p2p.hang: p2p.ce.0-1, p2p.hang: p2p.ce.0-2, p2p.hang: p2p.ce.0-3, "
        "p2p.hang: p2p.ce.0-4, p2p.hang: p2p.ce.0-5, and 2 more)"
    )
    assert render_text(document([])) == "total: 0 measured\n"


def test_every_cause_has_one_sentence():
    assert all(re.fullmatch(r"[a-z0-9]+\.[a-z0-9_]+", code) for code in CAUSES)
    assert all(sentence.endswith(".") and sentence[0].isupper() for sentence in CAUSES.values())
    assert len(set(CAUSES.values())) == len(CAUSES)
