"""The dead-man: a trial kernel that nobody looks after reboots by itself, and the loader's default is the old kernel.

It needs no controller, no network and no Python: sh, systemd and coreutils. The arm file names exactly the trial kernel
(``%v`` is ``uname -r``), because a dead-man that is armed without a name reboots the old kernel for ever, too (tried).
All lies in /etc, which is on the root file system in emergency mode as well. Both units are wanted by sysinit,
emergency and rescue: a plain timer never fires in emergency mode (tried).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import stop
from .host_io import Host

FOLDER = "/etc/gpuhost"
SCRIPT = f"{FOLDER}/deadman"
RENEWED = "/run/gpuhost/deadline"
UNITS = ("gpuhost-deadman.service", "gpuhost-deadman-force.service")
UNIT_FOLDER = "/etc/systemd/system"
TARGETS = ("sysinit.target", "emergency.target", "rescue.target")
DEADLINE_S, MAXIMUM_S, FORCE_AFTER_S = 900, 14400, 120
"""Defaults, in seconds of uptime: the deadline, what renewals may bring it to, and how long a shutdown may take."""

SCRIPT_TEXT = """#!/bin/sh
# Managed by gpuhost while a kernel is on trial. Usage: deadman reboot|force [ROOT [PROGRAM]]; these two are for tests.
mode=$1 root=${2:-} program=${3:-systemctl}
release=$(uname -r)
armed=$root/etc/gpuhost/armed-$release
fired=$root/etc/gpuhost/fired-$release
taken=$root/etc/gpuhost/taken-$release

number() { # FILE KEY DEFAULT: the digits behind KEY=; a leading 0 would make them octal
  found=$(sed -n "s/^$2=\\([1-9][0-9]\\{0,8\\}\\)\\$/\\1/p" "$1" 2>/dev/null | head -n 1)
  echo "${found:-$3}"
}

uptime_s() {
  read -r seconds rest <"$root/proc/uptime"
  echo "${seconds%%.*}"
}

deadline=$(number "$armed" deadline_s 900)
maximum=$(number "$armed" maximum_s 14400)
after=$(number "$armed" force_after_s 120)
[ "$mode" = force ] || after=0
while :; do
  [ -e "$taken" ] && exit 0
  [ -e "$armed" ] || [ "$mode" = force ] || exit 0
  [ -e "$armed" ] || [ -e "$fired" ] || exit 0
  limit=$(number "$root/run/gpuhost/deadline" uptime_s "$deadline")
  [ "$limit" -gt "$deadline" ] || limit=$deadline
  [ "$limit" -lt "$maximum" ] || limit=$maximum
  [ "$(uptime_s)" -ge $((limit + after)) ] && break
  sleep 2
done

# Of this and promote exactly one wins the rename, whichever of the two dead-men comes first.
if ! mv "$armed" "$fired" 2>/dev/null; then
  [ -e "$taken" ] && exit 0
  # Still there: the root is read-only, and promote could not rename either. Fired: the other dead-man has it.
  [ -e "$armed" ] || [ -e "$fired" ] || exit 0
fi
note="nobody renewed the deadline of $limit s, rebooted at $(uptime_s) s"
if [ "$mode" = reboot ]; then
  state=$(timeout -s KILL 5 systemctl is-system-running 2>/dev/null)
  note="$note, system ${state:-unknown}"
else
  note="$note, forced"
fi
# Added to the file, not written over it: a machine that dies here leaves no empty one.
{ echo "$note" >>"$fired"; } 2>/dev/null
[ -w "$root/dev/kmsg" ] && { echo "<2>gpuhost deadman ($mode): $note" >"$root/dev/kmsg"; } 2>/dev/null
if [ "$mode" = reboot ]; then
  # -i: since systemd 257 somebody's inhibitor lock refuses root's reboot as well.
  until "$program" reboot -i || "$program" reboot --force; do sleep 5; done
  exit 0
