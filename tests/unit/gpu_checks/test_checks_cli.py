"""The command line, and the archive that carries it: same bytes, Python 3.9, never a traceback."""

import json
import os
import resource
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpu_checks.build_zipapp import build
from gpu_checks.causes import CAUSES
from gpu_checks.registry import REGISTRY

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("build") / "deeper" / "gpu_checks.pyz"
    build(path)
    return path


def run(archive, *arguments, python=sys.executable, stdout=subprocess.PIPE):
    return subprocess.run(
        [python, str(archive), *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True, cwd="/", check=False,
        timeout=60,
    )  # fmt: skip


def test_list_shows_every_check(archive):
    done = run(archive, "list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(REGISTRY)


def test_all_runs_every_check_and_quick_is_passed_on(archive):
    """On a machine without a GPU each says so, under its own name; but for those that are only run by name."""
    measurements = json.loads(run(archive, "all", "--quick", "--json", "--timeout", "20").stdout)["measurements"]
    assert {each["name"] for each in measurements} >= {name for name, check in REGISTRY.items() if not check.by_name}
    assert "decode" not in {each["name"] for each in measurements}


def test_what_decode_is_asked_for_is_passed_on(archive):
    (whole,) = json.loads(run(archive, "decode", "--tp", "3", "--model", "glm-5", "--json").stdout)["measurements"]
    assert whole["cause"] == "decode.bad_model"
    assert "glm-5 can't be cut over 3 ranks" in whole["detail"]["message"]


def test_run_id_is_carried(archive):
    assert json.loads(run(archive, "cuda", "cuda", "--json", "--run-id", "r1").stdout)["run_id"] == "r1"


def test_a_check_named_twice_runs_once(archive):
    assert len(json.loads(run(archive, "cuda", "cuda", "--json").stdout)["measurements"]) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("nonsense",), ("device_access", "list"), ("list", "--json"), ("cuda", "--timeout", "0"),
        ("cuda", "--timeout", "nan"), ("cuda", "--timeout", "soon"), ("cuda", "--expect-gpus", "-1"),
        ("cuda", "--expect-gpus", "many"), ("cuda", "--no-such-option"),
        ("decode", "--tp", "0"), ("decode", "--batch", "few"), ("decode", "--context", "-1"),
    ],
)  # fmt: skip
def test_wrong_calls_are_usage_errors(archive, arguments):
    done = run(archive, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "gpu_checks: error:" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_gives_a_sentence(archive):
    with open("/dev/full", "w") as full:
        done = run(archive, "cuda", "--json", stdout=full)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "could not be written" in done.stderr


def processor_seconds(command):
    """User and system time of the best of five runs of a command, its children included."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, stdout=subprocess.DEVNULL, cwd="/", check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def test_without_a_driver_the_answer_is_quick(archive):
    if "nvidia" in Path("/proc/devices").read_text():
        pytest.skip("this machine has the driver")
    for name in ("device_access", "cuda"):
        whole = json.loads(run(archive, name, "--json").stdout)["measurements"][-1]
        assert (whole["name"], whole["status"], whole["cause"]) == (name, "error", "driver.not_loaded")
    # The limit is for our work: neither for a neighbour's load nor for what this interpreter's site does at its start.
    python = os.path.realpath(sys.executable)
    ours = processor_seconds([python, str(archive), "device_access"]) - processor_seconds([python, "-c", "pass"])
    assert ours < 0.2


def test_same_sources_same_bytes(archive, tmp_path):
    package = tmp_path / "gpu_checks"
    shutil.copytree(ROOT / "gpu_checks", package)
    for number, path in enumerate(sorted(package.rglob("*.py"), reverse=True)):
        os.utime(path, (number, number))
        path.chmod(0o600)
    (package / "__pycache__").mkdir(exist_ok=True)
    (package / "__pycache__" / "left.py").write_text("")
    build(tmp_path / "again.pyz", package)
    assert (tmp_path / "again.pyz").read_bytes() == archive.read_bytes()
    (package / "causes.py").write_text("CAUSES = {}\n")
    build(tmp_path / "again.pyz", package)
    assert (tmp_path / "again.pyz").read_bytes() != archive.read_bytes()


def test_archive_is_a_program_with_sorted_fixed_entries(archive):
    assert archive.read_bytes().startswith(b"#!/usr/bin/env python3\n")
    assert archive.stat().st_mode & 0o777 == 0o755
    with zipfile.ZipFile(archive) as opened:
        names = [entry.filename for entry in opened.infolist()]
        assert {entry.date_time for entry in opened.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert names == sorted(names)
    assert "__main__.py" in names
    assert "gpu_checks/build_zipapp.py" not in names


def test_a_failed_build_leaves_the_old_archive(archive, tmp_path, monkeypatch):
    output = tmp_path / "gpu_checks.pyz"
    output.write_bytes(b"old")
    monkeypatch.setattr(zipfile.ZipFile, "writestr", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        build(output)
    assert [path.name for path in tmp_path.iterdir()] == ["gpu_checks.pyz"]
    assert output.read_bytes() == b"old"


def find_python(version):
    """An interpreter of this version from PATH or from pyenv, whose shims only work where the version is chosen."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for python in [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python3"))]:
        if python and not subprocess.run([python, "-V"], capture_output=True, cwd="/", check=False).returncode:
            return str(python)
    return None


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.13"])
def test_other_pythons(archive, version):
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    done = run(archive, "device_access", "cuda", "--json", python=python)
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["python"].startswith(f"{version}.")
    assert all(each["cause"] is None or each["cause"] in CAUSES for each in document["measurements"])


def test_a_python_that_is_too_old_gets_a_sentence(archive):
    code = "import sys, runpy; sys.version_info = (3, 8); runpy.run_path(sys.argv[1], run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code, str(archive)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "needs Python 3.9" in done.stderr
