"""The real module on trees that lie over /sys/devices/system/cpu, in a mount namespace of its own.

Nothing of this machine is written: all that the module may touch is a file system of the test.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests/unit"))
import cpu_trees  # noqa: E402

DEFAULTS = yaml.safe_load((REPOSITORY / "roles/cpu_tuning/defaults/main.yml").read_text())
ROLE = {key.removeprefix("cpu_tuning_"): value for key, value in DEFAULTS.items()}
ARGUMENTS = {**ROLE, "host_name": "gpu-1", "run_id": "20261130T010000Z-0001"}
PYTHON = sys.executable

# A plain file keeps the rest of a longer value, and has no brackets: the kernel's files behave as this does.
LIKE_THE_KERNEL = """
import json, os, sys
import gpuhost
from gpuhost import host_io, tuning
def write_live(self, path, value):
    word = value.strip()
    before = open(path).read()
    if "[" in before:
        choices = [item.strip("[]") for item in before.split()]
        assert word in choices, (path, value)
        value = " ".join(f"[{item}]" if item == word else item for item in choices) + "\\n"
    open(path, "w").write(value)
host_io.Host.write_live = write_live
"""
MODULE = (
    LIKE_THE_KERNEL
    + """
import importlib.util
from ansible.module_utils import basic
from gpuhost import cpu_tuning, module, tune_step
for name in [name for name in sys.modules if name == "gpuhost" or name.startswith("gpuhost.")]:
    sys.modules["ansible.module_utils." + name] = sys.modules[name]
basic._ANSIBLE_ARGS = json.dumps({"ANSIBLE_MODULE_ARGS": json.loads(sys.argv[2])}).encode()
basic._ANSIBLE_PROFILE = "legacy"
spec = importlib.util.spec_from_file_location("gpuhost_cpu_tuning", sys.argv[1] + "/library/gpuhost_cpu_tuning.py")
found = importlib.util.module_from_spec(spec)
spec.loader.exec_module(found)
found.main()
"""
)
REVERT = (
    LIKE_THE_KERNEL
    + """
from gpuhost import cpu_tuning
print(json.dumps([item.status for item in tuning.revert(host_io.Host(), False)]))
"""
)
# The namespace: the tree's parts over the real places, then each command in turn with the tree as it is after it.
HOLD = """
import json, os, subprocess, sys
from pathlib import Path
order = json.load(sys.stdin)
root = Path(order["root"])
def mount(*argv):
    subprocess.run(["mount", *argv], check=True)
for place in ("/etc/systemd/system", "/etc/udev/rules.d", "/var/lib", "/run"):
    mount("-t", "tmpfs", "none", place)
os.mkdir("/var/lib/gpuhost")
os.mkdir("/etc/systemd/system/multi-user.target.wants")
open("/var/lib/gpuhost/lock", "w").close()
for place in order["places"]:
    mount("--bind", str(root / place[1:]), place)
def tree():
    found = {}
    for folder in ("/sys/devices/system/cpu", "/etc/systemd/system", "/etc/udev/rules.d", "/var/lib/gpuhost"):
        for path in sorted(Path(folder).rglob("*")):
            found[str(path)] = os.readlink(path) if path.is_symlink() else "" if path.is_dir() else path.read_text()
    for place in order["places"][1:]:
        found[place] = Path(place).read_text()
    return found
answers = [{"tree": tree()}]
for argv in order["commands"]:
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **order["environment"]})
    answers.append({"out": done.stdout, "err": done.stderr, "rc": done.returncode, "tree": tree()})
