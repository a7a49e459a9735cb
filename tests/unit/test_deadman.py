"""The dead-man: its script run for real by /bin/sh, its lock raced, and what it leaves on a host."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from fake_host import FakeHost
from fake_roll import PASSED, act, boots_by_itself, cause_of, debian_host, on_trial, roll_of
from fake_tree import NEW, OLD

from gpuhost import deadman

RELEASE = subprocess.run(["uname", "-r"], capture_output=True, text=True, check=True).stdout.strip()
SHELLS = [path for path in ("/bin/sh", "/bin/dash", "/bin/bash") if Path(path).exists()]
PROGRAM = '#!/bin/sh\necho "$@" >>"$(dirname "$0")/calls"\n'


class Script:
    """A root folder with the script, an arm file for this machine's kernel, and a reboot that is only written down."""

    def __init__(self, folder: Path, shell: str = "/bin/sh", uptime: float = 100.0, **settings: object) -> None:
        self.folder, self.shell = folder, shell
        for name in ("etc/gpuhost", "proc", "run/gpuhost", "dev"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "deadman").write_text(deadman.SCRIPT_TEXT)
        (folder / "reboot").write_text(PROGRAM)
        (folder / "reboot").chmod(0o755)
        self.uptime(uptime)
        self.armed = folder / "etc/gpuhost" / f"armed-{RELEASE}"
        self.fired = folder / "etc/gpuhost" / f"fired-{RELEASE}"
        self.taken = folder / "etc/gpuhost" / f"taken-{RELEASE}"
        self.armed.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def uptime(self, seconds: float) -> None:
        (self.folder / "proc/uptime").write_text(f"{seconds:.2f} 50.00\n")

    def start(self, mode: str = "reboot") -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self.shell, str(self.folder / "deadman"), mode, str(self.folder), str(self.folder / "reboot")]
        )

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("shell", SHELLS)
def test_at_the_deadline_it_claims_writes_and_reboots(tmp_path: Path, shell: str) -> None:
    script = Script(tmp_path, shell, deadline_s=100, maximum_s=1000, force_after_s=5)
    assert script.start().wait(20) == 0
    assert script.calls() == ["reboot"]
    assert not script.armed.exists()
    assert "deadline of 100 s, rebooted at 100 s" in script.fired.read_text()


@pytest.mark.parametrize(
    ("renewed", "uptime", "fires"),
    [
        ("uptime_s=300\n", 299, False),
        ("uptime_s=300\n", 300, True),
        ("uptime_s=9000\n", 1000, True),  # the maximum
        ("uptime_s=50\n", 100, True),  # a renewal never shortens
        ("uptime_s=soon\n", 100, True),
        ("", 100, True),
        ("\0\0garbage", 99, False),
    ],
)
def test_renewals_move_the_deadline_up_to_the_maximum(tmp_path: Path, renewed: str, uptime: int, fires: bool) -> None:
    script = Script(tmp_path, uptime=uptime, deadline_s=100, maximum_s=1000)
    (tmp_path / "run/gpuhost/deadline").write_text(renewed)
    process = script.start()
    if fires:
        assert process.wait(20) == 0
        assert script.calls() == ["reboot"]
    else:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        script.armed.unlink()
        assert process.wait(20) == 0
        assert script.calls() == []


def test_garbage_in_the_arm_file_means_the_built_in_deadline(tmp_path: Path) -> None:
    script = Script(tmp_path, uptime=901)
    script.armed.write_text("deadline_s=$(touch /tmp/x)\nmaximum_s=\n")
    assert script.start().wait(20) == 0
    assert script.calls() == ["reboot"]


def test_a_promoted_kernel_is_left_alone(tmp_path: Path) -> None:
    script = Script(tmp_path, uptime=99, deadline_s=100)
    both = [script.start("reboot"), script.start("force")]
    script.armed.rename(script.taken)
    script.uptime(5000)
    assert [process.wait(20) for process in both] == [0, 0]
    assert script.calls() == []


