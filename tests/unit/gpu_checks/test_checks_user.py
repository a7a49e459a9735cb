"""The workload's user, for real: the host target, this system's passwd, nodes that only some may open."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_stage import DEVICES, NODES, SYSTEM_PYTHON, Stage, needs_stage, open_the_way

from gpuhost import check_runner

pytestmark = [
    needs_stage,
    pytest.mark.skipif(not Path(SYSTEM_PYTHON).exists(), reason=f"no {SYSTEM_PYTHON}, which every user may run"),
]
CODE = """
import json, sys
from gpuhost import check_runner
from gpuhost.host_io import Host
archive, python, user = sys.argv[1:]
check_runner.ARCHIVE = archive
order = check_runner.Order(open(archive, "rb").read(), ["device_access", "cuda"], python, 20, user)
print(json.dumps(check_runner.measure(Host(), "host", order, 2)))
"""
MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"
GROUPED = {name: (major, minor, "660") for name, (major, minor, _) in NODES.items()}


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stage")
    open_the_way(folder)
    made = Stage.make(folder)
    # What stands for the workload's interpreter: it brings the stub libraries along.
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nLD_LIBRARY_PATH={folder}/lib LD_PRELOAD={folder}/driver.so exec {SYSTEM_PYTHON} "$@"\n'
    )
    python.chmod(0o755)
    return made


def measure(stage, user, more=""):
    """What the runner measures as a user, on nodes that are root's and group 4343's."""
    group = "; ".join(f"chgrp 4343 /dev/{name}" for name in GROUPED)
    script = f'{stage.script(GROUPED, DEVICES, MODULE)}; {group}{more}; exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-c", CODE, str(stage.archive),
         str(stage.folder / "python"), user],
        capture_output=True, text=True, check=False, timeout=60, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"no mounts of our own here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return {each["name"]: each for each in json.loads(done.stdout)["measurements"]}


def test_root_may(stage):
    seen = measure(stage, "")
    assert [(seen[name]["status"], seen[name]["value"]) for name in ("device_access", "cuda")] == [("measured", 2)] * 2
    assert seen["cuda"]["detail"]["euid"] == 0


@pytest.mark.parametrize("user", ["nobody", "65534"])
def test_nobody_may_not(stage, user):
    seen = measure(stage, user)
    for name in ("device_access", "cuda"):
        assert (seen[name]["status"], seen[name]["cause"]) == ("error", "device.denied_mode")
        assert seen[name]["detail"]["euid"] == 65534
        assert "/dev/nvidiactl: EACCES, mode 0660 of 0:4343" in seen[name]["detail"]["message"]


def test_a_users_groups_count(stage, tmp_path):
    (tmp_path / "passwd").write_text("root:x:0:0::/root:/bin/sh\nllm:x:4242:4242::/srv/llm:/bin/sh\n")
    (tmp_path / "group").write_text("root:x:0:\nllm:x:4242:\ngpu:x:4343:llm\n")
    mounts = "".join(f"; mount --bind {tmp_path}/{name} /etc/{name}" for name in ("passwd", "group"))
    seen = measure(stage, "llm", mounts)
    assert (seen["cuda"]["status"], seen["cuda"]["value"], seen["cuda"]["detail"]["euid"]) == ("measured", 2, 4242)


@pytest.mark.parametrize("user", ["no-such-user", "4294967294", "99999999999999999999"])
def test_an_unknown_user_is_an_error_of_its_own(stage, user):
    seen = measure(stage, user)
    for name in ("device_access", "cuda"):
        assert (seen[name]["status"], seen[name]["cause"]) == ("error", "check.no_such_user")
        assert f"no user '{user}'" in seen[name]["detail"]["sentence"]


def test_the_file_is_the_users_to_read_and_gone_afterwards(stage, tmp_path):
    place = tmp_path / "tmp"
    place.mkdir()
    open_the_way(place)
    look = tmp_path / "look"
    look.write_text('#!/bin/sh\nstat -c "%a %u" "$1"; id -u; id -G; echo "$HOME $USER $LOGNAME"; pwd; cat "$1"\n')
    look.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", check_runner.BOOTSTRAP, str(look), "nobody", "cuda"],
        input=b"archive", capture_output=True, check=False, env={"TMPDIR": str(place), "PATH": os.environ["PATH"]},
    )  # fmt: skip
    home = next(line for line in Path("/etc/passwd").read_text().splitlines() if line.startswith("nobody:"))
    assert done.stdout.decode().split("\n") == [
        "644 0", "65534", "65534", f"{home.split(':')[5]} nobody nobody", "/", "archive",
    ]  # fmt: skip
    assert list(place.iterdir()) == []
