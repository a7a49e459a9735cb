"""Where the checks run and how: exact argv, the archive on stdin, and every failure is a measurement."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost
from fake_roll import HOST_NAME, RUN_ID, debian_host, prepared, roll_of, step
from fake_tree import CONTAINER, PLAIN

from gpuhost import check_runner
from gpuhost.check_runner import ARCHIVE, BOOTSTRAP
from gpuhost.errors import Stop

PYZ = b"PK\x03\x04 not really"
ENCODED = base64.b64encode(PYZ).decode()
MEASURED: dict[str, Any] = {
    "name": "device_access", "value": 1, "unit": "gpus", "method": "x", "clock": None, "samples": None,
    "status": "measured", "cause": None, "seconds": 0.1, "detail": {},
}  # fmt: skip
GOOD = json.dumps({"python": "3.11.2", "tool_version": "0.1.0", "measurements": [MEASURED]})


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    made = debian_host(tmp_path)
    made.programs["lxc-attach",] = (0, GOOD, "")
    return made


def measure(
    host: FakeHost, target: str = CONTAINER, checks: tuple[str, ...] = ("device_access",), user: str = ""
) -> dict[str, Any]:
    order = check_runner.Order(PYZ, list(checks), "/opt/venv/bin/python3", 20, user)
    return check_runner.measure(host, target, order, 1)


def test_in_a_container_the_archive_comes_on_stdin_and_no_shell_runs(host: FakeHost) -> None:
    answer = measure(host)
    (call,) = host.ran("lxc-attach")
    split = call.index("--")
    assert call[:split] == [
        "lxc-attach", "-n", CONTAINER, "--clear-env", "--set-var", "PATH=/usr/local/bin:/usr/bin:/bin",
    ]  # fmt: skip
    assert call[split + 1 : split + 4] == ["/opt/venv/bin/python3", "-c", BOOTSTRAP]
    assert call[split + 4 : split + 6] == ["", ""]  # the interpreter itself, as root
    assert call[split + 6 :] == ["device_access", "--json", "--timeout", "20", "--expect-gpus", "1"]
    assert host.stdins[host.calls.index(call)] == PYZ
    assert answer["measurements"] == [MEASURED]
    assert (answer["python"], answer["target"]) == ("3.11.2", CONTAINER)


def test_on_the_host_the_file_runs(host: FakeHost) -> None:
    host.programs["/opt/venv/bin/python3",] = (0, GOOD, "")
    measure(host, "host")
    (call,) = host.ran("/opt/venv/bin/python3")
    assert call[:3] == ["/opt/venv/bin/python3", ARCHIVE, "device_access"]


def test_the_workloads_user_is_looked_up_where_the_checks_run(host: FakeHost) -> None:
    measure(host, user="llm")
    (call,) = host.ran("lxc-attach")
    split = call.index("--")
    assert call[split + 1 : split + 7] == ["/usr/bin/python3", "-I", "-c", BOOTSTRAP, "/opt/venv/bin/python3", "llm"]


def test_on_the_host_a_users_interpreter_never_runs_as_root(host: FakeHost) -> None:
    host.programs[sys.executable,] = (0, GOOD, "")
    measure(host, "host", user="llm")
    (call,) = host.ran(sys.executable)
    assert call[1:] == [
        "-c", BOOTSTRAP, "/opt/venv/bin/python3", "llm", "device_access", "--json", "--timeout", "20",
        "--expect-gpus", "1",
    ]  # fmt: skip
    assert host.stdins[host.calls.index(call)] == PYZ


@pytest.mark.parametrize(
    ("answer", "cause", "sentence"),
    [
        ((67, "", "no user 'llm' in the passwd of this system"), "check.no_such_user", "no user 'llm'"),
        ((127, "", "lxc-attach: No such file or directory"), "check.crashed", "No such file"),
        ((124, "", "lxc-attach: killed after 50 s"), "check.timeout", "killed after 50 s"),
        ((1, "", "Traceback\nImportError: no\n"), "check.crashed", "ImportError"),
        ((0, "", ""), "check.crashed", "exit status 0"),
        ((0, "[]", ""), "check.crashed", ""),
        ((0, "{}", ""), "check.crashed", ""),
        ((0, GOOD[:50], ""), "check.crashed", ""),
    ],
)
def test_a_failure_is_an_error_for_every_check(
    host: FakeHost, answer: tuple[int, str, str], cause: str, sentence: str
) -> None:
    host.programs["lxc-attach",] = answer
    found = measure(host, checks=("device_access", "cuda"))["measurements"]
    assert [(item["name"], item["status"], item["cause"]) for item in found] == [
        ("device_access", "error", cause),
        ("cuda", "error", cause),
    ]
    assert sentence in found[0]["detail"]["sentence"]


def answers_by_user(root_cuda: str, cause: str = "cuda.init_failed") -> Any:
    """A container whose user can't start CUDA; root's measurement has this status."""

    def run(host: FakeHost, argv: list[str]) -> tuple[int, str, str]:
        user = argv[argv.index(BOOTSTRAP) + 2]
        bad = {**MEASURED, "name": "cuda", "value": 0, "status": "error", "cause": cause}
        good = {**MEASURED, "name": "cuda", "status": root_cuda, "cause": None if root_cuda == "measured" else cause}
        return 0, json.dumps({"python": "3.11.2", "tool_version": "0.1.0", "measurements": [bad if user else good]}), ""

    return run


@pytest.mark.parametrize("status", ["measured", "error"])
def test_where_cuda_fails_for_the_user_root_is_asked(host: FakeHost, status: str) -> None:
    host.programs["lxc-attach",] = answers_by_user(status)
    order = check_runner.Order(PYZ, ["device_access", "cuda"], "/opt/venv/bin/python3", 20, "llm")
    (answer,) = check_runner.measure_all(host, order, [CONTAINER], ()).values()
    assert answer["cuda_as_root"] == status
    second = host.ran("lxc-attach")[1]
    split = second.index(BOOTSTRAP)
    assert second[split + 1 : split + 5] == ["", "", "cuda", "--json"]


@pytest.mark.parametrize(("user", "cause"), [("", "cuda.init_failed"), ("llm", "device.denied_mode")])
def test_root_is_not_asked_where_that_explains_nothing(host: FakeHost, user: str, cause: str) -> None:
    host.programs["lxc-attach",] = answers_by_user("error", cause)
    order = check_runner.Order(PYZ, ["cuda"], "/opt/venv/bin/python3", 20, user)
    (answer,) = check_runner.measure_all(host, order, [CONTAINER], ()).values()
    assert "cuda_as_root" not in answer
    assert len(host.ran("lxc-attach")) == 1


def test_the_archive_is_placed_once(host: FakeHost) -> None:
    assert check_runner.place(host, ENCODED) == PYZ
    assert host.read_bytes(ARCHIVE) == PYZ
    effects = len(host.effects)
    check_runner.place(host, ENCODED)
    assert len(host.effects) == effects


def test_targets(host: FakeHost) -> None:
    assert check_runner.targets(host, []) == [CONTAINER]
    assert check_runner.targets(host, ["a", "b"]) == ["a", "b"]
    host.running = {PLAIN}
    with pytest.raises(Stop) as caught:
        check_runner.targets(host, [])
    assert (caught.value.blocker.cause, caught.value.blocker.object) == ("gate.no_target", CONTAINER)


def test_a_host_without_gpu_containers_is_measured_itself(host: FakeHost) -> None:
    host.path(f"/var/lib/lxc/{CONTAINER}/config").unlink()
    assert check_runner.targets(host, []) == ["host"]


def test_how_many_gpus_a_target_has_to_see(host: FakeHost) -> None:
    mounts = "".join(
        f"lxc.mount.entry = /dev/nvidia{minor} dev/nvidia{minor} none bind,optional,create=file\n"
        for minor in (1, 2, 3)
    )
    host.put(f"/var/lib/lxc/{CONTAINER}/config", (host.read(f"/var/lib/lxc/{CONTAINER}/config") or "") + mounts)
    before = ("/dev/nvidia0", "/dev/nvidia1")
    assert check_runner.expected_gpus(host, CONTAINER, before) == 2  # a template may mount more than there is
    assert check_runner.expected_gpus(host, PLAIN, before) is None
    assert check_runner.expected_gpus(host, "host", before) == 2


def test_a_gpu_that_is_gone_after_the_trial_is_still_expected(host: FakeHost) -> None:
    prepared(host)
    assert roll_of(host).gpu_nodes_before == ("/dev/nvidia0",)
    step(host, "gpuhost_workload", state="drained")
    host.path("/dev/nvidia0").unlink()
    step(host, "gpuhost_gpu_checks", archive=ENCODED, checks=["device_access"])
    assert host.ran("lxc-attach")[-1][-2:] == ["--expect-gpus", "1"]


def test_a_named_target_is_started_too(host: FakeHost) -> None:
    prepared(host)
    step(host, "gpuhost_workload", state="drained")
    step(host, "gpuhost_gpu_checks", archive=ENCODED, checks=["device_access"], targets=[PLAIN])
    assert PLAIN in host.running


@pytest.mark.parametrize("rc", [0, 3])
def test_the_bootstrap_runs_an_archive_from_stdin_and_leaves_nothing(tmp_path: Path, rc: int) -> None:
    archive = tmp_path / "x.pyz"
    source = f"import sys\nprint(sys.argv[1:], len(sys.stdin.read()))\nsys.exit({rc})\n"
    subprocess.run(  # a zipapp with one module
        [
            sys.executable, "-c",
            "import sys,zipfile; zipfile.ZipFile(sys.argv[1],'w').writestr('__main__.py', sys.argv[2])",
            str(archive), source,
        ],
        check=True,
    )  # fmt: skip
    place = tmp_path / "tmp"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", BOOTSTRAP, "", "", "device_access", "--json"],
        input=archive.read_bytes(), capture_output=True, check=False, env={"TMPDIR": str(place)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (rc, b"['device_access', '--json'] 0\n")
    assert list(place.iterdir()) == []


# --- the module


def test_inside_a_roll_what_ran_is_started_first(host: FakeHost) -> None:
    prepared(host)
    step(host, "gpuhost_workload", state="drained")
    answer = step(host, "gpuhost_gpu_checks", archive=ENCODED, checks=["device_access"])
    assert host.running == {CONTAINER}  # the gate starts what it needs and nothing else
    assert answer["lines"] == [f"container {CONTAINER} started for the gate"]
    assert answer["targets"][CONTAINER]["measurements"] == [MEASURED]
    assert answer["targets"][CONTAINER]["stale"] == []
    assert roll_of(host).steps[-1].stage == "gate"
    assert answer["gpuhost_documents"][0]["schema"] == "gpuhost.measurements"


def test_a_container_that_does_not_start_fails_the_gate(host: FakeHost) -> None:
    prepared(host)
    step(host, "gpuhost_workload", state="drained")
    host.broken = {CONTAINER}
    with pytest.raises(Stop) as caught:
        step(host, "gpuhost_gpu_checks", archive=ENCODED, checks=["device_access"])
    assert caught.value.blocker.cause == "workload.not_back"


def test_outside_a_roll_nothing_is_started(host: FakeHost) -> None:
    answer = step(host, "gpuhost_gpu_checks", archive=ENCODED, checks=["device_access"])
    assert not answer["changed"]
    assert host.ran("lxc-start") == []


def test_the_module_takes_the_user(host: FakeHost) -> None:
    step(host, "gpuhost_gpu_checks", archive=ENCODED, checks=["device_access"], user="llm")
    call = host.ran("lxc-attach")[-1]
    assert call[call.index(BOOTSTRAP) + 2] == "llm"


def test_check_mode_measures_nothing(host: FakeHost) -> None:
    before = host.snapshot()
    answer = step(host, "gpuhost_gpu_checks", check=True, archive=ENCODED, checks=["device_access"])
    assert not answer["changed"]
    assert host.ran("lxc-attach") == []
    assert host.snapshot() == before


def test_the_document(host: FakeHost) -> None:
    document = check_runner.document(HOST_NAME, RUN_ID, {CONTAINER: measure(host)})
    assert list(document)[:5] == ["schema", "schema_version", "host", "run_id", "taken_at"]
    assert document["targets"][CONTAINER]["tool_version"] == "0.1.0"


def test_a_container_that_gets_its_gpu_by_an_include_is_measured(host: FakeHost) -> None:
    """Measured on the host instead, its stale rules would pass the gate."""
    config = host.read_bytes(f"/var/lib/lxc/{CONTAINER}/config") or b""
    host.put("/etc/lxc/gpu.conf", config)
    host.put(f"/var/lib/lxc/{CONTAINER}/config", f"lxc.uts.name = {CONTAINER}\nlxc.include = /etc/lxc/gpu.conf\n")
    assert check_runner.targets(host, []) == [CONTAINER]
    assert check_runner.expected_gpus(host, CONTAINER, ("/dev/nvidia0",)) == 1


def test_many_targets_are_surveyed_once(host: FakeHost) -> None:
    config = host.read_bytes(f"/var/lib/lxc/{CONTAINER}/config") or b""
    for number in range(20):
        host.put(f"/var/lib/lxc/c{number}/config", config)
        host.running.add(f"c{number}")
    host.calls.clear()
    order = check_runner.Order(b"", ["device_access"], "/usr/bin/python3", 10)
    check_runner.measure_all(host, order, [], ())
    assert len(host.ran("lxc-attach")) == 21
    assert len(host.ran("lxc-ls")) < 5


def both(host: FakeHost, argv: list[str]) -> tuple[int, str, str]:
    """The checks that were asked for, each measured."""
    end = next(place for place, word in enumerate(argv) if word == "--json")
    begin = argv.index(ARCHIVE) + 1 if ARCHIVE in argv else argv.index(BOOTSTRAP) + 3
    found = [{**MEASURED, "name": name} for name in argv[begin:end]]
    return 0, json.dumps({"python": "3.11.2", "tool_version": "0.1.0", "measurements": found}), ""


def test_health_runs_on_the_host_although_the_workload_is_a_container(host: FakeHost) -> None:
    host.programs["lxc-attach",] = host.programs[sys.executable,] = both
    order = check_runner.Order(PYZ, ["cuda", "health"], "/opt/venv/bin/python3", 20, "llm")
    found = check_runner.measure_all(host, order, [], ())
    assert {name: answer["checks"] for name, answer in found.items()} == {CONTAINER: ["cuda"], "host": ["health"]}
    (call,) = host.ran(sys.executable)
    assert call[1:3] == [ARCHIVE, "health"]  # not as the workload's user
    assert "health" not in host.ran("lxc-attach")[0]


def test_on_the_host_both_kinds_are_one_target(host: FakeHost) -> None:
    host.programs["/opt/venv/bin/python3",] = host.programs[sys.executable,] = both
    order = check_runner.Order(PYZ, ["cuda", "health"], "/opt/venv/bin/python3", 20)
    found = check_runner.measure_all(host, order, ["host"], ())
    assert [item["name"] for item in found["host"]["measurements"]] == ["cuda", "health"]
    assert found["host"]["checks"] == ["cuda", "health"]
    assert len(host.ran("/opt/venv/bin/python3")) == len(host.ran(sys.executable)) == 1


def test_quick_is_handed_on(host: FakeHost) -> None:
    order = check_runner.Order(PYZ, ["device_access"], "/usr/bin/python3", 20, "", True)
    check_runner.measure(host, CONTAINER, order, None)
    assert host.ran("lxc-attach")[0][-1] == "--quick"


def test_a_required_check_is_run_although_nobody_lists_it(host: FakeHost) -> None:
    host.programs["lxc-attach",] = both
    answer = step(host, "gpuhost_gpu_checks", archive=ENCODED, checks=["cuda"], required=["memory", "nonsense", "cuda"])
    assert answer["targets"][CONTAINER]["checks"] == ["cuda", "memory"]  # the judge names what nobody knows


def test_check_mode_says_what_would_run(host: FakeHost) -> None:
    answer = step(host, "gpuhost_gpu_checks", check=True, archive=ENCODED, checks=["cuda", "health"], user="llm")
    assert answer["lines"] == [
        f"would run cuda in container {CONTAINER} with /usr/bin/python3 as llm",
        f"would run health on the host with {sys.executable}",
    ]


def test_baselines_that_cannot_be_read_stop_before_anything_is_measured(host: FakeHost) -> None:
    host.put("/var/lib/gpuhost/baselines.json", "{")
    with pytest.raises(Stop) as caught:
        step(host, "gpuhost_gpu_checks", archive=ENCODED, checks=["device_access"])
    assert caught.value.blocker.cause == "gate.baseline_unreadable"
    assert host.ran("lxc-attach") == []


def test_kernel_driver_and_baselines_go_to_the_judge(host: FakeHost) -> None:
    answer = step(host, "gpuhost_gpu_checks", archive=ENCODED, checks=["device_access"])
    assert answer["kernel"] == host.read_line("/proc/sys/kernel/osrelease")
    assert answer["driver"] == host.read_line("/sys/module/nvidia/version") != ""
    assert answer["baselines"] == {}
