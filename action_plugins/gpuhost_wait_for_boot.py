# SPDX-License-Identifier: MIT
"""Wait until a host has booted anew, and say what it booted.

``ansible.builtin.reboot`` is not used: it takes any other answer for a reboot (roll-01: an ssh session of a host that
is going down), gives up after 600 s by default, and backs off to 13 s between its tries.

What an answer is worth and what is due when is decided in ``reboot_wait.py``; this file asks and acts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

try:
    from gpuhost import reboot_wait, units
except ImportError as error:
    IMPORT_ERROR: ImportError | None = error
else:
    IMPORT_ERROR = None

ASK = ["cat", "/proc/sys/kernel/random/boot_id"]
SYSRQ_TRIGGER = "/proc/sysrq-trigger"
SYSRQ_PAUSE_S = "5"
# A connection of its own for each attempt: the shared one may lead to an ssh session that hangs on the dying host.
# They stand before the user's own arguments, since ssh takes the first value of an option.
SSH_ARGS = (
    "-o ControlMaster=no -o ControlPath=none -o ConnectionAttempts=1 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 "
    "-o ConnectTimeout={seconds}"
)
CAUSES = {"none": "trial.not_back", "old": "reboot.hangs_in_shutdown", "refused": "reboot.ssh_refused"}
NEXT_STEPS = {
    "none": "Look at its console; the next power cycle boots the old kernel.",
    "old": "It answers, but has not rebooted: look at its console. host_reboot_sysrq: true lets gpuhost force it.",
    "refused": "It is up, but its ssh server refuses: compare its host key (ssh-keygen -R HOST) and authorized_keys.",
}


class ActionModule(ActionBase):
    """Poll the boot id through the task's own connection, whatever jump host or user it goes through."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Arguments: ``boot_id`` (the one before), ``host_name``, and the role's settings.

        With ``check_settings`` nothing is waited for: a setting that can't be used fails before there is a reboot.
        """
        super().run(tmp, task_vars)
        if IMPORT_ERROR is not None:
            raise AnsibleActionFail(
                f"gpuhost is not installed for the controller's Python: make install ({IMPORT_ERROR})"
            )
        args = self._task.args
        command = args.get("power_cycle") or []
        limits = reboot_wait.Limits(
            float(args["timeout_s"]),
            float(args.get("shutdown_limit_s", 300)),
            _is_true(args.get("sysrq", False)),
            float(args.get("power_cycle_after_s", 900)) if command else None,
        )
        problems = reboot_wait.problems(limits, command)
        if _is_true(args.get("check_settings", False)):
            return self._settings_answer(problems)
        if problems:
            # The host is rebooting already: to wait without the hook is better than not to wait.
            self._display.warning(f"{args['host_name']}: not used: {'; '.join(problems)}")
            limits, command = reboot_wait.Limits(limits.timeout_s, limits.shutdown_s, limits.sysrq), []
        self._lines: list[str] = []
        self._python = _interpreter(task_vars or {})
        with self._own_attempts():
            answer = self._wait(str(args["boot_id"]), limits, command)
        self._connection.reset()  # the shared connection from before the reboot leads nowhere
        return answer

    def _wait(self, before: str, limits: reboot_wait.Limits, command: list[str]) -> dict[str, Any]:
        started = time.monotonic()
        state, connect_s, now = reboot_wait.State(), reboot_wait.CONNECT_S, 0.0
        while now < limits.timeout_s:
            answer = self._ask(before, connect_s)
            connect_s = reboot_wait.connect_limit(answer, connect_s)
            began, now = now, time.monotonic() - started
            if answer.kind == reboot_wait.NEW:
                return {
                    "changed": True,
                    "boot_id": answer.boot_id,
                    "seconds": round(now, 1),
                    "lines": self._lines,
                }
            state, acts = reboot_wait.advance(state, limits, now, answer)
            for act in acts:
                self._act(act, state, limits, now, command)
            time.sleep(reboot_wait.pause(began, time.monotonic() - started))
            now = time.monotonic() - started
        if state.answer.kind == reboot_wait.OLD:
            self._note(reboot_wait.shutdown(now, self._jobs()))
        return self._failed(before, limits, state)

    def _ask(self, before: str, connect_s: int) -> reboot_wait.Answer:
        self._set("ssh_args", f"{SSH_ARGS.format(seconds=connect_s)} {self._user_ssh_args}")
        try:
            result = self._execute(ASK, become=False)
        except AnsibleError as error:
            return reboot_wait.no_answer(str(error))
        return reboot_wait.judge(before, result.get("rc"), result.get("stdout", ""), result.get("stderr", ""))

    def _execute(self, argv: list[str], *, become: bool) -> dict[str, Any]:
        """Run a program on the host, for as long as an attempt may take."""
        with limited(reboot_wait.ATTEMPT_S):
            return dict(self._low_level_execute_command(self._connection._shell.join(argv), sudoable=become))

    # --- what is done meanwhile

    def _act(self, act: str, state: reboot_wait.State, limits: reboot_wait.Limits, now: float, argv: list[str]) -> None:
        if act == reboot_wait.SAY:
            self._say(reboot_wait.progress(state, limits, now))
        elif act == reboot_wait.GONE:
            self._say(reboot_wait.gone(state, limits, now))
        elif act == reboot_wait.SHUTDOWN:
            self._note(reboot_wait.shutdown(now, self._jobs()))
        elif act == reboot_wait.SYSRQ:
            self._note(self._sysrq())
        elif act == reboot_wait.POWER_CYCLE:
            self._note(reboot_wait.power_cycle(argv, *run_here(argv, reboot_wait.POWER_CYCLE_LIMIT_S)))

    def _jobs(self) -> str:
        """What the host's shutdown waits for, in words."""
        try:
            result = self._execute(units.LIST_JOBS, become=False)
        except AnsibleError as error:
            return f"list-jobs: {reboot_wait.last_line(str(error))}"
        if result.get("rc") != 0:
            return f"list-jobs: {reboot_wait.last_line(result.get('stderr', '')) or 'no answer'}"
        text = result.get("stdout", "")
        found = units.jobs(text)
        if text.strip() and not found:
            return f"list-jobs: {reboot_wait.last_line(text)}"  # whatever this is, it is no empty list
        return units.what_hangs(found)

    def _sysrq(self) -> str:
        argv = [self._python, "-c", reboot_wait.SYSRQ_PROGRAM, SYSRQ_TRIGGER, SYSRQ_PAUSE_S]
        try:
            result = self._execute(argv, become=True)
        except AnsibleError as error:
            return f"SysRq was tried, its answer: {reboot_wait.last_line(str(error))}"
        if result.get("rc") != 0:
            said = reboot_wait.last_line(f"{result.get('stdout', '')}\n{result.get('stderr', '')}")
            return f"SysRq could not be used: {said or 'no reason given'}"
        return "SysRq was used: sync, remount read-only, boot (host_reboot_sysrq)"

    # --- what is said

    def _note(self, text: str) -> None:
        """Something that belongs into the answer, too."""
        self._lines.append(text)
        self._say(text)

    def _say(self, text: str) -> None:
        """A line of progress. A worker can't reach the callback: it writes where that would (GPUHOST_PROGRESS)."""
        line = f"          {self._task.args['host_name']}: {text}"
        path = os.environ.get("GPUHOST_PROGRESS", "")
        if path.startswith("/"):
            try:
                with open(path, "a", encoding="utf-8") as stream:
                    stream.write(line + "\n")
            except OSError as error:
                self._display.vv(f"{path}: {error.strerror}")
        self._display.display(line)

    def _failed(self, before: str, limits: reboot_wait.Limits, state: reboot_wait.State) -> dict[str, Any]:
        host, kind, last = self._task.args["host_name"], state.answer.kind, state.answer.text
        cause, next_step = CAUSES[kind], NEXT_STEPS[kind]
        observed = "; ".join([f"boot id {before}, last answer: {last}", *self._lines])
        return {
            "failed": True,
            "msg": f"{cause}: {host}: no new boot id within {limits.timeout_s:.0f} s ({observed}): {next_step}",
            "cause": cause,
            "object": host,
            "observed": observed,
            "expected": f"a new boot id within {limits.timeout_s:.0f} s",
            "next_step": next_step,
            "lines": self._lines,
        }

    def _settings_answer(self, problems: tuple[str, ...]) -> dict[str, Any]:
        if not problems:
            return {"changed": False}
        return {
            "failed": True,
            "msg": f"input.invalid: {'; '.join(problems)}",
            "cause": "input.invalid",
            "object": self._task.args["host_name"],
            "observed": "; ".join(problems),
            "expected": "settings that can be used",
            "next_step": "Correct the setting that is named.",
        }

    # --- the connection's own options

    @contextmanager
    def _own_attempts(self) -> Iterator[None]:
        """Let each attempt stand by itself, without Ansible's retries; afterwards the options are as before."""
        names = [name for name in ("ssh_args", "reconnection_retries") if self._connection.has_option(name)]
        before = {name: self._connection.get_option(name) for name in names}
        self._user_ssh_args = before.get("ssh_args") or ""
        self._set("reconnection_retries", 0)
        try:
            yield
        finally:
            for name, value in before.items():
                self._set(name, value)

    def _set(self, option: str, value: Any) -> None:
        if self._connection.has_option(option):
            self._connection.set_option(option, value)