def test_the_second_one_forces_a_reboot_that_hangs(tmp_path: Path) -> None:
    script = Script(tmp_path, uptime=100, deadline_s=100, force_after_s=60)
    assert script.start("reboot").wait(20) == 0
    force = script.start("force")
    with pytest.raises(subprocess.TimeoutExpired):
        force.wait(1)
    script.armed.write_text("deadline_s=100\nforce_after_s=60\n")  # as it was when the unit started
    force.kill()
    force.wait()
    script.uptime(160)
    assert script.start("force").wait(30) == 0
    assert script.calls() == ["reboot", "reboot --force --force"]


def test_of_promote_and_dead_man_exactly_one_wins(tmp_path: Path) -> None:
    for turn in range(20):
        folder = tmp_path / str(turn)
        script = Script(folder, deadline_s=100)
        host = FakeHost(folder)
        process = script.start()
        time.sleep(turn * 0.001)
        promoted = deadman.take(host, RELEASE)
        assert process.wait(20) == 0
        assert promoted != (script.calls() == ["reboot"])


def test_a_read_only_root_reboots_all_the_same(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    script = Script(tmp_path, deadline_s=100)
    inner = tmp_path / "inner.sh"
    gpuhost = tmp_path / "etc/gpuhost"
    inner.write_text(
        f"mount --bind {gpuhost} {gpuhost} && mount -o remount,ro,bind {gpuhost} || exit 77\n"
        f"exec /bin/sh {tmp_path}/deadman reboot {tmp_path} {tmp_path}/reboot\n"
    )
    result = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "/bin/sh", str(inner)],
        capture_output=True,
        timeout=30,
        check=False,
    )
    if result.returncode in (1, 77):
        pytest.skip(f"no private mounts here: {result.stderr.decode()}")
    assert script.calls() == ["reboot"]
    assert script.armed.exists()


def test_the_units_pass_systemds_own_check(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    paths = []
    for unit, text in deadman.UNIT_TEXTS.items():
        path = tmp_path / unit
        path.write_text(text)
        paths.append(str(path))
    result = subprocess.run(["systemd-analyze", "verify", *paths], capture_output=True, text=True, check=False)
    assert [line for line in result.stderr.splitlines() if "gpuhost-deadman" in line and "not found" not in line] == []


# --- on a host


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return debian_host(tmp_path)


def test_it_is_armed_for_exactly_the_trial_kernel(host: FakeHost) -> None:
    on_trial(host)
    assert host.names("/etc/gpuhost") == [f"armed-{NEW}", "deadman"]
    assert deadman.state(host).armed_for == NEW
    for target in deadman.TARGETS:
        assert host.names(f"/etc/systemd/system/{target}.wants") == sorted(deadman.UNITS)


def test_a_finished_stage_renews_it_on_the_trial_kernel_only(host: FakeHost) -> None:
    on_trial(host)
    assert not host.exists(deadman.RENEWED)
    host.put("/proc/uptime", "200.00 1.00\n")
    act(host, "prove")
    assert host.read(deadman.RENEWED) == "uptime_s=1100\n"
    assert deadman.renew(host, 10**6) == deadman.MAXIMUM_S
    host.put("/proc/sys/kernel/osrelease", OLD + "\n")
    assert deadman.renew(host) is None


def test_promote_takes_the_lock_and_leaves_nothing(host: FakeHost) -> None:
    on_trial(host)
    act(host, "promote", verdict=PASSED)
    assert boots_by_itself(host) == NEW
    assert host.names("/etc/gpuhost") == []
    assert [name for name in host.names("/etc/systemd/system") if "deadman" in name or "return" in name] == []
    assert [name for name in host.names("/etc/systemd/system") if name.endswith(".target.wants")] == [
        "multi-user.target.wants",
        "timers.target.wants",
    ]


def test_a_dead_man_that_has_fired_stops_the_promotion(host: FakeHost) -> None:
    on_trial(host)
    host.rename(f"{deadman.FOLDER}/armed-{NEW}", f"{deadman.FOLDER}/fired-{NEW}")
    assert cause_of(host, "promote", verdict=PASSED) == "trial.expired"
    assert boots_by_itself(host) == OLD
    assert roll_of(host).promoted_at is None
