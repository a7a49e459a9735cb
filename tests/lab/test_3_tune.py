"""``gpuhost tune`` and ``gpuhost audit`` on a real machine: held over a boot, against hostile files, and taken back.

One machine, two boots. What the lab can't show: CPU frequency and idle states, which its processor does not have, and
what a real nvidia-smi sets.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuhost.sysctl_defaults import BY_KEY
from tests.lab.lab import INVENTORY, Run, create, gpuhost, guest, lab

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("machines")]
HOST = "tune"
MACHINES = (HOST,)
ON_HOST = ("-i", str(INVENTORY), "--limit", HOST)
GPUS, PORTS = ("0001:01:00.0", "0001:02:00.0"), ("0001:00:01.0", "0001:00:02.0")
HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
SECOND_NAME = "/etc/sysctl.d/~zzz-gpuhost.conf"
OURS = ("gpuhost-cpu", "gpu-pcie-tuning", "zzz-gpuhost")
SYSCTL_CONF, ZZZZ, LAST = (f"/etc/sysctl.d/{name}.conf" for name in ("99-sysctl", "zzzz-vendor", "~~~"))
"""Hostile files: the one of the incident, one that sorts after our file, one that sorts after any name of ours."""

WRITE = "import pathlib, sys; pathlib.Path(sys.argv[1]).unlink(True); pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
# Of each path that is there, its text.
READ = """
import json, pathlib, sys
paths = [pathlib.Path(item) for item in sys.argv[1:]]
print(json.dumps({str(path): path.read_text() for path in paths if path.exists()}))
"""
SESSIONS = """
import subprocess
subprocess.run(["journalctl", "--sync"])
log = subprocess.run(["journalctl", "-b", "-u", "ssh.service", "-o", "cat"], capture_output=True, text=True).stdout
print(log.count("Starting session: command"))
"""


def live() -> dict[str, str]:
    """Everything that tune may set on this machine, as it is now."""
    paths = [*(f"/proc/sys/{key}" for key in BY_KEY), HUGE_PAGES]
    found: dict[str, str] = json.loads(guest(HOST, "python3", "-c", READ, *paths))
    registers = {item: guest(HOST, "setpci", "-s", item, "CAP_EXP+8.w").strip() for item in (*GPUS, *PORTS)}
    return {**found, **registers}


def etc() -> list[str]:
    """/etc byte for byte, and where its links lead."""
    files = guest(HOST, "find", "/etc", "-type", "f", "-exec", "sha256sum", "{}", "+")
    links = guest(HOST, "find", "/etc", "-type", "l", "-printf", "%p -> %l\\n")
    return sorted([*files.splitlines(), *links.splitlines()])


def assert_kernel_settings(seen: dict[str, str], *others: str) -> None:
    """Each key that this kernel has reads what is wanted, or more where that is as good."""
    for key, wanted in BY_KEY.items():
        text = seen.get(f"/proc/sys/{key}")
        if text is None or key in others:
            continue
        if wanted.at_least:
            assert int(text.split()[-1]) >= int(wanted.value.split()[-1]), key
        else:
            assert text.split() == wanted.value.split(), key


def boot() -> None:
    guest(HOST, "sync")
    lab("kill", "--name", HOST)
    lab("start", "--name", HOST)
    guest(HOST, "systemctl", "start", "multi-user.target", timeout_s=300)  # waits for what the boot still starts
    guest(HOST, "udevadm", "settle")


def put(path: str, text: str) -> None:
    guest(HOST, "python3", "-c", WRITE, path, text)


def audit(runs: Path, *arguments: str) -> tuple[Run, list[dict[str, Any]]]:
    run = gpuhost(runs, "audit", *ON_HOST, *arguments)
    assert run.exit_status in (0, 1), run.output[-4000:]
    document = run.document(HOST, "audit")
    print(f"audit: {document['seconds']} s on the host: {document['parts']}")
    assert [item for item in document["findings"] if item["id"] == "audit.not_read"] == []
    return run, document["findings"]


def tune(runs: Path, *arguments: str) -> Run:
    """Findings of the stub GPUs may be left: the exit status says no more than that it ran."""
    run = gpuhost(runs, "tune", *ON_HOST, *arguments)
    assert run.exit_status in (0, 1), run.output[-4000:]
    assert run.record["failures"] == []
    return run


def statuses(run: Run) -> set[str]:
    return {task["status"] for task in run.record["tasks"]}


def about(found: list[dict[str, Any]], key: str) -> list[tuple[str, str]]:
    """Severity and text of what is said about a kernel setting."""
    return [(item["severity"], item["observed"]) for item in found if key in item["observed"] or key in item["source"]]


class TestTune:
    """In order: every test goes on where the one before it ended."""

    etc_before: tuple[str, ...] = ()
    live_before: dict[str, str] = {}  # noqa: RUF012 - set once, by the first test

    def test_a_hostile_file_is_found_before_anything_is_set(self, runs: Path) -> None:
        create(HOST)
        put("/etc/ssh/sshd_config.d/00-lab-log.conf", "LogLevel VERBOSE\n")
        # not reload: that returns while sshd has no socket, and the next connection is refused
        guest(HOST, "systemctl", "restart", "ssh.service")
        put(SYSCTL_CONF, "vm.dirty_ratio = 40\n")
        TestTune.etc_before, TestTune.live_before = tuple(etc()), live()
        run, found = audit(runs, "--output", str(runs.parent / "before.json"))
        assert run.exit_status == 1
        ((severity, text), *_) = about(found, "vm.dirty_ratio")
        assert severity == "p0_runtime"
        assert SYSCTL_CONF in text
        assert "40" in text
        assert (tuple(etc()), live()) == (self.etc_before, self.live_before)

    def test_check_mode_changes_nothing(self, runs: Path) -> None:
        run = tune(runs, "--check")
        assert run.exit_status == 1
        assert "changed" in statuses(run)
        assert "+vm.swappiness = 10" in run.output
        assert (tuple(etc()), live()) == (self.etc_before, self.live_before)

    def test_tune_sets_it(self, runs: Path) -> None:
        run = tune(runs)
        assert len(run.record["tasks"]) == 4  # one call a role
        now = live()
        assert_kernel_settings(now)
        assert {now[item] for item in (*GPUS, *PORTS)} == {"5110"}
        assert "[madvise]" in now[HUGE_PAGES]
        cpu = {item["id"]: item["observed"] for item in run.document(HOST, "tune-cpu")["findings"]}
        assert cpu["cpu.scaling_driver"].startswith("not applicable")
        assert cpu["cpu.idle_states"].startswith("not applicable")
        assert "no effect on speed is claimed" in run.output

    def test_a_second_run_changes_nothing_in_one_session_a_role(self, runs: Path) -> None:
        before = etc()
        sessions = int(guest(HOST, "python3", "-c", SESSIONS))
        run = tune(runs)
        # Ansible's, and the one that counts them now
        assert int(guest(HOST, "python3", "-c", SESSIONS)) - sessions == 4 + 1
        assert statuses(run) == {"ok"}
        assert f"{HOST}: 0 written, " in run.output
        assert etc() == before

    def test_the_audit_expects_what_tune_has_set(self, runs: Path) -> None:
        run, found = audit(runs, "--compare", str(runs.parent / "before.json"))
        left = [item for item in found if item["severity"] == "p0_runtime"]
        assert [item for item in left if item["id"].partition(".")[0] in ("sysctl", "cpu", "pcie")] == []
        assert "Expected: as wished now" in run.output

    def test_it_is_all_there_after_a_boot(self, runs: Path) -> None:
        boot()
        now = live()
        assert_kernel_settings(now)  # vm.dirty_ratio too, which 99-sysctl.conf sets before our file does
        assert {now[item] for item in (*GPUS, *PORTS)} == {"5110"}
        assert "[madvise]" in now[HUGE_PAGES]
        failed = guest(HOST, "systemctl", "list-units", "--failed", "--plain", "--no-legend", "gpu*")
        assert failed == ""
        assert statuses(tune(runs)) == {"ok"}

    def test_files_that_sort_after_ours_are_found(self, runs: Path) -> None:
        put(LAST, "vm.swappiness = 61\n")
        run, found = audit(runs)
        assert run.exit_status == 1
        assert [item for item in about(found, "vm.swappiness") if item[0] == "p0_runtime" and LAST in item[1]]
        guest(HOST, "rm", LAST)
        put(ZZZZ, "vm.swappiness = 60\n")
        run, found = audit(runs)
        assert run.exit_status == 1
        assert [item for item in about(found, "vm.swappiness") if item[0] == "p0_runtime" and ZZZZ in item[1]]
        assert live()["/proc/sys/vm/swappiness"] == "10\n"  # nothing is lost before the next boot

    def test_the_boot_does_what_the_audit_has_said_and_tune_ends_it(self, runs: Path) -> None:
        boot()
        now = live()
        assert now["/proc/sys/vm/swappiness"] == "60\n"
        assert_kernel_settings(now, "vm/swappiness")
        tune(runs)
        assert guest(HOST, "ls", SECOND_NAME).strip() == SECOND_NAME
        assert_kernel_settings(live())
        _, found = audit(runs)
        assert {severity for severity, _ in about(found, "vm.swappiness")} <= {"good", "info"}
        # What the boot would do, by the program that does it.
        guest(HOST, "python3", "-c", WRITE.replace("pathlib.Path(sys.argv[1]).unlink(True); ", ""),
              "/proc/sys/vm/swappiness", "33")  # fmt: skip
        guest(HOST, "/lib/systemd/systemd-sysctl")
        assert live()["/proc/sys/vm/swappiness"] == "10\n"
        guest(HOST, "rm", ZZZZ)

    def test_revert_gives_back_etc_and_live_values(self, runs: Path) -> None:
        before = (etc(), live())
        shown = gpuhost(runs, "tune", *ON_HOST, "--revert", "--check")
        assert shown.exit_status == 1, shown.output[-4000:]
        assert (etc(), live()) == before
        back = gpuhost(runs, "tune", *ON_HOST, "--revert")
        assert back.exit_status == 0, back.output[-4000:]
        assert " refused" not in back.output
        assert live() == self.live_before
        assert tuple(etc()) == self.etc_before
        units = guest(HOST, "systemctl", "list-units", "--all", "--plain", "--no-legend", "gpu*")
        assert not [name for name in OURS if name in units]
        again = gpuhost(runs, "tune", *ON_HOST, "--revert")
        assert again.exit_status == 0
        assert "nothing to put back" in again.output
