"""The decisions of the wait for a reboot, on the case roll-01 and around each limit."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_host import FakeHost
from fake_roll import REPOSITORY, act, debian_host, prepared, roll_of
from fake_tree import NEW, OLD, booted
from hypothesis import given
from hypothesis import strategies as st

from gpuhost import reboot_wait, trial, units
from gpuhost.errors import Stop
from gpuhost.reboot_wait import Answer, Limits, State, advance

BEFORE, AFTER = "5b1c0000-0000-4000-8000-00000000aaaa", "77f00000-0000-4000-8000-00000000bbbb"
LIMITS = Limits(1800, 300)
SYSRQ = Limits(1800, 300, sysrq=True)
CYCLED = Limits(1800, 300, power_cycle_s=900)
REFUSED = "ssh: connect to host 192.0.2.7 port 22: Connection refused"
AWAY = reboot_wait.no_answer(REFUSED)
STILL = reboot_wait.judge(BEFORE, 0, BEFORE, "")


def acts(limits: Limits, answers: list[tuple[float, Answer]]) -> list[tuple[float, str]]:
    """Everything that is due over these answers, without the lines of progress."""
    state, found = State(), []
    for now, answer in answers:
        state, due = advance(state, limits, now, answer)
        found += [(now, act) for act in due if act != reboot_wait.SAY]
    return found


def every(answer: Answer, begin: int, end: int) -> list[tuple[float, Answer]]:
    return [(float(now), answer) for now in range(begin, end)]


# --- case roll-01


def test_roll_01_the_sequence() -> None:
    """At 2 s the host is still going down, at 9 s it is away, at 180 s it has booted."""
    dying = reboot_wait.judge(BEFORE, 0, "mktemp: failed to create file: Read-only file system\n", "")
    back = reboot_wait.judge(BEFORE, 0, AFTER + "\n", "")
    assert [item.kind for item in (STILL, dying, AWAY, back)] == ["old", "none", "none", "new"]
    assert back.boot_id == AFTER
    assert acts(LIMITS, [(2.0, dying), (9.0, AWAY), (180.0, back)]) == []


def test_roll_01_the_wrong_kernel_is_a_reboot_that_fails_its_proof(tmp_path: Path) -> None:
    """Reported with both releases; the cause's next step leads to the boot entries."""
    host = debian_host(tmp_path)
    prepared(host)
    act(host, "boot", allowed=True)
    roll = roll_of(host)
    booted(host, roll.running_before, "root=/dev/sda2")  # the loader chose the old kernel
    with pytest.raises(Stop) as caught:
        trial.prove_booted(host, roll)
    found = caught.value.blocker
    assert (found.cause, found.observed, found.expected) == ("trial.wrong_kernel", OLD, NEW)
    with pytest.raises(Stop, match=OLD):
        act(host, "prove")


def test_roll_01_the_limit_is_well_above_ten_minutes() -> None:
    text = (REPOSITORY / "roles/host_reboot/defaults/main.yml").read_text()
    assert "host_reboot_timeout: 1800\n" in text


