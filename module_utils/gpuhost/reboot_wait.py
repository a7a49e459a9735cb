"""Waiting for a reboot: what an answer is worth, and what is to be done when.

The boot id is a random UUID that the kernel makes once a boot (drivers/char/random.c, ``proc_do_uuid``: version 4).
Only a line that is one and that differs from the one before proves a reboot: a host that is going down answers with
error texts of any kind (case roll-01).

Pure: texts and times in, frozen dataclasses out. The action plugin ``gpuhost_wait_for_boot`` does what they say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

POLL_S = 1.0
"""From the beginning of one attempt to that of the next, without back-off."""
CONNECT_S = 2
"""For one attempt to connect. TCP repeats a lost SYN after 1, 3, 7 and 15 s; a new attempt sends one at once."""
PATIENT_CONNECT_S = 6
"""For the attempt after one whose TCP connection stood, but whose ssh server was too slow to say who it is."""
ATTEMPT_S = 15
"""For a whole attempt: a login and the command. A half-dead host accepts both and never ends them."""
SAY_S = 30.0
POWER_CYCLE_LIMIT_S = 60

NEW, OLD, REFUSED, NONE = "new", "old", "refused", "none"
SAY, SHUTDOWN, SYSRQ, GONE, POWER_CYCLE = "say", "shutdown", "sysrq", "gone", "power_cycle"

_BOOT_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
# OpenSSH's words. The host is up then, whatever it booted: cutting its power would not let anybody in.
_REFUSED = re.compile(r"Permission denied \(|Host key verification failed|Too many authentication failures")
_SLOW_SERVER = "during banner exchange"
_HIDDEN = "***"

SYSRQ_PROGRAM = """
import os, signal, sys, time
trigger = os.open(sys.argv[1], os.O_WRONLY)
if os.fork():
    os._exit(0)
