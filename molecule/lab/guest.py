"""Talk to a guest by ssh. Only an answer of the guest itself counts: QEMU's user network
accepts connections even when the guest is dead."""

import shlex
import subprocess
import time
from collections.abc import Sequence

from .command import c_locale, heartbeat, tail
from .errors import LabError, NoAnswer
from .machine import Machine

# A cold boot takes 20 s alone and a minute with a neighbour, under emulation.
BOOT_EXPECTED_S = 25.0
BOOT_LIMIT_S = 300.0
# A new machine that says nothing for so long stands still, which emulation of two processors does once in a while: seen
# once in some hundred boots, 0.9 s after the kernel's start. Nothing of it is needed, so it is started once more.
STANDS_STILL_S = 150.0
# A login under emulation takes up to 2 s; a dead guest must not hold a try for long.
TRY_LIMIT_S = 15.0
BETWEEN_TRIES_S = 0.5
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def ssh_options(machine: Machine) -> list[str]:
    """Options for ssh and for Ansible: pinned host key, no user configuration."""
    return [
        *("-F", "/dev/null", "-o", f"UserKnownHostsFile={machine.known_hosts}", "-o", "StrictHostKeyChecking=yes"),
        *("-o", "IdentitiesOnly=yes", "-o", "HostKeyAlgorithms=ssh-ed25519"),
    ]


def ssh_argv(machine: Machine, command: Sequence[str], user: str = "root") -> list[str]:
    """ssh's argument list for one command in the guest."""
    settings = machine.settings
    return [
        *("ssh", *ssh_options(machine), "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
        *("-i", str(machine.private_key), "-p", str(settings.ssh_port), f"{user}@127.0.0.1"),
        # ssh joins its arguments with blanks and hands the text to a shell there: so each is quoted for it.
        *([shlex.join(command)] if command else []),
    ]


def attempt(machine: Machine, command: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[str] | None:
    """Run one command in the guest; None when there was no answer within the limit."""
    argv = ssh_argv(machine, command)
    try:
        return subprocess.run(
            argv, env=c_locale(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return None


def execute(machine: Machine, command: Sequence[str], limit_s: float) -> str:
    """Run one command in the guest that must succeed."""
    done = attempt(machine, command, limit_s)
    if done is None:
        raise LabError(f"{machine.name}: no answer to {' '.join(command)} after {limit_s:.0f} s\n{_console(machine)}")
    if done.returncode != 0:
        raise LabError(f"{machine.name}: {' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def boot_id(machine: Machine, limit_s: float = TRY_LIMIT_S) -> str | None:
    """The running guest's boot id; None while nobody answers."""
    done = attempt(machine, ["cat", BOOT_ID], limit_s)
    return done.stdout.strip() if done is not None and done.returncode == 0 else None


def wait_for_boot(machine: Machine, limit_s: float = BOOT_LIMIT_S) -> None:
    """Wait until the guest's ssh server runs a command. Raises NoAnswer at the limit."""
    deadline = time.monotonic() + limit_s
    with heartbeat(f"{machine.name}: boot to ssh", BOOT_EXPECTED_S):
        while boot_id(machine) is None:
            if machine.pid() is None:
                raise LabError(f"{machine.name}: QEMU has ended\n{tail(machine.folder / 'qemu.log')}")
            if time.monotonic() > deadline:
                raise NoAnswer(f"{machine.name}: no ssh {limit_s:.0f} s after its start\n{_console(machine)}")
            time.sleep(BETWEEN_TRIES_S)


def _console(machine: Machine) -> str:
    return f"console ({machine.serial_log}):\n{tail(machine.serial_log)}"