print(json.dumps(answers))
"""

pytestmark = [
    pytest.mark.play,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts in a namespace need root"),
    pytest.mark.skipif(not shutil.which("unshare"), reason="no unshare here"),
]


def module(**given: Any) -> list[str]:
    return [PYTHON, "-c", MODULE, str(REPOSITORY), json.dumps({**ARGUMENTS, **given})]


def ad_hoc(*options: str) -> list[str]:
    """The module as Ansible packs it, ships it and runs it."""
    call = [str(Path(PYTHON).with_name("ansible")), "-i", "localhost,", "-c", "local", "all"]
    return [*call, "-e", f"ansible_python_interpreter={PYTHON}", "-m", "gpuhost_cpu_tuning",
            "-a", json.dumps(ARGUMENTS), *options]  # fmt: skip


def hold(root: Path, tree: dict[str, str], commands: list[list[str]]) -> list[dict[str, Any]]:
    """Run the commands in a namespace whose CPUs are those of the tree."""
    for path, text in tree.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    files = [cpu_trees.HUGE_PAGES, "/proc/cpuinfo", "/proc/sys/kernel/osrelease"]
    places = [cpu_trees.CPUS, *(path for path in files if Path(path).exists())]
    environment = {
        "ANSIBLE_LIBRARY": str(REPOSITORY / "library"),
        "ANSIBLE_MODULE_UTILS": str(REPOSITORY / "module_utils"),
        "ANSIBLE_LOCAL_TEMP": str(root / "tmp"),
        "ANSIBLE_REMOTE_TEMP": str(root / "tmp"),
        "ANSIBLE_NOCOLOR": "1",
    }
    order = {"root": str(root), "places": places, "commands": commands, "environment": environment}
    argv = ["unshare", "--mount", "--propagation", "private", PYTHON, "-c", HOLD]
    done = subprocess.run(argv, input=json.dumps(order), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def answer(found: dict[str, Any]) -> dict[str, Any]:
    """A module's answer, from itself or from ``ansible``."""
    out = found["out"]
    assert "{" in out, found
    parsed: dict[str, Any] = json.loads(out[out.index("{") :])
    assert "msg" not in parsed, parsed
    return parsed


def codes(found: dict[str, Any], severity: str) -> list[tuple[str, str]]:
    (document,) = found["gpuhost_documents"]
    return [(item["id"], item["observed"]) for item in document["findings"] if item["severity"] == severity]


@pytest.mark.parametrize("tree", cpu_trees.TREES.values(), ids=list(cpu_trees.TREES))
def test_twice_and_back_in_a_namespace(tmp_path: Path, tree: Callable[[], dict[str, str]]) -> None:
    commands = [module(_ansible_check_mode=True), module(), module(), [PYTHON, "-c", REVERT]]
    before, checked, first, second, reverted = hold(tmp_path, tree(), commands)
    assert checked["tree"] == before["tree"]
    assert answer(checked)["lines"] == answer(first)["lines"]
    assert codes(answer(first), "p0_runtime") == []
    assert answer(second)["changed"] is False
    assert second["tree"] == first["tree"]
    assert set(json.loads(reverted["out"])) <= {"written"}
    assert reverted["tree"] == before["tree"]


def test_ansible_ships_and_runs_it_on_the_incidents_host(tmp_path: Path) -> None:
    """Also: the program that is laid down for the boot is whole although the module came in an archive."""
    tree = cpu_trees.epyc_acpi(governor="schedutil")
    program = "/var/lib/gpuhost/cpu_boot.py"
    before, first, second, reverted = hold(tmp_path, tree, [ad_hoc(), ad_hoc(), [PYTHON, "-c", REVERT]])
    assert answer(first)["changed"] is True
    assert codes(answer(first), "p0_runtime") == []
    assert codes(answer(first), "p1_reboot") == [("cpu.scaling_driver", "acpi-cpufreq instead of amd_pstate")]
    assert first["tree"][program] == (REPOSITORY / "module_utils/gpuhost/cpu_boot.py").read_text()
    assert answer(second)["changed"] is False
    assert second["tree"] == first["tree"]
    assert reverted["tree"] == before["tree"]


def test_the_units_command_after_a_boot(tmp_path: Path) -> None:
    """A boot resets /sys; the unit's own command then leaves it as the module did."""
    tree = cpu_trees.epyc_pstate()
    _, tuned = hold(tmp_path / "tuned", tree, [module()])
    unit = tuned["tree"]["/etc/systemd/system/gpuhost-cpu.service"]
    (command,) = [line.split("=", 1)[1].split() for line in unit.splitlines() if line.startswith("ExecStart=")]
    copy = tmp_path / "cpu_boot.py"
    copy.write_text(tuned["tree"][command[1]])
    argv = [PYTHON, "-I", str(copy), *command[2:]]
    before, booted, again = hold(tmp_path / "booted", tree, [argv, argv])
    assert booted["out"].count(" -> ") == 4 * 3 + 2, booted
    assert again["out"] == "nothing to do\n"
    for path in before["tree"]:
        if path.startswith("/sys/devices"):
            assert booted["tree"][path] == tuned["tree"][path], path