def _interpreter(task_vars: dict[str, Any]) -> str:
    """The host's Python: the one that is set or was discovered, if it is a path (it may be ``auto_silent``)."""
    found = task_vars.get("ansible_facts", {}).get("discovered_interpreter_python")
    wanted = str(task_vars.get("ansible_python_interpreter") or "")
    return wanted if wanted.startswith("/") else str(found or "python3")


def _is_true(value: Any) -> bool:
    return str(value).lower() in ("true", "yes", "1", "on")


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise AnsibleConnectionFailure in here after so many seconds: a program that hangs on the host ends no attempt.

    Where a timer runs already (a ``timeout`` of the task), that one is left alone and ends the task instead.
    """
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def expired(_number: int, _frame: FrameType | None) -> None:
        raise AnsibleConnectionFailure(f"no answer within {seconds:.0f} s")

    handler = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def run_here(argv: list[str], limit_s: float) -> tuple[int | None, str]:
    """Run a program on the controller; exit status (None: it did not run to its end) and its output.

    Without a shell, in the caller's environment (ipmitool -E). Its output goes to a file: a child may keep a pipe open.
    """
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        except OSError as error:
            return None, error.strerror or type(error).__name__
        rc: int | None = None
        note = ""
        try:
            rc = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            note = f"\nkilled after {limit_s:.0f} s"
        output.seek(0)
        return rc, output.read().decode("utf-8", "replace") + note
