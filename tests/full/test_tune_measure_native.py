"""Measuring for real: the role over ansible, the real microbenchmarks, and a process that is really killed.

The settings are plain files, bind-mounted over /proc/sys in a mount namespace: whatever is turned here, this machine's
own settings are not. /var/lib and /run are the test's own; systemctl is a stand-in that says yes and keeps what it was
asked, for no systemd runs where tests run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_checks.build_zipapp import build

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
SETTINGS = {"vm/swappiness": "60\n", "kernel/numa_balancing": "1\n"}
SYSTEMCTL = """#!/bin/sh
echo "$@" >>/run/asked
"""
MOUNTS = """
mount --bind "$FOLDER/lib" /var/lib
mount --bind "$FOLDER/run" /run
mount --bind "$FOLDER/bin" /usr/local/sbin
for key in vm/swappiness kernel/numa_balancing; do mount --bind "$FOLDER/sys/$key" "/proc/sys/$key"; done
exec "$@"
"""
# A benchmark that really is slower where swappiness is 10, beside one that is not.
SYNTHETIC = """
def slow(seconds):
    pause = 0.012 if open("/proc/sys/vm/swappiness").read() == "10\\n" else 0.010
    found = []
    for _ in _until(seconds):
        begin = time.monotonic_ns()
        time.sleep(pause)
        found.append((time.monotonic_ns() - begin) / 1000)
    return found
def same(seconds):
    return [statistics.median([1.0, 1.01, 0.99][time.monotonic_ns() % 3 :] or [1.0])]
ALL = (Benchmark("slow_us", "us", LOWER, "x", "x", slow), Benchmark("same_us", "us", LOWER, "x", "x", same))
"""
HARNESS = """
import inspect, json, sys
from gpuhost import concerns, microbench, tune_knobs, tune_measure, tuning
from gpuhost.host_io import Host
from gpuhost.tune_sampler import Sampler

host, (synthetic, in_force) = Host(), json.loads(sys.argv[1])
source = inspect.getsource(microbench)
place = source.index("def measure(")
program = source[:place] + synthetic + source[place:]
given = {"keys": {}, "target_release": ""}
looks = [(item.name, item.concern.domain, item.look_of(given)) for item in concerns.ALL if item.name == "sysctl"]
if in_force:
    tuning.apply(host, [item for item in looks[0][2](host).writes if item.object == "/proc/sys/vm/swappiness"], False)
order = tune_measure.Order(pairs=12, under_load=True)
with tune_measure.started(host, order, Sampler(host, 0.05, program=program)) as run:
    knobs = tune_knobs.read(host, looks, ["vm.swappiness"])
    found = tune_measure.measure(run, knobs)
    print(json.dumps(tune_measure.document(run, ("gpu1", "native"), "measure", found, knobs, 0)))
"""
# Their settings are what is measured; that they come last, as in playbooks/tune.yml, makes no difference.
LENT = [
    {"ansible.builtin.import_role": {"name": name}, "when": False}
    for name in ("sysctl_tuning", "cpu_tuning", "gpu_runtime", "pcie_tuning")
]
pytestmark = [
    pytest.mark.play,
    pytest.mark.skipif(os.geteuid() != 0, reason="bind mounts need root"),
    *(
        pytest.mark.skipif(not Path("/proc/sys", key).exists(), reason=f"no /proc/sys/{key} here") for key in SETTINGS
    ),
]  # fmt: skip


class Box:
    """The machine of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("lib", "run", "bin"):
            (folder / name).mkdir()
        for key, value in SETTINGS.items():
            path = folder / "sys" / key
            path.parent.mkdir(parents=True)
            path.write_text(value)
        (folder / "bin/systemctl").write_text(SYSTEMCTL)
        (folder / "bin/systemctl").chmod(0o755)

    def command(self, *argv: str) -> tuple[list[str], dict[str, str]]:
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "GPUHOST_RUNS_DIR": str(self.folder / "runs"),
            "GPUHOST_RUN_ID": "native",
            "FOLDER": str(self.folder),
        }
        return ["unshare", "--mount", "sh", "-euc", MOUNTS, "sh", *argv], environment

    def run(self, *argv: str, rc: int = 0) -> str:
        command, environment = self.command(*argv)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=540, check=False)
        assert done.returncode == rc, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout

    def play(self, tasks: list[dict[str, Any]], rc: int = 0, **variables: Any) -> str:
        """Run tasks on this machine through Ansible."""
        base = {"gpuhost_run_id": "native", "tune_effects_knobs": ["vm.swappiness", "kernel.numa_balancing"]}
        quick = {"tune_effects_pairs": 9, "tune_effects_seconds": 0.02, "tune_effects_under_load": True}
        play = {"hosts": "all", "gather_facts": False, "vars": {**base, **quick, **variables}, "tasks": [*tasks, *LENT]}
        host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        (self.folder / "play.yml").write_text(yaml.safe_dump([play]))
        (self.folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"gpu1": host}}}))
        files = [str(self.folder / "play.yml"), "-i", str(self.folder / "hosts.yml")]
        return self.run(str(BIN / "ansible-playbook"), *files, rc=rc)

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "runs/native/gpu1/effects.json").read_text())
        return found

    def settings(self) -> dict[str, str]:
        return {key: (self.folder / "sys" / key).read_text() for key in SETTINGS}

    def harness(self, in_force: bool) -> tuple[str, ...]:
        return (sys.executable, "-c", HARNESS, json.dumps([SYNTHETIC, in_force]))


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def stage(name: str) -> dict[str, Any]:
    return {"name": "Stage", "ansible.builtin.import_tasks": str(ROOT / "playbooks/stages" / f"{name}.yml")}


