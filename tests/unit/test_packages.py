"""Kernel and headers in one transaction: simulated with exact versions, refused where it would break the host."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_host import FakeHost
from fake_roll import debian_host, plan_of, step
from fake_tree import NEW, OLD

from gpuhost import packages
from gpuhost.documents import Target
from gpuhost.errors import Stop

IMAGE, HEADERS = f"linux-image-{NEW}=6.12.117-1", f"linux-headers-{NEW}=6.12.117-1"
INST = f"Inst linux-image-{NEW} (6.12.117-1 Debian-Security:12/oldstable-security [amd64])\n"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return debian_host(tmp_path, installed=False)


@pytest.fixture
def target(host: FakeHost) -> Target:
    return Target(**plan_of(host)["target"])


def cause_of(host: FakeHost, target: Target) -> str:
    with pytest.raises(Stop) as caught:
        packages.simulate(host, target, 10)
    return caught.value.blocker.cause


def test_apt_is_asked_for_exact_versions(host: FakeHost, target: Target) -> None:
    host.calls = []
    simulation = packages.simulate(host, target, 10)
    (call,) = host.ran("apt-get")
    assert call[-3:] == ["install", IMAGE, HEADERS]
    assert {"-s", "--no-install-recommends", "-y"} <= set(call)
    assert simulation.changes
    assert simulation.lines[0] == f"install linux-image-{NEW} 6.12.117-1 (Debian-Security:12/oldstable-security)"


def test_nothing_to_install_is_no_change(host: FakeHost, target: Target) -> None:
    packages.install(host, target, 10, 10)
    assert not packages.simulate(host, target, 10).changes


def test_installing_waits_for_the_lock(host: FakeHost, target: Target) -> None:
    packages.install(host, target, 600, 3600)
    call = host.ran("apt-get")[-1]
    assert {"DPkg::Lock::Timeout=600", "--no-remove"} <= set(call)
    assert call[-3:] == ["install", IMAGE, HEADERS]
    assert "-s" not in call


@pytest.mark.parametrize(
    "text",
    [
        f"{INST}Remv linux-image-amd64 [6.1.170-1]\n",
        f"{INST}Inst nvidia-driver [550.1-1] (570.2-1 Debian:12/bookworm [amd64])\n",
        f"{INST}Inst systemd-boot [252.39-1] (252.40-1 Debian:12/bookworm [amd64])\n",
        f"{INST}Inst zfs-dkms (2.2-1 Debian:12/bookworm [all])\n",
    ],
)
def test_what_would_break_the_host_is_refused(host: FakeHost, target: Target, text: str) -> None:
    host.programs["apt-get",] = (0, text, "")
    with pytest.raises(Stop) as caught:
        packages.simulate(host, target, 10)
    assert caught.value.blocker.cause == "apt.would_break"
    assert "would " in caught.value.blocker.observed


@pytest.mark.parametrize(
    ("stderr", "cause"),
    [
        (f"E: Version '6.12.117-1' for 'linux-headers-{NEW}' was not found\n", "dkms.headers_missing"),
        (f"E: Unable to locate package linux-headers-{NEW}\n", "dkms.headers_missing"),
        ("E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 1234 (apt)\n", "apt.locked"),
        ("E: dpkg was interrupted, you must manually run 'dpkg --configure -a'.\n", "apt.failed"),
        ("E: You don't have enough free space in /var/cache/apt/archives/.\n", "apt.failed"),
        ("E: Packages need to be removed but remove is disabled.\n", "apt.failed"),
        ("E: Unable to fetch some archives, maybe run apt-get update?\n", "apt.failed"),
        ("E: Write error - write (28: No space left on device)\nE: cannot read block device\n", "apt.failed"),
        ("", "apt.failed"),
    ],
)  # fmt: skip
def test_an_error_has_its_cause_and_apts_own_words(host: FakeHost, target: Target, stderr: str, cause: str) -> None:
    host.programs["apt-get",] = (100, "Reading package lists...\n", stderr)
    with pytest.raises(Stop) as caught:
        packages.simulate(host, target, 10)
    assert caught.value.blocker.cause == cause
    if stderr:
        assert stderr.splitlines()[0].removeprefix("E: ") in caught.value.blocker.observed


def test_unmet_dependencies_are_named(host: FakeHost, target: Target) -> None:
    out = f"The following packages have unmet dependencies:\n linux-image-{NEW} : Depends: kmod but\n"
    host.programs["apt-get",] = (100, out, "E: Unable to correct problems, you have held broken packages.\n")
    with pytest.raises(Stop) as caught:
        packages.simulate(host, target, 10)
    assert "Depends: kmod" in caught.value.blocker.observed


# --- the module


def test_the_module_installs_once(host: FakeHost) -> None:
    step(host, "gpuhost_boot_trial", action="hold", plan=plan_of(host))
    first = step(host, "gpuhost_kernel_upgrade")
    assert first["changed"]
    assert [line.split()[1] for line in first["lines"]] == [f"linux-image-{NEW}", f"linux-headers-{NEW}"]
    assert host.exists(f"/lib/modules/{NEW}/updates/dkms/nvidia.ko.xz")
    again = step(host, "gpuhost_kernel_upgrade")
    assert (again["changed"], again["lines"]) == (False, [])


def test_check_mode_names_the_same_packages(host: FakeHost) -> None:
    plan = plan_of(host)
    step(host, "gpuhost_boot_trial", action="hold", plan=plan)
    checked = step(host, "gpuhost_kernel_upgrade", check=True, plan=plan)
    assert checked["lines"] == step(host, "gpuhost_kernel_upgrade")["lines"]


@pytest.mark.parametrize("state", ["iU", "iF"])
def test_an_interrupted_installation_is_finished(host: FakeHost, state: str) -> None:
    plan = plan_of(host)
    step(host, "gpuhost_boot_trial", action="hold", plan=plan)
    step(host, "gpuhost_kernel_upgrade")
    host.packages[f"linux-image-{NEW}"] = ("6.12.117-1", state)
    answer = step(host, "gpuhost_kernel_upgrade")
    assert answer["changed"]
    assert host.packages[f"linux-image-{NEW}"] == ("6.12.117-1", "ii")


def test_a_kernel_whose_hooks_fail_is_taken_back(host: FakeHost, target: Target) -> None:
    """dkms fails in the kernel's hook: dpkg would stay broken, and every later apt run with it."""
    log = f"/var/lib/dkms/nvidia/550.1/build/{NEW}/x86_64/log/make.log"

    def fails(_: FakeHost, argv: list[str]) -> tuple[int, str, str]:
        host.packages[f"linux-headers-{NEW}"] = ("6.12.117-1", "ii")
        host.packages[f"linux-image-{NEW}"] = ("6.12.117-1", "iF")
        host.put(log, f"DKMS make.log for nvidia-550.1 for kernel {NEW}\nnv.c:1: error: implicit declaration of 'x'\n")
        return 100, "", f"dpkg: error processing package linux-image-{NEW} (--configure):\n"

    host.programs["apt-get",] = fails
    before = dict(host.packages)
    with pytest.raises(Stop) as caught:
        packages.install(host, target, 10, 10)
    assert caught.value.blocker.cause == "dkms.not_built"
    assert "implicit declaration" in caught.value.blocker.observed
    assert f"taken back: linux-image-{NEW}" in caught.value.blocker.observed
    assert host.packages == {**before, f"linux-headers-{NEW}": ("6.12.117-1", "ii")}
    assert host.ran("dpkg")[-1] == ["dpkg", "--purge", f"linux-image-{NEW}"]