def test_roll_01_degraded_alone_is_no_failure_and_ours_are(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.programs["systemctl", "is-system-running"] = (1, "degraded\n", "")
    host.programs["systemctl", "list-units"] = (0, "certbot.service loaded failed failed Certbot\n", "")
    assert [proof.ok for proof in units.prove_units(host)] == [True]
    for name in ("nvidia-persistenced", "gpuhost-pcie", "pve-cluster", "pve-guests"):
        host.programs["systemctl", "list-units"] = (0, f"{name}.service loaded failed failed Some words\n", "")
        assert [proof.cause for proof in units.prove_units(host)] == ["reboot.unit_failed"], name


def test_roll_01_container_files_are_not_read_before_pve_is_quorate(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.put("/usr/bin/pmxcfs")
    host.put("/etc/pve/lxc/101.conf", "arch: amd64\n")  # left in the folder that /etc/pve is mounted on
    assert units.pve_ready(host) == "/etc/pve is not mounted"


# --- what an answer is worth


@pytest.mark.parametrize(
    ("rc", "stdout", "kind"),
    [
        (0, AFTER, "new"),
        (0, f"Last login: today\n{AFTER}\n", "new"),
        (0, f"{AFTER}\n{BEFORE}\n", "old"),  # a banner's own UUID stands before the program's answer
        (0, f"  {BEFORE}  \n", "old"),
        (None, AFTER, "none"),
        (1, AFTER, "none"),
        (0, f"disk {AFTER} is gone\n", "none"),
        (0, AFTER[:-1], "none"),
        (0, AFTER.upper(), "none"),
        (0, "00000000-0000-0000-0000-000000000000", "none"),  # the kernel's is a random UUID, version 4
        (0, "", "none"),
    ],
)
def test_only_a_line_that_is_a_boot_id_counts(rc: int | None, stdout: str, kind: str) -> None:
    assert reboot_wait.judge(BEFORE + "\n", rc, stdout, "").kind == kind


@given(st.uuids(version=4), st.uuids(version=4), st.text(max_size=40), st.text(max_size=40))
def test_any_new_boot_id_counts_whatever_stands_around_it(before: object, after: object, a: str, b: str) -> None:
    answer = reboot_wait.judge(str(before), 0, f"{a}\n{after}\n{b}", b)
    assert answer.kind == ("old" if before == after else "new")


@given(st.text(alphabet="0123456789abcdef-\n ", max_size=60))
def test_no_other_text_is_a_boot_id(text: str) -> None:
    assert reboot_wait.judge(BEFORE, 0, text, "").kind in ("none", "old") or len(text) >= 36


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("root@192.0.2.7: Permission denied (publickey).", "refused"),
        ("Host key verification failed.", "refused"),
        ("Received disconnect from 192.0.2.7 port 22:2: Too many authentication failures", "refused"),
        (REFUSED, "none"),
        ("cat: /proc/sys/kernel/random/boot_id: Permission denied", "none"),
        ("", "none"),
    ],
)
def test_a_host_that_refuses_us_is_up(text: str, kind: str) -> None:
    answer = reboot_wait.no_answer(text)
    assert answer.kind == kind
    assert answer.text == (text or "no answer")


# --- what is due when


def test_a_shutdown_is_reported_once_at_its_limit() -> None:
    assert acts(LIMITS, every(STILL, 0, 800)) == [(300.0, "shutdown")]
    assert acts(LIMITS, every(STILL, 0, 300)) == []


def test_sysrq_comes_after_the_report_and_only_with_consent() -> None:
    assert acts(SYSRQ, every(STILL, 0, 800)) == [(300.0, "shutdown"), (300.0, "sysrq")]


def test_sysrq_waits_for_an_old_boot_id_beyond_the_limit() -> None:
    assert acts(SYSRQ, every(AWAY, 0, 800)) == []


def test_a_host_that_is_away_is_reported_at_half_of_the_limit() -> None:
    assert acts(LIMITS, [*every(STILL, 0, 20), *every(AWAY, 20, 1800)]) == [(900.0, "gone")]


def test_the_power_cycle_counts_from_the_last_sign_of_life() -> None:
    assert acts(CYCLED, [*every(STILL, 0, 200), *every(AWAY, 200, 1800)]) == [(900.0, "gone"), (1099.0, "power_cycle")]


@pytest.mark.parametrize("kind", ["old", "refused"])
def test_a_host_that_shows_itself_is_not_power_cycled(kind: str) -> None:
    assert "power_cycle" not in [act for _, act in acts(CYCLED, every(Answer(kind, ""), 0, 1800))]


def test_progress_is_said_every_half_minute_and_not_beside_another_line() -> None:
    state, said = State(), []
    for now in range(301):
        state, due = advance(state, LIMITS, float(now), STILL)
        said += [(now, act) for act in due]
    assert said == [(30 * n, "say") for n in range(1, 10)] + [(300, "shutdown")]


def test_attempts_begin_a_second_apart_and_one_that_took_long_is_followed_at_once() -> None:
    assert reboot_wait.pause(10.0, 10.1) == pytest.approx(0.9)
    assert reboot_wait.pause(10.0, 12.0) == pytest.approx(0.2)


def test_a_machine_that_is_off_gets_the_short_limit_each_time() -> None:
    off = reboot_wait.no_answer("ssh: connect to host 192.0.2.7 port 22: Connection timed out")
    assert reboot_wait.connect_limit(off, reboot_wait.CONNECT_S) == reboot_wait.CONNECT_S
    # The longest that a return stays unseen: an attempt that was lost, the pause, and the next one's first packet.
    assert reboot_wait.CONNECT_S + reboot_wait.pause(0, reboot_wait.CONNECT_S) < 3


