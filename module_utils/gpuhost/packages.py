"""The kernel and its headers, in one apt transaction that was shown before it ran."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from . import apt, dkms, kernel
from .documents import Target
from .errors import Stop, stop
from .host_io import Host, Result
from .survey import APT_WAIT_S, read_packages, wait_for_apt

SIMULATE = ["apt-get", "-q", "-y", "-s", "--no-install-recommends"]
"""Without --no-remove: what it would remove is to be seen, not only that it would."""
APT = [
    "apt-get", "-q", "-y", "--no-install-recommends", "--no-remove",
    "-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold", "-o", "Dpkg::Use-Pty=0",
]  # fmt: skip
KEEP_DAYS = 14
"""Days that the old kernel's packages stay on hold after a promotion, where nobody has said otherwise."""
UNKEEP = "gpuhost-unhold"
UNKEEP_SERVICE = """# Managed by gpuhost: ends the hold on the old kernel's packages, then goes.
[Unit]
Description=gpuhost: the new kernel has been good for long enough, the old one may go
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart=/usr/bin/apt-mark unhold {names}
Restart=on-failure
RestartSec=3600
ExecStartPost=/usr/bin/rm -f /etc/systemd/system/timers.target.wants/{unit}.timer
ExecStartPost=/usr/bin/rm -f /etc/systemd/system/{unit}.timer /etc/systemd/system/{unit}.service
"""
UNKEEP_TIMER = """# Managed by gpuhost: ends the hold on the old kernel's packages.
[Timer]
OnCalendar={when}
Persistent=true

[Install]
WantedBy=timers.target
"""

UPGRADE_DRIVER = (
    "The driver does not build for this kernel: upgrade it first, or choose an older kernel. Then run it again."
)
PURGE_S = 900
"""A purge runs the kernel's removal hooks."""
LOCKED = re.compile(r"\block\b|lock-frontend|is another process using it")


@dataclass(frozen=True)
class Simulation:
    """What apt would do: ``lines`` for people, one package a line."""

    wanted: tuple[str, ...]
    transaction: apt.Transaction
    lines: tuple[str, ...]

    @property
    def changes(self) -> bool:
        """Whether apt would do anything at all."""
        return bool(self.lines)


def arguments(target: Target) -> list[str]:
    """Exact packages with exact versions. An installed package's version need not be in any archive any more.

    What comes with them has the kernel's release in its name, and is therefore as exact.
    """
    return [
        f"{target.image_package}={target.image_version}",
        f"{target.headers_package}={target.headers_version}",
        *target.companions,
    ]


def simulate(host: Host, target: Target, lock_timeout_s: int) -> Simulation:
    """Ask apt what it would do. Raises Stop where it can't, or where it would touch what keeps the host alive."""
    wanted = arguments(target)
    # apt's own waiting for the lock: a simulation takes none, and so never waits.
    result = host.run([*SIMULATE, "install", *wanted], timeout_s=lock_timeout_s + 120)
    if result.rc != 0:
        raise _failure(result, target)
    transaction = apt.parse_simulation(result.stdout)
    reasons = apt.blocked(transaction, {target.image_package, target.headers_package, *target.companions})
    if reasons:
        raise stop("apt.would_break", f"apt install {' '.join(wanted)}", "; ".join(reasons))
    return Simulation(tuple(wanted), transaction, tuple(_lines(transaction)))


def finish_interrupted(host: Host, target: Target, timeout_s: int) -> list[str]:
    """Configure what an interrupted dpkg has left, as apt asks for before it does anything. Returns the packages."""
    broken = list(apt.half_configured(read_packages(host)))
    if not broken and not host.names("/var/lib/dpkg/updates"):
        return []
    started = host.clock()
    result = host.run(["dpkg", "--force-confdef", "--force-confold", "--configure", "-a"], timeout_s=timeout_s)
    if result.rc != 0 and LOCKED.search(result.stderr):
        raise stop("apt.locked", "dpkg --configure -a", result.last_line)
    if result.rc != 0:
        failure = _dkms_failure(host, target, started)
        raise take_back(host, target, failure or stop("apt.half_configured", "dpkg --configure -a", result.last_line))
    return [f"configured {name}, which an interrupted dpkg had left" for name in broken]


def install(host: Host, target: Target, lock_timeout_s: int, timeout_s: int) -> None:
    """Install kernel and headers. DKMS builds in the kernel's hooks, so this takes minutes."""
    started = host.clock()
    result = host.run(
        [*APT, "-o", f"DPkg::Lock::Timeout={lock_timeout_s}", "install", *arguments(target)], timeout_s=timeout_s
    )
    host.sync()
    if result.rc != 0:
        raise take_back(host, target, _dkms_failure(host, target, started) or _failure(result, target))


def take_back(host: Host, target: Target, failure: Stop) -> Stop:
    """Remove what dpkg could not finish of the target kernel; the failure, with what came of that.

    A kernel whose hooks fail (DKMS does not build) stays half configured, and then every later apt run on the host
    fails too, security updates included. Nothing depends on the new kernel yet, and it is not the one that runs.
    """
    names = [state.name for state in read_packages(host).values() if state.broken and target.release in state.name]
    if not names or host.read_line("/proc/sys/kernel/osrelease") == target.release:
        return failure
    result = host.run(["dpkg", "--purge", *sorted(names)], timeout_s=PURGE_S)
    host.sync()
    left = apt.half_configured(read_packages(host))
    note = f"taken back: {', '.join(sorted(names))}"
    if left:
        note = f"dpkg --purge {' '.join(sorted(names))}: {result.last_line}; half configured: {', '.join(left)}"
    found = failure.blocker
    way_out = found.next_step if left or found.cause != "dkms.not_built" else UPGRADE_DRIVER
    return Stop(replace(found, observed=f"{found.observed} ({note})", next_step=way_out), failure.documents)