def test_what_can_not_be_taken_back_is_named(host: FakeHost, target: Target) -> None:
    host.packages[f"linux-image-{NEW}"] = ("6.12.117-1", "iF")
    host.programs["apt-get",] = (100, "", "E: Sub-process /usr/bin/dpkg returned an error code (1)\n")
    host.programs["dpkg",] = (1, "", "dpkg: error: dependency problems\n")
    with pytest.raises(Stop) as caught:
        packages.install(host, target, 10, 10)
    assert f"half configured: linux-image-{NEW} (iF)" in caught.value.blocker.observed
    assert "dependency problems" in caught.value.blocker.observed


def test_the_kernel_that_runs_is_never_taken_back(host: FakeHost, target: Target) -> None:
    host.put("/proc/sys/kernel/osrelease", f"{NEW}\n")
    host.packages[f"linux-image-{NEW}"] = ("6.12.117-1", "iF")
    host.programs["apt-get",] = (100, "", "E: Sub-process /usr/bin/dpkg returned an error code (1)\n")
    with pytest.raises(Stop):
        packages.install(host, target, 10, 10)
    assert host.ran("dpkg") == []


def test_packages_that_can_not_be_configured_are_a_stop(host: FakeHost) -> None:
    step(host, "gpuhost_boot_trial", action="hold", plan=plan_of(host))
    host.packages["odd"] = ("1", "iF")
    host.programs["dpkg",] = (1, "", "dpkg: error processing package odd (--configure):")
    with pytest.raises(Stop) as caught:
        step(host, "gpuhost_kernel_upgrade")
    assert caught.value.blocker.cause == "apt.half_configured"
    assert host.ran("apt-get", *packages.APT[1:], "install") == []