# --- settings and words


@pytest.mark.parametrize(
    ("limits", "command", "named"),
    [
        (Limits(0, 300), [], "host_reboot_timeout"),
        (Limits(1800, 300), "ipmitool chassis power cycle", "host_reboot_power_cycle:"),
        (Limits(1800, 300), ["ipmitool", 1], "host_reboot_power_cycle:"),
        (Limits(1800, 300), [""], "host_reboot_power_cycle:"),
        (Limits(900, 300, power_cycle_s=900), ["ipmitool"], "host_reboot_power_cycle_after"),
        (Limits(900, 300, power_cycle_s=0), ["ipmitool"], "host_reboot_power_cycle_after"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(limits: Limits, command: object, named: str) -> None:
    found = reboot_wait.problems(limits, command)
    assert [text.startswith(named) for text in found] == [True]


def test_good_settings_have_no_problem() -> None:
    assert reboot_wait.problems(CYCLED, ["ipmitool", "chassis"]) == ()
    assert reboot_wait.problems(Limits(600, 300, power_cycle_s=900), []) == ()


@pytest.mark.parametrize(
    ("argv", "output"),
    [
        (["ipmitool", "-P", "hunter2"], "login as root with hunter2 failed"),
        (["ipmitool", "-Phunter2"], "password hunter2 refused"),
        (["curl", "-u", "root:hunter2", "https://192.0.2.9"], "wrong user/password hunter2"),
        (["curl", "https://root:hunter2@192.0.2.9/redfish"], "root:hunter2 refused"),
        (["bmc", "--password=hunter2"], "bad option --password=hunter2"),
        (["bmc", '{"Password": "hunter2"}'], "hunter2"),
        (["bmc", "a:b=hunter2"], "no: b=hunter2"),
    ],
)
def test_no_argument_is_shown(argv: list[str], output: str) -> None:
    said = reboot_wait.power_cycle(argv, 1, f"{output}\n")
    assert "hunter2" not in said
    assert said.startswith(f"power cycle: {argv[0]} ended with 1")


@given(st.lists(st.text(min_size=2), min_size=1, max_size=4), st.text(max_size=20))
def test_no_argument_is_ever_shown(arguments: list[str], around: str) -> None:
    text = reboot_wait.without_arguments(["tool", *arguments], around.join(["", *arguments, ""]))
    left = text.replace("***", "\0")
    assert not any(argument in left for argument in arguments if "\0" not in argument and "*" not in argument)


def test_a_power_cycle_that_was_killed_says_so() -> None:
    said = reboot_wait.power_cycle(["ipmitool", "x"], None, "\nkilled after 60 s")
    assert said == "power cycle: ipmitool did not run to its end: killed after 60 s"


def test_the_lines_name_time_and_last_answer() -> None:
    state, _ = advance(State(), LIMITS, 65.0, AWAY)
    assert reboot_wait.progress(state, LIMITS, 65.0) == (
        f"waits for its boot, 1:05 of at most 30:00; last answer: {REFUSED}"
    )
    assert "no sign of life for 15:00" in reboot_wait.gone(state, LIMITS, 900.0)


# --- the program for SysRq, really run


def test_sysrq_answers_first_and_then_writes_its_keys_in_order(tmp_path: Path) -> None:
    trigger = tmp_path / "sysrq-trigger"
    trigger.write_text("")
    argv = [sys.executable, "-c", reboot_wait.SYSRQ_PROGRAM, str(trigger), "0.05"]
    result = subprocess.run(argv, capture_output=True, timeout=20, check=False)
    assert (result.returncode, trigger.read_text()) == (0, "")  # the answer is out, and its pipes are closed
    end = time.monotonic() + 20
    while trigger.read_text() != "sub" and time.monotonic() < end:
        time.sleep(0.05)
    assert trigger.read_text() == "sub"


def test_sysrq_that_may_not_be_used_fails_at_once(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", reboot_wait.SYSRQ_PROGRAM, str(tmp_path / "none"), "0"]
    result = subprocess.run(argv, capture_output=True, timeout=20, check=False)
    assert result.returncode == 1
    assert b"FileNotFoundError" in result.stderr
