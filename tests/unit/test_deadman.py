"""The dead-man: its script run for real by /bin/sh, its lock raced, and what it leaves on a host."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from fake_host import FakeHost, Killed
from fake_roll import PASSED, act, boots_by_itself, cause_of, debian_host, on_trial, roll_of
from fake_tree import NEW, OLD

from gpuhost import deadman
from gpuhost.errors import Stop

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
        """``sleep`` is a short one: what it waits for is not the clock, but the file with the uptime."""
        short = self.folder / "bin/sleep"
        short.parent.mkdir(exist_ok=True)
        short.write_text(f"#!/bin/sh\nexec {shutil.which('sleep')} 0.2\n")
        short.chmod(0o755)
        return subprocess.Popen(
            [self.shell, str(self.folder / "deadman"), mode, str(self.folder), str(self.folder / "reboot")],
            env={**os.environ, "PATH": f"{short.parent}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
        )

    def run(self, mode: str = "reboot") -> int:
        """Start it, and wait for what it leaves in the background as well: that has the other end of the pipe."""
        return ended(self.start(mode))

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


def ended(process: subprocess.Popen[bytes]) -> int:
    process.communicate(timeout=20)
    return process.returncode


@pytest.mark.parametrize("shell", SHELLS)
def test_at_the_deadline_it_claims_writes_and_reboots(tmp_path: Path, shell: str) -> None:
    script = Script(tmp_path, shell, deadline_s=100, maximum_s=1000, force_after_s=5)
    assert script.start().wait(20) == 0
    assert script.calls() == ["reboot -i"]
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
        assert script.calls() == ["reboot -i"]
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
    assert script.calls() == ["reboot -i"]


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
    assert script.run("force") == 0
    assert script.calls() == ["reboot -i", "reboot --force --force"]
    assert (tmp_path / "proc/sysrq-trigger").read_text() == "b\n"


def test_the_second_one_alone_takes_the_lock_and_says_so(tmp_path: Path) -> None:
    """As where a user's own shutdown stopped the first one, and hangs."""
    script = Script(tmp_path, uptime=160, deadline_s=100, force_after_s=60)
    assert script.run("force") == 0
    assert not deadman.take(FakeHost(tmp_path), RELEASE)
    assert deadman.fired(FakeHost(tmp_path)) == "nobody renewed the deadline of 100 s, rebooted at 160 s, forced"


def test_a_forced_reboot_that_hangs_in_its_sync_ends_in_sysrq(tmp_path: Path) -> None:
    script = Script(tmp_path, uptime=160, deadline_s=100, force_after_s=60)
    (tmp_path / "reboot").write_text("#!/bin/sh\nexec /bin/sleep 30\n")
    assert script.start("force").wait(20) == 0
    assert (tmp_path / "proc/sysrq-trigger").read_text() == "b\n"


def test_a_reboot_that_is_refused_is_tried_again(tmp_path: Path) -> None:
    script = Script(tmp_path, deadline_s=100)
    (tmp_path / "reboot").write_text(PROGRAM + '[ "$(wc -l <"$(dirname "$0")/calls")" -ge 4 ]\n')
    assert script.start().wait(20) == 0
    assert script.calls() == ["reboot -i", "reboot --force"] * 2


@pytest.mark.parametrize("mode", ["reboot", "force"])
def test_a_leading_zero_is_no_octal_number(tmp_path: Path, mode: str) -> None:
    script = Script(tmp_path, uptime=1020, deadline_s="0800", force_after_s="08")  # 900 and 120 count
    assert script.run(mode) == 0
    assert len(script.calls()) == 1


@pytest.mark.parametrize(("mode", "call"), [("reboot", "reboot -i"), ("force", "reboot --force --force")])
def test_of_promote_and_dead_man_exactly_one_wins(tmp_path: Path, mode: str, call: str) -> None:
    for turn in range(25):
        folder = tmp_path / str(turn)
        script = Script(folder, uptime=1000, deadline_s=100)
        host = FakeHost(folder)
        process = script.start(mode)
        time.sleep(turn * 0.001)
        promoted = deadman.take(host, RELEASE)
        assert ended(process) == 0
        assert promoted != (script.calls() == [call])


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
    assert script.calls() == ["reboot -i"]
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
    assert "Restart=on-failure" in deadman.UNIT_TEXTS[deadman.UNITS[0]]
    assert "Conflicts" not in deadman.UNIT_TEXTS[deadman.UNITS[1]]  # or the shutdown that hangs would stop it, too
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


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("", "it has fired"),  # a full disk, or a power cut
        ("deadline_s=100\nforce_after_s=60\n", "it has fired"),
        ("deadline_s=100\nrebooted at 100 s\nforced\n", "rebooted at 100 s; forced"),
    ],
)
def test_the_note_of_one_that_has_fired(host: FakeHost, text: str, note: str) -> None:
    host.put(f"{deadman.FOLDER}/fired-{NEW}", text)
    assert deadman.fired(host) == note
    assert deadman.state(host).fired == note


@pytest.mark.parametrize("settings", [(0, 100, 1), (200, 100, 1), (100, 10**9, 1), (100, 200, 0)])
def test_a_setting_that_would_reboot_at_once_or_never_arms_nothing(
    host: FakeHost, settings: tuple[int, int, int]
) -> None:
    with pytest.raises(Stop, match="Correct the setting"):
        deadman.arm(host, NEW, *settings)
    assert host.names(deadman.FOLDER) == []


def test_the_deadline_that_is_shown_is_the_one_that_counts(host: FakeHost) -> None:
    deadman.arm(host, NEW, 100, 500, 60)
    assert deadman.state(host).deadline_s == 100
    host.put(deadman.RENEWED, "uptime_s=0400\n")
    assert deadman.state(host).deadline_s == 100
    host.put(deadman.RENEWED, "uptime_s=9000\n")
    assert deadman.state(host).deadline_s == 500


def test_a_disarming_that_was_cut_off_goes_on_and_leaves_nothing(tmp_path: Path) -> None:
    for cut in range(1, 100):
        host = FakeHost(tmp_path / str(cut))
        host.programs[("systemctl",)] = (0, "", "")
        deadman.install(host)
        deadman.arm(host, NEW, 100, 500, 60)
        host.put(deadman.RENEWED, "uptime_s=200\n")
        host.effects.clear()
        host.die_after = cut
        try:
            deadman.disarm(host)
        except Killed:
            host.die_after = None
            deadman.disarm(host)
        assert [path for path in host.files_below("/") if "gpuhost" in path] == []
        assert not host.is_folder("/etc/gpuhost")
        assert not host.is_folder("/run/gpuhost")
        assert deadman.disarm(host) == []
        if host.die_after:
            return
    pytest.fail("it never came to its end")


def test_what_systemd_refuses_while_disarming_is_said(host: FakeHost) -> None:
    deadman.install(host)
    host.programs[("systemctl", "stop")] = (1, "", "Failed to connect to bus")
    host.programs[("systemctl", "daemon-reload")] = (0, "", "")
    assert deadman.disarm(host) == ["dead-man disarmed", "systemctl stop: Failed to connect to bus"]


def test_promote_takes_the_lock_and_leaves_nothing(host: FakeHost) -> None:
    on_trial(host)
    act(host, "promote", verdict=PASSED)
    assert boots_by_itself(host) == NEW
    assert host.names("/etc/gpuhost") == []
    assert [name for name in host.names("/etc/systemd/system") if "deadman" in name] == []
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
