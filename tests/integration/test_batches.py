"""Batches, on the real roll.yml: one failed or lost host stops the roll (case roll-02). No host is needed for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parents[2]
LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
LOST = {"ansible_host": "127.0.0.1", "ansible_port": 9}
pytestmark = pytest.mark.play


def roll(
    tmp_path: Path, hosts: dict[str, dict[str, object]], batches: list[int], tags: str, *more: str
) -> dict[str, object]:
    """Run roll.yml on hosts that have a plan; the run's record, with ansible-playbook's own exit status in it."""
    plans = {
        name: {"kernel_upgrade_plan": {"plan": {"nothing_to_do": False}}, **variables}
        for name, variables in hosts.items()
    }
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"gpu_hosts": {"hosts": plans}}))
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "GPUHOST_RUNS_DIR": str(tmp_path / "runs"),
        "GPUHOST_RUN_ID": "batches",
    }
    variables = json.dumps({"roll_batches": batches})
    playbook = str(ROOT / "playbooks" / "roll.yml")
    argv = [str(BIN / "ansible-playbook"), "-i", str(inventory), playbook, "-e", variables, "--tags", tags, *more]
    result = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, check=False)
    print(result.stdout[-3000:], result.stderr[-3000:])
    assert "DEPRECATION WARNING" not in result.stdout + result.stderr
    record = json.loads((tmp_path / "runs" / "batches" / "run.json").read_text())
    return {**record, "rc": result.returncode}


def hosts_with_tasks(record: dict[str, object], stage: str) -> set[str]:
    tasks = record["tasks"]
    assert isinstance(tasks, list)
    return {task["host"] for task in tasks if task["stage"] == stage}


def test_a_failed_host_stops_the_roll_although_its_failure_was_rescued(tmp_path: Path) -> None:
    """Promote without a verdict fails; the rescue runs, and fails at its end."""
    record = roll(tmp_path, dict.fromkeys(("h1", "h2", "h3"), LOCAL), [1], "promote,rollback")
    assert record["rc"] == 2
    assert hosts_with_tasks(record, "promote") == {"h1"}
    assert hosts_with_tasks(record, "rollback") == {"h1"}


def test_a_host_lost_in_a_batch_of_two_stops_the_next_batch(tmp_path: Path) -> None:
    """Ansible itself would go on: only a part of the batch was lost, and rescue does not run for it."""
    record = roll(tmp_path, {"h1": LOST, "h2": LOCAL, "h3": LOCAL}, [2, 1], "reconcile", "--check")
    assert record["rc"] != 0
    assert hosts_with_tasks(record, "reconcile") == {"h1", "h2"}
    failures = record["failures"]
    assert isinstance(failures, list)
    assert any(item["host"] == "h3" and "lost: h1" in item["message"] for item in failures)


def test_an_idle_host_does_not_stop_the_next_batch(tmp_path: Path) -> None:
    idle = {**LOCAL, "kernel_upgrade_plan": {"plan": {"nothing_to_do": True}}}
    record = roll(tmp_path, {"h1": idle, "h2": idle}, [1], "drain")
    assert record["rc"] == 0
    assert record["failures"] == []


@pytest.mark.parametrize("path", sorted((ROOT / "playbooks").glob("*.yml")), ids=lambda path: path.stem)
def test_every_playbook_parses_without_a_deprecation_warning(path: Path) -> None:
    argv = [str(BIN / "ansible-playbook"), "-i", str(ROOT / "inventory" / "example"), "--syntax-check", str(path)]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    result = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "DEPRECATION WARNING" not in result.stdout + result.stderr


def test_the_order_of_the_stages_in_the_roll() -> None:
    """The one play has them in DESIGN's order, and each has its playbook, its task file and its tag."""
    from gpuhost.documents import STAGES  # noqa: PLC0415

    play = yaml.safe_load((ROOT / "playbooks" / "roll.yml").read_text())[0]
    block = next(task for task in play["tasks"] if "block" in task)
    stages = [task["tags"][0] for task in block["block"]]
    assert stages == [stage for stage in STAGES if stage in stages]
    assert set(STAGES) - set(stages) == {"survey", "plan", "report"}
    for stage in (*STAGES, "rollback"):
        assert (ROOT / "playbooks" / f"{stage}.yml").is_file()
        assert (ROOT / "playbooks" / "stages" / f"{stage}.yml").is_file()
    assert play["max_fail_percentage"] == 0
    assert "ansible.builtin.fail" in block["rescue"][-1]