fi
"$program" reboot --force --force & # it syncs first: a dead disk or NFS server hangs it for ever
sleep 20
echo b >"$root/proc/sysrq-trigger"
"""

# A full memory kills neither, and a shell that can't fork is started again. No journal: it may be what hangs.
_UNIT = """# Managed by gpuhost while a kernel is on trial.
[Unit]
Description=gpuhost: {what}
DefaultDependencies=no
IgnoreOnIsolate=yes
{shutdown}StartLimitIntervalSec=0
ConditionPathExists={folder}/armed-%v

[Service]
Type=simple
ExecStart=/bin/sh {script} {mode}
StandardOutput=null
StandardError=null
OOMScoreAdjust=-1000
Restart=on-failure
RestartSec=5

[Install]
WantedBy={targets}
"""


def _unit(what: str, mode: str, shutdown: str) -> str:
    return _UNIT.format(
        what=what, mode=mode, shutdown=shutdown, folder=FOLDER, script=SCRIPT, targets=" ".join(TARGETS)
    )


UNIT_TEXTS = {
    UNITS[0]: _unit(
        "back to the old kernel where nobody looks after the trial",
        "reboot",
        "Conflicts=shutdown.target\nBefore=shutdown.target\n",
    ),
    # Without Conflicts=shutdown.target it lives on in a shutdown that hangs.
    UNITS[1]: _unit("force the way back where the shutdown hangs", "force", ""),
}


@dataclass(frozen=True)
class DeadmanState:
    """``armed_for`` is the kernel it watches, ``fired`` its last note, ``deadline_s`` seconds of uptime."""

    installed: bool
    armed_for: str | None
    fired: str | None
    deadline_s: int | None


def install(host: Host) -> None:
    """Put script, units and links on the host. The reboot that follows makes systemd read them."""
    if host.read(SCRIPT) != SCRIPT_TEXT:
        host.write_atomic(SCRIPT, SCRIPT_TEXT.encode(), 0o755)
    for unit, text in UNIT_TEXTS.items():
        path = f"{UNIT_FOLDER}/{unit}"
        if host.read(path) != text:
            host.write_atomic(path, text.encode())
        for target in TARGETS:
            host.link(f"{UNIT_FOLDER}/{target}.wants/{unit}", path)


def prove_settings(deadline_s: int, maximum_s: int, force_after_s: int) -> None:
    """Raises Stop(input.invalid) for seconds that it could not work with."""
    if not 1 <= deadline_s <= maximum_s < 10**9:
        raise stop(
            "input.invalid", "boot_trial_deadline", str(deadline_s), f"1 to {maximum_s} (boot_trial_deadline_max)"
        )
    if not 1 <= force_after_s < 10**9:
        raise stop("input.invalid", "boot_trial_force_after", str(force_after_s), "at least 1 second")


def arm(host: Host, release: str, deadline_s: int, maximum_s: int, force_after_s: int) -> None:
    """Arm it for exactly this kernel; what an earlier trial has left goes first. Raises as ``prove_settings``."""
    prove_settings(deadline_s, maximum_s, force_after_s)
    for name in host.names(FOLDER):
        if name.startswith(("armed-", "fired-", "taken-")):
            host.remove(f"{FOLDER}/{name}")
    text = f"deadline_s={deadline_s}\nmaximum_s={maximum_s}\nforce_after_s={force_after_s}\n"
    host.write_atomic(f"{FOLDER}/armed-{release}", text.encode())


def _setting(text: str, key: str, default: int) -> int:
    found = re.search(rf"^{key}=([1-9][0-9]{{0,8}})$", text, re.MULTILINE)
    return int(found[1]) if found else default


def renew(host: Host, seconds: float | None = None) -> int | None:
    """Move the deadline to so many seconds from now (None: the setting's), up to the maximum; the new one.

    Does nothing, and gives None, where it is not armed for the running kernel.
    """
    release = host.read_line("/proc/sys/kernel/osrelease")
    text = host.read(f"{FOLDER}/armed-{release}")
    if text is None:
        return None
    wanted = _uptime_s(host) + (seconds if seconds is not None else _setting(text, "deadline_s", DEADLINE_S))
    deadline = int(min(wanted, _setting(text, "maximum_s", MAXIMUM_S)))
    now = _setting(host.read(RENEWED) or "", "uptime_s", 0)
    if deadline > now:
        host.write_atomic(RENEWED, f"uptime_s={deadline}\n".encode())
    return max(deadline, now)


def _uptime_s(host: Host) -> float:
    return float((host.read_line("/proc/uptime") or "0").split()[0])


def take(host: Host, release: str) -> bool:
    """Promote's side of the lock: whether it is promote who decides. False where the dead-man has fired already."""
    if host.rename(f"{FOLDER}/armed-{release}", f"{FOLDER}/taken-{release}"):
        return True
    return not host.exists(f"{FOLDER}/fired-{release}")


def is_taken(host: Host, release: str) -> bool:
    """Whether promote has won the lock for this kernel, and nobody has taken the dead-man away since."""
    return host.exists(f"{FOLDER}/taken-{release}")


def state(host: Host) -> DeadmanState:
    """What is armed now."""
    armed = next((name[6:] for name in host.names(FOLDER) if name.startswith("armed-")), None)
    deadline = None
    if armed is not None:
        text = host.read(f"{FOLDER}/armed-{armed}") or ""
        deadline = max(_setting(text, "deadline_s", DEADLINE_S), _setting(host.read(RENEWED) or "", "uptime_s", 0))
        deadline = min(deadline, _setting(text, "maximum_s", MAXIMUM_S))
    return DeadmanState(host.exists(SCRIPT), armed, fired(host), deadline)


def fired(host: Host) -> str | None:
    """The note of a dead-man that has fired; None where none has. A full disk leaves a file without a note."""
    for name in host.names(FOLDER):
        if name.startswith("fired-"):
            lines = (host.read(f"{FOLDER}/{name}") or "").splitlines()
            # The file is the arm file under another name: its settings stand in front of the note.
            return "; ".join(line for line in lines if not re.match(r"\w+_s=", line)) or "it has fired"
    return None


def disarm(host: Host) -> list[str]:
    """Take all of it away, running or not; a line where there was anything. After a power cut it goes on."""
    units = [f"{UNIT_FOLDER}/{unit}" for unit in UNITS]
    links = [f"{UNIT_FOLDER}/{target}.wants/{unit}" for unit in UNITS for target in TARGETS]
    if not (host.is_folder(FOLDER) or host.exists(RENEWED) or any(map(host.exists, units))):
        return []
    # First the arm file: a dead-man that wakes up in between finds nothing to claim, and ends.
    for name in host.names(FOLDER):
        if name.startswith(("armed-", "fired-", "taken-")):
            host.remove(f"{FOLDER}/{name}")
    lines = ["dead-man disarmed", *_systemctl(host, ["stop", *UNITS])]
    for path in (*links, *units, RENEWED):
        host.remove(path)
    for folder in (*(f"{UNIT_FOLDER}/{target}.wants" for target in TARGETS), "/run/gpuhost"):
        host.remove_empty_folder(folder)
    lines += _systemctl(host, ["daemon-reload"])
    host.remove(SCRIPT)
    host.remove_empty_folder(FOLDER)
    return lines


def _systemctl(host: Host, words: list[str]) -> list[str]:
    """What systemd refused, as a line: without its arm file a dead-man does nothing, so it is no reason to stop."""
    result = host.run(["systemctl", *words], timeout_s=120)
    refused = result.rc not in (0, 5)  # 5: not loaded, as in the boot in which it was installed
    return [f"systemctl {words[0]}: {result.last_line}"] if refused else []
