"""Run folders: whole files or none, no way out of the folder, and no record that breaks a roll."""

from __future__ import annotations

import errno
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhost.causes import BACK_ON_OLD, FINDINGS, GOOD, NEEDS_PERSON, SAFE_STOP, USAGE
from gpuhost_cli import outcomes, records
from gpuhost_cli.records import Recorder, new_run_id, safe_name


def read(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def recorder(tmp_path: Path, **kwargs: Any) -> Recorder:
    return Recorder(tmp_path, "20261130T011450Z-9f3c", **kwargs)


def document(kind: str, **fields: Any) -> dict[str, Any]:
    return {"schema": f"gpuhost.{kind}", "schema_version": 1, **fields}


def test_a_run_id_sorts_by_time() -> None:
    assert re.fullmatch(r"20261130T011450Z-[0-9a-f]{4}", new_run_id(datetime(2026, 11, 30, 1, 14, 50, tzinfo=UTC)))
    assert re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{4}", new_run_id())


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("gpu1.example.com", "gpu1.example.com"),
        ("2001:db8::1", "2001%3Adb8%3A%3A1"),
        ("../../etc", "%2E%2E%2F%2E%2E%2Fetc"),
        ("..", "%2E%2E"),
        (".hidden", "%2Ehidden"),
        ("run.json", "run%2Ejson"),
        ("report.html", "report%2Ehtml"),
        ("a/b", "a%2Fb"),
        ("", "%00"),
    ],
)
def test_a_host_name_is_one_folder_name(name: str, folder: str) -> None:
    assert safe_name(name) == folder


@given(st.text(max_size=400))
def test_no_name_leaves_its_folder(name: str) -> None:
    found = safe_name(name.encode("utf-8", "replace").decode())
    assert found
    assert "/" not in found
    assert "\0" not in found
    assert not found.startswith(".")
    assert len(found.encode()) < 200
    assert found not in ("run.json", "report.md", "report.html", "report.json")


def test_long_names_stay_apart() -> None:
    assert safe_name("h" * 300) != safe_name("h" * 301)


def test_documents_become_files_of_their_kind(tmp_path: Path) -> None:
    run = recorder(tmp_path)
    result = {"changed": True, "gpuhost_documents": [document("plan", n=1), document("preflight", n=2)]}
    assert run.take("gpu1.example.com", result) == ["plan", "preflight"]
    run.take("gpu1.example.com", {"gpuhost_documents": [document("plan", n=3)]})
    folder = run.run_dir / "gpu1.example.com"
    assert read(folder / "plan.json")["n"] == 3
    assert sorted(path.name for path in folder.iterdir()) == ["plan.json", "preflight.json"]
    assert run.documents("gpu1.example.com")["plan"]["n"] == 3


def test_the_first_facts_are_kept_beside_the_newest(tmp_path: Path) -> None:
    run = recorder(tmp_path)
    for number in (1, 2):
        run.take("lab1", {"gpuhost_documents": [document("facts", n=number)]})
    recorder(tmp_path).take("lab1", {"gpuhost_documents": [document("facts", n=3)]})
    assert read(run.run_dir / "lab1" / "facts.json")["n"] == 1
    assert read(run.run_dir / "lab1" / "facts_after.json")["n"] == 3, "another process of the same run knows too"


def test_the_items_of_a_loop_are_taken_too(tmp_path: Path) -> None:
    run = recorder(tmp_path)
    result = {"results": [{"gpuhost_documents": [document("plan")]}, {"skipped": True}, "text"]}
    assert run.take("lab1", result) == ["plan"]


@pytest.mark.parametrize(
    "result",
    [
        None,
        "text",
        {},
        {"gpuhost_documents": None},
        {"gpuhost_documents": {"schema": "gpuhost.plan"}},
        {"gpuhost_documents": [{"schema": "gpuhost../../x"}, {"schema": "other.plan"}, {"schema": 7}, {}, 3]},
    ],
)
def test_what_is_no_document_is_left_alone(tmp_path: Path, result: Any) -> None:
    run = recorder(tmp_path)
    assert run.take("lab1", result) == []
    assert not (run.run_dir / "lab1").exists()


def test_the_run_record_has_what_was_agreed(tmp_path: Path) -> None:
    run = recorder(tmp_path, command="gpuhost upgrade", check_mode=False)
    run.take("lab1", {"gpuhost_documents": [document("plan", wanted="6.12", target={"release": "6.12.94-amd64"})]})
    run.task("lab1", "prepare", "Install", seconds=1.234, status="failed", message="two\nlines")
    run.failure("lab1", "prepare", "Install", cause="dkms.headers_missing", message="no\nheaders", observed="none")
    assert run.finish() == SAFE_STOP
    record = read(run.run_dir / "run.json")
    assert list(record) == [
        "schema", "schema_version", "run_id", "command", "target", "check_mode", "started_at", "finished_at",
        "exit_status", "hosts", "tasks", "failures",
    ]  # fmt: skip
    assert record["schema"] == "gpuhost.run"
    assert record["target"] == "6.12.94-amd64"
    assert record["hosts"] == {"lab1": "stopped"}
    assert record["tasks"] == [
        {"host": "lab1", "stage": "prepare", "task": "Install", "seconds": 1.23, "status": "failed",
         "message": "two lines"}
    ]  # fmt: skip
    assert record["failures"] == [
        {"host": "lab1", "stage": "prepare", "task": "Install", "cause": "dkms.headers_missing",
         "message": "no headers", "observed": "none"}
    ]  # fmt: skip