# --- holds


def apt_works(host: FakeHost, seconds: float) -> None:
    """dpkg's lock is held for so long from now on."""
    path = "/var/lib/dpkg/lock-frontend"
    host.put(path)
    host.put("/proc/1234/comm", "unattended-upgr\n")
    end = host.seconds + seconds
    lines = f"1: POSIX  ADVISORY  WRITE 1234 08:01:{host.inode(path)} 0 EOF\n"
    host.put("/proc/locks", lines)
    sleep = host.sleep

    def asleep(given: float) -> None:
        sleep(given)
        host.put("/proc/locks", lines if host.seconds < end else "")

    host.sleep = asleep  # type: ignore[method-assign]


@pytest.mark.parametrize("how", ["hold", "unhold"])
def test_apt_mark_waits_for_a_busy_dpkg(tmp_path: Path, how: str) -> None:
    host = debian_host(tmp_path)
    names = tuple(sorted(f"linux-{kind}-{OLD}" for kind in ("image", "headers")))
    host.held = set(names) if how == "unhold" else set()
    apt_works(host, 60)
    if how == "hold":
        assert packages.keep(host, OLD) == names
    else:
        assert packages.unkeep(host, names) == [f"no longer held: {', '.join(names)}"]
    assert host.seconds >= 60
    assert host.held == (set(names) if how == "hold" else set())


@pytest.mark.parametrize("how", ["hold", "unhold"])
@pytest.mark.parametrize(
    ("seconds", "stderr", "cause"),
    [
        (900, "", "apt.locked"),
        (0, "dpkg: error: dpkg database lock was locked by another process with pid 1234", "apt.locked"),
        (0, "dpkg: error: dpkg frontend lock was locked by another process with pid 1234", "apt.locked"),
        (0, "dpkg: error: unable to write", "apt.failed"),
    ],
)
def test_apt_mark_that_does_not_get_through_says_why(
    tmp_path: Path, how: str, seconds: int, stderr: str, cause: str
) -> None:
    host = debian_host(tmp_path)
    host.held = {f"linux-image-{OLD}"} if how == "unhold" else set()
    if seconds:
        apt_works(host, seconds)
    else:
        host.programs["apt-mark", how] = (1, "", stderr)
    with pytest.raises(Stop) as caught:
        packages.keep(host, OLD) if how == "hold" else packages.unkeep(host, (f"linux-image-{OLD}",))
    assert caught.value.blocker.cause == cause
    assert (stderr or "unattended-upgr (pid 1234)") in caught.value.blocker.observed


def test_nothing_to_hold_waits_for_nobody(tmp_path: Path) -> None:
    host = debian_host(tmp_path)
    apt_works(host, 900)
    assert packages.unkeep(host, ("linux-image-a",)) == []
    assert host.seconds < 10


def test_a_hold_that_stays_is_no_stop_but_a_command(tmp_path: Path) -> None:
    host = debian_host(tmp_path)
    host.held = {"linux-image-a"}
    host.programs["apt-mark", "unhold"] = (1, "", "dpkg: error: unable to write")
    (line,) = packages.unkeep_later(host, ("linux-image-a",), 0)
    assert "unable to write" in line
    assert line.endswith("apt-mark unhold linux-image-a")


def test_the_hold_of_an_earlier_promotion_ends_with_the_next_one(tmp_path: Path) -> None:
    host = debian_host(tmp_path)
    packages.unkeep_later(host, ("linux-image-a",), 14)
    packages.unkeep_later(host, ("linux-image-b",), 14)
    service = host.read("/etc/systemd/system/gpuhost-unhold.service") or ""
    assert "ExecStart=/usr/bin/apt-mark unhold linux-image-a linux-image-b\n" in service
    assert "OnCalendar=20" in (host.read("/etc/systemd/system/gpuhost-unhold.timer") or "")


def test_no_days_end_the_hold_at_once_and_only_ours(tmp_path: Path) -> None:
    host = debian_host(tmp_path)
    host.held = {"nvidia-driver", "linux-image-a"}
    assert packages.unkeep_later(host, ("linux-image-a",), 0) == ["no longer held: linux-image-a"]
    assert host.held == {"nvidia-driver"}
    assert not host.exists("/etc/systemd/system/gpuhost-unhold.service")
