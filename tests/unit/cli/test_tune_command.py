"""``gpuhost tune``: what it asks for, the last lines of a run, one document for each concern."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuhost.causes import FINDINGS, GOOD
from gpuhost_cli import outcomes, tune
from gpuhost_cli.main import parser, request_of
from gpuhost_cli.records import Recorder
from gpuhost_cli.run import InputError, Request, arguments

ROOT = Path(__file__).parents[3]
HOST = "gpu1.example.com"


def request(*words: str) -> Request:
    return request_of(parser().parse_args(["tune", "-i", "hosts.yml", *words]))


def finding(severity: str, **more: str) -> dict[str, str]:
    words = {"id": "sysctl.overridden", "observed": "zz.conf sets it after our file", "fix": "Take it out"}
    return {**words, "severity": severity, **more}


def document(concern: str, statuses: str = "", *findings: dict[str, str]) -> dict[str, Any]:
    words = {"w": "written", "s": "same", "r": "refused"}
    return {
        "schema": "gpuhost.tune", "schema_version": 1, "concern": concern, "findings": list(findings),
        "written": [{"status": words[letter]} for letter in statuses],
    }  # fmt: skip


def test_tune_and_revert_are_two_playbooks() -> None:
    made = request("--check", "--tags", "cpu, pcie", "--limit", "gpu1", "--hosts", "gpus")
    assert (made.playbook, made.check, made.limit) == ("tune", True, "gpu1")
    assert made.variables == {"gpuhost_hosts": "gpus"}
    assert arguments(made)[-2:] == ["--tags", "cpu,pcie"]
    assert request("--revert").playbook == "tune_revert"
    for name in ("tune", "tune_revert"):
        assert (ROOT / "playbooks" / f"{name}.yml").is_file()


def test_the_tags_are_those_of_the_stage() -> None:
    stage = yaml.safe_load((ROOT / "playbooks/stages/tune.yml").read_text())
    assert [task["tags"] for task in stage] == [[tag] for tag in tune.TAGS]


@pytest.mark.parametrize("words", [["--tags", "memory"], ["--tags", ""], ["--tags", "cpu,,pcie"]])
def test_a_tag_that_is_none_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        request(*words)
    assert caught.value.code == 2
    assert "sysctl,cpu,gpu,pcie" in capsys.readouterr().err


def test_revert_is_about_everything() -> None:
    with pytest.raises(InputError, match="everything"):
        request("--revert", "--tags", "cpu")


def test_each_concern_has_a_document_of_its_own(tmp_path: Path) -> None:
    run = Recorder(tmp_path, "20261130T011450Z-9f3c")
    for concern in ("sysctl", "gpu_runtime"):
        assert run.take(HOST, {"gpuhost_documents": [document(concern)]}) == ["tune"]
    run.take(HOST, {"gpuhost_documents": [document("sysctl", "w"), {"schema": "gpuhost.tune", "concern": "../x"}]})
    folder = run.run_dir / HOST
    assert sorted(path.name for path in folder.iterdir()) == ["tune-gpu_runtime.json", "tune-sysctl.json", "tune.json"]
    assert json.loads((folder / "tune-sysctl.json").read_text())["written"] == [{"status": "written"}]
    assert set(run.documents(HOST)) == {"tune-sysctl", "tune-gpu_runtime", "tune"}


def summary(*documents: dict[str, Any], check: bool = False) -> list[str]:
    return list(tune.summary({HOST: {item["concern"]: item for item in documents}, "localhost": {}}, check))


def test_the_last_lines_say_what_was_written_and_what_is_left() -> None:
    found = summary(
        document("sysctl", "wwsr", finding("p0_runtime"), finding("good"), finding("info")),
        document("cpu", "s", finding("p1_reboot", id="cpu.scaling_driver")),
    )
    assert found == [
        f"{HOST}: 2 written, 1 refused, 2 as wished; 1 left to do, 1 for the next reboot (gpuhost audit)",
        "          sysctl.overridden: zz.conf sets it after our file: Take it out",
        "no effect on speed is claimed for what was set: none was measured",
    ]


def test_a_second_run_says_that_nothing_was_written() -> None:
    assert summary(document("sysctl", "ss"), document("pcie", "s")) == [
        f"{HOST}: 0 written, 3 as wished",
        "no effect on speed is claimed for what was set: none was measured",
    ]


def test_check_mode_and_revert_claim_nothing_at_all() -> None:
    assert summary(document("sysctl", "ws", finding("p0_runtime")), check=True) == [
        f"{HOST}: 1 to be written, 1 as wished"
    ]
    assert summary(document("revert", "ws")) == [f"{HOST}: 1 put back, 1 as before"]
    assert summary(document("revert", "w"), check=True) == [f"{HOST}: 1 to be put back, 0 as before"]
    assert summary({"schema": "gpuhost.plan", "concern": "x"}) == []


@pytest.mark.parametrize(
    ("severity", "status"), [("p0_runtime", FINDINGS), ("security", FINDINGS), ("p1_reboot", GOOD), ("unknown", GOOD)]
)
def test_what_tuning_was_to_end_and_did_not_is_exit_status_1(severity: str, status: int) -> None:
    found = {"tune-sysctl": document("sysctl", "s", finding(severity)), "tune-cpu": document("cpu")}
    state = outcomes.host_state(found, [], frozenset({"Tune"}), frozenset({"Tune"}))
    assert state == ("findings" if status else "ok")
    assert outcomes.state_exit_status(state, found, []) == status