def test_a_second_playbook_of_the_same_run_goes_on(tmp_path: Path) -> None:
    first = recorder(tmp_path, command="gpuhost upgrade")
    first.task("lab1", "survey", "Read", seconds=1, status="ok")
    first.finish()
    second = recorder(tmp_path, command="other")
    second.task("lab1", "plan", "Plan", seconds=1, status="ok")
    second.finish()
    record = read(second.run_dir / "run.json")
    assert record["command"] == "gpuhost upgrade"
    assert [task["stage"] for task in record["tasks"]] == ["survey", "plan"]


def test_no_half_written_file_and_no_temp_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    records.write_json(path, {"n": 1})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(records.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        records.write_json(path, {"n": 2})
    assert read(path) == {"n": 1}
    assert [item.name for item in tmp_path.iterdir()] == ["run.json"]


def test_a_full_disk_is_said_once_and_marked_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorder(tmp_path)
    real, disk = records.write_json, {"full": True}

    def write(path: Path, data: dict[str, Any]) -> None:
        if disk["full"]:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, data)

    monkeypatch.setattr(records, "write_json", write)
    for kind in ("facts", "plan", "roll"):
        run.take("lab1", {"gpuhost_documents": [document(kind)]})
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("gpuhost: the run goes on, but ")
    assert "facts.json could not be recorded: No space left on device" in error
    disk["full"] = False
    run.finish()
    marks = read(run.run_dir / "run.json")["record_errors"]
    assert marks == [f"{kind}.json: No space left on device" for kind in ("facts", "plan", "roll")]


def test_a_folder_that_is_a_file_breaks_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").write_text("in the way")
    run = Recorder(tmp_path / "runs", "r1")
    run.take("lab1", {"gpuhost_documents": [document("plan")]})
    run.failure("lab1", "plan", "Plan", cause="input.invalid", message="m")
    assert run.finish() == USAGE
    assert capsys.readouterr().err.count("\n") == 1


def state(
    docs: dict[str, Any], failures: list[dict[str, Any]] | None = None, stages: str = "survey plan",
    run: str = "survey plan prepare", check: bool = False,
) -> str:  # fmt: skip
    ran, all_ran = frozenset(stages.split()), frozenset(run.split())
    return str(outcomes.host_state(docs, failures or [], ran, all_ran, check_mode=check))


def test_states_follow_from_what_was_recorded() -> None:
    headers = [{"cause": "dkms.headers_missing"}]
    assert state({"outcome": {"state": "good"}}, headers) == "good", "the host's own outcome decides"
    assert state({"roll": {"state": "closed", "result": "good_on_old"}}, headers) == "good_on_old"
    assert state({}, headers) == "stopped"
    assert state({}, [{"cause": "roll.reboot_not_allowed"}]) == "refused"
    assert state({}, [{"cause": "workload.not_back"}]) == "needs_person"
    assert state({}, [{"cause": "host.unreachable"}]) == "unreachable"
    assert state({"roll": {"state": "open"}}, [{"cause": "host.unreachable"}]) == "needs_person"
    assert state({"verdict": {"status": "not_measured"}}, [{"cause": "gate.not_measured"}]) == "gate_failed"
    assert state({"plan": {"steps": []}}) == "untouched"
    assert state({}, stages="") == "untouched"
    assert state({"plan": {"blockers": [{}]}}) == "refused"
    assert state({"plan": {"nothing_to_do": True}}) == "nothing_to_do"
    assert state({"plan": {"steps": []}}, check=True) == "planned"
    assert state({"plan": {"steps": []}}, run="survey plan") == "planned"
    assert state({"verdict": {"status": "pass"}}, stages="gate", run="gate") == "ok"


def test_a_rescued_failure_does_not_stand() -> None:
    failures = [{"host": "lab1", "rescued": True}, {"host": "lab2"}, {"host": "lab1", "cause": "x"}]
    assert outcomes.standing_failures(failures, "lab1") == [{"host": "lab1", "cause": "x"}]


def test_the_run_ends_with_the_status_that_needs_a_person_most() -> None:
    assert outcomes.worst([]) == GOOD
    assert outcomes.worst([GOOD, FINDINGS]) == FINDINGS
    assert outcomes.worst([SAFE_STOP, USAGE]) == SAFE_STOP
    assert outcomes.worst([SAFE_STOP, BACK_ON_OLD]) == BACK_ON_OLD
    assert outcomes.worst([BACK_ON_OLD, NEEDS_PERSON, GOOD]) == NEEDS_PERSON
    assert outcomes.exit_status_of("dkms.headers_missing") == SAFE_STOP
    assert outcomes.exit_status_of("never.registered") == SAFE_STOP
    assert outcomes.exit_status_of("roll.reboot_not_allowed") == USAGE
