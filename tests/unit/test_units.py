"""Units after a boot: which failures block, how long systemd may take, and when /etc/pve may be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost

from gpuhost import units
from gpuhost.errors import Stop, stop
from gpuhost.units import Job

FAILED = """\
certbot.service             loaded failed failed Certbot
nvidia-persistenced.service loaded failed failed NVIDIA Persistence Daemon
run-user-0.mount            loaded failed failed /run/user/0
"""
# The same without --plain, as an older habit has it.
DOTTED = "● nvidia-persistenced.service loaded failed failed NVIDIA Persistence Daemon\n"
JOBS = """\
  12 reboot.target             start waiting
 345 pve-guests.service        stop  running
 346 session-3.scope           stop  running
 347 umount.target             start waiting
"""
STANDALONE = {"nodename": "pve1", "version": 3}
CLUSTER = {
    "nodename": "pve1",
    "version": 5,
    "cluster": {"name": "lab", "version": 3, "nodes": 3, "quorate": 1},
    "nodelist": {"pve1": {"id": 1, "online": 1, "ip": "192.0.2.11"}},
}


def system(folder: Path, states: list[str], failed: str = "", jobs: str = "") -> FakeHost:
    """A host whose systemd goes through these states; the last one stays."""
    host = FakeHost(folder)

    def state(_: FakeHost, __: list[str]) -> tuple[int, str, str]:
        now = states.pop(0) if len(states) > 1 else states[0]
        return (0 if now == "running" else 1), f"{now}\n", ""

    host.programs["systemctl", "is-system-running"] = state
    host.programs["systemctl", "list-units"] = (0, failed, "")
    host.programs["systemctl", "list-jobs"] = (0, jobs, "")
    return host


# --- texts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (FAILED, ("certbot.service", "nvidia-persistenced.service", "run-user-0.mount")),
        (DOTTED, ("nvidia-persistenced.service",)),
        ("* lxc@web.service loaded failed failed LXC Container: web\n", ("lxc@web.service",)),
        (r"dev-disk-by\x2duuid-1.device loaded failed failed x" + "\n", (r"dev-disk-by\x2duuid-1.device",)),
        ("0 loaded units listed.\n", ()),
        ("", ()),
    ],
)
def test_names_of_failed_units(text: str, names: tuple[str, ...]) -> None:
    assert units.failed_units(text) == names


@pytest.mark.parametrize(
    ("unit", "blocks"),
    [
        ("gpuhost-return.service", True),
        ("gpuhost-deadline.timer", True),
        ("nvidia-persistenced.service", True),
        ("nvidia-fabricmanager.service", True),
        ("pve-cluster.service", True),
        ("pve-guests.service", True),
        ("lxc-net.service", True),
        ("nvidia-powerd.service", False),
        ("nvidia-dcgm.service", False),
        ("lxc@web.service", False),
        ("certbot.service", False),
        ("not-gpuhost-1.service", False),
    ],
)
def test_which_failures_block(unit: str, blocks: bool) -> None:
    assert units.blocking((unit,)) == ((unit,) if blocks else ())


def test_jobs_and_what_a_shutdown_waits_for() -> None:
    found = units.jobs(JOBS + "4 jobs listed.\n")
    assert found[1] == Job("pve-guests.service", "stop", "running")
    assert len(found) == 4
    assert units.what_hangs(found) == "waits for stop of pve-guests.service, stop of session-3.scope"
    assert units.what_hangs(found[:1]) == "1 jobs wait, none runs (first: start of reboot.target)"
    assert "never begun" in units.what_hangs(())


# --- the proof


def test_a_host_that_runs_is_proven(tmp_path: Path) -> None:
    host = system(tmp_path, ["running"])
    (proof,) = units.prove_units(host)
    assert (proof.ok, proof.cause, proof.observed) == (True, None, "systemd is running")


def test_unrelated_failures_are_named_and_do_not_block(tmp_path: Path) -> None:
    (proof,) = units.prove_units(system(tmp_path, ["degraded"], "certbot.service loaded failed failed Certbot\n"))
    assert proof.ok
    assert "certbot.service failed: not ours" in proof.observed


def test_a_failed_unit_of_ours_blocks_and_names_the_way_out(tmp_path: Path) -> None:
    (proof,) = units.prove_units(system(tmp_path, ["degraded"], FAILED))
    assert (proof.name, proof.ok, proof.cause) == ("unit nvidia-persistenced.service", False, "reboot.unit_failed")
    assert "journalctl -b -u nvidia-persistenced.service" in proof.next_step


def test_a_unit_that_fails_while_the_boot_goes_on_is_seen(tmp_path: Path) -> None:
    """The host answers ssh long before its last unit: what is asked too early has not failed yet."""
    host = system(tmp_path, ["initializing", "starting", "starting", "degraded"])

    def failed(host: FakeHost, _: list[str]) -> tuple[int, str, str]:
        return 0, FAILED if len(host.ran("systemctl", "is-system-running")) == 4 else "", ""

    host.programs["systemctl", "list-units"] = failed
    assert [proof.ok for proof in units.prove_units(host)] == [False]
    assert len(host.ran("systemctl", "list-units")) == 1


def test_a_boot_without_end_blocks_only_where_it_waits_for_ours(tmp_path: Path) -> None:
    host = system(tmp_path, ["starting"], jobs=" 99 some-vendor.service start running\n")
    (proof,) = units.prove_units(host, limit_s=20)
    assert proof.ok
    assert 20 <= host.seconds < 30
    host.programs["systemctl", "list-jobs"] = (0, " 99 pve-guests.service start running\n", "")
    (proof,) = units.prove_units(host, limit_s=20)
    assert (proof.cause, proof.observed) == ("reboot.unit_failed", "has not started within 20 s")


def test_without_waiting_only_what_has_failed_counts(tmp_path: Path) -> None:
    host = system(tmp_path, ["starting"], jobs=" 99 pve-guests.service start running\n")
    assert [proof.ok for proof in units.prove_units(host, limit_s=0)] == [True]
    host.programs["systemctl", "list-units"] = (0, FAILED, "")
    (proof,) = units.prove_units(host, limit_s=0)
    assert (proof.name, proof.observed) == ("unit nvidia-persistenced.service", "failed")
    assert host.seconds < 5


@pytest.mark.parametrize("state", ["maintenance", "stopping", "offline", "unknown"])
def test_a_system_that_is_not_up_is_not_proven(tmp_path: Path, state: str) -> None:
    (proof,) = units.prove_units(system(tmp_path, [state]))
    assert (proof.cause, proof.observed) == ("reboot.unit_failed", f"systemd is {state}")


def test_a_systemctl_that_does_not_answer_proves_nothing(tmp_path: Path) -> None:
    host = system(tmp_path, ["running"])
    host.programs["systemctl", "list-units"] = (1, "", "Failed to connect to bus: Connection refused\n")
    (proof,) = units.prove_units(host)
    assert not proof.ok
    assert "Failed to connect to bus" in proof.observed
    (proof,) = units.prove_units(FakeHost(tmp_path))
    assert not proof.ok


# --- Proxmox


def proxmox(folder: Path, members: Any, *, corosync: bool = False) -> FakeHost:
    host = FakeHost(folder)
    host.put("/usr/bin/pmxcfs")
    if members is not None:
        host.put("/etc/pve/.members", members if isinstance(members, str) else json.dumps(members))
    if corosync:
        host.put("/etc/pve/corosync.conf", "totem {}\n")
    return host


@pytest.mark.parametrize(
    ("members", "corosync", "reason"),
    [
        (CLUSTER, True, None),
        (STANDALONE, False, None),
        (None, False, "/etc/pve is not mounted"),
        ({**CLUSTER, "cluster": {"name": "lab", "quorate": 0}}, True, "/etc/pve is not quorate"),
        (STANDALONE, True, "/etc/pve has not joined its cluster"),
        ("{", False, "/etc/pve/.members is not readable"),
        ("[]", True, "/etc/pve has not joined its cluster"),
    ],
)
def test_when_pve_may_be_read(tmp_path: Path, members: Any, corosync: bool, reason: str | None) -> None:
    assert units.pve_ready(proxmox(tmp_path, members, corosync=corosync)) == reason


def test_a_host_without_proxmox_is_not_asked(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    assert units.pve_ready(host) is None
    assert units.prove_pve(host) == []


def test_pve_is_waited_for_and_its_end_is_a_cause(tmp_path: Path) -> None:
    host = proxmox(tmp_path, None)
    (proof,) = units.prove_pve(host, limit_s=30)
    assert (proof.ok, proof.cause, proof.observed) == (
        False,
        "reboot.pve_not_ready",
        "/etc/pve is not mounted after 30 s",
    )
    host.put("/etc/pve/.members", json.dumps(STANDALONE))
    assert [proof.ok for proof in units.prove_pve(host, limit_s=30)] == [True]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("WHAT=shutdown:sleep\nMODE=block\nWHO=fwupd\nWHY=firmware update\n", ["fwupd: firmware update"]),
        ("WHAT=shutdown\nMODE=block-weak\nWHO=session\nWHY=unsaved work\n", ["session: unsaved work"]),
        ("WHAT=shutdown\nMODE=delay\nWHO=unattended-upgrades\nWHY=stop gracefully\n", []),
        ("WHAT=handle-lid-switch\nMODE=block\nWHO=desktop\nWHY=lid\n", []),
    ],
)
def test_only_a_lock_that_blocks_a_shutdown_is_an_inhibitor(tmp_path: Path, text: str, found: list[str]) -> None:
    host = FakeHost(tmp_path)
    host.put("/run/systemd/inhibit/3", "# This is private data. Do not parse.\n" + text)
    assert units.inhibitors(host) == found
    if found:
        with pytest.raises(Stop) as raised:
            units.prove_no_inhibitor(host)
        assert raised.value.blocker.cause == "reboot.inhibited"
    else:
        units.prove_no_inhibitor(host)


def test_a_pmxcfs_that_has_died_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeHost(tmp_path)
    host.put("/usr/bin/pmxcfs")

    def read_bytes(path: str) -> bytes | None:
        raise stop("host.module_failed", path, "Transport endpoint is not connected")

    monkeypatch.setattr(host, "read_bytes", read_bytes)
    (proof,) = units.prove_pve(host, 2)
    assert not proof.ok
    assert "Transport endpoint is not connected" in proof.observed
