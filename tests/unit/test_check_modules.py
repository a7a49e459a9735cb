"""The modules of single checks: thin, alike, usable alone; they measure, and say where something is an error."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost
from fake_roll import REPOSITORY, debian_host, library, step
from fake_tree import CONTAINER

from gpuhost import check_runner
from gpuhost.blockers import KNOWN_CHECKS
from gpuhost.errors import Stop

PYZ = b"PK\x03\x04 not really"
ENCODED = base64.b64encode(PYZ).decode()
CHECKS = sorted(
    path.stem.removeprefix("gpuhost_").removesuffix("_check") for path in (REPOSITORY / "library").glob("*_check.py")
)
INSIDE = [name for name in CHECKS if name != "health"]


def measurement(name: str, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": name, "value": 3900.0, "unit": "gb_s", "method": "x", "clock": None, "status": "measured",
        "cause": None,
        "samples": {"n": 9, "median": 3900.0, "p20": 3890.0, "p80": 3910.0}, "seconds": 0.1, "detail": {},
    }  # fmt: skip
    return {**values, **changes}


def answers(*found: dict[str, Any]) -> tuple[int, str, str]:
    return 0, json.dumps({"python": "3.11.2", "tool_version": "0.1.0", "measurements": list(found)}), ""


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    made = debian_host(tmp_path)
    made.put("/proc/sys/kernel/hostname", "gpu-host\n")
    return made


def run(host: FakeHost, of: str, **given: Any) -> dict[str, Any]:
    return step(host, f"gpuhost_{of}_check", archive=ENCODED, **given)


def test_there_is_one_for_each_check() -> None:
    """The nodes are what the check cuda begins with; a module of its own would be no other question."""
    assert set(CHECKS) == set(KNOWN_CHECKS) - {"device_access"}


@pytest.mark.parametrize("check", INSIDE)
def test_it_runs_its_check_where_the_workload_runs(host: FakeHost, check: str) -> None:
    host.programs["lxc-attach",] = answers(measurement(check))
    answer = run(host, check, python="/opt/venv/bin/python3", user="llm", quick=True, timeout_s=30)
    (call,) = host.ran("lxc-attach")
    split = call.index(check_runner.BOOTSTRAP)
    assert call[split + 1 :] == [
        "/opt/venv/bin/python3", "llm", check, "--json", "--timeout", "30", "--expect-gpus", "1", "--quick",
    ]  # fmt: skip
    assert host.stdins[host.calls.index(call)] == PYZ
    assert not answer["changed"]
    assert answer["targets"][CONTAINER]["measurements"] == [measurement(check)]
    assert answer["lines"] == [f"{check}: 3900 GB/s (3890 to 3910)"]
    (document,) = answer["gpuhost_documents"]
    assert (document["schema"], document["concern"]) == ("gpuhost.measurements", check)


def test_health_runs_on_the_host_with_the_systems_python(host: FakeHost) -> None:
    host.programs[sys.executable,] = answers(measurement("health", value=1, unit="gpus", samples=None))
    answer = run(host, "health")
    assert list(answer["targets"]) == ["host"]
    (call,) = host.ran(sys.executable)
    assert call[1:4] == [check_runner.ARCHIVE, "health", "--json"]
    assert host.ran("lxc-attach") == []
    assert "user" not in library("gpuhost_health_check")[1]


@pytest.mark.parametrize("check", CHECKS)
def test_check_mode_says_what_would_run_and_where(host: FakeHost, check: str) -> None:
    before = host.snapshot()
    answer = run(host, check, check=True)
    where = "on the host" if check == "health" else f"in container {CONTAINER}"
    assert answer["lines"][0].startswith(f"would run {check} {where} with /")
    assert (answer["changed"], answer["targets"]) == (False, {})
    assert host.snapshot() == before
    assert host.ran("lxc-attach") == []


def test_check_mode_says_that_nothing_would_run(host: FakeHost) -> None:
    host.running = set()
    assert run(host, "p2p", check=True)["lines"][0].startswith("nothing would run: gate.no_target: ")


ERROR = {"status": "error", "value": None, "samples": None, "cause": "p2p.hang", "detail": {"message": "killed"}}


def test_a_measurement_that_is_an_error_fails_and_is_kept(host: FakeHost) -> None:
    host.programs["lxc-attach",] = answers(measurement("p2p.ce.0-1", **ERROR), measurement("p2p"))
    with pytest.raises(Stop) as caught:
        run(host, "p2p")
    assert caught.value.blocker.object == f"p2p.ce.0-1 on {CONTAINER}"
    assert "killed" in caught.value.blocker.observed
    assert caught.value.documents[0]["targets"][CONTAINER]["measurements"]
    answer = run(host, "p2p", fail_on_error=False)
    assert answer["lines"][0] == "p2p.ce.0-1: error: p2p.hang: killed"


def test_a_check_that_could_not_be_run_fails(host: FakeHost) -> None:
    host.programs["lxc-attach",] = (1, "", "Traceback\nImportError: no\n")
    with pytest.raises(Stop) as caught:
        run(host, "memory")
    assert caught.value.blocker.cause == "check.crashed"


def test_what_was_not_measured_fails_nothing(host: FakeHost) -> None:
    alone = measurement("allreduce", value=None, status="not_measured", cause="allreduce.one_gpu", samples=None)
    host.programs["lxc-attach",] = answers(alone)
    assert run(host, "allreduce")["lines"][0].startswith("allreduce: not_measured: allreduce.one_gpu: ")


def test_an_ordinary_user_measures_on_the_host_as_himself(host: FakeHost) -> None:
    host.root_user = False
    host.programs["/opt/venv/bin/python3",] = answers(measurement("memory"))
    run(host, "memory", targets=["host"], python="/opt/venv/bin/python3")
    (call,) = host.ran("/opt/venv/bin/python3")
    assert call[1:5] == ["-c", check_runner.BOOTSTRAP, "", ""]
    assert host.stdins[host.calls.index(call)] == PYZ
    assert host.read_bytes(check_runner.ARCHIVE) is None  # root's place


@pytest.mark.parametrize("given", [{}, {"targets": [CONTAINER]}, {"targets": ["host"], "user": "llm"}])
def test_everything_else_needs_root(host: FakeHost, given: dict[str, Any]) -> None:
    host.root_user = False
    with pytest.raises(Stop) as caught:
        run(host, "memory", **given)
    assert caught.value.blocker.cause == "host.not_root"
    assert "targets: host" in caught.value.blocker.next_step


def test_containers_that_share_gpus_are_measured_one_after_the_other(host: FakeHost) -> None:
    seen: list[str] = []

    def attach(fake: FakeHost, argv: list[str]) -> tuple[int, str, str]:
        name = argv[2]
        seen.append(name)
        # While this one is measured nobody else gets in, also not from another play.
        with pytest.raises(Stop) as caught, FakeHost(fake.root).lock(check_runner.LOCK):
            pass
        assert caught.value.blocker.cause == "roll.busy"
        return answers(measurement("memory"))

    host.programs["lxc-attach",] = attach
    answer = run(host, "memory", targets=["a", "b"])
    assert seen == ["a", "b"]
    assert answer["lines"][0].startswith("a memory: ")
    assert answer["lines"][1].startswith("b memory: ")


def test_a_check_that_shares_needs_no_lock(host: FakeHost) -> None:
    host.programs["lxc-attach",] = answers(measurement("cuda", value=1, unit="gpus"))
    with FakeHost(host.root).lock(check_runner.LOCK):
        run(host, "cuda")


@pytest.mark.parametrize("check", CHECKS)
def test_the_examples_are_tasks_of_the_module(check: str) -> None:
    import ast  # noqa: PLC0415

    import yaml  # noqa: PLC0415

    name = f"gpuhost_{check}_check"
    tree = ast.parse((REPOSITORY / "library" / f"{name}.py").read_text())
    (text,) = [
        node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "EXAMPLES"
        and isinstance(node.value, ast.Constant)
    ]
    tasks = [task for task in yaml.safe_load(text) if name in task]
    assert tasks
    _, spec = library(name)
    known = {*spec, *(alias for item in spec.values() for alias in item.get("aliases", ()))}
    for task in tasks:
        assert set(task[name] or {}) <= known


@pytest.mark.parametrize("check", CHECKS)
def test_the_archive_comes_along_by_itself(check: str) -> None:
    text = (REPOSITORY / "action_plugins" / f"gpuhost_{check}_check.py").read_text()
    assert text == (REPOSITORY / "action_plugins" / "gpuhost_gpu_checks.py").read_text()
