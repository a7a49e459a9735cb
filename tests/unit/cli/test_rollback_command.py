"""``gpuhost rollback``: with a kernel's name a roll there, without one the end of an open roll."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuhost_cli.main import parser, request_of
from gpuhost_cli.run import InputError, Request, arguments

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
INVENTORY = ("-i", "hosts.yml")


def request(*words: str) -> Request:
    return request_of(parser().parse_args(["rollback", *INVENTORY, *words]))


def test_a_name_is_handed_on_as_text() -> None:
    made = request("--to", "6.10", "--limit", "gpu1.example.com")
    assert made.playbook == "rollback"
    assert made.variables == {"rollback_to": "6.10"}
    given = arguments(made)
    assert json.loads(given[given.index("-e") + 1]) == {"rollback_to": "6.10"}


def test_without_a_name_the_inventory_can_set_none() -> None:
    assert request().variables == {"rollback_to": ""}


def test_another_trial_can_be_asked_for() -> None:
    assert request("--to", "6.1", "--retry-trial").variables == {"rollback_to": "6.1", "boot_trial_retry": True}
    with pytest.raises(InputError, match="goes with --to"):
        request("--retry-trial")


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_no_rollback_without_a_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        request("--to", name)
    assert caught.value.code == 2
    assert "without --to an open roll is ended" in capsys.readouterr().err


def test_an_upgrade_knows_no_way_back() -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["upgrade", *INVENTORY, "--to", "6.1"])
    assert "rollback_to" not in request_of(parser().parse_args(["upgrade", *INVENTORY, "--target", "6.12"])).variables


def listed(*more: str) -> list[str]:
    """The stages of the playbook's tasks, by their tags, in order."""
    argv = [str(BIN / "ansible-playbook"), "-i", str(ROOT / "inventory" / "example"), "--list-tasks", *more]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    result = subprocess.run(
        [*argv, str(ROOT / "playbooks" / "rollback.yml")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "DEPRECATION WARNING" not in result.stdout + result.stderr
    tags = [line.rpartition("TAGS: [")[2].rstrip("]") for line in result.stdout.splitlines() if "TAGS: [" in line]
    return list(dict.fromkeys(tag for tag in tags if tag and "always" not in tag))


@pytest.mark.play
@pytest.mark.parametrize("given", ["rollback_to=6.1", '{"rollback_to": 6.1}', '{"rollback_to": "6.1"}'])
def test_the_playbook_with_a_name_is_the_whole_roll(given: str) -> None:
    assert listed("-e", given) == [
        "survey", "plan", "prepare", "drain", "trial", "reconcile", "gate", "promote", "hand_back", "report",
    ]  # fmt: skip


@pytest.mark.play
@pytest.mark.parametrize("given", [(), ("-e", "rollback_to="), ("-e", '{"rollback_to": null}')])
def test_the_playbook_without_a_name_ends_a_roll_and_does_nothing_else(given: tuple[str, ...]) -> None:
    assert listed(*given) == ["rollback"]


@pytest.mark.play
def test_the_name_reaches_the_plan(tmp_path: Path) -> None:
    """On this machine, which may not be rolled: the plan is made, and names the way back that was asked for."""
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory = tmp_path / "hosts.json"
    inventory.write_text(json.dumps({"gpu_hosts": {"hosts": {"gpu1.example.com": host}}}))
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "GPUHOST_RUNS_DIR": str(tmp_path / "runs"),
        "GPUHOST_RUN_ID": "back",
    }
    argv = [str(BIN / "ansible-playbook"), "-i", str(inventory), str(ROOT / "playbooks" / "rollback.yml")]
    result = subprocess.run(
        [*argv, "-e", "rollback_to=0.10", "-e", "host_survey_apt_max_age=-1"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 2, result.stdout[-3000:] + result.stderr[-3000:]
    plan = json.loads((tmp_path / "runs" / "back" / "gpu1.example.com" / "plan.json").read_text())
    assert plan["wanted"] == "0.10"
    found = {item["cause"]: item for item in plan["blockers"]}
    assert "roll.controller_on_target" in found
    assert found["target.unknown"]["object"] == "--to 0.10"
