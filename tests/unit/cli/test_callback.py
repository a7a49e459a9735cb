"""The callback beside a real ansible-playbook: it records and reports, and changes no result."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]

MODULE = """
from ansible.module_utils.basic import AnsibleModule

def main():
    module = AnsibleModule(
        argument_spec={
            "documents": {"type": "list", "elements": "dict", "default": []},
            "cause": {"type": "str"},
        }
    )
    documents = module.params["documents"]
    if module.params["cause"]:
        module.fail_json(
            msg="it did not work\\nat all", cause=module.params["cause"], observed="a", expected="b",
            next_step="do c", gpuhost_documents=documents,
        )
    module.exit_json(changed=True, gpuhost_documents=documents)

main()
"""

PLAY = """
- name: Survey
  hosts: gpu_hosts
  gather_facts: false
  tags: [survey]
  tasks:
    - name: Read the host
      given:
        documents: [{schema: gpuhost.facts, n: 1}]

- name: Roll
  hosts: gpu_hosts
  gather_facts: false
  serial: 1
  max_fail_percentage: 0
  tasks:
    - name: Plan on the controller
      given:
        documents:
          - schema: gpuhost.plan
            run_id: "{{ lookup('ansible.builtin.env', 'GPUHOST_RUN_ID') }}"
      delegate_to: localhost
      tags: [plan]
    - name: Prepare
      ansible.builtin.include_tasks: {file: included.yml, apply: {tags: [prepare]}}
      tags: [prepare]
    - name: Do it once
      given: {}
      run_once: true
      loop: [1, 2]
    - name: Skip this
      given: {}
      when: false
    - name: Survive this
      given: {cause: apt.locked}
      ignore_errors: true
    - name: Gate
      tags: [gate]
      block:
        - name: Measure
          given:
            cause: "{{ 'lxc.stale_major' if item == 2 and inventory_hostname == 'lab2' else '' }}"
          loop: [1, 2]
      rescue:
        - name: Stop the roll
          ansible.builtin.fail: {msg: back on the old kernel}
          tags: [promote]