def keep(host: Host, release: str) -> tuple[str, ...]:
    """Put the packages of a kernel on hold, so that nothing removes the way back. Those that we have put there.

    What the operator holds already stays the operator's.
    """
    owners: set[str] = set()
    for path in (f"/boot/vmlinuz-{release}", f"/lib/modules/{release}"):
        result = host.run(["dpkg-query", "-S", path])
        for line in result.stdout.splitlines() if result.rc == 0 else []:
            owners.update(name.strip() for name in line.rpartition(": ")[0].split(","))
    installed = {name for name, state in read_packages(host).items() if state.installed}
    owners.update(name for name in kernel.headers_package_names(release) if name in installed)
    held = set(host.run(["apt-mark", "showhold"]).stdout.split())
    wanted = sorted(owners - held)
    if wanted:
        _mark(host, "hold", wanted)
    return tuple(wanted)


def unkeep(host: Host, names: tuple[str, ...]) -> list[str]:
    """Take our holds off again. Raises Stop where apt does not let us."""
    held = set(host.run(["apt-mark", "showhold"]).stdout.split()) & set(names)
    if not held:
        return []
    _mark(host, "unhold", sorted(held))
    return [f"no longer held: {', '.join(sorted(held))}"]


def try_unkeep(host: Host, names: tuple[str, ...]) -> list[str]:
    """Take our holds off again, or say how it is done: a hold too many is no reason to keep a roll open."""
    try:
        return unkeep(host, names)
    except Stop as error:
        command = f"apt-mark unhold {' '.join(names)}"
        return [f"still held, {error.blocker.cause}: {error.blocker.observed}; by hand: {command}"]


def prove_apt_idle(host: Host, what: str) -> None:
    """Wait a little until nobody holds apt's locks. Raises Stop(apt.locked) where somebody still does."""
    holder = wait_for_apt(host, APT_WAIT_S)
    if holder is not None:
        raise stop("apt.locked", what, holder, "nobody")


def _mark(host: Host, how: str, names: list[str]) -> None:
    """``apt-mark``, which writes dpkg's database and does not wait for its lock."""
    prove_apt_idle(host, f"apt-mark {how}")
    result = host.run(["apt-mark", how, *names])
    if result.rc != 0:
        raise stop("apt.locked" if LOCKED.search(result.stderr) else "apt.failed", f"apt-mark {how}", result.last_line)


def unkeep_later(host: Host, names: tuple[str, ...], days: int) -> list[str]:
    """Have our holds end by a timer on the host in so many days; at once where it is none."""
    if not names or days <= 0:
        return try_unkeep(host, names)
    timer, path = (f"/etc/systemd/system/{UNKEEP}.{kind}" for kind in ("timer", "service"))
    # The hold of an earlier promotion ends with this one, a little later than it would have.
    earlier = re.search(r"^ExecStart=\S+ unhold (.+)$", host.read(path) or "", re.MULTILINE)
    names = tuple(sorted({*names, *(earlier[1].split() if earlier else ())}))
    when = (datetime.now(timezone.utc) + timedelta(days=days)).strftime("%Y-%m-%d %H:%M:%S UTC")
    service = UNKEEP_SERVICE.format(names=" ".join(names), unit=UNKEEP)
    host.write_atomic(path, service.encode())
    host.write_atomic(timer, UNKEEP_TIMER.format(when=when).encode())
    host.link(f"/etc/systemd/system/timers.target.wants/{UNKEEP}.timer", timer)
    for argv in (["systemctl", "daemon-reload"], ["systemctl", "restart", f"{UNKEEP}.timer"]):
        result = host.run(argv, timeout_s=120)
        if result.rc != 0:
            raise stop("host.module_failed", " ".join(argv), result.last_line)
    return [f"held until {when[:10]}: {', '.join(names)}"]


def _dkms_failure(host: Host, target: Target, started: float) -> Stop | None:
    """The driver's own make.log, where it is what failed: dpkg says no more than that a script returned an error."""
    for path in host.files_below("/var/lib/dkms"):
        name = path.split("/")[4]
        if not path.endswith("/make.log") or not dkms.is_nvidia_driver(name):
            continue
        age, text = host.age_s(path), host.read(path) or ""
        error = dkms.first_error(text)
        if age is not None and age <= host.clock() - started and target.release in text and error:
            return stop("dkms.not_built", path, error, f"{name} builds for {target.release}")
    return None


def _failure(result: Result, target: Target) -> Stop:
    text = apt.parse_apt_error(f"{result.stderr}\n{result.stdout}") or result.last_line
    if LOCKED.search(text):
        return stop("apt.locked", "apt", text)
    if target.headers_package in text:
        return stop(
            "dkms.headers_missing",
            target.headers_package,
            f"apt can't install it for kernel {target.release}: {text}",
            f"version {target.headers_version}",
        )
    return stop("apt.failed", f"apt install {target.image_package}", text)


def _lines(transaction: apt.Transaction) -> list[str]:
    return [
        *(f"install {item.name} {item.new} ({item.suite})" for item in transaction.installs),
        *(f"upgrade {item.name} {item.old} -> {item.new} ({item.suite})" for item in transaction.upgrades),
        *(f"downgrade {item.name} {item.old} -> {item.new}" for item in transaction.downgrades),
        *(f"remove {item.name} {item.old}" for item in transaction.removals),
    ]
