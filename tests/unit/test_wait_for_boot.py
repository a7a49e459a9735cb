"""Waiting for a boot: only a new boot id counts, whatever a host that is going down answers meanwhile."""

from __future__ import annotations

import importlib.util
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from fake_roll import REPOSITORY

OLD_ID, NEW_ID = "00000001-0000-4000-8000-000000000000", "00000002-0000-4000-8000-000000000000"
GONE = {"rc": 255, "stdout": "", "stderr": "ssh: connect to host gpu-1 port 22: Connection refused\n"}
SECRET = "calvin-and-hobbes"
JOBS = "  12 reboot.target start waiting\n 345 pve-guests.service stop running\n"


def plugin() -> ModuleType:
    path = REPOSITORY / "action_plugins" / "gpuhost_wait_for_boot.py"
    spec = importlib.util.spec_from_file_location("gpuhost_wait_for_boot", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Connection:
    """An ssh connection's options, each change of ssh_args remembered."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {"ssh_args": "-o ControlMaster=auto", "reconnection_retries": 3}
        self.ssh_args: list[str] = []
        self.resets = 0
        self._shell = SimpleNamespace(join=shlex.join)

    def has_option(self, name: str) -> bool:
        return name in self.options

    def get_option(self, name: str) -> Any:
        return self.options[name]

    def set_option(self, name: str, value: Any) -> None:
        self.options[name] = value
        if name == "ssh_args":
            self.ssh_args.append(value)

    def reset(self) -> None:
        self.resets += 1


class Waited:
    """One wait against these answers: the last one repeats, a callable makes one from the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: list[Any], timeout_s: int = 60, **given: Any) -> None:
        monkeypatch.delenv("GPUHOST_PROGRESS", raising=False)
        self.module = plugin()
        self.clock = Clock()
        monkeypatch.setattr(self.module, "time", self.clock)
        monkeypatch.setattr(self.module.ActionBase, "run", lambda *_: {})
        self.answers = answers
        self.said: list[str] = []
        self.warned: list[str] = []
        self.commands: list[tuple[list[str], bool]] = []
        self.connection = Connection()
        self.jobs: Any = {"rc": 0, "stdout": JOBS, "stderr": ""}
        self.sysrq: Any = {"rc": 0, "stdout": "", "stderr": ""}
        self.action = self.module.ActionModule.__new__(self.module.ActionModule)
        arguments = {"boot_id": OLD_ID, "timeout_s": timeout_s, "host_name": "gpu-1", **given}
        self.action._task = SimpleNamespace(args=arguments)
        self.action._connection = self.connection
        self.action._display = SimpleNamespace(
            display=self.said.append, warning=self.warned.append, vv=self.warned.append
        )
        self.action._low_level_execute_command = self.command

    def command(self, command: str, sudoable: bool = True) -> dict[str, Any]:
        argv = shlex.split(command)
        self.commands.append((argv, sudoable))
        if argv[0] == "systemctl":
            answer = self.jobs
        elif argv[0] == "cat":
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        else:
            answer = self.sysrq
        if isinstance(answer, Exception):
            raise answer
        return dict(answer(self.clock.now) if callable(answer) else answer)

    def run(self, **task_vars: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.action.run(None, task_vars)
        return found

    def ran(self, program: str) -> list[tuple[list[str], bool]]:
        return [call for call in self.commands if call[0][0] == program]


def wait(monkeypatch: pytest.MonkeyPatch, answers: list[Any], timeout_s: int = 60, **given: Any) -> dict[str, Any]:
    return Waited(monkeypatch, answers, timeout_s, **given).run()


def answered(boot_id: str, **changes: Any) -> dict[str, Any]:
    return {"rc": 0, "stdout": boot_id + "\n", "stderr": "", **changes}


def until(seconds: float, before: Any, after: Any) -> Callable[[float], Any]:
    """One answer up to a time, another from then on."""
    return lambda now: before if now < seconds else after


# --- what counts


def test_a_new_boot_id_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    result = wait(monkeypatch, [answered(OLD_ID), GONE, AnsibleConnectionFailure("timed out"), answered(NEW_ID)])
    assert (result["boot_id"], result["changed"]) == (NEW_ID, True)
    assert not result.get("failed")


@pytest.mark.parametrize(
    "answer",
    [
        {"rc": 255, "stdout": "", "stderr": "\n"},
        {"rc": 255, "stdout": " ", "stderr": ""},
        {"rc": 0, "stdout": "", "stderr": ""},
        {"rc": 0, "stdout": "System is going down. Unprivileged users are not permitted to log in.\n", "stderr": ""},
        {"rc": 0, "stdout": "mktemp: failed to create file: Read-only file system\n", "stderr": ""},
        {"rc": 0, "stdout": f"mount: can't find UUID={NEW_ID}.\n", "stderr": ""},
        {"rc": 1, "stdout": NEW_ID, "stderr": ""},
        {"rc": 255},
        AnsibleConnectionFailure(""),
        AnsibleConnectionFailure(NEW_ID),
    ],
)
def test_whatever_a_dying_host_answers_the_wait_goes_on(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    made = Waited(monkeypatch, [answer, answer, answered(NEW_ID)])
    assert made.run()["boot_id"] == NEW_ID
    assert len(made.ran("cat")) == 3


def test_a_banner_around_the_boot_id_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wait(monkeypatch, [answered(f"Welcome!\n{NEW_ID}")])["boot_id"] == NEW_ID


# --- how soon


def test_the_polls_do_not_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """ansible.builtin.reboot would ask every 13 s by now."""
    made = Waited(monkeypatch, [until(900.5, GONE, answered(NEW_ID))], timeout_s=1800)
    assert made.run()["seconds"] - 900.5 <= 1.0
    assert len(made.ran("cat")) >= 900


def test_each_attempt_has_a_connection_and_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Waited(monkeypatch, [GONE, answered(NEW_ID)])
    made.run()
    first = made.connection.ssh_args[0].split()
    # ssh takes the first value of an option: ours have to stand before the user's.
    assert first.index("ControlMaster=no") < first.index("ControlMaster=auto")
    assert {"ControlPath=none", "ConnectTimeout=2"} <= set(first)
    assert made.connection.options == {"ssh_args": "-o ControlMaster=auto", "reconnection_retries": 3}
    assert made.connection.resets == 1


def test_a_slow_ssh_server_gets_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {"rc": 255, "stdout": "", "stderr": "Connection timed out during banner exchange\n"}
    made = Waited(monkeypatch, [slow, slow, slow, answered(NEW_ID)])
    made.run()
    limits = [word.split("=")[1] for args in made.connection.ssh_args for word in args.split() if "Timeout" in word]
    assert limits == ["2", "6", "2", "6"]


def test_a_connection_without_ssh_options_is_asked_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Waited(monkeypatch, [GONE, answered(NEW_ID)])
    made.connection.options = {}
    assert made.run()["boot_id"] == NEW_ID
    assert made.connection.options == {}


def test_an_attempt_that_hangs_ends_at_its_limit() -> None:
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        pytest.skip("pytest-timeout has the timer")
    module, handler = plugin(), signal.getsignal(signal.SIGALRM)
    began = time.monotonic()
    with pytest.raises(AnsibleConnectionFailure, match="no answer within"), module.limited(0.1):
        time.sleep(20)
    assert time.monotonic() - began < 10
    assert signal.getsignal(signal.SIGALRM) is handler


def test_the_timer_of_somebody_else_is_left_alone() -> None:
    before = signal.getitimer(signal.ITIMER_REAL)[0]
    if not before:
        signal.setitimer(signal.ITIMER_REAL, 100)
    try:
        with plugin().limited(0.01):
            time.sleep(0.05)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 1
    finally:
        if not before:
            signal.setitimer(signal.ITIMER_REAL, 0)


# --- what is said


def test_a_host_that_is_not_back_names_its_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    result = wait(monkeypatch, [GONE], timeout_s=20)
    assert (result["failed"], result["cause"], result["object"]) == (True, "trial.not_back", "gpu-1")
    assert "Connection refused" in result["msg"]
    assert "within 20 s" in result["expected"]
    assert "console" in result["next_step"]


def test_progress_says_the_last_answer_every_half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Waited(monkeypatch, [GONE], timeout_s=200)
    made.run()
    assert len(made.said) == 7  # at 30, 60, 90, 100 (half of the limit), 130, 160 and 190 s
    assert all("Connection refused" in line for line in made.said)
    assert sum("half of the limit" in line for line in made.said) == 1


def test_progress_goes_where_the_command_follows_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = Waited(monkeypatch, [GONE], timeout_s=40)
    monkeypatch.setenv("GPUHOST_PROGRESS", str(tmp_path / "progress.log"))
    made.run()
    assert (tmp_path / "progress.log").read_text().splitlines() == made.said


def test_a_progress_file_that_cannot_be_written_stops_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = Waited(monkeypatch, [until(50, GONE, answered(NEW_ID))])
    monkeypatch.setenv("GPUHOST_PROGRESS", str(tmp_path / "none" / "progress.log"))
    assert made.run()["boot_id"] == NEW_ID


def test_a_host_that_lets_nobody_in_is_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is up: its power is not cut."""
    refusal = AnsibleConnectionFailure("Failed to connect to the host via ssh: Host key verification failed.")
    hook = [sys.executable, "-c", f"open({str(tmp_path / 'cycled')!r}, 'w')"]
    result = wait(monkeypatch, [refusal], power_cycle=hook, power_cycle_after_s=5)
    assert result["cause"] == "reboot.ssh_refused"
    assert not (tmp_path / "cycled").exists()


# --- hanging in shutdown


def test_a_host_that_never_went_down_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    result = wait(monkeypatch, [answered(OLD_ID)], timeout_s=20)
    assert (result["failed"], result["cause"]) == (True, "reboot.hangs_in_shutdown")
    assert "has not rebooted" in result["next_step"]
    assert "the next power cycle boots the old kernel" not in result["msg"]


def test_what_a_shutdown_waits_for_is_reported_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Waited(monkeypatch, [until(400, answered(OLD_ID), answered(NEW_ID))], timeout_s=1800)
    result = made.run()
    assert result["boot_id"] == NEW_ID  # reported, and waited on: it may still come
    assert result["lines"] == ["still runs 5:00 after the reboot began: waits for stop of pve-guests.service"]
    argv, become = made.ran("systemctl")[0]
    assert (argv[:2], become) == (["systemctl", "list-jobs"], False)
    assert made.ran("python3") == []  # nothing is forced without consent


def test_sysrq_is_used_once_with_consent_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Waited(monkeypatch, [until(400, answered(OLD_ID), answered(NEW_ID))], timeout_s=1800, sysrq=True)
    result = made.run(ansible_python_interpreter="/usr/bin/python3.11")
    calls = made.ran("/usr/bin/python3.11")
    assert [(argv[1], argv[3:], become) for argv, become in calls] == [("-c", ["/proc/sysrq-trigger", "5"], True)]
    assert result["lines"][1] == "SysRq was used: sync, remount read-only, boot (host_reboot_sysrq)"


@pytest.mark.parametrize(
    "answer",
    [{"rc": 1, "stdout": "", "stderr": "PermissionError: [Errno 13]\n"}, AnsibleConnectionFailure("PermissionError")],
)
def test_sysrq_that_fails_is_said_and_the_wait_goes_on(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    made = Waited(monkeypatch, [answered(OLD_ID)], timeout_s=900, sysrq=True)
    made.sysrq = answer
    result = made.run()
    assert result["cause"] == "reboot.hangs_in_shutdown"
    assert "PermissionError" in result["observed"]
    assert "SysRq was used" not in result["observed"]


def test_sysrq_is_not_for_a_host_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Waited(monkeypatch, [answered(OLD_ID), GONE], timeout_s=900, sysrq=True)
    assert made.run()["cause"] == "trial.not_back"
    assert made.ran("python3") == []


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ({"rc": 0, "stdout": "", "stderr": ""}, "the reboot was never begun"),
        ({"rc": 0, "stdout": "Input/output error\n", "stderr": ""}, "list-jobs: Input/output error"),
        ({"rc": 1, "stdout": "", "stderr": "Failed to connect to bus\n"}, "list-jobs: Failed to connect to bus"),
        (AnsibleConnectionFailure("timed out"), "list-jobs: timed out"),
    ],
)
def test_what_list_jobs_may_answer(monkeypatch: pytest.MonkeyPatch, jobs: Any, said: str) -> None:
    made = Waited(monkeypatch, [answered(OLD_ID)], timeout_s=400)
    made.jobs = jobs
    assert said in made.run()["observed"]


# --- the power cycle


def hook(tmp_path: Path, program: str) -> list[str]:
    """A command as an operator would give it, with its password among the arguments."""
    path = tmp_path / "bmc"
    log = str(tmp_path / "log")
    path.write_text(f"#!{sys.executable}\nimport sys\nopen({log!r}, 'a').write('x')\n{program}\n")
    path.chmod(0o755)
    return [str(path), "-U", "root", "-P", SECRET, "$(touch /tmp/never)", "chassis"]


def test_the_power_cycle_runs_once_and_its_end_is_in_the_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = hook(tmp_path, "print('Chassis Power Control: Cycle')")
    made = Waited(
        monkeypatch, [until(1200, GONE, answered(NEW_ID))], 1800, power_cycle=command, power_cycle_after_s=900
    )
    result = made.run()
    assert (tmp_path / "log").read_text() == "x"
    assert result["lines"] == [f"power cycle: {command[0]} ended with 0: Chassis Power Control: Cycle"]


def test_a_power_cycle_that_fails_is_said_without_its_password_and_the_wait_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = hook(tmp_path, "sys.exit('login failed: ' + ' '.join(sys.argv[1:]))")
    made = Waited(
        monkeypatch, [until(1200, GONE, answered(NEW_ID))], 1800, power_cycle=command, power_cycle_after_s=900
    )
    result = made.run()
    assert result["boot_id"] == NEW_ID
    assert "ended with 1: login failed" in result["lines"][0]
    assert SECRET not in str(result) + str(made.said) + str(made.warned)


def test_a_power_cycle_without_its_program_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    result = wait(monkeypatch, [GONE], 60, power_cycle=["/nonexistent/ipmitool", SECRET], power_cycle_after_s=5)
    assert result["cause"] == "trial.not_back"
    assert "/nonexistent/ipmitool did not run to its end: No such file or directory" in result["observed"]
    assert SECRET not in str(result)


def test_a_power_cycle_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    command = hook(tmp_path, "import subprocess; subprocess.run(['sleep', '60'])")
    began = time.monotonic()
    rc, output = plugin().run_here(command, 1)
    assert (rc, output) == (None, "\nkilled after 1 s")
    assert time.monotonic() - began < 20


def test_a_host_that_answers_is_not_power_cycled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wait(monkeypatch, [answered(OLD_ID)], 60, power_cycle=hook(tmp_path, ""), power_cycle_after_s=5)
    assert not (tmp_path / "log").exists()


# --- settings


def test_a_setting_that_cannot_be_used_fails_before_the_reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Waited(monkeypatch, [GONE], 600, power_cycle=["ipmitool", SECRET], check_settings=True)
    result = made.run()
    assert (result["failed"], result["cause"]) == (True, "input.invalid")
    assert "host_reboot_power_cycle_after: 900" in result["observed"]
    assert SECRET not in str(result)
    assert made.commands == []


def test_good_settings_pass_and_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Waited(monkeypatch, [GONE], 1800, power_cycle=["ipmitool"], check_settings="true")
    assert made.run() == {"changed": False}
    assert made.commands == []


def test_a_wrong_setting_does_not_end_a_wait_that_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Waited(monkeypatch, [GONE, answered(NEW_ID)], 600, power_cycle="ipmitool -P " + SECRET)
    assert made.run()["boot_id"] == NEW_ID
    assert "host_reboot_power_cycle" in made.warned[0]
    assert SECRET not in made.warned[0]


def test_a_controller_without_the_package_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Waited(monkeypatch, [GONE])
    monkeypatch.setattr(made.module, "IMPORT_ERROR", ImportError("No module named 'gpuhost'"))
    with pytest.raises(AnsibleActionFail, match="make install"):
        made.run()