"""

INCLUDED = """
- name: Install
  given:
    documents: [{schema: gpuhost.facts, n: 2}]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    hosts = "".join(f"{name} ansible_connection=local\n" for name in ("lab1", "lab2", "lab3"))
    files = {
        "hosts": f"localhost ansible_connection=local\n[gpu_hosts]\n{hosts}"
        f"[all:vars]\nansible_python_interpreter={sys.executable}\n",
        "play.yml": PLAY,
        "included.yml": INCLUDED,
        "library/given.py": MODULE,
        "ansible.cfg": "[defaults]\ninventory=hosts\nlibrary=library\ncallbacks_enabled=gpuhost_progress\n"
        f"callback_plugins={ROOT / 'callback_plugins'}\ndeprecation_warnings=True\n",
    }
    (tmp_path / "library").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def play(project: Path, playbook: str = "play.yml", *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GPUHOST_", "ANSIBLE_"))}
    clean |= {"ANSIBLE_CONFIG": str(project / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", **env}
    command = [str(Path(sys.executable).parent / "ansible-playbook"), playbook, *arguments]
    return subprocess.run(
        command, cwd=project, env=clean, capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip


def record_of(project: Path) -> tuple[Path, dict[str, Any]]:
    (folder,) = (project / "runs").iterdir()
    return folder, json.loads((folder / "run.json").read_text())


@pytest.mark.play
@pytest.mark.parametrize("strategy", ["linear", "free"])
def test_a_roll_that_fails_on_its_second_host(project: Path, strategy: str) -> None:
    result = play(project, ANSIBLE_STRATEGY=strategy)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "DEPRECATION" not in result.stdout + result.stderr
    folder, record = record_of(project)
    assert re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{4}", record["run_id"])
    assert record["command"] == "ansible-playbook play.yml"
    assert record["hosts"] == {"lab1": "ok", "lab2": "stopped", "lab3": "untouched"}
    assert record["exit_status"] == 3, "lxc.stale_major"
    steps = [(task["stage"], task["task"], task["status"]) for task in record["tasks"] if task["host"] == "lab2"]
    wanted = [
        ("survey", "Read the host", "changed"),
        ("plan", "Plan on the controller", "changed"),
        ("prepare", "Prepare", "ok"),
        ("prepare", "Install", "changed"),
        ("Roll", "Do it once", "changed"),
        ("Roll", "Skip this", "skipped"),
        ("Roll", "Survive this", "failed"),
        ("gate", "Measure", "failed"),
        ("promote", "Stop the roll", "failed"),
    ]
    assert steps == wanted
    failures = [{key: entry.get(key) for key in ("host", "stage", "cause", "rescued")} for entry in record["failures"]]
    assert failures == [
        {"host": "lab2", "stage": "gate", "cause": "lxc.stale_major", "rescued": True},
        {"host": "lab2", "stage": "promote", "cause": "lxc.stale_major", "rescued": None},
    ]
    assert record["failures"][0]["message"] == "it did not work at all"
    assert record["failures"][0]["next_step"] == "do c"
    assert json.loads((folder / "lab2" / "facts.json").read_text())["n"] == 1
    assert json.loads((folder / "lab2" / "facts_after.json").read_text())["n"] == 2
    assert json.loads((folder / "lab1" / "plan.json").read_text())["run_id"] == record["run_id"], "by an env lookup"
    assert not (folder / "localhost").exists()
    assert "[ 0:0" in result.stderr
    assert "lab2 gate: Measure … failed in " in result.stderr
    assert result.stderr.rstrip().endswith(f"report: {folder / 'report.html'}")
    assert "lab3 is untouched" in (folder / "report.md").read_text().splitlines()[0]


ONE = """
- name: Gate
  hosts: {hosts}
  gather_facts: false
  tasks:
    - name: Measure
      given: {{{arguments}}}
"""


def one_task(project: Path, arguments: str = "", hosts: str = "lab1") -> None:
    (project / "play.yml").write_text(ONE.format(hosts=hosts, arguments=arguments))


VERDICT = """
        cause: memory.slow
        documents:
          - schema: gpuhost.verdict
            kernel: 6.8.12
            status: fail
            required: [memory]
            verdicts:
              - {check: memory, target: host, status: fail, required: true, cause: memory.slow, next_step: Look there.}
            comparisons:
              - {name: memory.copy.gpu0, check: memory, target: host, value: 4100, unit: gb_s, verdict: pass}
              - {name: memory.copy.gpu3, check: memory, target: host, value: 2104, unit: gb_s, baseline: 3991,
                 change_percent: -47.3, limit: at least 3791 GB/s (baseline - 5 %), verdict: fail, cause: memory.slow}
"""


@pytest.mark.play
def test_a_gate_that_fails_shows_what_failed_and_the_way_out(project: Path) -> None:
    (project / "play.yml").write_text(
        "- name: Gate\n  hosts: lab1\n  gather_facts: false\n  tasks:\n    - name: Judge\n      tags: [gate]\n"
        f"      given:{VERDICT}"
    )
    result = play(project)
    assert result.returncode == 2, result.stdout + result.stderr
    lines = [line.strip() for line in result.stderr.splitlines()]
    first = next(number for number, line in enumerate(lines) if "Judge … failed in" in line)
    assert re.fullmatch(r"measurement +now +baseline +change +limit +verdict", lines[first + 1])
    assert lines[first + 2].split()[:4] == ["memory.copy.gpu3", "2104", "GB/s", "3991"]
    assert lines[first + 2].endswith("fail memory.slow")
    assert lines[first + 3] == "next: Look there."
    assert not any("memory.copy.gpu0" in line for line in lines), "what passed is in the report"
    folder, _ = record_of(project)
    assert "memory.copy.gpu0" in (folder / "report.html").read_text()


@pytest.mark.play
def test_a_run_that_only_measures_has_a_report(project: Path) -> None:
    item = "{name: memory, value: 1, unit: gpus, status: measured}"
    one_task(
        project,
        "documents: [{schema: gpuhost.measurements, concern: memory, "
        f"targets: {{host: {{measurements: [{item}]}}}}}}]",
    )
    result = play(project)
    assert result.returncode == 0, result.stdout + result.stderr
    folder, _ = record_of(project)
    assert (folder / "lab1" / "measurements-memory.json").exists()
    assert "lab1: 1 value measured, nothing judged" in result.stderr
    assert "1 value measured" in (folder / "report.html").read_text()


@pytest.mark.play
def test_progress_can_be_off_and_the_run_named_from_outside(project: Path) -> None:
    one_task(project, "documents: [{schema: gpuhost.plan, nothing_to_do: true}]")
    elsewhere = project / "else where"
    result = play(
        project, GPUHOST_PROGRESS="off", GPUHOST_RUN_ID="20261130T011450Z-9f3c", GPUHOST_RUNS_DIR=str(elsewhere),
        GPUHOST_COMMAND="gpuhost upgrade",
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    record = json.loads((elsewhere / "20261130T011450Z-9f3c" / "run.json").read_text())
    assert record["command"] == "gpuhost upgrade"
    assert record["hosts"] == {"lab1": "nothing_to_do"}
    assert record["exit_status"] == 0
    assert (elsewhere / "20261130T011450Z-9f3c" / "report.html").exists()
    assert not (project / "runs").exists()


@pytest.mark.play
def test_a_host_that_does_not_answer(project: Path) -> None:
    one_task(project, hosts="far")
    with (project / "hosts").open("a") as inventory:
        inventory.write("[far]\nnowhere ansible_host=192.0.2.1 ansible_connection=ssh\n")
    result = play(project, ANSIBLE_SSH_EXECUTABLE="/bin/false")
    assert result.returncode == 4, result.stdout + result.stderr
    _, record = record_of(project)
    assert record["hosts"] == {"nowhere": "unreachable"}
    assert [task["status"] for task in record["tasks"]] == ["unreachable"]
    (failure,) = record["failures"]
    assert failure["cause"] == "host.unreachable"
    assert "\n" not in failure["message"]
    assert record["exit_status"] == 2


@pytest.mark.play
def test_a_folder_that_can_not_be_written_breaks_no_play(project: Path) -> None:
    one_task(project, "documents: [{schema: gpuhost.plan}]")
    (project / "runs").write_text("in the way")
    result = play(project)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "failed=0" in result.stdout
    assert "could not be recorded" in result.stdout + result.stderr
    assert "report could not be written" in result.stdout + result.stderr
    assert "Traceback" not in result.stdout + result.stderr


@pytest.mark.play
def test_without_the_package_it_says_what_to_do(project: Path) -> None:
    one_task(project)
    (project / "hidden").mkdir()
    (project / "hidden" / "gpuhost_cli.py").write_text("raise ImportError(\"No module named 'gpuhost_cli'\")\n")
    result = play(project, PYTHONPATH=str(project / "hidden"))
    assert result.returncode == 0, result.stdout + result.stderr
    assert (result.stdout + result.stderr).count("make install") == 1
    assert not (project / "runs").exists()


@pytest.mark.play
def test_check_mode_is_recorded(project: Path) -> None:
    one_task(project, "documents: [{schema: gpuhost.plan, wanted: '6.12'}]")
    assert play(project, "play.yml", "--check").returncode == 0
    _, record = record_of(project)
    assert record["check_mode"] is True
    assert record["target"] == "", "the stand-in does nothing in check mode"
    assert [task["status"] for task in record["tasks"]] == ["skipped"]
