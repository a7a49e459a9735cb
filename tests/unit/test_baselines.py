"""The file of baselines on a host: never "none" for one that is there, written whole, bounded; it does not drift."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost, Killed
from fake_roll import HOST_NAME, library
from fake_tree import NEW, OLD

from gpuhost import baselines
from gpuhost.baselines import FILE, HISTORY_RUNS, Entry, Origin, Update
from gpuhost.errors import Stop

FIRST = Origin(
    "2026-01-31T12:00:00Z", "run-1", OLD, "570.1", {"host": ["GPU-a"]}, {"host": {"memory": [{"pstate": "P0"}]}}
)
SECOND = Origin("2026-02-28T12:00:00Z", "run-2", NEW, "580.2", {"host": ["GPU-a"]})
ENTRY = Entry(3900.0, "gb_s", FIRST.key, 3890.0, 3910.0)
UPDATE = Update(FIRST, {"host": {"memory": ENTRY}}, {"host": {"memory": 3900.0}})


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def keep(host: FakeHost, update: Update, check: bool = False) -> dict[str, Any]:
    module, _ = library("gpuhost_baseline")
    plain = json.loads(json.dumps(asdict(update)))  # as it comes through Ansible
    answer: dict[str, Any] = module.work(host, {"host_name": HOST_NAME, "update": plain}, check)
    return answer


def read(host: FakeHost) -> baselines.Baselines:
    return baselines.from_dict(baselines.read(host))


def test_what_is_recorded_is_read_again(host: FakeHost) -> None:
    answer = keep(host, UPDATE)
    assert answer["changed"]
    assert answer["lines"] == [f"host: 1 values are the baseline now ({FIRST.key})"]
    assert answer["diff"][0]["after"] == "host memory: 3900 gb_s\n"
    found = read(host)
    assert found.entry("host", "memory") == ENTRY
    assert found.origin(ENTRY) == FIRST
    assert found.entry("host", "cuda") is None
    assert (found.head.schema, found.head.schema_version, found.head.host) == ("gpuhost.baselines", 1, HOST_NAME)
    assert host.mode(FILE) == 0o600


def test_nothing_is_written_before_somebody_asks_for_a_baseline(host: FakeHost) -> None:
    answer = keep(host, replace(UPDATE, entries={"host": {}}))
    assert not answer["changed"]
    assert baselines.read(host) is None


def test_a_later_gate_is_history_and_no_change(host: FakeHost) -> None:
    keep(host, UPDATE)
    answer = keep(host, Update(SECOND, {"host": {}}, {"host": {"memory": 3950.0}}))
    assert (answer["changed"], answer["lines"], answer["diff"]) == (False, [], [])
    found = read(host)
    assert found.entry("host", "memory") == ENTRY  # it does not drift
    assert [(item.origin.run_id, item.values["host"]["memory"]) for item in found.history] == [
        ("run-1", 3900.0), ("run-2", 3950.0),
    ]  # fmt: skip
    assert list(found.origins) == [FIRST.key]  # of the second run nothing is a baseline


def test_the_history_is_bounded(host: FakeHost) -> None:
    keep(host, UPDATE)
    for number in range(HISTORY_RUNS + 5):
        keep(host, Update(replace(SECOND, run_id=f"run-{number}"), {}, {"host": {"memory": float(number)}}))
    found = read(host)
    assert len(found.history) == HISTORY_RUNS
    assert found.history[-1].values["host"]["memory"] == HISTORY_RUNS + 4
    assert found.entry("host", "memory") == ENTRY


def test_a_replaced_baseline_forgets_where_it_came_from(host: FakeHost) -> None:
    keep(host, UPDATE)
    answer = keep(host, Update(SECOND, {"host": {"memory": Entry(4000.0, "gb_s", SECOND.key)}}, {}, {"host": ["old"]}))
    assert answer["changed"]
    assert answer["diff"][0]["before"] == "host memory: 3900 gb_s\n"
    assert list(read(host).origins) == [SECOND.key]


def test_check_mode_says_it_and_writes_nothing(host: FakeHost) -> None:
    before = host.snapshot()
    assert keep(host, UPDATE, check=True)["changed"]
    assert host.snapshot() == before


GOOD: dict[str, Any] = {
    "schema": "gpuhost.baselines", "schema_version": 1, "host": "h", "run_id": "r", "taken_at": "2026-01-31T12:00:00Z",
    "origins": {}, "targets": {}, "history": [],
}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        json.dumps({**GOOD, "schema": "gpuhost.roll"}),
        json.dumps({**GOOD, "targets": {"host": {"memory": {"value": "much", "unit": "gb_s", "origin": "x"}}}}),
        json.dumps({**GOOD, "targets": {"host": {"memory": {"value": 1}}}}),
        json.dumps({**GOOD, "targets": []}),
        json.dumps({key: value for key, value in GOOD.items() if key != "history"}),
    ],
)
def test_a_file_that_cannot_be_read_is_never_no_baseline(host: FakeHost, text: str) -> None:
    host.put(FILE, text)
    for work in (lambda: baselines.read(host), lambda: keep(host, UPDATE)):
        with pytest.raises(Stop) as caught:
            work()
        assert caught.value.blocker.cause == "gate.baseline_unreadable"
        assert FILE in caught.value.blocker.next_step
    assert host.read(FILE) == text


def test_a_newer_gpuhosts_file_is_left_alone(host: FakeHost) -> None:
    host.put(FILE, json.dumps({**GOOD, "schema_version": 2}))
    with pytest.raises(Stop) as caught:
        baselines.read(host)
    assert (caught.value.blocker.observed, caught.value.blocker.expected) == ("written in version 2", "version 1")


def test_a_folder_in_its_place_is_not_no_baseline(host: FakeHost) -> None:
    host.path(FILE).mkdir(parents=True)
    with pytest.raises(Stop) as caught:
        baselines.read(host)
    assert caught.value.blocker.cause == "gate.baseline_unreadable"


def test_a_power_cut_leaves_the_old_file_or_the_new_one(host: FakeHost) -> None:
    keep(host, UPDATE)
    before = host.read(FILE)
    host.die_after = len(host.effects) + 1
    with pytest.raises(Killed):
        keep(host, Update(SECOND, {"host": {"memory": Entry(4000.0, "gb_s", SECOND.key)}}, {}))
    assert host.read(FILE) != before  # the write is one effect: it was through
    assert read(host).entry("host", "memory").value == 4000.0  # type: ignore[union-attr]


def test_a_gpu_that_went_and_one_that_came() -> None:
    now = replace(SECOND, gpus={"host": ["GPU-b", "GPU-c"], "other": ["GPU-x"]})
    found = baselines.merged(None, UPDATE, HOST_NAME)
    assert found is not None
    lines = baselines.changes_since(found, now)
    assert "host: GPU 0 is GPU-b, the baseline was taken on GPU-a" in lines
    assert "host: GPU 1 is GPU-c, the baseline was taken on none" in lines
    assert len(lines) == 3
    assert "host: GPU 0 is none, the baseline was taken on GPU-a" in baselines.changes_since(
        found, replace(SECOND, gpus={"host": []})
    )