os.setsid()
for number in (signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
null = os.open(os.devnull, os.O_RDWR)
for number in (0, 1, 2):
    os.dup2(null, number)
time.sleep(1)
for key in "sub":
    os.write(trigger, key.encode())
    time.sleep(float(sys.argv[2]))
"""
"""Sync, remount read-only, boot, in a process of its own so that the answer gets out first.

The kernel's Documentation/admin-guide/sysrq.rst: ``s`` and ``u`` only begin their work, hence the pauses; root's writes
to /proc/sysrq-trigger are taken whatever kernel.sysrq allows. A systemd that stops sends SIGTERM and SIGHUP: ignored.
"""


@dataclass(frozen=True)
class Answer:
    """What one attempt gave. ``boot_id`` is empty unless the kind is NEW or OLD."""

    kind: str
    text: str
    boot_id: str = ""


@dataclass(frozen=True)
class Limits:
    """The settings, in seconds since the wait began. ``power_cycle_s`` counts from the last sign of life."""

    timeout_s: float
    shutdown_s: float
    sysrq: bool = False
    power_cycle_s: float | None = None


@dataclass(frozen=True)
class State:
    """Where the wait stands. ``heard_s`` is when the host last showed that it is up."""

    answer: Answer = Answer(NONE, "no answer yet")
    heard_s: float = 0.0
    said_s: float = 0.0
    told_shutdown: bool = False
    told_gone: bool = False
    power_cycled: bool = False


def judge(before: str, rc: int | None, stdout: str, stderr: str) -> Answer:
    """What the answer to ``cat /proc/sys/kernel/random/boot_id`` is worth. A banner around the id does not matter."""
    ids = [line.strip() for line in stdout.splitlines() if _BOOT_ID.fullmatch(line.strip())]
    if rc != 0 or not ids:
        return no_answer(f"{stdout}\n{stderr}")
    if ids[-1] == before.strip():
        return Answer(OLD, "still the old boot id", ids[-1])
    return Answer(NEW, "a new boot id", ids[-1])


def no_answer(text: str) -> Answer:
    """An attempt without a boot id, by what was said instead."""
    return Answer(REFUSED if _REFUSED.search(text) else NONE, last_line(text) or "no answer")


def last_line(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def connect_limit(last: Answer, last_limit: int) -> int:
    """The limit for the next attempt to connect: a slow ssh server gets more time, every second attempt.

    Not every one: through a jump host a machine that is down gives the same text, and the jump host's lost SYNs would
    then hide for seconds that it is back.
    """
    slow = _SLOW_SERVER in last.text and last_limit == CONNECT_S
    return PATIENT_CONNECT_S if slow else CONNECT_S


def advance(state: State, limits: Limits, now: float, answer: Answer) -> tuple[State, tuple[str, ...]]:
    """The state after an answer, and what is to be done now."""
    heard = state.heard_s if answer.kind == NONE else now
    state = replace(state, answer=answer, heard_s=heard)
    acts: list[str] = []
    if answer.kind == OLD and now >= limits.shutdown_s and not state.told_shutdown:
        acts += [SHUTDOWN, SYSRQ] if limits.sysrq else [SHUTDOWN]
        state = replace(state, told_shutdown=True)
    if answer.kind == NONE and now >= limits.timeout_s / 2 and not state.told_gone:
        acts.append(GONE)
        state = replace(state, told_gone=True)
    silent_s = now - heard
    due = limits.power_cycle_s is not None and silent_s >= limits.power_cycle_s and not state.power_cycled
    if answer.kind == NONE and due:
        acts.append(POWER_CYCLE)
        state = replace(state, power_cycled=True)
    if not acts and now - state.said_s >= SAY_S:
        acts.append(SAY)
    return (replace(state, said_s=now) if acts else state), tuple(acts)


def pause(began: float, now: float) -> float:
    """How long to sleep after an attempt."""
    return max(0.2, began + POLL_S - now)


def problems(limits: Limits, command: object) -> tuple[str, ...]:
    """What is wrong with the settings, each named by its variable; the power cycle command's words are never said."""
    found = []
    if limits.timeout_s <= 0:
        found.append(f"host_reboot_timeout: {limits.timeout_s:.0f}, expected: more than 0")
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        found.append("host_reboot_power_cycle: expected: a list, one argument each, such as [ipmitool, -H, BMC]")
    elif command and not command[0]:
        found.append("host_reboot_power_cycle: its first argument is empty")
    if command and limits.power_cycle_s is not None and not 0 < limits.power_cycle_s < limits.timeout_s:
        found.append(
            f"host_reboot_power_cycle_after: {limits.power_cycle_s:.0f}, "
            f"expected: less than host_reboot_timeout ({limits.timeout_s:.0f})"
        )
    return tuple(found)


# --- what is said


def clock(seconds: float) -> str:
    """Seconds for people: ``0:07``, ``12:30``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def progress(state: State, limits: Limits, now: float) -> str:
    """The line of every half minute."""
    return f"waits for its boot, {clock(now)} of at most {clock(limits.timeout_s)}; last answer: {state.answer.text}"


def gone(state: State, limits: Limits, now: float) -> str:
    """The line at half of the limit."""
    return (
        f"half of the limit has passed: no sign of life for {clock(now - state.heard_s)} (last: {state.answer.text}); "
        f"look at its console. The wait goes on until {clock(limits.timeout_s)}"
    )


def shutdown(now: float, jobs: str) -> str:
    """The line about a host that does not go down."""
    return f"still runs {clock(now)} after the reboot began: {jobs}"


def power_cycle(argv: list[str], rc: int | None, output: str) -> str:
    """The line about the power cycle: the program's name and its last line, without any of its arguments."""
    end = f"ended with {rc}" if rc is not None else "did not run to its end"
    said = last_line(without_arguments(argv, output))
    return f"power cycle: {argv[0]} {end}" + (f": {said}" if said else "")


def without_arguments(argv: list[str], text: str) -> str:
    """The text with every argument cut out, whole and by its parts (``user:password``, ``--password=word``).

    Any of them may be a password, and programs repeat what they were given. Only single letters stay.
    """
    words = {part for argument in argv[1:] for part in (argument, *re.split(r"[\s:=@/,\"'{}]+", argument))}
    words |= {argument[2:] for argument in argv[1:] if argument.startswith("-")}  # -Pword
    words |= {argument.partition(sign)[2] for argument in argv[1:] for sign in ":="}
    for word in sorted(words, key=len, reverse=True):
        if len(word) > 1:
            text = text.replace(word, _HIDDEN)
    return text