def test_settings_that_do_nothing_have_no_measurable_effect(box: Box) -> None:
    box.play([stage("tune_measure")])
    document = box.document()
    assert {item["knob"]: (item["verdict"], item["decision"]) for item in document["knobs"]} == {
        "vm.swappiness": ("no measurable effect", "kept"), "kernel.numa_balancing": ("no measurable effect", "kept"),
    }  # fmt: skip
    assert all(len(item["benchmarks"]) >= 6 for item in document["knobs"])
    assert document["timer"] is True
    assert box.settings() == SETTINGS
    asked = (box.folder / "run/asked").read_text()
    assert asked.count("restart gpuhost-tune-deadline.timer") == 3  # when it is laid down, and before each setting
    assert asked.splitlines()[-2:] == [
        "stop gpuhost-tune-deadline.timer gpuhost-tune-deadline.service",
        "daemon-reload",
    ]
    assert not (box.folder / "run/gpuhost").exists()
    assert list((box.folder / "run/systemd/system").iterdir()) == []
    assert json.loads((box.folder / "lib/gpuhost/effects.json").read_text())["knobs"] == document["knobs"]


def test_before_apply_after(box: Box) -> None:
    apply = {
        "name": "Stand for the tuning roles",
        "ansible.builtin.command": {
            "argv": [sys.executable, "-c", "open('/proc/sys/vm/swappiness', 'w').write('10\\n')"]
        },
    }
    role = {"name": "tune_effects"}
    before, after = ({"ansible.builtin.import_role": {**role, "tasks_from": name}} for name in ("before", "after"))
    box.play([before, apply, after])
    document = box.document()
    (found,) = document["knobs"]
    assert (document["mode"], found["verdict"], found["decision"]) == ("verify", "no measurable effect", "kept")
    assert (found["old"], found["new"], found["objects"]) == ("60", "10", 1)
    assert all(len(item["before_samples"]) == 9 for item in found["benchmarks"])
    assert box.settings() == {**SETTINGS, "vm/swappiness": "10\n"}


def test_what_does_harm_is_left_out_of_what_the_roles_set_next(box: Box) -> None:
    """The stage's second task, with the module's answer given."""
    tasks = yaml.safe_load((ROOT / "playbooks/stages/tune_measure.yml").read_text())
    out = {"sysctl_tuning_keys": {"vm.swappiness": None}, "cpu_tuning_max_idle_latency_us": -1}
    check = {
        "ansible.builtin.assert": {
            "that": [
                "sysctl_tuning_keys == {'vm.swappiness': none}",
                "cpu_tuning_max_idle_latency_us == -1",
                "cpu_tuning_governor == 'performance'",
                "pcie_tuning_max_read_request_bytes == 4096",
                "gpu_runtime_lock_clocks_mhz == []",
            ]
        }
    }
    box.play([tasks[1], check], __tune_effects_found={"variables": out})


def test_without_systemd_nothing_is_turned(box: Box) -> None:
    (box.folder / "bin/systemctl").write_text("#!/bin/sh\nexit 1\n")
    assert "tune.no_timer" in box.play([stage("tune_measure")], rc=2)
    assert box.settings() == SETTINGS


def test_a_setting_that_makes_the_host_slower_is_harmful(box: Box) -> None:
    (found,) = json.loads(box.run(*box.harness(in_force=False)))["knobs"]
    slow, same = found["benchmarks"]
    assert (slow["verdict"], same["verdict"]) == ("harmful", "no measurable effect")
    assert 10 < slow["effect_percent"] < 30
    assert (found["verdict"], found["decision"], found["in_force"]) == ("harmful", "left out", False)
    assert box.settings() == SETTINGS


def test_one_that_is_in_force_is_taken_back(box: Box) -> None:
    (found,) = json.loads(box.run(*box.harness(in_force=True)))["knobs"]
    assert (found["decision"], found["in_force"]) == ("left out", False)
    assert "the old value is back" in found["reason"]
    assert box.settings() == SETTINGS


def test_after_a_kill_the_hosts_own_archive_puts_the_value_back(box: Box) -> None:
    archive = box.folder / "lib/gpuhost/gpuhost.pyz"
    build(archive, ROOT / "module_utils/gpuhost", name="gpuhost")
    command, environment = box.command(*box.harness(in_force=False))
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        # exec all the way: the pid is that of the measuring process.
        end = time.monotonic() + 120
        while box.settings()["vm/swappiness"] != "10\n" and time.monotonic() < end:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    if box.settings()["vm/swappiness"] != "10\n":
        pytest.skip("the kill came between two values")
    service = (box.folder / "run/systemd/system/gpuhost-tune-deadline.service").read_text()
    lines = dict(line.split("=", 1) for line in service.splitlines() if "=" in line)
    asked = box.run("env", lines["Environment"], *lines["ExecStart"].split())
    assert asked == "/proc/sys/vm/swappiness: 10 -> 60, as before a measurement\n"
    assert box.settings() == SETTINGS
    assert not (box.folder / "run/gpuhost").exists()
