"""Leave no process behind: find and kill everything that a check started, also what left its process group."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Callable, NoReturn

GRACE_SECONDS = 2.0
"""How long SIGKILL may take to work. Longer means a process that hangs in the kernel; nobody can end that one."""

POLL_SECONDS = 0.005
"""Between two looks at dying processes; they usually are gone at the second."""

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36  # both from linux/prctl.h


def prctl(option: int, value: int) -> bool:
    """Call prctl(2); False where the kernel or this Python has no way to."""
    try:
        import ctypes  # noqa: PLC0415 - optional in a minimal Python

        return int(ctypes.CDLL(None).prctl(option, value, 0, 0, 0)) == 0
    except (ImportError, OSError, AttributeError):
        return False


def only_live(parent: int, life: Callable[[], None]) -> NoReturn:
    """Right after a fork: the whole life of the new process, which dies with its parent.

    It must not return into the parent's code, whatever happens. An error goes to stderr, and makes the exit status 1.
    """
    status = 1
    try:
        # If the parent is killed outright, this process must not go on holding the GPUs.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        life()
        status = 0
    except BaseException:
        with contextlib.suppress(BaseException):
            import traceback  # noqa: PLC0415 - milliseconds that only a crash needs

            os.write(2, traceback.format_exc().encode("utf-8", "replace"))
    finally:
        os._exit(status)


def _parents() -> dict[int, int]:
    """The parent of every process that can be seen."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            # A process may end between the listing and the reading.
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                # The command in parentheses can hold anything, so what counts stands behind the last one.
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    return parents


def children(pid: int) -> set[int]:
    """The direct children of a process, living or not yet waited for."""
    own = os.getpid()
    # Present where the kernel has CONFIG_PROC_CHILDREN; far cheaper on a host with thousands of processes.
    if not os.path.exists(f"/proc/{own}/task/{own}/children"):
        return {child for child, parent in _parents().items() if parent == pid}
    found: set[int] = set()
    # Each thread has its own list. Process and threads may end meanwhile.
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.update(int(child) for child in file.read().split())
    return found


def state(pid: int) -> str:
    """What a process does, in the kernel's words: ``D (disk sleep) in uvm_ioctl``. Empty where there is none.

    D is a call inside the kernel that no ordinary signal ends: of a process that waits for a GPU, the driver hangs.
    """
    found = ""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        found = next((line.partition(":")[2].strip() for line in file if line.startswith("State:")), "")
    # Where it waits is for root to see; others read a 0.
    with contextlib.suppress(OSError), open(f"/proc/{pid}/wchan", encoding="utf-8", errors="replace") as file:
        where = file.read().strip()
        if found and where not in ("", "0"):
            found += f" in {where}"
    return found


def open_files(pid: int) -> set[str]:
    """The paths of what a process has open, as the kernel writes them; empty where they may not be seen."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def descendants(pid: int) -> set[int]:
    """All processes below one, as of now."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        fresh = children(waiting.pop()) - found
        found |= fresh
        waiting += fresh
    return found


def _reap(pid: int, seen: Callable[[int, int], None]) -> None:
    with contextlib.suppress(ChildProcessError):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended == pid:
            seen(pid, status)


def _ours(group: int, spared: set[int]) -> set[int]:
    """What the check left: its group's leader, our new children, and everything below these.

    We are the subreaper, so what a dead parent leaves behind, also in a session of its own, becomes our child.
    """
    fresh = (children(os.getpid()) - spared) | {group}
    return fresh.union(*(descendants(pid) for pid in fresh))


def exists(pid: int) -> bool:
    """Whether there is a process of this number, also one that only waits to be reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def end_all(group: int, spared: set[int]) -> tuple[int | None, list[int]]:
    """Kill a check's whole group and whatever escaped from it, and wait for them.

    Returns the wait status of the group's leader, if it was reaped here, and the processes that no SIGKILL ended.
    """
    leader: dict[int, int] = {}
    deadline = time.monotonic() + GRACE_SECONDS
    while True:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
        left = _ours(group, spared)
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            _reap(pid, leader.__setitem__)
        left = {pid for pid in _ours(group, spared) if exists(pid)}
        if not left or time.monotonic() > deadline:
            return leader.get(group), sorted(left)
        time.sleep(POLL_SECONDS)
